"""
What is left of the budgets of an answer: what calls have used, and what other answers in progress have reserved.

An answer reserves what one call of its model may use, in the row of its run. What has ended, or whose process is dead,
reserves nothing any more; what it used are its recorded calls.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections
from django.db.models import F
from django.db.models.lookups import Exact

from chatmemory_django.access import access_policy
from chatmemory_django.chat.costs.calls import Account
from chatmemory_django.chat.costs.conf import Budget
from chatmemory_django.chat.costs.given import given
from chatmemory_django.chat.costs.labels import label_in
from chatmemory_django.chat.costs.tables import BUDGET_LOCKS, BudgetLock, LabelValue, ModelCall
from chatmemory_django.chat.costs.usage import selects
from chatmemory_django.chat.runs.tables import Run
from chatmemory_django.db.moments import LATEST

if TYPE_CHECKING:
    from uuid import UUID

    from django.contrib.auth.base_user import AbstractBaseUser


class Amount(NamedTuple):
    """So many tokens of input and output, and what they cost."""

    tokens: float = 0
    cost: Decimal = Decimal(0)

    def plus(self, other: Amount) -> Amount:
        """Return the sum of both."""
        return Amount(self.tokens + other.tokens, self.cost + other.cost)


class Limits:
    """The *budgets* that apply to calls for an *account* with *labels*, in their present periods."""

    def __init__(self, budgets: Sequence[Budget], account: Account, labels: Mapping[str, str]) -> None:
        self._account = account
        self.using = account.database
        self._labels = labels
        self.budgets = [each for each in budgets if self._whose(each) is not None]
        self.is_strict = any(each.strict for each in self.budgets)
        self.has_cost = any(each.cost is not None for each in self.budgets)
        now = datetime.now(UTC)
        self._periods = [each.period(now) for each in self.budgets]

    @classmethod
    def of(cls, user: AbstractBaseUser | None, account: Account, labels: Mapping[str, str]) -> Limits:
        """Return those that the access policy sets; ``ValueError`` if they are invalid."""
        ask = access_policy().budget
        known = given(ask, {"labels": dict(labels), "memory_id": account.memory_id})
        # A policy of before there were labels knows users alone.
        return cls(Budget.of_setting(ask(user, **known) if user is not None or known else None), account, labels)

    def until(self, number: int) -> datetime:
        """Return when the present period of the budget with this *number* ends."""
        return self._periods[number][1]

    def spent(self, run: UUID | None = None) -> list[Amount]:
        """
        Return, for each budget, what counts for it, read by one statement; *run* is the one whose own does not.

        Calls that were cancelled or failed count with their estimates, so that no one evades a budget by stopping
        answers, or by asking for what takes too long.
        """
        selected: list[str] = []
        values: list[Any] = []
        for number, budget in enumerate(self.budgets):
            for columns, sql, parameters in self._parts(budget, self._periods[number][0], run):
                selected.append(f"SELECT {number} AS budget, {columns} FROM ({sql}) part")  # noqa: S608  # the ORM's
                values += parameters
        found = [Amount()] * len(self.budgets)
        if not selected:
            return found
        union = " UNION ALL ".join(selected)
        with connections[self.using].cursor() as cursor:
            cursor.execute(f"SELECT budget, SUM(tokens), SUM(cost) FROM ({union}) parts GROUP BY budget", values)  # noqa: S608  # as above
            for number, tokens, cost in cursor.fetchall():
                found[number] = Amount(int(tokens or 0), Decimal(str(cost or 0)))  # SQLite adds floats
        return found

    def lock(self) -> None:
        """Let others who lock one of the strict budgets of the same account wait until the end of the transaction."""
        keys = [f"{each.of} {self._whose(each)}" for each in self.budgets if each.strict]
        numbers = {zlib.crc32(key.encode()) % BUDGET_LOCKS for key in keys}
        locks = BudgetLock.objects.using(self.using)
        # An UPDATE locks rows on every database, SQLite too, and in REPEATABLE READ it comes before the first read.
        while locks.filter(pk__in=numbers).update(id=F("id")) < len(numbers):
            locks.bulk_create([BudgetLock(id=number) for number in sorted(numbers)], ignore_conflicts=True)

    def _whose(self, budget: Budget) -> Any:
        """Return whose calls count for *budget*; None if it does not apply."""
        if budget.of == "user":
            return self._account.owner
        return self._account.memory_id if budget.of == "conversation" else self._labels.get(label_in(budget.of) or "")

    def _parts(self, budget: Budget, since: datetime, run: UUID | None) -> Iterator[tuple[str, str, Sequence[Any]]]:
        """Yield the columns to read of calls, their sums and runs that count for *budget*, and the SQL of these."""
        using, whose = self.using, self._whose(budget)
        calls, runs = ModelCall.objects.using(using), Run.objects.using(using).alive().filter(reserved__isnull=False)
        runs = runs if run is None else runs.exclude(pk=run)
        name, labels = label_in(budget.of), None
        if name is not None:
            labels, runs = {name: str(whose)}, runs.filter(Exact(LabelValue(name), whose))
        elif budget.of == "user":
            calls, runs = calls.filter(owner=whose), runs.filter(conversation__owner=whose)
        else:
            calls = calls.filter(conversation__memory_id=whose)
            runs = runs.filter(conversation__memory_id=whose)
        for sql, parameters in selects(calls, ["outcome"], since, LATEST, labels):
            yield "SUM(sum_of_input) + SUM(sum_of_output) AS tokens, SUM(sum_of_cost) AS cost", sql, parameters
        sql, parameters = runs.values_list("reserved", "reserved_cost").query.get_compiler(using).as_sql()
        yield "SUM(reserved) AS tokens, SUM(reserved_cost) AS cost", sql, parameters
