"""Import of conversations from lines."""

from __future__ import annotations

import json
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from operator import itemgetter
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Any

import msgspec
from django.db import router, transaction
from django.utils.timezone import now
from msgspec import UNSET
from msgspec.structs import replace

from chatmemory_django.access import FEEDBACK
from chatmemory_django.codec import message_from_json
from chatmemory_django.core.limits import MAX_INTEGER, check_text_length, check_values, is_storable, is_uuid, memory_key
from chatmemory_django.core.media import AddressError, check_files, check_json_files
from chatmemory_django.core.windows import MAX_PINS
from chatmemory_django.db import row_codec
from chatmemory_django.db.batches import in_batches
from chatmemory_django.db.moments import to_moment
from chatmemory_django.db.row_codec import address_of, owner_of
from chatmemory_django.db.transactions import tried_again
from chatmemory_django.messages import ChatMessage, MessageType, Metadata, NewMessage
from chatmemory_django.models import Conversation, Message, message_codec, new_memory_id
from chatmemory_django.models.columns import checked_moment, to_metadata
from chatmemory_django.models.copies import exported
from chatmemory_django.models.message_codec import Uploads, uploads_in, writing
from chatmemory_django.models.messages import encoded_texts
from chatmemory_django.models.windows import Bounds, is_in_memory
from chatmemory_django.operations.annotating import without_reason
from chatmemory_django.operations.jsonl.lines import (
    SPOOL_BYTES,
    ConversationExistsError,
    ForbiddenTypeError,
    Head,
    ImportLimits,
    JsonLinesError,
    MessageLine,
    NumberedRecord,
    OwnerLine,
    read_records,
)
from chatmemory_django.operations.jsonl.names import Named, with_author
from chatmemory_django.operations.jsonl.paths import Branches
from chatmemory_django.operations.one_by_one import created
from chatmemory_django.stores.django.changes import max_row_bytes, new_row

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

MAX_ROWS = 500
"""The maximum number of rows in one INSERT."""

_OF_LINE = (
    *("sequence", "superseded", "in_history", "is_complete", "parent_sequence", "cleared_before", "is_cleared"),
    "is_pinned",
    "rating_reason",
)
_OF_NEW = ("type", "text", "payload", "metadata", "verbatim", "client_message_id", "files")
"""The columns of a message that are as its line has them, and those that are as the store writes them."""


def import_lines(
    lines: Iterable[str | bytes],
    owner: AbstractBaseUser | None = None,
    *,
    trusted: bool = True,
    skip_existing: bool = False,
    rename: bool = False,
    limits: ImportLimits | None = None,
    using: str | None = None,
    each: Callable[[Conversation, str], object] | None = None,
    all_or_none: bool = False,
    named: Named | None = None,
) -> int:
    """
    Store the conversations in *lines* as those of *owner*, each completely or not at all, and return their number.

    Without *owner*, they are those of the users that *named* returns for the names in the lines, or of nobody. Persons
    who answer are found by it, too; it raises ``ValueError`` for a name that is nobody's.

    History and memory are restored as they were exported. Blank lines are ignored. With *rename*, each conversation
    gets a new memory id. If the lines are not *trusted*, their token counts are ignored, and computed again when
    needed, and addresses of files must be http, https or data URLs. No signals are sent; *each* is called with every
    conversation after it is stored, and with the memory id in its line.

    Each conversation is read completely before its transaction begins, so slow lines block no other writer; and each
    has its own transaction, so two imports cannot deadlock. With *all_or_none*, they have one together, and the files
    of a refused import are deleted. To store nothing if any line is invalid, call ``check_lines`` first.

    Raises:
        JsonLinesError: A line is invalid. The conversations before it are stored, unless *all_or_none*.
        ConversationExistsError: A conversation with that memory id exists, and is not to be skipped.

    """
    using = using or router.db_for_write(Conversation)
    count = 0
    with SpooledTemporaryFile(SPOOL_BYTES) as spool, ExitStack() as stack:
        together = uploads_in(using) if all_or_none else None
        if all_or_none:
            stack.enter_context(writing(together))
            stack.enter_context(transaction.atomic(using=using))
        restore = partial(_restore, owner, named, using, trusted=trusted)
        for importing in _imports(lines, limits, restore, owner=owner, named=named, trusted=trusted, rename=rename):
            conversation = importing.store(spool, together or uploads_in(using), using, skip_existing=skip_existing)
            if conversation is not None:
                count += 1
                if each is not None:
                    each(conversation, importing.head.memory_id)
    return count


def check_lines(lines: Iterable[str | bytes], limits: ImportLimits | None = None, *, rename: bool = False) -> list[str]:
    """
    Return the memory ids in *lines*, in order, if all can be imported; ``JsonLinesError`` names the first invalid line.

    This does not query the database, so it does not check whether conversations exist already. Unless *rename* gives
    each a new id, no two may have the same.
    """
    memory_ids: list[str] = []
    known: set[str] = set()
    for importing in _imports(lines, limits, lambda batch: None, rename=rename):
        deque(importing.rows(), maxlen=0)
        memory_id = importing.head.memory_id
        if memory_id in known and not rename:
            raise JsonLinesError(importing.number, f"{memory_id!r} is the memory id of another conversation before it.")
        memory_ids.append(memory_id)
        known.add(memory_id)
    return memory_ids


def _imports(
    lines: Iterable[str | bytes],
    limits: ImportLimits | None,
    restore: Callable[[Sequence[tuple[int, OwnerLine]]], object],
    **options: Any,
) -> Iterator[_Import]:
    """
    Yield the conversations of *lines*; read the rows of each before asking for the next. *restore* receives the lines
    of what belongs to none, with their numbers, a few at a time.
    """
    records = read_records(lines, limits)
    record = next(records, None)
    while record is not None:
        if isinstance(record.content, OwnerLine):
            if limits is not None:
                raise JsonLinesError(record.number, f"{record.content.name!r} is imported by import_chatmemory alone.")
            batch: list[tuple[int, OwnerLine]] = []
            while record is not None and isinstance(record.content, OwnerLine) and len(batch) < MAX_ROWS:
                batch.append((record.number, record.content))
                record = next(records, None)
            restore(batch)
            continue
        importing = _Import(record, records, limits or ImportLimits(), **options)
        yield importing
        record = importing.following


def _restore(
    owner: AbstractBaseUser | None,
    named: Named | None,
    using: str,
    batch: Sequence[tuple[int, OwnerLine]],
    *,
    trusted: bool,
) -> None:
    """Store what the lines of *batch* have, all or none, for *owner*, or for whom they name."""

    def store() -> None:
        with transaction.atomic(using=using):
            for number, line in batch:
                try:
                    _restore_one(owner, named, using, line, trusted=trusted)
                except (ValueError, msgspec.ValidationError) as exc:
                    raise JsonLinesError(number, f"{line.name!r}: {str(exc).removesuffix('.')}.") from None

    tried_again(using, store)


def _restore_one(
    owner: AbstractBaseUser | None, named: Named | None, using: str, line: OwnerLine, *, trusted: bool
) -> None:
    kept = next((each for each in exported if each.name == line.name), None)
    if kept is None or kept.load is None:
        raise ValueError("it is of an app that this site does not have")
    if kept.is_of_site and not trusted:
        raise ValueError("these are records of a site, which a file that is not trusted must not have")
    if owner is None and named is not None and line.owner:
        owner = named(line.owner)
        if owner is None and not kept.is_of_site:
            return  # it is to be nobody's
    if owner is None and not kept.is_of_site:
        raise ValueError("it belongs to a user; name the owner")
    kept.load(owner, line.content, using)


class _Import:
    """An import of one conversation. Everything that can be counted is counted, not trusted."""

    def __init__(
        self,
        record: NumberedRecord,
        records: Iterator[NumberedRecord],
        limits: ImportLimits,
        *,
        owner: AbstractBaseUser | None = None,
        named: Named | None = None,
        trusted: bool = True,
        rename: bool = False,
    ) -> None:
        if isinstance(record.content, JsonLinesError):
            raise record.content
        if not isinstance(record.content, Head):
            raise JsonLinesError(record.number, "a message precedes the first conversation.")
        self.number = record.number
        head = record.content
        self._is_open = not head.next_sequence
        self.head = replace(head, next_sequence=MAX_INTEGER) if self._is_open else head
        self.trusted = trusted
        self.limits = limits
        self._named = named
        if owner is None and head.owner:
            owner = self._user(self.number, head.owner)
        self.columns: dict[str, Any] = {
            "owner_id": None if owner is None else owner.pk,
            "memory_id": new_memory_id() if rename else self._checked_memory_id(),
            "title": head.title,
            "is_pinned": head.is_pinned,
            "is_archived": head.is_archived,
            "assistant": head.assistant,
            "metadata": self._checked_head(),
            "window_start": head.window_start,
            "summary_sequence": head.summary_sequence,
            "parent_sequence": head.parent_sequence,
            "forgotten_through": head.forgotten_through,
            "has_lost_system": head.has_lost_system,
            "evicted_limit": head.evicted_limit,
            "evicted_by": head.evicted_by,
            "kept_out_through": head.kept_out_through,
            "state": Conversation.State.WAITING if head.waits_for_person else Conversation.State.ASSISTANT,
        }
        for name in ("created_at", "updated_at", "expires_at", "state_since"):
            moment = getattr(head, name)
            self.columns[name] = None if moment is None else _checked_moment(self.number, moment)
        if head.waits_for_person and head.person and (person := self._user(self.number, head.person)) is not None:
            self.columns |= {"state": Conversation.State.PERSON, "person": str(person.pk)}
        self.following: NumberedRecord | None = None
        """The record after the conversation, once its rows are read."""
        self._records = records
        self._last = self._rows = self._in_history = self._remembered = self._tokens = 0
        self._counted_by: set[str] = set()
        self._client_message_ids: set[str] = set()
        self._file_sizes: dict[str, int] = {}
        """By SHA-256, of what goes to the storage."""
        self._first_at = self._last_at = head.created_at or now()
        self._is_pinned_there = not head.pinned_sequence
        self._pinned = head.pinned_sequence or None
        self._pins = 0
        self._branches = Branches(head)

    def rows(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield the columns of the rows, each with its size in bytes in an INSERT; then check them all."""
        following = next(self._records, None)
        while following is not None and isinstance(following.content, MessageLine):
            yield self._row(following.number, following.content)
            following = next(self._records, None)
        # After the expected number of messages, the error is not part of this conversation.
        if following is not None and isinstance(following.content, JsonLinesError) and self._rows != self.head.messages:
            raise following.content
        self.following = following
        self._end()

    def store(
        self, spool: IO[bytes], uploads: Uploads | None, using: str, *, skip_existing: bool
    ) -> Conversation | None:
        """Store the conversation with its rows, which are in *spool*; return None if it exists and is to be skipped."""
        spool.seek(0)
        spool.truncate()
        count = 0
        for batch in in_batches(self.rows(), itemgetter(1), max_row_bytes(), MAX_ROWS):
            pickle.dump([columns for columns, _ in batch], spool)
            count += 1
        store, memory_id = partial(self._store, spool, count, uploads, using), self.columns["memory_id"]
        conversation = created(partial(tried_again, using, store), memory_id, using)
        if conversation is None and not skip_existing:
            raise ConversationExistsError(self.number, f"the conversation {memory_id!r} exists already.")
        return conversation

    def _store(self, spool: IO[bytes], batches: int, uploads: Uploads | None, using: str) -> Conversation:
        spool.seek(0)
        conversation = Conversation(**self.columns)
        owner = owner_of(conversation)
        with writing(uploads), transaction.atomic(using=using):
            conversation.save(using=using, force_insert=True)
            self._check_quota(using)
            codec = row_codec.installed
            coder = None if codec is None else codec.at(address_of(conversation, using))
            for _ in range(batches):
                rows = pickle.load(spool)  # noqa: S301  # our own, and nobody else can reach the file
                files = [(row["sequence"], row.pop("files")) for row in rows]
                if uploads is not None:
                    uploads.store(owner, conversation.pk, [each for _, several in files for each in several])
                    uploads.refer(owner, conversation.pk, files)
                if coder is not None:
                    rows = [row | encoded_texts(coder, row["sequence"], row["type"], row) for row in rows]
                Message.objects.using(using).bulk_create(Message(conversation=conversation, **row) for row in rows)
        return conversation

    def _check_quota(self, using: str) -> None:
        """Raise ``JsonLinesError`` if the owner's files would have too many bytes, before any of them is stored."""
        limit, size = self.limits.max_file_bytes, sum(self._file_sizes.values())
        if limit is None or not size or message_codec.installed is None:
            return
        if (stored := message_codec.installed.stored_bytes(self.columns["owner_id"], using)) + size > limit:
            raise self._error(
                f"its files have {size} bytes, and those in your conversations {stored}; together they have too many, "
                f"and may have {limit} at most."
            )

    def _user(self, number: int, name: str) -> AbstractBaseUser | None:
        """Return the user with this *name*, None for nobody."""
        try:
            return None if self._named is None else self._named(name)
        except ValueError as exc:
            raise JsonLinesError(number, f"{exc}.") from None

    def _checked_memory_id(self) -> str:
        try:
            memory_id = memory_key(self.head.memory_id)
        except ValueError as exc:
            raise self._error(str(exc)) from None
        if self.limits.uuids_only and not is_uuid(memory_id):
            raise self._error(f"memory_id is {memory_id!r}, but must be a UUID in lower case with hyphens.")
        return memory_id

    def _checked_head(self) -> Metadata:
        head = self.head
        self._check_numbers()
        if head.person and not head.waits_for_person:
            raise self._error("person is given, but waits_for_person is not true.")
        try:
            to_metadata({"title": head.title})
            return to_metadata(head.metadata, self.limits.max_metadata_bytes)
        except ValueError as exc:
            raise self._error(str(exc)) from None

    def _check_numbers(self) -> None:
        head = self.head
        if head.window_start > head.next_sequence:
            raise self._error(
                f"window_start is {head.window_start}, which is above next_sequence, {head.next_sequence}."
            )
        if head.total_messages is not None and head.total_messages >= head.next_sequence:
            raise self._error(f"total_messages is {head.total_messages}, but next_sequence is {head.next_sequence}.")

    def _row(self, number: int, line: MessageLine) -> tuple[dict[str, Any], int]:
        """Return the columns of the message in a line, and their size in bytes in an INSERT."""
        head = self.head
        line = line if line.sequence else replace(line, sequence=self._last + 1)
        if not self._last < line.sequence < head.next_sequence:
            raise JsonLinesError(
                number,
                f"sequence is {line.sequence}, but must be above {self._last}, the one before it, and below "
                f"{head.next_sequence}, the next of its conversation.",
            )
        self._last = line.sequence
        moment = line.created_at or self._last_at
        created_at = _checked_moment(number, moment)
        self._first_at, self._last_at = self._first_at if self._rows else moment, moment
        try:
            metadata = to_metadata(line.metadata, self.limits.max_metadata_bytes)
            if metadata and FEEDBACK in metadata:
                feedback, reason = without_reason(metadata[FEEDBACK])
                metadata = {**metadata, FEEDBACK: feedback}
                line = replace(line, rating_reason=line.rating_reason or reason)
            if line.rating_reason is not None:
                to_metadata({"rating_reason": line.rating_reason})
            message = message_from_json(bytes(line.message))
            if line.author and self._named is not None:
                message = with_author(message, self._named(line.author))
            check_text_length(message, self.limits.max_text_length)
            if self.limits.remote_files is not None or not self.trusted:
                _check_files(message, line.verbatim, remote=self.limits.remote_files is not False)
            new = new_row(NewMessage(message, metadata, line.client_message_id, line.verbatim))
            on_path = self._branches.add(line, new.type)
        except ValueError as exc:
            reason = str(exc).removesuffix(".").replace("$", "$.message", 1)
            raise JsonLinesError(number, f"{reason}.") from None
        if not is_storable(line.counted_by):
            raise JsonLinesError(number, "counted_by holds a NUL character or a lone surrogate; remove it.")
        self._check_type(number, new.type, line.verbatim)
        if new.client_message_id is not None:
            if new.client_message_id in self._client_message_ids:
                raise JsonLinesError(
                    number, "client_message_id is already used by another message of the conversation."
                )
            self._client_message_ids.add(new.client_message_id)
        tokens, counted_by = (line.token_count, line.counted_by) if self.trusted else (None, "")
        columns = {
            **{name: getattr(line, name) for name in _OF_LINE},
            **{name: getattr(new, name) for name in _OF_NEW},
            "created_at": created_at,
            "token_count": tokens,
            "counted_by": counted_by,
            "on_path": on_path,
        }
        self._rows += 1
        self._file_sizes |= {each.reference.sha256: each.reference.size for each in new.files}
        self._in_history += line.in_history
        is_system = new.type == MessageType.SYSTEM and not line.superseded
        if line.sequence == head.pinned_sequence:
            self._is_pinned_there = is_system
        elif head.pinned_sequence is UNSET and is_system and line.sequence >= head.window_start:
            if self._pinned is not None:
                raise JsonLinesError(
                    number, "it is another system message of the memory; set superseded in all but the last one."
                )
            self._pinned = line.sequence
        self._check_pin(number, line, new.type)
        bounds = Bounds(head.window_start, self._pinned, head.summary_sequence)
        if is_in_memory(line.sequence, bounds, superseded=line.superseded, is_pinned=line.is_pinned):
            self._remembered += 1
            self._tokens += tokens or 0
            self._counted_by.add("" if tokens is None else counted_by)
        return columns, new.sent_bytes + sum(each.reference.size for each in new.files)

    def _check_pin(self, number: int, line: MessageLine, type: str) -> None:
        """Count *line*, a message of that *type*, if it is pinned, and check that it may be."""
        self._pins += line.is_pinned
        if line.is_pinned and (not line.in_history or type == MessageType.SYSTEM):
            raise JsonLinesError(
                number, "is_pinned is true, but only messages of the history that are no system message can be."
            )
        if self._pins > MAX_PINS:
            raise JsonLinesError(number, f"more than {MAX_PINS} messages of the conversation are pinned.")

    def _check_type(self, number: int, type: str, verbatim: str | None) -> None:
        """Raise ``ForbiddenTypeError`` for what the user may not add, in the words of another framework either."""
        types = self.limits.types
        if type in types and (verbatim is None or not set(MessageType).difference(types)):
            return
        seen = f"is {type}" if type not in types else "has a verbatim, which may be of any type"
        raise ForbiddenTypeError(
            number, f"you may add messages of these types: {', '.join(sorted(types)) or 'none'}; this one {seen}."
        )

    def _end(self) -> None:
        """Check everything that requires all rows, and count; what is left out follows from the rows."""
        total = self._in_history if self.head.total_messages is None else self.head.total_messages
        self.head = head = replace(
            self.head,
            next_sequence=self._last + 1 if self._is_open else self.head.next_sequence,
            total_messages=total,
            pinned_sequence=self._pinned,
        )
        self._check_numbers()
        for name in ("next_sequence", "total_messages", "pinned_sequence"):
            self.columns[name] = getattr(head, name)
        self.columns["created_at"] = self.columns["created_at"] or to_moment(self._first_at)
        self.columns["updated_at"] = self.columns["updated_at"] or to_moment(self._last_at)
        if head.waits_for_person and not self.trusted:
            self.columns["state_since"] = now()  # nobody gets in front of others by what they write into a file
        elif head.waits_for_person:
            self.columns["state_since"] = self.columns["state_since"] or self.columns["updated_at"]
        if head.messages not in {None, self._rows}:
            raise self._error(f"{head.messages} messages should follow, but {self._rows} do.")
        if not self._is_pinned_there:
            raise self._error(
                f"pinned_sequence is {head.pinned_sequence}, which is not a system message in the memory."
            )
        try:
            self._branches.check(head)
        except ValueError as exc:
            raise self._error(str(exc)) from None
        if self._in_history > total:
            raise self._error(f"total_messages is {total}, but there are {self._in_history} in the history.")
        if total + self._rows - self._in_history >= head.next_sequence:
            raise self._error(
                f"total_messages is {total}, but only {self._in_history} of the {head.next_sequence - 1} "
                "that there ever were can be in the history."
            )
        if self._remembered > self.limits.max_memory_messages:
            raise self._error(
                f"the memory has {self._remembered} messages; at most {self.limits.max_memory_messages} are allowed."
            )
        counted_by = self._counted_by.pop() if len(self._counted_by) == 1 else ""
        tokens = self._tokens if counted_by else 0
        if tokens > MAX_INTEGER:
            raise self._error(f"the memory has {tokens} tokens; at most {MAX_INTEGER} are allowed.")
        self.columns |= {"memory_messages": self._remembered, "memory_tokens": tokens, "counted_by": counted_by}
        self.columns["pinned_count"] = self._pins

    def _error(self, reason: str) -> JsonLinesError:
        return JsonLinesError(self.number, reason)


def _check_files(message: ChatMessage, verbatim: str | None, *, remote: bool) -> None:
    """Check the addresses of files in a message, and in what another framework gave for it."""
    try:
        check_files(message, remote=remote)
    except AddressError as exc:
        raise ValueError(f"$.{exc.where}: {exc}") from None
    if verbatim is None:
        return
    check_values(verbatim.encode())
    try:
        check_json_files(json.loads(verbatim), remote=remote)  # as it is read later: with NaN and lone surrogates
    except AddressError as exc:
        raise ValueError(f"verbatim: {exc}") from None
    except RecursionError:
        raise ValueError("verbatim is nested too deeply") from None
    except ValueError:
        pass  # no JSON, so no framework reads an address in it


def _checked_moment(number: int, moment: datetime) -> datetime:
    try:
        return checked_moment(moment)
    except ValueError as exc:
        raise JsonLinesError(number, f"{exc}.") from None
