"""The two figures of a conversation, as numbers that a template draws: how full its memory is, and how it grew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext

from chatmemory_django.admin.bubbles import KINDS, SUMMARY, style_of
from chatmemory_django.models import Conversation, memory_parts
from chatmemory_django.windows import Window

GAUGE_MESSAGES = 300
"""How many messages the gauge tells apart; what is before them is one piece."""

GAUGE_WIDTH = 1000

PLOT_MESSAGES = 500
"""From how many messages a plot is drawn. Of a longer conversation, as many are read at equal distances."""

PLOT_WIDTH, PLOT_HEIGHT = 600, 120


class Segment(NamedTuple):
    """A message in the gauge. *x* and *width* are numbers for SVG, which knows no locale."""

    x: str
    width: str
    style: str
    sequence: int | None
    """None for all those that are too many to be told apart."""
    kind: str | Promise
    cost: int


class Share(NamedTuple):
    """What the messages of a kind take together."""

    kind: str | Promise
    style: str
    messages: int | None
    cost: int


@dataclass(kw_only=True)
class Gauge:
    """A memory against its limit."""

    counts_tokens: bool
    total: int
    limit: int | None
    """None where it is not known, or counted otherwise."""
    is_uncounted: bool
    """The settings ask for tokens, but these were not counted, or not as they ask."""
    segments: list[Segment]
    shares: list[Share]
    limit_x: str
    """Where the limit stands in the drawing, if the memory is larger: the limit may have been lowered."""

    @property
    def percent(self) -> int | None:
        """How much of the limit is taken."""
        return None if self.limit is None else round(100 * self.total / self.limit)


@dataclass(kw_only=True)
class Plot:
    """How many messages, and how many tokens, there were by what time: the points of two lines."""

    begin: datetime
    end: datetime
    messages: int
    message_points: str
    tokens: int
    token_points: str
    """Empty where nothing was counted."""
    step: int
    """Every how many messages one was read: the tokens are exact if it is 1, else an estimate."""


def read_gauge(conversation: Conversation, window: Window | None) -> Gauge:
    """The gauge of *conversation*, whose *window* is the one of the settings, if they tell."""
    is_empty = conversation.memory_messages == 0
    wants_tokens = window is None or window.estimator is not None
    is_as_wanted = window is not None and conversation.counted_by == window.counter != ""
    counts_tokens = wants_tokens and (is_empty or conversation.counted_by != "")
    total = conversation.memory_tokens if counts_tokens else conversation.memory_messages
    is_comparable = is_empty or not wants_tokens or is_as_wanted
    limit = window.limit if window is not None and is_comparable else None
    rows = _memory_rows(conversation)
    pieces = [(sequence, kind, (tokens or 0) if counts_tokens else 1) for sequence, kind, tokens in rows]
    scale = max(total, limit or 0, 1)
    return Gauge(
        counts_tokens=counts_tokens,
        total=total,
        limit=limit,
        is_uncounted=window is not None and not is_comparable,
        segments=_segments(pieces, total, GAUGE_WIDTH / scale),
        shares=_shares(pieces, total),
        limit_x=_number(limit * GAUGE_WIDTH / scale) if limit is not None and limit < total else "",
    )


def read_plot(conversation: Conversation) -> Plot | None:
    """The plot of *conversation*; None while there is no time between its messages."""
    last = conversation.next_sequence - 1
    step = -(-last // PLOT_MESSAGES) or 1
    history = conversation.history(all_branches=True)
    rows = history.order_by("sequence").values_list("sequence", "created_at", "token_count")
    if step > 1:
        rows = rows.filter(sequence__in=[*range(1, last, step), last])
    found = list(rows)
    if len(found) < 2 or found[0][1] >= (end := max(created_at for _, created_at, _ in found)):
        return None
    begin = found[0][1]
    seconds = (end - begin).total_seconds()
    xs = [PLOT_WIDTH * max(0.0, (created_at - begin).total_seconds()) / seconds for _, created_at, _ in found]
    sums, total = [], 0
    for _, _, tokens in found:
        total += (tokens or 0) * step
        sums.append(total)
    return Plot(
        begin=begin,
        end=end,
        messages=last,
        message_points=_points(xs, [sequence for sequence, _, _ in found], last),
        tokens=total,
        token_points=_points(xs, sums, total) if total else "",
        step=step,
    )


def _memory_rows(conversation: Conversation) -> list[tuple[int, str, int | None]]:
    """The memory as sequence, kind and tokens, in order: what is pinned, the summary, and the newest of the rest."""
    rows = conversation.messages.values_list("sequence", "type", "token_count")
    places = conversation.window_start, conversation.pinned_sequence, conversation.summary_sequence
    pinned, summary, window = memory_parts(*places)
    front = list(rows.filter(pinned)) if conversation.pinned_sequence else []
    if conversation.summary_sequence:
        front += [(sequence, SUMMARY, tokens) for sequence, _, tokens in rows.filter(summary)]
    newest = rows.filter(window).exclude(pinned).order_by("-sequence")  # what is pinned may be in the window, too
    return [*front, *reversed(newest[:GAUGE_MESSAGES])]


def _segments(pieces: Sequence[tuple[int, str, int]], total: int, scale: float) -> list[Segment]:
    rest = _rest(pieces, total)
    placed: list[tuple[int | None, str, int]] = [(None, "", rest)] if rest else []
    placed += pieces
    segments, x = [], 0.0
    for sequence, kind, cost in placed:
        segments.append(Segment(_number(x), _number(cost * scale), _style(kind), sequence, _words(kind), cost))
        x += cost * scale
    return segments


def _shares(pieces: Sequence[tuple[int, str, int]], total: int) -> list[Share]:
    costs: dict[str, list[int]] = {}
    for _, kind, cost in pieces:
        costs.setdefault(kind, []).append(cost)
    shares = [Share(_words(each), _style(each), len(costs[each]), sum(costs[each])) for each in KINDS if each in costs]
    rest = _rest(pieces, total)
    return [*shares, Share(_words(""), _style(""), None, rest)] if rest else shares


def _rest(pieces: Sequence[tuple[int, str, int]], total: int) -> int:
    """What the messages take that are not told apart."""
    return max(0, total - sum(cost for _, _, cost in pieces))


def _words(kind: str) -> str | Promise:
    return KINDS[kind] if kind else gettext("Earlier messages")


def _style(kind: str) -> str:
    return style_of(kind) if kind else "rest"


def _points(xs: Sequence[float], values: Sequence[int], highest: int) -> str:
    points = zip(xs, values, strict=True)
    return " ".join(f"{_number(x)},{_number(PLOT_HEIGHT * (1 - value / highest))}" for x, value in points)


def _number(value: float) -> str:
    return f"{value:.2f}"
