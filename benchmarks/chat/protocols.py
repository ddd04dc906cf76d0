"""The same streams by each protocol: what one takes of the server's processor, compared with the chat's."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from django.contrib.auth.models import User
from django.db import connections
from rest_framework.authtoken.models import Token

from benchmarks.chat.client import Client, Exchange
from benchmarks.chat.model import Plan
from benchmarks.chat.server import Server

STREAMS, ROUNDS = 40, 3
"""How many streams run at once, and how often each protocol has its turn."""

PLAN = Plan(words=300, pause=0.03)

COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/responses"

Post = Callable[[Client, str], Any]
"""Takes a client and a question, and begins a stream."""

HEAD = ("whole", "ms of a processor for each", "compared with the chat")


def _posting(path: str, **body: Any) -> Post:
    async def post(client: Client, text: str) -> Exchange:
        asked = {"messages": [{"role": "user", "content": text}]} if path == COMPLETIONS else {"input": text}
        return await client.post(path, {"model": "assistant", "stream": True, **asked, **body})

    return post


PROTOCOLS: dict[str, Post] = {
    "the chat": lambda client, text: client.ask(str(uuid4()), "question", text),
    "responses": _posting(RESPONSES),
    "completions, `store: true`": _posting(COMPLETIONS, store=True),
    "completions, nothing stored": _posting(COMPLETIONS),
}


def ask(using: str, *, quick: bool) -> dict[str, Any]:
    """Return a row for each protocol."""
    token = Token.objects.using(using).create(user=User.objects.db_manager(using).create_user("ann")).key
    connections.close_all()
    taken: dict[str, list[float]] = {name: [] for name in PROTOCOLS}
    whole = dict.fromkeys(PROTOCOLS, 0)

    async def run(server: Server) -> None:
        client = Client(server.port, token)
        for number in range(1 + (1 if quick else ROUNDS)):
            for name, post in PROTOCOLS.items():
                plan = PLAN if number else Plan(3, 0.01)  # the first round loads what is used
                before = server.processor()
                exchanges = await asyncio.gather(*(post(client, str(plan)) for _ in range(STREAMS)))
                await asyncio.gather(*(each.done.wait() for each in exchanges))
                if number:
                    taken[name].append((server.processor() - before) / STREAMS)
                    whole[name] += sum(_is_whole(each) for each in exchanges)

    with tempfile.TemporaryDirectory() as folder, Server(Path(folder) / "log") as server:
        asyncio.run(run(server))
    usual = statistics.median(taken["the chat"])
    rows, findings = [], []
    for name, seconds in taken.items():
        median, count = statistics.median(seconds), len(seconds) * STREAMS
        rows.append((name, [f"{whole[name]} of {count}", f"{1000 * median:.1f}", f"{median / usual:.2f} x"]))
        if whole[name] != count:
            findings.append(f"{name}: {count - whole[name]} are not whole")
    return {"head": HEAD, "rows": rows, "findings": findings}


def _is_whole(exchange: Exchange) -> bool:
    return len(exchange.delays) == PLAN.words and exchange.status == 200
