"""Forks: new conversations with a copy of another one's messages, copied inside the database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import partial, reduce
from operator import or_
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NamedTuple

from asgiref.sync import sync_to_async
from django.db import connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Case, Count, Exists, F, Max, OuterRef, Q, Sum, Value, When

from chatmemory_django.core.limits import memory_key
from chatmemory_django.core.tool_calls import REJECTED
from chatmemory_django.core.windows import Window
from chatmemory_django.db import row_codec
from chatmemory_django.db.batches import in_parts
from chatmemory_django.models import Conversation, Message, MessageQuerySet, message_codec, new_memory_id
from chatmemory_django.models.fields import as_stored
from chatmemory_django.models.messages import MAX_PARTS, TEXTS
from chatmemory_django.models.windows import Bounds, in_memory
from chatmemory_django.operations.one_by_one import created, in_lock
from chatmemory_django.stores.base import ConversationErasedError, MemoryIdTakenError
from chatmemory_django.stores.django.changes import Change, Relocation
from chatmemory_django.stores.django.relocations import relocate
from chatmemory_django.stores.django.rows import State
from chatmemory_django.stores.django.snapshots import Counted, Snapshot, UncountedError, counts_of
from chatmemory_django.stores.django.statements import NEW_ROW, Parameter, Statement
from chatmemory_django.stores.django.writes import MAX_COUNTS, write_counts

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser


def fork(
    conversation: Conversation,
    memory_id: object = None,
    *,
    through: int | None = None,
    owner: AbstractBaseUser | EllipsisType | None = ...,
    window: Window | None = None,
) -> Conversation:
    """
    Store a new conversation with a copy of the path up to message *through*, or of the whole path, and return it.

    The messages keep their sequences, and *through* may be any message of the history, on any branch. The memory of
    the copy contains what the original's memory has up to that message; if *through* is not in this memory, it is
    filled as by ``rewind``, limited by *window*, by default to as many messages as are in this memory now. Title
    and metadata are copied, and so are the end of a temporary conversation and the owner, unless *owner* is passed,
    which may be None. By default, a new *memory_id* is generated. No messages are loaded, and no signals are sent.

    Raises:
        MessageNotFoundError: The history has no message *through*; 0 is its beginning.
        MemoryIdTakenError: There already is a conversation with that memory id.
        ConversationErasedError: This conversation was erased.

    """
    if isinstance(owner, EllipsisType):
        owner_key: Any = ...
    elif owner is not None and owner.pk is None:
        raise ValueError("owner must be a saved user, or None for no owner.")
    else:
        owner_key = None if owner is None else owner.pk
    key = new_memory_id() if memory_id is None else memory_key(memory_id)
    using = router.db_for_write(Conversation, instance=conversation)
    forking = _Forking(key, using, through, owner_key, window)
    sources = Conversation.objects.using(using)
    for attempt in range(MAX_COUNTS + 1):
        try:
            forked = in_lock(sources, conversation.pk, partial(forking, may_count=attempt == MAX_COUNTS))
        except UncountedError as exc:
            exc.count()
        else:
            break
    if forked is None:
        raise ConversationErasedError(
            f"The conversation {conversation.memory_id!r} was erased, so it cannot be forked."
        )
    return forked


async def afork(conversation: Conversation, memory_id: object = None, **options: Any) -> Conversation:
    """See ``fork``."""
    return await sync_to_async(fork)(conversation, memory_id, **options)


_HISTORY = Q(in_history=True)


class _Plan(NamedTuple):
    """What is copied of a conversation, and how it changes."""

    state: State
    """The initial row of the copied conversation."""
    path: list[Q]
    """The rows of the history, in one condition for each INSERT."""
    others: Q
    """The rows that are not part of the history: summaries, and messages of a memory that was set."""
    superseded: Case | F
    counts: Mapping[int, int]
    """Token counts that the copied rows do not have yet."""


class _Forking:
    """The creation of a conversation *key* from a source that is locked against other writers."""

    def __init__(self, key: str, using: str, through: int | None, owner_key: Any, window: Window | None) -> None:
        self._key = key
        self._using = using
        self._through = through
        self._owner_key = owner_key
        self._window = window
        self._counted: Counted = {}

    def __call__(self, source: Conversation, *, may_count: bool) -> Conversation:
        """Return the fork of *source*; ``UncountedError`` if messages must be counted and *may_count* is false."""
        state = State._make(getattr(source, column) for column in State._fields)
        snapshot = Snapshot(source.memory_id, state, self._using)
        snapshot.is_locked, snapshot.may_count = True, may_count
        plan = self._plan(snapshot)
        forked = self._created(source)
        messages = Message.objects.using(self._using).filter(conversation=source.pk).order_by()
        with connections[self._using].cursor() as cursor:
            for condition in (*plan.path, plan.others):
                copying = _Copy(messages.filter(condition), plan.superseded)
                copying.run(cursor, {"conversation": forked.pk})
        self._settle(forked, plan)
        if message_codec.installed is not None:
            message_codec.installed.share(source, forked)
        if row_codec.installed is not None:
            row_codec.installed.copied(source, forked, forked.next_sequence - 1)
        return forked

    def _plan(self, snapshot: Snapshot) -> _Plan:
        through, state = self._through, snapshot.state
        known = None if through is None else snapshot.message(through)
        if known is None or known.is_head:
            remembered = in_memory(Bounds.of(state))
            others = Q(in_history=False) & (remembered | _covering_shared(snapshot))
            return _Plan(state, [Q(on_path=True)], others, F("superseded"), {})
        window = self._window or Window(state.memory_messages)
        relocation = relocate(snapshot, known, window, self._counted)
        counts = counts_of(relocation.uncounted, self._counted)
        shared = relocation.shared
        entered = [*_conditions("sequence", relocation)]
        kept = {entry.key for entry in relocation.eviction.entries()}
        out_of_history = [row.sequence for row in snapshot.memory("", in_history=False) if row.sequence in kept]
        if relocation.state.summary_sequence is not None:
            out_of_history.append(relocation.state.summary_sequence)
        covering = _covering_shared(snapshot) & Q(parent_sequence__lte=shared)
        others = reduce(or_, _conditions("parent_sequence", relocation), Q(sequence__in=out_of_history) | covering)
        return _Plan(
            relocation.state,
            [Q(on_path=True, sequence__lte=shared), *(Q(in_history=True) & each for each in entered)],
            Q(in_history=False) & others,
            _superseded(state, relocation),
            counts,
        )

    def _created(self, source: Conversation) -> Conversation:
        """Store the conversation, still without messages."""
        forked = Conversation(
            memory_id=self._key,
            owner_id=source.owner_id if self._owner_key is ... else self._owner_key,
            title=source.title,
            metadata=deepcopy(source.metadata),
            assistant=source.assistant,
            expires_at=source.expires_at,
        )

        def save() -> Conversation:
            with transaction.atomic(using=self._using):
                forked.save(using=self._using, force_insert=True)
            return forked

        if created(save, self._key, self._using) is None:
            raise MemoryIdTakenError(f"The conversation {self._key!r} already exists.")
        return forked

    def _settle(self, forked: Conversation, plan: _Plan) -> None:
        """Update *forked* after its rows were copied: their token counts and its counters."""
        rows = Message.objects.using(self._using).filter(conversation=forked.pk).order_by()
        write_counts(rows, plan.counts, plan.state.counted_by)
        found = rows.aggregate(
            last=Max("sequence"),
            head=Max("sequence", filter=_HISTORY),
            history=Count("sequence", filter=_HISTORY),
            pins=Count("sequence", filter=Q(is_pinned=True)),
            cuts=Count("cleared_before"),
        )
        last, state = found["last"] or 0, plan.state
        columns = {
            **state._asdict(),
            "next_sequence": last + 1,
            "total_messages": found["history"],
            "window_start": min(state.window_start, last + 1),
            "parent_sequence": None,  # the newest of the copied messages
            "forgotten_through": min(state.forgotten_through, last),
            "kept_out_through": min(state.kept_out_through, last),
            "pinned_count": found["pins"],
        }
        if found["cuts"]:
            rows.filter(cleared_before__gt=last).update(cleared_before=last + 1)
            columns["parent_sequence"] = found["head"]  # the first message that follows a cut names it
        for own in ("id", "version", "owner", "updated_at"):
            del columns[own]
        if not state.counted_by and state.memory_messages:
            bounds = Bounds.of(state)._replace(window_start=columns["window_start"])
            columns |= _token_counters(rows.filter(in_memory(bounds)))
        for column, value in columns.items():
            setattr(forked, column, value)
        Conversation.objects.using(self._using).filter(pk=forked.pk).update(**columns)


class _Copy(Statement):
    """An INSERT … SELECT of *messages* into the conversation with which it is run."""

    def __init__(self, messages: MessageQuerySet, superseded: Case | F) -> None:
        changed = {
            "conversation_id": Parameter(Message, "conversation"),
            "on_path": F("in_history"),
            "superseded": superseded,
            **{column: as_stored(column) for column in TEXTS},
        }
        columns = {f"copied_{field.attname}": changed.get(field.attname, F(field.attname)) for field in NEW_ROW}
        super().__init__(lambda using: list(messages.using(using).annotate(**columns).values_list(*columns)))

    def _record(self, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        select, parameters = super()._record(connection)
        quote = connection.ops.quote_name
        columns = ", ".join(quote(field.column) for field in NEW_ROW)
        return f"INSERT INTO {quote(Message._meta.db_table)} ({columns}) {select}", parameters


def _covering_shared(snapshot: Snapshot) -> Q:
    """Return the condition for summaries of messages on the current path."""
    covered = Message.objects.filter(conversation_id=snapshot.state.id, sequence=OuterRef("parent_sequence"))
    return Q(Exists(covered.filter(on_path=True)), parent_sequence__isnull=False)


def _conditions(column: str, relocation: Relocation) -> Iterator[Q]:
    """Yield conditions that *column* is in one of the entered parts of the path, few parts in each."""
    for parts in in_parts(relocation.entered, MAX_PARTS):
        yield reduce(or_, (Q(**{f"{column}__range": part}) for part in parts))


def _superseded(state: State, relocation: Relocation) -> Case | F:
    """Return the column as a rewind would change it."""
    change = Change(state, relocation.state, left=relocation.left, relocation=relocation, hidden=relocation.hidden)
    hidden, entered = change.superseded, Q(in_history=True, sequence__gt=relocation.shared)
    return Case(
        When(Q(sequence__in=hidden) | entered & Q(metadata__has_key=REJECTED), then=Value(True)),  # that stays away
        When(Q(sequence__in=relocation.shown) | entered, then=Value(False)),
        default=F("superseded"),
    )


def _token_counters(memory: MessageQuerySet) -> dict[str, Any]:
    """Return the token counters for the rows of *memory*, if one estimator counted them all."""
    groups = memory.order_by().values("counted_by")
    counts = list(groups.annotate(rows=Count("sequence"), counted=Count("token_count"), tokens=Sum("token_count")))
    if len(counts) != 1 or not counts[0]["counted_by"] or counts[0]["counted"] != counts[0]["rows"]:
        return {}
    return {"counted_by": counts[0]["counted_by"], "memory_tokens": counts[0]["tokens"]}
