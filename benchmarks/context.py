"""``python -m benchmarks.context``: what a window holds of a chat with tools, with their old results and without."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.prompt_cache import CACHED, ESTIMATOR, common, text
from benchmarks.report import TIMES, Report, table
from chatmemory_django.memory import TokenWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TURNS = 150
WARM = 50
"""Turns before the first one that counts: by then, each window is full."""

RESULTS = (300, 1_000, 2_500)
"""How many tokens the result of a tool has."""

WINDOWS: Mapping[str, Mapping[str, object]] = {
    "`max_tokens=8000`": {"max_tokens": 8_000},
    "`max_tokens=8000, evict_to=6000`": {"max_tokens": 8_000, "evict_to": 6_000},
    "the same, with `{'keep': 1, 'at_least': 500}`": {
        "max_tokens": 8_000,
        "evict_to": 6_000,
        "clear_tool_results": {"keep": 1, "at_least": 500},
    },
    "`max_tokens=4000, evict_to=3000`, with `{'keep': 1, 'at_least': 250}`": {
        "max_tokens": 4_000,
        "evict_to": 3_000,
        "clear_tool_results": {"keep": 1, "at_least": 250},
    },
}


class Sent(NamedTuple):
    """What a window sends."""

    prompts: int
    questions: int
    tokens: int
    same: int
    """How many of the tokens were in an unchanged beginning."""

    @property
    def price(self) -> float:
        """What the input costs, in tokens."""
        return self.tokens - self.same * (1 - CACHED)


def main(report: Report) -> None:
    """Report what each window sends, for results of each size."""
    rows = []
    for tokens in RESULTS:
        plain = None
        for name, window in WINDOWS.items():
            sent = _sent(tokens, window)
            plain = plain or sent
            rows.append(
                [
                    f"{tokens:,}",
                    name,
                    f"**{sent.questions / sent.prompts:.1f}**",
                    f"{sent.tokens / sent.prompts:,.0f}",
                    f"{sent.same / sent.tokens:.0%}",
                    f"{sent.price / plain.price:.2f} {TIMES}",
                ]
            )
    head = ["tokens of a result", "window", "questions in a prompt", "tokens", "of these unchanged", "price"]
    report.section("context", table(head, rows))


def _sent(result_tokens: int, window: Mapping[str, object]) -> Sent:
    memory = TokenWindowChatMemory(token_count_estimator=ESTIMATOR, **window)  # type: ignore[arg-type]
    known: list[ChatMessage] = []
    count = Sent(0, 0, 0, 0)
    for turn in range(TURNS):
        for prompt, answer in _exchanges(memory, turn, result_tokens):
            if turn >= WARM:
                costs = [ESTIMATOR.estimate_token_count_in_message(each) for each in prompt]
                unchanged = sum(costs[: common(known, prompt)])
                questions = sum(isinstance(each, UserMessage) for each in prompt)
                new = (1, questions, sum(costs), unchanged)
                count = Sent(*(old + more for old, more in zip(count, new, strict=True)))
            known = [*prompt, answer]
    return count


def _exchanges(
    memory: TokenWindowChatMemory, turn: int, result_tokens: int
) -> Iterator[tuple[list[ChatMessage], ChatMessage]]:
    """Yield both prompts of a turn, each of which calls a tool, with their answers."""
    memory.add(UserMessage(text(30, turn)))
    call = ToolExecutionRequest(f"call {turn}", "order_status", f'{{"number": {turn}}}')
    calling = AiMessage(tool_execution_requests=[call])
    yield memory.messages(), calling
    memory.add(calling, ToolExecutionResultMessage.from_request(call, text(result_tokens, turn)))
    answer = AiMessage(text(120, turn))
    yield memory.messages(), answer
    memory.add(answer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.context", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table to README.md")
    main(Report(writes=parser.parse_args().write))
