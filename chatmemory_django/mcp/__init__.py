"""
An MCP server whose tools search and read the conversations of the authenticated user.

``get_mcp_app`` returns its ASGI application. Clients authenticate by ``Authorization: Bearer`` with a token of DRF's
``authtoken``, and may read what the REST API's access policy allows owners to read.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from asgiref.sync import ThreadSensitiveContext
from django.core.handlers.asgi import ASGIRequest

from chatmemory_django.access import user_of_token
from chatmemory_django.db.threads import in_thread, leave_thread
from chatmemory_django.mcp.tools import TOOLS, ConversationTool, RefusedError, schema_of

try:
    from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend, RequireAuthMiddleware
    from mcp.server.auth.provider import AccessToken
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
    from pydantic import Field
    from starlette.middleware.authentication import AuthenticationMiddleware
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


def get_mcp_app(user_of_token: UserOfToken = user_of_token) -> AsgiApp:
    """
    Return the ASGI application of the MCP server, which a site can mount at any path.

    It keeps no state between requests and needs no lifespan events, so it runs in any number of processes.
    """
    protected = RequireAuthMiddleware(_answer, required_scopes=[])
    signed_in = AuthenticationMiddleware(protected, backend=BearerAuthBackend(_Tokens(user_of_token)))

    async def app(scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        async with ThreadSensitiveContext():  # as in Django, each request has its own thread
            try:
                await signed_in(scope, receive, send)
            finally:
                await leave_thread()

    return app


class _UserToken(AccessToken):
    """A token and its user."""

    user: Any = Field(exclude=True, repr=False)


class _Tokens:
    """A verifier of tokens for the ``mcp`` package."""

    def __init__(self, user_of_token: UserOfToken) -> None:
        self._user_of_token = user_of_token

    async def verify_token(self, token: str) -> AccessToken | None:
        """See ``mcp.server.auth.provider.TokenVerifier``."""
        user = await in_thread(self._user_of_token, token.strip())
        if user is None:
            return None
        return _UserToken(token=token, client_id=str(user.pk), subject=str(user.pk), scopes=[], user=user)


async def _answer(scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
    """Answer one request. Without sessions, only POST is supported: there are no streams to open or sessions to end."""
    if scope["method"] != "POST":
        headers = [(b"allow", b"POST"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": HTTPStatus.METHOD_NOT_ALLOWED, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        return
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
        request.user = scope["user"].access_token.user
        found = msgspec.to_builtins(await in_thread(tool.run, request))
    except (msgspec.ValidationError, RefusedError) as exc:
        return CallToolResult(content=[TextContent(text=str(exc))], is_error=True)
    except Exception:
        logger.exception("The tool %s failed.", params.name)
        return CallToolResult(content=[TextContent(text="The tool failed; try again later.")], is_error=True)
    return CallToolResult(content=[TextContent(text=msgspec.json.encode(found).decode())], structured_content=found)


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


_server: Server[Any] = Server("chatmemory", title="Conversations", on_list_tools=_list_tools, on_call_tool=_call_tool)
