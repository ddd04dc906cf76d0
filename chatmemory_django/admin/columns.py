"""The columns of the list of conversations."""

from __future__ import annotations

import re

from django.contrib import admin
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from chatmemory_django.admin.wording import moment
from chatmemory_django.core.characters import visible
from chatmemory_django.core.windows import Window
from chatmemory_django.models import Conversation

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@admin.display(description=_("memory id"), ordering="memory_id")
def memory_id(conversation: Conversation) -> SafeString:
    """Return the memory id on one line: the start and the end of a UUID, any other id cut off by CSS."""
    whole = visible(conversation.memory_id)
    if not _UUID.fullmatch(whole):
        return format_html('<bdi class="cm-id" title="{}">{}</bdi>', whole, whole)
    return format_html(
        '<bdi class="cm-id" title="{}"><span aria-hidden="true">{}…{}</span><span class="cm-unseen">{}</span></bdi>',
        whole,
        whole[:8],
        whole[-6:],
        whole,
    )


@admin.display(description=_("title"), ordering="title")
def title(conversation: Conversation) -> SafeString:
    """Return the title of the conversation, limited to two lines by CSS."""
    whole = visible(conversation.title)
    return format_html('<bdi class="cm-title" title="{}">{}</bdi>', whole, whole)


@admin.display(description=_("owner"), ordering="owner")
def owner(conversation: Conversation) -> SafeString | None:
    """Return the owner's name as a link to all conversations of that owner."""
    if conversation.owner is None:
        return None
    name = conversation.owner.get_username()
    query, shown = urlencode({"owner": name}), visible(name)
    return format_html('<a href="?{}"><bdi class="cm-person" title="{}">{}</bdi></a>', query, shown, shown)


@admin.display(description=_("messages"), ordering="total_messages")
def messages(conversation: Conversation) -> SafeString:
    """Return how many messages the history has ever had."""
    return _figure(conversation.total_messages, None)


@admin.display(description=_("in memory"), ordering="memory_messages")
def remembered(conversation: Conversation) -> SafeString:
    """Return the number of messages in the memory, and their share of the limit if it is in messages."""
    return _figure(conversation.memory_messages, _common_limit(conversation, ""))


@admin.display(description=_("tokens"), ordering="memory_tokens")
def tokens(conversation: Conversation) -> SafeString | None:
    """Return the number of tokens in the memory, if counted, and their share of a limit that is counted alike."""
    counter = conversation.counted_by
    return _figure(conversation.memory_tokens, _common_limit(conversation, counter)) if counter else None


@admin.display(description=_("last activity"), ordering="updated_at")
def last_activity(conversation: Conversation) -> SafeString:
    """Return when the conversation was last written to."""
    value = conversation.updated_at
    return format_html('<time class="cm-moment" datetime="{}">{}</time>', value.isoformat(), moment(value))


def _common_limit(conversation: Conversation, counter: str) -> int | None:
    """
    Return the limit that all memories share, if it is counted by *counter*.

    A limit that depends on the memory id is ignored: looking it up could take a query for each row.
    """
    window: Window | None = getattr(conversation, "common_window", None)
    if window is None or window.counter != counter or (window.estimator is None) != (counter == ""):
        return None
    return window.limit


def _figure(value: int, limit: int | None) -> SafeString:
    """Return a number above a bar that shows its share of *limit*."""
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
