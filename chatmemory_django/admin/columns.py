"""The columns of the list of conversations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from django.contrib import admin
from django.utils.formats import number_format
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from chatmemory_django.admin.wording import moment
from chatmemory_django.core.excerpts import MAX_SNIPPET, Snippet, snippet
from chatmemory_django.core.shown import visible
from chatmemory_django.core.windows import Window
from chatmemory_django.models import Conversation

SHORT_ID = 16
"""Maximum number of characters of a memory id in the list; of a longer one, the beginning and the end are shown ..."""

BEGINNING, END = 6, 6
"""... that is, so many characters of each, or only the end if another one on the page has the same beginning."""


@dataclass(kw_only=True)
class Listed:
    """What a row of the list shows beyond the columns of its conversation."""

    wanted: str = ""
    """What the list was searched for."""
    preview: str = ""
    """What its last message begins with, if it has no title, and the user may read it."""
    hit: Snippet | None = None
    """An excerpt of the newest message that the search has found, under the same condition."""
    window: Window | None = None
    """The window of its memory; None if the settings are invalid for it."""
    beginnings: dict[str, int] = field(default_factory=dict)
    """How many memory ids on the page have each beginning."""


@admin.display(description=_("conversation"), ordering="title")
def title(conversation: Conversation) -> SafeString:
    """Return the title or, if there is none, what the last message begins with; below it, what a search has found."""
    listed = _listed(conversation)
    name = conversation.title or listed.preview or conversation.memory_id
    whole = visible(name)
    shown = format_html(
        '<bdi class="cm-title{}" title="{}">{}</bdi>',
        "" if conversation.title else " cm-untitled",
        whole,
        _marked(snippet(name, listed.wanted, around=MAX_SNIPPET)) if listed.wanted else whole,
    )
    if listed.hit is None:
        return shown
    return format_html('{} <span class="cm-hit" dir="auto">{}</span>', shown, _marked(listed.hit))


@admin.display(description=_("owner"), ordering="owner")
def owner(conversation: Conversation) -> SafeString | None:
    """Return the owner as the site displays users, as a link to all conversations of that owner."""
    if conversation.owner is None:
        return None
    query, shown = urlencode({"owner": conversation.owner.get_username()}), visible(str(conversation.owner))
    return format_html('<a href="?{}"><bdi class="cm-person" title="{}">{}</bdi></a>', query, shown, shown)


@admin.display(description=_("messages"), ordering="total_messages")
def messages(conversation: Conversation) -> SafeString:
    """Return how many messages the history has had, how many are in the memory, and how full the memory is."""
    return format_html(
        '<span class="cm-figure">{}</span><span class="cm-remembered">{}</span>{}',
        number_format(conversation.total_messages, force_grouping=True),
        gettext("%(count)s in memory") % {"count": number_format(conversation.memory_messages, force_grouping=True)},
        _bar(conversation),
    )


@admin.display(description=_("last activity"), ordering="updated_at")
def last_activity(conversation: Conversation) -> SafeString:
    """Return when the conversation was last written to."""
    value = conversation.updated_at
    return format_html('<time class="cm-moment" datetime="{}">{}</time>', value.isoformat(), moment(value))


@admin.display(description=_("memory id"), ordering="memory_id")
def memory_id(conversation: Conversation) -> SafeString:
    """Return the memory id, a long one shortened; in full, with the match marked, if the list was searched for it."""
    whole, listed = conversation.memory_id, _listed(conversation)
    if listed.wanted and listed.wanted.casefold() in whole.casefold():
        return format_html('<bdi class="cm-id cm-whole">{}</bdi>', _marked(snippet(whole, listed.wanted)))
    if len(whole) <= SHORT_ID:
        return format_html('<bdi class="cm-id">{}</bdi>', visible(whole))
    shown = f"{whole[:BEGINNING]}…{whole[-END:]}"
    if listed.beginnings.get(whole[:BEGINNING], 1) > 1:
        shown = f"…{whole[-BEGINNING - END :]}"
    return format_html(
        '<bdi class="cm-id" title="{}"><span aria-hidden="true">{}</span><span class="cm-unseen">{}</span></bdi>',
        visible(whole),
        visible(shown),
        visible(whole),
    )


def beginnings_of(conversations: Iterable[Conversation]) -> dict[str, int]:
    """Return how many memory ids of *conversations* have each beginning."""
    found: dict[str, int] = {}
    for each in conversations:
        beginning = each.memory_id[:BEGINNING]
        found[beginning] = found.get(beginning, 0) + 1
    return found


def _listed(conversation: Conversation) -> Listed:
    return getattr(conversation, "listed", None) or Listed()


def _marked(found: Snippet) -> SafeString:
    """Return *found* with its matches marked."""
    pieces = ((format_html("<mark>{}</mark>", visible(text)) if hit else visible(text),) for text, hit in found.parts)
    return format_html_join("", "{}", pieces)


def _bar(conversation: Conversation) -> SafeString:
    """Return a bar that shows how much of its limit the memory uses; empty if that is unknown or counted otherwise."""
    window = _listed(conversation).window
    if window is None:
        return SafeString()
    if window.estimator is None:
        value, words = conversation.memory_messages, gettext("%(value)s of %(limit)s messages")
    elif conversation.counted_by == window.counter != "":
        value, words = conversation.memory_tokens, gettext("%(value)s of %(limit)s tokens")
    else:
        return SafeString()
    value_and_limit = {
        "value": number_format(value, force_grouping=True),
        "limit": number_format(window.limit, force_grouping=True),
    }
    return format_html(
        '<svg class="cm-bar" viewBox="0 0 100 6" width="100" height="6" preserveAspectRatio="none" role="img" '
        'aria-label="{0}"><title>{0}</title><rect class="cm-bar-limit" width="100" height="6"/>'
        '<rect class="cm-bar-used" width="{1}" height="6"/></svg>',
        words % value_and_limit,
        f"{min(100, 100 * value / window.limit):.2f}",
    )
