"""What a call of a model used, and what a user may use: token counts and budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, NamedTuple, Self

from chatmemory_django.core.labels import label_in

COST_DIGITS, COST_PLACES = 20, 10
"""How many digits a stored cost has, and how many of them behind the point: one token can cost 0.00000003."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """
    The number of tokens that a call used; None for what the model does not report.

    *input* and *output* are all that is billed, and the others are parts of them. Of the input, *cached_input* was read
    from the vendor's cache of prompts, and *cache_write* was written to it, of which *cache_write_1h* is kept for an
    hour instead of the vendor's default; both have prices of their own. *reasoning* is the part of the output that was
    thinking.
    """

    input: int | None = None
    output: int | None = None
    total: int | None = None
    cached_input: int | None = None
    reasoning: int | None = None
    cache_write: int | None = None
    cache_write_1h: int | None = None

    def __add__(self, other: TokenUsage) -> TokenUsage:
        """Return the sum of both; what neither reports stays None."""
        return TokenUsage(*map(_sum, astuple(self), astuple(other)))


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


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other
