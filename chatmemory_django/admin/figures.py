"""Data of the two charts of a conversation: a gauge of its memory and a plot of its growth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext

from chatmemory_django.admin.bubbles import KINDS, SUMMARY, style_of
from chatmemory_django.core.windows import Window
from chatmemory_django.models import Conversation
from chatmemory_django.models.windows import Bounds, memory_parts

GAUGE_MESSAGES = 300
"""Maximum number of messages that the gauge draws one by one; earlier ones are one segment."""

GAUGE_WIDTH = 1000

PLOT_MESSAGES = 500
"""Maximum number of points of a plot. In longer conversations, evenly spaced messages are read."""

PLOT_WIDTH, PLOT_HEIGHT = 600, 120


class Segment(NamedTuple):
    """A message in the gauge. *x* and *width* are strings for SVG, independent of the locale."""

    x: str
    width: str
    style: str
    sequence: int | None
    """None for the segment of all earlier messages."""
    kind: str | Promise
    cost: int


class Share(NamedTuple):
    """The total size of the messages of a kind."""

    kind: str | Promise
    style: str
    messages: int | None
    cost: int


@dataclass(kw_only=True)
class Gauge:
    """A memory compared with its limit."""

    counts_tokens: bool
    total: int
    limit: int | None
    """None if it is unknown or counted differently."""
    is_uncounted: bool
    """The limit is in tokens, but the messages were not counted, or by another estimator."""
    segments: list[Segment]
    shares: list[Share]
    limit_x: str
    """Position of the limit in the drawing if the memory exceeds it, for example after the limit was lowered."""
    evict_to: int | None = None
    """What the memory is evicted to when it exceeds the limit, if that is less."""
    evict_to_x: str = ""
    """Position of that mark in the drawing."""

    @property
    def percent(self) -> int | None:
        """How much of the limit is used, in percent."""
        return None if self.limit is None else round(100 * self.total / self.limit)


@dataclass(kw_only=True)
class Plot:
    """The number of messages and tokens over time, as the points of two lines."""

    begin: datetime
    end: datetime
    messages: int
    """How many messages the history has had, on all branches: the figure that the page and the list show."""
    message_points: str
    tokens: int
    token_points: str
    """Empty if no tokens were counted."""
    step: int
    """Distance between the messages that were read: tokens are exact if it is 1, and otherwise estimated."""


def read_gauge(conversation: Conversation, window: Window | None) -> Gauge:
    """Return the gauge of *conversation*; *window* is the one in the settings, if they can be read."""
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
    evict_to = window.evict_to if window is not None and limit is not None else None
    return Gauge(
        counts_tokens=counts_tokens,
        total=total,
        limit=limit,
        is_uncounted=window is not None and not is_comparable,
        segments=_segments(pieces, total, GAUGE_WIDTH / scale),
        shares=_shares(pieces, total),
        limit_x=_number(limit * GAUGE_WIDTH / scale) if limit is not None and limit < total else "",
        evict_to=evict_to,
        evict_to_x="" if evict_to is None else _number(evict_to * GAUGE_WIDTH / scale),
    )


def read_plot(conversation: Conversation) -> Plot | None:
    """Return the plot of *conversation*; None if its messages span no time."""
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
    messages = max(conversation.total_messages, len(found))
    # Not the sequences: summaries have some as well, and messages that were removed or not kept had some.
    counts = [round(messages * number / len(found)) for number in range(1, len(found) + 1)]
    return Plot(
        begin=begin,
        end=end,
        messages=messages,
        message_points=_points(xs, counts, messages),
        tokens=total,
        token_points=_points(xs, sums, total) if total else "",
        step=step,
    )


def _memory_rows(conversation: Conversation) -> list[tuple[int, str, int | None]]:
    """Return sequence, kind and tokens of the memory: what stays in front of it, and the newest of the rest."""
    rows = conversation.messages.values_list("sequence", "type", "token_count")
    pinned, summary, pins, window = memory_parts(Bounds.of(conversation))
    front = list(rows.filter(pinned)) if conversation.pinned_sequence else []
    if conversation.summary_sequence:
        front += [(sequence, SUMMARY, tokens) for sequence, _, tokens in rows.filter(summary)]
    if conversation.pinned_count:
        front += rows.filter(pins).order_by("sequence")
    newest = rows.filter(window).exclude(pinned).order_by("-sequence")  # the pinned message may also be in the window
    return [*front, *reversed(newest[:GAUGE_MESSAGES])]


def _segments(pieces: Sequence[tuple[int, str, int]], total: int, scale: float) -> list[Segment]:
    rest = _rest(pieces, total)
    drawn: list[tuple[int | None, str, int]] = [(None, "", rest)] if rest else []
    drawn += pieces
    segments, x = [], 0.0
    for sequence, kind, cost in drawn:
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
    """Return the total size of the messages without a segment of their own."""
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
