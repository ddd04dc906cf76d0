"""Which rows are in a memory: ``memory_parts`` defines it; everything else that needs this is built on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django.db.models.expressions import Combinable


class MemoryStatus(models.TextChoices):
    """Whether a message is in the memory of its conversation, and if not, why."""

    IN_MEMORY = "in_memory", _("in memory")
    PINNED = "pinned", _("in memory, pinned")
    EVICTED = "evicted", _("evicted")
    SUPERSEDED = "superseded", _("superseded")
    OFF_PATH = "off_path", _("on another branch")

    @property
    def is_in_memory(self) -> bool:
        """Whether the message is in the memory."""
        return self in {MemoryStatus.IN_MEMORY, MemoryStatus.PINNED}


class Bounds(NamedTuple):
    """Where a memory is: the columns of ``Conversation`` with these names, or expressions for them."""

    window_start: Combinable | int
    pinned_sequence: Combinable | int | None
    summary_sequence: Combinable | int | None
    pinned_count: int = 0
    """0 for a conversation without pins, whose part is then left out of conditions."""

    @classmethod
    def of(cls, conversation: Any) -> Self:
        """Return where the memory of *conversation* is, a ``Conversation`` or what else has these columns."""
        return cls(*(getattr(conversation, column) for column in cls._fields))


def memory_parts(bounds: Bounds) -> tuple[Q, Q, Q, Q]:
    """
    Return the parts of a memory, in its order: the system message that is pinned in front, the summary, the pins that
    have left the window, then the window.

    The system message may be in the window as well; the summary's row is not, since it is superseded from the start.
    Each part but that of the pins is a range of the primary key. If the start is a subquery, PostgreSQL reads the whole
    conversation for parts joined by OR; query each part separately then.
    """
    pins = Q(is_pinned=True, superseded=False, sequence__lt=bounds.window_start)
    pins = pins if bounds.pinned_count else Q(sequence__in=())
    window = Q(sequence__gte=bounds.window_start, superseded=False)
    return Q(sequence=bounds.pinned_sequence), Q(sequence=bounds.summary_sequence), pins, window


def in_memory(bounds: Bounds) -> Q:
    """Return all parts of a memory as one condition, for numbers, and for rows of several conversations."""
    system, summary, pins, window = memory_parts(bounds)
    # For "or is NULL", SQLite would read the whole conversation.
    front = Q() if bounds.pinned_sequence is None else system
    front = front if bounds.summary_sequence is None else front | summary
    return front | pins | window


def is_in_memory(sequence: int, bounds: Bounds, *, superseded: bool, is_pinned: bool) -> bool:
    """Return whether a message is in a memory of numbers, or will be if it is not stored yet."""
    start: Any = bounds.window_start
    is_front = sequence in {bounds.pinned_sequence, bounds.summary_sequence}
    return is_front or (not superseded and (is_pinned or sequence >= start))
