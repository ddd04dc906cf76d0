"""The exchange of one question and its answer: the requests to the model, and which messages are stored."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias
from uuid import uuid4

from msgspec.structs import replace

from chatmemory_django import telemetry
from chatmemory_django.chat.answers.questions import Question
from chatmemory_django.chat.approvals import ApprovalRequested
from chatmemory_django.chat.approvals.resuming import Resumed, request_approvals
from chatmemory_django.chat.costs.ledger import Ledger
from chatmemory_django.chat.model import (
    ChatEvent,
    ChatModelError,
    ChatRequest,
    ChatResponse,
    ContextLengthError,
    PartialText,
    PartialThinking,
    ResponseFormat,
    ToolChoice,
    ToolSpecification,
)
from chatmemory_django.chat.ui_messages.writing import call_id
from chatmemory_django.core.tool_calls import repair_tools
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

AssistantEvent: TypeAlias = ChatEvent | ToolExecutionResultMessage | ApprovalRequested
"""
An event of an answer: for each call of the model its pieces and its response, then the results of its tools. If the
answer waits for approvals, these are requested last, once it is stored.
"""


class QuestionTooLongError(ContextLengthError):
    """The question alone is larger than the memory's window, so the model was not called."""


class TooManyRoundsError(ChatModelError):
    """The model called tools in its last allowed round, too."""


class Exchange:
    """
    The conversation between the model and its *tools* in *turn*, in at most *max_rounds* calls of the model.

    In the last call, the model is asked to use no tools.
    """

    def __init__(
        self,
        memory: ChatMemory,
        turn: Turn,
        question: Question,
        ledger: Ledger,
        *,
        tools: Sequence[ToolSpecification],
        max_rounds: int,
        answer_id: str | None,
        response_format: ResponseFormat | None,
        resumed: Resumed | None = None,
    ) -> None:
        self.memory = memory
        """What the turn is with."""
        self.turn = turn
        """The turn, which the caller ends."""
        self.ledger = ledger
        """The calls of the model, which the caller records."""
        self._question = question
        self._tools = tuple(tools)
        self._rounds_left = max_rounds
        self._answer_id = answer_id
        self._response_format = response_format
        self._has_answer = False
        self._asked_at = 0.0
        self._text: list[str] = []
        self._thinking: list[str] = []
        self.response: ChatResponse | None = None
        """The last response of the model."""
        self.results: list[ToolExecutionResultMessage] = []
        """The results of its tool calls, in their order."""
        self.is_complete = False
        """Whether the model has answered."""
        self.resumed = resumed
        """The answer that goes on with the results of the calls for which it has waited."""
        self.pending: Sequence[ApprovalRequested] = ()
        """The calls for whose approval the answer waits."""
        self._held: Mapping[int, ApprovalRequested] = {}
        before = () if resumed is None else resumed.waiting.rows
        self._steps = sum(row.type == MessageType.AI for row in before)
        self._is_first = False
        self._asked: UserMessage | None = None

    def open(self, system: str | None) -> None:
        """Begin the turn with the system message, unless it is there already, and the question."""
        if self.resumed is not None:  # what comes next are the results of its calls
            return
        opening: list[NewMessage] = []
        if system is not None and SystemMessage(system) not in self.turn.messages:
            opening.append(NewMessage(SystemMessage(system)))
        message, _, name = self._question
        if message is not None:
            opening.append(NewMessage(message, client_message_id=name))
        self.turn.add(*opening)

    def next_request(self) -> ChatRequest | None:
        """
        Add the messages so far to the turn, and return the next request, or None once the model has answered, or the
        answer waits.
        """
        if self.response is not None:
            if self.calls and not self._rounds_left:
                raise TooManyRoundsError("The model called tools in every round; increase max_rounds.")
            self._add(self.response.ai_message, self._metadata(self.response))
            if not self.calls:
                self.is_complete = True
                return None
            self.turn.add(*self.results)
            if self._held:
                ids = {request.id: position for position, request in self._held.items()}
                request_approvals(self.memory, self.turn, ids, behind=len(self.results))
                self.pending = tuple(self._held.values())
        if self.pending:
            self.is_complete = True
            return None
        self.ledger.check()
        self.response, self.results, self._text, self._thinking = None, [], [], []
        self._rounds_left -= 1
        self._asked_at = time.monotonic()
        messages = tuple(repair_tools(self.turn.messages))
        if self.turn.is_compacted:
            telemetry.note_compacted()
        if not self._has_answer:
            numbered = reversed([*enumerate(messages)])
            questions = ((index, each) for index, each in numbered if isinstance(each, UserMessage))
            asked, self._asked = next(questions, (None, None))
            before = messages[:asked] if self.resumed else messages
            self._is_first = all(message.type != MessageType.AI for message in before)
        if all(isinstance(message, SystemMessage) for message in messages):
            raise QuestionTooLongError("The question does not fit in the memory's window; configure a larger window.")
        return ChatRequest(
            messages=messages,
            tools=self._tools,
            tool_choice=ToolChoice.NONE if self._tools and not self._rounds_left else None,
            response_format=self._response_format,
        )

    async def anext_request(self) -> ChatRequest | None:
        """See ``next_request``."""
        return await in_thread(self.next_request) if self.ledger.asks_for_costs else self.next_request()

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

    def hold(self, positions: Collection[int]) -> None:
        """Let the answer wait for the approval of those of the calls that have these *positions*."""
        if self.response is None or not positions:
            return
        message = self.response.ai_message
        ids: list[str] = []
        for position, call in enumerate(self.calls):  # a result that is stored later is found by the id of its call
            ids.append(call_id(call.id, ids, self._steps + 1, position))
        calls = [replace(call, id=name) for call, name in zip(self.calls, ids, strict=True)]
        self.response = ChatResponse(replace(message, tool_execution_requests=calls), self.response.metadata)
        self._held = {position: ApprovalRequested(uuid4(), calls[position]) for position in positions}

    @property
    def runnable(self) -> list[ToolExecutionRequest]:
        """The tool calls of the last response that need no approval."""
        return [call for position, call in enumerate(self.calls) if position not in self._held]

    def settle(
        self, resumed: Resumed, results: Sequence[ToolExecutionResultMessage]
    ) -> Sequence[ToolExecutionResultMessage]:
        """Store the *results* of approved calls, before anything else can fail, and return all that are new."""
        settled, self.pending = resumed.settle(results)
        self.turn.begin()
        return settled

    @property
    def first(self) -> tuple[UserMessage, AiMessage] | None:
        """The question and its answer, once the model has given the first answer of the memory."""
        if not (self.is_complete and self._is_first) or self.pending or self._asked is None or self.response is None:
            return None
        return self._asked, self.response.ai_message

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

    def add_part(self) -> bool:
        """
        Add the answer so far to the turn, marked as partial; calls without results are left out.

        Returns whether the turn has any message of an answer.
        """
        if self.response is None:
            text, thinking = "".join(self._text), "".join(self._thinking)
            metadata: Mapping[str, Any] = {"latency_ms": self._elapsed_ms()}
        else:
            text, thinking = self.response.ai_message.text or "", self.response.ai_message.thinking or ""
            metadata = self._metadata(self.response)
        if text or thinking:
            self._add(AiMessage(text or None, thinking or None), {**metadata, "partial": True})
        return self._has_answer

    def _add(self, message: AiMessage, metadata: Mapping[str, Any]) -> None:
        self.turn.add(NewMessage(message, metadata, self._answer_id))
        self._answer_id, self._has_answer = None, True
        self._steps += 1

    def _metadata(self, response: ChatResponse) -> dict[str, Any]:
        return {**response.metadata.as_json(), "latency_ms": self._latency_ms}

    def _elapsed_ms(self) -> int:
        return round((time.monotonic() - self._asked_at) * 1000)
