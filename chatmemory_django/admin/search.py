"""The search in what was said in a conversation: hits, the newest first, a page at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chatmemory_django.admin.bubbles import Bubble
from chatmemory_django.admin.transcript import fitting, place_of
from chatmemory_django.admin.wording import visible
from chatmemory_django.models import Conversation
from chatmemory_django.rows import is_storable
from chatmemory_django.snippets import snippet

HITS = 20
"""How many hits are on a page."""

SEARCHED = 20_000
"""How many messages are searched for a page; older ones are searched if that is asked for."""

MAX_WANTED = 200
"""How many characters a search may have."""


@dataclass(kw_only=True)
class Hit:
    """A message that has what was wanted."""

    bubble: Bubble
    parts: list[tuple[str, bool]]
    """An excerpt, in pieces, and which of them are what was wanted; empty if the message is too large to read."""

    @property
    def place(self) -> str:
        """Where it is in the transcript."""
        return place_of(self.bubble.row.sequence, all_branches=self.bubble.is_on_other_branch)


@dataclass(kw_only=True)
class Hits:
    """Some of the hits."""

    wanted: str
    hits: list[Hit]
    before: int | None
    """More hits may be before this sequence; None if there are none."""

    @property
    def shown(self) -> str:
        """What was wanted, fit to be shown."""
        return visible(self.wanted)


def wanted_in(text: str) -> str:
    """What somebody who typed *text* wants to find."""
    return text.strip()[:MAX_WANTED]


def search(conversation: Conversation, wanted: str, *, before: int | None = None, all_branches: bool = False) -> Hits:
    """
    The newest messages in the history of *conversation* whose text has *wanted*, or of those *before* a sequence.

    They are on the path in use, or on *all_branches*.
    """
    end = conversation.next_sequence if before is None else min(before, conversation.next_sequence)
    start = max(1, end - SEARCHED)
    if not is_storable(wanted):
        return Hits(wanted=wanted, hits=[], before=None)
    said = conversation.messages.containing(wanted, all_branches=all_branches)
    rows = said.filter(sequence__gte=start, sequence__lt=end).order_by("-sequence")
    found = list(rows.with_status().with_size().defer("text", "payload", "verbatim", "metadata")[: HITS + 1])
    texts = _texts(conversation, found[:HITS])
    hits = [Hit(bubble=Bubble.of(row), parts=_parts(texts.get(row.sequence), wanted)) for row in found[:HITS]]
    if len(found) > HITS:
        return Hits(wanted=wanted, hits=hits, before=found[HITS - 1].sequence)
    return Hits(wanted=wanted, hits=hits, before=start if start > 1 else None)


def _texts(conversation: Conversation, rows: list[Any]) -> dict[int, str]:
    """The texts of *rows* by sequence, the newest first while there is room."""
    wanted = fitting(rows)
    found = conversation.messages.filter(sequence__in=wanted).order_by() if wanted else conversation.messages.none()
    return dict(found.values_list("sequence", "text"))


def _parts(text: str | None, wanted: str) -> list[tuple[str, bool]]:
    parts = () if text is None else snippet(text, wanted).parts
    return [(visible(piece), is_hit) for piece, is_hit in parts]
