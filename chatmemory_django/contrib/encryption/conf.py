"""What the app reads of ``CHATMEMORY``."""

from collections.abc import Sequence
from typing import Annotated

from chatmemory_django.conf import Section, Switch, one_of, path_of


class Encryption(Section):
    """``ENCRYPTION``: the settings of the app."""

    key = "ENCRYPTION"
    ids = ("chatmemory.E051", "chatmemory.W051", "chatmemory.E052")
    hint = 'Write "ENCRYPTION": {"KEYS": [os.environ["CHATMEMORY_KEY"]]}.'

    KEYS: Sequence[str] = []
    OWNER_KEYS: Switch = False
    PLAIN: Annotated[str, one_of("read", "refuse", "write"), "chatmemory.E057"] = "read"
    CLASS: Annotated[str, path_of("chatmemory_django.contrib.encryption.keys.Keys"), "chatmemory.E054"] = (
        "chatmemory_django.contrib.encryption.keys.Keys"
    )
