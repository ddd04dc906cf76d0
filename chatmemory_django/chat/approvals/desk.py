"""What people of the site do about calls that wait for a decision: the queue lists them, and the desk decides."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _

from chatmemory_django.access import access_policy
from chatmemory_django.chat.approvals.approving import Decision, NotPendingError, by_policy, decide
from chatmemory_django.chat.approvals.continuing import go_on
from chatmemory_django.chat.approvals.tables import ToolApproval
from chatmemory_django.chat.approvals.waiting import pending_calls
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.model import CLIENT
from chatmemory_django.messages import ToolExecutionRequest
from chatmemory_django.models import Conversation
from chatmemory_django.operations import OtherPersonError

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser


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


def undecided(
    conversations: QuerySet[Conversation],
    may: Callable[[Conversation, str], bool],
    most: int,
    *,
    person: str | None = None,
    tool: str | None = None,
) -> Iterator[tuple[ToolApproval, ToolExecutionRequest]]:
    """
    Yield the calls in *conversations* that wait for a decision of people, the longest first: of those *most* that do.

    *may*, *person* and *tool* are those of ``people.queue.queue``.
    """
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
    for row in rows.select_related("conversation__owner").order_by("requested_at", "pk")[:most]:
        conversation = row.conversation
        if not may(conversation, row.approve_by):
            continue
        if conversation.pk not in calls:
            calls[conversation.pk] = {each.pk: call for each, call in pending_calls(conversation)}
        call = calls[conversation.pk].get(row.pk)
        if call is not None and tool in {None, call.name}:
            yield row, call


def _assign(request: HttpRequest, conversation: Conversation) -> str:
    user: Any = request.user
    approval = _approval(request, conversation)
    assign(conversation, approval.pk, user, takes_over="takes_over" in request.POST)
    return ""


def _decide(request: HttpRequest, conversation: Conversation) -> str:
    user: Any = request.user
    approval, is_approved = _approval(request, conversation), request.POST.get("do") == "approve"
    decision = Decision(approval.pk, is_approved, request.POST.get("reason", ""))
    own = Conversation.objects.using(conversation._state.db).filter(pk=conversation.pk)
    may = by_policy(access_policy(), request, conversation)
    decide(own, conversation.memory_id, [decision], user, may)
    transaction.on_commit(partial(go_on, conversation, request), using=conversation._state.db)
    words = _("Approved a tool call of message #%(number)d.")
    words = words if is_approved else _("Denied a tool call of message #%(number)d.")
    return words % {"number": approval.sequence}


def _approval(request: HttpRequest, conversation: Conversation) -> ToolApproval:
    """Return the approval that a form names, on which the user may decide."""
    approvals = ToolApproval.objects.using(conversation._state.db).filter(conversation=conversation.pk)
    try:
        found = approvals.filter(pk=UUID(request.POST.get("approval", ""))).first()
    except ValueError:
        found = None
    if found is None:
        raise NotPendingError("No call in this conversation waits for this approval.")
    if not by_policy(access_policy(), request, conversation)(found.approve_by):
        raise PermissionDenied
    return found


FORMS: Mapping[str, Callable[[HttpRequest, Conversation], str]] = {
    "assign": _assign,
    "approve": _decide,
    "deny": _decide,
}
"""What the forms of calls do, by their names; each returns what the admin's log has of it."""
