"""Strategies for answers: the events that an assistant emits, and the rows that it stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from chatmemory_django.chat.model import (
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    PartialText,
    PartialThinking,
    PartialToolCall,
    TokenUsage,
)
from chatmemory_django.chat.ui_messages.writing import call_input
from chatmemory_django.codec import message_from_json, message_to_json
from chatmemory_django.messages import AiMessage, ChatMessage, ToolExecutionRequest, ToolExecutionResultMessage

if TYPE_CHECKING:
    from chatmemory_django.chat.answers.exchange import AssistantEvent

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)

TEXTS = st.text(max_size=3)
IDS = st.one_of(st.none(), st.sampled_from(["", "c", "d", "e"]))
NAMES = st.sampled_from(["a", "b"])
PIECES = st.one_of(
    st.builds(PartialText, TEXTS),
    st.builds(PartialThinking, TEXTS),
    st.builds(PartialToolCall, st.integers(0, 3), IDS, st.one_of(st.none(), NAMES), TEXTS),
)
ARGUMENTS = st.one_of(st.none(), st.sampled_from(["", "{}", '{"a": 1}', '{"a', "[5]", "null", "NaN", '"\\ud800"']))
CALLS = st.builds(ToolExecutionRequest, IDS, NAMES, ARGUMENTS)
RESULTS = st.builds(
    ToolExecutionResultMessage, IDS, st.one_of(st.none(), NAMES), TEXTS, st.sampled_from([None, True, False])
)
METADATA = st.builds(
    ChatResponseMetadata,
    model_name=st.one_of(st.none(), TEXTS),
    finish_reason=st.one_of(st.none(), st.sampled_from(FinishReason)),
    token_usage=st.one_of(st.none(), st.builds(TokenUsage, st.one_of(st.none(), st.integers(0, 9)), st.integers(0, 9))),
    attributes=st.sampled_from([{}, {"shortened": {"c": [1, 2]}}, {"shortened": {"c": [1, 3], "d": [4, 5]}}]),
)
RESPONSES = st.builds(
    ChatResponse,
    st.builds(
        AiMessage,
        st.one_of(st.none(), TEXTS),
        st.one_of(st.none(), TEXTS),
        st.lists(CALLS, max_size=3),
        st.sampled_from([{}, {"refusal": "No."}]),
    ),
    METADATA,
)


@dataclass
class StoredRow:
    """A row as the store writes it: the message has been through JSON."""

    chat_message: ChatMessage
    client_message_id: str | None = None
    metadata: Mapping[str, Any] | None = None
    sequence: int = 1
    created_at: datetime = NOON

    def __post_init__(self) -> None:
        self.chat_message = message_from_json(message_to_json(self.chat_message))


def rows_of(messages: Iterable[ChatMessage], first: int = 1) -> list[StoredRow]:
    """Return rows of *messages* without ids and metadata."""
    return [StoredRow(message, sequence=sequence) for sequence, message in enumerate(messages, first)]


def rows_of_answer(events: Sequence[AssistantEvent], answer_id: str) -> list[StoredRow]:
    """Return the rows that an assistant stores for an answer consisting of *events*."""
    rows = []
    for event in events:
        if isinstance(event, ChatResponse):
            rows.append(StoredRow(event.ai_message, metadata=_metadata(event)))
        elif isinstance(event, ToolExecutionResultMessage):
            rows.append(StoredRow(event))
    if rows:
        rows[0].client_message_id = answer_id
    for sequence, row in enumerate(rows, 1):
        row.sequence = sequence
    return rows


def _metadata(response: ChatResponse) -> dict[str, Any]:
    known, usage = response.metadata, response.metadata.token_usage
    stored = {
        **known.attributes,
        "model": known.model_name,
        "finish_reason": known.finish_reason and known.finish_reason.value,
        "usage": usage and {"input": usage.input, "output": usage.output, "total": usage.total},
        "latency_ms": 512,
        "id": known.id,
    }
    return {name: value for name, value in stored.items() if value is not None}


def anything() -> st.SearchStrategy[list[AssistantEvent]]:
    """Generate events in any order, valid or not."""
    return st.lists(st.one_of(PIECES, RESULTS, RESPONSES))


@st.composite
def answers(draw: st.DrawFn) -> list[AssistantEvent]:
    """Generate the events of an answer, as models and assistants promise them."""
    events = []
    for _ in range(draw(st.integers(1, 3))):
        answer = draw(RESPONSES)
        message = answer.ai_message
        for kind, text in ((PartialThinking, message.thinking), (PartialText, message.text)):
            events += [kind(piece) for piece in _cut(draw, text or "")]
        for index, call in enumerate(message.tool_execution_requests if draw(st.booleans()) else ()):
            first, *others = _cut(draw, call.arguments or "") or [""]
            events.append(PartialToolCall(index, call.id, call.name, first))
            events += [PartialToolCall(index, arguments=piece) for piece in others]
        events.append(answer)
        # A call whose arguments are not JSON cannot run, and calls with one id cannot be distinguished.
        is_broken = not all(call_input(call.arguments)[1] for call in message.tool_execution_requests)
        results = [
            ToolExecutionResultMessage.from_request(
                call, draw(TEXTS), is_error=is_broken or draw(st.booleans()) or None
            )
            for call in message.tool_execution_requests
        ]
        events += draw(st.permutations(results))
    return events


def _cut(draw: st.DrawFn, text: str) -> list[str]:
    at = draw(st.integers(0, len(text)))
    return [piece for piece in (text[:at], text[at:]) if piece]
