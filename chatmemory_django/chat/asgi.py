"""The chat's part in the end of an ASGI server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

Application: TypeAlias = Callable[..., Awaitable[None]]
"""An ASGI application, which is called with a scope, and the functions receive and send."""


def handing_over(application: Application) -> Application:
    """
    Return *application* for a server that hands over its answers in progress when it ends: others go on with them at
    once.

    It answers the server's ``lifespan``, which Django does not know, and of which *application* gets nothing.
    """
    from chatmemory_django.chat.runs.background import hand_over  # asgi.py imports this module before Django is set up

    async def with_lifespan(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()  # once the server waits for its clients no longer
            await hand_over()
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await application(scope, receive, send)

    return with_lifespan
