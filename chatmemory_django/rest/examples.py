"""Examples for the OpenAPI page."""

from __future__ import annotations

from typing import Any

from chatmemory_django.rest.problems import Problem
from chatmemory_django.rest.shapes import (
    Added,
    ConversationChange,
    ConversationPage,
    ConversationView,
    Imported,
    MemoryView,
    MessagePage,
    NewConversation,
    NewMemory,
    NewMessages,
    ToldMessage,
    UsageView,
)

MEMORY_ID = "0192f5a0-7c1e-7b39-9d3c-2f6d1c0b7a11"
MOMENT = "2026-11-21T09:30:00Z"

CONVERSATION = {
    "memory_id": MEMORY_ID,
    "owner": "7",
    "title": "Where is my parcel?",
    "metadata": {"topic": "orders"},
    "messages": 2,
    "memory_messages": 2,
    "created_at": MOMENT,
    "updated_at": MOMENT,
}
SYSTEM = {"type": "SYSTEM", "text": "You help with orders. Be brief."}
QUESTION = {"type": "USER", "contents": [{"type": "TEXT", "text": "Where is my parcel?"}]}
CALL = {
    "type": "AI",
    "toolExecutionRequests": [{"id": "1", "name": "track", "arguments": '{"order": 4711}'}],
}
RESULT = {
    "type": "TOOL_EXECUTION_RESULT",
    "id": "1",
    "toolName": "track",
    "contents": [{"type": "TEXT", "text": "It left Hamburg this morning."}],
}
STORED = {**QUESTION, "sequence": 2, "created_at": MOMENT, "in_memory": True, "is_complete": True, "token_count": 9}

EXAMPLES: dict[type, dict[str, Any]] = {
    NewConversation: {
        "named by the client": {"memory_id": MEMORY_ID, "title": "Where is my parcel?"},
        "named here": {},
    },
    ConversationChange: {"another title": {"title": "My parcel"}},
    ConversationView: {"a conversation": CONVERSATION},
    ConversationPage: {"the only page": {"results": [CONVERSATION], "next": None}},
    NewMessages: {
        "what a person says": {"messages": [SYSTEM, QUESTION]},
        "what the model answers": {
            "messages": [{"type": "AI", "text": "It left Hamburg this morning."}],
            "metadata": {"model": "gpt-4o-mini", "usage": {"total_tokens": 42}},
        },
        "a call of a tool and its result": {"messages": [CALL, RESULT]},
        "a picture": {
            "messages": [
                {
                    "type": "USER",
                    "contents": [
                        {"type": "TEXT", "text": "What is this?"},
                        {"type": "IMAGE", "image": {"url": "https://example.com/a.png"}, "detailLevel": "LOW"},
                    ],
                }
            ]
        },
        "to be sent again if need be": {
            "messages": [QUESTION],
            "client_message_ids": ["msg_1b4e28ba"],
        },
        "as for OpenAI": {"messages": [{"role": "user", "content": "Where is my parcel?"}]},
    },
    Added: {"two messages": {"sequences": [1, 2]}},
    NewMemory: {"a summary": {"messages": [{"type": "SYSTEM", "text": "They ask for order 4711."}, QUESTION]}},
    MessagePage: {"the only page": {"results": [STORED], "next": None, "previous": None}},
    ToldMessage: {"a message": STORED},
    MemoryView: {
        "as it is": {"messages": [STORED], "limit": 20, "unit": "messages"},
        "explained": {
            "messages": [STORED],
            "limit": 1,
            "unit": "messages",
            "explanation": [
                {"sequence": 1, "type": "USER", "sent": False, "reason": "evicted", "token_count": 12},
                {"sequence": 2, "type": "USER", "sent": True, "reason": "in_window", "token_count": 9},
            ],
        },
    },
    UsageView: {
        "by model": {
            "by": "model",
            "since": "2026-10-22T09:30:00Z",
            "until": MOMENT,
            "results": [{"key": "gpt-4o-mini", "messages": 12, "tokens": 345}],
        }
    },
    Imported: {"one conversation": {"conversations": [{"memory_id": MEMORY_ID, "messages": 2}]}},
    Problem: {
        "a wrong field": {
            "title": "Bad Request",
            "status": 400,
            "detail": "There is no such field.",
            "errors": [{"path": "$.messages[0].txt", "detail": "There is no such field."}],
            "type": "about:blank",
        }
    },
}
