"""A process that runs random verbs, and logs each before it starts and with its result.

A worker that is killed in between leaves a verb whose outcome is unknown.
"""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
from collections import deque
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from django.db import InterfaceError, OperationalError, connection, connections, transaction

from benchmarks.soak.errors import CONNECTION, kind_of
from benchmarks.soak.records import (
    CONVERSATIONS,
    LIMITS,
    PICTURES,
    Announced,
    Fault,
    Outcome,
    Seen,
    encode,
    memory_of,
    pictures_in,
    unfinished,
)
from benchmarks.soak.verbs import Undone, Verbs, labels
from chatmemory_django import signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.soak.records import Intent, Place, Record, State

MAX_VERBS = 20_000
MAX_ATTEMPTS = 5
"""How often an add with an unknown outcome is retried."""

HEEDLESS = {"add", "set", "clear", "evict", "recount", "rewind", "switch", "pop", "remove", "pin", "unpin"}
"""Verbs whose errors may be caught inside a transaction without a savepoint: the transaction must then be aborted."""

DRAIN_SECONDS = 15
"""The seconds for such retries when the time is over, and those that a server may be away."""


class Orders(msgspec.Struct):
    """The settings of a worker."""

    name: str
    seed: str
    log: str
    seconds: float
    """The seconds to run, unless SIGTERM ends the worker before."""
    is_dirty: bool = False
    """Whether it sees uncommitted data."""
    predecessor: str = ""
    """The log of the killed worker whose unfinished adds are retried."""


class Attempt:
    """A verb that was started, and its progress."""

    def __init__(self) -> None:
        self.intent: Intent | None = None
        self.answers: list[list[int]] = []
        """The state of each of its writes."""
        self.error: Exception | None = None


class Worker:
    """One process's share of the soak. It works on connection "default", and reads versions on "clean"."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.random = random.Random(orders.seed)
        self.verbs = Verbs(orders.name, self.random, is_dirty=orders.is_dirty)
        self.file = Path(orders.log).open("ab", buffering=0)  # noqa: SIM115  # open as long as the process lives
        self.parent = os.getppid()
        self.until = time.time() + orders.seconds
        self.again: deque[Intent] = deque(unfinished(Path(orders.predecessor)) if orders.predecessor else ())
        """Adds with client ids whose outcome is unknown."""
        if self.random.random() < 0.5:
            signals.messages_added.connect(self._hear)
        signal.signal(signal.SIGTERM, self._stop)

    def run(self) -> None:
        """Run verbs until the time is over, then retry those whose outcome is unknown."""
        while self._goes_on() and self.verbs.number < MAX_VERBS:
            if self.again and self.random.random() < 0.3:
                self._try_again()
            elif (chance := self.random.random()) < 0.25:
                self._read(self._conversation())
            elif chance < 0.65:
                name = self._conversation()
                before = self._where(name)
                self._alone(lambda name=name, before=before: self.verbs.draw(name, before))
            else:
                self._together()
        while self.again and self._goes_on(DRAIN_SECONDS):
            self._try_again()

    def _goes_on(self, more: float = 0) -> bool:
        return time.time() < self.until + more and os.getppid() == self.parent

    def _stop(self, number: int, frame: object) -> None:
        self.until = min(self.until, time.time())

    def _conversation(self) -> str:
        return self.random.choice(CONVERSATIONS)

    def _try_again(self) -> None:
        intent = self.again.popleft()
        before = self._where(intent.conversation)
        self._alone(lambda: self.verbs.again(intent, before))

    def _alone(self, make: Callable[[], Intent]) -> None:
        """Run a verb outside any transaction."""
        attempt = Attempt()
        self._attempt(attempt, make, self._log_seen)
        if attempt.error is not None:
            is_lost = self._fault(attempt.error, attempt, in_transaction=False) == CONNECTION
            next_state: list[State] = ["maybe" if is_lost else "undone"]
        else:
            next_state = []
        self._ended(attempt, [*(["acknowledged"] * len(attempt.answers)), *next_state])

    def _together(self) -> None:
        """Run one to three verbs in a transaction, which commits, rolls back, or continues after an error."""
        names = self.random.choices(CONVERSATIONS, k=self.random.choice((1, 1, 2, 3)))
        before = {name: self._where(name) for name in names}
        style = self.random.choice(("plain", "plain", "savepoints", "heedless"))
        is_undone = self.random.random() < 0.15
        attempts: list[Attempt] = []
        seen: list[Seen] = []
        committed: list[bool] = []
        at_end = False
        error: Exception | None = None
        try:
            with transaction.atomic():
                transaction.on_commit(lambda: committed.append(True))
                if self.random.random() < 0.4:
                    self._see(names[0], before[names[0]], seen.append)
                for name in names:
                    attempt = Attempt()
                    attempts.append(attempt)
                    with transaction.atomic() if style == "savepoints" else nullcontext():
                        self._attempt(attempt, lambda name=name: self.verbs.draw(name, before[name]), seen.append)
                        if attempt.error is not None and style == "savepoints":
                            attempt.answers.clear()
                            transaction.set_rollback(True)
                    if attempt.error is not None:
                        self._fault(attempt.error, attempt, in_transaction=True)
                        kind = "" if attempt.intent is None else attempt.intent.kind
                        is_caught = style == "savepoints" or (style == "heedless" and kind in HEEDLESS)
                        if not is_caught and not isinstance(attempt.error, Undone):
                            transaction.set_rollback(True)
                            break
                    if self.random.random() < 0.3:
                        self._see(name, before[name], seen.append)
                if is_undone:
                    transaction.set_rollback(True)
                at_end = not transaction.get_rollback()
        except Exception as exc:  # noqa: BLE001  # whatever it is, it is counted
            error = exc
        kind = "" if error is None else self._fault(error, None, in_transaction=True)
        state: State = "acknowledged" if committed else "maybe" if at_end and kind == CONNECTION else "undone"
        for attempt in attempts:
            self._ended(attempt, [state] * len(attempt.answers))
        if committed:
            for each in seen:
                self._log_seen(each)

    def _attempt(self, attempt: Attempt, make: Callable[[], Intent], log: Callable[[Seen], None]) -> None:
        """Run the verb that *make* returns. Errors are recorded in *attempt*."""

        def see(found: list[str]) -> None:
            self._seen(intent.conversation, intent.window, intent.before, found, log, intent.to)

        try:
            attempt.intent = intent = make()
            self._log(intent)
            self.verbs.do(intent, attempt.answers, see)
        except Exception as exc:  # noqa: BLE001  # whatever it is, it is counted
            attempt.error = exc

    def _ended(self, attempt: Attempt, states: list[State]) -> None:
        if (intent := attempt.intent) is None:
            return
        # While a write may still take effect, no version shows whether it has.
        after = None if "maybe" in states else self._where(intent.conversation)
        answer = attempt.answers[0] if attempt.answers else []
        self._log(Outcome(intent.id, states, after, answer))
        if intent.client_ids and states == ["acknowledged"]:
            self.verbs.known.append(intent)
        elif intent.client_ids and states == ["maybe"] and intent.attempts < MAX_ATTEMPTS:
            self.again.append(msgspec.structs.replace(intent, attempts=intent.attempts + 1))

    def _read(self, name: str) -> None:
        """Read outside any transaction."""
        try:
            self._see(name, self._where(name), self._log_seen)
        except Exception as exc:  # noqa: BLE001  # whatever it is, it is counted
            self._fault(exc, None, in_transaction=False)

    def _see(self, name: str, before: Place, log: Callable[[Seen], None]) -> None:
        window = self.random.randrange(len(LIMITS))
        messages = memory_of(name, window).messages()
        if not all(picture in PICTURES for message in messages for picture in pictures_in(message)):
            raise AssertionError(f"{name} has other files than were added.")
        self._seen(name, window, before, labels(messages), log)

    def _seen(
        self,
        name: str,
        window: int,
        before: Place,
        found: list[str],
        log: Callable[[Seen], None],
        rewound_to: int | None = None,
    ) -> None:
        log(Seen(name, window, before, None, found, self.orders.is_dirty, self.orders.name, rewound_to))

    def _log_seen(self, seen: Seen) -> None:
        seen.after = self._where(seen.conversation)
        self._log(seen)

    def _where(self, name: str) -> Place:
        """Return the conversation's committed key and version, however often the server goes away."""
        deadline = time.time() + 4 * DRAIN_SECONDS
        while True:
            try:
                with connections["clean"].cursor() as cursor:
                    cursor.execute("SELECT id, version FROM chatmemory_conversation WHERE memory_id = %s", [name])
                    return cursor.fetchone()
            except (OperationalError, InterfaceError):
                connections["clean"].close()
                if time.time() > deadline:
                    raise
                time.sleep(0.05)

    def _fault(self, error: Exception, attempt: Attempt | None, *, in_transaction: bool) -> str:
        """Record *error*, unless it was raised on purpose; return its kind."""
        if isinstance(error, Undone):
            return ""
        kind, is_known = kind_of(error)
        detail = "" if is_known else "".join(traceback.format_exception(error)[-14:])
        verb = attempt.intent.id if attempt is not None and attempt.intent is not None else ""
        self._log(Fault(kind, in_transaction, is_known, detail, verb, self.orders.is_dirty))
        if kind == CONNECTION and not connection.in_atomic_block:
            connection.close()
            time.sleep(0.02)
        return kind

    def _hear(self, conversation: Any, sequences: tuple[int, ...], **kwargs: Any) -> None:
        self._log(Announced(conversation.pk, list(sequences)))

    def _log(self, record: Record) -> None:
        self.file.write(encode(record) + b"\n")
