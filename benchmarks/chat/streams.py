"""200 streams at once, in one process with a small pool of connections: their cost, and when each word arrives."""

from __future__ import annotations

import asyncio
import math
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from django.contrib.auth.models import User
from django.db import connections
from rest_framework.authtoken.models import Token

from benchmarks.chat.client import Client, Exchange
from benchmarks.chat.model import Plan
from benchmarks.chat.server import Server
from benchmarks.chat.watch import Watch
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Message

PLAN = Plan(words=50, pause=0.05)

A_SECOND = 20
"""The number of streams started per second, where not all start at once."""

Run = Callable[[Client, Client], Awaitable[tuple[list[str], list[Exchange]]]]
"""A scenario: takes one server and another, and the conversations, and returns the exchanges."""


def ask(using: str, count: int) -> dict[str, Any]:
    """Return the results of *count* streams, in each of several ways, as the rows of a table."""
    streams = Streams(using, count)
    rows = {}
    for kept in ("DatabaseStreams", "RedisStreams"):
        streams.kept = kept
        rows[f"{count} streams, started at once, `{kept}`"] = streams.asked()
        rows[f"{count} streams, started {A_SECOND} per second, `{kept}`"] = streams.asked(a_second=A_SECOND)
        rows[f"{count} listeners to one, `{kept}`"] = streams.listened()
        rows[f"{count} listeners to one, from another process, `{kept}`"] = streams.listened(elsewhere=True)
    return {
        "head": HEAD,
        "rows": [(name, found.row()) for name, found in rows.items()],
        "findings": streams.findings + [f"{name}: {found.lost} lost" for name, found in rows.items() if found.lost],
    }


class Found(NamedTuple):
    """The results of many streams."""

    streams: int
    lost: int
    """The number of clients that did not receive exactly what is stored."""
    first: list[float]
    """For each, the delay of its first word after the model's, in seconds."""
    every: list[float]
    """The delays of all words."""
    begun: list[float]
    """For each, the seconds from the request to its first word."""
    kib_each: float
    threads: int
    connections: int

    def row(self) -> list[str]:
        """Return a row of the table."""
        return [
            f"{self.streams - self.lost} of {self.streams}",
            f"{_ms(self.first, 0.5)} / {_ms(self.first, 0.99)}",
            f"{_ms(self.every, 0.5)} / {_ms(self.every, 0.99)}",
            f"{statistics.median(self.begun):.2f} / {max(self.begun):.2f}",
            f"{self.kib_each:,.0f}",
            str(self.threads),
            str(self.connections),
        ]


HEAD = (
    "whole",
    "first word, ms after the model's: median / 99 %",
    "every word",
    "first word, s after the request: median / last",
    "KiB each",
    "threads",
    "maximum connections",
)


class Streams:
    """Streams of one user, of servers on the database *using*."""

    def __init__(self, using: str, count: int) -> None:
        self.using = using
        self.count = count
        self.findings: list[str] = []
        self.kept = "DatabaseStreams"
        """The class that stores the server's streams."""
        user = User.objects.db_manager(using).create_user("ann")
        self.token = Token.objects.using(using).create(user=user).key
        connections.close_all()

    def asked(self, *, a_second: float = math.inf) -> Found:
        """Have each client ask in its own conversation: all at once, or *a_second* per second until all run."""
        plan = PLAN._replace(words=PLAN.words + math.ceil(self.count / a_second / PLAN.pause))

        async def run(client: Client, _: Client) -> tuple[list[str], list[Exchange]]:
            keys = [str(uuid4()) for _ in range(self.count)]
            begun, exchanges = time.monotonic(), []
            for number, key in enumerate(keys):
                await asyncio.sleep(begun + number / a_second - time.monotonic())
                exchanges.append(await client.ask(key, "question", str(plan)))
            await asyncio.gather(*(each.done.wait() for each in exchanges))
            return keys, exchanges

        return self._served(1, run)

    def listened(self, *, elsewhere: bool = False) -> Found:
        """Have many listen to one answer: at the process that generates it, or *elsewhere*."""

        async def run(client: Client, listener: Client) -> tuple[list[str], list[Exchange]]:
            key = str(uuid4())
            first = await client.ask(key, "question", str(PLAN._replace(words=4 * PLAN.words)))
            while not first.delays:
                await asyncio.sleep(0.01)
            exchanges = [await listener.listen(key) for _ in range(self.count)]
            await asyncio.gather(*(each.done.wait() for each in (first, *exchanges)))
            for each in exchanges:
                del each.delays[: 2 * PLAN.words]  # earlier words arrived at once
            return [key] * self.count, exchanges

        return self._served(2 if elsewhere else 1, run)

    def _served(self, processes: int, run: Run) -> Found:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            servers = [
                Server(folder / f"{number}.log", BENCHMARK_CHAT_STREAMS=self.kept) for number in range(processes)
            ]
            for server in servers:
                stack.enter_context(server)
            clients = [Client(server.port, self.token) for server in servers]

            async def watched() -> tuple[list[str], list[Exchange], Watch]:
                for client in clients:
                    await _warm_up(client)
                with Watch(servers[-1], self.using) as watch:
                    return (*await run(clients[0], clients[-1]), watch)

            found = self._found(*asyncio.run(watched()))
            for server in servers:
                if logged := server.log.read_text():
                    self.findings.append(f"The server has logged: {logged[:4000]}")
            return found

    def _found(self, keys: Sequence[str], exchanges: Sequence[Exchange], watch: Watch) -> Found:
        rows = Message.objects.using(self.using).history().filter(conversation__memory_id__in=keys)
        stored = dict(rows.filter(type=MessageType.AI).values_list("conversation__memory_id", "text"))
        connections.close_all()
        whole = [each.is_whole and each.text() == stored.get(key) for key, each in zip(keys, exchanges, strict=True)]
        return Found(
            len(exchanges),
            whole.count(False),
            [each.delays[0] for each in exchanges if each.delays],
            [delay for each in exchanges for delay in each.delays],
            [each.began - each.sent for each in exchanges if each.began],
            (watch.kib - watch.kib_before) / len(exchanges),
            round(statistics.median(watch.threads)),
            watch.connections,
        )


async def _warm_up(client: Client) -> None:
    for _ in range(3):
        asked = [await client.ask(str(uuid4()), "question", str(Plan(3, 0.01))) for _ in range(10)]
        await asyncio.gather(*(each.done.wait() for each in asked))


def _ms(delays: list[float], part: float) -> str:
    return f"{sorted(delays)[min(len(delays) - 1, int(part * len(delays)))] * 1000:,.1f}"
