"""Tools: plain Python functions that a model can call."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from functools import cache, partial
from types import SimpleNamespace
from typing import (
    Annotated,
    Any,
    Literal,
    NoReturn,
    TypeAlias,
    TypeGuard,
    get_args,
    get_origin,
    get_type_hints,
)

import pydantic
from asgiref.sync import async_to_sync
from django.core.exceptions import ObjectDoesNotExist, PermissionDenied
from django.utils.functional import Promise
from docstring_parser import parse
from pydantic_core import to_json

from chatmemory_django import observing
from chatmemory_django.chat.model import CLIENT, MAX_APPROVER_LENGTH, OWNER, ToolSpecification
from chatmemory_django.db.row_codec import EncryptedError
from chatmemory_django.db.threads import UNRAISABLE, in_slow_thread
from chatmemory_django.messages import CONTENT_CLASSES, Content, ToolExecutionRequest, ToolExecutionResultMessage
from chatmemory_django.models.columns import to_columns
from chatmemory_django.private import private, to_log

logger = logging.getLogger(__name__)

CONTEXT = ("request", "owner", "memory_id")
"""The parameters that the assistant fills in; the model does not see them."""

STAFF = "chatmemory.approve_conversation"
"""The permission for calls whose ``approve_by`` is not known, since it failed."""


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
    EncryptedError,
)
"""Exceptions whose text the model reads. Those of others, for example a database's, may contain secrets."""


class Tool:
    """
    A *function*, sync or async, as a tool of a model.

    The model reads its *name*, its *description*, which is the docstring by default, and the JSON schema of its
    parameters. The schema is built from their annotations, their defaults and their descriptions: in pydantic's
    ``Field``, or else in the docstring. Parameters named ``request``, ``owner`` and ``memory_id`` are filled in by the
    assistant; what a ``functools.partial`` binds stays as it is. The function returns a text, message contents, or
    anything that pydantic can serialize to JSON; it may raise ``ToolError``. ``TypeError`` is raised if a model cannot
    call *function*.

    If it *needs_approval*, a call ends the assistant's turn, and runs only once it is approved. A function of the same
    arguments can tell which calls do: ``needs_approval=lambda amount, **_: amount > 50``. If it raises an exception,
    the call needs an approval. Calls with invalid arguments need none: they fail at once.

    *approve_by* is who decides: ``"owner"``, the conversation's owner, or a permission, like ``"shop.approve_refund"``,
    that a user has to have; or a function of the arguments that returns one of the two. If it fails, staff with the
    permission ``STAFF`` decide.

    If it *runs_in* the ``"client"``, *function* only declares it, and is never called: a call ends the assistant's
    turn, which goes on with the output that the owner's browser sends. Calls with invalid arguments fail at once.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        needs_approval: bool | Callable[..., bool] = False,
        approve_by: str | Callable[..., str] = OWNER,
        runs_in: Literal["server", "client"] = "server",
    ) -> None:
        if not (isinstance(needs_approval, bool) or callable(needs_approval)) or (
            inspect.iscoroutinefunction(needs_approval)
        ):
            raise TypeError(
                f"needs_approval must be True, False, or a function that is not async, not {needs_approval!r}."
            )
        if not (_is_approver(approve_by) or callable(approve_by)) or inspect.iscoroutinefunction(approve_by):
            raise ValueError(
                f"approve_by must be {OWNER!r}, a permission like 'shop.approve_refund', or a function that is not "
                f"async, not {approve_by!r}."
            )
        if runs_in not in {"server", "client"}:
            raise ValueError(f"runs_in must be 'server' or 'client', not {runs_in!r}.")
        if runs_in == "client" and (needs_approval is not False or approve_by != OWNER):
            raise ValueError("A tool that runs in the client cannot need an approval: let the client ask the user.")
        self.function = function
        self.runs_in = runs_in
        self.needs_approval = needs_approval
        self.approve_by = approve_by
        self.may_wait = needs_approval is not False or runs_in == "client"
        code = _code(function)
        self.name = str(name or getattr(_unbound(function), "__name__", type(function).__name__))
        self.is_async = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
        docstring = parse(inspect.getdoc(code) or inspect.getdoc(_unbound(function)) or "")
        described = {each.arg_name: each.description for each in docstring.params}
        parameters = self._parameters()
        self._context = [parameter for parameter in parameters if parameter in CONTEXT]
        given = {name: parameter for name, parameter in parameters.items() if name not in CONTEXT}
        hints = self._hints(code, given)
        # Fields have numbers for names, since pydantic's models refuse some names of parameters.
        self._names = {f"argument_{number}": name for number, name in enumerate(given)}
        fields: dict[str, Any] = {}
        for field, parameter in zip(self._names, given.values(), strict=True):
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[field] = (_described(hints[parameter.name], described.get(parameter.name)), default)
        config = pydantic.ConfigDict(
            extra="forbid",
            arbitrary_types_allowed=False,
            allow_inf_nan=False,  # JSON has no NaN, and no amount is above or below it
            alias_generator=lambda field: self._names[field],
        )
        self._arguments = pydantic.create_model(self.name, __config__=config, **fields)
        schema = self._arguments.model_json_schema()
        schema.pop("title", None)
        text = "\n\n".join(filter(None, (docstring.short_description, docstring.long_description)))
        self.specification = ToolSpecification(self.name, text if description is None else str(description), schema)
        if not self.specification.description:
            raise TypeError(
                f"The tool {self.name!r} has no docstring from which a model could learn what it is for; "
                "write one, or pass Tool(function, description=…)."
            )

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"

    @private
    def approver(self, call: ToolExecutionRequest, context: Mapping[str, Any]) -> str | None:
        """Return for whom *call* waits before it runs, see *approve_by*, or ``CLIENT``; None if for nobody."""
        if not self.may_wait:
            return None
        try:
            arguments = self._arguments_of(call, context)
        except ToolError:
            return None
        if self.runs_in == "client":
            return CLIENT
        return self._approver(arguments) if self._must_ask(arguments) else None

    def _must_ask(self, arguments: Mapping[str, Any]) -> bool:
        if isinstance(self.needs_approval, bool):
            return self.needs_approval
        try:
            return bool(self.needs_approval(**arguments))
        except Exception:
            logger.exception("Whether a call of the tool %r needs an approval is not known, so it does.", self.name)
            return True

    def _approver(self, arguments: Mapping[str, Any]) -> str:
        if isinstance(self.approve_by, str):
            return self.approve_by
        try:
            found = self.approve_by(**arguments)
        except Exception:
            logger.exception("Who approves a call of the tool %r is not known, so %r does.", self.name, STAFF)
            return STAFF
        if not _is_approver(found):
            logger.error(
                "The approve_by of the tool %r returned neither %r nor a permission, so %r approves the call.",
                self.name,
                OWNER,
                STAFF,
            )
            return STAFF
        return found

    def call(self, call: ToolExecutionRequest, context: Mapping[str, Any]) -> ToolExecutionResultMessage:
        """Return the result of *call*: an error result if the arguments are invalid or the function fails."""
        result = self._call(call, context)
        return result if isinstance(result, ToolExecutionResultMessage) else async_to_sync(_awaited)(call, result)

    async def acall(self, call: ToolExecutionRequest, context: Mapping[str, Any]) -> ToolExecutionResultMessage:
        """Return what ``call`` returns. A function that is not async runs in a thread."""
        result = self._call(call, context) if self.is_async else await in_slow_thread(self._call, call, context)
        return result if isinstance(result, ToolExecutionResultMessage) else await _awaited(call, result)

    @private
    def _call(
        self, call: ToolExecutionRequest, context: Mapping[str, Any]
    ) -> ToolExecutionResultMessage | Awaitable[Any]:
        """Return the result of *call*, or what it has to be awaited for."""
        try:
            function: Callable[..., Any] = self.function if self.runs_in == "server" else _not_here
            returned = function(**self._arguments_of(call, context))
            return returned if inspect.isawaitable(returned) else _result(call, returned)
        except (Exception, *UNRAISABLE) as exc:  # noqa: BLE001  # a site's function may raise anything
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
            **{name: getattr(read, field) for field, name in self._names.items()},
            **{name: context.get(name) for name in self._context},
        }

    def _parameters(self) -> dict[str, inspect.Parameter]:
        """Return the parameters that the function can be given by name; what a partial binds is none of them."""
        bound = self.function.keywords if isinstance(self.function, partial) else {}
        try:
            parameters = inspect.signature(self.function).parameters
        except ValueError:
            raise TypeError(
                f"The tool {self.name!r} has no signature from which a model could read its parameters; "
                "wrap it in a function of your own."
            ) from None
        for parameter in parameters.values():
            if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
                raise TypeError(f"The tool {self.name!r} takes {parameter}; models can only pass arguments by name.")
        return {name: parameter for name, parameter in parameters.items() if name not in bound}

    def _hints(self, code: Any, parameters: Mapping[str, inspect.Parameter]) -> Mapping[str, Any]:
        """
        Return the annotations of *parameters*, of which each must have one.

        Others may name what is imported for type checkers only.
        """
        annotations = {name: parameter.annotation for name, parameter in parameters.items()}
        if bare := [name for name, annotation in annotations.items() if annotation is inspect.Parameter.empty]:
            raise TypeError(
                f"The tool {self.name!r} has parameters without annotations: {', '.join(bare)}. The model must know "
                "their types: write (number: int), for example, or Any."
            )
        try:
            return get_type_hints(
                SimpleNamespace(__annotations__=annotations),
                globalns=getattr(code, "__globals__", None) or vars(sys.modules[code.__module__]),
                include_extras=True,
            )
        except NameError as exc:
            raise TypeError(
                f"The tool {self.name!r} has an annotation that is not known when it is built: {exc}. "
                "Import what it names, for type checkers and at run time."
            ) from None


Tools: TypeAlias = Sequence[Callable[..., Any] | Tool]
"""Tools, and functions of which tools are made."""


def to_tools(functions: Tools) -> dict[str, Tool]:
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
    with observing.Operation("tool", name=None if tool is None else tool.name, call_id=call.id):
        return _unknown(tools, call) if tool is None else tool.call(call, context)


async def acall_tool(
    tools: Mapping[str, Tool], call: ToolExecutionRequest, context: Mapping[str, Any]
) -> ToolExecutionResultMessage:
    """Return what ``call_tool`` returns."""
    tool = tools.get(call.name or "")
    with observing.Operation("tool", name=None if tool is None else tool.name, call_id=call.id):
        return _unknown(tools, call) if tool is None else await tool.acall(call, context)


def calls_to_ask_for(
    tools: Mapping[str, Tool], calls: Sequence[ToolExecutionRequest], context: Mapping[str, Any]
) -> dict[int, str]:
    """Return the positions of those of *calls* for which an answer waits, with for whom; see ``Tool.approver``."""
    asked = ((position, call, tools.get(call.name or "")) for position, call in enumerate(calls))
    approvers = ((position, tool.approver(call, context)) for position, call, tool in asked if tool is not None)
    return {position: approver for position, approver in approvers if approver is not None}


def _is_approver(value: object) -> TypeGuard[str]:
    """Return whether *value* is ``OWNER``, or has the form of a permission."""
    return isinstance(value, str) and len(value) <= MAX_APPROVER_LENGTH and (value == OWNER or "." in value[1:-1])


def _unknown(tools: Mapping[str, Tool], call: ToolExecutionRequest) -> ToolExecutionResultMessage:
    names = ", ".join(tools) or "none"
    return ToolExecutionResultMessage.from_request(
        call, f"There is no such tool; the tools are: {names}.", is_error=True
    )


def _not_here(**arguments: object) -> NoReturn:
    """Fail a call that was approved when its tool still ran on the server."""
    raise ToolError("This tool runs in the user's browser now, so this call was not run.")


def client_tool(specification: ToolSpecification) -> Tool:
    """Return a tool that a client declares and runs: its arguments may be any JSON object."""
    tool = copy(_any_of_clients())
    tool.name, tool.specification = specification.name, specification
    return tool


@cache
def _any_of_clients() -> Tool:
    """Return what all tools have in common that clients declare."""
    tool = Tool(lambda: None, name="client", description="-", runs_in="client")
    tool._arguments, tool._names = pydantic.create_model("Arguments", __config__=pydantic.ConfigDict(extra="allow")), {}
    return tool


def _unbound(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that a ``functools.partial`` calls."""
    return function.func if isinstance(function, partial) else function


def _code(function: Callable[..., Any]) -> Any:
    """Return the function that is called in the end: behind partials and decorators, or that of a callable object."""
    function = inspect.unwrap(function)
    if isinstance(function, partial):
        return _code(function.func)
    is_object = not (inspect.isroutine(function) or inspect.isclass(function))
    return _code(type(function).__call__) if is_object else function


def _described(hint: Any, description: str | None) -> Any:
    """Return *hint* with the *description*, unless it has one of its own."""
    if description is None:
        return hint
    own = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    # What comes later counts.
    return Annotated[own[0], pydantic.Field(description=description), *own[1:]]


@private
async def _awaited(call: ToolExecutionRequest, returned: Awaitable[Any]) -> ToolExecutionResultMessage:
    """Return the result of *call*, for which the function *returned* something awaitable."""
    try:
        return _result(call, await returned)
    except (Exception, *UNRAISABLE) as exc:
        task = asyncio.current_task()
        if isinstance(exc, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # the answer was cancelled, and not something within the function
        return _failed(call, exc)


def _result(call: ToolExecutionRequest, returned: Any) -> ToolExecutionResultMessage:
    contents: str | Sequence[Content]
    if isinstance(returned, str | Promise):
        contents = str(returned)
    elif isinstance(returned, CONTENT_CLASSES):
        contents = [returned]
    elif (
        isinstance(returned, (list, tuple)) and returned and all(isinstance(each, CONTENT_CLASSES) for each in returned)
    ):
        contents = returned
    else:
        contents = to_json(returned, fallback=_plain).decode()
    message = ToolExecutionResultMessage.from_request(call, contents)
    to_columns(message)  # a result that cannot be stored becomes an error for the model, and does not end the turn
    return message


def _plain(value: object) -> str:
    """Return the text of a lazy translation, which pydantic does not know."""
    if isinstance(value, Promise):
        return str(value)
    raise TypeError(f"A tool cannot return {type(value).__name__} objects; return what pydantic can serialize to JSON.")


def _failed(call: ToolExecutionRequest, error: BaseException) -> ToolExecutionResultMessage:
    observing.note("failed", error=error)
    is_readable = isinstance(error, READABLE) and not isinstance(error, OSError)
    text = _text(error) if is_readable else ""
    if not is_readable:
        logger.error("The tool %r failed.", call.name, exc_info=to_log(error))
    message = ToolExecutionResultMessage.from_request(
        call, text or f"The tool failed: {type(error).__name__}.", is_error=True
    )
    try:
        to_columns(message)
    except ValueError:
        return ToolExecutionResultMessage.from_request(call, f"The tool failed: {type(error).__name__}.", is_error=True)
    return message


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # a site's exceptions may be broken as well
        return ""
