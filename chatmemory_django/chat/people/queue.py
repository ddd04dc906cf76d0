"""What waits for people of the site, in all conversations: to be answered, and calls to be approved."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from heapq import merge
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from chatmemory_django.chat.approvals.desk import undecided
from chatmemory_django.models import Conversation

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from chatmemory_django.chat.approvals.tables import ToolApproval
    from chatmemory_django.messages import ToolExecutionRequest

Kind: TypeAlias = Literal["handover", "approval"]
KINDS: tuple[Kind, ...] = ("handover", "approval")

MAX_WAITING = 500
"""How many of each kind are looked at: those that wait longest."""


class Queued(NamedTuple):
    """What waits in *conversation*: that somebody answers or, with an *approval*, that its *call* is decided on."""

    conversation: Conversation
    since: datetime.datetime
    until: datetime.datetime | None
    """When it is too late; None for never."""
    person: str
    """The key of the user who has it, as text; empty for nobody."""
    approval: ToolApproval | None = None
    call: ToolExecutionRequest | None = None

    @property
    def kind(self) -> Kind:
        """What it waits for."""
        return "handover" if self.approval is None else "approval"


def queue(
    answered: QuerySet[Conversation],
    seen: QuerySet[Conversation],
    may: Callable[[Conversation, str], bool],
    *,
    kind: Kind | None = None,
    person: str | None = None,
    tool: str | None = None,
) -> Iterator[Queued]:
    """
    Yield what waits, the longest first: in *answered*, which somebody may answer in, for a person who answers; and in
    *seen*, for decisions on calls.

    *may* returns whether somebody may decide on the calls in a conversation that have this ``approve_by``. With *kind*,
    only that is yielded; with *person*, only what the user with this key has, or nobody if it is empty; with *tool*,
    only calls of that tool. What is not asked for costs nothing: to look at a call takes some queries.
    """
    handovers: list[Queued] = []
    calls: Iterator[Queued] = iter(())
    if kind != "approval" and tool is None:
        handed_over = answered.exclude(state=Conversation.State.ASSISTANT).select_related("owner")
        rows = handed_over if person is None else handed_over.filter(person=person)
        handovers = [
            Queued(row, row.state_since or row.updated_at, None, row.person)
            for row in rows.order_by("state_since", "pk")[:MAX_WAITING]
        ]
    if kind != "handover":
        calls = (
            Queued(row.conversation, row.requested_at, row.expires_at, row.person, row, call)
            for row, call in undecided(seen, may, MAX_WAITING, person=person, tool=tool)
        )
    since = attrgetter("since")
    return merge(sorted(handovers, key=since), calls, key=since)
