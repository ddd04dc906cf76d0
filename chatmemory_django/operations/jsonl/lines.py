"""The schema of the lines, and their limits."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from chatmemory_django import conf
from chatmemory_django.core.limits import (
    ASSISTANT_NAME,
    MAX_IMPORTED,
    MAX_INTEGER,
    MAX_RATING_REASON,
    MAX_TITLE_LENGTH,
    check_bounds,
    check_values,
)
from chatmemory_django.messages import MessageType

SPOOL_BYTES = 1024 * 1024
"""The size in bytes up to which a conversation is spooled in memory; larger ones use an unnamed temporary file."""

VERSION = 1
"""The version of the lines that are written, and the only one that is read. Lines of before there was one name none."""

MAX_OTHER_BYTES = 64 * 1024
"""The maximum size in bytes of a line, apart from its message and its metadata."""

_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_IMPORTED)]
_Sequence: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_IMPORTED)]
_Moment: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]

OLD_NAMES = {"said_messages": "total_messages", "token_counter": "counted_by", "client_id": "client_message_id"}
"""What fields of lines without a version may be called, and what they are called now."""


class Head(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="conversation", forbid_unknown_fields=True
):
    """
    The line of a conversation. *messages* is the number of lines that follow, to detect truncated files.

    *owner* and *person* are users, by the names with which they sign in. What is left out follows from the messages.
    """

    version: int | None = None
    memory_id: str
    owner: str = ""
    next_sequence: _Sequence = 0
    window_start: _Sequence = 1
    pinned_sequence: _Sequence | UnsetType | None = UNSET
    total_messages: _Number | None = None
    title: Annotated[str, msgspec.Meta(max_length=MAX_TITLE_LENGTH)] = ""
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    created_at: _Moment | None = None
    updated_at: _Moment | None = None
    messages: _Number | None = None
    is_pinned: bool = False
    is_archived: bool = False
    parent_sequence: _Number | None = None
    summary_sequence: _Sequence | None = None
    forgotten_through: _Number = 0
    has_lost_system: bool = False
    evicted_limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_INTEGER)] | None = None
    evicted_by: Literal["", "messages", "tokens"] = ""
    kept_out_through: _Number = 0
    expires_at: _Moment | None = None
    assistant: Annotated[str, msgspec.Meta(pattern=rf"\A({ASSISTANT_NAME})?\Z")] = ""
    waits_for_person: bool = False
    """Whether a person is to answer: *person* or, without one, anybody who may."""
    person: str = ""
    state_since: _Moment | None = None


class MessageLine(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="record",
    tag="message",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """
    The line of a message. Unless stated otherwise, a message of the history is on the path, and follows the one before.

    *author* is the user who wrote it instead of the model, by the name with which that user signs in.
    """

    sequence: _Sequence = 0
    created_at: _Moment | None = None
    author: str = ""
    message: msgspec.Raw
    token_count: _Number | None = None
    counted_by: Annotated[str, msgspec.Meta(max_length=64)] = ""
    superseded: bool = False
    in_history: bool = True
    is_complete: bool = True
    client_message_id: str | None = None
    on_path: bool | None = None
    parent_sequence: _Number | None = None
    cleared_before: _Sequence | None = None
    is_cleared: bool = False
    is_pinned: bool = False
    metadata: dict[str, Any] | None = None
    verbatim: str | None = None
    rating_reason: Annotated[str, msgspec.Meta(max_length=MAX_RATING_REASON)] | None = None


class OwnerLine(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="of_owner", forbid_unknown_fields=True
):
    """The line of what an app keeps beside the messages of the *owner*, who may be nobody; see ``copies.OfOwners``."""

    version: int | None = None
    name: Annotated[str, msgspec.Meta(max_length=MAX_TITLE_LENGTH)]
    owner: str = ""
    content: dict[str, Any]


class ImportLimits(NamedTuple):
    """Limits for lines from untrusted users."""

    max_conversations: int = sys.maxsize
    max_messages: int = sys.maxsize
    """The maximum number of messages in all conversations together."""
    max_memory_messages: int = sys.maxsize
    """The maximum number of messages in one memory: every read loads all of them."""
    max_text_length: int = sys.maxsize
    """The maximum number of characters of all texts of a message together, and of any other text, without files."""
    max_depth: int = sys.maxsize
    """The maximum nesting depth of the JSON of a line; a user's text has a depth of 4."""
    max_metadata_bytes: int = sys.maxsize
    """The maximum size in bytes of the metadata of a conversation, or of a message, as JSON."""
    uuids_only: bool = False
    """Whether memory ids must be UUIDs, unless they are renamed."""
    remote_files: bool | None = None
    """Whether files may be on other servers: see ``core.media.check_address``. None accepts any address."""
    types: Collection[MessageType] = frozenset(MessageType)
    """The types that messages may have. Without all of them, no line may have what another framework gave, either."""
    max_file_bytes: int | None = None
    """How many bytes the files of the owner may have in the storage; only where lines are stored. None for no limit."""


class JsonLinesError(ValueError):
    """An invalid line. *line* is the number of the first invalid one, counted from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"Line {line}: {reason}")
        self.line = line
        self.reason = reason


class ConversationExistsError(JsonLinesError):
    """The conversation exists already."""


class ForbiddenTypeError(JsonLinesError):
    """The message is of a type that the user may not add."""


class NumberedRecord(NamedTuple):
    """The number and the content of a line, or the error that makes it invalid."""

    number: int
    content: Head | MessageLine | OwnerLine | JsonLinesError


_decoder = msgspec.json.Decoder(Head | MessageLine | OwnerLine)


def read_records(lines: Iterable[str | bytes], limits: ImportLimits | None) -> Iterator[NumberedRecord]:
    """Yield a record for each of *lines* that is not blank."""
    # Escaped, a character of a message takes up to six bytes instead of one; metadata is measured as it is in the line.
    max_length = 7 * conf.general().MAX_MESSAGE_BYTES + MAX_OTHER_BYTES
    counts = Counter[type]()
    is_old = True
    for number, read in enumerate(lines, 1):
        # Editors on Windows put a byte order mark at the beginning of a file.
        line = read.removeprefix("\ufeff") if isinstance(read, str) else read.removeprefix(b"\xef\xbb\xbf")
        if len(line) > max_length:
            yield NumberedRecord(
                number, JsonLinesError(number, f"it has {len(line)} characters; at most {max_length} are allowed.")
            )
        elif line.strip():
            try:
                if limits is not None:
                    check_values(line.encode() if isinstance(line, str) else line)
                content = _decoded(line, is_old)
                counts[type(content)] += 1
                if not isinstance(content, MessageLine):
                    is_old = content.version is None
                if limits is not None:
                    _check_limits(line, counts, limits)
                yield NumberedRecord(number, content)
            except (ValueError, msgspec.MsgspecError, RecursionError) as exc:  # errors of UTF-8 and of the limits, too
                yield NumberedRecord(number, JsonLinesError(number, f"{_without_text(exc)}."))


def _decoded(line: str | bytes, is_old: bool) -> Head | MessageLine | OwnerLine:
    """Return the content of *line*; a message *is_old* if its conversation has no version."""
    try:
        content: Head | MessageLine | OwnerLine = _decoder.decode(line)
    except msgspec.ValidationError:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        _check_version(msgspec.json.decode(fields.get("version", b"null")))
        if not OLD_NAMES.keys() & fields.keys() or "version" in fields or not (is_old or "memory_id" in fields):
            raise
        content = _decoder.decode(msgspec.json.encode({OLD_NAMES.get(name, name): of for name, of in fields.items()}))
    _check_version(None if isinstance(content, MessageLine) else content.version)
    return content


def _check_version(version: object) -> None:
    if isinstance(version, int) and version != VERSION:
        raise ValueError(
            f"version is {version}, but must be {VERSION}, the version that this release of chatmemory_django reads; "
            "import the file with the release that wrote it, or a later one"
        )


def _check_limits(line: str | bytes, counts: Counter[type], limits: ImportLimits) -> None:
    if counts[Head] > limits.max_conversations:
        raise ValueError(f"there are more than {limits.max_conversations} conversations")
    if counts[MessageLine] > limits.max_messages:
        raise ValueError(f"there are more than {limits.max_messages} messages")
    check_bounds(msgspec.json.decode(line), limits.max_depth, limits.max_text_length)


def _without_text(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    if isinstance(error, RecursionError):
        return "the JSON is nested too deeply"
    return str(error).removesuffix(".")[:300]
