"""Conversion of rows to the messages that a page starts with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import msgspec

from chatmemory_django.chat.ui_messages.files import text_part, to_part
from chatmemory_django.chat.ui_messages.reading import CREATED_AT, UI
from chatmemory_django.core.limits import unedited
from chatmemory_django.core.shown import AUTHOR, author_of
from chatmemory_django.core.tool_calls import REJECTED, SHORTENED, tool_answers
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)

NOT_JSON = "The arguments of this call are not JSON."

OUTCOME_UNKNOWN = "The outcome of this call is unknown."
"""What is shown of a call that was stored, and its result was not."""

IS_JSON = "is_json"
"""The attribute that is true for the result of a call whose text is JSON that a client sent, instead of a text."""

WAITS_FOR_OTHERS = "waitsForOthers"
"""The name in the metadata of an answer for the ids of the calls that somebody else decides on."""

ASKS = "asks"
"""The name in the metadata of an answer for what its calls that wait want to do, in words, by their ids."""

FINISH_REASONS = {
    "stop": "stop",
    "length": "length",
    "tool_execution": "tool-calls",
    "content_filter": "content-filter",
    "other": "other",
}
"""The AI SDK's names of finish reasons, which all its versions support."""

_USAGE = {"input": "inputTokens", "output": "outputTokens", "total": "totalTokens"}


class MessageRow(Protocol):
    """The required attributes of a stored message; ``models.Message`` has them."""

    @property
    def sequence(self) -> int:
        """Its position in the conversation, from 1 on."""

    @property
    def client_message_id(self) -> str | None:
        """The id that the client gave it."""

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        """The metadata that are stored with it."""

    @property
    def created_at(self) -> datetime:
        """When it was stored."""

    @property
    def chat_message(self) -> ChatMessage:
        """The message as a value."""


class Approval(NamedTuple):
    """What was decided on a call that needs an approval, under the *id* by which pages name it; None if nothing."""

    id: str
    approved: bool | None
    reason: str = ""
    is_open: bool = False
    """Whether the answer waits for it."""
    error: str = ""
    """What is shown of a call that has no result, and will have none."""
    is_others: bool = False
    """Whether somebody else than the reader of the page decides."""
    is_for_client: bool = False
    """Whether it is no approval, and the call runs in the page."""
    asks: str = ""
    """What the call wants to do, in words of its tool."""

    def as_json(self) -> dict[str, Any]:
        """Return it as the AI SDK has it in the part of the call."""
        decided = {} if self.approved is None else {"approved": self.approved}
        return {"id": self.id, **decided, **({"reason": self.reason} if self.reason else {})}


class _Answer(NamedTuple):
    """A row of an answer: a message of the model, or the result of a tool."""

    row: MessageRow
    message: AiMessage | ToolExecutionResultMessage


def to_ui_messages(
    rows: Iterable[MessageRow],
    approvals: Mapping[tuple[int, int], Approval] = MappingProxyType({}),
    *,
    unknown: str = OUTCOME_UNKNOWN,
) -> list[dict[str, Any]]:
    """
    Return *rows*, oldest first, as ``UIMessage``s, with the *approvals* of calls by sequence and position.

    All messages between two user messages are one answer, with a step for each message of the model and a part for each
    of its calls, with its result, even if that came after further questions; what a person wrote instead of the model
    is a message of its own. System messages, custom messages, results without a call and contents that cannot be shown
    are left out. *rows* must not begin within an answer, because the id of an answer is that of its first row.

    A call without a result that waits for nothing has failed with the text *unknown*.

    ``metadata`` has ``createdAt``; for a question that the model's server did not accept, ``rejected`` with the reason;
    for what a person wrote, the name of the ``author``; and for an answer, ``model``, ``finishReason``, ``usage``,
    ``latencyMs`` (milliseconds), ``partial`` and ``shortened``, if they are known; see ``answer_metadata``.
    ``waitsForOthers`` has the ids of the calls that wait for somebody else.
    """
    messages: list[dict[str, Any]] = []
    answer: list[_Answer] = []
    for row in _in_place(rows, approvals):
        message = row.chat_message
        if isinstance(message, AiMessage) or (isinstance(message, ToolExecutionResultMessage) and answer):
            answer.append(_Answer(row, message))
        elif isinstance(message, UserMessage):
            messages += _answered(answer, approvals, unknown)
            answer = []
            if parts := _question_parts(message):
                messages.append(_ui_message(row, "user", parts, _question_metadata(row, message)))
    return messages + _answered(answer, approvals, unknown)


def _in_place(rows: Iterable[MessageRow], approvals: Mapping[tuple[int, int], Approval]) -> Iterable[MessageRow]:
    """Return *rows* with the results of calls that were decided late in the answers with these calls."""
    if not approvals:
        return rows
    rows = list(rows)
    places = {index: float(index) for index in range(len(rows))}
    for (caller, position), result in tool_answers([row.chat_message for row in rows]).items():
        between = range(caller + 1, result)
        question = next((each for each in between if isinstance(rows[each].chat_message, UserMessage)), None)
        if question is not None and (rows[caller].sequence, position) in approvals:
            places[result] = question - 0.5
    return [rows[index] for index in sorted(places, key=lambda index: places[index])]


def ui_id(row: MessageRow) -> str:
    """Return the id of the ``UIMessage`` that begins with *row*: its client id if it has one."""
    return unedited(row.client_message_id or f"message-{row.sequence}")


def timestamp(moment: datetime) -> str:
    """Return *moment* as ISO 8601 in UTC. A naive one, without ``USE_TZ``, is in the time zone of the process."""
    return moment.astimezone(UTC).isoformat()


def answer_metadata(stored: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """
    Return the metadata of an answer from those *stored* with its messages of the model.

    Usage and latency are sums, the model is the last known one, ``shortened`` has the last tokens of each result, and
    the others are those of the last message. Missing and invalid values are left out.
    """
    known = [each or {} for each in stored]
    last = known[-1] if known else {}
    models = [each["model"] for each in known if isinstance(each.get("model"), str)]
    finish_reason = last.get("finish_reason")
    usages = [each["usage"] for each in known if isinstance(each.get("usage"), Mapping)]
    usage = {name: _sum(each.get(key) for each in usages) for key, name in _USAGE.items()}
    found = {
        "model": models[-1] if models else None,
        "finishReason": FINISH_REASONS.get(finish_reason) if isinstance(finish_reason, str) else None,
        "usage": {name: count for name, count in usage.items() if count is not None} or None,
        "latencyMs": _sum(each.get("latency_ms") for each in known),
        "partial": True if last.get("partial") is True else None,
        "shortened": {name: list(cut) for each in known for name, cut in _cuts(each)} or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def call_id(given: str | None, taken: Collection[str], step: int, position: int) -> str:
    """
    Return the id of the call at *position* in a step whose ids *taken* are already used.

    It is the one *given*, unless that is missing or taken: a page treats two calls with one id as the same call.
    """
    return given if given and given not in taken else f"call-{step}-{position}"


def call_input(arguments: str | None) -> tuple[Any, bool]:
    """Return the value of the JSON *arguments* and True, or the text itself and False if it is not JSON."""
    if not arguments or arguments.isspace():
        return {}, True  # some models write nothing for no arguments
    try:
        return msgspec.json.decode(arguments), True
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return arguments, False


def result_text(result: ToolExecutionResultMessage) -> str:
    """Return the texts of *result*; other contents cannot be shown in a tool's part."""
    return "\n".join(content.text for content in result.contents if isinstance(content, TextContent))


def result_output(result: ToolExecutionResultMessage) -> Any:
    """Return what a page shows as the output of a call: the texts of *result* or, if the page sent JSON, that."""
    text = result_text(result)
    return call_input(text)[0] if result.attributes.get(IS_JSON) is True else text


def answer_text(message: AiMessage) -> str:
    """Return the text of *message* or, if it has neither text nor calls, the model's reason for refusing to answer."""
    if message.text or message.tool_execution_requests:
        return message.text or ""
    refusal = message.attributes.get("refusal")
    return refusal if isinstance(refusal, str) else ""


def _ui_message(row: MessageRow, role: str, parts: list[dict[str, Any]], metadata: object) -> dict[str, Any]:
    if isinstance(metadata, Mapping):  # a page may have sent any other JSON there
        metadata = {CREATED_AT: timestamp(row.created_at), **metadata}
    return {"id": ui_id(row), "role": role, "metadata": metadata, "parts": parts}


def _question_metadata(row: MessageRow, message: UserMessage) -> Any:
    kept = _kept(message, "metadata", {})
    reason = (row.metadata or {}).get(REJECTED)
    if not isinstance(reason, str):
        return kept
    return {**(kept if isinstance(kept, Mapping) else {}), REJECTED: reason}


def _question_parts(message: UserMessage) -> list[dict[str, Any]]:
    """Return the parts of *message* as its page sent them, with the other kept fields in their places."""
    shown = [part for part in map(to_part, message.contents) if part is not None]
    parts: list[dict[str, Any]] = []
    for beside in _kept(message, "parts", []):
        if not isinstance(beside, Mapping):
            continue
        if beside.get("type") == "file":
            if shown and "text" in shown[0]:
                parts.append(text_part(beside, shown.pop(0)["text"]))
        elif "type" in beside:
            parts.append(dict(beside))
        elif shown:
            parts.append({**shown.pop(0), **beside})
    return parts + shown


def _kept(message: UserMessage, name: str, default: Any) -> Any:
    """Return the field *name* that ``from_ui_message`` kept in *message*; attributes may contain anything."""
    kept = message.attributes.get(UI)
    value = kept.get(name, default) if isinstance(kept, Mapping) else default
    return value if name != "parts" or isinstance(value, list) else default


def _answered(
    answer: Sequence[_Answer], approvals: Mapping[tuple[int, int], Approval], unknown: str
) -> list[dict[str, Any]]:
    """Return a list with *answer* as one message; empty if there is no answer. *unknown* is the text of open calls."""
    if not answer:
        return []
    persons = [each for each in answer if author_of(each.message) is not None]
    if persons:
        models = [each for each in answer if each not in persons]
        shown = [_of_person(each) for each in persons] + _answered(models, approvals, unknown)
        places = {ui_id(each.row): place for place, each in reversed([*enumerate(answer)])}
        return sorted(shown, key=lambda message: places[message["id"]])
    messages = [each.message for each in answer]
    results = {call: messages[result] for call, result in tool_answers(messages).items()}
    parts: list[dict[str, Any]] = []
    stored: list[Mapping[str, Any] | None] = []
    for index, (row, message) in enumerate(answer):
        if isinstance(message, AiMessage):
            stored.append(row.metadata)
            calls = range(len(message.tool_execution_requests))
            given = [(results.get((index, call)), approvals.get((row.sequence, call))) for call in calls]
            parts += _step_parts(message, given, len(stored), unknown)
    others = {each.id for each in approvals.values() if each.is_others}
    waiting = [part for part in parts if part.get("state") == "approval-requested"]
    left = [part["toolCallId"] for part in waiting if part["approval"]["id"] in others]
    words = {each.id: each.asks for each in approvals.values() if each.asks}
    asks = {part["toolCallId"]: found for part in waiting if (found := words.get(part["approval"]["id"]))}
    metadata = answer_metadata(stored) | waiting_metadata(left, asks)
    return [_ui_message(answer[0].row, "assistant", parts, metadata)]


def _of_person(answer: _Answer) -> dict[str, Any]:
    """Return what a person wrote instead of the model, as a message of its own."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": answer_text(answer.message), "state": "done"}]  # type: ignore[arg-type]  # an AiMessage
    return _ui_message(answer.row, "assistant", parts, {AUTHOR: author_of(answer.message) or ""})


def waiting_metadata(others: Sequence[str], asks: Mapping[str, str]) -> dict[str, Any]:
    """Return the metadata of an answer some of whose calls wait for *others*, and what they *ask*, by id."""
    return {**({WAITS_FOR_OTHERS: [*others]} if others else {}), **({ASKS: {**asks}} if asks else {})}


def _step_parts(
    message: AiMessage, results: Sequence[tuple[ChatMessage | None, Approval | None]], step: int, unknown: str
) -> list[dict[str, Any]]:
    """Return the parts of *message*, the answer's *step*, with the result and the approval of each of its calls."""
    parts: list[dict[str, Any]] = [{"type": "step-start"}]
    if message.thinking:
        parts.append({"type": "reasoning", "id": f"reasoning-{step}", "text": message.thinking, "state": "done"})
    if text := answer_text(message):
        parts.append({"type": "text", "text": text, "state": "done"})
    ids: list[str] = []
    for position, (call, found) in enumerate(zip(message.tool_execution_requests, results, strict=True)):
        ids.append(call_id(call.id, ids, step, position))
        parts.append(_call_part(call, ids[-1], *found, unknown))
    return parts


def _call_part(
    call: ToolExecutionRequest, id: str, result: ChatMessage | None, approval: Approval | None, unknown: str
) -> dict[str, Any]:
    given, is_json = call_input(call.arguments)
    part = {"type": f"tool-{call.name or ''}", "toolCallId": id, "input": given}
    ending: dict[str, Any]
    if approval is not None and (shown := _approval_ending(approval, result)):
        return {**part, **shown}
    if not isinstance(result, ToolExecutionResultMessage):
        ending = {"state": "output-error", "errorText": unknown if is_json else NOT_JSON}
    elif result.is_error:
        ending = {"state": "output-error", "errorText": result_text(result)}
    else:
        ending = {"state": "output-available", "output": result_output(result)}
    if approval is not None and result is not None and not approval.is_for_client:
        ending["approval"] = approval.as_json()
    return {**part, **ending}


def _approval_ending(approval: Approval, result: ChatMessage | None) -> dict[str, Any]:
    """Return how the part of a call ends that waits for *approval*, or was denied; empty for any other."""
    if approval.is_for_client:
        return {"state": "input-available"} if approval.is_open and result is None else {}
    if approval.error and result is None:
        return {"state": "output-error", "errorText": approval.error, "approval": approval.as_json()}
    if approval.is_open and result is None:
        state = "approval-requested" if approval.approved is None else "approval-responded"
        return {"state": state, "approval": approval.as_json()}
    if approval.approved:
        return {}
    return {"state": "output-denied", "approval": approval._replace(approved=False).as_json()}


def _cuts(metadata: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the valid items of what ``SHORTENED`` is in *metadata*."""
    found = metadata.get(SHORTENED)
    for name, cut in found.items() if isinstance(found, Mapping) else ():
        match cut:
            case [int() as sent, int() as of] if isinstance(name, str):
                yield name, (sent, of)


def _sum(values: Iterable[Any]) -> float | None:
    """Return the sum of those of *values* that are numbers; None if there are none."""
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return sum(numbers) if numbers else None
