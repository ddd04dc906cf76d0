"""
An MCP server whose tools search and read the conversations of the authenticated user.

``get_mcp_app`` returns its ASGI application. Clients authenticate by ``Authorization: Bearer`` with a token of the
access policy, by default one of DRF's ``authtoken``, and may read what the policy allows owners to read.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from asgiref.sync import ThreadSensitiveContext
from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest

from chatmemory_django import conf
from chatmemory_django.access import (
    NotAllowedError,
    access_policy,
    count_wrong_credentials,
    is_trusted_origin,
    seconds_to_wait,
    token_in,
)
from chatmemory_django.contrib.mcp.tools import TOOLS, ConversationTool, RefusedError, schema_of
from chatmemory_django.db.contexts import current
from chatmemory_django.db.row_codec import EncryptedError
from chatmemory_django.db.threads import context_of, in_thread, leave_thread
from chatmemory_django.private import to_log
from chatmemory_django.security import report_refusal

try:
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel import Server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.shared.exceptions import MCPError
    from mcp_types import (
        INVALID_PARAMS,
        CallToolRequestParams,
        CallToolResult,
        ListToolsResult,
        TextContent,
        ToolAnnotations,
    )
    from mcp_types import Tool as McpTool
except ModuleNotFoundError as exc:
    raise ImportError("The MCP server requires mcp: pip install 'chatmemory_django[mcp]'.") from exc

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 64 * 1024

_Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[MutableMapping[str, Any], _Receive, _Send], Awaitable[None]]
UserOfToken: TypeAlias = Callable[[str], "AbstractBaseUser | None"]
"""A function that returns the user of a token, or None. It is called in a thread."""


def get_mcp_app(user_of_token: UserOfToken | None = None) -> AsgiApp:
    """
    Return the ASGI application of the MCP server, which a site can mount at any path.

    It keeps no state between requests and needs no lifespan events, so it runs in any number of processes. Tokens are
    looked up by *user_of_token*; None stands for the method of the access policy.
    """

    async def app(scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        async with ThreadSensitiveContext():  # as in Django, each request has its own thread
            try:
                request = ASGIRequest({**scope}, BytesIO())
                _check_host(request)
                current.set(await context_of(request))  # no middleware has set anything
                user = await in_thread(_admitted, request, user_of_token)
                await _answer({**scope, "user": user}, receive, _unstored(send))
            except NotAllowedError as exc:
                report_refusal(request, exc.status, str(exc))
                await _refuse(exc, _unstored(send))
            finally:
                await leave_thread()

    return app


def _check_host(request: ASGIRequest) -> None:
    try:
        request.get_host()
    except DisallowedHost:
        raise NotAllowedError(HTTPStatus.MISDIRECTED_REQUEST, "The Host is not in ALLOWED_HOSTS.") from None


def _admitted(request: ASGIRequest, user_of_token: UserOfToken | None) -> AbstractBaseUser:
    """Return the user of *request*; raise ``NotAllowedError`` if the protocol or the site's settings refuse it."""
    if not is_trusted_origin(request):  # the protocol demands this, against pages that rebind their name to the server
        raise NotAllowedError(HTTPStatus.FORBIDDEN, "The Origin is not in CSRF_TRUSTED_ORIGINS.")
    key = token_in(request)
    if key is None:
        raise NotAllowedError(HTTPStatus.UNAUTHORIZED, "A token is required.", **_TOKEN_REQUIRED)
    user = (user_of_token or access_policy().user_of_token)(key)
    if user is None:
        if wait := count_wrong_credentials(request):
            raise NotAllowedError.too_often(wait, "Too many failed attempts")
        raise NotAllowedError(HTTPStatus.UNAUTHORIZED, "The token is invalid.", **_TOKEN_REQUIRED)
    request.user = user  # type: ignore[assignment]  # as who reads what was refused knows it
    if wait := seconds_to_wait(f"mcp_{user.pk}", conf.general().MCP_THROTTLE_RATE):
        raise NotAllowedError.too_often(wait)
    return user


_TOKEN_REQUIRED = {"WWW-Authenticate": 'Bearer error="invalid_token"'}


async def _refuse(refused: NotAllowedError, send: _Send) -> None:
    body = msgspec.json.encode({"error": str(refused)})
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **refused.headers}
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": int(refused.status), "headers": encoded})
    await send({"type": "http.response.body", "body": body})


def _unstored(send: _Send) -> _Send:
    """Return *send* with a header that keeps caches from storing responses: chats are personal."""

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            others = [(name, value) for name, value in message.get("headers", ()) if name.lower() != b"cache-control"]
            message = {**message, "headers": [*others, (b"cache-control", b"no-store")]}
        await send(message)

    return sending


async def _answer(scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
    """Answer one request. Without sessions, only POST is supported: there are no streams to open or sessions to end."""
    if scope["method"] != "POST":
        raise NotAllowedError(HTTPStatus.METHOD_NOT_ALLOWED, "Use POST.", Allow="POST")
    manager = StreamableHTTPSessionManager(
        _server, json_response=True, stateless=True, max_request_body_size=MAX_REQUEST_BYTES
    )
    async with manager.run():
        await manager.handle_request(scope, receive, send)


async def _list_tools(context: ServerRequestContext[Any, Any], params: Any) -> ListToolsResult:
    return ListToolsResult(tools=[_described(name, tool) for name, tool in TOOLS.items()])


async def _call_tool(context: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
    if params.name not in TOOLS:
        raise MCPError(INVALID_PARAMS, f"There is no tool {params.name!r}.")
    try:
        tool = msgspec.convert(params.arguments or {}, TOOLS[params.name])
        scope = context.request.scope  # type: ignore[union-attr]  # requests come by HTTP
        request = ASGIRequest({**scope, "user": None}, BytesIO())
        request.user = scope["user"]
        found = msgspec.to_builtins(await in_thread(tool.run, request))
        text = TextContent(text=msgspec.json.encode(found).decode())
    except (EncryptedError, msgspec.ValidationError, RefusedError) as exc:
        return CallToolResult(content=[TextContent(text=str(exc))], is_error=True)
    except Exception as exc:
        logger.exception("The tool %s failed.", params.name, exc_info=to_log(exc))
        return CallToolResult(content=[TextContent(text="The tool failed; try again later.")], is_error=True)
    return CallToolResult(content=[text], structured_content=found)


def _described(name: str, tool: type[ConversationTool]) -> McpTool:
    return McpTool(
        name=name,
        title=tool.title,
        description=tool.__doc__,
        input_schema=schema_of(tool),
        output_schema=schema_of(tool.result),
        annotations=ToolAnnotations(
            read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
        ),
    )


def _version() -> str:
    try:
        return version("chatmemory_django")
    except PackageNotFoundError:  # a copy among the site's own files
        return ""


_server: Server[Any] = Server(
    "chatmemory", version=_version(), title="Conversations", on_list_tools=_list_tools, on_call_tool=_call_tool
)
