"""The effect of a verb on a conversation, computed in plain Python by the oracle of the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.soak.records import LIMITS, Intent, label_of, summary_text, text_of
from chatmemory_django.messages import SystemMessage
from tests.oracle import Oracle, Window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chatmemory_django.messages import ChatMessage

WINDOWS = tuple(Window(*limits, evict_to=low) for *limits, low in LIMITS)
"""The windows on the conversations, as the oracle knows them."""

REARRANGING = {"rewind", "switch", "pop", "remove", "clear"}
"""Verbs that change existing rows, as all do that continue from an earlier message."""


class ImpossibleError(Exception):
    """The verb cannot have done this."""


def rearranges(intent: Intent) -> bool:
    """Return whether *intent* can change where existing rows are."""
    return intent.kind in REARRANGING or intent.to is not None


class Reference(Oracle):
    """A conversation as it must be. Verbs are applied to a copy, since another verb may explain the state."""

    def __init__(self) -> None:
        super().__init__()
        self.client_ids: frozenset[str] = frozenset()
        self.removed: frozenset[str] = frozenset()
        """The labels of removed messages."""
        self.begun: dict[str, int] = {}
        """The sequence of the first message of each turn that was stored early."""
        self.unknown = 0
        """How many messages the history has had that are not known here."""

    @property
    def total(self) -> int:
        """The number of messages that the history has had, without those that were removed."""
        return self.unknown + len(self.parents)

    def done(self, intent: Intent, sent: Sequence[ChatMessage], part: int, new: Sequence[ChatMessage]) -> Reference:
        """
        Return the result of the part of *intent* that sends the messages *sent*; *new* are the messages that it stored.

        Raises:
            ImpossibleError: It cannot be done in this state.
            MissingError: The message that it continues from is missing.

        """
        copy = self.copy()
        copy._do(intent, sent, part, new)
        if intent.kind in {"pop", "remove"}:
            gone = (self.messages[each] for each in self.messages.keys() - copy.messages.keys())
            copy.removed |= {label_of(text_of(message)) for message in gone}
        if not intent.keep_history:
            copy.delete({*self.memory(), *range(self.next, copy.next)} - set(copy.memory()))
        return copy

    def path_messages(self) -> list[ChatMessage]:
        """Return the messages from the first to the newest."""
        return [self.messages[each] for each in self.path()]

    def place(self) -> int:
        """Return the newest message of the path; 0 without one."""
        return [0, *self.path()][-1]

    def without_summary(self) -> list[ChatMessage]:
        """Return the memory without the summary, whose text a user may have written, too."""
        return [self.messages[each] for each in self.memory() if each != self.summary]

    def newest_in_memory(self) -> int | None:
        """The newest message in the memory, except for the summary."""
        return max((each for each in self.memory() if each != self.summary), default=None)

    def has_message(self, sequence: int) -> bool:
        """Return whether that message is in the history; 0 is its beginning."""
        return sequence == 0 or (sequence in self.parents and sequence in self.messages)

    def labelled(self, label: str) -> int | None:
        """Return the newest message with that label, of the history if it has one: a memory that was set can have
        copies.
        """
        found = [each for each, message in self.messages.items() if label_of(text_of(message)) == label]
        return max(found, key=lambda each: (each in self.parents, each), default=None)

    def _do(self, intent: Intent, sent: Sequence[ChatMessage], part: int, new: Sequence[ChatMessage]) -> None:
        window, to, head = WINDOWS[intent.window], intent.to or 0, self.head
        match intent.kind:
            case "add":
                self._add(intent, sent, window)
            case "turn":
                self._turn(intent, sent, part, window)
            case "set":
                self.set(window.fitting(sent))
            case "clear":
                self.clear()
            case "evict":
                self.evict(intent.count)
            case "rewind":
                self.rewind(to, window)
            case "switch":
                self.switch(to, window)
            case "pop":
                self.pop()
            case "remove":
                self.remove(to, with_results=intent.with_results)
            case "pin":
                if to not in self.path() or not self.can_pin(to, window):
                    raise ImpossibleError
                self.pin(to)
            case "unpin":
                self._check(to)
                self.unpin(to)
            case "summarize":
                self._summarize(intent, new, window)
        if intent.kind in {"rewind", "switch"} and self.head == head:
            raise ImpossibleError  # it changes nothing

    def _add(self, intent: Intent, sent: Sequence[ChatMessage], window: Window) -> None:
        ids = intent.client_ids or [""] * len(sent)
        unknown = [(name, message) for name, message in zip(ids, sent, strict=True) if name not in self.client_ids]
        before = self.next
        # A known message was stored together with its write, which also had the position to continue from.
        after = intent.to if len(unknown) == len(sent) else None
        sequences = self.add([message for _, message in unknown], window, after=after)
        stored = {name for (name, _), each in zip(unknown, sequences, strict=True) if name and each >= before}
        self.client_ids |= stored

    def _turn(self, intent: Intent, sent: Sequence[ChatMessage], part: int, window: Window) -> None:
        if len(intent.parts) == 1:
            self.add(sent, window, after=intent.to)
        elif part == 0:
            self.begun = {**self.begun, intent.verb: self.next}
            if intent.to is None:
                self.add(sent, window, evicts=False)
            else:
                self.set_aside(sent, intent.to)
        elif (first := self.begun.get(intent.verb)) is None:
            raise ImpossibleError
        elif intent.to is None:
            self.end_turn([first], sent, window)
        else:
            self.add(sent, window, after=intent.to, completes=[first])

    def _summarize(self, intent: Intent, new: Sequence[ChatMessage], window: Window) -> None:
        """Replace the summary by the one *new* message, if that covers what has to be summarized now."""
        [summary] = new if len(new) == 1 else [None]
        previous = None if self.summary is None else text_of(self.messages[self.summary])
        pending = self.pending()
        labels = [label_of(text_of(self.messages[each])) for each in pending]
        count = _count_of(text_of(summary)) if isinstance(summary, SystemMessage) else 0
        if not isinstance(summary, SystemMessage) or not 0 < count <= len(pending):
            raise ImpossibleError
        if summary.text != summary_text(intent.verb, previous, labels[:count]):
            raise ImpossibleError
        if not self.put_summary(summary, pending[:count], window):
            raise ImpossibleError


def _count_of(text: str) -> int:
    """Return the number of messages that a summary covers, as in ``summary_text``."""
    count = text.partition(" ")[2].partition("-")[0]
    return int(count) if count.isdecimal() else 0
