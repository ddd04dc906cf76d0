"""
The door for those who observe: an app adds an ``Observer`` to ``observers`` in its ``AppConfig.ready``.

Where there is none, nothing is called on the way of a message. Observers are given no content; only the texts of errors
may quote some.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol


class Observed(Protocol):
    """What an observer keeps of an operation, until its end."""

    def active(self) -> AbstractContextManager[object]:
        """Return a block: the notes in it, and the operations that begin in it, are part of this one."""

    def end(self, error: BaseException | None) -> None:
        """End it; *error* is what ended it too soon."""


class Observer(Protocol):
    """An object, or a module. It ignores names that it does not know."""

    def note(self, event: str, /, **values: Any) -> None:
        """
        Note an *event*.

        They are "evicted" (with a count), "waiting" (by how many calls more wait for a thread, which may be negative),
        "waited" (with the seconds), "refused", "answering" (by how many answers more are in progress), "asked" (with a
        database and how many answers wait for a worker there), and of the operation that is active: "counted" (with
        its records), "identified", "compacted", "changed", "used", "failed".
        """

    def begin(self, operation: str, /, **values: Any) -> Observed | None:
        """Begin an *operation* in the present context: "answer", "tool", "search", "delete" or "summarize"."""


observers: list[Observer] = []
"""Those who observe, in this process."""


def note(event: str, /, **values: Any) -> None:
    """Let all observers note *event*."""
    for each in observers:
        each.note(event, **values)


class Operation:
    """An operation that begins now, for all observers. As a context manager, it is what happens in the block."""

    def __init__(self, name: str, /, **values: Any) -> None:
        self._begun: list[Observed] = []
        try:
            for each in observers:
                if (begun := each.begin(name, **values)) is not None:
                    self._begun.append(begun)
        except BaseException as exc:
            self.end(exc)
            raise

    @contextmanager
    def active(self) -> Iterator[None]:
        """See ``Observed``."""
        with ExitStack() as stack:
            for each in self._begun:
                stack.enter_context(each.active())
            yield

    def end(self, error: BaseException | None = None) -> None:
        """See ``Observed``."""
        with ExitStack() as stack:
            for each in self._begun:
                stack.callback(each.end, error)

    def __enter__(self) -> None:
        with ExitStack() as block:
            block.push(lambda kind, error, at: self.end(error))
            (active := self.active()).__enter__()
            block.callback(active.__exit__, None, None, None)  # what is in the block has not failed in the observer
            self._block = block.pop_all()

    def __exit__(self, *failure: Any) -> None:
        self._block.__exit__(*failure)
