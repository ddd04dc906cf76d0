"""What must never be found in the history of a conversation, whatever its clients did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.chat.model import END
from chatmemory_django import operations
from chatmemory_django.messages import AiMessage, MessageType
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import known_window

EXAMPLES = 3
"""The number of findings of each kind that are printed."""


class Findings:
    """The findings, by kind."""

    def __init__(self) -> None:
        self.kinds: dict[str, list[str]] = {}

    def add(self, kind: str, example: object) -> None:
        """Add a finding."""
        self.kinds.setdefault(kind, []).append(str(example))

    def check(self, kind: str, example: object, *, holds: bool) -> None:
        """Add *example* as a finding unless it *holds*."""
        if not holds:
            self.add(kind, example)

    @property
    def count(self) -> int:
        """The number of findings."""
        return sum(map(len, self.kinds.values()))

    def __iter__(self) -> Iterator[str]:
        for kind, examples in self.kinds.items():
            yield f"{kind}, {len(examples)} times:"
            yield from (f"    {example[:400]}" for example in examples[:EXAMPLES])


def judge(using: str, stopped: set[str], findings: Findings) -> None:
    """Check every conversation; those that were *stopped* may have a partial answer, or none."""
    for conversation in Conversation.objects.using(using):
        rows = list(conversation.history().order_by("sequence"))
        for wrong in _wrong(rows, is_stopped=conversation.memory_id in stopped):
            findings.add(wrong, f"{conversation.memory_id}: {_shown(rows)}")
    operations.check(
        Conversation.objects.using(using),
        known_window,
        lambda found: findings.add("finding of check_chatmemory", found),
    )


def _wrong(rows: Sequence[Message], *, is_stopped: bool) -> Iterator[str]:
    asked: Message | None = None
    calls: list[str | None] = []
    ids = [row.client_message_id for row in rows if row.client_message_id is not None]
    if len(ids) != len(set(ids)):
        yield "message stored twice"
    for row in rows:
        if calls and row.type != MessageType.TOOL_EXECUTION_RESULT:
            yield "call without a result"
            calls = []
        match row.type:
            case MessageType.USER:
                if asked is not None and not (is_stopped and not asked.is_complete):
                    yield "question without an answer"
                asked = row
            case MessageType.AI:
                message = row.chat_message
                calls = [call.id for call in message.tool_execution_requests] if isinstance(message, AiMessage) else []
                is_partial = (row.metadata or {}).get("partial")
                if asked is None:
                    yield "answer without a question"
                elif not asked.is_complete:
                    yield "answered question that is marked as incomplete"
                if not calls and not row.text.rstrip().endswith(END) and not (is_stopped and is_partial):
                    yield "partial answer"
                asked = asked if calls else None
            case MessageType.TOOL_EXECUTION_RESULT:
                if not calls:
                    yield "result without a call"
                else:
                    calls.pop()
            case _:
                yield "message that no client sent"
    if calls:
        yield "call without a result"
    if asked is not None and not (is_stopped and not asked.is_complete):
        yield "question without an answer"


def _shown(rows: Sequence[Message]) -> str:
    shown = (f"{row.sequence} {row.type}{'' if row.is_complete else ' incomplete'} …{row.text[-12:]!r}" for row in rows)
    return ", ".join(shown)
