"""
How a run is taken: the fence of its conversation is raised, and the run inserted, or neither. It keeps what a process
needs to go on with it that has not seen its request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Self
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, QuerySet
from django.utils import timezone, translation

from chatmemory_django.chat.runs.tables import ASKED, DEAD_AFTER, MAX_LANGUAGE_LENGTH, MAX_TIME_ZONE_LENGTH, Run, before
from chatmemory_django.chat.wishes import NONE, Wishes
from chatmemory_django.db import row_codec
from chatmemory_django.db.contexts import ThreadContext
from chatmemory_django.db.engines import combines
from chatmemory_django.db.moments import DatabaseNow
from chatmemory_django.db.row_codec import Address
from chatmemory_django.db.transactions import is_duplicate, note_lock
from chatmemory_django.models import Conversation, ConversationQuerySet
from chatmemory_django.models.conversations import create_once
from chatmemory_django.stores.base import ConversationErasedError


class GivenOutput(msgspec.Struct, frozen=True):
    """What a client has as the output of a call: see ``approvals.Output``."""

    id: str
    value: Any
    is_error: bool = False


class Given(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was given with a question, or in its place; a run has it as a text."""

    memory_id: str = ""
    """That of the conversation, with which the text is encrypted: it is nothing in another one."""
    chat_id: str = ""
    """The id of the chat, as its client names it."""
    user: str = ""
    """The key of who asks, or has decided, as text; empty for nobody."""
    body: Mapping[str, Any] = {}
    """The rest of the request's body, see ``named.Asked``."""
    is_another: bool = False
    """Whether another answer is asked for, to a question that has one."""
    about: Sequence[str] = ()
    """The approvals on which was decided."""
    outputs: Sequence[GivenOutput] = ()
    """What the client has sent for calls that ran there."""
    wishes: Wishes = NONE
    """What the client wishes for the answer."""

    def as_text(self) -> str:
        """Return it as JSON: never empty."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, text: str) -> Self:
        """Return what ``as_text`` returned as *text*."""
        return msgspec.json.decode(text, type=cls)


class Kept(NamedTuple):
    """What is stored with a run; without ``asked``, no other process goes on with it."""

    asked: str = ""
    language: str = ""
    time_zone: str = ""

    @classmethod
    def now(cls, memory_id: str, given: Given) -> Self:
        """Return what is kept with *given* in a conversation: language and time zone are those that are active."""
        language, time_zone = translation.get_language() or "", timezone.get_current_timezone()
        name = time_zone.key if isinstance(time_zone, ZoneInfo) else ""
        text = msgspec.structs.replace(given, memory_id=memory_id).as_text()
        return cls(text, language[:MAX_LANGUAGE_LENGTH], (name or "")[:MAX_TIME_ZONE_LENGTH])


NOTHING = Kept()
"""What is kept of a run with which no other process can go on: that of a site's own code."""


class Taken(NamedTuple):
    """A run that this process has taken, and has to end."""

    run: UUID
    conversation: int
    """The key of its conversation."""
    fence: int
    """The fence of the conversation, which each write of the run has to require."""
    using: str
    is_new: bool = False
    """Whether the conversation was created for it: it is deleted if the run ends before anything was written."""


class OtherAssistantError(RuntimeError):
    """The conversation belongs to another assistant than the one that was to answer in it."""


class Taking:
    """
    The attempts to take the conversation *key* of *owner*, None for any, for *run* in the database *using*.

    If *assistant* is a name, the conversation has to belong to the assistant with it; a new one does then. The run is
    done in *context*, and has what is *kept* of its request.
    """

    def __init__(
        self,
        using: str,
        key: str,
        owner: Any,
        run: UUID,
        assistant: str | None,
        context: ThreadContext | None,
        kept: Kept,
        question: int | None = None,
    ) -> None:
        self._key = key
        self._owner = owner
        self._run = run
        self._assistant = assistant
        self._question = question
        self._captured = "" if context is None else context.captured
        self._kept = kept
        self._connection = connections[using]
        self._conversations = Conversation.objects.using(using).filter(memory_id=key)
        self._runs = Run.objects.using(using)

    def take(self) -> Taken | float:
        """Return the run, or the seconds since the one in progress was last renewed. Create what does not exist."""
        taken = self._taken()
        if taken is not None:
            return taken
        found = next(iter(self._conversations.values_list("pk", "owner", "assistant")), None)
        if found is None:
            create_once(self._connection.alias, self._key, self._owner, self._assistant or "")
            taken = self._taken()
            return 0.0 if taken is None else taken._replace(is_new=True)
        conversation, owner, assistant = found
        to_key = Conversation._meta.get_field("owner").to_key
        if self._owner is not None and to_key(owner) != to_key(self._owner):
            raise PermissionDenied(f"The conversation {self._key!r} belongs to another user.")
        if self._assistant not in {None, assistant}:
            raise OtherAssistantError(f"The conversation {self._key!r} belongs to another assistant.")
        return self._taken_from_the_dead(conversation)

    def _taken_from_the_dead(self, conversation: int) -> Taken | float:
        """Return what ``take`` does, where another run seems to be in progress in *conversation*."""
        there = self._runs.filter(active=conversation)
        silent_for = next(iter(there.values_list(DatabaseNow() - F("lease"), flat=True)), None)
        seconds = 0.0 if silent_for is None else max(0.0, silent_for.total_seconds())
        if seconds < DEAD_AFTER:
            return seconds
        return self._taken(there.filter(lease__lt=before(DEAD_AFTER))) or 0.0

    def _taken(self, dead: QuerySet[Run] | None = None) -> Taken | None:
        """Take the conversation, from *dead* runs if there are any; return None if there is nothing to take."""
        is_one_statement = combines(self._connection) and dead is None
        try:
            with self._transaction(is_one_statement):
                if not is_one_statement and not self._own().update(fence=F("fence") + 1):
                    return None
                note_lock(self._connection, self._key)
                if dead is not None:
                    ended = {"state": Run.State.INTERRUPTED, "active": None, "ended_at": DatabaseNow(), "asked": ""}
                    dead.update(**ended)
                return self._inserted(raises=is_one_statement)
        except ConversationErasedError:  # it is not there yet, and nothing is encoded for it before
            return None
        except IntegrityError as exc:
            if not is_duplicate(exc):
                raise
            return None  # the fence is as it was

    def _transaction(self, is_one_statement: bool) -> AbstractContextManager[None]:
        """Return a transaction, or a savepoint, as a run that is there already must break no transaction of others."""
        if is_one_statement and not self._connection.in_atomic_block:
            return nullcontext()
        return transaction.atomic(using=self._connection.alias)

    def _own(self) -> ConversationQuerySet:
        own = self._conversations if self._owner is None else self._conversations.filter(owner=self._owner)
        return own if self._assistant is None else own.filter(assistant=self._assistant)

    def _inserted(self, *, raises: bool) -> Taken | None:
        """Insert the run with the fence of the conversation, which the same statement *raises* where that is needed."""
        connection, run = self._connection, Run._meta.get_field("id").get_db_prep_save(self._run, self._connection)
        named, values = self._named()
        row = [run, Run.State.RUNNING.value, False, self._captured, self._assistant, self._question, *self._stored()]
        with connection.cursor() as cursor:
            cursor.execute(_insert(connection, named, raises=raises), [*values, *row] if raises else [*row, *values])
            if connection.features.can_return_columns_from_insert:
                inserted = cursor.fetchall()
            else:
                inserted = self._runs.filter(pk=self._run).values_list("conversation", "fence")
        for conversation, fence in inserted:
            return Taken(self._run, conversation, fence, connection.alias)
        return None

    def _stored(self) -> list[str]:
        """Return what is kept of the request, as it is stored."""
        asked, owner = self._kept.asked, None if self._owner is None else str(self._owner)
        if asked and (coder := row_codec.at(Address(self._connection.alias, None, self._key, owner))):
            asked = coder.encode(asked, ASKED, (self._run.hex,))
        return [asked, *self._kept[1:]]

    def _named(self) -> tuple[str, list[Any]]:
        """Return the condition that a row is the conversation, and its values."""
        named: dict[str, Any] = {"memory_id": self._key}
        if self._owner is not None:
            named["owner_id"] = Conversation._meta.get_field("owner").get_db_prep_save(self._owner, self._connection)
        if self._assistant is not None:
            named["assistant"] = self._assistant
        return " AND ".join(f"{column} = %s" for column in named), list(named.values())


def taken_over(using: str, run: UUID) -> Taken | None:
    """Take *run*, on which nobody works, from its process; None if somebody else was first, or it has ended."""
    left = Run.objects.using(using).filter(pk=run).left()
    found = left.values_list("conversation", "conversation__memory_id").first()  # before the transaction writes
    if found is None:
        return None
    conversation, memory_id = found
    own = Conversation.objects.using(using).filter(pk=conversation)
    with transaction.atomic(using=using):
        if not own.update(fence=F("fence") + 1):  # it was erased
            return None
        note_lock(connections[using], memory_id)
        fence = own.values_list("fence", flat=True).get()
        if left.update(fence=fence, state=Run.State.RUNNING, lease=DatabaseNow()):
            return Taken(run, conversation, fence, using)
        transaction.set_rollback(True, using=using)  # who was first has that fence
    return None


def _insert(connection: BaseDatabaseWrapper, named: str, *, raises: bool) -> str:
    """Return the INSERT of the run of a conversation; if it *raises* the fence, nothing else is running there then."""
    run, conversation = (connection.ops.quote_name(model._meta.db_table) for model in (Run, Conversation))
    now, _ = Run.objects.all().query.get_compiler(connection.alias).compile(DatabaseNow())
    source = "raised" if raises else f"{conversation} WHERE {named}"
    sql = (
        f"INSERT INTO {run} (id, conversation_id, state, active, fence, lease, listened_at, is_stopping, context, "  # noqa: S608  # names
        f"created_at, next_sequence, assistant, question, asked, language, time_zone) "
        f"SELECT %s, id, %s, id, fence, {now}, {now}, %s, %s, {now}, next_sequence, %s, %s, %s, %s, %s FROM {source}"
    )
    if connection.features.can_return_columns_from_insert:
        sql += " RETURNING conversation_id, fence"
    if not raises:
        return sql
    is_free = f"NOT EXISTS (SELECT 1 FROM {run} WHERE active = {conversation}.id)"  # noqa: S608  # as above
    raised = (
        f"UPDATE {conversation} SET fence = fence + 1 WHERE {named} AND {is_free} RETURNING id, fence, next_sequence"  # noqa: S608
    )
    return f"WITH raised AS ({raised}) {sql}"
