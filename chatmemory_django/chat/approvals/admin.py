"""The words of the admin for calls of tools that wait, for an approval or for something else."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping
from typing import Any

from django.contrib import admin
from django.db.models import F, Q
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from chatmemory_django.admin.additions import offers_filter, shows_waits
from chatmemory_django.admin.filters import at_most, newest_keys
from chatmemory_django.admin.reasons import ReasonWords
from chatmemory_django.admin.wording import moment
from chatmemory_django.chat.approvals.tables import ToolApproval
from chatmemory_django.chat.approvals.waiting import BESIDE_MEMORY, approvals_of, has_died, waiting_answers
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.model import CLIENT, OWNER
from chatmemory_django.core.shown import visible
from chatmemory_django.models import Conversation


def waiting_calls(conversation: Conversation, sequences: Collection[int]) -> Mapping[tuple[int, int], ReasonWords]:
    """Return why calls in the messages *sequences* of *conversation* have no result yet; see ``Waits``."""
    if not approvals_of(conversation).filter(sequence__in=sequences).exclude(state=ToolApproval.State.ENDED).exists():
        return {}
    return {
        (each.sequence, each.position): _words(each, conversation)._replace(content=each.sentence)
        for answer in waiting_answers(conversation)
        for each in answer.open
        if each.sequence in sequences
    }


def _words(approval: ToolApproval, conversation: Conversation) -> ReasonWords:
    moments = {"since": moment(approval.requested_at), "until": moment(approval.expires_at)}
    if has_died(approval, conversation):
        return ReasonWords(
            _("interrupted call"), _("The process that ran this call has ended; its outcome is unknown.")
        )
    if approval.state == ToolApproval.State.RUNNING:
        return ReasonWords(_("call runs"), _("This call was approved, and runs now."))
    if approval.has_expired:
        return ReasonWords(
            _("approval expired"),
            _("This call waited for approval since %(since)s, and was not run by %(until)s.") % moments,
        )
    if approval.is_for_client:
        words = _("This call waits for its output since %(since)s, until %(until)s, for the page of its owner.")
        return ReasonWords(_("waits for its output"), words % moments)
    if approval.approved is None:
        return ReasonWords(
            _("waits for approval"),
            _("This call waits for approval since %(since)s, until %(until)s, for %(whom)s.")
            % {**moments, "whom": _whom(approval, conversation)},
        )
    if approval.approved:
        return ReasonWords(_("approved"), _("This call was approved, and is run when the answer goes on."))
    return ReasonWords(_("denied"), _("This call was denied; the model learns that when the answer goes on."))


def _whom(approval: ToolApproval, conversation: Conversation) -> str:
    if approval.approve_by != OWNER:
        return _("users with the permission %(permission)s") % {"permission": visible(approval.approve_by)}
    if conversation.owner is None:
        return _("code of the site")
    return visible(str(conversation.owner))


class WaitingFilter(admin.SimpleListFilter):
    """Conversations with a call that waits for approval."""

    title = gettext_lazy("approval")
    parameter_name = "approval"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, Any]]:
        return [("waiting", _("Waits for approval"))]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if self.value() != "waiting":
            return queryset
        last = timezone.now() - datetime.timedelta(seconds=chat_settings().APPROVAL_SECONDS)
        is_remembered = Q(sequence__gte=F("conversation__window_start")) | BESIDE_MEMORY
        waiting: Any = ToolApproval.objects.using(queryset.db).filter(
            is_remembered,
            state=ToolApproval.State.WAITING,
            approved=None,
            requested_at__gt=last,
            sequence__gt=F("conversation__forgotten_through"),
        )
        found = queryset.filter(pk__in=waiting.exclude(approve_by=CLIENT).values("conversation"))
        return queryset.filter(pk__in=at_most(newest_keys(found), request))


shows_waits(waiting_calls)
offers_filter(WaitingFilter)
