"""Validation of the branches in the lines of a conversation."""

from __future__ import annotations

from chatmemory_django.core.branches import Claims, is_cut
from chatmemory_django.messages import MessageType
from chatmemory_django.operations.jsonl.lines import Head, MessageLine


class Branches:
    """
    Validates the branches of the conversation *head* while its lines are read; ``ValueError`` describes an invalid one.

    Each message follows its parent, which is the previous message unless it names another one. Which messages are on
    the path follows from that, so it is checked, not trusted. A parent may be missing, for example if it was not kept,
    but its number must be lower.
    """

    def __init__(self, head: Head) -> None:
        self._head = head
        self._end = head.next_sequence
        self._claims = Claims()
        self._aside: set[int] = set()
        """The sequences of rows that are not part of the history."""
        self._covered: int | None = None
        """The last message that the summary covers, once the summary was read."""

    def add(self, line: MessageLine, type: str) -> bool:
        """Add *line*, of a message of *type*, and return whether the message is on the path."""
        on_path = line.in_history if line.on_path is None else line.on_path
        parent = line.parent_sequence
        if on_path and not line.in_history:
            raise ValueError("on_path is true, but in_history is false.")
        if parent is not None and parent >= line.sequence:
            raise ValueError(f"parent_sequence is {parent}, but must be below the sequence, {line.sequence}.")
        if line.is_cleared and type != MessageType.TOOL_EXECUTION_RESULT:
            raise ValueError(f"is_cleared is true, but only results of tools are cleared, not {type}.")
        cut = line.cleared_before
        if cut is not None and not (parent is not None and line.in_history and is_cut(line.sequence, cut, self._end)):
            raise ValueError(
                f"cleared_before is {cut}, but must be above the sequence, {line.sequence}, and at most {self._end}, "
                "on a message of the history with a parent_sequence."
            )
        if parent in self._aside:
            raise ValueError(f"parent_sequence is {parent}, which is not part of the history.")
        if not line.in_history:
            self._aside.add(line.sequence)
            if parent is not None:
                self._check_summary(line, type, parent)
            return False
        is_inside = line.is_pinned or line.sequence >= self._head.window_start
        if not on_path and not line.superseded and is_inside:
            raise ValueError("on_path is false, so superseded must be true in the memory.")
        self._claims.add(line.sequence, parent, on_path=on_path)
        return on_path

    def check(self, head: Head) -> None:
        """Raise ``ValueError`` if the branches as a whole are inconsistent, by *head* as all lines complete it."""
        end = head.next_sequence
        newest = head.parent_sequence
        if newest is not None and (newest >= end or newest in self._aside):
            raise ValueError(f"parent_sequence is {newest}, which is not a message of the history.")
        for name, last in (("forgotten_through", head.forgotten_through), ("kept_out_through", head.kept_out_through)):
            if last >= end:
                raise ValueError(f"{name} is {last}, but next_sequence is {end}.")
        for first, last, on_path in self._claims.wrong(newest):
            raise ValueError(
                f"the messages {first} to {last} have on_path {str(on_path).lower()}, which contradicts the parents "
                "of the messages."
            )
        if head.summary_sequence is not None and (
            self._covered is None or not self._claims.leads_through(self._covered)
        ):
            raise ValueError(f"summary_sequence is {head.summary_sequence}, which is not a summary of the path.")

    def _check_summary(self, line: MessageLine, type: str, through: int) -> None:
        # The number may differ from the summary's own, because the last covered message may have been removed since.
        if type != MessageType.SYSTEM or not line.superseded or "through" not in (line.metadata or {}):
            raise ValueError(
                "only messages of the history can have a parent_sequence, and summaries: superseded system messages "
                "with 'through' in their metadata."
            )
        if line.sequence == self._head.summary_sequence:
            self._covered = through
