"""Tools: plain Python functions that a model can call."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

import pydantic
from asgiref.sync import async_to_sync
from django.core.exceptions import ObjectDoesNotExist, PermissionDenied
from docstring_parser import parse
from pydantic_core import to_json

from chatmemory_django.chat.model import ToolSpecification
from chatmemory_django.db.threads import in_slow_thread
from chatmemory_django.messages import CONTENT_CLASSES, Content, ToolExecutionRequest, ToolExecutionResultMessage
from chatmemory_django.models.columns import to_columns

logger = logging.getLogger(__name__)

CONTEXT = ("request", "owner", "memory_id")
"""The parameters that the assistant fills in; the model does not see them."""


class ToolError(Exception):
    """A tool failed for a reason that the model, and perhaps the conversation's owner, may read in the text."""


READABLE = (
    ToolError,
    ValueError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    ObjectDoesNotExist,
    PermissionDenied,
)
"""Exceptions whose text the model reads. Those of others, for example a database's, may contain secrets."""


class Tool:
    """
    A *function*, sync or async, as a tool of a model.

    The model reads its *name*, its *description*, which is the docstring by default, and the JSON schema of its
    parameters. The schema is built from their annotations, their defaults and their descriptions in the docstring.
    Parameters named ``request``, ``owner`` and ``memory_id`` are filled in by the assistant. The function returns a
    text, message contents, or anything that pydantic can serialize to JSON; it may raise ``ToolError``. ``TypeError``
    is raised if a model cannot call *function*.
    """

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None, description: str | None = None
    ) -> None:
        self.function = function
        self.name = str(name or getattr(function, "__name__", type(function).__name__))
        self.is_async = inspect.iscoroutinefunction(function)
        docstring = parse(inspect.getdoc(function) or "")
        fields: dict[str, Any] = {}
        self._context: list[str] = []
        described = {each.arg_name: each.description for each in docstring.params}
        hints = get_type_hints(function, include_extras=True)
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
                raise TypeError(f"The tool {self.name!r} takes {parameter}; models can only pass arguments by name.")
            if parameter.name in CONTEXT:
                self._context.append(parameter.name)
                continue
            default = ... if parameter.default is parameter.empty else parameter.default
            field = pydantic.Field(default, description=described.get(parameter.name))
            fields[parameter.name] = (hints.get(parameter.name, Any), field)
        config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=False)
        self._arguments = pydantic.create_model(self.name, __config__=config, **fields)
        schema = self._arguments.model_json_schema()
        schema.pop("title", None)
        text = "\n\n".join(filter(None, (docstring.short_description, docstring.long_description)))
        self.specification = ToolSpecification(self.name, text if description is None else description, schema)

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"

    def call(self, call: ToolExecutionRequest, context: Mapping[str, Any]) -> ToolExecutionResultMessage:
        """Return the result of *call*: an error result if the arguments are invalid or the function fails."""
        try:
            arguments = self._arguments_of(call, context)
            returned = async_to_sync(self.function)(**arguments) if self.is_async else self.function(**arguments)
            return _result(call, returned)
        except Exception as exc:  # noqa: BLE001  # a site's function may raise anything
            return _failed(call, exc)

    async def acall(self, call: ToolExecutionRequest, context: Mapping[str, Any]) -> ToolExecutionResultMessage:
        """Return what ``call`` returns. A function that is not async runs in a thread."""
        try:
            arguments = self._arguments_of(call, context)
            if self.is_async:
                return _result(call, await self.function(**arguments))
            return _result(call, await in_slow_thread(self.function, **arguments))
        except Exception as exc:  # noqa: BLE001
            return _failed(call, exc)

    def _arguments_of(self, call: ToolExecutionRequest, context: Mapping[str, Any]) -> dict[str, Any]:
        try:
            read = self._arguments.model_validate_json(call.arguments or "{}")
        except pydantic.ValidationError as exc:
            problems = exc.errors(include_url=False, include_context=False, include_input=False)
            raise ToolError(
                "The arguments are invalid: "
                + "; ".join(f"{'.'.join(map(str, each['loc'])) or 'JSON'}: {each['msg']}" for each in problems)
            ) from None
        return {
            **{name: getattr(read, name) for name in self._arguments.model_fields},
            **{name: context.get(name) for name in self._context},
        }


def to_tools(functions: Sequence[Callable[..., Any] | Tool]) -> dict[str, Tool]:
    """Return *functions* as tools by name; raise ``ValueError`` if two have the same name."""
    tools: dict[str, Tool] = {}
    for each in functions:
        tool = each if isinstance(each, Tool) else Tool(each)
        if tool.name in tools:
            raise ValueError(f"Two tools are named {tool.name!r}; rename one of them with Tool(function, name=…).")
        tools[tool.name] = tool
    return tools


def call_tool(
    tools: Mapping[str, Tool], call: ToolExecutionRequest, context: Mapping[str, Any]
) -> ToolExecutionResultMessage:
    """Return the result of *call*: an error result if there is no tool of that name."""
    tool = tools.get(call.name or "")
    return _unknown(tools, call) if tool is None else tool.call(call, context)


async def acall_tool(
    tools: Mapping[str, Tool], call: ToolExecutionRequest, context: Mapping[str, Any]
) -> ToolExecutionResultMessage:
    """Return what ``call_tool`` returns."""
    tool = tools.get(call.name or "")
    return _unknown(tools, call) if tool is None else await tool.acall(call, context)


def _unknown(tools: Mapping[str, Tool], call: ToolExecutionRequest) -> ToolExecutionResultMessage:
    names = ", ".join(tools) or "none"
    return ToolExecutionResultMessage.from_request(
        call, f"There is no such tool; the tools are: {names}.", is_error=True
    )


def _result(call: ToolExecutionRequest, returned: Any) -> ToolExecutionResultMessage:
    contents: str | Sequence[Content]
    if isinstance(returned, str):
        contents = returned
    elif isinstance(returned, CONTENT_CLASSES):
        contents = [returned]
    elif (
        isinstance(returned, (list, tuple)) and returned and all(isinstance(each, CONTENT_CLASSES) for each in returned)
    ):
        contents = returned
    else:
        contents = to_json(returned).decode()
    message = ToolExecutionResultMessage.from_request(call, contents)
    to_columns(message)  # a result that cannot be stored becomes an error for the model, and does not end the turn
    return message


def _failed(call: ToolExecutionRequest, error: Exception) -> ToolExecutionResultMessage:
    is_readable = isinstance(error, READABLE) and not isinstance(error, OSError)
    text = str(error) if is_readable else ""
    if not is_readable:
        logger.error("The tool %r failed.", call.name, exc_info=error)
    message = ToolExecutionResultMessage.from_request(
        call, text or f"The tool failed: {type(error).__name__}.", is_error=True
    )
    try:
        to_columns(message)
    except ValueError:
        return ToolExecutionResultMessage.from_request(call, f"The tool failed: {type(error).__name__}.", is_error=True)
    return message
