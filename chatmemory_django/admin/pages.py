"""What stands on the pages of a conversation, of a message, and of a confirmation; and files for download."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from chatmemory_django import conf
from chatmemory_django.admin.figures import read_gauge, read_plot
from chatmemory_django.admin.media import File, media_of
from chatmemory_django.admin.operations import SHOWN, Operation, Totals
from chatmemory_django.admin.transcript import PAGE, read_bubble, read_page
from chatmemory_django.admin.wording import shortened, visible
from chatmemory_django.codec import message_to_json
from chatmemory_django.models import Conversation, ConversationQuerySet, Message
from chatmemory_django.provider import known_window

MAX_SHOWN = 100_000
"""How many characters of a text stand on the page of its message. The rest is in its JSON."""

MAX_STRING = 2_000
"""How many characters of a text stand in the JSON on that page: it may hold a film."""

SANDBOX = "default-src 'none'; sandbox"


def transcript(request: HttpRequest, conversation: Conversation, *, is_readable: bool) -> dict[str, Any]:
    """A page of the transcript; the newest has the figures, too."""
    before, after = _place(request, "before"), _place(request, "after")
    context: dict[str, Any] = {
        "page": read_page(conversation, before=before, after=after, is_readable=is_readable),
        "is_newest": before is None and after is None,
        "is_readable": is_readable,
        "shows_remote_media": conf.remote_media(),
    }
    if context["is_newest"]:
        context["owner_name"] = visible(conversation.owner.get_username()) if conversation.owner else ""
        context["gauge"] = read_gauge(conversation, known_window(conversation.memory_id))
        context["plot"] = read_plot(conversation)
        context["metadata"] = _indented(conversation.metadata) if is_readable else ""
    return context


def message(row: Message) -> dict[str, Any]:
    """A message as whole as a page can bear, and its JSON."""
    text = message_json(row)
    with suppress(ValueError, RecursionError):  # what is stored may be broken
        text = json.dumps(shortened(json.loads(text), MAX_STRING), indent=2, ensure_ascii=False)
    return {
        "bubble": read_bubble(row, MAX_SHOWN),
        "around": max(0, row.sequence - 1 - PAGE // 2),
        "is_readable": True,
        "shows_remote_media": conf.remote_media(),
        "json": visible(text[:MAX_SHOWN]),
        "metadata": _indented(row.metadata),
        "subtitle": _("Message %(number)d") % {"number": row.sequence},
    }


def confirmation(request: HttpRequest, operation: Operation, conversations: ConversationQuerySet) -> dict[str, Any]:
    """What *operation* would do to *conversations*, and the form that has it done."""
    totals = Totals.of(conversations)
    shown = list(conversations[:SHOWN])
    return {
        "operation": operation,
        "consequences": list(operation.consequences(conversations, totals)),
        "shown": [(each, visible(each.memory_id), visible(each.title)) for each in shown],
        "not_shown": totals.conversations - len(shown),
        "subtitle": operation.label,
        # What brought the list here, so that the form brings it here again.
        "checkbox": ACTION_CHECKBOX_NAME,
        "selected": request.POST.getlist(ACTION_CHECKBOX_NAME),
        "select_across": request.POST.get("select_across", "0"),
    }


def message_json(row: Message) -> str:
    """The JSON of *row*; as it is stored, where that is broken."""
    try:
        return message_to_json(row.chat_message)
    except ValueError:
        return row.payload or ""


def file_of(row: Message, index: int) -> File | None:
    """The file that the content of *row* at *index* holds, if it does."""
    try:
        contents = getattr(row.chat_message, "contents", ())
    except ValueError:
        return None
    media = media_of(contents[index]) if index < len(contents) else None
    return None if media is None else media.file


def download(content: bytes, content_type: str, name: str, *, inline: bool = False) -> HttpResponse:
    """A response that no browser takes for a page of this site, whatever is in it."""
    return HttpResponse(
        content,
        content_type=content_type,
        headers={
            "Content-Disposition": f'{"inline" if inline else "attachment"}; filename="{name}"',
            "Content-Security-Policy": SANDBOX,
            "X-Content-Type-Options": "nosniff",
        },
    )


def _indented(value: Any) -> str:
    return visible(json.dumps(value, indent=2, ensure_ascii=False)[:MAX_SHOWN]) if value else ""


def _place(request: HttpRequest, name: str) -> int | None:
    """The sequence that the page is to begin or end at; None for anything that is none."""
    text = request.GET.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None
