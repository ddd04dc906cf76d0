"""
The leases of runs: which process generates the answer of a conversation, and when another one may take its place.

To take a run raises the fence of its conversation, in the same transaction. Each write of the run requires the fence
that it was taken with, so a process that was taken for dead, and was not, finds out by storing nothing.

Transactions lock a conversation before its runs, and none that has locked a run waits for a conversation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID, uuid4

from django.db import DatabaseError, connections, router
from django.db.models import F, Q

from chatmemory_django.chat.runs.renewals import note_listener, renewal
from chatmemory_django.chat.runs.tables import DEAD_AFTER, Run, RunQuerySet, before
from chatmemory_django.chat.runs.taking import (
    NOTHING,
    HandedOverError,
    Kept,
    OtherAssistantError,
    Taken,
    Taking,
    taken_over,
)
from chatmemory_django.core.limits import memory_key
from chatmemory_django.db.contexts import ThreadContext, current
from chatmemory_django.db.moments import DatabaseNow
from chatmemory_django.db.transactions import tried_again
from chatmemory_django.memory import ChatMemory
from chatmemory_django.models import Conversation
from chatmemory_django.stores.base import BusyError
from chatmemory_django.stores.django import DjangoChatMemoryStore

__all__ = [
    "DEAD_AFTER",
    "BusyError",
    "HandedOverError",
    "Lease",
    "OtherAssistantError",
    "Progress",
    "State",
    "Taken",
    "note_listener",
]

if TYPE_CHECKING:
    from django.http import HttpRequest

logger = logging.getLogger(__name__)

PRUNE_BATCH = 500
"""How many runs one statement of ``prune`` deletes."""

State = Run.State


class Progress(Enum):
    """What has become of a run."""

    RUNS = "runs"
    LEFT = "left"
    """Nobody works on it, and any process can go on with it."""
    ENDED = "ended"
    LOST = "lost"
    """Another run has taken its place, its conversation was erased, or it is dead and nobody else can go on with it."""


def take(
    using: str,
    memory_id: object,
    owner: Any,
    run: UUID,
    assistant: str | None = None,
    context: ThreadContext | None = None,
    kept: Kept = NOTHING,
    question: int | None = None,
    *,
    goes_on: bool = False,
) -> Taken | float:
    """
    Take the conversation *memory_id* in the database *using* for a new *run*, which is renewed until it is ended.

    *owner* is the key of the user who owns it, or None for any; *assistant* is the name of the one to which it belongs,
    or None for any. If there is no such conversation, it is created, for both. If another run is in progress, this
    returns the seconds since its process last renewed it; a run whose process is dead is ``interrupted``, and gives
    way. It is renewed in *context*, by default the current one. *question* is the message that is to have another
    answer, if there is one; the run has what is *kept* of its request. If it *goes_on* with an answer that has waited,
    it does so also while a person answers in the conversation.

    In a transaction of the caller, where nobody else can see the run, it is not renewed.

    Raises:
        PermissionDenied: The conversation belongs to another user.
        OtherAssistantError: It belongs to another assistant.
        HandedOverError: A person answers in the conversation, or is waited for.

    """
    context = context or current.get()
    taking = Taking(using, memory_key(memory_id), owner, run, assistant, context, kept, question, goes_on=goes_on)
    taken = tried_again(using, taking.take)
    if isinstance(taken, Taken) and not _is_in_transaction(using):
        keep(taken, context)
    return taken


def take_over(using: str, run: UUID, context: ThreadContext | None = None) -> Taken | None:
    """
    Take *run*, which is asked, or whose process is dead, to go on with it. It is renewed in *context* until it
    is ended.

    Of several processes, one is first; the others have None. It keeps its id, and so the name of its stream. Whatever
    the process that had it does to the conversation from now on is not stored.
    """
    taken = tried_again(using, partial(taken_over, using, run))
    if taken is not None and not _is_in_transaction(using):
        keep(taken, context or current.get())
    return taken


def hand_over(taken: Taken, question: int | None = None, alive_for: float = -DEAD_AFTER) -> bool:
    """
    Give a run up, which is to answer *question*, for any process to go on with it at once.

    It counts as alive for so many seconds. Return whether it was still its own.
    """
    leave(taken)
    given_up: dict[str, Any] = {"state": State.ASKED, "lease": before(-alive_for)}
    if question is not None:
        given_up["question"] = question
    return tried_again(taken.using, lambda: _own(taken).update(**given_up)) > 0


def keep(taken: Taken, context: ThreadContext | None, has_listeners: Callable[[], bool] = lambda: True) -> None:
    """
    Let a run be renewed in *context* until it ends, and be noted while it *has_listeners* that somebody listens to it:
    by default always, as code of the site that runs it waits for it.
    """
    renewal(taken.using).add(taken.run, context, has_listeners)


def end(taken: Taken, state: State, question: int | None = None) -> bool:
    """
    End a run in *state*; *question* is the message that it has answered. Return whether it was still its own.

    It is not renewed any more, also if this fails.
    """
    with ending(taken, question):
        return tried_again(taken.using, partial(update_end, taken, state, question))


class Lease:
    """
    The run of an answer: the one that is *taken*, or one that this takes, and then ends.

    Only conversations in a database have runs. One that this takes is renewed in the context of *request*.
    """

    def __init__(self, taken: Taken | None = None, request: HttpRequest | None = None) -> None:
        self.taken = taken
        self._request = request
        self._is_own = False

    def take(self, memory: ChatMemory, *, goes_on: bool = False) -> int | None:
        """
        Return the fence of the conversation of *memory*, which is taken now unless it is already; None without any.

        *goes_on* is that of the run.

        Raises:
            BusyError: Another answer is in progress there.
            HandedOverError: A person answers there, or is waited for.

        """
        if self.taken is None and isinstance(store := memory.store, DjangoChatMemoryStore):
            using = store.using or router.db_for_write(Conversation)
            owner, context = None if store.owner is None else store.owner.pk, current.get()
            context = context or ThreadContext.of(self._request)
            taken = take(using, memory.id, owner, uuid4(), context=context, goes_on=goes_on)
            if not isinstance(taken, Taken):
                raise BusyError
            self.taken, self._is_own = taken, True
        return self.fence

    def is_of_another(self, memory: ChatMemory, fence: int | None) -> bool:
        """Return whether a run in progress has *fence*, which the conversation of *memory* had when it was read."""
        if not fence or not isinstance(store := memory.store, DjangoChatMemoryStore):
            return False
        return store.named(memory.id).filter(runs__fence=fence, runs__state=State.RUNNING).exists()

    def check(self, memory: ChatMemory) -> None:
        """Raise ``ValueError`` if *memory* is in another database than the run that is taken for it."""
        using = getattr(memory.store, "using", None)
        if self.taken is not None and using not in {None, self.taken.using}:
            raise ValueError(
                f"The memory {memory.id!r} is in the database {using!r}, and the chat over HTTP looks for its "
                f"conversation in {self.taken.using!r}: let a router name the database, instead of using=."
            )

    @property
    def fence(self) -> int | None:
        """The fence of the conversation, if it is taken."""
        return None if self.taken is None else self.taken.fence

    @property
    def is_of_new(self) -> bool:
        """Whether the conversation was created for the run that is taken, so that it has no messages."""
        return self.taken is not None and self.taken.is_new

    @property
    def has_to_end(self) -> bool:
        """Whether ``end`` has anything to do."""
        return self._is_own

    def end(self, state: State, question: int | None) -> None:
        """End the run in *state* if this has taken it; if that fails, it is logged, and the run dies."""
        if self.taken is not None and self._is_own:
            try:
                end(self.taken, state, question)
            except DatabaseError:
                logger.exception("The end of a run could not be stored.")


def update_end(taken: Taken, state: State, question: int | None) -> bool:
    """Write the end of a run, once; ``end`` does all that belongs to it."""
    ended: dict[str, Any] = {"state": state, "active": None, "ended_at": DatabaseNow(), "asked": ""}
    return _own(taken).update(**ended, question=question) > 0


def _own(taken: Taken) -> RunQuerySet:
    """Return the run if it is in progress, and nobody has taken it over."""
    return Run.objects.using(taken.using).filter(pk=taken.run, fence=taken.fence, active__isnull=False)


@contextmanager
def ending(taken: Taken, question: int | None) -> Iterator[None]:
    """
    Surround what writes the end of a run: renew it no longer, and then leave no conversation that has nothing, which
    cannot be where it has answered a *question*.
    """
    try:
        yield
    finally:
        leave(taken)
    if taken.is_new and question is None:
        _forget_empty(taken)


def leave(taken: Taken) -> None:
    """Renew a run no longer: another process may take its place after ``DEAD_AFTER`` seconds."""
    renewal(taken.using).drop(taken.run)


def find(using: str, memory_id: str, owner: Any) -> UUID | None:
    """Return the run in the owner's conversation that is in progress, or goes on if somebody reads it; or None."""
    found = Run.objects.using(using).open().filter(conversation__memory_id=memory_id, conversation__owner=owner)
    return next(iter(found.values_list("pk", flat=True)), None)


class Left(NamedTuple):
    """A run that was asked, or whose process is dead: what a worker needs to go on with it."""

    run: UUID
    memory_id: str
    owner_key: str
    assistant: str
    context: str
    language: str
    time_zone: str


def left(using: str, count: int, without: Collection[str] = ()) -> list[Left]:
    """
    Return up to *count* runs in the database *using* on which nobody works, *without* those of these contexts, the
    oldest first.
    """
    found = Run.objects.using(using).left().filter(active__gte=0)  # by the index of those in progress, on SQLite, too
    found = found.exclude(context__in=without)
    columns = ("conversation__memory_id", "conversation__owner", "assistant", "context", "language", "time_zone")
    rows: Any = found.order_by("created_at").values_list("pk", *columns)[:count]
    return [Left(run, memory_id, "" if owner is None else str(owner), *rest) for run, memory_id, owner, *rest in rows]


def waiting(using: str, seconds: float = 0.0) -> int:
    """Return how many runs in the database *using* wait for a process, and began more than *seconds* ago."""
    asked = Run.objects.using(using).filter(state=State.ASKED, active__gte=0, created_at__lt=before(seconds))
    try:
        return asked.count()
    except DatabaseError:  # it has no tables yet, or they are others'
        return 0


def unheard(using: str, memory_id: str, owner: Any) -> tuple[UUID, float, datetime] | None:
    """Return the run in progress in the owner's conversation, how many seconds nobody has listened, and since when."""
    found: Any = Run.objects.using(using).alive().filter(conversation__memory_id=memory_id, conversation__owner=owner)
    for run, silence, heard_at in found.values_list("pk", DatabaseNow() - F("listened_at"), "listened_at"):
        return run, silence.total_seconds(), heard_at
    return None


def running(using: str, owner: Any, most: int) -> int:
    """Return how many runs are in progress in the conversations of *owner*, or *most* if there are more."""
    found = Run.objects.using(using).alive().filter(conversation__owner=owner).values_list("pk")
    return len(found[:most])  # few: quicker than to make a COUNT


def streamed(using: str, memory_ids: Collection[str], *, have_ended: bool) -> list[UUID]:
    """Return the runs in these conversations whose streams go on, and with *have_ended* those that others may read."""
    runs = Run.objects.using(using)
    found = runs.exclude(state=State.INTERRUPTED) if have_ended else runs.open()
    return list(found.filter(conversation__memory_id__in=memory_ids).values_list("pk", flat=True))


def stop(using: str, run: UUID) -> None:
    """Ask the process that generates an answer to stop it."""
    Run.objects.using(using).filter(pk=run, active__isnull=False).update(is_stopping=True)


def stop_in(conversation: Conversation) -> None:
    """Ask the process that generates an answer in *conversation*, if there is one, to stop it."""
    runs = Run.objects.using(conversation._state.db)
    runs.filter(active=conversation.pk).update(is_stopping=True)


def withdraw(using: str, run: UUID) -> bool:
    """End *run* if no process has taken it yet; return whether it was so."""
    ended: dict[str, Any] = {"state": State.STOPPED, "active": None, "ended_at": DatabaseNow(), "asked": ""}
    return Run.objects.using(using).filter(pk=run, state=State.ASKED, active__isnull=False).update(**ended) > 0


def stopping(using: str, taken: Collection[Taken]) -> Mapping[UUID, bool]:
    """Return whether each of those runs that are still their process's has to stop."""
    fences = {each.run: each.fence for each in taken}
    found = Run.objects.using(using).filter(pk__in=fences, active__isnull=False)
    rows = found.values_list("pk", "fence", "is_stopping")
    return {run: is_stopping for run, fence, is_stopping in rows if fence == fences[run]}


def progress(using: str, run: UUID) -> tuple[Progress, int | None]:
    """Return what has become of a run, and the fence of who has taken it last; None if it has ended, or is lost."""
    columns = ("state", "active", "assistant", "fence", DatabaseNow() - F("lease"))
    found: Any = Run.objects.using(using).filter(pk=run).values_list(*columns)
    for state, active, assistant, fence, silent_for in found:
        if active is None and state != State.INTERRUPTED:
            return Progress.ENDED, None
        if active is not None and state != State.ASKED and silent_for.total_seconds() < DEAD_AFTER:
            return Progress.RUNS, fence
        if active is not None and assistant is not None:
            return Progress.LEFT, fence
    return Progress.LOST, None


def prune(using: str, seconds: float) -> int:
    """Delete the runs that ended, or whose process died, more than *seconds* ago, and return how many there were."""
    old = before(seconds)
    runs = Run.objects.using(using)
    left = runs.filter(Q(ended_at__lt=old) | Q(active__isnull=False, lease__lt=old)).values_list("pk", flat=True)
    count = 0
    while keys := list(left[:PRUNE_BATCH]):
        count += runs.filter(pk__in=keys).delete()[0]
    return count


def _is_in_transaction(using: str) -> bool:
    connection = connections[using]
    return connection.in_atomic_block or not connection.get_autocommit()


def _forget_empty(taken: Taken) -> None:
    """Delete the conversation of a run if nothing was ever written to it, and no other run has taken it."""
    untouched = Conversation.objects.using(taken.using).filter(pk=taken.conversation, version=1, fence=taken.fence)
    try:
        if untouched.exists():
            untouched.delete()
    except DatabaseError:
        logger.exception("An empty conversation, of an answer that was not stored, could not be deleted.")
