"""What OpenAI's clients wish for an answer: function tools, and the form of the answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from chatmemory_django.chat.http.posted import MAX_REST_BYTES, read_value
from chatmemory_django.chat.model import ResponseFormat, ToolChoice, ToolSpecification
from chatmemory_django.chat.ui_messages.reading import verbatim
from chatmemory_django.chat.wishes import Wishes
from chatmemory_django.core.limits import MAX_METADATA_DEPTH

MAX_TOOLS = 128
"""How many tools a client declares at most, the same as OpenAI's."""

_NAME = re.compile("[a-zA-Z0-9_-]{1,64}")

TEXT_FORMATS = {None, "text"}


def wishes_of(tools: msgspec.Raw, choice: msgspec.Raw, form: Any, path: str, context: str) -> Wishes:
    """
    Return what a client wishes: its *tools* and *choice*, as the body has them, and the *form*, which is at *path*.

    A tool is flat or below "function", as the two APIs have it. Tools that OpenAI would run are left out: the site has
    tools of its own. Raises ``ValueError`` with the path of what is invalid.
    """
    for name, raw in (("tools", tools), ("tool_choice", choice)):
        if len(bytes(raw)) > MAX_REST_BYTES:
            raise ValueError(f"$.{name}: it has {len(bytes(raw))} bytes; at most {MAX_REST_BYTES} are allowed.")
    declared: Any = read_value(tools, Sequence[Mapping[str, Any]] | None, "$.tools") or ()  # type: ignore[arg-type]
    if len(declared) > MAX_TOOLS:
        raise ValueError(f"$.tools: there are {len(declared)}; at most {MAX_TOOLS} are allowed.")
    found = [_tool(tool, f"$.tools[{index}]") for index, tool in enumerate(declared)]
    own = [tool for tool in found if tool is not None]
    if len({tool.name for tool in own}) < len(own):
        raise ValueError("$.tools: two tools have the same name.")
    chosen = _choice(read_value(choice, Any, "$.tool_choice"), own)
    if chosen == ToolChoice.NONE.value:
        own, chosen = [], None
    return Wishes(own, chosen, _format(form, path), context)


def _tool(tool: Mapping[str, Any], path: str) -> ToolSpecification | None:
    if tool.get("type") != "function":
        return None
    given = tool.get("function", tool)
    if not isinstance(given, Mapping):
        raise ValueError(f"{path}.function: it must be an object.")  # noqa: TRY004  # of the body
    path = path if given is tool else f"{path}.function"
    name, description, parameters = (given.get(key) for key in ("name", "description", "parameters"))
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ValueError(f"{path}.name: it must have 1 to 64 characters of a-z, A-Z, 0-9, _ and -.")
    if not isinstance(description, str | None):
        raise ValueError(f"{path}.description: it must be a string.")  # noqa: TRY004  # of the body
    if not isinstance(parameters, Mapping | None):
        raise ValueError(f"{path}.parameters: it must be a JSON schema, an object.")  # noqa: TRY004  # as above
    schema = _schema(parameters or {"type": "object", "properties": {}}, f"{path}.parameters")
    return ToolSpecification(name, description or "", schema)


def _schema(schema: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return *schema*, or raise ``ValueError`` if it is too deep, or could not be stored."""
    copied: Mapping[str, Any] = verbatim(schema, path, MAX_METADATA_DEPTH)
    return copied


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
    if kind in TEXT_FORMATS:
        return None
    if kind == "json_object":
        return ResponseFormat()
    given = form.get("json_schema", form) if isinstance(form, Mapping) and kind == "json_schema" else None
    match given:
        case {"name": str() as name, "schema": Mapping() as schema} if _NAME.fullmatch(name):
            return ResponseFormat(_schema(schema, f"{path}.schema"), name)
    raise ValueError(f"{path}: it must be text, json_object, or json_schema with a name and a schema.")
