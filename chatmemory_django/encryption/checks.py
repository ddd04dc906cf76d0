"""System checks of the keys. They name the place of a key, never the key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error

from chatmemory_django import conf
from chatmemory_django.encryption.keys import Keys, parse

WRONG_TYPE = "chatmemory.E052"


def check_keys(**kwargs: Any) -> list[CheckMessage]:
    """Check ``CHATMEMORY["ENCRYPTION"]``, and that nothing beside it needs plain texts."""
    found = conf.check_dict(
        "ENCRYPTION",
        conf.DEFAULT_ENCRYPTION,
        _options,
        hint='Write "ENCRYPTION": {"KEYS": [os.environ["CHATMEMORY_KEY"]]}.',
        ids=("chatmemory.E051", "chatmemory.W051", WRONG_TYPE),
    )
    if apps.is_installed("chatmemory_django.search"):
        found.append(
            Error(
                "'chatmemory_django.search' cannot search what 'chatmemory_django.encryption' encrypts.",
                hint="Remove one of them from INSTALLED_APPS.",
                id="chatmemory.E055",
            )
        )
    if find_spec("cryptography") is None:
        found.append(
            Error(
                "'chatmemory_django.encryption' needs the package cryptography.",
                hint="pip install 'chatmemory-django[encryption]'",
                id="chatmemory.E056",
            )
        )
    return found


def _options(values: Mapping[str, Any]) -> Iterator[CheckMessage]:
    where = "CHATMEMORY['ENCRYPTION']"
    yield from conf.check_class(
        f"{where}['CLASS']", values["CLASS"], Keys, conf.DEFAULT_ENCRYPTION["CLASS"], "chatmemory.E054"
    )
    if type(values["OWNER_KEYS"]) is not bool:
        yield Error(
            f"{where}['OWNER_KEYS'] must be True or False, not {values['OWNER_KEYS']!r}.",
            hint="Remove it to use the default of False.",
            id=WRONG_TYPE,
        )
    yield from map(_wrong_key, _problems(f"{where}['KEYS']", values["KEYS"]))


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
