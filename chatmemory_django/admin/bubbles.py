"""A message as a page shows it: what it says, piece by piece, in texts of a bounded length."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.utils.functional import Promise
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from chatmemory_django.admin.markdown import Markdown
from chatmemory_django.admin.media import Media, media_of
from chatmemory_django.admin.reasons import Words, words_of
from chatmemory_django.admin.wording import EXCERPT, Excerpt, excerpt, pretty_json, visible
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    Content,
    MessageType,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import MemoryStatus
from chatmemory_django.places import Place

if TYPE_CHECKING:
    from chatmemory_django.admin.message_operations import MessageOperation

SUMMARY = "SUMMARY"
"""The kind of a system message that is a summary, which the column of types does not tell."""

KINDS: dict[str, str | Promise] = {
    MessageType.SYSTEM: _("System"),
    SUMMARY: _("Summary"),
    MessageType.USER: _("User"),
    MessageType.AI: _("AI"),
    MessageType.TOOL_EXECUTION_RESULT: _("Tool result"),
    MessageType.CUSTOM: _("Custom"),
}
"""What people call the kinds of message."""


def kind_of(row: Any) -> str:
    """Which of ``KINDS`` *row* is. A summary names the last message that it covers, and is no part of the history."""
    is_summary = not row.in_history and row.parent_sequence is not None
    return SUMMARY if is_summary else row.type


def style_of(kind: str) -> str:
    """What CSS calls a kind of message."""
    return "tool" if kind == MessageType.TOOL_EXECUTION_RESULT else kind.lower()


@dataclass(kw_only=True)
class Part:
    """A piece of what a message says: a text, or a file at *index* among its contents."""

    index: int = 0
    text: Excerpt | None = None
    html: SafeString | None = None
    """The text, if it was rendered as Markdown."""
    media: Media | None = None


@dataclass(kw_only=True)
class Call:
    """A call of a tool, and what is known of its result."""

    name: str
    arguments: Excerpt
    answer: Bubble | None = None
    """The message that answers it, if that is on the page."""
    answered_by: int | None = None
    """The sequence of that message, if it is on a newer page."""
    is_unanswered: bool = False
    """No such message is stored, which takes to have looked at all that there are."""


@dataclass(kw_only=True)
class Bubble:
    """A message as it is shown. Without the right to read what was said, there is nothing in it that was said."""

    row: Any
    """The ``Message`` with its status."""
    why: Words
    """Why the model is sent it, or is not."""
    begins_memory: bool = False
    place: Place | None = None
    """Its place among the messages that were said instead of it; None if there are no others."""
    operations: list[MessageOperation] = field(default_factory=list)
    """What the user can do at it."""
    is_omitted: bool = False
    """Its JSON, its metadata or its long text is not on the page, being too large."""
    is_broken: bool = False
    """Its JSON cannot be read."""
    is_error: bool = False
    is_paired: bool = False
    """It is shown with the call that it answers."""
    name: str = ""
    """Who says it, if the message names anybody; of a tool result, which tool."""
    thinking: Excerpt | None = None
    attributes: Excerpt | None = None
    metadata: Excerpt | None = None
    parts: list[Part] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, row: Any, why: Words | None = None) -> Bubble:
        """The bubble of *row*, empty; its status says why it is sent or not, unless more is known."""
        return cls(row=row, why=why or words_of(MemoryStatus(row.status)))

    @property
    def is_summary(self) -> bool:
        """Whether it is a summary of what was said up to its parent."""
        return kind_of(self.row) == SUMMARY

    @property
    def is_on_other_branch(self) -> bool:
        """Whether it was said on another branch than the one in use."""
        return self.row.in_history and not self.row.on_path

    @property
    def kind(self) -> str | Promise:
        """What people call it."""
        return KINDS[kind_of(self.row)]

    @property
    def style(self) -> str:
        """The names of its CSS classes."""
        style = f"cm-{style_of(kind_of(self.row))} {'cm-sent' if self.why.is_sent else 'cm-unsent'}"
        return f"{style} cm-failed" if self.is_error else style

    def fill(self, message: ChatMessage, limit: int = EXCERPT, markdown: Markdown | None = None) -> None:
        """Show what *message* says, in texts of up to *limit* characters; those of people and models as *markdown*."""
        match message:
            case SystemMessage():
                self.parts = [Part(text=excerpt(message.text, limit=limit))]
                return
            case UserMessage():
                self.name = visible(message.name or "")
                self.parts = _parts(message.contents, limit, markdown)
            case AiMessage():
                self.parts = [_text(message.text, limit, markdown)] if message.text else []
                self.thinking = excerpt(message.thinking, limit=limit) if message.thinking else None
                self.calls = [_call(request, limit) for request in message.tool_execution_requests]
            case ToolExecutionResultMessage():
                self.name = visible(message.tool_name or "")
                self.is_error = message.is_error is True
                self.parts = _parts(message.contents, limit, None)
        if message.attributes:
            self.attributes = _json(message.attributes, limit)

    def fill_broken(self, text: str, limit: int = EXCERPT) -> None:
        """Show *text*, where the message itself cannot be read."""
        self.is_broken = True
        self.parts = [Part(text=excerpt(text, limit=limit))]

    def fill_metadata(self, metadata: object) -> None:
        """Show the *metadata* beside the message."""
        if metadata:
            self.metadata = _json(metadata, EXCERPT)


def _text(text: str, limit: int, markdown: Markdown | None, index: int = 0) -> Part:
    shown = excerpt(text, limit=limit)
    return Part(index=index, text=shown, html=markdown.render(shown.text) if markdown else None)


def _parts(contents: tuple[Content | None, ...], limit: int, markdown: Markdown | None) -> list[Part]:
    parts = []
    for index, content in enumerate(contents):
        if isinstance(content, TextContent):
            parts.append(_text(content.text, limit, markdown, index))
        elif (media := media_of(content)) is not None:
            parts.append(Part(index=index, media=media))
    return parts


def _json(value: object, limit: int) -> Excerpt:
    return pretty_json(json.dumps(value, ensure_ascii=False), limit)


def _call(request: ToolExecutionRequest, limit: int) -> Call:
    return Call(name=visible(request.name or ""), arguments=pretty_json(request.arguments or "", limit))
