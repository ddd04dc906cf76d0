"""
A page of a conversation, as the transcript shows it.

Pages are cut by sequence, so each costs the same at any length of history, and what is read of a page has a bound: of
each message a text that is short, and long texts and JSON only while they are no more than ``PAGE_BYTES`` together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.db.models import Case, QuerySet, When
from django.db.models.functions import Length
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from chatmemory_django.admin.media import Media, media_of
from chatmemory_django.admin.wording import EXCERPT, Excerpt, excerpt, pretty_json, visible
from chatmemory_django.codec import message_to_json
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    Content,
    CustomMessage,
    MessageType,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, MemoryStatus, Message
from chatmemory_django.tool_calls import tool_answers

PAGE = 50
"""How many messages are on a page."""

PAGE_BYTES = 8 * 1024 * 1024
"""How much long text and JSON is read for a page. Of a message whose turn comes later a short text is shown."""

KINDS: dict[str, str | Promise] = {
    MessageType.SYSTEM: _("System"),
    MessageType.USER: _("User"),
    MessageType.AI: _("AI"),
    MessageType.TOOL_EXECUTION_RESULT: _("Tool result"),
    MessageType.CUSTOM: _("Custom"),
}
"""What people call the kinds of message."""


def style_of(kind: str) -> str:
    """What CSS calls a kind of message."""
    return "tool" if kind == MessageType.TOOL_EXECUTION_RESULT else kind.lower()


@dataclass(kw_only=True)
class Part:
    """A piece of what a message says: a text, or a file at *index* among its contents."""

    index: int = 0
    text: Excerpt | None = None
    media: Media | None = None


@dataclass(kw_only=True)
class Call:
    """A call of a tool, and the message that answers it, if that is on the page."""

    name: str
    arguments: Excerpt
    answer: Bubble | None = None


@dataclass(kw_only=True)
class Bubble:
    """A message as it is shown. Without the right to read what was said, there is nothing in it that was said."""

    row: Any
    """The ``Message`` with its status."""
    begins_memory: bool = False
    is_omitted: bool = False
    """Its JSON or its long text is not on the page, being too large."""
    is_broken: bool = False
    """Its JSON cannot be read."""
    is_error: bool = False
    is_paired: bool = False
    """It is shown with the call that it answers."""
    name: str = ""
    """Who says it, if the message tells; of a tool result, which tool."""
    thinking: Excerpt | None = None
    attributes: Excerpt | None = None
    parts: list[Part] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    @property
    def kind(self) -> str | Promise:
        """What people call it."""
        return KINDS[self.row.type]

    @property
    def status(self) -> MemoryStatus:
        """Where it is, as far as the memory is concerned."""
        return MemoryStatus(self.row.status)

    @property
    def is_in_memory(self) -> bool:
        """Whether the model is sent it."""
        return self.status.is_in_memory

    @property
    def style(self) -> str:
        """The names of its CSS classes."""
        return f"cm-{style_of(self.row.type)} {'cm-remembered' if self.is_in_memory else 'cm-forgotten'}"


@dataclass(kw_only=True)
class Page:
    """Some messages in order, and where those before and after them are."""

    bubbles: list[Bubble]
    before: int | None
    """Those before this sequence are on older pages; None if there are none."""
    after: int | None
    """Those after it are on newer pages; None if there are none."""


def read_page(
    conversation: Conversation, *, before: int | None = None, after: int | None = None, is_readable: bool
) -> Page:
    """The newest messages of *conversation*, or of those *before* a sequence, or the oldest *after* one."""
    rows = _rows(conversation, is_readable=is_readable)
    if after is not None:
        found = list(rows.filter(sequence__gt=after).order_by("sequence")[:PAGE])
    else:
        rows = rows if before is None else rows.filter(sequence__lt=before)
        found = list(reversed(rows.order_by("-sequence")[:PAGE]))
    bubbles = _bubbles(conversation, found, is_readable=is_readable)
    if not found:
        return Page(bubbles=[], before=None, after=None)
    first, last = found[0].sequence, found[-1].sequence
    has_older = len(found) == PAGE if after is None else True
    return Page(
        bubbles=bubbles,
        before=first if has_older and first > 1 else None,
        after=last if last < conversation.next_sequence - 1 else None,
    )


def read_bubble(row: Message, limit: int) -> Bubble:
    """One message, *row* read whole and with its status, with texts of up to *limit* characters."""
    bubble = Bubble(row=row)
    try:
        _fill(bubble, row.chat_message, limit)
    except ValueError:
        _fill_broken(bubble, excerpt(row.text, limit=limit))
    return bubble


def _rows(conversation: Conversation, *, is_readable: bool) -> QuerySet[Message]:
    rows = conversation.messages.with_status().defer("text", "payload", "metadata")
    if not is_readable:
        return rows
    # Not cut in the database: where the field is a subclass, only the field knows what it says.
    return rows.annotate(
        text_length=Length("text"),
        payload_length=Length("payload"),
        short_text=Case(When(text_length__lte=EXCERPT, then="text"), output_field=Message._meta.get_field("text")),
    )


def _bubbles(conversation: Conversation, rows: list[Any], *, is_readable: bool) -> list[Bubble]:
    """The bubbles of *rows* as ``_rows`` reads them, without those that are shown with a call."""
    whole = _whole(conversation, rows) if is_readable else {}
    bubbles = []
    messages: list[ChatMessage] = []
    was_in_window = True  # of what is on the page before, nobody knows
    for row in rows:
        bubble = Bubble(row=row)
        is_in_window = row.sequence >= conversation.window_start
        bubble.begins_memory = is_in_window and (not was_in_window or 1 < row.sequence == conversation.window_start)
        was_in_window = is_in_window
        message: ChatMessage | None = None
        if is_readable:
            message = _read(bubble, row, whole.get(row.sequence))
        bubbles.append(bubble)
        messages.append(message or CustomMessage({}))  # holds its place where answers are looked for
    for (index, place), answer in tool_answers(messages).items():
        bubbles[index].calls[place].answer = bubbles[answer]
        bubbles[answer].is_paired = True
    return [bubble for bubble in bubbles if not bubble.is_paired]


def _is_short(row: Any) -> bool:
    """Whether *row* is nothing but a text, and that has been read."""
    return row.payload_length is None and row.short_text is not None


def _whole(conversation: Conversation, rows: list[Any]) -> dict[int, Message]:
    """Those of *rows* that are more than a short text, read whole, the newest first while there is room."""
    wanted, size = [], 0
    for row in reversed(rows):
        length = row.text_length + (row.payload_length or 0)
        if not _is_short(row) and size + length <= PAGE_BYTES:
            wanted.append(row.sequence)
            size += length
    if not wanted:
        return {}
    found = conversation.messages.filter(sequence__in=wanted).order_by().only("sequence", "type", "text", "payload")
    return {row.sequence: row for row in found}


def _read(bubble: Bubble, row: Any, whole: Message | None) -> ChatMessage | None:
    """Fill *bubble* with what *row* says, if need be by the *whole* of it, and return that, if it was all to be had."""
    if whole is None:
        bubble.is_omitted = not _is_short(row)
        bubble.parts = [] if row.short_text is None else [Part(text=excerpt(row.short_text))]
        return None
    try:
        message = whole.chat_message
        _fill(bubble, message, EXCERPT)
    except ValueError:
        _fill_broken(bubble, excerpt(whole.text))
        return None
    return message


def _fill(bubble: Bubble, message: ChatMessage, limit: int) -> None:
    match message:
        case SystemMessage():
            bubble.parts = [Part(text=excerpt(message.text, limit=limit))]
            return
        case UserMessage():
            bubble.name = visible(message.name or "")
            bubble.parts = _parts(message.contents, limit)
        case AiMessage():
            bubble.parts = [Part(text=excerpt(message.text, limit=limit))] if message.text else []
            bubble.thinking = excerpt(message.thinking, limit=limit) if message.thinking else None
            bubble.calls = [_call(request, limit) for request in message.tool_execution_requests]
        case ToolExecutionResultMessage():
            bubble.name = visible(message.tool_name or "")
            bubble.is_error = message.is_error is True
            bubble.parts = _parts(message.contents, limit)
    if message.attributes:
        bubble.attributes = pretty_json(message_to_json(CustomMessage(message.attributes)), limit)


def _fill_broken(bubble: Bubble, text: Excerpt) -> None:
    bubble.is_broken = True
    bubble.parts = [Part(text=text)]


def _parts(contents: tuple[Content | None, ...], limit: int) -> list[Part]:
    parts = []
    for index, content in enumerate(contents):
        if isinstance(content, TextContent):
            parts.append(Part(index=index, text=excerpt(content.text, limit=limit)))
        elif (media := media_of(content)) is not None:
            parts.append(Part(index=index, media=media))
    return parts


def _call(request: ToolExecutionRequest, limit: int) -> Call:
    return Call(name=visible(request.name or ""), arguments=pretty_json(request.arguments or "", limit))
