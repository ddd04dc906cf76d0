"""A client of the chat over HTTP: a bare socket, so that hundreds take few resources and can be cut off."""

from __future__ import annotations

import asyncio
import json
import math
import re
import socket
import struct
import time
from collections.abc import Awaitable
from typing import Any

WORD = re.compile(rb'"(?:delta|content)":"(\d+) "')
"""A word of the model, in the stream of any protocol: the time at which it was sent."""

SLACK = 10.0
"""The seconds that a busy machine may take in addition to what is promised."""


class Exchange(asyncio.Protocol):
    """One request and its response; ``done`` is set when the connection ends."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.received = bytearray()
        self.delays: list[float] = []
        """For each word, the seconds from the model to the client."""
        self.sent = self.began = self.ended = 0.0
        """When the request was sent, when the first word arrived, and when the connection ended."""
        self.done = asyncio.Event()
        self._place = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.sent = time.perf_counter()
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter_ns()
        self.received += data
        for word in WORD.finditer(self.received, self._place):
            self.began = self.began or now / 1e9
            self.delays.append((now - int(word[1])) / 1e9)
            self._place = word.end()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = time.perf_counter()
        self.done.set()

    def drop(self, *, rudely: bool) -> None:
        """End the connection like a closed browser or, if *rudely*, like a lost network."""
        if self._transport is None or self.done.is_set():
            return
        if rudely:
            there = self._transport.get_extra_info("socket")
            there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()

    @property
    def status(self) -> int:
        """The status of the response; 0 if there is none."""
        return int(self.received[9:12] or b"0")

    @property
    def body(self) -> bytes:
        """The part of the body that has arrived."""
        head, _, rest = bytes(self.received).partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" not in head.lower():
            return rest
        body = b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size or b"0", 16)
            body, rest = body + rest[:length], rest[length + 2 :]
        return body

    def events(self) -> list[dict[str, Any]]:
        """The complete events of the stream."""
        lines = self.body.decode(errors="replace").split("\n\n")[:-1]
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]

    def text(self) -> str:
        """The part of the answer's text that has arrived."""
        return "".join(event["delta"] for event in self.events() if event["type"] == "text-delta")

    @property
    def has_finished(self) -> bool:
        """Whether the last event but one has arrived, so that the answer is whole."""
        return b'"type":"finish"' in self.received

    @property
    def is_whole(self) -> bool:
        """Whether the stream ended correctly."""
        return self.has_finished and self.body.endswith(b"data: [DONE]\n\n")


class Client:
    """The user with *token*, at the server on *port*."""

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self.token = token

    async def ask(
        self, chat_id: str, message_id: str, text: str, *, part: float = 1.0, path: str = "/api/chat"
    ) -> Exchange:
        """POST a message, or only a *part* of the request, and return the exchange at once."""
        message = {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}
        body = {"id": chat_id, "trigger": "submit-message", "messages": [message]}
        return await self.post(path, body, part=part)

    async def post(self, path: str, body: dict[str, Any], *, part: float = 1.0) -> Exchange:
        """POST *body* as JSON, or only a *part* of the request, and return the exchange at once."""
        return await self.send("POST", path, json.dumps(body).encode(), part=part)

    async def listen(self, chat_id: str) -> Exchange:
        """GET the stream of the answer that is being generated."""
        return await self.send("GET", f"/api/chat/{chat_id}/stream")

    async def stop(self, chat_id: str) -> Exchange:
        """Stop the answer that is being generated."""
        return await self.send("POST", f"/api/chat/{chat_id}/stop", b"{}")

    async def state(self) -> dict[str, Any]:
        """Return the tasks and threads of the server."""
        answered = await self.send("GET", "/state")
        await answered.done.wait()
        state: dict[str, Any] = json.loads(answered.body)
        return state

    async def send(self, method: str, path: str, body: bytes = b"", *, part: float = 1.0) -> Exchange:
        """Send a request on a connection of its own."""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        request = head.encode() + body
        request = request[: math.ceil(part * len(request))]
        loop = asyncio.get_running_loop()
        _, exchange = await loop.create_connection(lambda: Exchange(request), "127.0.0.1", self.port)
        return exchange


async def ended(asked: Awaitable[Exchange]) -> Exchange:
    """Return the exchange once its connection has ended."""
    exchange = await asked
    await exchange.done.wait()
    return exchange
