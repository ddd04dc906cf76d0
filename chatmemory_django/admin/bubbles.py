"""A message as pages display it: its contents piece by piece, in texts of limited length."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from django.utils.functional import Promise
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from chatmemory_django.admin.markdown import Markdown
from chatmemory_django.admin.media import Media, media_of
from chatmemory_django.admin.reasons import WORDS, ReasonWords, words_of
from chatmemory_django.admin.wording import EXCERPT, Excerpt, excerpt, pretty_json
from chatmemory_django.core.reasons import Reason
from chatmemory_django.core.shown import shown_message, visible
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
from chatmemory_django.models.alternatives import Place

SUMMARY = "SUMMARY"
"""The kind of a system message that is a summary; the type column does not distinguish it."""

KINDS: dict[str, str | Promise] = {
    MessageType.SYSTEM: _("System"),
    SUMMARY: _("Summary"),
    MessageType.USER: _("User"),
    MessageType.AI: _("AI"),
    MessageType.TOOL_EXECUTION_RESULT: _("Tool result"),
    MessageType.CUSTOM: _("Custom"),
}
"""The labels of the kinds of messages."""


def kind_of(row: Any) -> str:
    """Return the key of *row* in ``KINDS``. A summary refers to the last message it covers, and is not in history."""
    is_summary = not row.in_history and row.parent_sequence is not None
    return SUMMARY if is_summary else row.type


def style_of(kind: str) -> str:
    """Return the CSS name of a kind of message."""
    return "tool" if kind == MessageType.TOOL_EXECUTION_RESULT else kind.lower()


@dataclass(kw_only=True)
class ShownPart:
    """A piece of a message: a text, or a file at *index* of its contents."""

    index: int = 0
    text: Excerpt | None = None
    html: SafeString | None = None
    """The text rendered from Markdown, if it was."""
    media: Media | None = None


@dataclass(kw_only=True)
class ShownCall:
    """A tool call, and what is known about its result."""

    name: str
    arguments: Excerpt
    answer: Bubble | None = None
    """The message with the result, if it is on the same page."""
    answered_by: int | None = None
    """The sequence of that message, if it is on a newer page."""
    is_unanswered: bool = False
    """True only if all later messages were searched and none has the result."""
    waits: ReasonWords | None = None
    """Why it has no result yet, if that is known."""


@dataclass(kw_only=True)
class Bubble:
    """A message as displayed. For users without permission to read texts, it has none of the content."""

    row: Any
    """The ``Message`` with its status."""
    why: ReasonWords
    """Why the message is or is not sent to the model."""
    begins_memory: bool = False
    waits: ReasonWords | None = None
    """For what one of its calls waits, if it does."""
    is_marked: bool = True
    """Whether the page states whether the message is sent, and why."""
    place: Place | None = None
    """The place of the message among its alternatives on other branches; None if there are none."""
    operations: list[Any] = field(default_factory=list)
    """The operations that the user can perform on it."""
    is_omitted: bool = False
    """The JSON, the metadata or the long text was too large and is not on the page."""
    is_broken: bool = False
    """The stored JSON cannot be read."""
    is_error: bool = False
    is_paired: bool = False
    """The message is displayed with the call that it answers."""
    name: str = ""
    """The name of the author, if the message has one; for a tool result, the name of the tool."""
    thinking: Excerpt | None = None
    attributes: Excerpt | None = None
    metadata: Excerpt | None = None
    parts: list[ShownPart] = field(default_factory=list)
    calls: list[ShownCall] = field(default_factory=list)

    @classmethod
    def of(cls, row: Any, why: ReasonWords | None = None) -> Bubble:
        """Return an empty bubble for *row*; without *why*, the explanation is that of its status."""
        return cls(row=row, why=why or words_of(MemoryStatus(row.status)))

    @property
    def is_summary(self) -> bool:
        """Whether it is a summary of the messages up to its parent."""
        return kind_of(self.row) == SUMMARY

    @property
    def is_on_other_branch(self) -> bool:
        """Whether it is on a branch other than the current one."""
        return self.row.in_history and not self.row.on_path

    @property
    def kind(self) -> str | Promise:
        """The label of its kind."""
        return KINDS[kind_of(self.row)]

    @property
    def style(self) -> str:
        """Its CSS classes."""
        style = f"cm-{style_of(kind_of(self.row))} {'cm-sent' if self.why.is_sent else 'cm-unsent'}"
        return f"{style} cm-failed" if self.is_error else style

    def fill(self, message: ChatMessage, limit: int = EXCERPT, markdown: Markdown | None = None) -> None:
        """Add the contents of *message*, cut to *limit* characters; texts of users and models go through *markdown*."""
        message = shown_message(message)
        match message:
            case SystemMessage():
                self.parts = [ShownPart(text=excerpt(message.text, limit=limit))]
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

    def wait(self, place: int, words: ReasonWords) -> None:
        """Note that the call at *place* has no result yet, and why: it is not that one is missing."""
        self.waits = self.waits or words
        if self.why.short is WORDS[Reason.UNPAIRED_TOOL].short:
            self.why, self.waits = self.why._replace(short=words.short, long=words.long), None
        if place < len(self.calls):
            self.calls[place].waits = words

    def fill_broken(self, text: str, limit: int = EXCERPT) -> None:
        """Add *text* instead of a message that cannot be read."""
        self.is_broken = True
        self.parts = [ShownPart(text=excerpt(text, limit=limit))]

    def fill_metadata(self, metadata: object) -> None:
        """Add the *metadata* of the message."""
        if metadata:
            self.metadata = _json(metadata, EXCERPT)


def _text(text: str, limit: int, markdown: Markdown | None, index: int = 0) -> ShownPart:
    shown = excerpt(text, limit=limit)
    return ShownPart(index=index, text=shown, html=markdown.render(shown.text) if markdown else None)


def _parts(contents: tuple[Content | None, ...], limit: int, markdown: Markdown | None) -> list[ShownPart]:
    parts = []
    for index, content in enumerate(contents):
        if isinstance(content, TextContent):
            parts.append(_text(content.text, limit, markdown, index))
        elif (media := media_of(content)) is not None:
            parts.append(ShownPart(index=index, media=media))
    return parts


def _json(value: object, limit: int) -> Excerpt:
    return pretty_json(json.dumps(value, ensure_ascii=False), limit)


def _call(request: ToolExecutionRequest, limit: int) -> ShownCall:
    return ShownCall(name=visible(request.name or ""), arguments=pretty_json(request.arguments or "", limit))
