"""What clients ask of responses: their input has items of a history, of which the last are new, or only what is new."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from chatmemory_django.chat.http.posted import MAX_DECISIONS, NULL, read_value
from chatmemory_django.contrib.openai_api.conversations import REQUIRED
from chatmemory_django.contrib.openai_api.history import (
    INSTRUCTING,
    MAX_HISTORY,
    SentHistory,
    SentTurn,
    check_text,
    merged,
    question_of,
    text_of,
)
from chatmemory_django.contrib.openai_api.responses import APPROVAL
from chatmemory_django.contrib.openai_api.wishes import AnswerRequest
from chatmemory_django.core.limits import RAW_BYTES
from chatmemory_django.messages import AiMessage, ToolExecutionRequest, ToolExecutionResultMessage, UserMessage


class Input(NamedTuple):
    """What a client sends, and what of it is new: questions, or what it answers to calls."""

    history: SentHistory
    is_new: bool
    """Whether all of it is, apart from calls whose outputs are among it."""
    known: UUID | None
    """The run that has made the last item that names one."""
    after_known: list[SentTurn]
    """The questions behind that item."""
    outputs: Mapping[str, Any]
    approvals: list[dict[str, Any]]
    """What was decided on calls, as the AI SDK's clients send it."""
    refers: bool
    """Whether some of the history is only referred to."""
    is_mixed: bool
    """Whether a question is new beside what is answered to calls: one request goes on with one of them."""

    @property
    def instructions(self) -> str:
        """Those of the client."""
        return self.history.instructions


def run_in(id: object, *prefixes: str) -> UUID | None:
    """Return the run in the *id* of a response, or of one of its items; None if it is none of ours."""
    if not isinstance(id, str) or len(id) > 64:
        return None
    prefix, _, rest = id.partition("_")
    try:
        return UUID(hex=rest.partition("_")[0]) if prefix in prefixes else None
    except ValueError:
        return None


def read_input(given: msgspec.Raw, instructions: str | None, check: Callable[[UserMessage], object]) -> Input:
    """Return what a client sends as *given*; ``ValueError`` with the path of what is invalid."""
    value: Any = read_value(given, str | list[msgspec.Raw], "$.input", RAW_BYTES)  # type: ignore[arg-type]
    if isinstance(value, str):
        value = [msgspec.Raw(msgspec.json.encode({"role": "user", "content": value}))]
    if len(value) > MAX_HISTORY:
        raise ValueError(f"$.input: there are {len(value)} items; at most {MAX_HISTORY} are allowed.")
    texts = [text_of(instructions or "", "$.instructions")]
    turns, after, outputs, approvals = list[SentTurn](), list[SentTurn](), dict[str, Any](), list[dict[str, Any]]()
    known: UUID | None = None
    has_answer = refers = is_mixed = False
    for index, raw in enumerate(value):
        path = f"$.input[{index}]"
        item: Any = read_value(raw, dict[str, Any], path)
        kind = str(item.get("type") or ("message" if "role" in item else ""))
        role = str(item.get("role"))
        if (run := run_in(item.get("id"), "msg", "fc", "rs")) is not None and role != "user":
            known, after, outputs, approvals, is_mixed = run, [], {}, [], False
        if kind == "message" and role in INSTRUCTING:
            texts.append(text_of(item.get("content"), f"{path}.content"))
        elif kind == "message" and role == "user":
            turns.append(question_of(item.get("content"), f"{path}.content", check))
            after.append(turns[-1])
            is_mixed, outputs, approvals = is_mixed or bool(outputs or approvals), {}, []
        elif kind == "message" and role == "assistant":
            has_answer, is_mixed = True, False
            if turns:
                turns[-1].answer.append(AiMessage(text_of(item.get("content"), f"{path}.content") or None))
        elif kind == "function_call":
            _add_call(turns, item, path)
        elif kind == "function_call_output":
            outputs[_text(item, "call_id", path)] = text = text_of(item.get("output"), f"{path}.output")
            if turns:
                turns[-1].answer.append(ToolExecutionResultMessage(item["call_id"], None, text))
        elif kind == "mcp_approval_request":
            after = []  # the questions before it are asked
        elif kind == "mcp_approval_response":
            approvals.append(_approval(item, path))
        elif kind == "item_reference":
            has_answer = refers = True
            if run is None:
                raise ValueError(f"{path}.id: there is no item with this id.")
        elif kind not in REQUIRED:
            raise ValueError(f"{path}.type: {kind[:64]!r} is not a type of item.")
    if not (turns or outputs or approvals):
        raise ValueError("$.input: it must have a message of the user, or what is answered to calls.")
    if len(approvals) > MAX_DECISIONS:
        raise ValueError(f"$.input: at most {MAX_DECISIONS} approvals are allowed.")
    history = SentHistory(merged(turns), "\n\n".join(filter(None, texts)))
    is_new = not has_answer and len(history.turns) <= 1
    is_asked = bool(after) and not any(isinstance(each, AiMessage) for each in after[-1].answer)
    is_mixed = is_mixed or (is_asked and bool(outputs or approvals))
    return Input(history, is_new, known, merged(after), outputs, approvals, refers, is_mixed)


def _add_call(turns: list[SentTurn], item: Mapping[str, Any], path: str) -> None:
    names = (_text(item, name, path) for name in ("call_id", "name", "arguments"))
    call = ToolExecutionRequest(*names)
    if not turns:
        return
    answer = turns[-1].answer
    if answer and isinstance(last := answer[-1], AiMessage):
        calls = [*last.tool_execution_requests, call]
        answer[-1] = AiMessage(last.text, tool_execution_requests=calls)
    else:
        answer.append(AiMessage(None, tool_execution_requests=[call]))


def _approval(item: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the part of an answer by which the AI SDK's clients decide."""
    name, approved, reason = _text(item, "approval_request_id", path), item.get("approve"), item.get("reason")
    if not isinstance(approved, bool) or not isinstance(reason, str | None):
        raise ValueError(f"{path}.approve: it must be true or false, and the reason a string.")  # noqa: TRY004
    run = run_in(name, APPROVAL.removesuffix("_"))
    if run is None:
        raise ValueError(f"{path}.approval_request_id: there is no request with this id.")
    return {
        "state": "approval-responded",
        "approval": {"id": str(run), "approved": approved, "reason": reason or ""},
    }


def _text(item: Mapping[str, Any], name: str, path: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{path}.{name}: it must be a string.")  # noqa: TRY004  # of the body
    check_text(value, f"{path}.{name}")
    return value


class ResponseRequest(AnswerRequest):
    """The fields that are used of a body."""

    input: msgspec.Raw
    instructions: str | None = None
    conversation: msgspec.Raw = NULL
    previous_response_id: str | None = None
    background: bool | None = None
    text: msgspec.Raw = NULL

    def read(self, check: Callable[[UserMessage], object]) -> Input:
        """Return the input; *check* is called with each message of the user. ``ValueError`` as from ``of``."""
        if self.conversation_id is not None and self.previous_response_id is not None:
            raise ValueError("$.previous_response_id: it cannot be given together with a conversation.")
        return read_input(self.input, self.instructions, check)

    def rest(self) -> dict[str, Any]:
        """See ``AnswerRequest.rest``."""
        return {"model": self.model, "background": True} if self.background else {"model": self.model}

    @property
    def conversation_id(self) -> str | None:
        """The conversation, which is named by its id or is an object that has it."""
        given: Any = read_value(self.conversation, Any, "$.conversation")
        match given:
            case None | str():
                return given
            case {"id": str() as name}:
                return name
        raise ValueError("$.conversation: it must be the id of a conversation, or an object with its id.")

    def form(self) -> tuple[Any, str]:
        """See ``AnswerRequest.form``."""
        text: Any = read_value(self.text, Any, "$.text")
        return text.get("format") if isinstance(text, Mapping) else None, "$.text.format"
