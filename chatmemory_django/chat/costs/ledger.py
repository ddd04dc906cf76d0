"""The calls of one answer: each is noted when it is made, all are recorded at once, and a budget bounds them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from chatmemory_django import telemetry
from chatmemory_django.access import access_policy
from chatmemory_django.chat.costs.calls import Account, Call, payer
from chatmemory_django.chat.costs.estimates import parts_of
from chatmemory_django.chat.costs.tables import Purpose
from chatmemory_django.chat.model import ChatEvent, ChatModel, ChatRequest, RateLimitError
from chatmemory_django.core.usage import Budget
from chatmemory_django.memory import ChatMemory
from chatmemory_django.memory.turns import Turn

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser


class BudgetExceededError(RateLimitError):
    """The owner has used up the budget, so the model was not called. The next begins at *until*, an aware datetime."""

    def __init__(self, until: datetime) -> None:
        seconds = max(1, math.ceil((until - datetime.now(UTC)).total_seconds()))
        super().__init__(f"The budget is used up until {until.isoformat()}.", retry_after=seconds)
        self.until = until


class Ledger:
    """The calls of *model* for an answer to *owner* in *memory*."""

    def __init__(self, model: ChatModel, memory: ChatMemory, owner: AbstractBaseUser | None) -> None:
        self._account = Account.of(memory, owner)
        self._model_name = str(getattr(model, "model_name", "") or "")
        self._calls: list[Call] = []
        self._written = 0
        user = payer(memory, owner)
        given = None if user is None else access_policy().budget(user)
        self._budget = None if given is None else Budget.of(given)
        self._spent: tuple[float, Decimal] = (0, Decimal(0))
        if self._budget is not None:
            begin, self._until = self._budget.period(datetime.now(UTC))
            self._spent = self._account.spent(begin)

    @property
    def asks_for_costs(self) -> bool:
        """Whether ``check`` now calls the site's function of costs, which must not block the event loop."""
        return self._budget is not None and self._budget.cost is not None and bool(self._calls)

    def check(self) -> None:
        """Raise ``BudgetExceededError`` if nothing is left for another call."""
        if self._budget is None:
            return
        tokens, cost = self._spent
        for call in self._calls:
            tokens += (call.counted.input or 0) + (call.counted.output or 0)
            cost += (call.cost or 0) if self._budget.cost is not None else 0
        if self._budget.is_used_up(tokens, cost):
            raise BudgetExceededError(self._until)

    @contextmanager
    def call(self, request: ChatRequest) -> Iterator[None]:
        """Note the call of the model that the block makes with *request*, and how it ends."""
        call = Call(Purpose.ANSWER, self._model_name)
        call.estimate.sends(parts_of(request))
        self._calls.append(call)
        try:
            yield
        except BaseException as exc:
            call.fail(exc)
            raise

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
            self._note_written(new, are_written=self._account.write(new))

    @contextmanager
    def recorded_with(self, turn: Turn) -> Iterator[None]:
        """
        Record the calls in the transaction in which the block stores *turn*; after it, if that was not possible.

        If neither is, the next attempt records them.
        """
        new = self._calls[self._written :]
        records = self._account.records(new)
        turn.record(records)
        try:
            yield
        finally:
            self._note_written(new, are_written=records.are_written or self._account.write(new))

    def _note_written(self, calls: Sequence[Call], *, are_written: bool) -> None:
        if are_written:
            self._written += len(calls)
            telemetry.note_usage(self._calls, calls)
