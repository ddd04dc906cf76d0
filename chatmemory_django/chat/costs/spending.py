"""Data of the plot of what calls of models used: a bar for each day, with a piece for each model."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django.utils.translation import gettext as _

from chatmemory_django.chat.costs.tables import ModelCallQuerySet
from chatmemory_django.chat.costs.usage import tokens_by_day

STYLES = ("user", "ai", "tool", "custom", "summary")
"""The colors of the models with the most tokens, in their order; all others have one together."""

WIDTH, HEIGHT = 600, 120


class Rectangle(NamedTuple):
    """A rectangle of the plot. Its numbers are strings for SVG, independent of the locale."""

    x: str
    y: str
    width: str
    height: str
    style: str
    day: datetime
    model: str
    tokens: int


class Spending(NamedTuple):
    """The plot: its pieces, the models in it with their colors, its first and last day, and its highest bar."""

    pieces: list[Rectangle]
    keys: list[tuple[str, str]]
    begin: datetime
    end: datetime
    tokens: int
    highest: int
    ticks: list[int]
    """What the lines of the plot stand for, from the top to 0."""

    @property
    def middle(self) -> datetime:
        """The day in the middle of it."""
        return self.begin + (self.end - self.begin) / 2


def read_spending(
    calls: ModelCallQuerySet, models: Sequence[str | None], since: datetime, until: datetime
) -> Spending | None:
    """
    Return the plot of *calls* from *since*, the beginning of a day in UTC, until *until*; None without any tokens.

    The first of *models* have colors of their own.
    """
    names = dict(zip(models, STYLES, strict=False))
    bars: dict[int, dict[str | None, int]] = {}
    first = since.astimezone(UTC).date()
    for day, model, tokens in tokens_by_day(calls, since=since, until=until):
        bar, name = bars.setdefault(max((day - first).days, 0), {}), model if model in names else None
        bar[name] = bar.get(name, 0) + tokens
    highest = max((sum(bar.values()) for bar in bars.values()), default=0)
    if not highest:
        return None
    limit = _rounded(highest)
    count = (until.astimezone(UTC).date() - first).days + 1
    step = WIDTH / count
    pieces = []
    for place, bar in sorted(bars.items()):
        y = float(HEIGHT)
        for name in (*names, None):
            if tokens := bar.get(name, 0):
                height = HEIGHT * tokens / limit
                y -= height
                numbers = (f"{number:.2f}" for number in (place * step, y, step * 0.85, height))
                x, top, width, tall = numbers
                day = since + timedelta(days=place)
                pieces.append(Rectangle(x, top, width, tall, names.get(name, "rest"), day, _shown(name), tokens))
    keys = [(_shown(name), style) for name, style in names.items()]
    if any(None in bar for bar in bars.values()):
        keys.append((_shown(None), "rest"))
    total = sum(sum(bar.values()) for bar in bars.values())
    return Spending(pieces, keys, since, until, total, highest, [limit, limit // 2, 0])


def _rounded(highest: int) -> int:
    """Return the first of 2, 4, 6, 10, 20, 40, 60, 100 and so on that is at least *highest*, for the top of an axis."""
    power: int = 10 ** (len(str(highest)) - 1)
    return next(step * power for step in (1, 2, 4, 6, 10) if step * power >= highest and step * power % 2 == 0)


def _shown(model: str | None) -> str:
    return _("Other models") if model is None else model or _("Unknown")
