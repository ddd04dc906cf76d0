"""Many streams at once, each of a user of its own: the chat beside a view that does the same on Django alone."""

from __future__ import annotations

import asyncio
import resource
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from django.contrib.auth.models import User
from django.db import connections
from rest_framework.authtoken.models import Token

from benchmarks.chat.client import Client, Exchange, ended
from benchmarks.chat.model import Plan
from benchmarks.chat.server import Server
from benchmarks.chat.watch import Watch

PLAN = Plan(words=100, pause=0.1)

BARE, CHAT = "/stream-bare", "/api/chat"

HEAD = (
    "whole / refused / with an error",
    "first word, s after the request: median / last",
    f"a stream of {PLAN.seconds:.0f} s takes: median / last",
    "s of a processor: until the first words / in all",
    "threads",
    "maximum connections",
)


def ask(using: str, counts: Sequence[int]) -> dict[str, Any]:
    """Return a row for each number of streams in *counts*, by the bare view and by the chat with both of its stores."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    tokens, rows, findings = _tokens(using, max(counts)), [], []
    for count in counts:
        bare = _served(using, tokens[:count], BARE)
        rows.append((f"{count:,} streams, the bare view", bare.row(None)))
        for kept in ("DatabaseStreams", "RedisStreams"):
            found = _served(using, tokens[:count], CHAT, kept)
            rows.append((f"{count:,} streams, the chat, `{kept}`", found.row(bare)))
            if found.errors:
                findings.append(f"{count} streams, {kept}: {found.errors} with an error")
    return {"head": HEAD, "rows": rows, "findings": findings}


class Found(NamedTuple):
    """What many streams took."""

    whole: int
    refused: int
    errors: int
    begun: list[float]
    """For each that began, the seconds from the request to its first word."""
    took: list[float]
    """For each that is whole, the seconds from the request to its end."""
    processor: tuple[float, float]
    """The seconds of a processor that the server used until the first words, and in all."""
    threads: int
    connections: int

    def row(self, bare: Found | None) -> list[str]:
        """Return a row of the table, compared with the *bare* view."""
        first = _median_and_last(self.begun)
        if bare is not None and bare.begun and self.begun:
            first += f" · **{statistics.median(self.begun) / statistics.median(bare.begun):.1f} x**"
        return [
            f"{self.whole} / {self.refused} / {self.errors}",
            first,
            _median_and_last(self.took),
            f"{self.processor[0]:.1f} / {self.processor[1]:.1f}",
            str(self.threads),
            str(self.connections),
        ]


def _served(using: str, tokens: Sequence[str], path: str, kept: str = "DatabaseStreams") -> Found:
    async def run(server: Server) -> Found:
        clients = [Client(server.port, token) for token in tokens]
        for _ in range(3):
            await asyncio.gather(*(ended(_asked(client, path, Plan(3, 0.01))) for client in clients[:10]))
        before = server.processor()
        with Watch(server, using) as watch:
            exchanges = await asyncio.gather(*(_asked(client, path, PLAN) for client in clients))
            while not all(each.began or each.done.is_set() for each in exchanges):
                await asyncio.sleep(0.05)
            until_first = server.processor() - before
            await asyncio.gather(*(each.done.wait() for each in exchanges))
            in_all = server.processor() - before
        whole = [each for each in exchanges if each.is_whole]
        refused = sum(each.status in {429, 503} for each in exchanges)
        return Found(
            len(whole),
            refused,
            len(exchanges) - len(whole) - refused,
            [each.began - each.sent for each in exchanges if each.began],
            [each.ended - each.sent for each in whole],
            (until_first, in_all),
            max(watch.threads),
            watch.connections,
        )

    with (
        tempfile.TemporaryDirectory() as folder,
        Server(Path(folder) / "log", BENCHMARK_CHAT_STREAMS=kept) as server,
    ):
        return asyncio.run(run(server))


async def _asked(client: Client, path: str, plan: Plan) -> Exchange:
    return await client.ask(str(uuid4()), "question", str(plan), path=path)


def _tokens(using: str, count: int) -> list[str]:
    users = User.objects.using(using).bulk_create(User(username=f"user {number}") for number in range(count))
    tokens = [Token(user=user, key=Token.generate_key()) for user in users]
    Token.objects.using(using).bulk_create(tokens)
    connections.close_all()
    return [token.key for token in tokens]


def _median_and_last(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f} / {max(seconds):.2f}" if seconds else ""
