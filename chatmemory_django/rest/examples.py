"""Examples for the OpenAPI schema."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiExample

from chatmemory_django import conf

MEMORY_ID = "0192f5a0-7c1e-7b39-9d3c-2f6d1c0b7a11"
MOMENT = "2026-11-21T09:30:00Z"

QUESTION = {"type": "USER", "contents": [{"type": "TEXT", "text": "Where is my parcel?"}]}
ASKED = {"role": "user", "content": "Where is my parcel?"}
"""``QUESTION`` in OpenAI's format."""

CALL = {"type": "AI", "toolExecutionRequests": [{"id": "1", "name": "track", "arguments": '{"order": 4711}'}]}
RESULT = {
    "type": "TOOL_EXECUTION_RESULT",
    "id": "1",
    "toolName": "track",
    "contents": [{"type": "TEXT", "text": "It left Hamburg this morning."}],
}
PICTURE = {
    "type": "USER",
    "contents": [
        {"type": "TEXT", "text": "What is this?"},
        {"type": "IMAGE", "image": {"url": "https://example.com/a.png"}, "detailLevel": "LOW"},
    ],
}
STORED = {
    "sequence": 2,
    "created_at": MOMENT,
    "in_memory": True,
    "on_path": True,
    "place": {"number": 1, "of": 2, "previous": None, "next": 4},
    "token_count": 9,
    "client_message_id": "msg_1b4e28ba",
    "metadata": None,
    "is_complete": True,
    "is_pinned": False,
    "text": "Where is my parcel?",
    "message": QUESTION,
}
HIT = {
    "memory_id": MEMORY_ID,
    "title": "Where is my parcel?",
    "sequence": 2,
    "type": "USER",
    "created_at": MOMENT,
    "snippet": [{"text": "Where is my ", "is_hit": False}, {"text": "parcel", "is_hit": True}],
}
EXPLAINED = {"sequence": 2, "type": "USER", "is_sent": True, "reason": "in_window", "token_count": 9}

CHANGE = {"title": "Parcel 4711", "metadata": {"ticket": 7}, "is_pinned": True}
NEW_CONVERSATION = {"memory_id": MEMORY_ID, "title": "Where is my parcel?"}
NEW_MESSAGES: dict[str, Any] = {
    "A user message": {"messages": [{"message": ASKED, "client_message_id": "msg_1b4e28ba"}]},
    "The same in LangChain4j's format": {"messages": [{"message": QUESTION, "client_message_id": "msg_1b4e28ba"}]},
    "An edit of message 2": {"messages": [{"message": QUESTION}], "after": 1},
    "A picture": {"messages": [{"message": PICTURE}]},
    "A tool call and its result": {
        "messages": [{"message": CALL, "metadata": {"model": "gpt-4o-mini"}}, {"message": RESULT}]
    },
}
STORED_MESSAGES = {"messages": [STORED]}
NEW_MEMORY = {"messages": [{"message": {"role": "system", "content": "They ask for order 4711."}}, {"message": ASKED}]}
MEMORY = {
    "messages": [STORED],
    "left_out": [],
    "limit": 20,
    "evict_to": None,
    "unit": "messages",
    "explanation": [EXPLAINED],
}
FROM = {"to": 1}
FORK = {"through": 1}
REMOVED = {"removed": [2]}
FEEDBACK = {"metadata": {"feedback": {"rating": 5}}}


def in_site_format(value: Any) -> Any:
    """Return an example of a response with its messages in the site's format."""
    if isinstance(value, list):
        return [in_site_format(each) for each in value]
    if not isinstance(value, dict) or conf.rest().FORMAT != "openai":
        return value
    return ASKED if value == QUESTION else {name: in_site_format(each) for name, each in value.items()}


def shown(value: Any, *, request: bool = False) -> list[OpenApiExample]:
    """Return *value* as drf-spectacular's examples of a request or a response; ``NEW_MESSAGES`` holds several."""
    named = value if value is NEW_MESSAGES else {"An example": value}
    return [OpenApiExample(name, each, request_only=request, response_only=not request) for name, each in named.items()]
