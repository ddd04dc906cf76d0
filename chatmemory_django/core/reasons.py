"""Which messages of a memory are sent to the LLM, and why: pure functions of the memory and of how it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from chatmemory_django.core.clearing import cleared, is_marker
from chatmemory_django.core.refills import brought_back, is_pinned_before, page_size
from chatmemory_django.core.windows import Entry, Evicted, Window, to_entry
from chatmemory_django.messages import AiMessage, ChatMessage, MessageType


class Reason(StrEnum):
    """Why a message is sent to the LLM, or is not."""

    IN_WINDOW = "in_window"
    PINNED = "pinned"
    """It is the system message, which is never evicted, or it was pinned."""
    SUMMARY = "summary"
    """It is the summary of what has left the memory."""
    REFILLED = "refilled"
    """It had left the memory, and returned when the conversation was rewound or, not stored yet, as the limit grew."""
    DOES_NOT_FIT = "does_not_fit"
    """It is in the memory, but the current window is too small for it."""
    CLEARED = "cleared"
    """It is an old result of a tool: a marker is sent in its place."""
    BEFORE_FIRST_USER = "before_first_user"
    """The memory is only read from the first user message on."""
    UNPAIRED_TOOL = "unpaired_tool"
    """It is a tool call without a result, or a result without a call."""
    EVICTED = "evicted"
    """Later messages displaced it, or the memory was cleared."""
    SUMMARIZED = "summarized"
    """Later messages displaced it, and the summary covers it."""
    SUPERSEDED = "superseded"
    """
    Another system message replaced it or is equal to it, another memory was set, or the model's server did not accept
    it.
    """
    OFF_PATH = "off_path"
    """It is on another branch of the conversation."""


class Explained(NamedTuple):
    """A message, and whether and why it is sent."""

    sequence: int
    message: ChatMessage
    reason: Reason
    sent: ChatMessage | None
    """What is sent to the LLM: None if nothing is, and not always all of its tool calls, or a marker in its place."""
    tokens: int | None
    """As counted by the window, or when the message was stored; None if it was not counted."""
    changes: Sequence[str] = ()
    """How an assistant makes it fit for its model's vendor, see ``Assistant.explain``."""

    @property
    def is_sent(self) -> bool:
        """Whether the message, or part of it, is sent to the LLM."""
        return self.sent is not None


class Reader(Protocol):
    """How a memory is read; see ``ChatMemory``."""

    @property
    def start_on_user(self) -> bool:
        """Whether the messages that are read begin at a user message."""

    def window(self) -> Window:
        """Return the current window."""

    def readable(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        """Return *messages* as the LLM receives them."""


class StoredMessage(Protocol):
    """A message of a conversation as a store has it; ``models.Message`` documents the attributes."""

    @property
    def sequence(self) -> int:
        """Its position in the conversation."""

    @property
    def chat_message(self) -> ChatMessage:
        """The message as a value."""

    @property
    def token_count(self) -> int | None:
        """The number of its tokens, if they were counted ..."""

    @property
    def counted_by(self) -> str:
        """... and the name of what counted them."""

    @property
    def parent_sequence(self) -> int | None:
        """Which message it follows, None for the one before it; for a summary, the last message that it covers."""

    @property
    def on_path(self) -> bool:
        """Whether it is on the current path."""

    @property
    def superseded(self) -> bool:
        """Whether it left the memory while inside the window."""

    @property
    def is_cleared(self) -> bool:
        """Whether the memory has a marker in its place."""

    @property
    def is_pinned(self) -> bool:
        """Whether it stays in the memory when it leaves the window."""


class Uncounted(NamedTuple):
    """A message of a store that has no rows, see ``StoredMessage``."""

    sequence: int
    chat_message: ChatMessage
    parent_sequence: int | None = None
    on_path: bool = True
    token_count: int | None = None
    counted_by: str = ""
    superseded: bool = False
    is_cleared: bool = False
    is_pinned: bool = False


StoredT = TypeVar("StoredT", bound=StoredMessage)


class Measured(NamedTuple, Generic[StoredT]):
    """A message with its row and its size."""

    row: StoredT
    message: ChatMessage
    tokens: int | None
    """See ``Explained.tokens``."""
    remembered: ChatMessage
    """What the memory has of it: a marker, if it is cleared."""

    @classmethod
    def of(cls, row: StoredT, window: Window) -> Self:
        """Return the message of *row*; it is only counted if *window* needs it and has not counted it yet."""
        message = row.chat_message
        remembered = cleared(message) if row.is_cleared else message
        is_counted = window.estimator is None or (window.counter and row.counted_by == window.counter)
        return cls(row, message, row.token_count if is_counted else window.cost(remembered), remembered)

    def cost(self, window: Window) -> int:
        """Return how much of the limit it takes."""
        return 1 if window.estimator is None else self.tokens or 0

    def entry(self, window: Window) -> Entry:
        """Return it as eviction sees it."""
        return to_entry(self.row.sequence, self.remembered, self.cost(window) if window.is_additive else None)

    def explained(self, reason: Reason, sent: ChatMessage | None = None) -> Explained:
        """Return it with the *reason* why it is sent, or is not."""
        return Explained(self.row.sequence, self.message, reason, sent, self.tokens)


class Remembered(Generic[StoredT]):
    """
    A memory as *reader* reads it: what the LLM is sent of it and, on request, why.

    That is what ``ChatMemory.messages`` returns: the *rows* of the memory, in its order, trimmed by the window, then
    ``readable``. *pinned*, *summary*, *window_start* and *forgotten_through* are the columns of the conversation;
    *pause* is how long nothing was written to it.

    If the window has outgrown *evicted*, *before* is called with the last message that the summary covers and a number
    of messages to read at a time; it returns the messages that may come back, from the newest to the oldest.
    """

    def __init__(
        self,
        rows: Iterable[StoredT],
        reader: Reader,
        *,
        pinned: int | None = None,
        summary: int | None = None,
        window_start: int = 1,
        forgotten_through: int = 0,
        evicted: Evicted | None = None,
        before: Callable[[int, int], Iterable[StoredT]] | None = None,
        pause: timedelta = timedelta(0),
    ) -> None:
        self._window = window = reader.window().after(pause)
        self._pinned, self._summary, self._forgotten_through = pinned, summary, forgotten_through
        self._window_start = window_start
        self._memory = [Measured.of(row, window) for row in rows]
        self._returned: set[int] = set()
        if before is not None and evicted is not None and window.outgrows(evicted):
            self._fill_again(before)
        messages = [each.remembered for each in self._memory]
        costs = [each.cost(window) for each in self._memory] if window.is_additive else None
        digest = next((index for index, each in enumerate(self._memory) if each.row.sequence == summary), None)
        pins = {
            index: each.row.sequence < self._window_start
            for index, each in enumerate(self._memory)
            if each.row.is_pinned
        }
        trimmed = window.trimmed(messages, costs, summary=digest, pins=pins)
        self._first = None if trimmed.pinned is None else trimmed.pinned.key
        # What leads what fits comes before the summary, though other messages may precede it in the memory.
        leading = [] if trimmed.pinned is None or trimmed.summary is None else [trimmed.pinned.key]
        self._order = [*leading, *(index for index in range(len(messages)) if index not in leading)]
        kept = [entry.key for entry in trimmed.entries()]
        self._sent = dict(zip(kept, _sent(trimmed.messages(), reader), strict=True))
        """What is sent of each message that fits the window, by index; None if nothing is."""
        users = (index for index in kept if messages[index].type == MessageType.USER)
        self._start = next(users, len(messages)) if reader.start_on_user else 0

    def _fill_again(self, before: Callable[[int, int], Iterable[StoredT]]) -> None:
        """Put the messages that come back into the memory, see ``core.refills``."""
        window, memory = self._window, self._memory
        size = page_size(len(memory), sum(each.tokens or 0 for each in memory), window)
        found: dict[int, Measured[StoredT]] = {}

        def backwards() -> Iterator[Entry]:
            for row in before(self._covered, size):
                found[row.sequence] = each = Measured.of(row, window)
                yield each.entry(window)

        back = [entry.key for entry in brought_back(backwards(), [each.entry(window) for each in memory], window)]
        self._returned.update(back)
        if self._pinned is not None and back and not is_pinned_before(self._pinned, back[0], window):
            self._pinned = None
        front = (self._pinned, self._summary)
        rest = [each for each in memory if each.row.sequence not in front] + [found[key] for key in back]
        leading = [each for each in memory if each.row.sequence in front]
        self._memory = leading + sorted(rest, key=lambda each: each.row.sequence)
        self._window_start = min([self._window_start, *back])

    @property
    def _covered(self) -> int:
        """The last message that the summary covers; 0 without one."""
        summary = next((each.row for each in self._memory if each.row.sequence == self._summary), None)
        return 0 if summary is None else summary.parent_sequence or 0

    def sent(self) -> list[Measured[StoredT]]:
        """Return the messages that the LLM is sent, not always with all of their tool calls, and their rows."""
        sent = [(self._memory[index], message) for index, message in self._sent.items() if message is not None]
        return [each if message is each.message else each._replace(message=message) for each, message in sent]

    def explain(self, recent: Iterable[StoredT] = ()) -> list[Explained]:
        """Explain each of *recent*, the newest messages of all branches, and of the memory, which comes last."""
        newest = [Measured.of(row, self._window) for row in recent]
        remembered = {each.row.sequence for each in self._memory}
        covered = self._covered
        outside = {each.row.sequence for each in self._memory if each.row.is_pinned}
        front = {self._pinned, self._summary} | {each for each in outside if each < self._window_start}
        came_back = _came_back(self._memory, newest, self._window, front) | self._returned
        out = [
            each.explained(_reason_out(each, self._forgotten_through, covered))
            for each in newest
            if each.row.sequence not in remembered
        ]
        return out + [
            self._memory[index].explained(self._reason(index, came_back), self._sent.get(index))
            for index in self._order
        ]

    def _reason(self, index: int, came_back: set[int]) -> Reason:
        """Return why the message at *index* of the memory is sent, or is not."""
        sequence = self._memory[index].row.sequence
        if index not in self._sent:
            return Reason.DOES_NOT_FIT
        if self._sent[index] is None:
            return Reason.BEFORE_FIRST_USER if index < self._start else Reason.UNPAIRED_TOOL
        if index == self._first or sequence == self._pinned or self._memory[index].row.is_pinned:
            return Reason.PINNED
        if sequence == self._summary:
            return Reason.SUMMARY
        if is_marker(self._sent[index]):
            return Reason.CLEARED
        return Reason.REFILLED if sequence in came_back else Reason.IN_WINDOW


def _reason_out(each: Measured[StoredT], forgotten_through: int, covered: int) -> Reason:
    """Return why a message is not in the memory, whose summary covers everything up to *covered*."""
    if not each.row.on_path:
        return Reason.OFF_PATH
    is_known = each.row.sequence > forgotten_through
    if each.row.superseded or (
        is_known and each.message.type == MessageType.SYSTEM
    ):  # these are replaced, never evicted
        return Reason.SUPERSEDED
    return Reason.SUMMARIZED if is_known and each.row.sequence <= covered else Reason.EVICTED


def _came_back(
    memory: Sequence[Measured[StoredT]], recent: Sequence[Measured[StoredT]], window: Window, front: set[int | None]
) -> set[int]:
    """
    Return the sequences of messages in *memory* that had left it before the conversation was rewound.

    No store records this. It follows from the messages on other branches: when all messages of a branch came after it,
    a message no longer fit the window. Messages that are not in *recent* are not considered, and the window is assumed
    to be unchanged.
    """
    if all(each.row.on_path for each in recent):
        return set()
    room = window.limit - window.overhead - sum(each.cost(window) for each in memory if each.row.sequence in front)
    ends: dict[int, tuple[int, int]] = {}
    longest: dict[int, int] = {}
    before = 0
    for each in recent:
        row = each.row
        parent, before = before if row.parent_sequence is None else row.parent_sequence, row.sequence
        if not row.on_path:
            fork, behind = ends.get(parent, (parent, 0))
            ends[row.sequence] = fork, behind + each.cost(window)
            longest[fork] = max(longest.get(fork, 0), ends[row.sequence][1])
    came_back: set[int] = set()
    for fork, behind in longest.items():
        left = behind
        for each in reversed(memory):
            if each.row.sequence <= fork and each.row.sequence not in front:
                left += each.cost(window)
                if left > room:
                    came_back.add(each.row.sequence)
    return came_back


def _sent(kept: list[ChatMessage], reader: Reader) -> list[ChatMessage | None]:
    """Return what is sent of each message in *kept*; None if nothing is."""
    readable = reader.readable(kept)
    sent: list[ChatMessage | None] = []
    following = 0
    for message in kept:
        is_sent = following < len(readable) and _is_of(readable[following], message)
        sent.append(readable[following] if is_sent else None)
        following += is_sent
    return sent


def _is_of(readable: ChatMessage, message: ChatMessage) -> bool:
    """Return whether *readable* is *message*, or what a repair has left of it."""
    if readable is message:
        return True
    if not isinstance(readable, AiMessage) or not isinstance(message, AiMessage):
        return False
    calls = {id(request) for request in message.tool_execution_requests}
    left = {id(request) for request in readable.tool_execution_requests}
    return readable.text is message.text and (left < calls) and (left != set() or readable.text is not None)
