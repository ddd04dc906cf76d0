"""The chat's pages of the admin, and what it shows on those of conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from chatmemory_django.admin.reasons import shows_changes
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.costs.admin import ModelCallAdmin
from chatmemory_django.chat.named import configured
from chatmemory_django.chat.outgoing import Change, with_changes
from chatmemory_django.core.reasons import Explained
from chatmemory_django.models import Conversation

__all__ = ["ModelCallAdmin"]

CHANGES: Mapping[str, Promise] = {
    Change.MOVED: _("It is sent at another place."),
    Change.MERGED: _("It is sent as a part of the message before it."),
    Change.LEFT_OUT: _("It is not sent: it is blank, or a result without a call."),
    Change.INSERTED: _("A constant text is inserted beside it."),
    Change.CALL_ID: _("Its call has another id."),
    Change.NAME: _("A tool, or the author, has another name."),
    Change.ARGUMENTS: _("The arguments of a call are put into a JSON object."),
    Change.BLANK: _("A blank text is left out or replaced."),
    Change.FILE: _("A note takes the place of a file."),
    Change.TEXT: _("A call, or a result, is sent as a text."),
    Change.SPLIT: _("Its calls are sent one at a time."),
    Change.THINKING: _("What its vendor sent with it is only sent with an earlier message."),
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
