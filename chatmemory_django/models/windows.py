"""Which rows are in a memory: ``memory_parts`` defines it; everything else that needs this is built on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django.db.models.expressions import Combinable


class MemoryStatus(models.TextChoices):
    """Whether a message is in the memory of its conversation, and if not, why."""

    IN_MEMORY = "in_memory", _("in memory")
    PINNED = "pinned", _("in memory, pinned in front")
    EVICTED = "evicted", _("evicted")
    SUPERSEDED = "superseded", _("superseded")
    OFF_PATH = "off_path", _("on another branch")

    @property
    def is_in_memory(self) -> bool:
        """Whether the message is in the memory."""
        return self in {MemoryStatus.IN_MEMORY, MemoryStatus.PINNED}


def memory_parts(
    window_start: Combinable | int, pinned_sequence: Combinable | int | None, summary_sequence: Combinable | int | None
) -> tuple[Q, Q, Q]:
    """
    Return the parts of a memory, in its order: the pinned row, the summary's row, then the window.

    The pinned row may be in the window as well; the summary's row is not, since it is superseded from the start. Each
    part is a range of the primary key. If *window_start* is a subquery, PostgreSQL reads the whole conversation for
    parts joined by OR; query each part separately then.
    """
    window = Q(sequence__gte=window_start, superseded=False)
    return Q(sequence=pinned_sequence), Q(sequence=summary_sequence), window


def in_memory(
    window_start: Combinable | int, pinned_sequence: Combinable | int | None, summary_sequence: Combinable | int | None
) -> Q:
    """Return all parts of a memory as one condition, for numbers, and for rows of several conversations."""
    pinned, summary, window = memory_parts(window_start, pinned_sequence, summary_sequence)
    # For "or is NULL", SQLite would read the whole conversation.
    front = Q() if pinned_sequence is None else pinned
    return (front if summary_sequence is None else front | summary) | window


def is_in_memory(
    sequence: int, window_start: int, pinned_sequence: int | None, summary_sequence: int | None, *, superseded: bool
) -> bool:
    """Return whether a message is in a memory, or will be if it is not stored yet."""
    return sequence in {pinned_sequence, summary_sequence} or (sequence >= window_start and not superseded)
