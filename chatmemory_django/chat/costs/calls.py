"""
Records the calls of models: who called which model for what, how many tokens it used, and what that cost.

A call is recorded once it has ended. That never makes an answer fail: if it is not possible, this is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from django.db import IntegrityError, connections, router, transaction
from django.utils import timezone

from chatmemory_django import conf
from chatmemory_django.chat.costs.summing import midnight, sum_calls
from chatmemory_django.chat.costs.tables import MAX_NAME_LENGTH, ModelCall, Outcome, Purpose
from chatmemory_django.chat.costs.usage import usage
from chatmemory_django.core.limits import memory_key
from chatmemory_django.core.serving import served
from chatmemory_django.core.usage import TokenUsage, to_cost
from chatmemory_django.db.moments import LATEST, to_moment
from chatmemory_django.db.threads import from_callback, in_thread, to_its_end
from chatmemory_django.operations.recording import insert_calls
from chatmemory_django.stores.base import CallRecords
from chatmemory_django.stores.django import DjangoChatMemoryStore

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

logger = logging.getLogger(__name__)

PRUNED_AT_ONCE = 5_000
"""How many calls one transaction deletes."""

NOTHING = TokenUsage()
"""What is known of a call that has reported nothing."""

_MOST = 2**31 - 1
"""The largest count that every database can store."""


@dataclass
class Call:
    """A call of a model: *model* is its name; the rest is known once it has ended."""

    purpose: str
    model: str = ""
    usage: TokenUsage = NOTHING
    outcome: str = Outcome.CANCELLED
    error: str = ""
    began_at: datetime = field(default_factory=timezone.now)
    _cost: tuple[Decimal | None] | None = None

    def fail(self, error: BaseException) -> None:
        """Note that *error* ended the call: one that is not an ``Exception`` cancelled it."""
        self.outcome = Outcome.FAILED if isinstance(error, Exception) else Outcome.CANCELLED
        self.error = type(error).__name__ if isinstance(error, Exception) else ""

    @property
    def cost(self) -> Decimal | None:
        """What it costs by the function in the settings; None if that is not known, fails, or is not set."""
        if self._cost is None:
            self._cost = (_cost_of(self.model, self.usage),)
        return self._cost[0]


def payer(memory: Any, owner: AbstractBaseUser | None = None) -> AbstractBaseUser | None:
    """Return for whom calls in *memory* are made: *owner* or, without one, the owner of its store."""
    return getattr(getattr(memory, "store", None), "owner", None) if owner is None else owner


@dataclass(frozen=True)
class Account:
    """For whom calls are made: the key of the user, the memory id, and in which database that is."""

    owner: Any = None
    memory_id: str | None = None
    using: str | None = None

    @classmethod
    def of(cls, memory: Any, owner: AbstractBaseUser | None = None) -> Self:
        """Return the account of the ``payer`` for calls in *memory*."""
        store, user = getattr(memory, "store", None), payer(memory, owner)
        key = None if user is None else user.pk
        return cls(key, memory_key(memory.id), store.using) if isinstance(store, DjangoChatMemoryStore) else cls(key)

    @property
    def database(self) -> str:
        """The database in which its calls are recorded."""
        return self.using or router.db_for_write(ModelCall)

    def spent(self, since: datetime) -> tuple[float, Decimal]:
        """
        Return the tokens and the cost of the owner's calls that began *since* then.

        Models report no usage for an answer that was cancelled: it counts as much as the others do on average, so that
        no one evades a budget by stopping answers.
        """
        calls = ModelCall.objects.using(self.database).filter(owner=self.owner)
        found = list(usage(calls, "outcome", since=since, until=LATEST, limit=len(Outcome)))
        cancelled = [each for each in found if each.key == Outcome.CANCELLED]
        tokens = sum(each.input + each.output for each in found)
        cost = sum((each.cost or Decimal(0) for each in found), Decimal(0))
        counted = sum(each.calls - each.uncounted for each in found)
        priced = sum(each.calls - each.unpriced for each in found)
        return (
            tokens * (1 + sum(each.uncounted for each in cancelled) / max(counted, 1)),
            cost * (1 + Decimal(sum(each.unpriced for each in cancelled)) / max(priced, 1)),
        )

    def records(self, calls: Sequence[Call]) -> CallRecords:
        """Return the records of *calls*, for a store that can write them with the answer."""
        return CallRecords([_values(call, self.owner) for call in calls], self.database)

    def write(self, calls: Sequence[Call]) -> bool:
        """Record *calls*, in one statement; return whether they are. If that fails, it is logged."""
        if not calls:
            return True
        try:
            try:
                self._insert(calls, self.owner)
            except IntegrityError:  # the owner has been erased in the meantime
                self._insert(calls, None)
        except Exception:
            logger.exception("%d calls of models could not be recorded.", len(calls))
            return False
        return True

    def _insert(self, calls: Sequence[Call], owner: Any) -> None:
        connection, values = connections[self.database], [_values(call, owner) for call in calls]
        # A failure must not end the caller's transaction. Without one, each of its statements would be one more.
        is_inside = connection.in_atomic_block
        with transaction.atomic(using=connection.alias) if is_inside else nullcontext(), connection.cursor() as cursor:
            insert_calls(cursor, self.memory_id, values)


def _values(call: Call, owner: Any) -> dict[str, Any]:
    """Return the values of the record of *call*, without its conversation."""
    usage = call.usage
    return {
        "owner": owner,
        "purpose": call.purpose,
        "model": call.model[:MAX_NAME_LENGTH],
        "input_tokens": _count(usage.input),
        "cached_input_tokens": _count(usage.cached_input),
        "output_tokens": _count(usage.output),
        "reasoning_tokens": _count(usage.reasoning),
        "cost": call.cost,
        "outcome": call.outcome,
        "error": call.error[:MAX_NAME_LENGTH],
        "created_at": call.began_at,
    }


class CallRecorder:
    """Records the call of a model in its block, ``with`` or ``async with``; ``record_call`` returns it."""

    def __init__(self, call: Call, account: Account) -> None:
        self._call = call
        self._account = account

    def used(self, usage: TokenUsage, model: str | None = None) -> None:
        """Note what the call used, and the name of the *model* that answered, if it is another one."""
        self._call.usage = usage
        self._call.model = model or self._call.model
        self._call.outcome = Outcome.COMPLETED

    def end(self, error: BaseException | None = None) -> None:
        """Record the call, which *error* may have ended, without a block: in a callback, in any thread."""
        self._end(error)
        from_callback(partial(self._account.write, [self._call]))

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            self._call.outcome = Outcome.COMPLETED
        elif self._call.outcome != Outcome.COMPLETED:
            self._call.fail(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end(error)
        self._account.write([self._call])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._end(error)
        await to_its_end(in_thread(self._account.write, [self._call]))  # a cancelled call is recorded, too


def record_call(
    purpose: str, model: str = "", *, owner: AbstractBaseUser | None = None, memory_id: object = None
) -> CallRecorder:
    """
    Return a context manager, for ``with`` and ``async with``, that records the call of a model which its block makes.

    *purpose* is one of ``Purpose``, *model* the name of the model. Inside of the functions that summarize or entitle a
    conversation, *owner* and *memory_id* are those of that conversation by default. The block passes what the call used
    to ``used``; a call without it has no counts. An exception is recorded by the name of its class.
    """
    if purpose not in Purpose.values:
        raise ValueError(f"purpose must be one of {', '.join(Purpose.values)}, not {purpose!r}.")
    memory = served()
    account = Account(None if owner is None else owner.pk) if memory is None else Account.of(memory, owner)
    if memory_id is not None:
        account = Account(account.owner, memory_key(memory_id), account.using)
    return CallRecorder(Call(purpose, model), account)


def prune_calls(older_than: timedelta, *, using: str | None = None, dry_run: bool = False) -> int:
    """
    Delete the records of calls that began more than *older_than* ago, and return their number.

    What they used stays known: they are added to the sums before. Those of today, which are read themselves, are kept.
    """
    now = datetime.now(UTC)
    before = min(to_moment(now - older_than), midnight(now))
    old = ModelCall.objects.using(using or router.db_for_write(ModelCall)).filter(created_at__lt=before)
    if dry_run:
        return old.count()
    sum_calls(using=old.db)
    old = old.exclude(summed=None)
    count = 0
    while keys := list(old.order_by("created_at").values_list("pk", flat=True)[:PRUNED_AT_ONCE]):
        count += old.filter(pk__in=keys).delete()[0]
    return count


def _count(tokens: int | None) -> int | None:
    return None if tokens is None else min(max(tokens, 0), _MOST)


def _cost_of(model: str, usage: TokenUsage) -> Decimal | None:
    if usage == NOTHING:
        return None
    try:
        function = cast("Callable[[str, TokenUsage], Any] | None", conf.imported(conf.cost()))
        cost = None if function is None else function(model, usage)
        return None if cost is None else to_cost(cost)
    except Exception:
        logger.exception("What a call of the model %r costs could not be determined.", model)
        return None
