"""What becomes of answers in progress when calls of the database hang, and when very many questions come at once."""

from __future__ import annotations

import asyncio
import resource
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

from django.contrib.auth.models import User
from django.db import connections
from rest_framework.authtoken.models import Token

from benchmarks.chat.client import Client, Exchange, ended
from benchmarks.chat.model import Plan
from benchmarks.chat.server import Server
from benchmarks.databases import connect
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation

LOCKED = 8
"""How many conversations another transaction locks: as many as there are threads for the database."""

LOCKED_FOR = 12
"""For how many seconds, as a bulk job or a migration would."""

GOING_ON = 20
"""How many answers are in progress when a burst of questions comes."""

WATCHED = 10
"""How many of these have a listener at another process, and are asked a second question there, once a second."""

LONG, SHORT = Plan(words=150, pause=0.1), Plan(words=20, pause=0.1)

HEAD = (
    "second questions refused",
    "double answers",
    "listeners with the whole stream",
    "cut without a word",
    "questions answered / refused aloud / with an error",
    "first word, s: median / last",
    "lines in the log",
)


def ask(using: str, bursts: Sequence[int]) -> dict[str, Any]:
    """Return a row for locked conversations, and one for each size of *bursts*; the first is compared with."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    overload = Overload(using)
    rows = {f"{GOING_ON} answers, and {count:,} questions at once": overload.burst(count) for count in (0, *bursts)}
    name = f"{LOCKED} locked conversations are asked; another user asks in the same process"
    rows[name] = overload.locked()
    return {"head": HEAD, "rows": list(rows.items()), "findings": overload.findings}


class Overload:
    """A site of two processes on the database *using*, and who asks there."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.findings: list[str] = []
        user = User.objects.db_manager(using).create_user("ann")
        self.token = Token.objects.using(using).create(user=user).key
        connections.close_all()

    def burst(self, count: int) -> list[str]:
        """Have *count* ask at once while answers are in progress."""

        async def run(one: Client, other: Client) -> Seen:
            seen = Seen(other, {str(uuid4()): None for _ in range(GOING_ON)})
            await seen.begin(one, WATCHED)
            keys = [str(uuid4()) for _ in range(count)]
            seen.asked = list(await asyncio.gather(*(one.ask(key, "question", str(SHORT)) for key in keys)))
            await seen.to_the_end()
            return seen

        return self._served(f"{count} at once", run)

    def locked(self) -> list[str]:
        """Have a question asked in each of the locked conversations, and one somewhere else."""

        async def run(one: Client, other: Client) -> Seen:
            keys = [str(uuid4()) for _ in range(LOCKED)]
            await asyncio.gather(*(ended(one.ask(key, "first", str(Plan(1, 0)))) for key in keys))
            seen = Seen(other, {str(uuid4()): None})
            await seen.begin(one, 1)
            with connect(self.using) as locking:
                locking.autocommit = False
                sql = "SELECT 1 FROM chatmemory_conversation WHERE memory_id = ANY(%s) FOR UPDATE"
                locking.execute(sql, [keys])
                waiting = [await one.ask(key, "second", str(SHORT)) for key in keys]
                await asyncio.sleep(0.5)  # until they wait
                seen.asked = [await one.ask(str(uuid4()), "question", str(SHORT))]
                unlocking = asyncio.get_running_loop().call_later(LOCKED_FOR, locking.rollback)
                await seen.to_the_end()
                unlocking.cancel()
            await asyncio.gather(*(each.done.wait() for each in waiting))
            if lost := [each.received[-200:] for each in waiting if not each.is_whole and not _is_aloud(each)]:
                self.findings.append(f"{len(lost)} who waited for the lock were not answered, and no error: {lost[0]}")
            return seen

        return self._served("locked", run)

    def _served(self, name: str, run: Callable[[Client, Client], Awaitable[Seen]]) -> list[str]:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            servers = [stack.enter_context(Server(folder / place)) for place in ("one", "other")]
            one, other = (Client(server.port, self.token) for server in servers)

            async def warm() -> Seen:
                for client in (one, other):
                    await asyncio.gather(*(ended(client.ask(str(uuid4()), "q", str(Plan(1, 0)))) for _ in range(5)))
                return await run(one, other)

            seen = asyncio.run(warm())
            lines = sum(len(server.log.read_text().splitlines()) for server in servers)
        doubles = max(seen.doubles, sum(map(self._is_double, seen.going_on)))
        self.findings += [f"{name}: {doubles} double answers"] if doubles else []
        self.findings += [f"{name}: {seen.cut} streams cut without a word"] if seen.cut else []
        return seen.row(doubles, lines)

    def _is_double(self, key: str) -> bool:
        """Return whether two answers were made at once: one answer, or one answered question, follows another."""
        conversation = Conversation.objects.using(self.using).get(memory_id=key)
        rows = list(conversation.history().order_by("sequence").values_list("type", "is_complete"))
        connections.close_all()
        return any(first == (second[0], True) for first, second in pairwise(rows) if first[0] != MessageType.SYSTEM)


class Seen:
    """What is seen of answers *going_on*, by conversation, from the process of the client *other*."""

    def __init__(self, other: Client, going_on: dict[str, Exchange | None]) -> None:
        self.other = other
        self.going_on: dict[str, Any] = going_on
        self.listeners: list[Exchange] = []
        self.asked: list[Exchange] = []
        """The questions that came on top."""
        self.seconds = self.refused = self.doubles = 0
        """The second questions, those of them that were refused, and those answered during the first answer."""

    async def begin(self, one: Client, watched: int) -> None:
        """Begin the answers at *one*, and listen to so many of them from elsewhere."""
        for key in self.going_on:
            self.going_on[key] = await one.ask(key, "question", str(LONG))
        while not all(each.delays for each in self.going_on.values()):
            await asyncio.sleep(0.05)
        self.watched = list(self.going_on)[:watched]
        self.listeners = [await self.other.listen(key) for key in self.watched]

    async def to_the_end(self) -> None:
        """Ask a second question in each conversation that is watched, once a second, until all has ended."""
        every = [*self.going_on.values(), *self.asked, *self.listeners]
        seconds: list[asyncio.Task[None]] = []
        while any(not self.going_on[key].done.is_set() for key in self.watched):
            seconds += [asyncio.create_task(self._second(key)) for key in self.watched]
            await asyncio.sleep(1)
        await asyncio.gather(*seconds, *(each.done.wait() for each in every))

    async def _second(self, key: str) -> None:
        first = self.going_on[key]
        if first.has_finished or first.done.is_set():
            return
        second = await self.other.ask(key, uuid4().hex, str(Plan(1, 0)))
        while not second.received and not second.done.is_set():
            await asyncio.sleep(0.01)
        is_refused = second.status in {409, 503}
        if is_refused or not first.done.is_set():  # otherwise the first had ended meanwhile
            self.seconds += 1
            self.refused += is_refused
            self.doubles += not is_refused
        await second.done.wait()

    @property
    def cut(self) -> int:
        """How many streams ended without an end, an error or a status that refuses them."""
        every = [*self.going_on.values(), *self.asked, *self.listeners]
        return sum(not each.is_whole and not _is_aloud(each) for each in every)

    def row(self, doubles: int, lines: int) -> list[str]:
        """Return a row of the table."""
        begun = [each.began - each.sent for each in self.asked if each.began]
        whole = sum(each.is_whole for each in self.asked)
        refused = sum(each.status in {429, 503} for each in self.asked)
        return [
            f"{self.refused} of {self.seconds}",
            f"**{doubles}**",
            f"{sum(each.is_whole for each in self.listeners)} of {len(self.listeners)}",
            f"**{self.cut}**",
            f"{whole} / {refused} / {len(self.asked) - whole - refused}",
            f"{statistics.median(begun):.2f} / {max(begun):.2f}" if begun else "",
            str(lines),
        ]


def _is_aloud(exchange: Exchange) -> bool:
    return exchange.status in {204, 409, 429, 503} or b'"type":"error"' in exchange.received
