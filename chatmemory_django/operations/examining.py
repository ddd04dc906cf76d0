"""The invariants of a conversation and its rows, and where they are violated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from django.db.models import BooleanField, ExpressionWrapper

from chatmemory_django.core.branches import Claims, is_cut
from chatmemory_django.core.windows import Window
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation
from chatmemory_django.models.columns import to_message
from chatmemory_django.models.windows import Bounds, in_memory
from chatmemory_django.operations.one_by_one import messages_of, pages


class Invariant(StrEnum):
    """The invariants. Each is named after the column, or the thing, that it concerns."""

    SEQUENCE = "sequence"
    """Every row's sequence is 1 or more, and below ``next_sequence``."""
    WINDOW_START = "window_start"
    """It is between 1 and ``next_sequence``."""
    PINNED = "pinned_sequence"
    """It is the sequence of a system message that is not superseded."""
    GAP = "gap"
    """Every message in the memory has a row. Other rows may be missing: pruned, or not kept."""
    MEMORY_MESSAGES = "memory_messages"
    """It is the number of messages in the memory."""
    COUNTED_BY = "counted_by"
    """If it names an estimator, that estimator has counted every message in the memory."""
    MEMORY_TOKENS = "memory_tokens"
    """It is the number of tokens that ``counted_by`` has counted in the memory; 0 without one."""
    TOTAL_MESSAGES = "total_messages"
    """It is the number of messages that are in the history, or were before they were deleted."""
    CONTENT = "content"
    """Every row holds a message of the type in its column."""
    PARENT = "parent_sequence"
    """
    It is below the sequence of its row or, for a conversation, below ``next_sequence``. Outside of the history, only a
    summary has one: the last message that it covers.
    """
    PATH = "on_path"
    """It matches the parents: true for the rows on the way to the message from which the conversation continues."""
    OFF_PATH = "off_path"
    """Messages on another branch are superseded, so that they are not in the window."""
    SUMMARY = "summary_sequence"
    """It is the sequence of a summary of messages on the path."""
    FORGOTTEN = "forgotten_through"
    """It is below ``next_sequence``; a message's ``cleared_before`` is above its sequence, and comes with a parent."""
    KEPT_OUT = "kept_out_through"
    """It is below ``next_sequence``."""
    PINNED_COUNT = "pinned_count"
    """It is the number of pinned messages, on all branches; each is in the history, and no system message."""
    WINDOW = "window"
    """The memory fits its window. It may not after the window or a pin was changed, until the next ``add``."""


class Examination:
    """
    The state of *conversation*: which rules are *broken*, and how, without any message text.

    *counters* are those of its columns that differ from its rows, with the correct values.
    """

    def __init__(self, conversation: Conversation, window_of: Callable[[str], Window | None]) -> None:
        self.conversation = conversation
        self.counters: dict[str, Any] = {}
        self._rows = _Rows(conversation)
        self.broken = [
            *self._broken_places(),
            *self._broken_memory(),
            *self._broken_branches(),
            *self._broken_counters(),
            *self._broken_window(window_of(conversation.memory_id)),
        ]

    def _broken_places(self) -> Iterator[tuple[Invariant, str]]:
        conversation, rows = self.conversation, self._rows
        end = conversation.next_sequence
        if rows.outside:
            yield Invariant.SEQUENCE, f"{rows.outside} rows have a sequence outside of the range from 1 to {end - 1}."
        if not 1 <= conversation.window_start <= end:
            yield Invariant.WINDOW_START, f"It is {conversation.window_start}, but next_sequence is {end}."
        if conversation.pinned_sequence is not None and rows.pinned != PINNED:
            yield Invariant.PINNED, f"It is {conversation.pinned_sequence}, and that row {rows.pinned}."
        if rows.unreadable:
            yield (
                Invariant.CONTENT,
                f"{rows.unreadable} rows do not hold a message; the first is {rows.first_unreadable}.",
            )

    def _broken_memory(self) -> Iterator[tuple[Invariant, str]]:
        conversation, rows = self.conversation, self._rows
        missing = conversation.memory_messages - rows.in_memory
        if missing > 0 and rows.in_window < conversation.next_sequence - conversation.window_start:
            yield Invariant.GAP, f"{missing} of the {conversation.memory_messages} messages in the memory have no row."

    def _broken_branches(self) -> Iterator[tuple[Invariant, str]]:
        conversation, rows = self.conversation, self._rows
        end, head, claims = conversation.next_sequence, conversation.parent_sequence, rows.claims
        if head is not None and head >= end:
            yield Invariant.PARENT, f"It is {head}, but next_sequence is {end}."
        if rows.with_wrong_parent:
            yield (
                Invariant.PARENT,
                f"{rows.with_wrong_parent} rows do not name an earlier message, or are not a summary.",
            )
        if wrong := claims.wrong(head):
            first, last, on_path = wrong[0]
            yield (
                Invariant.PATH,
                f"It is wrongly {on_path} from {first} to {last}, the first of {len(wrong)} wrong stretches.",
            )
        if rows.with_wrong_path:
            yield Invariant.PATH, f"{rows.with_wrong_path} rows are on it but not part of the history."
        if rows.visible:
            yield Invariant.OFF_PATH, f"{rows.visible} rows on other branches are in the memory."
        summary, covered = conversation.summary_sequence, rows.covered
        if summary is not None and (covered is None or not claims.leads_through(covered)):
            yield Invariant.SUMMARY, f"It is {summary}, which is not a summary of messages on the path."
        if conversation.forgotten_through >= end:
            yield Invariant.FORGOTTEN, f"It is {conversation.forgotten_through}, but next_sequence is {end}."
        if conversation.kept_out_through >= end:
            yield Invariant.KEPT_OUT, f"It is {conversation.kept_out_through}, but next_sequence is {end}."
        if rows.with_wrong_cut:
            yield Invariant.FORGOTTEN, f"{rows.with_wrong_cut} rows have an impossible cleared_before."

    def _broken_counters(self) -> Iterator[tuple[Invariant, str]]:
        conversation, rows = self.conversation, self._rows
        if conversation.memory_messages != rows.in_memory:
            self.counters["memory_messages"] = rows.in_memory
            yield (
                Invariant.MEMORY_MESSAGES,
                f"It is {conversation.memory_messages}, but {rows.in_memory} rows are in the memory.",
            )
        counted_by = conversation.counted_by
        others = rows.counters - {counted_by}
        if counted_by and others:
            self.counters |= rows.token_counters()
            yield Invariant.COUNTED_BY, f"It is {counted_by!r}, but rows were counted by {sorted(others)}."
        elif conversation.memory_tokens != (tokens := rows.tokens if counted_by else 0):
            self.counters["memory_tokens"] = tokens
            yield Invariant.MEMORY_TOKENS, f"It is {conversation.memory_tokens}, but must be {tokens}."
        if conversation.pinned_count != rows.pins:
            self.counters["pinned_count"] = rows.pins
            yield Invariant.PINNED_COUNT, f"It is {conversation.pinned_count}, but {rows.pins} rows are pinned."
        if rows.with_wrong_pin:
            yield (
                Invariant.PINNED_COUNT,
                f"{rows.with_wrong_pin} rows are pinned that are a system message or not part of the history.",
            )
        total, most = conversation.total_messages, conversation.next_sequence - 1 - rows.not_in_history
        if not rows.in_history <= total <= most:
            if rows.in_history == most:  # no row is missing, so the number is known
                self.counters["total_messages"] = most
            yield Invariant.TOTAL_MESSAGES, f"It is {total}, but must be from {rows.in_history} to {most}."

    def _broken_window(self, window: Window | None) -> Iterator[tuple[Invariant, str]]:
        if window is None:
            return
        rows = self._rows
        size = rows.in_memory
        if window.estimator is not None:
            if not window.counter or rows.counters != {window.counter}:
                return
            size = window.overhead + rows.tokens
        # A system message on its own stays, however large.
        if size > window.limit and not (rows.in_memory == 1 and rows.systems) and not rows.pins:
            yield Invariant.WINDOW, f"The memory takes {size} of {window.limit}."


PINNED = "is a system message"


class _Row(NamedTuple):
    """What is examined of a message: its columns, and whether it is in the memory."""

    sequence: int
    type: str
    text: str
    payload: str | None
    superseded: bool
    in_history: bool
    token_count: int | None
    counted_by: str
    on_path: bool
    parent_sequence: int | None
    cleared_before: int | None
    is_pinned: bool
    is_in_memory: bool


class _Rows:
    """Statistics of the rows of *conversation*, collected in one pass."""

    def __init__(self, conversation: Conversation) -> None:
        self.outside = 0
        self.in_window = 0
        self.in_history = 0
        self.not_in_history = 0
        self.in_memory = 0
        self.tokens = 0
        self.counters: set[str] = set()
        """The names of what counted the messages in the memory; includes "" if one was not counted."""
        self.systems = 0
        """The number of system messages in the memory: ``set`` may put any number there."""
        self.pinned = "is missing"
        self.claims = Claims()
        self.with_wrong_parent = 0
        self.with_wrong_path = 0
        self.with_wrong_cut = 0
        self.visible = 0
        """The number of messages of other branches that are in the memory."""
        self.covered: int | None = None
        """The last message that the summary covers, if it is one."""
        self.pins = 0
        """The number of pinned messages, on all branches."""
        self.with_wrong_pin = 0
        self.unreadable = 0
        self.first_unreadable: int | None = None
        is_in_memory = ExpressionWrapper(
            in_memory(Bounds.of(conversation)._replace(pinned_count=1)),  # whatever it is
            output_field=BooleanField(),
        )
        for page in pages(messages_of(conversation), *_Row._fields[:-1], is_in_memory):
            for row in page:
                self._add(conversation, _Row._make(row))

    def _add(self, conversation: Conversation, row: _Row) -> None:
        is_system = row.type == MessageType.SYSTEM
        is_summary = is_system and row.superseded and not row.in_history and row.parent_sequence is not None
        if row.parent_sequence is not None:
            self.with_wrong_parent += row.parent_sequence >= row.sequence or not (row.in_history or is_summary)
        if row.cleared_before is not None:
            is_right = is_cut(row.sequence, row.cleared_before, conversation.next_sequence)
            self.with_wrong_cut += not (row.in_history and row.parent_sequence is not None and is_right)
        if row.in_history:
            if row.sequence > 0:  # 0 is not a message, but the parent of the first ones
                self.claims.add(row.sequence, row.parent_sequence, on_path=row.on_path)
            is_inside = row.is_pinned or row.sequence >= conversation.window_start
            self.visible += not row.on_path and not row.superseded and is_inside
        else:
            self.with_wrong_path += row.on_path
        if is_summary and row.sequence == conversation.summary_sequence:
            self.covered = row.parent_sequence
        self.outside += not 1 <= row.sequence < conversation.next_sequence
        self.in_window += row.sequence >= conversation.window_start
        self.pins += row.is_pinned
        self.with_wrong_pin += row.is_pinned and (is_system or not row.in_history)
        self.in_history += row.in_history
        self.not_in_history += not row.in_history
        if row.sequence == conversation.pinned_sequence:
            self.pinned = "is superseded" if row.superseded else PINNED if is_system else "is not a system message"
        if row.is_in_memory:
            self.in_memory += 1
            self.tokens += row.token_count or 0
            self.counters.add("" if row.token_count is None else row.counted_by)
            self.systems += is_system and not is_summary
        is_removed = row.superseded and not (row.in_history or row.text or row.payload or row.parent_sequence)
        if not (is_removed or _is_message(row.type, row.text, row.payload)):
            self.unreadable += 1
            self.first_unreadable = self.first_unreadable or row.sequence

    def token_counters(self) -> dict[str, Any]:
        """Return the correct values of the token counters."""
        if len(self.counters) != 1 or "" in self.counters:
            return {"counted_by": "", "memory_tokens": 0}
        return {"counted_by": min(self.counters), "memory_tokens": self.tokens}


def _is_message(type: str, text: str, payload: str | None) -> bool:
    try:
        return to_message(type, text, payload).type == type
    except (KeyError, ValueError):
        return False
