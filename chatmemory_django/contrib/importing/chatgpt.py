"""
ChatGPT's exports: trees of messages, which become branches.

Content without a native form is kept in the ``attributes`` of a message: images, which the export only names,
quotations and so on. The model's thoughts become the ``thinking`` of the answer that follows. Messages without content
are left out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from chatmemory_django.contrib.importing.moved import moment
from chatmemory_django.core.limits import MAX_CLIENT_MESSAGE_ID_LENGTH, MAX_TITLE_LENGTH
from chatmemory_django.formats.verbatim import storable
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    NewMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.operations import ImportedConversation, ImportedMessage

FILES = re.compile(r"conversations(-\d+)?\.json")
"""The names of the files of an export: large exports have several."""

NAME = "chatgpt"
"""The attribute for the content that has no native form."""

EVERYBODY = "all"
"""The recipient of an answer that calls no tool."""

TEXTS = ("text", "result", "user_profile", "user_instructions")
"""The keys of text in contents, and in parts of them."""


class _Branch(NamedTuple):
    """A branch of the tree up to a node, for the nodes that follow."""

    message: int = -1
    """The position of the last message up to there."""
    thinking: str | None = None
    """Thoughts that have no answer yet."""
    call: str | None = None
    """The id of the call that has no result yet."""


def read_conversation(item: Any) -> ImportedConversation:
    """Return the conversation *item*; raise ``KeyError`` or ``TypeError`` otherwise."""
    memory_id = item.get("conversation_id") or item["id"]
    if not isinstance(memory_id, str):
        raise TypeError(f"Its id must be a string, not {type(memory_id).__name__}.")
    nodes: Mapping[str, Any] = item["mapping"]
    messages: list[ImportedMessage] = []
    branches: dict[str | None, _Branch] = {}
    for key in _in_order(nodes):
        node = nodes[key]
        before = branches.get(node.get("parent"), _Branch())
        message, after = _read(key, node.get("message"), before)
        if message is not None:
            follows = None if before.message == len(messages) - 1 else before.message
            after = after._replace(message=len(messages))
            time = moment(node["message"].get("create_time"))
            client_message_id = key if 0 < len(key) <= MAX_CLIENT_MESSAGE_ID_LENGTH else None
            new = NewMessage(message, client_message_id=client_message_id)
            messages.append(ImportedMessage(new, time, follows))
        branches[key] = after
    end = branches.get(item.get("current_node"), _Branch()).message
    return ImportedConversation(
        memory_id,
        messages,
        title=storable(title)[:MAX_TITLE_LENGTH] if isinstance(title := item.get("title"), str) else "",
        created_at=moment(item.get("create_time")),
        updated_at=moment(item.get("update_time")),
        is_archived=item.get("is_archived") is True,
        goes_on_from=None if end in {-1, len(messages) - 1} else end,
    )


def _in_order(nodes: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of *nodes* by time, each after its parent, so that new messages come last."""
    children: dict[str | None, list[str]] = {}
    for key, node in nodes.items():
        parent = node.get("parent")
        children.setdefault(parent if parent in nodes else None, []).append(key)
    ranks = {key: rank for rank, key in enumerate(nodes)}
    heap = [(_time(nodes[key], 0.0), ranks[key], key) for key in children.get(None, ())]
    heapify(heap)
    count = 0
    while heap:
        time, _, key = heappop(heap)
        yield key
        count += 1
        for child in children.get(key, ()):
            heappush(heap, (_time(nodes[child], time), ranks[child], child))
    if count < len(nodes):
        raise ValueError(f"{len(nodes) - count} of its messages form a cycle.")


def _time(node: Mapping[str, Any], otherwise: float) -> float:
    time = (node.get("message") or {}).get("create_time")
    return time if isinstance(time, int) or (isinstance(time, float) and math.isfinite(time)) else otherwise


def _read(key: str, message: Mapping[str, Any] | None, before: _Branch) -> tuple[ChatMessage | None, _Branch]:
    """Return the message of the node *key*, or None if it has no content, and the state after it."""
    if message is None:
        return None, before
    content = storable(message["content"])
    text, others = _parts(content)
    attributes = {NAME: others} if others else {}
    author = message["author"]
    match author["role"]:
        case "assistant" if content["content_type"] == "thoughts":
            thoughts = [each.get("content") for each in content["thoughts"]]
            return None, before._replace(thinking="\n\n".join(filter(None, [before.thinking, *thoughts])))
        case "assistant" if (message.get("recipient") or EVERYBODY) != EVERYBODY:
            call = ToolExecutionRequest(key, _tool_name(message["recipient"]), _arguments(text))
            message_with_call = AiMessage(None, before.thinking, [call], attributes)
            return message_with_call, before._replace(thinking=None, call=key)
        case "assistant" if content["content_type"] != "reasoning_recap" and (text or others):
            return AiMessage(text, before.thinking, (), attributes), before._replace(thinking=None, call=None)
        case "tool" if text or others or before.call:
            name, is_error = _tool_name(author.get("name") or "tool"), content["content_type"] == "system_error"
            result = ToolExecutionResultMessage(before.call or key, name, text, is_error or None, attributes)
            return result, before._replace(call=None)
        case "user" if content["content_type"] != "user_editable_context" and (text or others):
            return UserMessage(text, attributes=attributes), before._replace(call=None)
        case "system" | "user" if text:  # a user's custom instructions
            return SystemMessage(text), before
    return None, before


def _parts(content: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Return the text of *content*, and its other parts."""
    parts: Sequence[Any] = content.get("parts", [content])
    texts = [text for part in parts for text in _texts(part)]
    others = [part for part in parts if isinstance(part, dict) and not _texts(part)]
    return "\n".join(text for text in texts if text.strip()), others


def _texts(part: Any) -> list[str]:
    """Return the texts in *part*; empty for an image, for example."""
    if isinstance(part, str):
        return [part]
    return [part[name] for name in TEXTS if isinstance(part, dict) and isinstance(part.get(name), str)]


def _arguments(text: str) -> str:
    """Return the arguments of a call as a JSON object, which calls require; ChatGPT's own tools also take code."""
    try:
        if isinstance(json.loads(text), dict):
            return text
    except ValueError:
        pass
    return json.dumps({"input": text}, ensure_ascii=False)


def _tool_name(name: str) -> str:
    """Return *name* as models accept it: ChatGPT's own tools have names with dots."""
    return re.sub("[^A-Za-z0-9_-]", "_", name)[:64]
