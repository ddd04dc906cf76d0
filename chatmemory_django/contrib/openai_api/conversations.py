"""
The items of OpenAI's Conversations API, as it was in 2026: the complete form of those in ``openai_items``.

Fields that a client left out are filled in for responses: the type, the status, and the content as a list of parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chatmemory_django.core.limits import checked_client_message_id
from chatmemory_django.formats.openai_items import NAME, item_to_message, message_to_items
from chatmemory_django.formats.verbatim import Format

REQUIRED: Mapping[str, tuple[str, ...]] = {
    "additional_tools": ("role", "tools"),
    "apply_patch_call": ("call_id", "operation", "status"),
    "apply_patch_call_output": ("call_id", "status"),
    "code_interpreter_call": ("id", "container_id", "status"),
    "compaction": ("encrypted_content",),
    "computer_call": ("id", "call_id", "pending_safety_checks", "status"),
    "computer_call_output": ("call_id", "output"),
    "configuration_update": (),
    "custom_tool_call": ("call_id", "input", "name"),
    "custom_tool_call_output": ("call_id", "output"),
    "file_search_call": ("id", "queries", "status"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("output",),
    "image_generation_call": ("id", "status"),
    "local_shell_call": ("id", "action", "call_id", "status"),
    "local_shell_call_output": ("id", "output"),
    "mcp_approval_request": ("id", "arguments", "name", "server_label"),
    "mcp_approval_response": ("approval_request_id", "approve"),
    "mcp_call": ("id", "arguments", "name", "server_label"),
    "mcp_list_tools": ("id", "server_label", "tools"),
    "message": ("role", "content"),
    "program": ("id", "call_id", "code", "fingerprint"),
    "program_output": ("id", "call_id", "result", "status"),
    "reasoning": ("summary",),
    "shell_call": ("action", "call_id"),
    "shell_call_output": ("call_id", "output"),
    "tool_search_call": ("arguments",),
    "tool_search_output": ("tools",),
    "web_search_call": ("id", "action", "status"),
}
"""The types of items that clients can send, with their required fields; taken from OpenAI's client 3.54."""

KEPT_IDS = frozenset({name for name, keys in REQUIRED.items() if "id" in keys} | {"reasoning"})
"""The types whose id is kept as it is sent: other items, or their encrypted content, refer to it."""

TEXTS = {
    **dict.fromkeys(("input_text", "output_text", "reasoning_text", "summary_text", "text"), "text"),
    "refusal": "refusal",
}
"""The types of parts that are texts, with the key of the text."""

SOURCES = {
    "computer_screenshot": ("image_url", "file_id"),
    "input_audio": ("input_audio",),
    "input_file": ("file_data", "file_id", "file_url"),
    "input_image": ("image_url", "file_id"),
}
"""The types of parts that are files, with the keys that can locate the file."""

ROLES = frozenset({"assistant", "developer", "system", "user"})
STATUSES = frozenset({"completed", "in_progress", "incomplete"})
WITH_STATUS = frozenset({"function_call", "function_call_output", "message"})


class ItemError(ValueError):
    """An invalid item; *param* is the path of the invalid value in it, for example "content[0].text"."""

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(reason)
        self.param = param


def check_item(item: Mapping[str, Any]) -> None:
    """Raise ``ItemError`` if clients cannot send *item*. Unknown fields are accepted."""
    kind = item.get("type") or "message"
    if not isinstance(kind, str) or kind not in REQUIRED:
        raise ItemError(
            "type", f"{str(kind)[:64]!r} is not a type of item; the types are {', '.join(sorted(REQUIRED))}."
        )
    for name in REQUIRED[kind]:
        if item.get(name) is None:
            raise ItemError(name, f"This field is required for an item of the type {kind!r}.")
    if kind in KEPT_IDS:
        try:
            checked_client_message_id(item.get("id"), "It")
        except (TypeError, ValueError) as exc:
            raise ItemError("id", str(exc)) from None
    if item.get("call_id") is not None:
        _check_text("call_id", item["call_id"])
    if kind in WITH_STATUS and item.get("status") is not None:
        _check_choice("status", item["status"], STATUSES)
    if kind in _CHECKS:
        _CHECKS[kind](item)


def normalized(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return any *item* in its complete form, without its id unless the type keeps ids."""
    kind = item.get("type")
    if not isinstance(kind, str):
        kind = "message"
    has_id = kind in KEPT_IDS and isinstance(item.get("id"), str)
    full = {name: value for name, value in item.items() if name != "id" or has_id}
    full["type"] = kind
    if kind == "message":
        full["content"] = _parts(item.get("content"), is_answer=item.get("role") == "assistant")
    elif kind == "function_call_output" and isinstance(item.get("output"), list):
        full["output"] = _parts(item["output"], is_answer=False)
    if kind in WITH_STATUS and full.get("status") is None:
        full["status"] = "completed"
    return full


CONVERSATION_ITEMS = Format(
    NAME, item_to_message, lambda message: [normalized(item) for item in message_to_items(message)]
)
"""The format of items that are ``normalized``."""


def _parts(content: object, *, is_answer: bool) -> object:
    """Return *content*, a text or parts, as complete parts."""
    if isinstance(content, str):
        content = [{"type": "output_text" if is_answer else "input_text", "text": content}]
    if not isinstance(content, list):
        return content
    return [_part(part) if isinstance(part, dict) else part for part in content]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    match part.get("type"):
        case "output_text" if part.get("annotations") is None:
            return {**part, "annotations": []}
        case "input_image" if part.get("detail") is None:
            return {**part, "detail": "auto"}
    return part


def _check_message(item: Mapping[str, Any]) -> None:
    _check_choice("role", item["role"], ROLES)
    _check_parts("content", item["content"])


def _check_call(item: Mapping[str, Any]) -> None:
    for name in ("name", "arguments"):
        _check_text(name, item[name])


def _check_reasoning(item: Mapping[str, Any]) -> None:
    if not item.get("id") and not item.get("encrypted_content"):
        raise ItemError("id", "An item of the type 'reasoning' needs its id or its encrypted_content.")
    for name in ("summary", "content"):
        if item.get(name) is not None:
            _check_parts(name, item[name], is_text=False)


_CHECKS: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "message": _check_message,
    "function_call": _check_call,
    "function_call_output": lambda item: _check_parts("output", item["output"]),
    "reasoning": _check_reasoning,
}


def _check_parts(where: str, content: object, *, is_text: bool = True) -> None:
    if is_text and isinstance(content, str):
        return
    if not isinstance(content, list):
        raise ItemError(where, f"It must be {'a string or ' if is_text else ''}a list of parts.")
    for index, part in enumerate(content):
        path = f"{where}[{index}]"
        if not isinstance(part, dict):
            raise ItemError(path, "It must be an object.")
        kind = str(part.get("type"))
        if kind in TEXTS:
            _check_text(f"{path}.{TEXTS[kind]}", part.get(TEXTS[kind]))
        elif kind not in SOURCES:
            raise ItemError(f"{path}.type", f"It must be one of {', '.join(sorted({*TEXTS, *SOURCES}))}.")
        elif all(part.get(name) is None for name in SOURCES[kind]):
            raise ItemError(path, f"A part of the type {kind!r} needs {' or '.join(SOURCES[kind])}.")


def _check_text(where: str, value: object) -> None:
    if not isinstance(value, str):
        raise ItemError(where, f"It must be a string, not {type(value).__name__}.")


def _check_choice(where: str, value: object, choices: frozenset[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ItemError(where, f"It must be one of {', '.join(sorted(choices))}.")
