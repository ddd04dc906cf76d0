"""What the app adds to a turn of a model that answers at once: through each interface, at each length of history."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.asgi import get_asgi_application
from django.db import connection
from rest_framework.authtoken.models import Token

from benchmarks.chat.model import assistant
from benchmarks.chat.tables import COMPARED_WITH
from benchmarks.databases import settle
from benchmarks.histories import Bound, load_conversation, prepare, texts
from benchmarks.measure import FULL, QUICK, WARM_UP, Timing, interleaved
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation

Operation = Callable[[str, str], Any]
"""A turn in a conversation, given the message."""


def ask(server: str, sizes: Sequence[int], *, quick: bool) -> dict[str, dict[str, float]]:
    """Return the microseconds of each operation, by the length of the history."""
    turns = Turns(server)
    found = {str(size): turns.measure(size, quick=quick) for size in sizes}
    turns.close()
    return {size: {name: each.microseconds for name, each in timings.items()} for size, timings in found.items()}


class Turns:
    """Turns of one user, in one process, in the default database."""

    def __init__(self, server: str) -> None:
        prepare(server)
        self.server = server
        self.user = User.objects.create_user("ann")
        self.token = Token.objects.create(user=self.user).key
        self.handler = get_asgi_application()
        self.runner = asyncio.Runner()
        self.list = [UserMessage(text) for text in texts()[:60]]

    def operations(self) -> dict[str, Operation]:
        """The operations to measure, by label."""
        model, user = assistant.model, self.user

        async def streamed(key: str, text: str) -> None:
            async for _ in assistant.astream(key, text, owner=user):
                pass

        def posting(path: str, accept: str) -> Operation:
            return self._in_loop(lambda key, text: self._post(path, accept, key, text))

        operations: list[Operation] = [
            lambda key, text: model.chat([*self.list, UserMessage(text)]),
            lambda key, text: assistant.chat(key, text, owner=user),
            self._in_loop(lambda key, text: assistant.achat(key, text, owner=user)),
            self._in_loop(streamed),
            posting("/by-hand", "application/json"),
            posting("/api/chat", "application/json"),
            posting("/stream-by-hand", "text/event-stream"),
            posting("/api/chat", "text/event-stream"),
        ]
        return dict(zip(COMPARED_WITH, operations, strict=True))

    def measure(self, size: int, *, quick: bool) -> dict[str, Timing]:
        """Measure each operation in histories of *size* messages, none of which grows by much more than a tenth."""
        effort = QUICK if quick else FULL
        copies = -(-(effort.rounds + WARM_UP) // max(1, size // 20))
        messages = texts()

        def measured(number: int, operation: Operation) -> Callable[[int], Any]:
            keys = [str(uuid.uuid5(uuid.NAMESPACE_OID, f"{size} {number} {copy}")) for copy in range(copies)]
            for key in keys:
                load_conversation(self.server, key, size, Bound())
            Conversation.objects.filter(memory_id__in=keys).update(owner=self.user)
            return lambda n: operation(keys[n % copies], f"{messages[n % len(messages)]} {n}")

        subjects = {name: measured(place, each) for place, (name, each) in enumerate(self.operations().items())}
        settle(self.server)
        return interleaved(subjects, effort)

    def close(self) -> None:
        """Close the loop and the database connections."""
        self.runner.close()
        connection.close()
        if settings.DATABASES["default"]["OPTIONS"].get("pool"):
            connection.close_pool()

    def _in_loop(self, turn: Callable[[str, str], Awaitable[Any]]) -> Operation:
        async def awaited(key: str, text: str) -> Any:
            return await turn(key, text)

        return lambda key, text: self.runner.run(awaited(key, text))

    async def _post(self, path: str, accept: str, key: str, text: str) -> None:
        """Send a request through Django's whole handler, without a socket."""
        message = {"id": uuid.uuid4().hex, "role": "user", "parts": [{"type": "text", "text": text}]}
        body = json.dumps({"id": key, "trigger": "submit-message", "message": message}).encode()
        headers = {"host": "127.0.0.1", "authorization": f"Bearer {self.token}", "accept": accept}
        headers |= {"content-type": "application/json", "content-length": str(len(body))}
        scope = {
            "type": "http", "method": "POST", "path": path, "query_string": b"", "http_version": "1.1",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }  # fmt: skip
        unread = [{"type": "http.request", "body": body}]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if not unread:
                await asyncio.Event().wait()
            return unread.pop()

        async def send(event: dict[str, Any]) -> None:
            sent.append(event)

        await self.handler(scope, receive, send)
        if sent[0]["status"] != 200 or b'"errorText"' in b"".join(event.get("body", b"") for event in sent):
            raise SystemExit(f"{path}: {sent}")
