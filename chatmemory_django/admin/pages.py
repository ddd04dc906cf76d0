"""Template contexts for the pages of a conversation, of a message, and of a confirmation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.messages import INFO, WARNING
from django.http import HttpRequest
from django.utils.dateparse import parse_date
from django.utils.formats import date_format
from django.utils.translation import gettext as _

from chatmemory_django import conf
from chatmemory_django.admin.additions import facts_about
from chatmemory_django.admin.bubbles import Bubble
from chatmemory_django.admin.downloads import NotPossibleError, message_as_openai, message_json
from chatmemory_django.admin.figures import read_gauge, read_plot
from chatmemory_django.admin.message_operations import SWITCH, MessageOperation
from chatmemory_django.admin.navigation import ALL_BRANCHES, link_to, neighbours, on
from chatmemory_django.admin.operations import SHOWN, AdminOperation, Totals
from chatmemory_django.admin.search import search, wanted_in
from chatmemory_django.admin.transcript import read_bubble, read_page
from chatmemory_django.admin.wording import EXCERPT, shortened
from chatmemory_django.core.shown import visible
from chatmemory_django.models import Conversation, ConversationQuerySet, Message
from chatmemory_django.provider import known_reader

MAX_SHOWN = 100_000
"""Maximum number of characters of a text on the page of its message. The whole text is in the JSON."""

MAX_STRING = 2_000
"""Maximum number of characters of a string in the JSON on that page: a string may hold a whole video."""

MAX_DATE = 40
"""Maximum number of characters of an invalid date that the error message repeats."""

UNENDED = 10
"""Maximum number of messages of incomplete turns that a page links to ..."""

UNENDED_AMONG = 10_000
"""... and how many of the newest messages are searched for them."""


def transcript(
    request: HttpRequest, conversation: Conversation, *, is_readable: bool, offered: Sequence[MessageOperation]
) -> dict[str, Any]:
    """
    Return the context of a page of the transcript or of search hits; the newest page also has the figures.

    *offered* lists the operations that the user may perform on messages.
    """
    before, after = _number(request, "before"), _number(request, "after")
    wanted = wanted_in(request.GET.get("q", "")) if is_readable else ""
    is_newest = before is None and after is None and not wanted
    all_branches = _asks_for_all_branches(request)
    context: dict[str, Any] = {
        "is_newest": is_newest,
        "is_readable": is_readable,
        "shows_remote_media": conf.general().REMOTE_MEDIA,
        "memory_link": _memory_link(conversation, all_branches=all_branches),
        "all_branches": all_branches,
        "branches": f"&{ALL_BRANCHES}" if all_branches else "",
        "may_switch": SWITCH in offered,
    }
    if wanted:
        return {**context, "found": search(conversation, wanted, before=before, all_branches=all_branches)}
    reader = known_reader(conversation.memory_id)
    page = read_page(
        conversation, reader, before=before, after=after, is_readable=is_readable, all_branches=all_branches
    )
    for bubble in page.bubbles:
        _offer(bubble, conversation, offered)
    context["page"] = page
    if is_newest:
        context["owner_name"] = visible(str(conversation.owner)) if conversation.owner else ""
        context["facts"] = facts_about(request, conversation)
        context["gauge"] = read_gauge(conversation, None if reader is None else reader.window())
        context["plot"] = read_plot(conversation)
        context["metadata"] = _indented(conversation.metadata) if is_readable else ""
        context["unended"] = _unended(conversation)
        context["unended_shown"], context["unended_among"] = UNENDED, UNENDED_AMONG
    return context


def message(conversation: Conversation, row: Message, offered: Sequence[MessageOperation]) -> dict[str, Any]:
    """Return the context of the page of one message: as much of it as fits, its JSON, and operations of *offered*."""
    bubble = read_bubble(conversation, row, MAX_SHOWN)
    bubble.place = conversation.places([row]).get(row.sequence)
    _offer(bubble, conversation, offered)
    all_branches = bubble.is_on_other_branch
    earlier, later = neighbours(conversation, row, all_branches=all_branches)
    return {
        "bubble": bubble,
        "link": link_to(row.sequence, all_branches=all_branches),
        "may_switch": SWITCH in offered,
        "earlier": earlier,
        "later": later,
        "is_readable": True,
        "is_alone": True,
        "is_openai": _is_openai(row),
        "shows_remote_media": conf.general().REMOTE_MEDIA,
        "json": _readable(message_json(row)),
        "metadata": _indented(row.metadata),
        "rating_reason": row.rating_reason,
        "verbatim": _readable(row.verbatim or ""),
        "subtitle": _("Message %(number)d") % {"number": row.sequence},
    }


def landing(request: HttpRequest, conversation: Conversation) -> tuple[str, int, str]:
    """Return where a jump to a date leads, as the end of a URL, and the level and text of a notice to the user."""
    text, all_branches = request.GET["on"], _asks_for_all_branches(request)
    try:
        date = parse_date(text)
    except ValueError:
        date = None
    if date is None:
        words = _("“%(text)s” is not a valid date. Use the format 2026-11-21.")
        return "", WARNING, words % {"text": visible(text[:MAX_DATE])}
    found = on(conversation, date, all_branches=all_branches)
    if found is None:
        return "", INFO, _("There are no messages.")
    notice = ""
    if found.date != date:
        words = _("There are no messages from %(date)s or later; this is the last one.")
        if found.date > date:
            words = _("There are no messages from %(date)s; this is the first one after that day.")
        notice = words % {"date": date_format(date)}
    return link_to(found.sequence, all_branches=all_branches), INFO, notice


def confirmation(
    request: HttpRequest, operation: AdminOperation, conversations: ConversationQuerySet, *, is_readable: bool
) -> dict[str, Any]:
    """
    Return the context of the page that describes the effects of *operation* on *conversations* and confirms it.

    Titles are only shown if they are readable for the user.
    """
    totals = Totals.of(conversations)
    shown = list(conversations[:SHOWN])
    return {
        "operation": operation,
        "consequences": list(operation.consequences(conversations, totals)),
        "shown": [(each, visible(each.memory_id), visible(each.title) if is_readable else "") for each in shown],
        "not_shown": totals.conversations - len(shown),
        "subtitle": operation.label,
        # The list's own parameters, which the form sends back so that the action runs again.
        "checkbox": ACTION_CHECKBOX_NAME,
        "selected": request.POST.getlist(ACTION_CHECKBOX_NAME),
        "select_across": request.POST.get("select_across", "0"),
    }


def message_confirmation(
    operation: MessageOperation, conversation: Conversation, row: Message, *, is_readable: bool
) -> dict[str, Any]:
    """Return the context of the page that describes the effects of *operation* on the message *row* and confirms it."""
    bubble = read_bubble(conversation, row, EXCERPT) if is_readable else Bubble.of(row)
    return {
        "operation": operation,
        "consequences": list(operation.consequences(conversation, row)),
        "bubble": bubble,
        "has_counterparts": operation.has_counterparts(row),
        "is_readable": is_readable,
        "is_alone": True,
        "shows_remote_media": conf.general().REMOTE_MEDIA,
        "back": link_to(row.sequence, all_branches=bubble.is_on_other_branch),
        "subtitle": operation.label,
    }


def _offer(bubble: Bubble, conversation: Conversation, offered: Sequence[MessageOperation]) -> None:
    """Set the operations of *bubble*, and of the results shown in it, to those of *offered* that apply there."""
    bubble.operations = [each for each in offered if each.is_offered(conversation, bubble.row)]
    for call in bubble.calls:
        if call.answer is not None:
            _offer(call.answer, conversation, offered)


def _asks_for_all_branches(request: HttpRequest) -> bool:
    name, _equals, value = ALL_BRANCHES.partition("=")
    return request.GET.get(name) == value


def _number(request: HttpRequest, name: str) -> int | None:
    """Return the sequence at which the page starts or ends; None if the parameter is missing or not a number."""
    text = request.GET.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def _memory_link(conversation: Conversation, *, all_branches: bool) -> str:
    """Return where the memory begins, as the end of a URL; empty if no messages precede it."""
    if conversation.memory_messages == 0 or conversation.window_start == 1:
        return ""
    return f"{link_to(conversation.window_start, all_branches=all_branches).partition('#')[0]}#memory"


def _is_openai(row: Message) -> bool:
    try:
        message_as_openai(row)
    except NotPossibleError:
        return False
    return True


def _unended(conversation: Conversation) -> list[tuple[int, str]]:
    """Return the newest messages of incomplete turns and links to them, at most one more than are shown."""
    newest = conversation.messages.incomplete().filter(sequence__gte=conversation.next_sequence - UNENDED_AMONG)
    found = newest.order_by("-sequence").values_list("sequence", "on_path")[: UNENDED + 1]
    return [(sequence, link_to(sequence, all_branches=not on_path)) for sequence, on_path in found]


def _readable(text: str) -> str:
    """Return the JSON *text* indented and cut to a size that a page can show."""
    with suppress(ValueError, RecursionError):  # stored JSON may be damaged
        text = json.dumps(shortened(json.loads(text), MAX_STRING), indent=2, ensure_ascii=False)
    return visible(text[:MAX_SHOWN])


def _indented(value: object) -> str:
    return visible(json.dumps(value, indent=2, ensure_ascii=False)[:MAX_SHOWN]) if value else ""
