"""
The door for an app that keeps the files of messages elsewhere than in their rows: in a storage, for example.

Its ``AppConfig.ready`` sets ``installed``. It takes files out of messages before a write is decided, refers to them in
the write's transaction, and completes messages only where their contents are wanted. Without such an app, files are in
the rows, and nothing is called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from chatmemory_django.core.media import File, file_of, has_reference, is_marked, source_at
from chatmemory_django.db.row_codec import Address, Coder
from chatmemory_django.messages import CUT, ChatMessage, FileReference
from chatmemory_django.models.columns import to_message

if TYPE_CHECKING:
    from django.db.models.expressions import Combinable

_Row = TypeVar("_Row", bound=Any)


class StorageError(Exception):
    """The storage of files did not do what it was asked for, or not in time."""


class MissingFileError(StorageError):
    """A file of a message is not in the storage."""

    def __init__(self, memory_id: str, sequence: int, index: int | None) -> None:
        where = "A file in the attributes or the original" if index is None else f"The file at {index} in the contents"
        super().__init__(
            f"{where} of message {sequence} of {memory_id!r} is not in the storage. "
            "Restore it, remove the message, or set CHATMEMORY['MEDIA_MISSING'] to 'placeholder'."
        )
        self.memory_id = memory_id
        self.sequence = sequence
        self.index = index


class Extracted(NamedTuple):
    """A file that was taken out of a message, and what the message keeps of it."""

    reference: FileReference
    content: bytes


TakenOut: TypeAlias = tuple[ChatMessage, str | None, Sequence[Extracted]]
"""A message and its original as their row keeps them, and the files that were taken out of them."""


class Uploads(Protocol):
    """The files of one write, of owners as text, or of none."""

    def store(self, owner: str | None, conversation: int, files: Iterable[Extracted]) -> None:
        """Store those of *files* that the owner does not have yet. ``StorageError`` if that fails."""

    def refer(self, owner: str | None, conversation: int, rows: Iterable[tuple[int, Sequence[Extracted]]]) -> None:
        """Note which files the messages *rows*, by sequence, have, in the transaction that adds the messages."""

    def end(self, error: BaseException | None = None) -> None:
        """Delete what was stored and is not needed after the write, which *error* has ended if it failed."""


class MessageCodec(Protocol):
    """What an app does with the files of messages; a module may be one."""

    def quota(self) -> int | None:
        """Return how many bytes the files of one user may have by default; None for no limit."""

    def stored_bytes(self, owner: Any, using: str | None = None) -> int:
        """
        Return how many bytes the files in the conversations of *owner*, the primary key of a user, have in total.

        Others who ask this in a transaction wait until the end of this one.
        """

    def take_out(self, message: ChatMessage, verbatim: str | None, where: str) -> TakenOut:
        """See ``take_out``, without its check."""

    def uploads(self, using: str) -> Uploads:
        """Return what stores the files of one write in the database *using*."""

    def complete(
        self,
        messages: Sequence[ChatMessage],
        sequences: Sequence[int],
        at: Address,
        *,
        max_bytes: int | None = None,
        for_model: bool = False,
    ) -> list[ChatMessage]:
        """See ``complete``."""

    def complete_row(self, row: Any, at: Address) -> Any:
        """Return *row* with its files, see ``complete_rows``."""

    def file_in(self, message: ChatMessage, index: int, at: Address) -> File | None:
        """See ``file_in``."""

    def without_marks(self, message: ChatMessage, url_of: Callable[[int], str]) -> ChatMessage:
        """See ``without_marks``."""

    def with_file_sizes(self, size: Combinable) -> Combinable:
        """Return *size*, of messages in characters, and the characters that their files take in Base64."""

    def release(
        self,
        using: str,
        conversations: Collection[int],
        around: tuple[int, int] | None = None,
        *,
        is_erased: bool = False,
    ) -> None:
        """
        Delete what messages of *conversations* had that are gone or emptied, all of them or those *around* these
        sequences, in the transaction that removes them; and all of what is *is_erased*, of which rows go later.
        """

    def release_originals(self, messages: Any) -> None:
        """Delete what only the originals of *messages* had, a queryset of rows from which these were deleted."""

    def share(self, source: Any, forked: Any) -> None:
        """Give the conversation *forked*, whose messages were copied from *source*, their files."""

    def encode_again(self, conversation: Any, coder: Coder, current: str) -> int:
        """Encode the files of *conversation*, which is locked, with the key *current*; return how many were not."""

    def keys(self, conversations: Any) -> Iterable[str]:
        """Return the key of each file of *conversations*, a queryset; empty for those that are stored as they are."""

    def check(self, using: str, report: Callable[[str], object], *, repair: bool) -> int:
        """Report what ``check_chatmemory`` prints of the files in the database *using*; return how much is wrong."""


installed: MessageCodec | None = None


def take_out(message: ChatMessage, verbatim: str | None, where: str = "") -> TakenOut:
    """
    Return *message* and *verbatim* as their row keeps them, and the files that were taken out, each one once.

    Raises:
        ValueError: There is a reference or a mark in place of a file, or the files are too large. The error names
            *where* the message is.

    """
    if has_reference(message) or is_marked(verbatim):
        raise ValueError(
            f"{where}{type(message).__name__} has the field 'file', which only the store sets, or the mark of one; "
            "pass the file itself, or its URL."
        )
    return (message, verbatim, ()) if installed is None else installed.take_out(message, verbatim, where)


def uploads_in(using: str) -> Uploads | None:
    """Return what stores the files of one write in the database *using*; None without an app."""
    return None if installed is None else installed.uploads(using)


@contextmanager
def writing(uploads: Uploads | None) -> Iterator[None]:
    """End *uploads*, if there are any, after the block, which is their write."""
    try:
        yield
    except Exception as exc:
        if uploads is not None:
            uploads.end(exc)
        raise
    if uploads is not None:
        uploads.end()


def complete(
    messages: Sequence[ChatMessage],
    sequences: Sequence[int],
    at: Address,
    *,
    max_bytes: int | None = None,
    for_model: bool = False,
) -> list[ChatMessage]:
    """
    Return *messages*, which have *sequences* in their conversation, with their files.

    With *max_bytes*, the newest files are read as long as they do not have more in total, and the others are replaced
    by a text. With *for_model*, the settings decide how many that are, and models may be given addresses instead.

    Raises:
        MissingFileError: A file is lost.
        StorageError: The storage does not answer, or there is none.

    """
    if installed is not None:
        return installed.complete(messages, sequences, at, max_bytes=max_bytes, for_model=for_model)
    for message, sequence in zip(messages, sequences, strict=True):
        if has_reference(message):
            raise _unreadable(at, sequence)
    return list(messages)


def complete_rows(rows: Iterable[_Row], at: Address) -> list[_Row]:
    """
    Return *rows* of one conversation with their files in their payload and in what other frameworks gave.

    They are named tuples with type, text, payload, verbatim and sequence. Raises the same errors as ``complete``.
    """
    return [_completed(row, at) if may_refer(row.payload, row.verbatim) else row for row in rows]


def file_in(message: ChatMessage, index: int, at: Address) -> File | None:
    """
    Return the file in the content of *message* at *index*, or behind them in its attributes, wherever it is.

    None for texts, for files on other servers, and for a file that is lost; ``StorageError`` if it cannot be read.
    """
    if installed is not None:
        return installed.file_in(message, index, at)
    source = source_at(message, index)
    if source is not None and source.file is not None:
        raise _unreadable(at)
    return None if source is None else file_of(source)


def without_marks(message: ChatMessage, url_of: Callable[[int], str]) -> ChatMessage:
    """
    Return *message* with the URL that *url_of* returns in place of each file that was taken out of its attributes.

    Their indexes are behind those of all contents. It is the same object if there is none.
    """
    return message if installed is None else installed.without_marks(message, url_of)


def may_refer(payload: str | None, verbatim: str | None = None) -> bool:
    """Return whether a message with *payload* and *verbatim* may have files elsewhere; others' texts may, too."""
    is_cut = verbatim is not None and CUT in verbatim
    return is_cut or (payload is not None and any(mark in payload for mark in _MARKS))


_MARKS = ('"file":{"sha256":', f"\\u{ord(CUT):04x}")
"""What payloads have that have references, or marks."""


def _completed(row: Any, at: Address) -> Any:
    if installed is not None:
        return installed.complete_row(row, at)
    if is_marked(row.verbatim) or has_reference(to_message(row.type, row.text, row.payload)):
        raise _unreadable(at, row.sequence)
    return row


def _unreadable(at: Address, sequence: int | None = None) -> StorageError:
    which = "A message" if sequence is None else f"Message {sequence}"
    return StorageError(
        f"{which} of {at.memory_id!r} has a file in a storage, but no app that reads it is installed; add "
        "'chatmemory_django.contrib.files' to INSTALLED_APPS."
    )
