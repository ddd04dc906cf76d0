"""System checks of the settings of files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004  # Django's name for it
from django.utils.module_loading import import_string

from chatmemory_django.contrib.files.conf import StorageOfFiles
from chatmemory_django.contrib.files.storage import can_sign


def check_storage(**kwargs: Any) -> list[CheckMessage]:
    """Check the settings of files in ``CHATMEMORY``."""
    given = StorageOfFiles.readable()
    return [] if given is None else [*given.broken(), *_storage(given)]


def _storage(given: StorageOfFiles) -> Iterator[CheckMessage]:
    alias, seconds = given.MEDIA_STORAGE, given.MEDIA_URLS
    if alias is not None and alias not in settings.STORAGES:
        yield Error(
            f"CHATMEMORY['MEDIA_STORAGE'] must be an alias in STORAGES, or None, not {alias!r}.",
            hint=f"The aliases are {', '.join(map(repr, settings.STORAGES))}; chats need one of their own.",
            id="chatmemory.E081",
        )
    elif alias in {"default", "staticfiles"}:
        yield Warning(
            f"CHATMEMORY['MEDIA_STORAGE'] is {alias!r}, whose files a server usually gives to everybody who asks.",
            hint="Add a storage to STORAGES whose files are not served.",
            id="chatmemory.W081",
        )
    if seconds is not None and alias is not None and alias in settings.STORAGES:
        backend: Any = import_string(settings.STORAGES[alias]["BACKEND"])
        if not can_sign(backend):
            yield Error(
                f"CHATMEMORY['MEDIA_URLS'] is {seconds!r}, but the storage {alias!r} cannot sign addresses: url() of "
                f"{backend.__name__} takes no 'expire'.",
                hint="Remove MEDIA_URLS, or use a storage such as S3Storage of django-storages.",
                id="chatmemory.E084",
            )
