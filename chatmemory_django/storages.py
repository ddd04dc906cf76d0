"""
Reading and writing of files in the storage that ``CHATMEMORY["MEDIA_STORAGE"]`` names: several at once, and in time.

A storage may be a service that is down, or hangs. No call here takes longer than ``MEDIA_TIMEOUT`` seconds; what does
not answer until then is an error, and its thread is left to itself.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import TypeVar

from django.core.files.base import ContentFile
from django.core.files.storage import Storage, storages
from django.db import connections
from django.utils import timezone

from chatmemory_django import conf

FOLDER = "chatmemory"
"""The folder of the files in the storage."""

PARALLEL = 8
"""How many files one call reads or writes at the same time."""

_T = TypeVar("_T")

_logger = logging.getLogger("chatmemory_django")


class StorageError(Exception):
    """The storage of files did not do what it was asked for, or not in time."""


class MissingFileError(StorageError):
    """A file of a message is not in the storage."""

    def __init__(self, memory_id: str, sequence: int, index: int) -> None:
        super().__init__(
            f"The file at {index} in the contents of message {sequence} of {memory_id!r} is not in the storage. "
            "Restore it, remove the message, or set CHATMEMORY['MEDIA_MISSING'] to 'placeholder'."
        )
        self.memory_id = memory_id
        self.sequence = sequence
        self.index = index


def storage() -> Storage:
    """Return the storage of files; ``StorageError`` if the settings name none."""
    alias = conf.media_storage()
    if alias is None:
        raise StorageError("The files are in a storage, but CHATMEMORY['MEDIA_STORAGE'] is None; name it there.")
    return storages[alias]


def new_name(sha256: str) -> str:
    """
    Return a name for a new file with that *sha256*.

    It ends with random letters, so that no file is ever written twice, nor under the name of a deleted one: what is
    deleted last can only be what was written first. And nobody can guess it.
    """
    return f"{FOLDER}/{sha256[:2]}/{sha256}-{secrets.token_hex(8)}"


def save(contents: Mapping[str, bytes]) -> None:
    """Write files, *contents* by name: all, or ``StorageError``; then those that were written are deleted."""
    if not contents:
        return
    where = storage()
    calls = {name: partial(_save, where, name, content) for name, content in contents.items()}
    found = _in_time(calls)
    error = next((each for each in found.values() if isinstance(each, Exception)), None)
    if error is not None or len(found) < len(calls):
        delete(contents)
        raise StorageError(f"The storage did not store a file{_reason(error)}; nothing is stored.") from error


def read(names: Iterable[str]) -> dict[str, bytes]:
    """Return the contents of the files *names*, without those that do not exist; ``StorageError`` if it fails."""
    where = storage()
    calls = {name: partial(_read, where, name) for name in names}
    found = _in_time(calls)
    contents: dict[str, bytes] = {}
    for name in calls:
        content = found.get(name, TimeoutError())
        if isinstance(content, FileNotFoundError):
            continue
        if isinstance(content, Exception):
            raise StorageError(f"The storage did not return a file{_reason(content)}.") from content
        contents[name] = content
    return contents


def delete(names: Iterable[str]) -> None:
    """Delete the files *names*. What fails is logged, and found by ``check_chatmemory``."""
    where = storage()
    calls = {name: partial(where.delete, name) for name in names}
    found = _in_time(calls)
    failed = [name for name in calls if isinstance(found.get(name, TimeoutError()), Exception)]
    if failed:
        _logger.warning("%d files could not be deleted from the storage; check_chatmemory finds them.", len(failed))


def listed() -> Iterator[str]:
    """Yield the names of all files in the folder."""
    where = storage()
    try:
        folders, _ = where.listdir(FOLDER)
        for folder in sorted(folders):
            _, names = where.listdir(f"{FOLDER}/{folder}")
            yield from (f"{FOLDER}/{folder}/{name}" for name in sorted(names))
    except FileNotFoundError:
        return  # nothing was ever stored
    except Exception as exc:
        raise StorageError(f"The storage did not list its files{_reason(exc)}.") from exc


def is_lost(name: str) -> bool:
    """Return whether the file *name* does not exist."""
    return not storage().exists(name)


def is_older(name: str, moment: datetime) -> bool:
    """Return whether the file *name* was written before *moment*."""
    try:
        written = storage().get_modified_time(name)
    except FileNotFoundError:
        return False
    return (written if timezone.is_aware(written) else timezone.make_aware(written)) < moment


def signed_url(name: str, seconds: int) -> str:
    """Return an address of the file *name* that expires after *seconds*, signed by the storage."""
    return storage().url(name, expire=seconds)  # type: ignore[call-arg]  # of S3 and the like, see the checks


def _save(where: Storage, name: str, content: bytes) -> None:
    given = where.save(name, ContentFile(content))
    if given != name:  # random names do not collide, so the storage changes them
        where.delete(given)
        raise StorageError(f"The storage changes the name {name!r} to {given!r}")


def _read(where: Storage, name: str) -> bytes:
    with where.open(name) as file:
        content: bytes = file.read()
        return content


def _reason(error: Exception | None) -> str:
    if error is None or isinstance(error, TimeoutError):
        return f" within {conf.media('MEDIA_TIMEOUT')} seconds"
    return f" ({type(error).__name__})"


def _in_time(calls: Mapping[str, Callable[[], _T]]) -> dict[str, _T | Exception]:
    """Return the results of *calls*, or what they raised, of those that ended in time."""
    found: dict[str, _T | Exception] = {}
    waiting = deque(calls.items())

    def work() -> None:
        try:
            while True:
                try:
                    name, call = waiting.popleft()
                except IndexError:
                    return
                try:
                    result: _T | Exception = call()
                except Exception as exc:  # noqa: BLE001  # storages raise what their services do
                    result = exc
                found[name] = result
        finally:
            connections.close_all()  # of this thread: a storage may use the database

    # Not a pool: threads that hang would occupy it, and keep the process from ending.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(PARALLEL, len(calls)))]
    deadline = time.monotonic() + conf.media("MEDIA_TIMEOUT")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
    waiting.clear()
    return dict(found)
