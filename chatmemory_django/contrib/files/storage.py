"""
Reading and writing of files in the storage that ``CHATMEMORY["MEDIA_STORAGE"]`` names: several at once, and in time.

A storage may be a service that is down, or hangs. No call here takes longer than ``MEDIA_TIMEOUT`` seconds; what does
not answer until then is an error, and its thread is left to itself.
"""

from __future__ import annotations

import inspect
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from queue import SimpleQueue
from typing import Any, ClassVar, TypeVar

from django.core.files.base import ContentFile
from django.core.files.storage import Storage, storages
from django.db import connections
from django.utils import timezone

from chatmemory_django.contrib.files.conf import files
from chatmemory_django.db.row_codec import Address
from chatmemory_django.models.message_codec import StorageError

FOLDER = "chatmemory"
"""The folder of the files in the storage."""

FOLDERS = tuple(f"{FOLDER}/{number:02x}" for number in range(256))
"""The folders in it, by the beginning of the SHA-256."""

PARALLEL = 8
"""How many files one call reads or writes at the same time."""

_T = TypeVar("_T")

_logger = logging.getLogger("chatmemory_django")


def storage() -> Storage:
    """Return the storage of files; ``StorageError`` if the settings name none."""
    alias = files().MEDIA_STORAGE
    if alias is None:
        raise StorageError("The files are in a storage, but CHATMEMORY['MEDIA_STORAGE'] is None; name it there.")
    return storages[alias]


def require(at: Address, sequence: int) -> None:
    """Raise ``StorageError`` if the settings name no storage, so that the file of that message cannot be read."""
    if files().MEDIA_STORAGE is None:
        raise StorageError(
            f"Message {sequence} of {at.memory_id!r} has a file in a storage, but CHATMEMORY['MEDIA_STORAGE'] is None; "
            "name the storage there."
        )


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
    given_up = threading.Event()
    calls = {name: partial(_save, where, name, content, given_up) for name, content in contents.items()}
    deadline = _deadline()
    found = _in_time(calls, deadline)
    error = next((each for each in found.values() if isinstance(each, Exception)), None)
    if error is not None or len(found) < len(calls):
        given_up.set()  # first: who ends later than this deletes its own
        _delete(contents, deadline)
        raise StorageError(f"The storage did not store a file{_reason(error)}; nothing is stored.") from error


def read(names: Iterable[str]) -> dict[str, bytes]:
    """Return the contents of the files *names*, without those that do not exist; ``StorageError`` if it fails."""
    where = storage()
    calls = {name: partial(_read, where, name) for name in names}
    found = _in_time(calls, _deadline())
    contents: dict[str, bytes] = {}
    for name in calls:
        content = found.get(name, TimeoutError())
        if not isinstance(content, FileNotFoundError):
            contents[name] = _result(content, "return a file")
    return contents


def delete(names: Iterable[str]) -> list[str]:
    """Delete the files *names*, and return those that are gone then. What fails is logged."""
    return _delete(names, _deadline())


def _delete(names: Iterable[str], deadline: float) -> list[str]:
    where = storage()
    calls = {name: partial(where.delete, name) for name in names}
    found: dict[str, object] = {**_in_time(calls, deadline)}
    failed = {name for name in calls if _has_failed(found.get(name, TimeoutError()))}
    if failed:
        words = "%d files could not be deleted from the storage; prune_chatmemory, or check_chatmemory --repair, does."
        _logger.warning(words, len(failed))
    return [name for name in calls if name not in failed]


def _has_failed(result: object) -> bool:
    return isinstance(result, Exception) and not isinstance(result, FileNotFoundError)  # which was deleted before


def listed(folder: str) -> list[str]:
    """Return the names of the files in *folder*, one of ``FOLDERS``."""
    where = storage()
    try:
        _, names = _asked(partial(where.listdir, folder), "list its files")
    except FileNotFoundError:
        return []  # nothing was ever stored there
    return [f"{folder}/{name}" for name in names]


def is_lost(name: str) -> bool:
    """Return whether the file *name* does not exist."""
    return not _asked(partial(storage().exists, name), "answer whether it has a file")


def is_older(name: str, moment: datetime) -> bool:
    """Return whether the file *name* was written before *moment*."""
    try:
        written = _asked(partial(storage().get_modified_time, name), "answer when a file was written")
    except FileNotFoundError:
        return False
    return (written if timezone.is_aware(written) else timezone.make_aware(written)) < moment


def can_sign(backend: type[Storage]) -> bool:
    """Return whether storages of that class sign addresses that expire: whether ``url`` takes *expire*."""
    parameters = inspect.signature(backend.url).parameters
    return "expire" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def signed_urls(names: Iterable[str], seconds: int) -> dict[str, str]:
    """Return addresses of the files *names* that expire after *seconds*; ``StorageError`` if it does not sign them."""
    where: Any = storage()
    if not can_sign(type(where)):
        raise StorageError(
            f"CHATMEMORY['MEDIA_URLS'] needs a storage that signs addresses, and url() of {type(where).__name__} takes "
            "no 'expire'; set it to None."
        )
    calls: dict[str, Callable[[], str]] = {name: partial(where.url, name, expire=seconds) for name in names}
    found = _in_time(calls, _deadline())
    urls = {name: _result(found.get(name, TimeoutError()), "sign an address") for name in calls}
    if any("?" not in url for url in urls.values()):
        raise StorageError(
            "The storage returned addresses without a signature; let it sign them, or set CHATMEMORY['MEDIA_URLS'] to "
            "None."
        )
    return urls


def _asked(call: Callable[[], _T], what: str) -> _T:
    """Return what *call* does; ``StorageError``, or ``FileNotFoundError``, if the storage did not do *what*."""
    result = _in_time({"": call}, _deadline()).get("", TimeoutError())
    if isinstance(result, FileNotFoundError):
        raise result
    return _result(result, what)


def _result(result: _T | Exception, what: str) -> _T:
    if isinstance(result, Exception):
        raise StorageError(f"The storage did not {what}{_reason(result)}.") from result
    return result


def _save(where: Storage, name: str, content: bytes, given_up: threading.Event) -> None:
    given = where.save(name, ContentFile(content))
    if given_up.is_set():
        where.delete(given)
        return
    if given != name:  # random names do not collide, so the storage changes them
        where.delete(given)
        raise StorageError(f"The storage changes the name {name!r} to {given!r}")


def _read(where: Storage, name: str) -> bytes:
    with where.open(name) as file:
        content: bytes = file.read()
        return content


def _reason(error: Exception | None) -> str:
    if error is None or isinstance(error, TimeoutError):
        return f" within {files().MEDIA_TIMEOUT} seconds"
    return f" ({type(error).__name__})"


def _deadline() -> float:
    seconds = files().MEDIA_TIMEOUT
    return time.monotonic() + seconds


def _in_time(calls: Mapping[str, Callable[[], _T]], deadline: float) -> dict[str, _T | Exception]:
    """Return the results of *calls*, or what they raised, of those that ended before *deadline*."""
    found: dict[str, _T | Exception] = {}
    waiting = deque(calls.items())
    ended = threading.Semaphore(0)

    def work() -> None:
        try:
            while waiting:
                try:
                    name, call = waiting.popleft()
                except IndexError:  # another thread took the last one
                    break
                try:
                    found[name] = call()
                except Exception as exc:  # noqa: BLE001  # storages raise what their services do
                    found[name] = exc
        finally:
            connections.close_all()  # of this thread: a storage may use the database
            ended.release()

    count = min(PARALLEL, len(calls))
    for _ in range(count):
        _Thread.begin(work)
    for _ in range(count):
        ended.acquire(timeout=max(0, deadline - time.monotonic()))
    waiting.clear()
    return dict(found)


class _Thread(threading.Thread):
    """
    A thread that does one piece of work after another: to start one for each file can take longer than the file.

    Not of a pool: a thread that hangs takes nobody's place, and does not keep the process from ending.
    """

    _idle: ClassVar[deque[_Thread]] = deque()

    def __init__(self) -> None:
        super().__init__(name="chatmemory-storage", daemon=True)
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()

    @classmethod
    def begin(cls, work: Callable[[], None]) -> None:
        """Do *work* in an idle thread, or in a new one."""
        try:
            while not (thread := cls._idle.pop()).is_alive():
                pass  # the process was forked, and the thread is its parent's
        except IndexError:
            thread = cls()
            thread.start()
        thread._work.put(work)

    def run(self) -> None:
        while True:
            self._work.get()()
            if len(self._idle) >= PARALLEL:
                return
            self._idle.append(self)
