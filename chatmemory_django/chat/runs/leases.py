"""
The leases of runs: which process generates the answer of a conversation, and when another one may take its place.

To take a run raises the fence of its conversation, in the same transaction. Each write of the run requires the fence
that it was taken with, so a process that was taken for dead, and was not, finds out by storing nothing.

Transactions lock a conversation before its runs, and none that has locked a run waits for a conversation.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from django.db import DatabaseError, connections, router
from django.db.models import F, Q

from chatmemory_django.chat.runs.renewals import renewal
from chatmemory_django.chat.runs.tables import DEAD_AFTER, Run, before
from chatmemory_django.chat.runs.taking import Taken, Taking
from chatmemory_django.core.limits import memory_key
from chatmemory_django.db.moments import DatabaseNow
from chatmemory_django.db.retries import tried_again
from chatmemory_django.memory import ChatMemory
from chatmemory_django.models import Conversation
from chatmemory_django.stores.base import BusyError
from chatmemory_django.stores.django import DjangoChatMemoryStore

__all__ = ["DEAD_AFTER", "BusyError", "Lease", "Progress", "State", "Taken"]

logger = logging.getLogger(__name__)

PRUNE_BATCH = 500
"""How many runs one statement of ``prune`` deletes."""

State = Run.State


class Progress(Enum):
    """What has become of a run."""

    RUNS = "runs"
    ENDED = "ended"
    LOST = "lost"
    """Its process is dead, another run has taken its place, or its conversation was erased."""


def take(using: str, memory_id: object, owner: Any, run: UUID) -> Taken | float:
    """
    Take the conversation *memory_id* in the database *using* for a new *run*, which is renewed until it is ended.

    *owner* is the key of the user who owns it, or None for any. If there is no such conversation, it is created. If
    another run is in progress there, this returns the seconds since its process last renewed it; a run whose process is
    dead is ``interrupted``, and gives way.

    In a transaction of the caller, where nobody else can see the run, it is not renewed.

    Raises:
        PermissionDenied: The conversation belongs to another user.

    """
    taken = tried_again(using, Taking(using, memory_key(memory_id), owner, run).take)
    if isinstance(taken, Taken) and not _is_in_transaction(using):
        renewal(using).add(run)
    return taken


def end(taken: Taken, state: State, question: int | None = None) -> bool:
    """
    End a run in *state*; *question* is the message that it has answered. Return whether it was still its own.

    It is not renewed any more, also if this fails.
    """
    with ending(taken):
        return tried_again(taken.using, partial(update_end, taken, state, question))


class Lease:
    """
    The run of an answer: the one that is *taken*, or one that this takes, and then ends.

    Only conversations in a database have runs.
    """

    def __init__(self, taken: Taken | None = None) -> None:
        self.taken = taken
        self._is_own = False

    def take(self, memory: ChatMemory) -> int | None:
        """
        Return the fence of the conversation of *memory*, which is taken now unless it is already; None without any.

        Raises:
            BusyError: Another answer is in progress there.

        """
        if self.taken is None and isinstance(store := memory.store, DjangoChatMemoryStore):
            using = store.using or router.db_for_write(Conversation)
            taken = take(using, memory.id, None if store.owner is None else store.owner.pk, uuid4())
            if not isinstance(taken, Taken):
                raise BusyError
            self.taken, self._is_own = taken, True
        return self.fence

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
    ended: dict[str, Any] = {"state": state, "active": None, "ended_at": DatabaseNow(), "question": question}
    return Run.objects.using(taken.using).filter(pk=taken.run, active__isnull=False).update(**ended) > 0


@contextmanager
def ending(taken: Taken) -> Iterator[None]:
    """Surround what writes the end of a run: renew it no longer, and then leave no conversation that has nothing."""
    try:
        yield
    finally:
        leave(taken)
    if taken.is_new:
        _forget_empty(taken)


def leave(taken: Taken) -> None:
    """Renew a run no longer: another process may take its place after ``DEAD_AFTER`` seconds."""
    renewal(taken.using).drop(taken.run)


def find(using: str, memory_id: str, owner: Any) -> UUID | None:
    """Return the run in progress in the owner's conversation, or None."""
    found = Run.objects.using(using).alive().filter(conversation__memory_id=memory_id, conversation__owner=owner)
    return next(iter(found.values_list("pk", flat=True)), None)


def running(using: str, owner: Any) -> int:
    """Return how many runs are in progress in the conversations of *owner*."""
    return len(
        Run.objects.using(using).alive().filter(conversation__owner=owner).values_list("pk")
    )  # few: quicker than to make a COUNT


def alive(using: str, memory_ids: Collection[str]) -> list[UUID]:
    """Return the runs in progress in these conversations."""
    return list(
        Run.objects.using(using).alive().filter(conversation__memory_id__in=memory_ids).values_list("pk", flat=True)
    )


def stop(using: str, run: UUID) -> None:
    """Ask the process that generates an answer to stop it."""
    Run.objects.using(using).filter(pk=run, active__isnull=False).update(is_stopping=True)


def stopping(using: str, runs: Collection[UUID]) -> Mapping[UUID, bool]:
    """Return whether each of those *runs* that are still their process's has to stop."""
    own = Run.objects.using(using).filter(pk__in=runs, active__isnull=False)
    return dict(own.values_list("pk", "is_stopping"))


def progress(using: str, run: UUID) -> Progress:
    """Return what has become of a run."""
    columns = ("state", "active", DatabaseNow() - F("lease"))
    found: Any = Run.objects.using(using).filter(pk=run).values_list(*columns)
    for state, active, silent_for in found:
        if active is None and state != State.INTERRUPTED:
            return Progress.ENDED
        if active is not None and silent_for.total_seconds() < DEAD_AFTER:
            return Progress.RUNS
    return Progress.LOST


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
