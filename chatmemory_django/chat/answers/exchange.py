"""The exchange of one question and its answer: the requests to the model, and which messages are stored when."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from uuid import uuid4

from msgspec.structs import replace

from chatmemory_django import telemetry
from chatmemory_django.chat.answers.counting import specification_tokens, thinking_tokens
from chatmemory_django.chat.answers.questions import Question
from chatmemory_django.chat.answers.rejections import reason_of
from chatmemory_django.chat.answers.sent import to_send
from chatmemory_django.chat.approvals import ApprovalRequested, NotPendingError
from chatmemory_django.chat.approvals.resuming import DECIDED, Pending, Resumed, request_approvals, unanswered_ids
from chatmemory_django.chat.costs.ledger import Ledger
from chatmemory_django.chat.model import (
    ChatEvent,
    ChatModel,
    ChatModelError,
    ChatRequest,
    ChatResponse,
    InvalidRequestError,
    PartialText,
    PartialThinking,
    ResponseFormat,
    ToolChoice,
    ToolSpecification,
)
from chatmemory_django.chat.ui_messages.writing import call_id
from chatmemory_django.db.threads import afterwards, in_thread
from chatmemory_django.memory import ChatMemory
from chatmemory_django.memory.turns import Turn
from chatmemory_django.messages import (
    AiMessage,
    MessageType,
    NewMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.stores.base import ConversationErasedError, LeaseLostError

logger = logging.getLogger(__name__)

AssistantEvent: TypeAlias = ChatEvent | ToolExecutionResultMessage | ApprovalRequested
"""
An event of an answer: for each call of the model its pieces and its response, then the results of its tools. If the
answer waits for approvals, these are requested last, once it is stored.
"""


class TooManyRoundsError(ChatModelError):
    """The model called tools in its last allowed round, too."""


class Exchange:
    """
    The conversation between the model and its *tools* in *turn*, in at most *max_rounds* calls of the model.

    In the last call, the model is asked to use no tools. If it *is_early*, the question is stored when it opens;
    *take* is called before the first tool runs, and returns the fence of the conversation, see ``Turn.fence``.
    """

    def __init__(
        self,
        memory: ChatMemory,
        turn: Turn,
        question: Question,
        ledger: Ledger,
        *,
        model: ChatModel,
        is_early: bool,
        tools: Sequence[ToolSpecification],
        max_rounds: int,
        max_result_tokens: int | None,
        answer_id: str | None,
        response_format: ResponseFormat | None,
        take: Callable[[], int | None] = lambda: None,
        resumed: Resumed | None = None,
        waiting: Pending | None = None,
    ) -> None:
        self.memory = memory
        """What the turn is with."""
        self.turn = turn
        """The turn, which the caller ends."""
        self.question = question
        self.ledger = ledger
        """The calls of the model, which the caller records."""
        self._is_early = is_early
        self._thinking_tokens = thinking_tokens(model, memory.window())
        self._tools = tuple(tools)
        self._rounds_left = max_rounds
        self._max_result_tokens = max_result_tokens
        self._answer_id = answer_id
        self._response_format = response_format
        self._take = take
        self._context: str | None = None
        self._next: ChatRequest | None = None
        self._steps = 0 if question.stored is None else question.stored.steps
        self._asked_at = 0.0
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._has_stored_calls = False
        self.response: ChatResponse | None = None
        """The last response of the model."""
        self.results: list[ToolExecutionResultMessage] = []
        """The results of the last calls, as they are stored."""
        self.is_open = False
        """Whether the turn has begun with the question."""
        self.is_complete = False
        """Whether the model has answered, or the answer waits."""
        self.resumed = resumed
        """The answer that goes on with the results of the calls for which it has waited."""
        self.pending: Sequence[ApprovalRequested] = ()
        """The calls for whose approval the answer waits."""
        self._held: Mapping[int, ApprovalRequested] = {}
        self._waiting = waiting or Pending()
        self._is_first = False

    def again(self) -> Iterator[AssistantEvent]:
        """Yield the events of what is stored of the answer: all, if it has ended or waits; then this is complete."""
        stored = self.question.stored
        if stored is None or self.resumed is not None:
            return
        for event in stored.events():
            self.response = event if isinstance(event, ChatResponse) else self.response
            yield event
        self.is_complete, self.pending = stored.has_ended, stored.pending
        if not self.is_complete:
            self.response = None

    def open(self, system: str | None, context: str | None = None) -> None:
        """
        Begin the turn with the system message, unless it is there already, and the question.

        *context* is sent in front of the question, and never stored.

        Raises:
            QuestionTooLongError: They do not fit in the window; nothing is stored.

        """
        self.is_open, self._context = True, context
        if self.resumed is not None:  # what comes next are the results of its calls
            if self.resumed.waiting is None:
                self._context = DECIDED if context is None else f"{context}\n\n{DECIDED}"
            return
        if system is not None and SystemMessage(system) not in self.turn.messages:
            self.turn.add(SystemMessage(system))
        if self.question.message is not None:
            self.turn.add(NewMessage(self.question.message, client_message_id=self.question.client_message_id))
        self._next = self._request()
        if self._is_early and self.turn.can_open and self.question.message is not None:
            self.turn.save("open")

    def next_request(self) -> ChatRequest | None:
        """Return the next request to the model, or None once it has answered, or the answer waits."""
        if self.response is not None and not self.calls:
            self._add(self.response.ai_message, self._metadata(self.response))
            self.is_complete = True
        if self._held:
            self.pending = tuple(self._held.values())
        if self.is_complete or self.pending:
            self.is_complete = True
            return None
        self.ledger.check()
        request, self._next = self._next or self._request(), None
        self.response, self._text, self._thinking, self._has_stored_calls = None, [], [], False
        self._rounds_left -= 1
        self._asked_at = time.monotonic()
        return request

    def _request(self) -> ChatRequest:
        memory, begun = self.turn.whole()
        entries = memory.entries()
        self._is_first = not any(entry.type == MessageType.AI for entry in entries if entry.key < begun)
        sent = to_send(
            entries,
            begun,
            memory.window,
            summary_key=None if memory.summary is None else memory.summary.key,
            context=self._context,
            pending=self._waiting.texts(entries),
            extra=self._thinking_tokens,
            overhead=specification_tokens(self._tools, self._response_format, memory.window),
            max_result_tokens=self._max_result_tokens,
            starts_on_user=self.memory.start_on_user,
        )
        if sent.left_out or self.turn.is_compacted:
            telemetry.note_compacted()
        return ChatRequest(
            messages=tuple(sent.messages),
            tools=self._tools,
            tool_choice=ToolChoice.NONE if self._tools and self._rounds_left == 1 else None,
            response_format=self._response_format,
        )

    def store_calls(self) -> None:
        """
        Store the last response, if it calls tools, before any of them runs.

        Raises:
            TooManyRoundsError: It may not call any; nothing is stored.
            BusyError: Another answer is in progress in the conversation.

        """
        if self.response is None or not self.calls:
            return
        if not self._rounds_left:
            raise TooManyRoundsError("The model called tools in every round; increase max_rounds.")
        if self.turn.fence is None:
            self.turn.fence = self._take()
        self._add(self.response.ai_message, self._metadata(self.response))
        self._has_stored_calls, self.results = True, []
        if self._held:
            request_approvals(self.memory, self.turn, self._held)
        with self.ledger.recorded_with(self.turn):
            self.turn.save()

    def store_result(self, result: ToolExecutionResultMessage) -> None:
        """Store the *result* of a call."""
        if self.resumed is not None:
            self.resumed.store_with(self.turn, result)
        self.turn.add(result)
        self.turn.save()
        self.results.append(result)

    def reject(self, error: InvalidRequestError) -> None:
        """
        Leave out of later requests what the model's server did not accept: the question or, if tools have run, the
        results of the last round. They stay in the history.
        """
        results = len(self.results)
        has_question = self._is_early and self.turn.can_open
        if results or (has_question and not self._steps):
            self.turn.reject(results or 1, reason_of(error, None if results else self.asked))

    def store_late(self, result: ToolExecutionResultMessage) -> None:
        """Store a *result* for which the answer has not waited, unless the conversation has gone on without it."""
        try:
            self.store_result(result)
        except (LeaseLostError, ConversationErasedError, NotPendingError):
            logger.warning("A tool has ended after the answer in %r; its result is not stored.", self.memory.id)

    def end(self) -> None:
        """End the turn, and record the calls with it."""
        with self.ledger.recorded_with(self.turn):
            self.turn.end()

    def write(self) -> bool:
        """Do the first step of ``aend``; return what ``Turn.write`` does."""
        with self.ledger.recorded_with(self.turn):
            return self.turn.write()

    async def aend(self) -> None:
        """See ``end``. What the memory does after the turn is stored may go on by itself."""
        if await in_thread(self.write):
            await afterwards(self.turn.follow())

    @property
    def calls(self) -> Sequence[ToolExecutionRequest]:
        """The tool calls of the last response."""
        return () if self.response is None else self.response.ai_message.tool_execution_requests

    def hold(self, approvers: Mapping[int, str]) -> None:
        """Let the answer wait for the approval of those of the calls that have the positions in *approvers*."""
        if self.response is None or not approvers:
            return
        message = self.response.ai_message
        ids: list[str] = []
        waiting = unanswered_ids(self.turn)
        for position, call in enumerate(self.calls):  # a result that is stored later is found by the id of its call
            name = call_id(call.id, ids, self._steps + 1, position)
            ids.append(f"{name}-{uuid4().hex[:8]}" if name in waiting else name)
        calls = [replace(call, id=name) for call, name in zip(self.calls, ids, strict=True)]
        self.response = ChatResponse(replace(message, tool_execution_requests=calls), self.response.metadata)
        self._held = {at: ApprovalRequested(uuid4(), calls[at], approver) for at, approver in approvers.items()}

    @property
    def runnable(self) -> list[ToolExecutionRequest]:
        """The tool calls of the last response that need no approval."""
        return [call for position, call in enumerate(self.calls) if position not in self._held]

    def settle(self, resumed: Resumed) -> bool:
        """Return whether more calls of the answer were decided meanwhile; if not, note for which it goes on waiting."""
        if resumed.again():
            resumed.show(self.turn)
            return True
        self.pending = resumed.still_open()
        return False

    @property
    def first(self) -> tuple[UserMessage, AiMessage] | None:
        """The question and its answer, once the model has given the first answer of the memory."""
        if not (self.is_complete and self._is_first) or self.pending or self.response is None:
            return None
        asked = self.asked
        return None if asked is None else (asked, self.response.ai_message)

    def note(self, event: ChatEvent) -> None:
        """Record an event of the model."""
        self.ledger.note(event)
        match event:
            case PartialText():
                self._text.append(event.text)
            case PartialThinking():
                self._thinking.append(event.text)
            case ChatResponse():
                self.response = event
                self._latency_ms = self._elapsed_ms()

    @property
    def asked(self) -> UserMessage | None:
        """The question."""
        stored = self.question.stored
        return self.question.message if stored is None else stored.asked()

    @property
    def was_stored(self) -> bool:
        """Whether the answer had ended before, so that nothing of it is stored now."""
        stored = self.question.stored
        return stored is not None and stored.has_ended

    def save_part(self, *, has_failed: bool) -> None:
        """Store what ``add_part`` has added; unless the answer *has_failed*, the turn ends with it."""
        with self.ledger.recorded_with(self.turn):
            if has_failed:
                self.turn.save()
            else:
                self.turn.end()

    def add_part(self) -> bool:
        """
        Add what there is of the model's answer to the turn, marked as partial; calls that are not stored are left out.

        Returns whether there is anything.
        """
        if self._has_stored_calls or self.is_complete:
            return False
        if self.response is None:
            text, thinking = "".join(self._text), "".join(self._thinking)
            metadata: Mapping[str, Any] = {"latency_ms": self._elapsed_ms()}
        else:
            text, thinking = self.response.ai_message.text or "", self.response.ai_message.thinking or ""
            metadata = self._metadata(self.response)
        if text or thinking:
            self._add(AiMessage(text or None, thinking or None), {**metadata, "partial": True})
        return bool(text or thinking)

    def _add(self, message: AiMessage, metadata: Mapping[str, Any]) -> None:
        name = None if self._steps else self._answer_id
        self.turn.add(NewMessage(message, metadata, name))
        self._steps += 1

    def _metadata(self, response: ChatResponse) -> dict[str, Any]:
        return {**response.metadata.as_json(), "latency_ms": self._latency_ms}

    def _elapsed_ms(self) -> int:
        return round((time.monotonic() - self._asked_at) * 1000)
