"""System checks of the keys. They name the place of a key, never the key."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.conf import ENVIRONMENT_VARIABLE
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004  # Django's name for it

from chatmemory_django.contrib.encryption.conf import Encryption
from chatmemory_django.contrib.encryption.keys import parse


def check_keys(**kwargs: Any) -> list[CheckMessage]:
    """Check ``CHATMEMORY["ENCRYPTION"]``, and that its package is installed."""
    found = Encryption.check(lambda given: map(_wrong_key, _problems("CHATMEMORY['ENCRYPTION']['KEYS']", given.KEYS)))
    if find_spec("cryptography") is None:
        found.append(
            Error(
                "'chatmemory_django.contrib.encryption' needs the package cryptography.",
                hint="pip install 'chatmemory-django[encryption]'",
                id="chatmemory.E056",
            )
        )
    return found


def check_written_keys(**kwargs: Any) -> Iterator[CheckMessage]:
    """Check that no key is written in the file of the settings; run with ``check --deploy``."""
    given = Encryption.readable()
    keys: object = given and given.KEYS
    path = getattr(sys.modules.get(os.environ.get(ENVIRONMENT_VARIABLE, "")), "__file__", None)
    if not isinstance(keys, list | tuple) or path is None:
        return
    try:
        source = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    for index, key in enumerate(keys):
        if isinstance(key, str) and key and key in source:
            yield Warning(
                f"CHATMEMORY['ENCRYPTION']['KEYS'][{index}] is written in {path}: who reads the repository or a backup "
                "of it can decrypt all messages.",
                hint='Read it from the environment: os.environ["CHATMEMORY_KEY"]. Replace the key by another one.',
                id="chatmemory.W075",
            )


def check_plain(**kwargs: Any) -> list[CheckMessage]:
    """Check that plain texts are refused; run with ``check --deploy``."""
    given = Encryption.readable()
    if given is None or given.PLAIN == "refuse":
        return []
    return [
        Warning(
            f"CHATMEMORY['ENCRYPTION']['PLAIN'] is {given.PLAIN!r}: who can write to the database can put plain texts "
            "into it, which are read and sent to models.",
            hint="Set it to 'refuse' once encrypt_chatmemory has finished and check_chatmemory prints no such values.",
            id="chatmemory.W080",
        )
    ]


def _problems(where: str, keys: object) -> Iterator[str]:
    if not isinstance(keys, list | tuple) or not keys:
        kind = type(keys).__name__
        yield f"{where} must be a list of at least one key, not {'an empty' if keys in ([], ()) else 'a'} {kind}."
        return
    places: dict[str, int] = {}
    for index, key in enumerate(keys):
        try:
            key_id, _ = parse(key)
        except ValueError as exc:
            yield f"{where}[{index}] {exc}."
            continue
        name = key_id.lower()  # some databases compare without case
        if name in places:
            yield f"{where}[{index}] has the id {key_id!r}, like [{places[name]}]; each key needs its own."
        places.setdefault(name, index)


def _wrong_key(problem: str) -> CheckMessage:
    return Error(problem, hint="manage.py chatmemory_key prints a new key.", id="chatmemory.E053")
