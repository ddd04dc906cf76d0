"""What the lines of a conversation say of its branches, and whether that can be."""

from __future__ import annotations

from chatmemory_django.formats.jsonl.lines import Head, Said
from chatmemory_django.lineage import Claims
from chatmemory_django.messages import MessageType


class Branches:
    """
    The branches of the conversation *head*, as its lines come to tell of them; ``ValueError`` if one of them is wrong.

    Which message follows which is said by those that name their parent. Which of them are on the path comes from that,
    so it is checked, not believed. A parent may be missing, as one that was not kept is, but it comes before.
    """

    def __init__(self, head: Head) -> None:
        self._head = head
        self._claims = Claims()
        self._aside: set[int] = set()
        """The sequences of what is no part of it."""
        self._covered: int | None = None
        """The last message that the summary covers, once that was read."""

    def add(self, said: Said, type: str) -> bool:
        """Add the message *said*, of *type*, and return whether it is on the path."""
        on_path = said.in_history if said.on_path is None else said.on_path
        parent = said.parent_sequence
        if on_path and not said.in_history:
            raise ValueError("on_path is true, but in_history is false.")
        if parent is not None and parent >= said.sequence:
            raise ValueError(f"parent_sequence is {parent}, but must be below the sequence, {said.sequence}.")
        if parent in self._aside:
            raise ValueError(f"parent_sequence is {parent}, which is no part of the history.")
        if not said.in_history:
            self._aside.add(said.sequence)
            if parent is not None:
                self._check_summary(said, type, parent)
            return False
        if not on_path and not said.superseded and said.sequence >= self._head.window_start:
            raise ValueError("on_path is false, so superseded must be true in the memory.")
        self._claims.add(said.sequence, parent, on_path=on_path)
        return on_path

    def check(self) -> None:
        """Raise ``ValueError`` if the whole cannot be."""
        head, end = self._head, self._head.next_sequence
        newest = head.parent_sequence
        if newest is not None and (newest >= end or newest in self._aside):
            raise ValueError(f"parent_sequence is {newest}, which is no message of the history.")
        if head.forgotten_through >= end:
            raise ValueError(f"forgotten_through is {head.forgotten_through}, but next_sequence is {end}.")
        for first, last, on_path in self._claims.wrong(newest):
            raise ValueError(
                f"the messages {first} to {last} have on_path {str(on_path).lower()}, but the parents of the messages "
                "say otherwise."
            )
        if head.summary_sequence is not None and (
            self._covered is None or not self._claims.leads_through(self._covered)
        ):
            raise ValueError(f"summary_sequence is {head.summary_sequence}, which is no summary of the path.")

    def _check_summary(self, said: Said, type: str, through: int) -> None:
        # That number may be another one: the last message that was covered may have been removed since.
        if type != MessageType.SYSTEM or not said.superseded or "through" not in (said.metadata or {}):
            raise ValueError(
                "parent_sequence is for messages of the history, and for summaries: superseded system messages with "
                "'through' in their metadata."
            )
        if said.sequence == self._head.summary_sequence:
            self._covered = through
