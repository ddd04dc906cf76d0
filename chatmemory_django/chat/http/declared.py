"""Tools that clients declare for one answer, and run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from chatmemory_django.chat.http.posted import MAX_REST_BYTES, read_value
from chatmemory_django.chat.model import ToolSpecification
from chatmemory_django.chat.ui_messages.reading import verbatim
from chatmemory_django.core.limits import MAX_METADATA_DEPTH

MAX_TOOLS = 128
"""How many tools a client declares at most, the same as OpenAI's."""

NAME = re.compile("[a-zA-Z0-9_-]{1,64}")
"""What vendors accept as the name of a tool, or of a schema."""


def declared_tools(
    tools: msgspec.Raw, of: Callable[[Mapping[str, Any], str], tuple[Any, str] | None] = lambda tool, path: (tool, path)
) -> tuple[ToolSpecification, ...]:
    """
    Return the *tools* of a body, with their names, descriptions and parameters.

    *of* returns what has these of a tool, and its path; None for one that is left out. Raises ``ValueError`` with the
    path of what is invalid.
    """
    declared: Any = read_value(bounded(tools, "$.tools"), Sequence[Mapping[str, Any]] | None, "$.tools") or ()  # type: ignore[arg-type]
    if len(declared) > MAX_TOOLS:
        raise ValueError(f"$.tools: there are {len(declared)}; at most {MAX_TOOLS} are allowed.")
    found = [each for index, tool in enumerate(declared) if (each := of(tool, f"$.tools[{index}]")) is not None]
    own = tuple(_tool(*each) for each in found)
    if len({tool.name for tool in own}) < len(own):
        raise ValueError("$.tools: two tools have the same name.")
    return own


def bounded(value: msgspec.Raw, path: str) -> msgspec.Raw:
    """Return *value*, or raise ``ValueError`` if it is too large."""
    if (size := len(bytes(value))) > MAX_REST_BYTES:
        raise ValueError(f"{path}: it has {size} bytes; at most {MAX_REST_BYTES} are allowed.")
    return value


def checked_schema(schema: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return *schema*, or raise ``ValueError`` if it is too deep, or could not be stored."""
    copied: Mapping[str, Any] = verbatim(schema, path, MAX_METADATA_DEPTH)
    return copied


def _tool(given: Any, path: str) -> ToolSpecification:
    if not isinstance(given, Mapping):
        raise ValueError(f"{path}: it must be an object.")  # noqa: TRY004  # of the body
    name, description, parameters = (given.get(key) for key in ("name", "description", "parameters"))
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise ValueError(f"{path}.name: it must have 1 to 64 characters of a-z, A-Z, 0-9, _ and -.")
    if not isinstance(description, str | None):
        raise ValueError(f"{path}.description: it must be a string.")  # noqa: TRY004  # of the body
    if not isinstance(parameters, Mapping | None):
        raise ValueError(f"{path}.parameters: it must be a JSON schema, an object.")  # noqa: TRY004  # as above
    schema = checked_schema(parameters or {"type": "object", "properties": {}}, f"{path}.parameters")
    return ToolSpecification(name, description or "", schema)
