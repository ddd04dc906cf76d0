"""Histories that Hypothesis makes by the verbs that a site has, each of them sent to the vendors in turn."""

from __future__ import annotations

import io
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count as numbers
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from django.core.management import call_command
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import randoms

from chatmemory_django.chat.answers import exchange
from chatmemory_django.chat.answers.exchange import TooManyRoundsError
from chatmemory_django.chat.answers.returns import InvalidAnswerError
from chatmemory_django.chat.answers.too_long import AnswerTooLongError, QuestionTooLongError
from chatmemory_django.chat.approvals import (
    ApprovalRequested,
    ApprovalRequiredError,
    Decision,
    NotPendingError,
    Resume,
)
from chatmemory_django.chat.assistant import Assistant, UserInput
from chatmemory_django.chat.model import ChatModel, ChatModelError, UnsupportedFileError
from chatmemory_django.chat.tools import Tool
from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, SummarizingChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import Content, MessageType, TextContent, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.operations.forking import fork
from chatmemory_django.stores.base import MessageNotFoundError
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.acceptance.vendors import foreign
from tests.acceptance.vendors.clients import MODELS
from tests.acceptance.vendors.rules import SYSTEM, VENDORS, Violation
from tests.acceptance.vendors.server import Vendors
from tests.acceptance.vendors.turns import Asked, Json
from tests.acceptance.vendors.wire import Answer, Call
from tests.estimators import ADDITIVE_WORDS

MOST = 30
"""How many acts a conversation has."""

AT_ONCE = 10
"""How many conversations Hypothesis makes before the requests are counted."""

ORDINARY = (
    AnswerTooLongError,
    ApprovalRequiredError,
    InvalidAnswerError,
    MessageNotFoundError,
    NotPendingError,
    QuestionTooLongError,
    TooManyRoundsError,
    UnsupportedFileError,
)
"""How an act may end besides with an answer, at any vendor."""

PROMPTS = (f"{SYSTEM} Be brief.", f"{SYSTEM} Be brief.", f"{SYSTEM} Be kind.", f"{SYSTEM} It is noon.", None)

OWN_IDS: dict[str, Callable[[Random], str]] = {
    "anthropic": lambda random: f"toolu_{_letters(random, 24)}",
    "bedrock-claude": lambda random: f"tooluse_{_letters(random, 22)}",
    "bedrock-nova": lambda random: f"tooluse_{_letters(random, 22)}",
    "mistral": lambda random: _letters(random, 9),
    "openai": lambda random: f"call_{_letters(random, 24)}",
    "responses": lambda random: f"call_{_letters(random, 24)}",
    "gemini": lambda random: _letters(random, 8),
    "moonshot": lambda random: f"functions.look:{random.randint(0, 2)}",
    "deepseek": lambda random: f"call_{random.randint(0, 2)}_{_letters(random, 8)}",
}
"""The ids that each vendor gives its calls."""

OPEN_IDS: tuple[Callable[[Random], str], ...] = (
    lambda random: f"chatcmpl-tool-{_letters(random, 32)}",
    lambda random: f"call_{random.randint(0, 1)}",
    lambda random: _letters(random, 80),
    lambda random: f"call:{_letters(random, 6)}",
)
"""The ids that servers of open models and gateways give."""


def _letters(random: Random, count: int) -> str:
    letters = Random(random.getrandbits(32))  # for Hypothesis, they are one choice
    return "".join(letters.choices("abcdefghijkLMNOPQRSTUVWXYZ0123456789", k=count))


def look(where: str) -> str:
    """Look somewhere."""
    return f"Nothing is {where}."


def count(items: list[int]) -> str:
    """Count, and say nothing at all."""
    return "" if len(items) % 2 else "\n"


def picture(where: str) -> list[Content]:
    """Take a picture."""
    return [TextContent(f"It is {where}."), foreign.FILES["image"]]


def refund(amount: int) -> str:
    """Give money back."""
    return f"Gave {amount}."


TOOLS = (look, count, picture, Tool(refund, needs_approval=True))
CALLS = (
    ("look", '{"where": "here"}'),
    ("look", '{"where": "there", "when": 1}'),
    ("count", '{"items": [1]}'),
    ("count", '{"items": [1, 2]}'),
    ("picture", '{"where": "here"}'),
    ("refund", '{"amount": 3}'),
    ("gone", "{}"),
)
"""What models call; they also get arguments wrong, and call tools that are unknown."""


def _summary(before: str | None, messages: list[Any]) -> str:
    return f"Up to now {len(messages)} messages."


MEMORIES: tuple[Callable[..., ChatMemory], ...] = (
    partial(MessageWindowChatMemory, max_messages=5),
    partial(MessageWindowChatMemory, max_messages=20),
    partial(MessageWindowChatMemory, max_messages=20, always_keep_system_message_first=True),
    partial(MessageWindowChatMemory, max_messages=1_000),
    partial(TokenWindowChatMemory, max_tokens=150, token_count_estimator=ADDITIVE_WORDS),
    partial(TokenWindowChatMemory, max_tokens=100_000, token_count_estimator=ADDITIVE_WORDS),
    partial(
        SummarizingChatMemory,
        max_tokens=200,
        token_count_estimator=ADDITIVE_WORDS,
        summarize=_summary,
        summary_tokens=40,
        after_tokens=30,
    ),
)


@dataclass(frozen=True)
class Found:
    """What a typed answer is."""

    where: str


@dataclass(frozen=True)
class Finding:
    """A request that was refused, or that a client could not make: whose rule it was, and what was done before."""

    vendor: str
    way: str
    violation: Violation
    acts: tuple[str, ...]
    body: Json


@dataclass
class Chat:
    """A conversation, and what was done in it."""

    memory_id: str
    memory: Callable[..., ChatMemory]
    acts: list[str] = field(default_factory=list)
    pending: list[uuid.UUID] = field(default_factory=list)
    """The approvals for which the last answer waits."""


@contextmanager
def named_in_order() -> Iterator[None]:
    """Let ids that an assistant makes for calls be the same in each process."""
    number = numbers(1)
    with mock.patch.object(exchange, "uuid4", side_effect=lambda: uuid.UUID(int=next(number) << 96)):
        yield


class Site:
    """Conversations in which Hypothesis decides what happens."""

    def __init__(self, vendors: Vendors, folder: Path) -> None:
        self.random = Random(0)
        """That of the present conversation, ..."""
        self._answers = Random(0)
        """... and that of what is answered: Hypothesis may not be asked in the server's threads."""
        self._number = 0
        self.vendors = vendors
        self.folder = folder
        self.findings: list[Finding] = []
        self.outcomes: Counter[str] = Counter()
        self._models: dict[tuple[str, str], ChatModel] = {}
        vendors.script = self.answer

    def run(self, requests: int, first: int, *, shrinks: bool = False) -> None:
        """
        Make conversations until so many requests were made: those that follow from the number *first*.

        If *shrinks*, a refusal is raised, for the shortest conversation that Hypothesis finds; otherwise they are kept.
        """
        phases = [Phase.generate, *([Phase.shrink] if shrinks else [])]
        checks, part = list(HealthCheck), numbers()
        while self.vendors.counts.total() < requests:

            @seed(first * 10_000 + next(part))
            @settings(max_examples=AT_ONCE, phases=phases, deadline=None, database=None, suppress_health_check=checks)
            @given(randoms(use_true_random=False))
            def converse(random: Random) -> None:
                found = len(self.findings)
                self.converse(random)
                assert not shrinks or self.findings[found:] == []

            converse()

    def converse(self, random: Random) -> None:
        """Make a conversation."""
        self.random = random
        chat = self.chat()
        for _ in range(random.randint(3, MOST)):
            self.step(chat)

    def chat(self) -> Chat:
        """Begin a conversation, or import one."""
        chat = Chat(self._new_id(), self.random.choice(MEMORIES))
        if self.random.random() < 0.3:
            framework, file = foreign.write(self.random, chat.memory_id, self.folder)
            chat.acts.append(f"import {framework} {file.read_text(encoding='utf-8')}")
            call_command(
                "import_chatmemory", "--from", framework, str(file), stdout=io.StringIO(), stderr=io.StringIO()
            )
            file.unlink()
        return chat

    def step(self, chat: Chat) -> None:
        """Do one act in *chat*."""
        acts = {self.ask: 16, self.regenerate: 3, self.stop: 3, self.add: 6}
        acts |= {self.say_again: 1, self.take_away: 2, self.fork: 2}
        if chat.pending:
            acts[self.resume] = 12
        act = self.random.choice([act for act, weight in acts.items() for _ in range(weight)])
        try:
            act(chat)
        except ORDINARY as exc:
            self.outcomes[f"{act.__name__}: {type(exc).__name__}"] += 1
        except Exception as exc:  # noqa: BLE001  # it is found, and the others go on
            self.outcomes[f"{act.__name__}: {type(exc).__name__}"] += 1
            where = traceback.format_tb(exc.__traceback__)[-1].strip()
            self.findings.append(
                Finding("", act.__name__, Violation("error", f"{exc!r} {where}"), tuple(chat.acts), {})
            )
            self.vendors.refused = []
        else:
            self.outcomes[act.__name__] += 1

    def ask(self, chat: Chat) -> None:
        vendor, way = self.random.choice(MODELS)
        files = sorted(VENDORS[vendor].files)
        file = [foreign.file(self.random, files)] if files and self.random.random() < 0.15 else []
        question = UserMessage([TextContent(self.random.choice(foreign.TEXTS)), *file])
        self._asked(chat, vendor, way, question)

    def stop(self, chat: Chat) -> None:
        """Ask, and leave after some pieces of the answer, which are kept."""
        vendor, way = self.random.choice(MODELS)
        self._asked(chat, vendor, way, UserMessage("Tell me."), pieces=self.random.randint(1, 4))

    def regenerate(self, chat: Chat) -> None:
        """Ask once more after a question, or after an answer, which no vendor goes on writing."""
        rows = [row for row in self._history(chat) if row.type in {MessageType.USER, MessageType.AI}]
        if rows:
            row = self.random.choice(rows[-4:])
            questions = [each.chat_message for each in rows[: rows.index(row) + 1] if each.type == MessageType.USER]
            vendor, way = self._who_takes(foreign.kinds_in(questions[-1]) if questions else set())
            self._asked(chat, vendor, way, None, after=row.sequence)

    def resume(self, chat: Chat) -> None:
        """Decide on the calls that wait; another vendor may go on with the answer."""
        decisions = [Decision(each, approved=self.random.random() < 0.7) for each in chat.pending]
        questions = self._history(chat, MessageType.USER)
        vendor, way = self._who_takes(foreign.kinds_in(questions[-1].chat_message) if questions else set())
        self._asked(chat, vendor, way, Resume(*decisions))

    def add(self, chat: Chat) -> None:
        messages = foreign.messages(self.random)
        chat.acts.append(f"add {messages}")
        self._memory(chat).add(*messages)

    def say_again(self, chat: Chat) -> None:
        """Add what is in the memory once more, as a site does that restores an older state."""
        memory = self._memory(chat)
        messages = memory.messages()[-self.random.randint(1, 6) :]
        chat.acts.append(f"say again {len(messages)}")
        memory.add(*messages)

    def take_away(self, chat: Chat) -> None:
        """Remove a message, go back to one, forget the oldest, or take the newest away."""
        rows = self._history(chat)
        if not rows:
            return
        memory, sequence = self._memory(chat), self.random.choice(rows).sequence
        verb = self.random.choice(["remove", "remove with results", "rewind", "evict", "pop"])
        chat.acts.append(f"{verb} {sequence}")
        match verb:
            case "remove":
                memory.remove(sequence)
            case "remove with results":
                memory.remove(sequence, with_results=True)
            case "rewind":
                memory.rewind(sequence)
            case "evict":
                memory.evict(2)
            case "pop":
                memory.pop()

    def fork(self, chat: Chat) -> None:
        conversation = Conversation.objects.filter(memory_id=chat.memory_id).first()
        if conversation is not None:
            chat.memory_id = self._new_id()
            fork(conversation, chat.memory_id)
            chat.acts.append("fork")
            chat.pending = []

    def answer(self, vendor: str, asked: Asked) -> Answer:
        """Say what a model of *vendor* may say."""
        random, is_open = self._answers, VENDORS[vendor].template is not None
        thinking = "I should think. " * random.randint(1, 3) if asked.thinks or random.random() < 0.5 else None
        text = random.choice(["Well.", "Here it is: 🕛", "So it is. " * 5, "\n\n", '{"where": "here"}'])
        if not asked.tools or random.random() < 0.6:
            return Answer(text, thinking=thinking)
        make_id = random.choice(OPEN_IDS) if is_open else OWN_IDS[vendor]
        calls: list[Call] = []
        for _ in range(random.choice([1, 1, 1, 2, 3])):
            name, arguments = random.choice(CALLS)
            call_id = calls[0][0] if calls and is_open and random.random() < 0.2 else make_id(random)
            calls.append((call_id, name, arguments))
        is_cut = VENDORS[vendor].api in {"chat", "responses"} and random.random() < 0.1
        if is_cut:
            call_id, name, arguments = calls[-1]
            calls[-1] = call_id, name, arguments[: len(arguments) // 2]
        return Answer(random.choice([None, text]), tuple(calls), thinking, is_cut)

    def _asked(
        self,
        chat: Chat,
        vendor: str,
        way: Callable[[str, Vendors], ChatModel],
        message: UserInput,
        *,
        pieces: int | None = None,
        after: int | None = None,
    ) -> None:
        """Ask *vendor*, whole or streamed, and note whether its rules were broken."""
        random, self._answers = self.random, Random(self.random.getrandbits(32))
        tools = random.choice([TOOLS, TOOLS, TOOLS[:1], ()])
        prompt, context = random.choice(PROMPTS), [lambda: "It rains."] if random.random() < 0.2 else []
        is_streamed = pieces is not None or random.random() < 0.5
        names = [getattr(tool, "name", None) or tool.__name__ for tool in tools]  # type: ignore[union-attr]
        chat.acts.append(f"{vendor} {way.__name__} {message} {prompt=} tools={names} {is_streamed=} {pieces=} {after=}")
        assistant = Assistant(
            self._model(vendor, way),
            memory=chat.memory,
            system_message=prompt,
            context=context,
            tools=tools,
            max_rounds=5,
            keep_partial=True,
            persist=random.choice(["early", "late"]),
        )
        chat.pending, failure = [], None
        try:
            if is_streamed:
                chat.pending = _streamed(assistant, chat, message, after, pieces)
            else:
                assistant.chat(chat.memory_id, message, after=after, returns=random.choice([str, str, str, Found]))
        except ApprovalRequiredError as exc:
            chat.pending = [each.id for each in exc.requests]
        except ORDINARY:
            raise
        except ChatModelError as exc:
            failure = exc
        self._note(chat, vendor, way.__name__, failure)

    def _note(self, chat: Chat, vendor: str, way: str, failure: ChatModelError | None) -> None:
        refused, self.vendors.refused = self.vendors.refused, []
        acts = tuple(chat.acts)
        self.findings += [Finding(name, way, violation, acts, body) for name, violation, body in refused]
        if failure is not None and not refused:
            cause = failure.__cause__
            violation = Violation("client", f"{failure!r} {type(cause).__name__}: {cause}")
            self.findings.append(Finding(vendor, way, violation, acts, {}))

    def _who_takes(self, kinds: set[str]) -> tuple[str, Callable[[str, Vendors], ChatModel]]:
        """Return a vendor that takes the files of a question, which is refused otherwise."""
        return self.random.choice([each for each in MODELS if kinds <= VENDORS[each[0]].files])

    def _model(self, vendor: str, way: Callable[[str, Vendors], ChatModel]) -> ChatModel:
        key = vendor, way.__name__
        if key not in self._models:
            self._models[key] = way(vendor, self.vendors)
        return self._models[key]

    def _new_id(self) -> str:
        self._number += 1
        return str(uuid.UUID(int=self._number))

    def _memory(self, chat: Chat) -> ChatMemory:
        return chat.memory(id=chat.memory_id, store=DjangoChatMemoryStore())

    def _history(self, chat: Chat, kind: MessageType | None = None) -> list[Any]:
        conversation = Conversation.objects.filter(memory_id=chat.memory_id).first()
        rows = [] if conversation is None else list(conversation.history())
        return [row for row in rows if kind in {None, row.type}]


def _streamed(
    assistant: Assistant, chat: Chat, message: UserInput, after: int | None, pieces: int | None
) -> list[uuid.UUID]:
    events, pending = assistant.stream(chat.memory_id, message, after=after), []
    for number, event in enumerate(events, 1):
        if isinstance(event, ApprovalRequested):
            pending.append(event.id)
        if number == pieces:
            events.close()
            break
    return pending
