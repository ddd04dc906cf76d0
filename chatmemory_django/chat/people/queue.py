"""What waits for people of the site, in all conversations: to be answered, and calls to be approved."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone

from chatmemory_django.chat.approvals.approving import NotPendingError
from chatmemory_django.chat.approvals.tables import ToolApproval
from chatmemory_django.chat.approvals.waiting import pending_calls
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.model import CLIENT
from chatmemory_django.messages import ToolExecutionRequest
from chatmemory_django.models import Conversation
from chatmemory_django.operations import OtherPersonError

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

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
    only calls of that tool.
    """
    found: list[Queued] = []
    if kind != "approval" and tool is None:
        handed_over = answered.exclude(state=Conversation.State.ASSISTANT).select_related("owner")
        rows = handed_over if person is None else handed_over.filter(person=person)
        found += [
            Queued(row, row.state_since or row.updated_at, None, row.person)
            for row in rows.order_by("state_since", "pk")[:MAX_WAITING]
        ]
    if kind != "handover":
        found += _calls(seen, may, person, tool)
    return iter(sorted(found, key=lambda each: each.since))


def assign(
    conversation: Conversation, approval: UUID | str, to: AbstractBaseUser | None, *, takes_over: bool = False
) -> None:
    """
    Note that the user *to*, or nobody, looks at the call with this *approval* in *conversation*.

    Raises:
        NotPendingError: No such call waits there.
        OtherPersonError: Another person does, and *to* does not take it over.

    """
    person = "" if to is None else str(to.pk)
    approvals = ToolApproval.objects.using(conversation._state.db).filter(conversation=conversation.pk)
    rows = approvals.filter(pk=approval, state=ToolApproval.State.WAITING, approved=None)
    free = rows if takes_over or to is None else rows.filter(person__in=["", person])
    if not free.update(person=person):
        if (other := rows.values_list("person", flat=True).first()) not in {None, "", person}:
            raise OtherPersonError(str(other))
        if other is None:
            raise NotPendingError("No call in this conversation waits for this approval.")


def _calls(
    conversations: QuerySet[Conversation],
    may: Callable[[Conversation, str], bool],
    person: str | None,
    tool: str | None,
) -> Iterator[Queued]:
    since = timezone.now() - datetime.timedelta(seconds=chat_settings().APPROVAL_SECONDS)
    rows = ToolApproval.objects.using(conversations.db).filter(
        state=ToolApproval.State.WAITING,
        approved=None,
        requested_at__gt=since,
        conversation__in=conversations.order_by(),
    )
    rows = rows.exclude(approve_by=CLIENT)
    if person is not None:
        rows = rows.filter(person=person)
    calls: dict[int, dict[Any, ToolExecutionRequest]] = {}
    for row in rows.select_related("conversation__owner").order_by("requested_at", "pk")[:MAX_WAITING]:
        conversation = row.conversation
        if not may(conversation, row.approve_by):
            continue
        if conversation.pk not in calls:
            calls[conversation.pk] = {each.pk: call for each, call in pending_calls(conversation)}
        call = calls[conversation.pk].get(row.pk)
        if call is not None and tool in {None, call.name}:
            yield Queued(conversation, row.requested_at, row.expires_at, row.person, row, call)
