"""Search in the messages of a conversation: pages of hits, the newest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chatmemory_django.admin.bubbles import Bubble
from chatmemory_django.admin.navigation import link_to
from chatmemory_django.admin.transcript import fitting
from chatmemory_django.admin.wording import visible
from chatmemory_django.core.limits import is_storable
from chatmemory_django.models import Conversation
from chatmemory_django.search.excerpts import snippet

HITS = 20
"""Number of hits on a page."""

SEARCHED = 20_000
"""Maximum number of messages that are searched for a page; the next page continues with older messages."""

MAX_WANTED = 200
"""Maximum number of characters of a search term."""


@dataclass(kw_only=True)
class Hit:
    """A message that matches the search."""

    bubble: Bubble
    parts: list[tuple[str, bool]]
    """Pieces of an excerpt, and whether each is a match; empty if the message is too large to read."""

    @property
    def link(self) -> str:
        """The link to the message in the transcript, as the end of a URL."""
        return link_to(self.bubble.row.sequence, all_branches=self.bubble.is_on_other_branch)


@dataclass(kw_only=True)
class Hits:
    """A page of hits."""

    wanted: str
    hits: list[Hit]
    before: int | None
    """More hits may come before this sequence; None if there are none."""

    @property
    def shown(self) -> str:
        """The search term, safe to display."""
        return visible(self.wanted)


def wanted_in(text: str) -> str:
    """Return the search term in the user's input *text*."""
    return text.strip()[:MAX_WANTED]


def search(conversation: Conversation, wanted: str, *, before: int | None = None, all_branches: bool = False) -> Hits:
    """
    Return the newest messages of *conversation* whose text contains *wanted*, optionally only *before* a sequence.

    Only the current path is searched, unless *all_branches* is true.
    """
    end = conversation.next_sequence if before is None else min(before, conversation.next_sequence)
    start = max(1, end - SEARCHED)
    if not is_storable(wanted):
        return Hits(wanted=wanted, hits=[], before=None)
    matching = conversation.messages.containing(wanted, all_branches=all_branches)
    rows = matching.filter(sequence__gte=start, sequence__lt=end).order_by("-sequence")
    found = list(rows.with_status().with_size().defer("text", "payload", "verbatim", "metadata")[: HITS + 1])
    texts = _texts(conversation, found[:HITS])
    hits = [Hit(bubble=Bubble.of(row), parts=_parts(texts.get(row.sequence), wanted)) for row in found[:HITS]]
    if len(found) > HITS:
        return Hits(wanted=wanted, hits=hits, before=found[HITS - 1].sequence)
    return Hits(wanted=wanted, hits=hits, before=start if start > 1 else None)


def _texts(conversation: Conversation, rows: list[Any]) -> dict[int, str]:
    """Return the texts of *rows* by sequence, starting with the newest, as many as fit on a page."""
    wanted = fitting(rows)
    found = conversation.messages.filter(sequence__in=wanted).order_by() if wanted else conversation.messages.none()
    return dict(found.values_list("sequence", "text"))


def _parts(text: str | None, wanted: str) -> list[tuple[str, bool]]:
    parts = () if text is None else snippet(text, wanted).parts
    return [(visible(piece), is_hit) for piece, is_hit in parts]
