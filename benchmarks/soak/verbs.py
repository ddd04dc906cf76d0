"""The verbs that workers do: drawn at random, told as an ``Intent``, and done as it tells."""

from __future__ import annotations

import datetime
import json
from collections import deque
from typing import TYPE_CHECKING

import msgspec
from django.utils import timezone

from benchmarks.soak.records import APPENDED, LIMITS, WINDOWS, Intent, label_of, memory_of, text_of
from chatmemory_django.codec import messages_from_json, messages_to_json
from chatmemory_django.formats.jsonl import export_lines, import_lines
from chatmemory_django.messages import (
    AiMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation

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
}
"""How often each is done to any conversation, and ..."""

MORE_WEIGHTS = {"set": 6, "clear": 2}
"""... to those that are more than added to."""

SPECIAL_WEIGHTS = {"again": {"erase": 4, "copy": 3}, "idle": {"erase idle": 10}}
"""What is done to some kinds of conversation alone."""


class Undone(Exception):  # noqa: N818  # it is no error
    """Raised on purpose: a transaction or a turn is to end without having happened."""


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
        """A verb for *conversation*, which is at *before*."""
        weights = dict(WEIGHTS)
        if conversation not in APPENDED:
            weights |= MORE_WEIGHTS
            # Who sees what is not committed would copy that, and not erase what somebody else may yet leave there.
            weights |= {} if self.is_dirty else SPECIAL_WEIGHTS.get(conversation.partition("-")[0], {})
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
            # Only an add says exactly what it evicts, so only of adds some keep nothing there and some do.
            keep_history=not conversation.startswith("forgetful"),
        )
        getattr(self, f"_{name.replace(' ', '_')}")(intent)
        return intent

    def again(self, intent: Intent, before: Place) -> Intent:
        """The same messages with the same client ids once more."""
        self.number += 1
        return msgspec.structs.replace(intent, id=f"{self.name}-{self.number}", before=before)

    def do(self, intent: Intent, answers: list[list[int]], see: Callable[[list[str]], None]) -> None:
        """Do what *intent* tells. *answers* gets one for each write; *see* gets what a turn finds when it begins."""
        memory = memory_of(intent.conversation, intent.window, keep_history=intent.keep_history)
        parts = [messages_from_json(part) for part in intent.parts]
        named = Conversation.objects.filter(memory_id=intent.conversation)
        match intent.kind:
            case "add":
                metadata = {"by": f"{intent.verb}/0"} if intent.metadata else None
                client_ids = intent.client_ids or None
                answers.append(memory.add(*parts[0], metadata=metadata, client_message_ids=client_ids))
            case "turn":
                with memory.turn("early" if len(parts) > 1 else "late") as turn:
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
        if not parts or intent.kind == "set":
            answers.append([])

    def _one(self, intent: Intent) -> None:
        self._say(intent, [self.random.choice((UserMessage, AiMessage))(self._text(intent, 0))])

    def _many(self, intent: Intent) -> None:
        kinds = self.random.choices((UserMessage, AiMessage), k=self.random.choice((2, 3, 5, 9)))
        self._say(intent, [kind(self._text(intent, index)) for index, kind in enumerate(kinds)])

    def _system(self, intent: Intent) -> None:
        users = [UserMessage(self._text(intent, 1))] * self.random.randrange(2)
        self._say(intent, [SystemMessage(self._text(intent, 0)), *users])

    def _same_system(self, intent: Intent) -> None:
        systems = [each for each in self._memory(intent) if isinstance(each, SystemMessage)]
        if not systems:
            return self._system(intent)
        users = [UserMessage(self._text(intent, 1))] * self.random.randrange(2)
        self._say(intent, [systems[0], *users], named=True)  # it may be gone by then, and so be stored anew
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
        intent.parts = [messages_to_json([UserMessage(self._text(intent, 0)), AiMessage(self._text(intent, 1))])]

    def _early_turn(self, intent: Intent) -> None:
        self._turn(intent)
        said = (UserMessage(self._text(intent, 0)), AiMessage(self._text(intent, 0, part=1)))
        intent.parts = [messages_to_json([message]) for message in said]

    def _turn(self, intent: Intent) -> None:
        intent.kind = "turn"
        intent.fails = self.random.random() < 0.1
        intent.keep_history |= self.random.random() < 0.5

    def _set(self, intent: Intent) -> None:
        intent.kind = "set"
        # Who sees what is not committed would make history of what somebody else then takes back.
        present = [] if self.is_dirty else self._memory(intent)
        style = self.random.choice(("cut", "cut and said", "digest", "nothing"))
        kept = present[self.random.randrange(len(present) + 1) :]
        new = [UserMessage(self._text(intent, index)) for index in range(self.random.choice((1, 2, 4)))]
        by_style = {"cut": kept, "cut and said": [*kept, *new], "digest": [*new, *kept], "nothing": []}
        intent.parts = [messages_to_json(by_style[style])]

    def _clear(self, intent: Intent) -> None:
        intent.kind = "clear"

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
        intent.keep_history |= self.random.random() < 0.5
        # Where rows leave the table, their client ids go with them.
        if intent.keep_history and not intent.conversation.startswith("forgetful") and self.random.random() < 0.6:
            intent.client_ids = [f"{intent.verb}.{index}" for index in range(len(messages))]

    def _text(self, intent: Intent, index: int, part: int = 0) -> str:
        return " ".join([f"{intent.verb}/{part}.{index}", *["word"] * self.random.choice((0, 1, 2, 5, 9))])

    def _memory(self, intent: Intent) -> list[ChatMessage]:
        return memory_of(intent.conversation, intent.window).messages()


def labels(messages: list[ChatMessage]) -> list[str]:
    """What the texts of *messages* begin with."""
    return [label_of(text_of(message)) for message in messages]


def renamed(head: str, name: str) -> str:
    """The line of a conversation, with *name* as its memory id."""
    return json.dumps({**json.loads(head), "memory_id": name}) + "\n"
