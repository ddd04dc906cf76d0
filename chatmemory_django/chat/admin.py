"""The chat's pages of the admin, and what it shows on those of conversations."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.contrib import admin
from django.db.models import Count, F, Q, Sum
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.functional import Promise
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from chatmemory_django.admin.additions import Fact, offers_filter, shows_facts, shows_waits
from chatmemory_django.admin.filters import at_most, newest_keys
from chatmemory_django.admin.reasons import shows_changes
from chatmemory_django.chat.approvals.admin import waiting_calls
from chatmemory_django.chat.approvals.tables import ToolApproval
from chatmemory_django.chat.approvals.waiting import BESIDE_MEMORY
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.costs.admin import ModelCallAdmin, priced
from chatmemory_django.chat.costs.tables import ModelCall, Outcome, Purpose
from chatmemory_django.chat.model import CLIENT
from chatmemory_django.chat.named import configured
from chatmemory_django.chat.outgoing import Difference, with_changes
from chatmemory_django.core.reasons import Explained
from chatmemory_django.models import Conversation

__all__ = ["ModelCallAdmin"]

CHANGES: Mapping[str, Promise] = {
    Difference.MOVED: _("It is sent at another place."),
    Difference.MERGED: _("It is sent as a part of the message before it."),
    Difference.LEFT_OUT: _("It is not sent: it is blank, or a result without a call."),
    Difference.INSERTED: _("A constant text is inserted beside it."),
    Difference.CALL_ID: _("Its call has another id."),
    Difference.NAME: _("A tool, or the author, has another name."),
    Difference.ARGUMENTS: _("The arguments of a call are put into a JSON object."),
    Difference.BLANK: _("A blank text is left out or replaced."),
    Difference.FILE: _("A note takes the place of a file."),
    Difference.TEXT: _("A call, or a result, is sent as a text."),
    Difference.SPLIT: _("Its calls are sent one at a time."),
    Difference.THINKING: _("What its vendor sent with it is only sent with an earlier message."),
}


def changes_for_vendor(conversation: Conversation, explained: Sequence[Explained]) -> Mapping[int, Sequence[Promise]]:
    """Return what makes *explained* fit for the vendor of its assistant, unless that depends on the request."""
    try:
        assistant = configured(conversation.assistant)
    except ImportError:  # a check reports it
        return {}
    if not isinstance(assistant, Assistant):
        return {}
    changed = with_changes(explained, assistant.model.rules)
    return {each.sequence: [CHANGES[change] for change in each.changes] for each in changed if each.changes}


FAILED_DAYS = 30
"""The filter finds conversations in which an answer has failed in as many past days."""


class AnswerFilter(admin.SimpleListFilter):
    """Conversations with a call that waits for approval, or with an answer that has failed lately."""

    title = _("answer")
    parameter_name = "answer"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, Any]]:
        failed = gettext("Failed in the past %(days)d days") % {"days": FAILED_DAYS}
        return [("approval", _("Waits for approval")), ("failed", failed)]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        now = timezone.now()
        rows: Any
        match self.value():
            case "approval":
                last = now - datetime.timedelta(seconds=chat_settings().APPROVAL_SECONDS)
                is_remembered = Q(sequence__gte=F("conversation__window_start")) | BESIDE_MEMORY
                waiting = ToolApproval.objects.using(queryset.db).filter(
                    is_remembered,
                    state=ToolApproval.State.WAITING,
                    approved=None,
                    requested_at__gt=last,
                    sequence__gt=F("conversation__forgotten_through"),
                )
                rows = waiting.exclude(approve_by=CLIENT)
            case "failed":
                calls = ModelCall.objects.using(queryset.db).between(now - datetime.timedelta(days=FAILED_DAYS), now)
                rows = calls.filter(outcome=Outcome.FAILED, purpose=Purpose.ANSWER, conversation__isnull=False)
            case _:
                return queryset
        found = queryset.filter(pk__in=rows.values("conversation"))
        return queryset.filter(pk__in=at_most(newest_keys(found), request))


def calls_of(request: HttpRequest, conversation: Conversation) -> Iterator[Fact]:
    """Yield what the calls of models in *conversation* were and cost, for who may view calls; see ``Facts``."""
    if not request.user.has_perm("chatmemory_chat.view_modelcall"):
        return
    rows = ModelCall.objects.using(conversation._state.db).filter(conversation=conversation.pk)
    sums = rows.aggregate(calls=Count("pk"), failed=Count("pk", filter=Q(outcome=Outcome.FAILED)), cost=Sum("cost"))
    if not sums["calls"]:
        return
    text = ngettext("%(number)s call", "%(number)s calls", sums["calls"]) % {"number": _grouped(sums["calls"])}
    if sums["failed"]:
        text = gettext("%(calls)s, %(failed)s failed") % {"calls": text, "failed": _grouped(sums["failed"])}
    url = f"{reverse('admin:chatmemory_chat_modelcall_changelist')}?conversation={conversation.pk}"
    yield Fact(_("Model calls"), text, url)
    if sums["cost"] is not None:
        yield Fact(_("Cost"), priced(sums["cost"]))


def _grouped(number: int) -> str:
    return str(number_format(number, force_grouping=True))


shows_changes(changes_for_vendor)
shows_waits(waiting_calls)
shows_facts(calls_of)
offers_filter(AnswerFilter)
