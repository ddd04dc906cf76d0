"""The chat's pages of the admin, and what it shows on those of conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from chatmemory_django.admin.reasons import shows_changes
from chatmemory_django.chat.approvals.admin import WaitingFilter
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.costs.admin import FailedFilter, ModelCallAdmin
from chatmemory_django.chat.named import configured
from chatmemory_django.chat.outgoing import Difference, with_changes
from chatmemory_django.core.reasons import Explained
from chatmemory_django.models import Conversation

__all__ = ["FailedFilter", "ModelCallAdmin", "WaitingFilter"]

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


shows_changes(changes_for_vendor)
