"""Import of conversations from values, such as a site makes of its own models: each once, and completely or not."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib.auth import get_user_model
from django.db import IntegrityError, connections, router
from django.db.models import Q
from django.db.models.expressions import RawSQL

from chatmemory_django.core.limits import ASSISTANT_NAME, MAX_MEMORY_ID_LENGTH, MAX_TITLE_LENGTH, is_storable
from chatmemory_django.db.batches import in_parts
from chatmemory_django.db.moments import aware
from chatmemory_django.db.row_codec import UnreadableError
from chatmemory_django.db.transactions import tried_again
from chatmemory_django.messages import MESSAGE_CLASSES, ChatMessage, NewMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.models.columns import checked_moment, to_metadata
from chatmemory_django.operations.one_by_one import messages_of, stored_columns, write
from chatmemory_django.provider import MemoryConfiguration
from chatmemory_django.stores.django import DjangoChatMemoryStore

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

MAX_TIMES = 200
"""The maximum number of messages whose times are set by one statement."""

_GIVEN = ("title", "metadata", "assistant")
"""What a conversation keeps that was created without messages."""

_REMOVED = Q(in_history=False, text="", payload=None)


class ImportedMessage(NamedTuple):
    """A message to import, as it is or with what is stored with it, and when it was written, if that is known."""

    message: ChatMessage | NewMessage
    created_at: datetime | None = None
    """Without a time zone, it is in that of the site."""
    follows: int | None = None
    """The position of the message that it follows, counted from 0; -1 for none, None for the previous one."""


class ImportedConversation(NamedTuple):
    """
    A conversation to import, with its messages in the order in which they were written, so that new ones come last.

    A new conversation gets the other fields; of one that exists already they are ignored, except the owner.
    """

    memory_id: object
    """Of up to 255 characters, and the same each time: a second import finds the conversation by it."""
    messages: Iterable[ChatMessage | NewMessage | ImportedMessage]
    owner: AbstractBaseUser | None = None
    title: str = ""
    """Of up to 255 characters."""
    metadata: Mapping[str, Any] | None = None
    assistant: str = ""
    """The name of one of ``CHAT["ASSISTANTS"]``."""
    created_at: datetime | None = None
    """When it began; by default, the first time of a message that is known."""
    updated_at: datetime | None = None
    """When it was last written to; by default, the last time of a message that is known."""
    is_archived: bool = False
    goes_on_from: int | None = None
    """The position of the message that the next one follows; None for the last."""


class ImportResult(Enum):
    """What has become of a conversation."""

    STORED = auto()
    CONTINUED = auto()
    """It was there, and its new messages were stored."""
    PRESENT = auto()
    """All of its messages, and perhaps more, were there already, or it has none."""


class ImportRefusedError(ValueError):
    """A conversation that cannot be stored, of which nothing was. The text has its *memory_id*, and why."""

    def __init__(self, memory_id: object, reason: str) -> None:
        self.memory_id = str(memory_id)[:MAX_MEMORY_ID_LENGTH]
        self.reason = reason
        super().__init__(f"{self.memory_id!r}: {reason}")


class ImportConflictError(ImportRefusedError):
    """One that exists with other messages, or whose owner is not the given one. It is not changed."""


def import_conversations(
    conversations: Iterable[ImportedConversation],
    *,
    using: str | None = None,
    each: Callable[[ImportedConversation, ImportResult], object] | None = None,
    refused: Callable[[ImportedConversation, ImportRefusedError], object] | None = None,
) -> int:
    """
    Store *conversations*, and return how many of them are new or have new messages.

    Each is stored in one transaction of its own, completely or not at all, and before the next one is asked for. One
    that exists already gets the messages that follow those that it has; so an import that was interrupted is repeated,
    and stores nothing twice. All messages are added to the history, whatever the setting ``KEEP_HISTORY`` is, and
    those that fit to the memory. Signals are sent as by any other write; summaries are not created.

    *each* is called after every conversation, with what has become of it. *refused* is called with every conversation
    that cannot be stored, and with the error; without it, the error is raised, and what came before stays stored.

    Raises:
        ImportRefusedError: A conversation cannot be stored: a field is invalid, which the error names without its
            text, or the stored one cannot be read.
        ImportConflictError: It exists with other messages, or its owner is not the given one.

    """
    count = 0
    for position, conversation in enumerate(conversations):
        if not isinstance(conversation, ImportedConversation):
            raise TypeError(
                f"conversations[{position}] must be an ImportedConversation, not {type(conversation).__name__}."
            )
        try:
            result = _imported(conversation, using)
        except ImportRefusedError as exc:
            if refused is None:
                raise
            refused(conversation, exc)
            continue
        count += result is not ImportResult.PRESENT
        if each is not None:
            each(conversation, result)
    return count


def _checked_moment(moment: datetime, name: str) -> datetime:
    if not isinstance(moment, datetime):
        raise TypeError(f"{name} must be a datetime or None, not {type(moment).__name__}.")
    try:
        return checked_moment(aware(moment))
    except ValueError as exc:
        raise ValueError(f"{name}: {exc}.") from None


def _imported(conversation: ImportedConversation, using: str | None) -> ImportResult:
    given = conversation.messages
    if not isinstance(given, Iterable):
        raise ImportRefusedError(conversation.memory_id, f"messages must be an iterable, not {type(given).__name__}.")
    # Errors of the caller's own iterable are the caller's.
    messages = [each if isinstance(each, ImportedMessage) else ImportedMessage(each) for each in given]
    if not messages:
        return ImportResult.PRESENT
    hints = {} if conversation.owner is None else {"owner_key": str(getattr(conversation.owner, "pk", None))}
    using = using or router.db_for_write(Conversation, **hints)
    try:
        return tried_again(using, _Importing(conversation, messages, using).run)
    except ImportRefusedError:
        raise
    except IntegrityError as exc:
        if connections[using].in_atomic_block or _is_there(conversation.owner):
            raise
        raise ImportRefusedError(conversation.memory_id, "Its owner does not exist any more.") from exc
    except (TypeError, ValueError, UnreadableError) as exc:
        raise ImportRefusedError(conversation.memory_id, str(exc)) from exc


def _is_there(owner: AbstractBaseUser | None) -> bool:
    return owner is None or get_user_model()._base_manager.filter(pk=owner.pk).exists()


class _Importing:
    """The import of one conversation into the database *using*. All of it is validated before any is stored."""

    def __init__(self, imported: ImportedConversation, messages: Sequence[ImportedMessage], using: str) -> None:
        self._imported = imported
        self._store = DjangoChatMemoryStore(using, keep_history=True, owner=imported.owner)
        self._window = MemoryConfiguration.of(imported.memory_id).window()
        self._columns = _checked_columns(imported)
        _check_position("goes_on_from", imported.goes_on_from, len(messages))
        self._follows = [each.follows for each in messages]
        self._new: list[NewMessage] = []
        self._rows: list[tuple[Any, ...]] = []
        self._times: list[datetime | None] = []
        self._named: dict[str | None, int] = {}
        self._gone: set[int] = set()
        """The positions of messages that were removed."""
        for position, (message, created_at, follows) in enumerate(messages):
            where = f"messages[{position}]"
            _check_position(f"{where}.follows", follows, position, -1)
            new = message if isinstance(message, NewMessage) else NewMessage(message)
            if not isinstance(new.message, MESSAGE_CLASSES):
                raise TypeError(f"{where} must be a message, not {type(new.message).__name__}.")
            try:
                row = stored_columns(new)
            except (TypeError, ValueError) as exc:
                raise ValueError(f"{where}: {exc}") from exc
            if (name := new.client_message_id) is not None and self._named.setdefault(name, position) != position:
                raise ValueError(f"{where} has the client_message_id of messages[{self._named[name]}].")
            self._new.append(new)
            self._rows.append(row)
            self._times.append(None if created_at is None else _checked_moment(created_at, f"{where}.created_at"))

    def run(self) -> ImportResult:
        """Store the new messages, in one transaction."""
        result = ImportResult.PRESENT
        with self._store.exclusive(self._imported.memory_id):
            conversation = self._locked()
            sequences, conflict = self._present(conversation)
            if conflict is None and len(sequences) < len(self._rows):
                result = ImportResult.CONTINUED if sequences else ImportResult.STORED
                self._append(sequences)
                self._date(conversation, sequences)
        if conflict is not None:  # raised here, so that the caller's transaction stays usable
            raise ImportConflictError(self._imported.memory_id, conflict)
        return result

    def _locked(self) -> Conversation:
        named = DjangoChatMemoryStore(self._store.using).named(self._imported.memory_id)
        return named.select_for_update().get()

    def _present(self, conversation: Conversation) -> tuple[list[int], str | None]:
        """Return the sequences of the messages that exist already, and why the others cannot be added, if so."""
        sequences: list[int] = []
        self._gone.clear()  # of a try before
        if self._store.owner is not None and conversation.owner_id != self._store.owner.pk:
            return sequences, f"It belongs to {'nobody' if conversation.owner_id is None else 'another user'}."
        rows = messages_of(conversation).filter(Q(in_history=True) | _REMOVED)
        columns = rows.values_list("in_history", "client_message_id", "sequence", "type", "text", "payload", "verbatim")
        for in_history, name, sequence, *there in columns:
            position = len(sequences)
            if position == len(self._rows):
                break
            if in_history and tuple(there) != self._rows[position]:
                return sequences, f"Its message {position + 1} differs from the stored one."
            if in_history and (other := self._named.get(name, position)) != position:
                return sequences, f"Its message {other + 1} has the client_message_id of the stored message {sequence}."
            if not in_history and self._named.get(name) != position:
                if self._new[position].client_message_id is None:
                    return sequences, f"A message was removed where its message {position + 1} would be."
                continue  # another one: by its id, the store knows what was removed
            if not in_history:
                self._gone.add(position)
            sequences.append(sequence)
        return sequences, None

    def _append(self, sequences: list[int]) -> None:
        """
        Add the messages that follow those with *sequences*, and extend that list: as few writes as there can be.

        Only what is on the path at the end is ever put there: to move a path takes the longer the more branches a
        conversation has.
        """
        memory_id, path = self._imported.memory_id, self._path()
        while (start := len(sequences)) < len(self._new):
            run, parents = self._run(sequences, path)
            if start in path:
                after = self._key(sequences, self._parent(start)) if start else None
                appended = self._store.append_messages(memory_id, run, self._window, after=after, repeats=True)
            else:
                appended = self._store.set_aside(memory_id, run, self._window, parents)
            sequences += appended.keys
        if self._imported.goes_on_from is not None:
            self._store.rewind(memory_id, self._key(sequences, self._imported.goes_on_from), self._window)

    def _path(self) -> set[int]:
        """Return the positions of the messages from the first to the one that the next one follows."""
        position = self._imported.goes_on_from
        position = len(self._new) - 1 if position is None else position
        found = set()
        while position >= 0:
            found.add(position)
            position = self._parent(position)
        return found

    def _parent(self, position: int) -> int:
        follows = self._follows[position]
        return position - 1 if follows is None else follows

    def _run(self, sequences: Sequence[int], path: Collection[int]) -> tuple[list[NewMessage], list[int | None]]:
        """
        Return the messages behind those with *sequences* that one write can add: on the *path*, or beside it.

        Each comes with the sequence of the one that it follows, None for the one before it in the write.
        """
        start = len(sequences)
        run: list[NewMessage] = []
        parents: list[int | None] = []
        for position in range(start, len(self._new)):
            parent = self._parent(position)
            is_next = self._follows[position] is None and position > start
            if (position in path) != (start in path) or not (is_next or parent < start):
                break
            if start in path and run and not is_next:
                break
            run.append(self._new[position])
            parents.append(None if is_next else sequences[parent] if parent >= 0 else 0)
        return run, parents

    def _key(self, sequences: Sequence[int], position: int) -> int:
        """Return the sequence of the message at *position* or, if that was removed, before it; 0 if there is none."""
        while position in self._gone:
            position = self._parent(position)
        return sequences[position] if position >= 0 else 0

    def _date(self, conversation: Conversation, sequences: list[int]) -> None:
        """Set the times of *conversation*, as it was before, and of its messages, as far as they are known."""
        begun, ended = self._columns["created_at"], self._columns["updated_at"]
        is_new = conversation.next_sequence == 1
        known = begun
        times: dict[int, datetime] = {}
        for sequence, time in zip(sequences, self._times, strict=True):
            known = time or known  # the previous message's time is closer than the current time
            if known is not None and sequence >= conversation.next_sequence:
                times[sequence] = known
        messages, to_db = messages_of(conversation), Message._meta.get_field("created_at").get_db_prep_value
        for batch in in_parts(list(times.items()), MAX_TIMES):
            # An expression of the ORM for each takes longer than all the rest of the import.
            whens = [value for sequence, time in batch for value in (sequence, to_db(time, connections[messages.db]))]
            case = RawSQL(f"CASE sequence {'WHEN %s THEN %s ' * len(batch)}END", whens)  # noqa: S611  # values apart
            messages.filter(sequence__in=dict(batch)).update(created_at=case)
        columns: dict[str, Any] = {}
        if is_new:
            given = {name: getattr(conversation, name) or self._columns[name] for name in _GIVEN}
            columns = {**self._columns, **given, "created_at": begun or next(filter(None, self._times), None)}
        last = max(filter(None, [ended, known]), default=None)
        columns["updated_at"] = last if is_new or last is None else max(last, conversation.updated_at)
        write(conversation, **{name: value for name, value in columns.items() if value is not None})


def _check_position(name: str, position: int | None, end: int, first: int = 0) -> None:
    if position is None:
        return
    if not isinstance(position, int):
        raise TypeError(f"{name} must be an int or None, not {type(position).__name__}.")
    if not first <= position < end:
        raise ValueError(f"{name} is {position}, but must be from {first} to {end - 1}.")


def _checked_columns(imported: ImportedConversation) -> dict[str, Any]:
    """Return the columns of a new conversation, None for what is not given."""
    for name in ("title", "assistant"):
        if not isinstance(value := getattr(imported, name), str):
            raise TypeError(f"{name} must be a str, not {type(value).__name__}.")
    if len(imported.title) > MAX_TITLE_LENGTH:
        raise ValueError(f"title has {len(imported.title)} characters; at most {MAX_TITLE_LENGTH} are allowed.")
    if not is_storable(imported.title):
        raise ValueError("title holds a NUL character or a lone surrogate, which no database can store.")
    if imported.assistant and not re.fullmatch(ASSISTANT_NAME, imported.assistant):
        raise ValueError("assistant must have up to 64 characters, which are ASCII letters, digits, _ and -.")
    moments = {"created_at": imported.created_at, "updated_at": imported.updated_at}
    return {
        **{name: None if moment is None else _checked_moment(moment, name) for name, moment in moments.items()},
        "title": imported.title,
        "assistant": imported.assistant,
        "is_archived": bool(imported.is_archived),
        "metadata": to_metadata(imported.metadata),
    }
