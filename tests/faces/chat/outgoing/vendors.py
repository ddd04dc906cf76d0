"""
What vendors refuse, from their documentation: it judges what is sent, and knows nothing of how that is made.

Each vendor is a function that yields a sentence for each rule that messages break.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

from chatmemory_django.messages import (
    AiMessage,
    AudioContent,
    ChatMessage,
    CustomMessage,
    ImageContent,
    PdfFileContent,
    SystemMessage,
    TextContent,
    ToolExecutionResultMessage,
    UserMessage,
    VideoContent,
)

Messages = Sequence[ChatMessage]


def texts_of(message: ChatMessage) -> list[str]:
    if isinstance(message, SystemMessage):
        return [message.text]
    if isinstance(message, AiMessage):
        return [] if message.text is None else [message.text]
    return [each.text for each in message.contents if isinstance(each, TextContent)]


def calls_of(messages: Messages) -> list:
    return [call for each in messages if isinstance(each, AiMessage) for call in each.tool_execution_requests]


def contents_of(messages: Messages) -> list:
    return [
        (message, content)
        for message in messages
        if isinstance(message, UserMessage | ToolExecutionResultMessage)
        for content in message.contents
    ]


def spoken(messages: Messages) -> list[ChatMessage]:
    return [each for each in messages if not isinstance(each, SystemMessage)]


def everywhere(messages: Messages) -> Iterator[str]:
    if not messages:
        yield "a request has messages"
    for each in messages:
        if isinstance(each, CustomMessage):
            yield "custom messages are nobody's"
        elif isinstance(each, AiMessage):
            if not (each.text or each.tool_execution_requests):
                yield "an answer has a text or calls"
        elif isinstance(each, UserMessage) and not re.fullmatch(r"[^\s<|\\/>]{1,64}", each.name or "nobody"):
            yield "the name of a speaker"
    for message, content in contents_of(messages):
        if content is None:
            yield f"{type(message).__name__} has an empty content"
    waiting: list[str | None] = []
    for each in messages:
        if isinstance(each, ToolExecutionResultMessage):
            if not waiting or each.id != waiting.pop(0):
                yield "results are directly behind their calls, one for each"
        elif waiting:
            yield "each call has a result, and nothing stands between them"
            waiting = []
        elif isinstance(each, AiMessage):
            waiting = [call.id for call in each.tool_execution_requests]
    if waiting:
        yield "the last calls have results"
    ids = [call.id for call in calls_of(messages)]
    if len(set(ids)) < len(ids):
        yield "ids are unique"
    if any(call.arguments is None for call in calls_of(messages)):
        yield "calls have arguments"


def ids(pattern: str, messages: Messages) -> Iterator[str]:
    if not all(call.id and re.fullmatch(pattern, call.id, re.DOTALL) for call in calls_of(messages)):
        yield f"ids match {pattern}"


def tool_names(pattern: str, messages: Messages) -> Iterator[str]:
    results = [each.tool_name for each in messages if isinstance(each, ToolExecutionResultMessage)]
    if not all(re.fullmatch(pattern, name or "", re.DOTALL) for name in results):
        yield "results name their tools"
    if not all(re.fullmatch(pattern, call.name or "", re.DOTALL) for call in calls_of(messages)):
        yield f"names of tools match {pattern}"


def system_first(messages: Messages) -> Iterator[str]:
    roles = [isinstance(each, SystemMessage) for each in messages]
    if roles != sorted(roles, reverse=True):
        yield "system messages come first"


def one_system(messages: Messages) -> Iterator[str]:
    if sum(isinstance(each, SystemMessage) for each in messages) > 1:
        yield "there is one system message"


def user_first(messages: Messages) -> Iterator[str]:
    if not isinstance((spoken(messages) or [None])[0], UserMessage):
        yield "the first message is a user's"


def answer_not_last(messages: Messages) -> Iterator[str]:
    if isinstance(messages[-1], AiMessage):
        yield "the last message is not the assistant's"


def alternate(messages: Messages) -> Iterator[str]:
    roles = [type(each) for each in spoken(messages)]
    if any(first is second and first in {UserMessage, AiMessage} for first, second in pairwise(roles)):
        yield "roles alternate"


def no_user_after_result(messages: Messages) -> Iterator[str]:
    roles = [type(each) for each in spoken(messages)]
    if (ToolExecutionResultMessage, UserMessage) in pairwise(roles):
        yield "no user directly after a tool"


def no_blank(messages: Messages) -> Iterator[str]:
    if any(not text.strip() for each in messages for text in texts_of(each)):
        yield "no text is blank"


def one_call(messages: Messages) -> Iterator[str]:
    if any(len(each.tool_execution_requests) > 1 for each in messages if isinstance(each, AiMessage)):
        yield "an answer has one call"


def no_tools(messages: Messages) -> Iterator[str]:
    if calls_of(messages) or any(isinstance(each, ToolExecutionResultMessage) for each in messages):
        yield "there are no calls and no results"


def objects(messages: Messages) -> Iterator[str]:
    for call in calls_of(messages):
        try:
            read = json.loads(call.arguments)
        except ValueError:
            read = None
        if not isinstance(read, dict):
            yield "arguments are a JSON object"


def files(*known: type, most: int | None = None) -> Callable[[Messages], Iterator[str]]:
    def check(messages: Messages) -> Iterator[str]:
        kinds = [type(content) for _, content in contents_of(messages)]
        if not {TextContent, *known}.issuperset(kinds):
            yield "files of other kinds"
        if most is not None and kinds.count(ImageContent) > most:
            yield "too many images"

    return check


def text_beside_documents(messages: Messages) -> Iterator[str]:
    for message in messages:
        if isinstance(message, UserMessage | ToolExecutionResultMessage):
            kinds = {type(each) for each in message.contents}
            if PdfFileContent in kinds and TextContent not in kinds:
                yield "a document has a text beside it"


STANDARD = "[A-Za-z0-9_-]{1,64}"
ALL = (ImageContent, AudioContent, VideoContent, PdfFileContent)
KEPT = files(ImageContent, AudioContent, PdfFileContent)

VENDORS: dict[str, tuple[Callable[[Messages], Iterator[str]], ...]] = {
    "OPENAI": (partial(ids, ".{1,40}"), partial(tool_names, STANDARD), KEPT),
    "OPENAI_RESPONSES": (
        partial(ids, ".{1,64}"),
        partial(tool_names, STANDARD),
        files(ImageContent, PdfFileContent),
    ),
    "ANTHROPIC": (
        system_first,
        user_first,
        answer_not_last,
        no_blank,
        partial(ids, "[A-Za-z0-9_-]+"),
        partial(tool_names, "[A-Za-z0-9_-]{1,128}"),
        objects,
        files(ImageContent, PdfFileContent, most=100),
    ),
    "GEMINI": (
        system_first,
        user_first,
        answer_not_last,
        alternate,  # the turn before a call is a user's or a response
        no_blank,
        partial(ids, ".+"),
        partial(tool_names, "[A-Za-z0-9_.:-]{1,64}"),
        objects,
        files(*ALL),
    ),
    "BEDROCK": (
        system_first,
        user_first,
        answer_not_last,
        alternate,
        no_blank,
        partial(ids, STANDARD),
        partial(tool_names, STANDARD),
        objects,
        files(ImageContent, PdfFileContent),
        text_beside_documents,
    ),
    "MISTRAL": (
        system_first,
        user_first,
        answer_not_last,
        no_user_after_result,
        partial(ids, "[A-Za-z0-9]{9}"),
        partial(tool_names, "[A-Za-z0-9_-]+"),
        objects,
        files(ImageContent),
    ),
    "DEEPSEEK": (partial(tool_names, STANDARD), files()),
    "MOONSHOT": (partial(tool_names, STANDARD), files()),
    "OPEN_MODEL": (system_first, one_system, user_first, alternate, objects, files(*ALL)),
    "LLAMA_3": (system_first, one_system, user_first, alternate, objects, one_call),
    "WITHOUT_TOOLS": (system_first, one_system, user_first, alternate, no_tools),
}


def broken(vendor: str, messages: Messages) -> list[str]:
    """Return the rules of *vendor* that *messages* break; those of most together for STRICTEST, except files."""
    messages = [each for each in messages if not isinstance(each, CustomMessage)]  # classes of vendors leave them out
    named = (
        [vendor]
        if vendor in VENDORS
        else [name for name in VENDORS if name not in {"MISTRAL", "LLAMA_3", "WITHOUT_TOOLS"}]
    )
    checks = [everywhere, *(check for name in named for check in VENDORS[name])]
    if vendor not in VENDORS:
        checks = [each for each in checks if "files.<locals>" not in repr(each)]
    return [sentence for check in checks for sentence in check(messages)]
