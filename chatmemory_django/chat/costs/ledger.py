"""The calls of one answer: each is noted when it is made, all are recorded at once, and a budget bounds them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from django.db import transaction

from chatmemory_django import observing
from chatmemory_django.chat.costs.budgets import Amount, Limits
from chatmemory_django.chat.costs.calls import Account, Call, payer
from chatmemory_django.chat.costs.estimates import parts_of
from chatmemory_django.chat.costs.tables import Purpose
from chatmemory_django.chat.model import ChatEvent, ChatModel, ChatRequest, RateLimitError, TokenUsage
from chatmemory_django.chat.runs.leases import Lease
from chatmemory_django.chat.runs.tables import Run
from chatmemory_django.db.transactions import tried_again
from chatmemory_django.memory import ChatMemory
from chatmemory_django.memory.turns import Turn
from chatmemory_django.stores.base import Beside, OtherRow

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser


INPUT_TOKENS = 8_000
"""What a call reserves for its input if the window of its memory is not one of tokens."""

OUTPUT_TOKENS = 4_000
"""What a call reserves for its output: the answer of most chats is shorter, thinking included."""


class BudgetExceededError(RateLimitError):
    """
    A budget is used up, so the model was not called: *of* is whose it is, as in the setting ``BUDGET``.

    The next begins at *until*, an aware datetime.
    """

    def __init__(self, until: datetime, of: str = "user") -> None:
        seconds = max(1, math.ceil((until - datetime.now(UTC)).total_seconds()))
        super().__init__(f"The budget is used up until {until.isoformat()}.", retry_after=seconds)
        self.until = until
        self.of = of


class Ledger:
    """
    The calls of *model* for an answer to *owner* in *memory*, whose run is that of *lease*.

    A call *reserves* so many tokens; by default, what the window of the memory holds, and ``OUTPUT_TOKENS``.
    """

    def __init__(
        self,
        model: ChatModel,
        memory: ChatMemory,
        owner: AbstractBaseUser | None,
        lease: Lease,
        reserves: TokenUsage | None,
    ) -> None:
        self._account = Account.of(memory, owner)
        self._memory = memory
        self._lease = lease
        self._reserves = reserves
        self._model_name = str(getattr(model, "model_name", "") or "")
        self._calls: list[Call] = []
        self._written = 0
        self._limits = Limits.of(payer(memory, owner), self._account, memory.labels)
        self._spent: list[Amount] | None = None

    @property
    def is_strict(self) -> bool:
        """Whether a budget must not be exceeded by answers at the same moment either: the answer needs a run."""
        return self._limits.is_strict

    @property
    def takes_time(self) -> bool:
        """Whether ``check`` now uses the database, or the site's function of costs, which block an event loop."""
        return bool(self._calls) and (self._limits.is_strict or self._limits.has_cost)

    def check(self) -> None:
        """
        Raise ``BudgetExceededError`` if nothing is left for another call; with a strict budget, for all it reserves.

        The run of the answer, if there is one, reserves that.
        """
        if not self._limits.budgets or (self._limits.is_strict and self._spent is not None and not self._calls):
            return
        if self._limits.is_strict:
            tried_again(self._limits.using, self._check_locked)
            return
        is_first = self._spent is None
        self._check(self._calls, Amount())
        if is_first:
            self._reserve(self._reserved)

    def _check_locked(self) -> None:
        """Check what is left now, while nobody else does, and reserve it."""
        with transaction.atomic(using=self._limits.using):
            self._limits.lock()
            self._spent, amount = None, self._reserved
            self._check(self._calls[self._written :], amount)  # those that are written are among what is read
            self._reserve(amount)

    def _check(self, calls: Sequence[Call], reserved: Amount) -> None:
        taken = self._lease.taken
        if self._spent is None:
            self._spent = self._limits.spent(None if taken is None else taken.run)
        own = Amount()
        for call in calls:
            cost = call.cost if self._limits.has_cost else None
            own = own.plus(Amount((call.counted.input or 0) + (call.counted.output or 0), cost or Decimal(0)))
        over: list[tuple[datetime, str]] = []
        for number, (budget, spent) in enumerate(zip(self._limits.budgets, self._spent, strict=True)):
            total = spent.plus(own)
            if budget.is_exceeded(*total.plus(reserved)) if budget.strict else budget.is_used_up(*total):
                over.append((self._limits.until(number), budget.of))
        if over:
            raise BudgetExceededError(*max(over))

    @property
    def _reserved(self) -> Amount:
        """What the next call may use."""
        window = self._memory.window()
        tokens = INPUT_TOKENS if window.measure == "messages" else window.evicted_limit
        most = self._reserves or TokenUsage(tokens, OUTPUT_TOKENS)
        call = Call(Purpose.ANSWER, self._model_name, labels=self._memory.labels)
        cost = call.cost_of(most) if self._limits.has_cost else None
        return Amount((most.input or 0) + (most.output or 0), cost or Decimal(0))

    def _reserve(self, amount: Amount) -> None:
        if (taken := self._lease.taken) is not None:
            reserved = {"reserved": amount.tokens, "reserved_cost": amount.cost, "labels": dict(self._memory.labels)}
            Run.objects.using(taken.using).filter(pk=taken.run).update(**reserved)

    @property
    def _released(self) -> list[OtherRow]:
        """What gives back what was reserved for a call, in the transaction that records it: it must not count twice."""
        if (taken := self._lease.taken) is None or not self.is_strict:
            return []
        return [OtherRow(Run, {"reserved": None, "reserved_cost": None}, {"id": taken.run, "fence": taken.fence})]

    def call(self, request: ChatRequest) -> AbstractContextManager[object]:
        """Note the call of the model that the block makes with *request*, and how it ends."""
        call = Call(Purpose.ANSWER, self._model_name, labels=self._memory.labels)
        call.estimate.sends(parts_of(request))
        self._calls.append(call)
        return call

    def note(self, event: ChatEvent) -> None:
        """Note an *event* of the present call. Each counts, if the call is stopped."""
        self._calls[-1].note(event)

    @property
    def has_new(self) -> bool:
        """Whether there are calls that are not recorded yet."""
        return self._written < len(self._calls)

    def write(self) -> None:
        """Record the calls that are not recorded yet."""
        if new := self._calls[self._written :]:
            self._note_written(new, are_written=self._account.write(new, self._released))

    @contextmanager
    def recorded_with(self, turn: Turn) -> Iterator[None]:
        """
        Record the calls in the transaction in which the block stores *turn*; after it, if that was not possible.

        If neither is, the next attempt records them.
        """
        new = self._calls[self._written :]
        beside = Beside([*self._account.records(new), *self._released] if new else (), self._limits.using)
        turn.rows_beside = beside
        try:
            yield
        finally:
            turn.rows_beside = None  # a later write must not repeat it
            self._note_written(new, are_written=beside.are_written or self._account.write(new, self._released))

    def _note_written(self, calls: Sequence[Call], *, are_written: bool) -> None:
        if are_written:
            self._written += len(calls)
            observing.note("used", calls=self._calls, new=calls)
