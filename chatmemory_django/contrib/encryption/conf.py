"""What the app reads of ``CHATMEMORY``."""

from collections.abc import Sequence
from typing import Annotated

from chatmemory_django.conf import Rule, Section, Switch, one_of, path_of

MAX_CACHE_SECONDS = 3600
"""The longest time that a process uses the key of an owner: a key that was replaced stays for longer."""

_Seconds = Annotated[
    int,
    Rule(
        f"a whole number of seconds from 0 to {MAX_CACHE_SECONDS:,}",
        lambda value: type(value) is int and 0 <= value <= MAX_CACHE_SECONDS,
    ),
]


class Encryption(Section):
    """``ENCRYPTION``: the settings of the app."""

    key = "ENCRYPTION"
    ids = ("chatmemory.E051", "chatmemory.W051", "chatmemory.E052")
    hint = 'Write "ENCRYPTION": {"KEYS": [os.environ["CHATMEMORY_KEY"]]}.'

    KEYS: Sequence[str] = []
    OWNER_KEYS: Switch = False
    OWNER_KEY_SECONDS: _Seconds = 60
    """How long a process uses the key of an owner without asking for it again, and so after the owner was erased."""
    PLAIN: Annotated[str, one_of("read", "refuse", "write"), "chatmemory.E057"] = "read"
    CLASS: Annotated[str, path_of("chatmemory_django.contrib.encryption.keys.Keys"), "chatmemory.E054"] = (
        "chatmemory_django.contrib.encryption.keys.Keys"
    )
