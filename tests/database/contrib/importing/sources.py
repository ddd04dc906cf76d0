"""Data of other frameworks, and helpers to import it."""

import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from chatmemory_django.messages import ChatMessage
from chatmemory_django.models import Conversation
from chatmemory_django.operations import ImportedConversation, ImportResult, import_conversations


def imported(conversation: ImportedConversation) -> ImportResult:
    """Import *conversation*, and return what became of it."""
    results: list[ImportResult] = []
    count = import_conversations([conversation], each=lambda each, result: results.append(result))
    assert count == (results != [ImportResult.PRESENT])
    return results[0]


def moved(framework: str, source: object, *options: str, stderr: io.StringIO | None = None) -> str:
    """Return the output of the command."""
    out = io.StringIO()
    call_command(
        "import_chatmemory", "--from", framework, str(source), *options, stdout=out, stderr=stderr or io.StringIO()
    )
    return out.getvalue()


def refused(framework: str, source: object, *options: str) -> list[str]:
    """Return the command's output about conversations that it does not import."""
    errors = io.StringIO()
    with pytest.raises(CommandError, match=r"conversations were not imported\.$"):
        moved(framework, source, *options, stderr=errors)
    lines = errors.getvalue().splitlines()
    return [line for line in lines if line.startswith(("'", '"'))]  # not those of the progress of a slow import


def messages_of(memory_id: str) -> list[ChatMessage]:
    return [row.chat_message for row in Conversation.objects.get(memory_id=memory_id).history()]


def _node(key: str, parent: str | None, role: str | None = None, *, time: float | None = None, **message: Any) -> Any:
    content = message.pop("content", None) or {"content_type": "text", "parts": [message.pop("text", "")]}
    author = {"role": role, "name": message.pop("name", None), "metadata": {}}
    content_of_node = {
        "id": key, "author": author, "create_time": time, "content": content, "status": "finished_successfully",
        "weight": 1.0, "metadata": {}, "recipient": "all", **message,
    }  # fmt: skip
    return {"id": key, "message": None if role is None else content_of_node, "parent": parent, "children": []}


def _tree(*nodes: Any, current: str, memory_id: str, **others: Any) -> Any:
    mapping = {node["id"]: node for node in nodes}
    for node in nodes:
        if node["parent"] is not None:
            mapping[node["parent"]]["children"].append(node["id"])
    return {
        "title": "Zeitfragen 🕛", "create_time": 1_700_000_000.5, "update_time": 1_700_000_900.0, "mapping": mapping,
        "moderation_results": [], "current_node": current, "conversation_id": memory_id, "id": memory_id, **others,
    }  # fmt: skip


TREE = _tree(
    _node("root", None),
    _node("system", "root", "system"),
    _node(
        "about",
        "system",
        "user",
        content={
            "content_type": "user_editable_context",
            "user_profile": "I live in Rome.",
            "user_instructions": "Be brief.",
        },
    ),
    _node(
        "q",
        "about",
        "user",
        time=1_700_000_100.0,
        content={
            "content_type": "multimodal_text",
            "parts": [
                {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-abc"},
                "Wie spät ist es?",
            ],
        },
    ),
    _node(
        "thoughts",
        "q",
        "assistant",
        time=1_700_000_101.0,
        content={"content_type": "thoughts", "thoughts": [{"summary": "Clock", "content": "A clock would help."}]},
    ),
    _node(
        "call",
        "thoughts",
        "assistant",
        time=1_700_000_102.0,
        recipient="python",
        content={"content_type": "code", "language": "python", "text": "import time; print(time.time())"},
    ),
    _node(
        "result",
        "call",
        "tool",
        name="python",
        time=1_700_000_103.0,
        content={"content_type": "execution_output", "text": "1700000000"},
    ),
    _node(
        "recap",
        "result",
        "assistant",
        time=1_700_000_104.0,
        content={"content_type": "reasoning_recap", "content": "Thought for 3 seconds"},
    ),
    _node("answer", "recap", "assistant", time=1_700_000_105.0, text="Kurz nach zehn."),
    _node("thanks", "answer", "user", time=1_700_000_106.0, text="Danke!"),
    current="thanks",
    memory_id="6f1c8b1e-0000-4000-8000-000000000001",
    is_archived=True,
)


def single_message(role: str, content: Any, **message: Any) -> Any:
    """Return a conversation of one message."""
    return _tree(_node("n", None, role, content=content, **message), current="n", memory_id="one")


def branching(current: str = "more") -> Any:
    """Return a conversation with two answers to a question, of which the second was continued."""
    return _tree(
        _node("question", None, "user", text="Hi", time=1_700_000_000.0),
        _node("answer-1", "question", "assistant", text="First", time=1_700_000_001.0),
        _node("answer-2", "question", "assistant", text="Second", time=1_700_000_002.0),
        _node("more", "answer-2", "user", text="More", time=1_700_000_003.0),
        current=current,
        memory_id="6f1c8b1e-0000-4000-8000-000000000009",
    )
