"""The effect of a verb on a conversation, computed in plain Python by the in-process store."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from benchmarks.soak.records import WINDOWS, Intent, label_of, summary_text, text_of
from chatmemory_django.core.pending import Pending
from chatmemory_django.messages import SystemMessage
from chatmemory_django.stores.in_process import _Conversation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chatmemory_django.core.windows import Window
    from chatmemory_django.messages import ChatMessage

REARRANGING = {"rewind", "switch", "pop", "remove"}
"""Verbs that change existing rows, as all do that continue from an earlier message."""


class ImpossibleError(Exception):
    """The verb cannot have done this."""


def rearranges(intent: Intent) -> bool:
    """Return whether *intent* can change where existing rows are."""
    return intent.kind in REARRANGING or intent.to is not None


@dataclass(slots=True)
class Reference(_Conversation):
    """A conversation as it must be. Verbs are applied to a copy, since another verb may explain the state."""

    total: int = 0
    """The number of messages that the history has had."""
    client_ids: frozenset[str] = field(default=frozenset())

    def done(self, intent: Intent, sent: Sequence[ChatMessage], part: int, new: Sequence[ChatMessage]) -> Reference:
        """
        Return the result of the part of *intent* that sends the messages *sent*; *new* are the messages that it stored.

        Raises:
            ImpossibleError: It cannot be done in this state.
            MessageNotFoundError: The message that it continues from is missing.

        """
        deep = rearranges(intent)
        rows = {key: replace(row) for key, row in self.rows.items()} if deep else dict(self.rows)
        copy = replace(self, rows=rows, window=list(self.window))
        copy._do(intent, sent, part, new)
        copy.total += sum(copy.rows[key].in_history for key in range(self.next_key, copy.next_key))
        if intent.kind in {"pop", "remove"}:
            copy.total -= len(self.history()) - len(copy.history())
        if not intent.keep_history:
            gone = {*self.memory(), *range(self.next_key, copy.next_key)} - set(copy.memory())
            copy.rows = {key: row for key, row in copy.rows.items() if key not in gone}
        return copy

    def path(self) -> list[ChatMessage]:
        """Return the messages from the first to the newest."""
        return [row.message for _, row in sorted(self.rows.items()) if row.on_path]

    def read(self, window: Window, after: int | None = None) -> list[ChatMessage]:
        """Return the memory as *window* shows it, as if it were rewound to *after*."""
        eviction = self.eviction(window) if after is None else self.moved(after, window).eviction
        eviction.trim()
        return eviction.messages()

    def without_summary(self) -> list[ChatMessage]:
        """Return the memory without the summary, whose text a user may have written, too."""
        return [self.rows[key].message for key in self.memory(without_summary=True)]

    def newest_in_memory(self) -> int | None:
        """The newest message in the memory, except for the summary."""
        return max(self.memory(without_summary=True), default=None)

    def has_message(self, key: int) -> bool:
        """Return whether the message *key* is in the history; 0 is its beginning."""
        return key == 0 or (key in self.rows and self.rows[key].in_history)

    def labelled(self, label: str) -> int | None:
        """Return the newest message with that label, of the history if it has one: a memory that was set can have
        copies.
        """
        found = [key for key, row in self.rows.items() if label_of(text_of(row.message)) == label]
        return max(found, key=lambda key: (self.rows[key].in_history, key), default=None)

    def forked(self, through: int | None, window: Window) -> tuple[list[ChatMessage], list[ChatMessage]]:
        """Return the memory and the path of a copy up to *through*."""
        if through is None or self.checked(through) == self.head():
            return self.messages(), self.path()
        copy = replace(self, rows={key: replace(row) for key, row in self.rows.items()}, window=list(self.window))
        copy.go_on(copy.moved(through, window))
        return copy.messages(), copy.path()

    def _do(self, intent: Intent, sent: Sequence[ChatMessage], part: int, new: Sequence[ChatMessage]) -> None:
        window, to = WINDOWS[intent.window], intent.to or 0
        match intent.kind:
            case "add":
                self._add(intent, sent, window)
            case "turn":
                self._turn(intent, sent, part, window)
            case "set":
                self.replace(window.trim(sent))
            case "clear":
                self.clear()
            case "rewind":
                self._go_on_from(to, window)
            case "switch":
                self._go_on_from(self.newest_from(to), window)
            case "pop":
                if (newest := self.newest_in_memory()) is None:
                    raise ImpossibleError
                self.remove([newest])
            case "remove":
                self.remove(self.found(to, with_counterparts=intent.with_results))
            case "summarize":
                self._summarize(intent, new, window)

    def _go_on_from(self, to: int, window: Window) -> None:
        if self.checked(to) == self.head():
            raise ImpossibleError  # it changes nothing
        self.go_on(self.moved(to, window))

    def _add(self, intent: Intent, sent: Sequence[ChatMessage], window: Window) -> None:
        ids = intent.client_ids or [""] * len(sent)
        unknown = [(name, message) for name, message in zip(ids, sent, strict=True) if name not in self.client_ids]
        before = self.next_key
        # A known message was stored together with its write, which also had the position to continue from.
        after = intent.to if len(unknown) == len(sent) else None
        keys = self.append([message for _, message in unknown], window, after, ()).keys
        stored = {name for (name, _), key in zip(unknown, keys, strict=True) if name and key >= before}
        self.client_ids |= stored

    def _turn(self, intent: Intent, sent: Sequence[ChatMessage], part: int, window: Window) -> None:
        if intent.to is None or len(intent.parts) == 1:
            self.append(sent, window, intent.to, ())
        elif part == 0:
            self.set_aside(sent, intent.to)
        elif (aside := self.labelled(f"{intent.verb}/0.0")) is not None:
            self.append(sent, window, intent.to, [aside])
        else:
            raise ImpossibleError

    def _summarize(self, intent: Intent, new: Sequence[ChatMessage], window: Window) -> None:
        """Replace the summary by the one *new* message, if that covers what has to be summarized now."""
        [summary] = new if len(new) == 1 else [None]
        previous = None if self.summary is None else text_of(self.rows[self.summary].message)
        uncovered = self._uncovered()
        labels = [label_of(text_of(self.rows[key].message)) for key in uncovered]
        count = _count_of(text_of(summary)) if isinstance(summary, SystemMessage) else 0
        if not isinstance(summary, SystemMessage) or not 0 < count <= len(uncovered):
            raise ImpossibleError
        if summary.text != summary_text(intent.verb, previous, labels[:count]):
            raise ImpossibleError
        entries = [self.entry(key, window) for key in uncovered[:count]]
        pending = Pending(entries, False, previous, self.summary, self.forgotten_through, self._behind())
        covered = uncovered[count - 1]
        if not self.put_summary(pending, summary, window) or self.rows[self.next_key - 1].through != covered:
            raise ImpossibleError


def _count_of(text: str) -> int:
    """Return the number of messages that a summary covers, as in ``summary_text``."""
    count = text.partition(" ")[2].partition("-")[0]
    return int(count) if count.isdecimal() else 0
