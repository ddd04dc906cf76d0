"""Clients of the soak of runs: each has a conversation, and comes back until its question is answered."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

from benchmarks.chat.acting import TOOLS, Plan
from benchmarks.chat.client import Client, Exchange, ended
from benchmarks.chat.judge import Findings
from benchmarks.chat.model import END

PATIENCE = 12.0
"""The seconds after which a client closes a connection, and comes back by another one."""

PAUSE = 0.3
"""The seconds between two attempts."""

ALLOWED = {0, 200, 204, 409, 500, 503}
"""The statuses of responses; 0 is a connection that was cut off. A site whose database is away answers with 500."""


@dataclass
class Asked:
    """A question, and what its client has seen of the answer."""

    memory_id: str
    plan: Plan
    begins_branch: bool
    """Whether it follows nothing, like an edited first question."""
    outcome: str = "open"
    """``answered``, ``stopped``, or ``left`` for another question."""
    answer_id: str = ""
    texts: list[tuple[list[str], bool]] = field(default_factory=list)
    """The texts of the steps of each stream that ended well, and whether the answer ended with it."""
    decisions: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """By the id of an approval, the key of its call and what was decided."""
    is_late: bool = False
    """Whether a request may still arrive that was given up."""


class Seen:
    """What a page knows of an answer after the *events* of a stream."""

    def __init__(self, events: Sequence[dict[str, Any]]) -> None:
        steps: list[str | None] = []
        self.ends = ""
        self.error = ""
        self.answer_id = ""
        self.approvals: dict[str, str] = {}
        """The calls that wait for an approval, by their ids."""
        self.calls: dict[str, tuple[str, str]] = {}
        """The calls without a result, by their ids: the name of the tool, and the key."""
        for event in events:
            match event["type"]:
                case "start":
                    self.answer_id = event.get("messageId", "")
                case "start-step":
                    steps.append("")
                case "text-delta":
                    steps[-1] = (steps[-1] or "") + event["delta"]
                case "data-restarted":
                    steps[-1] = None
                case "tool-input-available":
                    self.calls[event["toolCallId"]] = event["toolName"], event["input"]["key"]
                case "tool-approval-request":
                    self.approvals[event["toolCallId"]] = event["approvalId"]
                case "tool-output-available" | "tool-output-error" | "tool-output-denied":
                    self.calls.pop(event["toolCallId"], None)
                    self.approvals.pop(event["toolCallId"], None)
                case "finish" | "abort" | "error" as end:
                    self.ends, self.error = end, event.get("errorText", "")
        self.steps = [step for step in steps if step]

    @property
    def waits(self) -> bool:
        """Whether the answer goes on with a decision or an output."""
        return bool(self.calls or self.approvals)

    @property
    def is_whole(self) -> bool:
        """Whether the answer ended: a stream that goes on lacks what the page has, such as calls that wait."""
        return self.ends == "finish" and not self.waits and self.steps[-1:] != [] and self.steps[-1].endswith(END)


class Asker:
    """The owner of a conversation, who asks at several *webs*, and may *decide* on approvals elsewhere."""

    def __init__(
        self,
        webs: Sequence[Client],
        chance: random.Random,
        decide: Callable[[str, dict[str, bool]], None],
        done: Counter[str],
        findings: Findings,
    ) -> None:
        self._webs = webs
        self._random = chance
        self._decide = decide
        self._done = done
        self._findings = findings
        self._memory_id = str(uuid4())
        self._calm_at = self._end = 0.0
        self.asked: list[Asked] = []

    async def converse(self, calm_at: float, end: float) -> None:
        """Ask one question after the other until *calm_at*, and see the last one through until *end*."""
        self._calm_at, self._end = calm_at, end
        while time.monotonic() < calm_at or self.asked[-1].outcome == "left":
            asked = Asked(self._memory_id, self._plan(), self._random.random() < 0.2)
            self.asked.append(asked)
            await self._see_through(asked)
            self._done[f"questions {asked.outcome}"] += 1
            if asked.outcome == "open":
                self._findings.add("question that nobody answers", f"{self._memory_id} {asked.plan.key}")
                return
        exchange = None
        while time.monotonic() < end:  # what a late request has begun goes on if somebody reads it
            exchange = await self._sent(asked, self._listen)
            if exchange is not None and exchange.status == 204:
                return
            await asyncio.sleep(PAUSE)
        seen = "" if exchange is None else exchange.received[-300:]
        self._findings.add("answer without an end", f"{self._memory_id} {asked.outcome} {seen!r}")

    def _plan(self) -> Plan:
        pick = self._random
        rounds = [pick.choices(TOOLS, (4, 1, 1), k=pick.choice((1, 1, 2))) for _ in range(pick.randrange(4))]
        return Plan(uuid4().hex, rounds, pick.randint(1, 10), pick.choice((0.0, 0.02, 0.1)))

    def _happens(self, chance: float) -> bool:
        return time.monotonic() < self._calm_at and self._random.random() < chance

    async def _see_through(self, asked: Asked) -> None:
        again = partial(self._ask, asked)
        send: Callable[[Client], Awaitable[Exchange]] = again
        while time.monotonic() < self._end and asked.outcome == "open":
            exchange = await self._sent(asked, send)
            send = again
            if exchange is None or exchange.status not in {200, 204}:
                await asyncio.sleep(PAUSE)
                continue
            seen = self._noted(asked, exchange)
            if exchange.status == 200 and not seen.ends:  # it was cut off
                send = self._listen if self._random.random() < 0.7 else again
            elif seen.ends == "finish" and seen.waits:
                send = await self._decided(asked, seen) or again
            elif seen.is_whole:
                asked.outcome = "answered"
            else:
                await asyncio.sleep(PAUSE)

    async def _sent(self, asked: Asked, send: Callable[[Client], Awaitable[Exchange]]) -> Exchange | None:
        """Send a request, and return its exchange once that has ended, by the server or by this client; or None."""
        try:
            exchange = await send(self._random.choice(self._webs))
        except OSError:
            return None
        stays = PATIENCE
        if self._happens(0.2):
            self._done["clients that disconnected"] += 1
            stays = self._random.uniform(0, 1.5)
        stopping = asyncio.create_task(self._stop(asked)) if self._happens(0.05) else None
        try:
            async with asyncio.timeout(stays):
                await exchange.done.wait()
        except TimeoutError:
            asked.is_late |= not exchange.received
            exchange.drop(rudely=self._random.random() < 0.5)
        if stopping is not None:
            await stopping
        elif not asked.is_late and not exchange.has_finished and self._happens(0.05):
            asked.outcome = "left"
        return exchange

    def _noted(self, asked: Asked, exchange: Exchange) -> Seen:
        seen = Seen(exchange.events())
        asked.answer_id = seen.answer_id or asked.answer_id
        if exchange.status == 200 and exchange.received.endswith(b"0\r\n\r\n"):
            whole = b"[DONE]" in exchange.received[-40:]
            self._findings.check("stream cut without a word", exchange.received[-300:], holds=whole)
        if seen.ends == "finish":
            asked.texts.append((seen.steps, seen.is_whole))
        elif seen.ends:
            self._done[f"streams that ended with {seen.ends} {seen.error}".strip()] += 1
        return seen

    async def _ask(self, asked: Asked, web: Client) -> Exchange:
        text = {"type": "text", "text": json.dumps(asked.plan)}
        message = {"id": asked.plan.key, "role": "user", "parts": [text]}
        body: dict[str, Any] = {"id": self._memory_id, "message": message}
        if asked.begins_branch:  # the list shows nothing before it
            body = {"id": self._memory_id, "messages": [message], "trigger": "submit-message"}
        return await self._posted(body, web)

    async def _listen(self, web: Client) -> Exchange:
        self._done["came back to listen"] += 1
        return self._checked(await web.listen(self._memory_id))

    def _checked(self, exchange: Exchange) -> Exchange:
        def check(_: object) -> None:
            allowed = exchange.status in ALLOWED
            self._findings.check(f"response {exchange.status}", exchange.received[-300:], holds=allowed)
            if exchange.status not in {0, 200, 204}:
                self._done[f"responses {exchange.status}"] += 1

        waiting = asyncio.ensure_future(exchange.done.wait())
        waiting.add_done_callback(check)
        return exchange

    async def _stop(self, asked: Asked) -> None:
        await asyncio.sleep(self._random.uniform(0, 1))
        asked.outcome = "stopped"
        while time.monotonic() < self._end:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    stopped = await ended(self._random.choice(self._webs).stop(self._memory_id))
                if stopped.status == 200:
                    return
            await asyncio.sleep(PAUSE)
        self._findings.add("answer that cannot be stopped", self._memory_id)

    async def _decided(self, asked: Asked, seen: Seen) -> Callable[[Client], Awaitable[Exchange]] | None:
        """Decide on what waits, in code of the site, or return how the page does."""
        for call, approval in seen.approvals.items():
            key = seen.calls[call][1]
            asked.decisions.setdefault(approval, (key, self._random.random() < 0.8))
        decided = {approval: asked.decisions[approval][1] for approval in seen.approvals.values()}
        if decided and self._random.random() < 0.4:
            self._done["decided by another process"] += 1
            await asyncio.to_thread(self._decide, self._memory_id, decided)
            await asyncio.sleep(self._random.choice((0.0, 3.0)))  # a worker goes on by itself
            return None
        parts: list[dict[str, Any]] = [
            {
                "type": f"tool-{seen.calls[call][0]}",
                "toolCallId": call,
                "state": "approval-responded",
                "approval": {"id": approval, "approved": decided[approval]},
            }
            for call, approval in seen.approvals.items()
        ] + [
            {"type": f"tool-{name}", "toolCallId": call, "state": "output-available", "output": f"here {key}"}
            for call, (name, key) in seen.calls.items()
            if name == "locate"
        ]
        self._done["decisions and outputs"] += len(parts)
        post = partial(self._post, {"id": asked.answer_id, "role": "assistant", "parts": parts})
        if self._random.random() < 0.3:  # another tab
            self._done["posted twice"] += 1
            with suppress(OSError):
                await post(self._random.choice(self._webs))
        return post

    async def _post(self, message: dict[str, Any], web: Client) -> Exchange:
        body = {"id": self._memory_id, "trigger": "submit-message", "messages": [message]}
        return await self._posted(body, web)

    async def _posted(self, body: dict[str, Any], web: Client) -> Exchange:
        return self._checked(await web.send("POST", "/api/chat", json.dumps(body).encode()))
