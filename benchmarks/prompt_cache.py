"""``python -m benchmarks.prompt_cache``: how much of what is sent a vendor's prompt cache knows; see README.md."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from benchmarks import wire
from benchmarks.report import TIMES, Report, table
from chatmemory_django.chat.model import ChatRequest, ToolSpecification
from chatmemory_django.chat.pydantic_ai import PydanticAiChatModel
from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.tokens import OpenAiTokenCountEstimator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

TURNS = 500
WARM = 100
"""Turns before the first one that counts: by then, each window is full."""

CACHED = 0.1
"""What a token in an unchanged beginning costs: a tenth, as with OpenAI's and Anthropic's models of 2026."""

WRITTEN = 1.25
"""What a token costs that Anthropic and Bedrock put into their cache, for five minutes."""
SMALLEST = 1024
"""The tokens of the shortest prompt that Anthropic and Bedrock cache, for most models."""
LOOK_BACK = 20
"""The blocks at whose ends they look for what they know, from a breakpoint, its own among them."""
TURNS_WITH_ROUNDS = 150
CALLS = 11
ROUNDS = 3
WINDOW = {"max_tokens": 32_000}
MARKED = {**WINDOW, "evict_to": 24_000}
FIND = ToolSpecification("find_parcel", "Find a parcel.", {"type": "object", "properties": {"id": {"type": "string"}}})

ESTIMATOR = OpenAiTokenCountEstimator("gpt-4o")
TEXT = "where is my parcel I ordered it two weeks ago and it has not arrived at our house in town since"
WORDS = TEXT.split()


class Sent(NamedTuple):
    """What a window sends."""

    prompts: int
    tokens: int
    same: int
    """How many of the tokens were in an unchanged beginning."""
    breaks: int
    """How many prompts were another one for the most part."""

    @property
    def price(self) -> float:
        """What the input costs, in tokens."""
        return self.tokens - self.same * (1 - CACHED)


def main(report: Report) -> None:
    """Report what message and token windows send with several lower marks."""
    rows = []
    for name, limit, marks in (("max_tokens", 8000, (6000, 4000)), ("max_messages", 80, (60, 40))):
        plain = _sent(_memory(name, limit, None))
        for mark in (None, *marks):
            sent = plain if mark is None else _sent(_memory(name, limit, mark))
            rows.append(
                [
                    f"`{name}={limit}`" + ("" if mark is None else f", `evict_to={mark}`"),
                    f"{sent.tokens / sent.prompts:,.0f}",
                    f"{sent.same / sent.tokens:.0%}",
                    f"{sent.breaks} of {sent.prompts}",
                    f"**{sent.price / plain.price:.2f} {TIMES}**",
                ]
            )
    head = ["window", "tokens in a prompt", "of these unchanged", "prompts that begin differently", "price"]
    report.section("prompt-cache", table(head, rows))
    _breakpoints(report)


def _breakpoints(report: Report) -> None:
    """Report what Anthropic and Bedrock would find in their caches, of what their clients send."""
    ways = {
        "those of pydantic-ai: `cache=True`": (MARKED, {"cache": True}),
        "those of `PydanticAiChatModel`, without `evict_to`": (WINDOW, {}),
        "those of `PydanticAiChatModel`": (MARKED, {}),
    }
    rows = []
    for name, vendor in (("Anthropic", wire.Anthropic), ("Bedrock, Claude", wire.Bedrock)):
        for way, (window, settings) in ways.items():
            cells = []
            for has_context in (False, True):
                api = vendor()
                chat = PydanticAiChatModel(api.model, **settings)
                known = PromptCache()
                memory = TokenWindowChatMemory(**window, token_count_estimator=ESTIMATOR)
                for prompt in _prompts(memory, has_context=has_context):
                    chat.chat(ChatRequest(messages=prompt, tools=[FIND]))
                    known.ask(list(api.blocks()))
                total = known.count.total()
                cells.append(f"{known.count['read'] / total:.1%} · **{known.price / total:.2f} {TIMES}**")
            rows.append([name, way, *cells])
    head = ["vendor", "breakpoints", "read from the cache · price", "with a context in front of each question"]
    report.section("prompt-cache-breakpoints", table(head, rows))


@dataclass
class PromptCache:
    """A vendor's cache, which knows what a breakpoint is behind of, and nothing else."""

    known: set[int] = field(default_factory=set)
    count: Counter[str] = field(default_factory=Counter)

    @property
    def price(self) -> float:
        """What the input costs, in tokens."""
        return self.count["plain"] + self.count["read"] * CACHED + self.count["written"] * WRITTEN

    def ask(self, blocks: Sequence[wire.Block]) -> None:
        """Count the tokens of a request, and remember its beginnings."""
        sizes, names = [0], [hash(())]
        for block in blocks:
            sizes.append(sizes[-1] + _tokens(block.text))
            names.append(hash((names[-1], block.place, block.text)))
        marks = [index for index, block in enumerate(blocks, 1) if block.is_marked and sizes[index] >= SMALLEST]
        seen = {place for mark in marks for place in range(max(1, mark - LOOK_BACK + 1), mark + 1)}
        read = max((sizes[place] for place in seen if names[place] in self.known), default=0)
        to = sizes[max(marks, default=0)]
        self.count.update(read=read, written=to - read, plain=sizes[-1] - to)
        self.known.update(names[mark] for mark in marks)


@cache
def _tokens(text: str) -> int:
    return ESTIMATOR.estimate_token_count_in_text(text)


def _prompts(memory: ChatMemory, *, has_context: bool) -> Iterator[list[ChatMessage]]:
    """Yield each prompt of a chat with rounds of calls."""
    memory.add(SystemMessage(text(150, 0)))
    for turn in range(TURNS_WITH_ROUNDS):
        context = [TextContent(text(60, turn + 1))] if has_context else []
        memory.add(UserMessage(text(40, turn)))
        rounds = [CALLS] * ROUNDS if turn % 10 == 3 else [1] if turn % 4 == 0 else []
        for number, calls in enumerate(rounds):
            yield _with_context(memory.messages(), context)
            ids = [f"call-{turn}-{number}-{each}" for each in range(calls)]
            made = [ToolExecutionRequest(each, FIND.name, "{}") for each in ids]
            results = [ToolExecutionResultMessage.from_request(each, text(80, turn)) for each in made]
            memory.add(AiMessage(tool_execution_requests=made), *results)
        yield _with_context(memory.messages(), context)
        memory.add(AiMessage(text(160, turn)))


def _with_context(messages: Sequence[ChatMessage], context: Iterable[TextContent]) -> list[ChatMessage]:
    """Return *messages* with *context* in front of the last question."""
    question = max(index for index, each in enumerate(messages) if isinstance(each, UserMessage))
    return [
        replace(each, contents=(*context, *each.contents)) if index == question else each
        for index, each in enumerate(messages)
    ]


def _memory(name: str, limit: int, mark: int | None) -> ChatMemory:
    if name == "max_tokens":
        return TokenWindowChatMemory(max_tokens=limit, evict_to=mark, token_count_estimator=ESTIMATOR)
    return MessageWindowChatMemory(max_messages=limit, evict_to=mark)


def _sent(memory: ChatMemory) -> Sent:
    memory.add(SystemMessage(text(150, 0)))
    known: list[ChatMessage] = []
    prompts = tokens = same = breaks = 0
    for turn in range(TURNS):
        for prompt, answer in _exchanges(memory, turn):
            if turn >= WARM:
                costs = [ESTIMATOR.estimate_token_count_in_message(each) for each in prompt]
                unchanged = sum(costs[: common(known, prompt)])
                prompts, tokens, same = prompts + 1, tokens + sum(costs), same + unchanged
                breaks += unchanged < sum(costs) / 2
            known = [*prompt, answer]
    return Sent(prompts, tokens, same, breaks)


def _exchanges(memory: ChatMemory, turn: int) -> Iterator[tuple[list[ChatMessage], ChatMessage]]:
    """Yield each prompt of a turn, and its answer."""
    memory.add(UserMessage(text(40, turn)))
    if turn % 4 == 0:
        prompt = memory.messages()
        call = AiMessage(tool_execution_requests=[ToolExecutionRequest(f"call {turn}", "find_parcel", "{}")])
        memory.add(call, ToolExecutionResultMessage(f"call {turn}", "find_parcel", text(80, turn)))
        yield prompt, call
    prompt = memory.messages()
    answer = AiMessage(text(160, turn))
    memory.add(answer)
    yield prompt, answer


def common(known: list[ChatMessage], prompt: list[ChatMessage]) -> int:
    """Return how many messages at the beginning of *prompt* are those of *known*."""
    pairs = zip(known, prompt, strict=False)
    return next((index for index, (old, new) in enumerate(pairs) if old != new), min(len(known), len(prompt)))


def text(words: int, seed: int) -> str:
    return " ".join(WORDS[(seed * 7 + each) % len(WORDS)] for each in range(words)) + f" {seed}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prompt_cache", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table to README.md")
    main(Report(writes=parser.parse_args().write))
