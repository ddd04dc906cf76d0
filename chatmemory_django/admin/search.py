"""Search in the messages of a conversation: pages of hits, the newest first."""

from __future__ import annotations

from dataclasses import dataclass

from chatmemory_django.admin.bubbles import Bubble
from chatmemory_django.admin.navigation import link_to
from chatmemory_django.core.excerpts import Snippet
from chatmemory_django.core.limits import is_storable
from chatmemory_django.core.shown import visible
from chatmemory_django.models import Conversation
from chatmemory_django.models.fields import without_texts

HITS = 20
"""Number of hits on a page."""

SEARCHED = 20_000
"""Maximum number of messages that are searched for a page; the next page continues with older messages."""

MAX_WANTED = 200
"""Maximum number of characters of a search term."""


@dataclass(kw_only=True)
class ShownHit:
    """A message that matches the search."""

    bubble: Bubble
    parts: list[tuple[str, bool]]
    """Pieces of an excerpt, and whether each is a match."""

    @property
    def link(self) -> str:
        """The link to the message in the transcript, as the end of a URL."""
        return link_to(self.bubble.row.sequence, all_branches=self.bubble.is_on_other_branch)


@dataclass(kw_only=True)
class Hits:
    """A page of hits."""

    wanted: str
    hits: list[ShownHit]
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
    searched = conversation.messages.filter(sequence__gte=start, sequence__lt=end)
    rows = searched.look_through(wanted, all_branches=all_branches).order_by("-sequence")
    found = list(without_texts(rows.with_status()).defer("metadata")[: HITS + 1])
    shown = conversation.messages.filter(sequence__in=[row.sequence for row in found[:HITS]])
    snippets = shown.snippets(wanted)
    hits = [ShownHit(bubble=Bubble.of(row), parts=_parts(snippets.get(row.pk))) for row in found[:HITS]]
    if len(found) > HITS:
        return Hits(wanted=wanted, hits=hits, before=found[HITS - 1].sequence)
    return Hits(wanted=wanted, hits=hits, before=start if start > 1 else None)


def _parts(found: Snippet | None) -> list[tuple[str, bool]]:
    return [] if found is None else [(visible(piece), is_hit) for piece, is_hit in found.parts]
