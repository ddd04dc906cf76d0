"""
Conversations to JSON lines and back: whole, with their history and their memory, a few messages in Python at a time.

A line for each conversation, then one for each of its messages, which are the codec's JSON with what their rows say of
them. Wrong lines are a ``JsonLinesError``, which names the line and never repeats what was said.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import msgspec
from django.db import IntegrityError, router, transaction
from django.db.models import QuerySet

from chatmemory_django import conf
from chatmemory_django.codec import message_from_json, message_to_json
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, Message
from chatmemory_django.rows import to_columns, to_message, to_metadata
from chatmemory_django.stores.base import Metadata, memory_key

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

PAGE = 100
"""How many rows are in Python at a time."""

PAGE_BYTES = 4 * 1024 * 1024
"""How much text goes into one INSERT: escaped, it still fits the 16 MiB packet that MariaDB accepts by default."""

MAX_METADATA_BYTES = 1024 * 1024
"""What a line may have beside its message."""

_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2_000_000_000)]  # a column holds 2,147,483,647
_Place: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2_000_000_000)]
_Moment: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]


class _Head(msgspec.Struct, frozen=True, tag_field="record", tag="conversation", forbid_unknown_fields=True):
    """The line of a conversation."""

    memory_id: str
    next_sequence: _Place
    window_start: _Place
    pinned_sequence: _Place | None
    said_messages: _Number
    title: Annotated[str, msgspec.Meta(max_length=255)]
    metadata: dict[str, Any]
    created_at: _Moment
    updated_at: _Moment


class _Said(
    msgspec.Struct, frozen=True, tag_field="record", tag="message", forbid_unknown_fields=True, omit_defaults=True
):
    """The line of a message."""

    sequence: _Place
    created_at: _Moment
    message: msgspec.Raw
    token_count: _Number | None = None
    token_counter: Annotated[str, msgspec.Meta(max_length=64)] = ""
    superseded: bool = False
    in_history: bool = True
    client_id: uuid.UUID | None = None
    metadata: dict[str, Any] | None = None


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(_Head | _Said)
_HEAD_COLUMNS = ("pk", *_Head.__struct_fields__)
_ROW_COLUMNS = (
    "sequence",
    "created_at",
    "type",
    "text",
    "payload",
    "token_count",
    "token_counter",
    "superseded",
    "in_history",
    "client_id",
    "metadata",
)


class JsonLinesError(ValueError):
    """Lines that cannot be imported. *line* is the number of the first one that is wrong, counted from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"Line {line}: {reason}")
        self.line = line
        self.reason = reason


class ConversationExistsError(JsonLinesError):
    """The conversation is there already."""


def export_lines(conversations: QuerySet[Conversation]) -> Iterator[str]:
    """
    *conversations*, each with all of its messages, as lines that end with a newline.

    Each is told as of when its turn comes; a message that is superseded meanwhile may be told as such.
    """
    last = 0
    while heads := conversations.filter(pk__gt=last).order_by("pk").values_list(*_HEAD_COLUMNS)[:PAGE]:
        for pk, *columns in heads:
            head = _Head(*columns)
            yield _line(head)
            yield from _message_lines(conversations.db, pk, head.next_sequence)
            last = pk


def import_lines(
    lines: Iterable[str | bytes], owner: AbstractBaseUser | None = None, *, trusted: bool = True
) -> Iterator[Conversation]:
    """
    Store the conversations that *lines* tell of as those of *owner*, each whole or not at all, and yield them.

    History and memory are then what they were. Blank lines mean nothing. Where the lines are not *trusted*, the token
    counts in them are left out, and made anew where they are needed. No signals are sent.

    Raises:
        JsonLinesError: A line is wrong. The conversations before it are stored.
        ConversationExistsError: A conversation with that memory id is there already.

    """
    using = router.db_for_write(Conversation)
    records = _records(lines)
    following = next(records, None)
    while following is not None:
        number, head = following
        if not isinstance(head, _Head):
            raise JsonLinesError(number, "a message before the first conversation.")
        importing = _Import(number, head, trusted=trusted)
        try:
            with transaction.atomic(using=using):
                conversation = importing.begin(owner, using)
                following = importing.add(records)
                importing.end()
        except IntegrityError:
            if Conversation.objects.using(using).filter(memory_id=head.memory_id).exists():
                reason = f"the conversation {head.memory_id!r} is there already."
                raise ConversationExistsError(number, reason) from None
            raise JsonLinesError(
                number, f"two messages of the conversation {head.memory_id!r} have the same client id."
            ) from None
        yield conversation


class _Record(NamedTuple):
    """What a line says, and its number."""

    number: int
    said: _Head | _Said


class _Import:
    """A conversation on its way into the database. What can be counted of it is counted, not believed."""

    def __init__(self, number: int, head: _Head, *, trusted: bool) -> None:
        self.number = number
        self.head = head
        self.trusted = trusted
        self.metadata = self._checked_head()
        self._last = self._said = self._in_memory = self._tokens = 0
        self._counters: set[str] = set()
        self._is_pinned_there = head.pinned_sequence is None

    def begin(self, owner: AbstractBaseUser | None, using: str) -> Conversation:
        head = self.head
        self.conversation = Conversation(
            memory_id=head.memory_id,
            owner_id=None if owner is None else owner.pk,
            title=head.title,
            metadata=self.metadata,
            next_sequence=head.next_sequence,
            window_start=head.window_start,
            pinned_sequence=head.pinned_sequence,
            said_messages=head.said_messages,
            created_at=_checked_moment(self.number, head.created_at),
            updated_at=_checked_moment(self.number, head.updated_at),
        )
        self.conversation.save(using=using, force_insert=True)
        return self.conversation

    def add(self, records: Iterator[_Record]) -> _Record | None:
        """Store the messages that come next, and return what comes after them."""
        batch: list[Message] = []
        size = 0
        following = next(records, None)
        while following is not None and isinstance(following.said, _Said):
            batch.append(self._row(following.number, following.said))
            size += len(following.said.message)
            if len(batch) == PAGE or size > PAGE_BYTES:
                self._store(batch)
                batch, size = [], 0
            following = next(records, None)
        self._store(batch)
        return following

    def end(self) -> None:
        """Store the counters."""
        if not self._is_pinned_there:
            raise self._error(f"pinned_sequence is {self.head.pinned_sequence}, which is no system message.")
        if self._said > self.head.said_messages:
            raise self._error(f"said_messages is {self.head.said_messages}, but there are {self._said} in the history.")
        is_counted = len(self._counters) == 1 and "" not in self._counters
        self.conversation.memory_messages = self._in_memory
        self.conversation.memory_tokens = self._tokens if is_counted else 0
        self.conversation.token_counter = self._counters.pop() if is_counted else ""
        self.conversation.save(update_fields=["memory_messages", "memory_tokens", "token_counter"])

    def _checked_head(self) -> Metadata:
        head = self.head
        if head.window_start > head.next_sequence:
            raise self._error(
                f"window_start is {head.window_start}, which is above next_sequence, {head.next_sequence}."
            )
        if head.said_messages >= head.next_sequence:
            raise self._error(f"said_messages is {head.said_messages}, but next_sequence is {head.next_sequence}.")
        try:
            memory_key(head.memory_id)
            to_metadata({"title": head.title})
            return to_metadata(head.metadata)
        except ValueError as exc:
            raise self._error(str(exc)) from None

    def _row(self, number: int, said: _Said) -> Message:
        head = self.head
        if not self._last < said.sequence < head.next_sequence:
            raise JsonLinesError(
                number,
                f"sequence is {said.sequence}, but must be above {self._last}, the one before it, and below "
                f"{head.next_sequence}, the next of its conversation.",
            )
        self._last = said.sequence
        try:
            columns = to_columns(message_from_json(bytes(said.message)))
            metadata = to_metadata(said.metadata)
        except ValueError as exc:
            raise JsonLinesError(number, str(exc).replace("$", "$.message", 1)) from None
        row = Message(
            conversation=self.conversation,
            sequence=said.sequence,
            created_at=_checked_moment(number, said.created_at),
            **columns._asdict(),
            token_count=said.token_count if self.trusted else None,
            token_counter=said.token_counter if self.trusted else "",
            superseded=said.superseded,
            in_history=said.in_history,
            client_id=said.client_id,
            metadata=metadata,
        )
        self._count(row)
        return row

    def _count(self, row: Message) -> None:
        is_pinned = row.sequence == self.head.pinned_sequence
        self._is_pinned_there |= is_pinned and row.type == MessageType.SYSTEM
        self._said += row.in_history
        if is_pinned or (row.sequence >= self.head.window_start and not row.superseded):
            self._in_memory += 1
            self._tokens += row.token_count or 0
            self._counters.add(row.token_counter if row.token_count is not None else "")

    def _store(self, batch: list[Message]) -> None:
        Message.objects.using(self.conversation._state.db).bulk_create(batch)

    def _error(self, reason: str) -> JsonLinesError:
        return JsonLinesError(self.number, reason)


def _line(record: _Head | _Said) -> str:
    return _encode(record).decode() + "\n"


def _message_lines(using: str, conversation_id: int, next_sequence: int) -> Iterator[str]:
    rows = Message.objects.using(using).filter(conversation_id=conversation_id, sequence__lt=next_sequence)
    last = 0
    while page := rows.filter(sequence__gt=last).order_by("sequence").values_list(*_ROW_COLUMNS)[:PAGE]:
        for last, created_at, kind, text, payload, *columns in page:
            written = message_to_json(to_message(kind, text, None)) if payload is None else payload
            yield _line(_Said(last, created_at, msgspec.Raw(written.encode()), *columns))


def _records(lines: Iterable[str | bytes]) -> Iterator[_Record]:
    # Escaped, a character may take six bytes for one.
    limit = 6 * conf.max_message_bytes() + MAX_METADATA_BYTES
    for number, line in enumerate(lines, 1):
        if len(line) > limit:
            raise JsonLinesError(number, f"it has {len(line)} characters, but may have {limit}.")
        if not line.strip():
            continue
        try:
            yield _Record(number, _decoder.decode(line))
        except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
            raise JsonLinesError(number, f"{_without_text(exc)}.") from None


def _without_text(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    if isinstance(error, RecursionError):
        return "the JSON is nested too deeply"
    return str(error).removesuffix(".")[:300]


def _checked_moment(number: int, moment: datetime) -> datetime:
    try:
        moment = moment.astimezone(UTC)
        if moment.year >= 1000:  # MySQL knows none before
            return moment
    except OverflowError:
        pass
    raise JsonLinesError(number, f"{moment.isoformat()} must be a moment of the years 1000 to 9999.")
