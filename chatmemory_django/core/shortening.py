"""Shorter versions of messages that are too large to be handed over whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import overload

import msgspec

from chatmemory_django.core.limits import texts_of
from chatmemory_django.core.media import is_file
from chatmemory_django.messages import (
    AiMessage,
    AudioContent,
    ChatMessage,
    Content,
    CustomMessage,
    ImageContent,
    PdfFileContent,
    SystemMessage,
    TextContent,
    ToolExecutionResultMessage,
    UserMessage,
    VideoContent,
)

MAX_WORDS = 60
"""How many characters of a message a title has at most: as many as fit a narrow list of conversations."""

FILES = {ImageContent: "image", AudioContent: "audio file", VideoContent: "video", PdfFileContent: "PDF file"}


def shortened(
    messages: Sequence[ChatMessage], cost: Callable[[ChatMessage], int], max_tokens: int
) -> list[ChatMessage]:
    """
    Return *messages* with at most *max_tokens*, where *cost* returns those of one message.

    Texts keep their beginning, all of them up to the same length, and a note of how much is left out, unless the note
    is longer than that; files become a note. Attributes are left out, and the last messages if even that is too much;
    the first one always stays.
    """
    # At least 1, so that files become a note where there is no text.
    length = max((len(text) for message in messages for text in _texts(message)), default=0) or 1
    tokens = sum(map(cost, messages))
    cut = list(messages)
    while tokens > max_tokens and length > 0:
        # A little less than in proportion, since the notes take tokens, too.
        length = length * max_tokens * 9 // (tokens * 10)
        cut = [_cut(message, length) for message in messages]
        tokens = sum(map(cost, cut))
    totals = accumulate(map(cost, cut))
    return [message for message, total in zip(cut, totals, strict=True) if total <= max_tokens] or cut[:1]


def first_words(text: str) -> str:
    """Return the beginning of *text* as a title: whole words of one line, at most ``MAX_WORDS`` characters."""
    words = " ".join(text.split())
    if len(words) <= MAX_WORDS:
        return words
    whole, _, _ = words[:MAX_WORDS].rpartition(" ")
    return (whole or words[: MAX_WORDS - 1]) + "…"


def title_of(message: ChatMessage) -> str:
    """Return the title that *message* gives a conversation, without its files; empty if it has no text."""
    return first_words(" ".join(text for text in _texts(message) if not is_file(text)))


def _texts(message: ChatMessage) -> Iterator[str]:
    return iter([message.text]) if isinstance(message, CustomMessage) else texts_of(message)


def _cut(message: ChatMessage, length: int) -> ChatMessage:
    match message:
        case UserMessage():
            return UserMessage([_cut_content(content, length) for content in message.contents], message.name)
        case ToolExecutionResultMessage():
            contents = [_cut_content(content, length) for content in message.contents]
            return ToolExecutionResultMessage(message.id, message.tool_name, contents, message.is_error)
        case AiMessage():
            calls = [
                msgspec.structs.replace(call, arguments=_cut_text(call.arguments, length))
                for call in message.tool_execution_requests
            ]
            return AiMessage(_cut_text(message.text, length), _cut_text(message.thinking, length), calls)
        case CustomMessage():
            return CustomMessage({"text": _cut_text(message.text, length)})
        case SystemMessage():
            return SystemMessage(_cut_text(message.text, length))


def _cut_content(content: Content | None, length: int) -> TextContent:
    if isinstance(content, TextContent):
        return TextContent(_cut_text(content.text, length))
    return TextContent("" if content is None else f"[{FILES[type(content)]} left out]")


@overload
def _cut_text(text: str, length: int) -> str: ...
@overload
def _cut_text(text: str | None, length: int) -> str | None: ...
def _cut_text(text: str | None, length: int) -> str | None:
    if text is None or len(text) <= length:
        return text
    cut = f"{text[:length]}… [{len(text) - length:,} characters left out]"
    return cut if len(cut) < len(text) else text
