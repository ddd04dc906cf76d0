"""The words of the admin for calls of tools that wait, for an approval or for something else."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from django.utils.translation import gettext as _

from chatmemory_django.admin.reasons import ReasonWords
from chatmemory_django.admin.wording import moment
from chatmemory_django.chat.approvals.tables import ToolApproval
from chatmemory_django.chat.approvals.waiting import approvals_of, has_died, waiting_answers
from chatmemory_django.chat.model import OWNER
from chatmemory_django.core.shown import visible
from chatmemory_django.models import Conversation


def waiting_calls(conversation: Conversation, sequences: Collection[int]) -> Mapping[tuple[int, int], ReasonWords]:
    """Return why calls in the messages *sequences* of *conversation* have no result yet; see ``Waits``."""
    if not approvals_of(conversation).filter(sequence__in=sequences).exclude(state=ToolApproval.State.ENDED).exists():
        return {}
    return {
        (each.sequence, each.position): _words(each, conversation)
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
