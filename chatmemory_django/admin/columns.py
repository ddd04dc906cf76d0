"""What stands in the columns of the list."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import prefetch_related_objects
from django.http import HttpRequest
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from chatmemory_django import provider
from chatmemory_django.admin.wording import visible
from chatmemory_django.models import Conversation


class ListWithOwners(ChangeList):
    """The list, with the owners of its rows read at once and without a join: they may be in another database."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list: list[Conversation] = list(self.result_list)
        prefetch_related_objects(self.result_list, "owner")


@admin.display(description=_("memory id"), ordering="memory_id")
def memory_id(conversation: Conversation) -> SafeString:
    """The name of the memory."""
    return format_html('<bdi class="cm-id">{}</bdi>', visible(conversation.memory_id))


@admin.display(description=_("title"), ordering="title")
def title(conversation: Conversation) -> SafeString:
    """What the conversation is called."""
    return format_html('<bdi class="cm-title">{}</bdi>', visible(conversation.title))


@admin.display(description=_("owner"), ordering="owner")
def owner(conversation: Conversation) -> SafeString | None:
    """Whose it is, and the way to all that are theirs."""
    if conversation.owner is None:
        return None
    name = conversation.owner.get_username()
    return format_html('<a href="?{}"><bdi>{}</bdi></a>', urlencode({"owner": name}), visible(name))


@admin.display(description=_("messages in memory"), ordering="memory_messages")
def remembered(conversation: Conversation) -> SafeString:
    """The messages in the memory, against the limit, if the settings set one in messages."""
    return _figure(conversation.memory_messages, _common_limit(""))


@admin.display(description=_("tokens in memory"), ordering="memory_tokens")
def tokens(conversation: Conversation) -> SafeString | None:
    """The tokens in the memory, if they were counted, against the limit, if the settings count the same way."""
    counter = conversation.counted_by
    return _figure(conversation.memory_tokens, _common_limit(counter)) if counter else None


def _common_limit(counter: str) -> int | None:
    """
    The limit of all memories, if the settings set one that is counted by *counter*.

    One that depends on the memory id is left out: to ask for it might take a statement for each row.
    """
    try:
        window = provider.common_window()
    except (ImportError, TypeError, ValueError):
        return None  # the checks tell what is wrong
    if window is None or window.counter != counter or (window.estimator is None) != (counter == ""):
        return None
    return window.limit


def _figure(value: int, limit: int | None) -> SafeString:
    """A number, over a bar that says how much of *limit* it is."""
    number = number_format(value, force_grouping=True)
    if limit is None:
        return format_html('<span class="cm-figure">{}</span>', number)
    return format_html(
        '<span class="cm-figure">{}</span><svg class="cm-bar" viewBox="0 0 100 6" width="100" height="6" '
        'preserveAspectRatio="none" role="img" aria-label="{}"><rect class="cm-bar-limit" width="100" height="6"/>'
        '<rect class="cm-bar-used" width="{}" height="6"/></svg>',
        number,
        gettext("of %(limit)s") % {"limit": number_format(limit, force_grouping=True)},
        f"{min(100, 100 * value / limit):.2f}",
    )
