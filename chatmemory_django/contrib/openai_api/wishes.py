"""What OpenAI's clients wish for an answer: function tools, and the form of the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from chatmemory_django.chat.http.declared import NAME, bounded, checked_schema, declared_tools
from chatmemory_django.chat.http.posted import NULL, decode_body, read_value
from chatmemory_django.chat.model import ResponseFormat, ToolChoice, ToolSpecification
from chatmemory_django.chat.wishes import Wishes


class AnswerRequest(msgspec.Struct, kw_only=True):
    """The fields of a body that both APIs have. What the model is asked beside, like a temperature, is the site's."""

    model: str
    stream: bool | None = None
    store: bool | None = None
    metadata: msgspec.Raw = NULL
    tools: msgspec.Raw = NULL
    tool_choice: msgspec.Raw = NULL

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Parse *content*, a JSON object; raise ``ValueError`` with the path of what is invalid."""
        return decode_body(content, cls, "$")

    def rest(self) -> dict[str, Any]:
        """Return the fields, beside the metadata, that the site's functions see, and that a run keeps."""
        return {"model": self.model}

    def pairs(self) -> dict[str, Any]:
        """Return the metadata."""
        return read_value(self.metadata, dict[str, Any] | None, "$.metadata") or {}  # type: ignore[arg-type]

    def wishes(self, context: str) -> Wishes:
        """Return what the client wishes, with *context*; ``ValueError`` with the path of what is invalid."""
        form, path = self.form()
        own = declared_tools(self.tools, _function)
        chosen = _choice(read_value(bounded(self.tool_choice, "$.tool_choice"), Any, "$.tool_choice"), own)
        if chosen == ToolChoice.NONE.value:
            own, chosen = (), None
        return Wishes(own, chosen, _format(form, path), context)

    def form(self) -> tuple[Any, str]:
        """Return the form of the answer as the client wants it, and its path in the body."""
        raise NotImplementedError


def _function(tool: Mapping[str, Any], path: str) -> tuple[Any, str] | None:
    """Return what declares a function, which is flat or below "function"; OpenAI would run tools of other types."""
    if tool.get("type") != "function":
        return None
    return (tool["function"], f"{path}.function") if "function" in tool else (tool, path)


def _choice(choice: Any, tools: Sequence[ToolSpecification]) -> str | None:
    match choice:
        case None | "auto":
            return None
        case "none" | "required":
            return str(choice)
        case {"type": "function", "function": {"name": str() as name}} | {"type": "function", "name": str() as name}:
            if any(tool.name == name for tool in tools):
                return name
            raise ValueError(f"$.tool_choice: there is no tool {name[:64]!r} among the tools.")
    return None  # of the kinds of tools that are left out


def _format(form: Any, path: str) -> ResponseFormat | None:
    kind = form.get("type") if isinstance(form, Mapping) else form
    if kind is None or kind == "text":
        return None
    if kind == "json_object":
        return ResponseFormat()
    given = form.get("json_schema", form) if isinstance(form, Mapping) and kind == "json_schema" else None
    match given:
        case {"name": str() as name, "schema": Mapping() as schema} if NAME.fullmatch(name):
            return ResponseFormat(checked_schema(schema, f"{path}.schema"), name)
    raise ValueError(f"{path}: it must be text, json_object, or json_schema with a name and a schema.")
