"""Clients that disconnect at random moments, and what they leave behind in the server and in the database."""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.chat.client import SLACK, Client, ended
from benchmarks.chat.model import Plan
from benchmarks.chat.server import Server
from benchmarks.chat.site import Site
from benchmarks.chat.watch import Watch

AT_ONCE = 50
"""The number of concurrent clients."""

PATIENCE = 60.0
"""The seconds that a client waits for the moment at which it wants to disconnect."""

OWN_TASKS = ("Server.serve", "ASGIHandler.listen_for_disconnect")
OWN_THREADS = 2
"""The tasks and threads of an idle server: its loop, the request for its state, and the thread outside of requests."""

NEXT = Plan(words=1, pause=0)


def ask(using: str, clients: int, seed: int) -> dict[str, Any]:
    """Return the actions taken and the findings."""
    from benchmarks.chat.killed import Ending

    site = Site(using)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with Server(log) as server:
            asyncio.run(Dropping(site, server, seed).run(clients))
        site.judge()
        for number in (signal.SIGKILL, signal.SIGTERM):
            Ending(site, number, log).run()
            site.judge()
        if logged := log.read_text():
            site.findings.add("in the servers' log", logged[-2000:])
    return {"done": site.done, "faults": site.findings.count, "findings": list(site.findings)}


class Dropping:
    """Clients of *site* that disconnect from *server*."""

    def __init__(self, site: Site, server: Server, seed: int) -> None:
        self.site = site
        self.server = server
        self.client = Client(server.port, site.token)
        self.random = random.Random(seed)
        self.keys: list[str] = []

    async def run(self, clients: int) -> None:
        """Let *clients* disconnect, and ask once more in each of their conversations."""
        await self._at_once([str(uuid4()) for _ in range(AT_ONCE)], self._next)
        self.keys = [str(uuid4()) for _ in range(clients)]
        with Watch(self.server, self.site.using) as watch:
            await self._at_once(self.keys, self._drop)
            await self._wait(watch)
            await self._at_once(self.keys, self._next)
            await self._wait(watch)
        self.site.done["maximum connections"] = watch.connections
        if self.site.most_connections is not None:
            holds = watch.connections <= self.site.most_connections
            self.site.findings.check("more connections than the pool has", watch.connections, holds=holds)

    async def _at_once(self, keys, do) -> None:  # type: ignore[no-untyped-def]
        turn = asyncio.Semaphore(AT_ONCE)

        async def done(key: str) -> None:
            async with turn:
                await do(key)

        await asyncio.gather(*map(done, keys))

    async def _drop(self, key: str) -> None:
        """Ask, and disconnect; some come back at once."""
        chance, done = self.random.random, self.site.done
        plan = Plan(self.random.randint(3, 40), 0.01, self.random.choice((0, 0, 1, 2)))
        asked = await self.client.ask(key, "question", str(plan), part=chance() if chance() < 0.05 else 1.0)
        match self.random.randrange(3):
            case 0:
                await asyncio.sleep(self.random.uniform(0, 0.3))
            case 1:
                await _until(lambda: asked.received)
                await asyncio.sleep(self.random.uniform(0, plan.seconds))
            case 2:
                await _until(lambda: asked.has_finished)
        when = (
            "at the end" if asked.has_finished else "during the stream" if asked.received else "before the first byte"
        )
        done[f"clients that disconnected {when}"] += 1
        asked.drop(rudely=chance() < 0.5)
        if chance() < 0.25:
            done["came back to listen"] += 1
            self.site.note(await ended(self.client.listen(key)), {200, 204}, "to listen")
        if chance() < 0.1:
            done["stopped the answer"] += 1
            self.site.stopped.add(key)
            self.site.note(await ended(self.client.stop(key)), {200}, "to stop")
        if chance() < 0.25:
            done["asked again"] += 1
            again = await self.client.ask(key, "question", str(plan))
            if chance() < 0.5:
                await asyncio.sleep(self.random.uniform(0, plan.seconds))
                again.drop(rudely=chance() < 0.5)
            else:
                await again.done.wait()
                self.site.note(again, {200, 409}, "to ask again")

    async def _next(self, key: str) -> None:
        """Ask, and stay: the conversation can be continued."""
        exchange = await ended(self.client.ask(key, uuid4().hex, str(NEXT)))
        self.site.note(exchange, {200}, "to ask next")
        self.site.findings.check("next answer that is not whole", exchange.received[-300:], holds=exchange.is_whole)

    async def _wait(self, watch: Watch) -> None:
        """Wait until the server has finished everything; note a finding if that takes too long."""
        most, findings = self.site.most_connections or 0, self.site.findings
        end = time.monotonic() + SLACK
        while True:
            state = await self.client.state()
            tasks = [name for name in state["tasks"] if name not in OWN_TASKS]
            threads = [name for name in state["threads"] if name.startswith("ThreadPoolExecutor")]
            await asyncio.sleep(0.2)  # for the next look of the watch
            is_at_rest = not tasks and len(threads) <= OWN_THREADS and watch.connections_now <= most
            if is_at_rest or time.monotonic() > end:
                break
        findings.check("task left", tasks, holds=not tasks)
        findings.check("thread left", threads, holds=len(threads) <= OWN_THREADS)
        findings.check("connection left", watch.connections_now, holds=watch.connections_now <= most)
        for key in watch.runs_now:
            findings.add("answer marked as running without a task", key)


async def _until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so() and time.monotonic() < end:
        await asyncio.sleep(0.002)
