"""What calls cost, and what may be used: the settings ``COST`` and ``BUDGET``."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal, NamedTuple, Self

from django.core.checks import CheckMessage, Error, Warning  # noqa: A004  # Django's name for it

from chatmemory_django.chat.conf import COST_DIGITS, COST_PLACES
from chatmemory_django.chat.costs.given import given
from chatmemory_django.chat.costs.labels import label_in
from chatmemory_django.conf import Rule, Section, imported


class Costs(Section):
    """What the app reads of ``CHATMEMORY`` itself."""

    COST: Annotated[
        object,
        Rule(
            "the path of a function of a model's name and a TokenUsage, or None",
            lambda cost: cost is None or callable(imported(cost)),
            "For example 'mysite.costs.cost'.",
        ),
        "chatmemory.E061",
    ] = None
    CURRENCY: Annotated[
        str,
        Rule(
            "a text of at most 10 characters",
            lambda name: isinstance(name, str) and len(name) <= 10,
            "For example 'USD'.",
        ),
        "chatmemory.E065",
    ] = ""
    """What costs are in, as it is shown beside them."""
    BUDGET: object = None
    """A dict or several, a function of a user that returns that or None, or its path."""


costs = Costs.current


class Budget(NamedTuple):
    """
    What may be used in a period: *tokens* of input and output, a *cost*, or both; None for no limit.

    It limits each user, each conversation, or each value of a label: *of* is ``"user"``, ``"conversation"`` or, for
    example, ``"label:tenant"``. A *strict* one is not exceeded by answers that begin at the same moment either.
    """

    tokens: int | None
    cost: Decimal | None
    per: Literal["day", "month"]
    of: str = "user"
    strict: bool = False

    @classmethod
    def of_setting(cls, value: object) -> list[Self]:
        """Return the budgets that *value* describes, as in the setting ``BUDGET``; ``ValueError`` if it is invalid."""
        if value is None:
            return []
        return [cls.parse(each) for each in (value if isinstance(value, list | tuple) else [value])]

    @classmethod
    def parse(cls, value: object) -> Self:
        """Return the budget that the dict *value* describes; ``ValueError`` if it is invalid."""
        names = {"TOKENS", "COST", "PER", "OF", "STRICT"}
        if not isinstance(value, Mapping) or not names.issuperset(value) or not {"TOKENS", "COST"} & set(value):
            raise ValueError(
                f"A budget is a dict with 'TOKENS' or 'COST', and 'PER', and may have 'OF' and 'STRICT', not {value!r}."
            )
        tokens, cost, per = value.get("TOKENS"), value.get("COST"), value.get("PER")
        of, strict = value.get("OF", "user"), value.get("STRICT", False)
        if per not in {"day", "month"}:
            raise ValueError(f"'PER' must be 'day' or 'month', not {per!r}.")
        if of not in {"user", "conversation"} and label_in(of) is None:
            raise ValueError(f"'OF' must be 'user', 'conversation' or a label like 'label:tenant', not {of!r}.")
        if not isinstance(strict, bool):
            raise ValueError(f"'STRICT' must be True or False, not {strict!r}.")  # noqa: TRY004
        if tokens is not None and (type(tokens) is not int or tokens < 0):
            raise ValueError(f"'TOKENS' must be a whole number of at least 0, not {tokens!r}.")
        try:
            amount = None if cost is None else to_cost(cost)
        except ValueError as exc:
            raise ValueError(f"'COST': {exc}") from None
        if tokens is None and amount is None:
            raise ValueError("A budget must limit 'TOKENS' or 'COST'; use None instead of a dict for no budget.")
        return cls(tokens, amount, per, of, strict)

    def period(self, now: datetime) -> tuple[datetime, datetime]:
        """Return the beginning and the end of the day or month, in UTC, in which *now* is."""
        begin = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if self.per == "day":
            return begin, begin + timedelta(days=1)
        begin = begin.replace(day=1)
        return begin, (begin + timedelta(days=31)).replace(day=1)

    def is_used_up(self, tokens: float, cost: Decimal) -> bool:
        """Return whether nothing is left of it after so many *tokens*, and this *cost*."""
        return (self.tokens is not None and tokens >= self.tokens) or (self.cost is not None and cost >= self.cost)

    def is_exceeded(self, tokens: float, cost: Decimal) -> bool:
        """Return whether so many *tokens*, or this *cost*, are more than it allows."""
        return (self.tokens is not None and tokens > self.tokens) or (self.cost is not None and cost > self.cost)


def to_cost(value: Any) -> Decimal:
    """Return *value*, a number or its text, as a cost that can be stored; ``ValueError`` if it is none."""
    is_number = isinstance(value, int | float | str | Decimal) and not isinstance(value, bool)
    try:
        cost = Decimal(str(value)) if is_number else Decimal("NaN")
    except InvalidOperation:
        cost = Decimal("NaN")
    if not (cost.is_finite() and 0 <= cost < 10 ** (COST_DIGITS - COST_PLACES) - 1):
        raise ValueError(f"A cost is a number of at least 0, for example Decimal('0.05'), not {value!r}.")
    return abs(round(cost, COST_PLACES))


def budget_of_setting(user: Any, **known: Any) -> Any:
    """Return ``BUDGET``, or what the function there returns for *user*; see ``AccessPolicy.budget``."""
    budget: Any = imported(costs().BUDGET)
    if not callable(budget):
        return budget
    known = given(budget, known)
    return budget(user, **known) if user is not None or known else None


def check_costs() -> Iterator[CheckMessage]:
    """Check the settings ``COST`` and ``BUDGET``."""
    given = Costs.readable()
    if given is None:
        return  # another check reports it
    yield from given.broken()
    budget = imported(given.BUDGET)
    if budget is None or callable(budget):
        return  # what it returns depends on the user
    try:
        limits = Budget.of_setting(budget)
    except ValueError as exc:
        yield Error(
            f"CHATMEMORY['BUDGET'] is not valid: {exc}",
            hint="For example {'TOKENS': 100_000, 'PER': 'day'} or {'COST': '5.00', 'PER': 'month'}, a list of such "
            "dicts, or the path of a function of a user that returns one, or None.",
            id="chatmemory.E062",
        )
        return
    if given.COST is None and any(each.cost is not None for each in limits):
        yield Warning(
            "CHATMEMORY['BUDGET'] limits the COST, but without CHATMEMORY['COST'] no call has one: it has no effect.",
            hint="Set 'COST' to the path of a function, or limit 'TOKENS'.",
            id="chatmemory.W061",
        )
