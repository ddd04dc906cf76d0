"""``python -m benchmarks.prompt_cache``: how much of what is sent a vendor's prompt cache knows; see README.md."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.report import TIMES, Report, table
from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.tokens import OpenAiTokenCountEstimator

if TYPE_CHECKING:
    from collections.abc import Iterator

TURNS = 500
WARM = 100
"""Turns before the first one that counts: by then, each window is full."""

CACHED = 0.1
"""What a token in an unchanged beginning costs: a tenth, as with OpenAI's and Anthropic's models of 2026."""

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


def _memory(name: str, limit: int, mark: int | None) -> ChatMemory:
    if name == "max_tokens":
        return TokenWindowChatMemory(max_tokens=limit, evict_to=mark, token_count_estimator=ESTIMATOR)
    return MessageWindowChatMemory(max_messages=limit, evict_to=mark)


def _sent(memory: ChatMemory) -> Sent:
    memory.add(SystemMessage(_text(150, 0)))
    known: list[ChatMessage] = []
    prompts = tokens = same = breaks = 0
    for turn in range(TURNS):
        for prompt, answer in _exchanges(memory, turn):
            if turn >= WARM:
                costs = [ESTIMATOR.estimate_token_count_in_message(each) for each in prompt]
                unchanged = sum(costs[: _common(known, prompt)])
                prompts, tokens, same = prompts + 1, tokens + sum(costs), same + unchanged
                breaks += unchanged < sum(costs) / 2
            known = [*prompt, answer]
    return Sent(prompts, tokens, same, breaks)


def _exchanges(memory: ChatMemory, turn: int) -> Iterator[tuple[list[ChatMessage], ChatMessage]]:
    """Yield each prompt of a turn, and its answer."""
    memory.add(UserMessage(_text(40, turn)))
    if turn % 4 == 0:
        prompt = memory.messages()
        call = AiMessage(tool_execution_requests=[ToolExecutionRequest(f"call {turn}", "find_parcel", "{}")])
        memory.add(call, ToolExecutionResultMessage(f"call {turn}", "find_parcel", _text(80, turn)))
        yield prompt, call
    prompt = memory.messages()
    answer = AiMessage(_text(160, turn))
    memory.add(answer)
    yield prompt, answer


def _common(known: list[ChatMessage], prompt: list[ChatMessage]) -> int:
    """Return how many messages at the beginning of *prompt* are those of *known*."""
    pairs = zip(known, prompt, strict=False)
    return next((index for index, (old, new) in enumerate(pairs) if old != new), min(len(known), len(prompt)))


def _text(words: int, seed: int) -> str:
    return " ".join(WORDS[(seed * 7 + each) % len(WORDS)] for each in range(words)) + f" {seed}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prompt_cache", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table to README.md")
    main(Report(writes=parser.parse_args().write))
