"""
Conversations to JSON lines and back: whole, with their history and their memory, a few messages in Python at a time.

A line for each conversation, then one for each of its messages, which are the codec's JSON with what their rows say of
them. Wrong lines are a ``JsonLinesError``, which names the line and never repeats what was said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from operator import itemgetter
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import msgspec
from django.db import IntegrityError, router, transaction
from django.db.models import Count, QuerySet, Sum
from django.utils import timezone

from chatmemory_django import conf
from chatmemory_django.codec import message_from_json, message_to_json
from chatmemory_django.ids import checked_client_message_id, memory_key
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, Message
from chatmemory_django.rows import in_batches, to_message, to_metadata, to_moment
from chatmemory_django.stores.base import Metadata
from chatmemory_django.stores.django.changes import MAX_INTEGER, max_row_bytes, new_row
from chatmemory_django.stores.django.whole import at_one_moment, keys, pages

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

SPOOL_BYTES = 1024 * 1024
"""How much of a conversation is in memory while it is exported. What is more is in a file without a name."""

MAX_ROWS = 500
"""How many rows go into one INSERT at most."""

MAX_OTHER_BYTES = 64 * 1024
"""What a line may have beside its message and its metadata."""

YEARS = range(1970, 9999)
"""Of which moments may be: databases, time zones, lists and their cursors all know them."""

_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2_000_000_000)]  # room for a few more
_Place: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2_000_000_000)]
_Moment: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]


class _Head(msgspec.Struct, frozen=True, tag_field="record", tag="conversation", forbid_unknown_fields=True):
    """The line of a conversation. *messages* is how many lines follow, so that none can get lost at the end."""

    memory_id: str
    next_sequence: _Place
    window_start: _Place
    pinned_sequence: _Place | None
    total_messages: _Number
    title: Annotated[str, msgspec.Meta(max_length=255)]
    metadata: dict[str, Any]
    created_at: _Moment
    updated_at: _Moment
    messages: _Number | None = None


class _Said(
    msgspec.Struct, frozen=True, tag_field="record", tag="message", forbid_unknown_fields=True, omit_defaults=True
):
    """The line of a message."""

    sequence: _Place
    created_at: _Moment
    message: msgspec.Raw
    token_count: _Number | None = None
    counted_by: Annotated[str, msgspec.Meta(max_length=64)] = ""
    superseded: bool = False
    in_history: bool = True
    is_complete: bool = True
    client_message_id: str | None = None
    metadata: dict[str, Any] | None = None


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(_Head | _Said)
_ROW_COLUMNS = (
    "sequence",
    "created_at",
    "type",
    "text",
    "payload",
    "token_count",
    "counted_by",
    "superseded",
    "in_history",
    "is_complete",
    "client_message_id",
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
    Yield *conversations*, each with all of its messages, as lines that end with a newline.

    Each is told as it was at one moment, when its turn came; what was erased before that is left out. No transaction is
    open and no lock is held between two lines, however slowly they are read. ``ValueError`` if something is stored that
    the format cannot say: a row that holds no message, for example.
    """
    for key in keys(conversations):
        with SpooledTemporaryFile(SPOOL_BYTES) as spool:
            head = at_one_moment(conversations, key, partial(_spool, spool))
            if head is not None:
                yield head.decode()
                spool.seek(0)
                yield from (line.decode() for line in spool)


def import_lines(
    lines: Iterable[str | bytes],
    owner: AbstractBaseUser | None = None,
    *,
    trusted: bool = True,
    skip_existing: bool = False,
    using: str | None = None,
    each: Callable[[Conversation], object] | None = None,
) -> int:
    """
    Store the conversations that *lines* tell of as those of *owner*, each whole or not at all, and return how many.

    History and memory are then what they were. Blank lines mean nothing. Where the lines are not *trusted*, the token
    counts in them are left out, and made anew where they are needed. No signals are sent; *each* is called with every
    conversation once it is stored.

    Raises:
        JsonLinesError: A line is wrong. The conversations before it are stored.
        ConversationExistsError: A conversation with that memory id is there already, and is not to be skipped.

    """
    using = using or router.db_for_write(Conversation)
    records = _records(lines)
    following = next(records, None)
    count = 0
    while following is not None:
        number, head = following
        if isinstance(head, JsonLinesError):
            raise head
        if not isinstance(head, _Head):
            raise JsonLinesError(number, "a message before the first conversation.")
        importing = _Import(number, head, owner, using, trusted=trusted)
        is_stored = importing.store(records, skip_existing=skip_existing)
        following = importing.following
        count += is_stored
        if is_stored and each is not None:
            each(importing.conversation)
    return count


class _Record(NamedTuple):
    """What a line says, and its number; or why it says nothing."""

    number: int
    said: _Head | _Said | JsonLinesError


class _Import:
    """A conversation on its way into the database. What can be counted of it is counted, not believed."""

    def __init__(self, number: int, head: _Head, owner: AbstractBaseUser | None, using: str, *, trusted: bool) -> None:
        self.number = number
        self.head = head
        self.using = using
        self.trusted = trusted
        self.conversation = Conversation(
            owner_id=None if owner is None else owner.pk,
            memory_id=head.memory_id,
            title=head.title,
            metadata=self._checked_head(),
            next_sequence=head.next_sequence,
            window_start=head.window_start,
            pinned_sequence=head.pinned_sequence,
            total_messages=head.total_messages,
            created_at=_checked_moment(self.number, head.created_at),
            updated_at=_checked_moment(self.number, head.updated_at),
        )
        self.following: _Record | None = None
        """What comes after the conversation, once that is stored."""
        self._last = self._rows = self._said = 0
        self._is_pinned_there = head.pinned_sequence is None

    def store(self, records: Iterator[_Record], *, skip_existing: bool) -> bool:
        """Store the conversation with the messages that come next. Return whether that was done."""
        batches = in_batches(self._read_rows(records), itemgetter(2), max_row_bytes(), MAX_ROWS)
        # What one INSERT takes is read before anybody has to wait for the transaction.
        first = next(batches, [])
        try:
            with transaction.atomic(using=self.using):
                self.conversation.save(using=self.using, force_insert=True)
                for batch in chain([first], batches):
                    self._insert(batch)
                self._end()
        except IntegrityError:
            with transaction.atomic(using=self.using):
                same = Conversation.objects.using(self.using).filter(memory_id=self.head.memory_id)
                # The lock has MariaDB say what is there now, and not at the beginning of the caller's transaction.
                is_there = bool(same.select_for_update().values_list("pk"))
            if not is_there:
                raise
            if not skip_existing:
                reason = f"the conversation {self.head.memory_id!r} is there already."
                raise ConversationExistsError(self.number, reason) from None
            deque(batches, maxlen=0)
            return False
        return True

    def _checked_head(self) -> Metadata:
        head = self.head
        if head.window_start > head.next_sequence:
            raise self._error(
                f"window_start is {head.window_start}, which is above next_sequence, {head.next_sequence}."
            )
        if head.total_messages >= head.next_sequence:
            raise self._error(f"total_messages is {head.total_messages}, but next_sequence is {head.next_sequence}.")
        try:
            memory_key(head.memory_id)
            to_metadata({"title": head.title})
            return to_metadata(head.metadata)
        except ValueError as exc:
            raise self._error(str(exc)) from None

    def _read_rows(self, records: Iterator[_Record]) -> Iterator[tuple[int, Message, int]]:
        """Yield the rows to come, each with the number of its line and how many bytes it takes in an INSERT."""
        following = next(records, None)
        while following is not None and isinstance(following.said, _Said):
            yield (following.number, *self._row(following.number, following.said))
            following = next(records, None)
        # Behind the messages that there are to be, it is not this conversation that is wrong.
        if following is not None and isinstance(following.said, JsonLinesError) and self._rows != self.head.messages:
            raise following.said
        self.following = following

    def _row(self, number: int, said: _Said) -> tuple[Message, int]:
        """Return the row of *said*, and how many bytes it takes in an INSERT."""
        head = self.head
        if not self._last < said.sequence < head.next_sequence:
            raise JsonLinesError(
                number,
                f"sequence is {said.sequence}, but must be above {self._last}, the one before it, and below "
                f"{head.next_sequence}, the next of its conversation.",
            )
        self._last = said.sequence
        try:
            new = new_row(message_from_json(bytes(said.message)), said.metadata)
            client_message_id = checked_client_message_id(said.client_message_id, "client_message_id")
        except ValueError as exc:
            raise JsonLinesError(number, str(exc).replace("$", "$.message", 1)) from None
        row = Message(
            sequence=said.sequence,
            created_at=_checked_moment(number, said.created_at),
            type=new.type,
            text=new.text,
            payload=new.payload,
            metadata=new.metadata,
            token_count=said.token_count if self.trusted else None,
            counted_by=said.counted_by if self.trusted else "",
            superseded=said.superseded,
            in_history=said.in_history,
            is_complete=said.is_complete,
            client_message_id=client_message_id,
        )
        self._rows += 1
        self._said += said.in_history
        if said.sequence == head.pinned_sequence:
            self._is_pinned_there = new.type == MessageType.SYSTEM and not said.superseded
        return row, new.sent_bytes

    def _insert(self, batch: list[tuple[int, Message, int]]) -> None:
        ids = [row.client_message_id for _, row, _ in batch if row.client_message_id is not None]
        known: set[str | None] = set()
        if ids:
            there = Message.objects.using(self.using).filter(conversation=self.conversation)
            known.update(there.filter(client_message_id__in=ids).values_list("client_message_id", flat=True))
        for number, row, _ in batch:
            row.conversation = self.conversation
            if row.client_message_id is None:
                continue
            if row.client_message_id in known:
                raise JsonLinesError(number, "client_message_id is that of another message of the conversation.")
            known.add(row.client_message_id)
        Message.objects.using(self.using).bulk_create([row for _, row, _ in batch])

    def _end(self) -> None:
        """Store the counters, once all else is."""
        head = self.head
        if head.messages not in {None, self._rows}:
            raise self._error(f"{head.messages} messages are to follow, but {self._rows} do.")
        if not self._is_pinned_there:
            raise self._error(f"pinned_sequence is {head.pinned_sequence}, which is no system message in the memory.")
        if self._said > head.total_messages:
            raise self._error(f"total_messages is {head.total_messages}, but there are {self._said} in the history.")
        if head.total_messages + self._rows - self._said >= head.next_sequence:
            raise self._error(
                f"total_messages is {head.total_messages}, but only {self._said} of the {head.next_sequence - 1} "
                "that there ever were can be in the history."
            )
        counters = self._counters()
        if counters["memory_tokens"] > MAX_INTEGER:
            raise self._error(f"the memory has {counters['memory_tokens']} tokens, but may have {MAX_INTEGER}.")
        Conversation.objects.using(self.using).filter(pk=self.conversation.pk).update(**counters)
        vars(self.conversation).update(counters)

    def _counters(self) -> dict[str, Any]:
        rows = Message.objects.using(self.using).filter(conversation=self.conversation).in_memory().order_by()
        groups = rows.values_list("counted_by").annotate(Count("sequence"), Count("token_count"), Sum("token_count"))
        found = list(groups)
        is_counted = len(found) == 1 and found[0][0] != "" and found[0][1] == found[0][2]
        return {
            "memory_messages": sum(count for _, count, _, _ in found),
            "memory_tokens": int(found[0][3]) if is_counted else 0,
            "counted_by": found[0][0] if is_counted else "",
        }

    def _error(self, reason: str) -> JsonLinesError:
        return JsonLinesError(self.number, reason)


def _spool(spool: IO[bytes], conversation: Conversation) -> bytes:
    """Write the lines of the messages of *conversation* to *spool*, and return the one that comes before them."""
    spool.seek(0)
    spool.truncate()
    name = f"conversation {conversation.memory_id!r}"
    count = 0
    for page in pages(conversation, *_ROW_COLUMNS):
        for row in page:
            spool.write(_line(f"message {row[0]} of {name}", _said, *row))
        count += len(page)
    return _line(name, _head, conversation, count)


def _line(name: str, tell: Callable[..., _Head | _Said], *told: Any) -> bytes:
    """Return the line of what *name* is the name of."""
    try:
        return _encode(tell(*told)) + b"\n"
    except (KeyError, ValueError, OverflowError) as exc:
        raise ValueError(f"Cannot export {name}: {type(exc).__name__}. See check_chatmemory.") from None


def _head(conversation: Conversation, messages: int) -> _Head:
    return _Head(
        memory_id=conversation.memory_id,
        next_sequence=conversation.next_sequence,
        window_start=conversation.window_start,
        pinned_sequence=conversation.pinned_sequence,
        total_messages=conversation.total_messages,
        title=conversation.title,
        metadata=conversation.metadata,
        created_at=_utc(conversation.created_at),
        updated_at=_utc(conversation.updated_at),
        messages=messages,
    )


def _said(sequence: int, created_at: datetime, type: str, text: str, payload: str | None, *rest: Any) -> _Said:
    message = to_message(type, text, payload)
    written = message_to_json(message) if payload is None else _one_line(payload)
    return _Said(sequence, _utc(created_at), msgspec.Raw(written.encode()), *rest)


def _one_line(payload: str) -> str:
    """Return *payload*, which somebody else than the store may have written on several lines, on one."""
    return payload.replace("\n", " ").replace("\r", " ")


def _utc(moment: datetime) -> datetime:
    """Return *moment*, which is naive on a site without ``USE_TZ``, as one of UTC."""
    if timezone.is_naive(moment):
        moment = timezone.make_aware(moment, timezone.get_default_timezone())
    return moment.astimezone(UTC)


def _records(lines: Iterable[str | bytes]) -> Iterator[_Record]:
    # Escaped, a character of a message may take six bytes for one; its metadata is measured as it is in the line.
    limit = 7 * conf.max_message_bytes() + MAX_OTHER_BYTES
    for number, line in enumerate(lines, 1):
        if len(line) > limit:
            yield _Record(number, JsonLinesError(number, f"it has {len(line)} characters, but may have {limit}."))
        elif line.strip():
            try:
                yield _Record(number, _decoder.decode(line))
            except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
                yield _Record(number, JsonLinesError(number, f"{_without_text(exc)}."))


def _without_text(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    if isinstance(error, RecursionError):
        return "the JSON is nested too deeply"
    return str(error).removesuffix(".")[:300]


def _checked_moment(number: int, moment: datetime) -> datetime:
    try:
        utc = moment.astimezone(UTC)
        if utc.year in YEARS:
            return to_moment(utc)
    except OverflowError:
        pass
    raise JsonLinesError(number, f"{moment.isoformat()} must be a moment of the years {YEARS[0]} to {YEARS[-1]}.")
