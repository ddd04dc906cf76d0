"""Export of conversations to lines."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache, partial
from tempfile import SpooledTemporaryFile
from typing import IO, Any

import msgspec
from django.db.models import QuerySet

from chatmemory_django.codec import message_to_json
from chatmemory_django.core.branches import Thinning
from chatmemory_django.db.moments import aware
from chatmemory_django.db.row_codec import address_of
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation
from chatmemory_django.models.columns import to_message
from chatmemory_django.models.copies import exported
from chatmemory_django.models.message_codec import MissingFileError, complete_rows
from chatmemory_django.models.messages import REMOVED
from chatmemory_django.operations.jsonl.lines import SPOOL_BYTES, VERSION, Head, MessageLine, OwnerLine
from chatmemory_django.operations.jsonl.names import MAX_KNOWN, NameOf, author_key, name_of_user
from chatmemory_django.operations.one_by_one import Refused, at_one_moment, going_on, keys, messages_of, pages

_encode = msgspec.json.Encoder().encode
_LINE = tuple(each for each in MessageLine.__struct_fields__ if each not in {"message", "author"})
_OF_FORMAT = {"version", "owner", "messages", "waits_for_person", "person"}
_HEAD = tuple(each for each in Head.__struct_fields__ if each not in _OF_FORMAT)

_Row = namedtuple("_Row", ("type", "text", "payload", *_LINE))  # type: ignore[misc]  # its fields are those of a line
"""The columns of a message."""


class UnexportableError(ValueError):
    """A stored value is not valid in the format of JSON lines: a row that does not hold a message, for example."""


def export_lines(
    conversations: QuerySet[Conversation],
    *,
    types: Collection[MessageType] | None = None,
    refused: Refused | None = None,
    owner: object = None,
    names: bool = False,
) -> Iterator[str]:
    """
    Yield *conversations*, each with all of its messages, or those of *types*, as lines that end with a newline; then
    what apps keep of *owner*, the primary key of a user or ``copies.EVERYBODY``, besides. With *names*, lines have the
    names with which users sign in: owners, and persons who answer instead of the assistant.

    All branches are included, removed messages are not. If messages of other types are left out, their nearest
    predecessors on the path replace them as parents, and other frameworks' original JSON is left out, since it may
    repeat their content.

    Each conversation is a snapshot of the moment when its turn comes; those that were erased before are left out. No
    transaction is open and no lock is held between two lines, however slowly they are read. Refused, and left out, are
    conversations that cannot be decrypted, with ``UnreadableError``, those with a lost file, with ``MissingFileError``,
    and those with a value that is not valid in this format, with ``UnexportableError``; and what else *owner* has that
    cannot be decrypted, as an instance of its model.
    """
    name_of = lru_cache(MAX_KNOWN)(name_of_user) if names else None
    for key in keys(conversations):
        with SpooledTemporaryFile(SPOOL_BYTES) as spool:
            head = None
            with going_on(conversations, key, refused, MissingFileError, UnexportableError):
                head = at_one_moment(conversations, key, partial(_spool, spool, types, name_of))
            if head is not None:
                yield head.decode()
                spool.seek(0)
                yield from (line.decode() for line in spool)
    for each in exported if owner is not None else ():
        for its, content in each.exported(owner, conversations.db, refused):
            named = "" if name_of is None else name_of(its)
            line = OwnerLine(version=VERSION, name=each.name, owner=named, content=dict(content))
            yield f"{_encode(line).decode()}\n"


def _spool(
    spool: IO[bytes], types: Collection[MessageType] | None, name_of: NameOf | None, conversation: Conversation
) -> bytes:
    """Write the lines of the messages of *conversation* to *spool*, and return the line that precedes them."""
    spool.seek(0)
    spool.truncate()
    name = f"conversation {conversation.memory_id!r}"
    rows = messages_of(conversation).exclude(REMOVED)
    thinning: Thinning | None = None
    cuts: dict[int, int] = {}
    leaves_out = types is not None and not set(MessageType) <= set(types)
    if types is not None:
        rows = rows.filter(type__in=types)
        newest = _newest(conversation)
        thinning = _thinning(conversation, newest)
        cuts = _cuts_without(conversation, types)
    count = last = previous = 0
    at = address_of(conversation)
    for page in pages(rows, *_Row._fields):
        for row in page:
            values: Any
            [values] = complete_rows([_Row._make(row)], at)
            if leaves_out:
                values = values._replace(verbatim=None)
            if thinning is not None and values.in_history:
                last = values.sequence
                values = values._replace(parent_sequence=thinning.parent_of(last))
                if last in cuts:
                    parent = values.parent_sequence
                    values = values._replace(
                        cleared_before=cuts[last], parent_sequence=previous if parent is None else parent
                    )
                previous = last
            elif thinning is not None and values.parent_sequence is not None:
                values = values._replace(parent_sequence=thinning.stand_in(values.parent_sequence))
            spool.write(_line(f"message {values.sequence} of {name}", _message_line, name_of, values))
        count += len(page)
    columns: dict[str, Any] = {}
    if types is not None and MessageType.SYSTEM not in types:
        columns |= {"pinned_sequence": None, "summary_sequence": None}
    if thinning is not None:
        head = thinning.stand_in(newest)
        columns["parent_sequence"] = None if head == last and conversation.parent_sequence is None else head
    return _line(name, _head, name_of, conversation, columns, count)


def _newest(conversation: Conversation) -> int:
    """Return the sequence of the message from which *conversation* continues."""
    if conversation.parent_sequence is not None:
        return conversation.parent_sequence
    history = messages_of(conversation).history(all_branches=True)
    return history.values_list("sequence", flat=True).last() or 0


def _thinning(conversation: Conversation, *asked: int) -> Thinning:
    named = messages_of(conversation).filter(parent_sequence__isnull=False)
    found = list(named.values_list("sequence", "parent_sequence", "in_history"))
    pairs = [(sequence, parent or 0) for sequence, parent, in_history in found if in_history]
    # Messages outside the history are summaries; their parents are the last messages that they cover.
    return Thinning(pairs, [*asked, *(parent or 0 for _, parent, _ in found)])


def _cuts_without(conversation: Conversation, types: Collection[MessageType]) -> dict[int, int]:
    """Return the cuts by message, where messages of *types* replace the others."""
    history = messages_of(conversation).history(all_branches=True)
    found = history.filter(parent_sequence__isnull=False, cleared_before__isnull=False)
    cuts = dict(found.values_list("sequence", "cleared_before"))
    replaced = list(found.exclude(type__in=types).values_list("sequence", flat=True))
    stays = {sequence: sequence for sequence in cuts}
    if replaced:
        thinning = _thinning(conversation, *replaced)
        for page in pages(history.filter(type__in=types), "sequence"):
            for (sequence,) in page:
                thinning.parent_of(sequence)
        stays |= {sequence: thinning.stand_in(sequence) for sequence in replaced}
    lowest: dict[int, int] = {}
    for sequence, cut in cuts.items():
        lowest[stays[sequence]] = min(cut or 0, lowest.get(stays[sequence], cut or 0))
    return lowest


def _line(name: str, build: Callable[..., Head | MessageLine], *args: Any) -> bytes:
    """Return a line; *name* identifies it in errors."""
    try:
        return _encode(build(*args)) + b"\n"
    except (KeyError, ValueError, OverflowError) as exc:
        raise UnexportableError(f"Cannot export {name}: {type(exc).__name__}. See check_chatmemory.") from None


def _head(name_of: NameOf | None, conversation: Conversation, columns: Mapping[str, Any], messages: int) -> Head:
    kept = {name: _in_utc(getattr(conversation, name)) for name in _HEAD}
    if name_of is not None:
        columns = {**columns, "owner": name_of(conversation.owner_id), "person": name_of(conversation.person)}
    waits = conversation.state != Conversation.State.ASSISTANT
    return Head(**{**kept, **columns}, version=VERSION, messages=messages, waits_for_person=waits)


def _message_line(name_of: NameOf | None, row: Any) -> MessageLine:
    message = to_message(row.type, row.text, row.payload)
    written = message_to_json(message) if row.payload is None else _one_line(row.payload)
    line = {name: _in_utc(getattr(row, name)) for name in _LINE}
    line["on_path"] = None if row.on_path == row.in_history else row.on_path
    author = "" if name_of is None else name_of(author_key(message))
    return MessageLine(**line, author=author, message=msgspec.Raw(written.encode()))


def _one_line(payload: str) -> str:
    """Return *payload* on one line: software other than the store may have written it on several."""
    return payload.replace("\n", " ").replace("\r", " ")


def _in_utc(value: Any) -> Any:
    """Return *value*, in UTC if it is a moment."""
    return aware(value).astimezone(UTC) if isinstance(value, datetime) else value
