"""The types of the API as the components of the OpenAPI schema, with what their checks and the settings ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import msgspec

from chatmemory_django import conf
from chatmemory_django.formats.openai_chat import OpenAiMessage
from chatmemory_django.messages import MESSAGE_CLASSES
from chatmemory_django.rest.json_schema import discriminated, reference, schema_of
from chatmemory_django.rest.shapes import (
    STORED_CLASSES,
    MemoryView,
    MessagePage,
    NewMemory,
    NewMessages,
    ToldMessage,
)

BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
NOT_BLANK = r"[^\u0000-\u0020]"

UNIONS: dict[str, Sequence[type[msgspec.Struct]]] = {
    "ChatMessage": MESSAGE_CLASSES,
    "OpenAiMessage": get_args(OpenAiMessage),
    "StoredMessage": STORED_CLASSES,
}
"""The unions that get a name of their own. Which of its kinds a message is, its ``type`` or ``role`` tells."""

HOLDERS: dict[type, tuple[str, str]] = {
    NewMessages: ("messages", "ChatMessage"),
    NewMemory: ("messages", "ChatMessage"),
    MemoryView: ("messages", "StoredMessage"),
    MessagePage: ("results", "StoredMessage"),
}
"""The types that hold messages, in which field, and as which they tell them, if not as OpenAI's."""


def components(kind: type) -> dict[str, Any]:
    """The schemas of *kind* and of all that it refers to, by their names."""
    found: dict[str, Any] = {}
    if kind is ToldMessage:
        found[kind.__name__] = {"anyOf": _either("StoredMessage", found)}
    else:
        schema_of(kind, found)
    if kind in HOLDERS:
        field, own = HOLDERS[kind]
        # All in one format: a list is never mixed.
        bound = {"maxItems": conf.rest()["MAX_MESSAGES"]} if own == "ChatMessage" else {}
        found[kind.__name__]["properties"][field] = {
            "anyOf": [{"type": "array", "items": each, **bound} for each in _either(own, found)]
        }
    for name, schema in found.items():
        _say_what_is_checked(name, schema)
    return found


def parameters(kind: type[msgspec.Struct]) -> list[dict[str, Any]]:
    """The query parameters that *kind* has for fields."""
    found: list[dict[str, Any]] = []
    for field in msgspec.structs.fields(kind):
        enums: dict[str, Any] = {}
        schema = schema_of(field.type, enums)
        # What is left out is None to Python; nobody can send a null in a query.
        schema = next(each for each in schema.get("anyOf", [schema]) if each != {"type": "null"})
        description = schema.pop("description", "")
        if name := schema.pop("$ref", "").rpartition("/")[2]:
            schema = {key: value for key, value in enums[name].items() if key != "description"}
        if field.encode_name == "limit":
            schema["maximum"] = conf.rest()["MAX_PAGE_SIZE"]
        found.append({"name": field.encode_name, "in": "query", "description": description, "schema": schema})
    return found


def _either(own: str, found: dict[str, Any]) -> list[dict[str, Any]]:
    """References to the unions that messages are of: *own*, and OpenAI's."""
    for name in (own, "OpenAiMessage"):
        found[name] = discriminated(UNIONS[name], found)
    return [reference(own), reference("OpenAiMessage")]


def _say_what_is_checked(name: str, schema: dict[str, Any]) -> None:
    properties = schema.get("properties", {})
    if "contents" in properties:
        properties["contents"]["minItems"] = 1
        schema["required"] = sorted({*schema["required"], "contents"})
    if name == "Audio":
        properties["binaryData"]["anyOf"][0]["pattern"] = BASE64
    if name in {"SystemMessage", "StoredSystemMessage"}:
        properties["text"]["pattern"] = NOT_BLANK
