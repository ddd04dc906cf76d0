"""The verbs of workers: chosen at random, described as an ``Intent``, and executed."""

from __future__ import annotations

import datetime
import json
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from django.utils import timezone

from benchmarks.soak.records import (
    APPENDED,
    LIMITS,
    LOSING_ROWS,
    PICTURES,
    WINDOWS,
    Intent,
    digest,
    has_all_rows,
    label_of,
    memory_of,
    summarizing,
    summary_text,
    text_of,
)
from chatmemory_django.codec import messages_from_json, messages_to_json
from chatmemory_django.messages import (
    AiMessage,
    Image,
    ImageContent,
    NewMessage,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import fork
from chatmemory_django.operations.jsonl import export_lines, import_lines
from chatmemory_django.stores.base import PinError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from benchmarks.soak.records import Place
    from chatmemory_django.messages import ChatMessage

WEIGHTS = {
    "one": 30,
    "many": 10,
    "system": 6,
    "same system": 4,
    "tools": 8,
    "late turn": 12,
    "early turn": 10,
    "known": 5,
    "recount": 4,
    "title": 2,
    "summarize": 10,
    "fork": 2,
}
"""How often each is done to any conversation, and ..."""

MORE_WEIGHTS = {"set": 6, "clear": 3, "evict": 3, "pop": 3, "remove": 4, "pin": 6, "unpin": 4}
"""... to those with other verbs than adds, ..."""

BRANCHING_WEIGHTS = {"rewind": 5, "switch": 5}
"""... and to those that have branches."""

SPECIAL_WEIGHTS = {"any": {"erase": 0.1}, "again": {"erase": 4, "copy": 3}, "idle": {"erase idle": 10}}
"""Verbs for only some kinds of conversation."""

RECENT = 40
"""The number of newest messages of which one is chosen to continue from."""


ANSWERED = {"add", "turn", "evict", "switch", "pop", "remove", "pin", "unpin", "summarize"}
"""The verbs whose writes have return values."""


class Undone(Exception):  # noqa: N818  # not an error
    """Raised on purpose: a transaction or a turn is to be rolled back."""


class Verbs:
    """The verbs of the worker *name*."""

    def __init__(self, name: str, random: random.Random, *, is_dirty: bool) -> None:
        self.name = name
        self.is_dirty = is_dirty
        self.random = random
        self.number = 0
        self.known: deque[Intent] = deque(maxlen=50)
        """Acknowledged adds with client ids."""

    def draw(self, conversation: str, before: Place) -> Intent:
        """Return a verb for *conversation*, which is at *before*."""
        weights, kind = dict(WEIGHTS), conversation.partition("-")[0]
        if conversation not in APPENDED:
            weights |= MORE_WEIGHTS
            weights |= BRANCHING_WEIGHTS if has_branches(conversation) else {}
            # With uncommitted reads, these would copy uncommitted data, and miss what another writer still adds.
            weights |= {} if self.is_dirty else SPECIAL_WEIGHTS.get(kind, {})
        if kind == "fleeting":
            weights["summarize"] = 0  # there is nothing to summarize
        if kind == "forgetful":  # the first message after a clear names its parent, and may be deleted
            weights |= {"clear": 0, "set": 0}
        if self.is_dirty:  # and it would summarize what is rolled back afterwards
            weights |= {"summarize": 0, "fork": 0}
        known = [intent for intent in self.known if intent.conversation == conversation]
        if not known:
            del weights["known"]
        name = self.random.choices(list(weights), list(weights.values()))[0]
        if name == "known":
            return self.again(self.random.choice(known), before)
        self.number += 1
        intent = Intent(
            id=f"{self.name}-{self.number}",
            verb=f"{self.name}-{self.number}",
            kind="add",
            conversation=conversation,
            window=self.random.randrange(len(LIMITS)),
            before=before,
            keep_history=kind not in LOSING_ROWS,
        )
        getattr(self, f"_{name.replace(' ', '_')}")(intent)
        return intent

    def again(self, intent: Intent, before: Place) -> Intent:
        """Return the same messages with the same client ids once more."""
        self.number += 1
        return msgspec.structs.replace(intent, id=f"{self.name}-{self.number}", before=before)

    def do(self, intent: Intent, answers: list[list[int]], see: Callable[[list[str]], None]) -> None:
        """Execute *intent*. *answers* gets one for each write; *see* gets what a turn finds when it begins."""
        memory = memory_of(intent.conversation, intent.window, keep_history=intent.keep_history)
        parts = [messages_from_json(part) for part in intent.parts]
        named = Conversation.objects.filter(memory_id=intent.conversation)
        match intent.kind:
            case "add":
                metadata = {"by": f"{intent.verb}/0"} if intent.metadata else None
                names = intent.client_ids or [None] * len(parts[0])
                new = (NewMessage(each, metadata, name) for each, name in zip(parts[0], names, strict=True))
                answers.append(memory.add(*new, after=intent.to))
            case "turn":
                with memory.turn("early" if len(parts) > 1 else "late", after=intent.to) as turn:
                    see(labels(turn.messages))
                    for place, part in enumerate(parts):
                        turn.add(*part)
                        if place + 1 < len(parts):
                            answers.append([])  # an early turn has stored it
                    if intent.fails:
                        raise Undone
                answers.append([])
            case "set":
                memory.set(parts[0])
            case "clear":
                memory.clear()
            case "evict":
                answers.append(memory.evict(intent.count))
            case "rewind":
                memory.rewind(intent.to or 0)
            case "switch":
                answers.append([memory.switch(intent.to or 0)])
            case "pop":
                popped = memory.pop()
                answers.append([] if popped is None else [digest(label_of(text_of(popped)))])
            case "remove":
                answers.append(memory.remove(intent.to or 0, with_results=intent.with_results))
            case "pin":
                try:
                    answers.append(memory.pin(intent.to or 0))
                except PinError:
                    answers.append([])  # there is no room
            case "unpin":
                answers.append(memory.unpin(intent.to or 0))
            case "summarize":
                summarizer = summarizing(intent.conversation, intent.window, partial(self._summary, intent))
                answers.append([int(summarizer.summarize())])
            case "fork":
                for conversation in named:
                    fork(conversation, f"fork-{intent.id}", through=intent.to, window=WINDOWS[intent.window])
            case "recount":
                memory.store.recount(intent.conversation, WINDOWS[intent.window])
            case "title":
                for conversation in named:
                    conversation.title = intent.id
                    conversation.save()
            case "erase":
                named.delete()
            case "erase idle":
                named.idle_since(datetime.datetime.fromisoformat(intent.cutoff)).delete()
            case "copy":
                lines = list(export_lines(named))
                import_lines([*(renamed(line, f"copy-{intent.id}") for line in lines[:1]), *lines[1:]])
        if intent.kind not in ANSWERED:
            answers.append([])

    def _one(self, intent: Intent) -> None:
        self._say(intent, [self._message(self._text(intent, 0))])

    def _many(self, intent: Intent) -> None:
        count = self.random.choice((2, 3, 5, 9))
        self._say(intent, [self._message(self._text(intent, index)) for index in range(count)])

    def _system(self, intent: Intent) -> None:
        users = [UserMessage(self._text(intent, 1))] * self.random.randrange(2)
        self._say(intent, [SystemMessage(self._text(intent, 0)), *users])

    def _same_system(self, intent: Intent) -> None:
        systems = [each for each in self._memory(intent) if isinstance(each, SystemMessage)]
        if not systems:
            return self._system(intent)
        users = [UserMessage(self._text(intent, 1))] * self.random.randrange(2)
        self._say(intent, [systems[0], *users], named=True)  # it may have been evicted, and is stored again
        return None

    def _tools(self, intent: Intent) -> None:
        count = self.random.choice((1, 2, 3))
        calls = [ToolExecutionRequest(id=f"{index}", name="tool", arguments="{}") for index in range(count)]
        results = [
            ToolExecutionResultMessage(call.id, "tool", self._text(intent, index))
            for index, call in enumerate(calls, start=1)
        ]
        self._say(intent, [AiMessage(self._text(intent, 0), tool_execution_requests=calls), *results])

    def _late_turn(self, intent: Intent) -> None:
        self._turn(intent)
        intent.parts = [messages_to_json([self._asked(self._text(intent, 0)), AiMessage(self._text(intent, 1))])]

    def _early_turn(self, intent: Intent) -> None:
        self._turn(intent)
        if intent.to is not None and not intent.keep_history:
            return self._late_turn(intent)  # without a history, this is what it is
        sent = (self._asked(self._text(intent, 0)), AiMessage(self._text(intent, 0, part=1)))
        intent.parts = [messages_to_json([message]) for message in sent]
        return None

    def _turn(self, intent: Intent) -> None:
        intent.kind = "turn"
        intent.fails = self.random.random() < 0.1
        self._maybe_keep(intent)
        self._maybe_after(intent, 0.2)

    def _set(self, intent: Intent) -> None:
        intent.kind = "set"
        # With uncommitted reads, this would make history of what another writer rolls back.
        present = [] if self.is_dirty else self._memory(intent)
        style = self.random.choice(("cut", "cut and new", "digest", "nothing"))
        kept = present[self.random.randrange(len(present) + 1) :]
        new = [self._message(self._text(intent, index)) for index in range(self.random.choice((1, 2, 4)))]
        by_style = {"cut": kept, "cut and new": [*kept, *new], "digest": [*new, *kept], "nothing": []}
        intent.parts = [messages_to_json(by_style[style])]

    def _clear(self, intent: Intent) -> None:
        intent.kind = "clear"

    def _evict(self, intent: Intent) -> None:
        intent.kind, intent.count = "evict", self.random.choice((1, 1, 2, 5, 100))

    def _rewind(self, intent: Intent) -> None:
        intent.kind, intent.to = "rewind", self._some_sequence(intent)

    def _switch(self, intent: Intent) -> None:
        intent.kind, intent.to = "switch", self._some_sequence(intent)

    def _pop(self, intent: Intent) -> None:
        intent.kind = "pop"

    def _remove(self, intent: Intent) -> None:
        intent.kind, intent.to = "remove", self._some_sequence(intent)
        intent.with_results = self.random.random() < 0.5

    def _pin(self, intent: Intent) -> None:
        intent.kind, intent.to = "pin", self._some_sequence(intent)

    def _unpin(self, intent: Intent) -> None:
        pinned = Message.objects.filter(conversation__memory_id=intent.conversation, is_pinned=True)
        found = list(pinned.values_list("sequence", flat=True))
        intent.kind, intent.to = "unpin", self.random.choice(found) if found else self._some_sequence(intent)

    def _summarize(self, intent: Intent) -> None:
        intent.kind = "summarize"
        intent.window = self.random.choice([place for place, window in enumerate(WINDOWS) if window.estimator])
        intent.keep_history = True  # else there is nothing to summarize
        intent.fails = self.random.random() < 0.2

    def _fork(self, intent: Intent) -> None:
        intent.kind = "fork"
        if has_branches(intent.conversation) and self.random.random() < 0.6:
            intent.to = self._some_sequence(intent)

    def _recount(self, intent: Intent) -> None:
        intent.kind = "recount"
        intent.window = self.random.choice([place for place, window in enumerate(WINDOWS) if window.counter])

    def _title(self, intent: Intent) -> None:
        intent.kind = "title"

    def _erase(self, intent: Intent) -> None:
        intent.kind = "erase"

    def _erase_idle(self, intent: Intent) -> None:
        intent.kind = "erase idle"
        idle = datetime.timedelta(seconds=self.random.random() * 0.05)
        intent.cutoff = (timezone.now() - idle).isoformat()

    def _copy(self, intent: Intent) -> None:
        intent.kind = "copy"

    def _say(self, intent: Intent, messages: list[ChatMessage], *, named: bool = False) -> None:
        intent.parts = [messages_to_json(messages)]
        intent.metadata = named or self.random.random() < 0.3
        self._maybe_keep(intent)
        self._maybe_after(intent, 0.05)
        # Where rows are deleted, so are their client ids.
        if has_all_rows(intent.conversation) and self.random.random() < 0.6:
            intent.client_ids = [f"{intent.verb}.{index}" for index in range(len(messages))]

    def _message(self, text: str) -> ChatMessage:
        return AiMessage(text) if self.random.random() < 0.4 else self._asked(text)

    def _asked(self, text: str) -> UserMessage:
        """Return a message of a user with *text*, and sometimes with a file as its content, or in its attributes."""
        picture, chance = self.random.choice(PICTURES), self.random.random()
        if chance < 0.15:
            return UserMessage([TextContent(text), ImageContent(Image(base64_data=picture))])
        return UserMessage(text, attributes={"data": picture}) if chance < 0.25 else UserMessage(text)

    def _text(self, intent: Intent, index: int, part: int = 0) -> str:
        return " ".join([f"{intent.verb}/{part}.{index}", *["word"] * self.random.choice((0, 1, 2, 5, 9))])

    def _maybe_keep(self, intent: Intent) -> None:
        """In a forgetful conversation, let some writers keep evicted messages."""
        intent.keep_history |= intent.conversation.startswith("forgetful") and self.random.random() < 0.5

    def _maybe_after(self, intent: Intent, chance: float) -> None:
        """Have *intent* continue from an earlier message, if its conversation has branches."""
        if has_branches(intent.conversation) and self.random.random() < chance:
            intent.to = self._some_sequence(intent)

    def _some_sequence(self, intent: Intent) -> int:
        """Return the sequence of a message, mostly of a recent one, so that the memory also grows."""
        messages = Message.objects.filter(conversation__memory_id=intent.conversation).order_by("-sequence")
        newest = list(messages.values_list("sequence", "in_history")[:RECENT])
        sent = [sequence for sequence, in_history in newest if in_history]
        chance = self.random.random()
        if not sent or chance < 0.03:
            return 0
        if chance < 0.1:
            return self.random.randrange(newest[0][0]) + 1
        return self.random.choice(sent[:5] if chance < 0.6 else sent)

    def _summary(self, intent: Intent, previous: str | None, messages: list[ChatMessage]) -> str:
        time.sleep(self.random.random() * 0.02)  # other writers write in the meantime
        if intent.fails:
            raise Undone
        return summary_text(intent.verb, previous, labels(messages))

    def _memory(self, intent: Intent) -> list[ChatMessage]:
        return memory_of(intent.conversation, intent.window).messages()


def has_branches(conversation: str) -> bool:
    """Return whether verbs on *conversation* continue from earlier messages."""
    # Where rows are deleted, it is a matter of definition which message is the newest.
    return conversation not in APPENDED and has_all_rows(conversation)


def labels(messages: list[ChatMessage]) -> list[str]:
    """Return the first words of the texts of *messages*."""
    return [label_of(text_of(message)) for message in messages]


def renamed(head: str, name: str) -> str:
    """Return the line of a conversation, with *name* as its memory id."""
    return json.dumps({**json.loads(head), "memory_id": name}) + "\n"
