"""Servers that end while they answer, and what clients find when they come back to the next server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from signal import SIGTERM, Signals
from uuid import uuid4

from django.db import connections

from benchmarks.chat.client import SLACK, Client, ended
from benchmarks.chat.model import END, Plan
from benchmarks.chat.server import Server
from benchmarks.chat.site import Site
from chatmemory_django.chat.runs.leases import DEAD_AFTER
from chatmemory_django.chat.runs.streams import INTERVAL
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Message

COUNT = 20
"""The number of answers that are being generated when a server ends."""

STAYED, GONE = Plan(words=40, pause=0.05), Plan(words=80, pause=0.05)
"""The questions of clients that stay, and of those that have disconnected: a server waits for connected clients."""


class Ending:
    """A server of *site* that *number* ends while half of its clients are gone; they come back to another server."""

    def __init__(self, site: Site, number: Signals, log: Path) -> None:
        self.site = site
        self.number = number
        self.log = log
        keys = [str(uuid4()) for _ in range(COUNT)]
        self.plans = {key: (STAYED, GONE)[place % 2] for place, key in enumerate(keys)}

    def run(self) -> None:
        """Ask, end the server, and ask again."""
        server = Server(self.log).start()
        whole = asyncio.run(self._interrupted(server))
        self._check("question that has changed", {key: [key in whole] for key in self.plans})
        with Server(self.log, port=server.port, BENCHMARK_CHAT_PACE="0") as server:
            client = Client(server.port, self.site.token)
            asyncio.run(self._gone_on(client, [key for key in self.plans if key not in whole]))
        self._check("question that is not answered", {key: [True] for key in self.plans})

    def _check(self, kind: str, expected: dict[str, list[bool]]) -> None:
        """Check that each question is stored once, and is complete or not, as *expected*."""
        asked = Message.objects.using(self.site.using).filter(in_history=True, type=MessageType.USER)
        for key, completes in expected.items():
            found = list(asked.filter(conversation__memory_id=key).values_list("is_complete", flat=True))
            self.site.findings.check(f"{kind}, {self.number.name}", (key, found, completes), holds=found == completes)
        connections.close_all()

    async def _interrupted(self, server: Server) -> set[str]:
        """Ask, end the server during its answers, and return the conversations that received whole answers."""
        client = Client(server.port, self.site.token)
        asked = {key: await client.ask(key, "question", str(plan)) for key, plan in self.plans.items()}
        while not all(each.delays for each in asked.values()):
            await asyncio.sleep(0.01)
        stay = {key for key, plan in self.plans.items() if plan is STAYED}
        for key in self.plans.keys() - stay:
            asked[key].drop(rudely=False)
        await asyncio.sleep(2 * INTERVAL)
        took = await asyncio.to_thread(server.end, self.number)
        findings = self.site.findings
        findings.check(f"server that does not end, {self.number.name}", took, holds=took < STAYED.seconds + SLACK)
        await asyncio.gather(*(each.done.wait() for each in asked.values()))
        whole = {key for key, each in asked.items() if each.is_whole}
        if self.number == SIGTERM:
            findings.check("answer that SIGTERM cut off", sorted(stay - whole), holds=stay <= whole)
        self.site.done[f"answers cut off, {self.number.name}"] += len(asked.keys() - whole)
        return whole

    async def _gone_on(self, client: Client, keys: Sequence[str]) -> None:
        """Come back where a server has ended: half of the clients listen, and the others ask again until they may."""
        begun = time.monotonic()
        end = begun + DEAD_AFTER + SLACK

        async def asked(key: str) -> None:
            while True:
                exchange = await ended(client.ask(key, "question", str(self.plans[key])))
                if exchange.status != 409 or time.monotonic() > end:
                    break
                await asyncio.sleep(INTERVAL)
            self.site.note(exchange, {200}, "to ask again at the next server")

        async def listened(key: str) -> None:
            exchange = await ended(client.listen(key))
            self.site.note(exchange, {200}, "to listen to an answer whose server has ended")
            whole = exchange.is_whole and exchange.text().endswith(END)
            self.site.findings.check("answer that did not go on", exchange.received[-300:], holds=whole)

        await asyncio.gather(*map(listened, keys[::2]), *map(asked, keys[1::2]))
        slowest = f"ms until the last client had an answer, {self.number.name}"
        self.site.done[slowest] = round((time.monotonic() - begun) * 1000)
