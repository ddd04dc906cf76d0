"""The exchange of one question and its answer: the requests to the model, and which messages are stored when."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace as replaced
from datetime import tzinfo
from functools import partial
from typing import Any, TypeAlias
from uuid import uuid4

from msgspec.structs import replace

from chatmemory_django import observing
from chatmemory_django.chat.answers.context import joined, needed_of
from chatmemory_django.chat.answers.days import Days
from chatmemory_django.chat.answers.guarded import MAX_RETRIES
from chatmemory_django.chat.answers.questions import Question
from chatmemory_django.chat.answers.rejections import Rejection, reason_of
from chatmemory_django.chat.answers.sent import specification_tokens, thinking_tokens, to_send
from chatmemory_django.chat.answers.stored import not_accepted, show_decided
from chatmemory_django.chat.answers.too_long import AnswerTooLongError, QuestionTooLongError
from chatmemory_django.chat.approvals import ApprovalRequested, NotPendingError
from chatmemory_django.chat.approvals.approving import May
from chatmemory_django.chat.approvals.resuming import (
    DECIDED,
    OpenCalls,
    Resumed,
    calls_in,
    django_store,
    end_waiting,
    request_approvals,
    unanswered,
)
from chatmemory_django.chat.approvals.waiting import ids_beside_memory
from chatmemory_django.chat.costs.ledger import Ledger
from chatmemory_django.chat.guards import GuardRefusedError
from chatmemory_django.chat.model import (
    ChatEvent,
    ChatModel,
    ChatModelError,
    ChatRequest,
    ChatResponse,
    InvalidRequestError,
    PartialText,
    PartialThinking,
    PartialToolCall,
    ResponseFormat,
    ToolChoice,
    ToolSpecification,
    UnsupportedFileError,
)
from chatmemory_django.chat.outgoing import Outgoing, for_vendor
from chatmemory_django.chat.runs.leases import Lease
from chatmemory_django.chat.tools import Wait
from chatmemory_django.chat.ui_messages.writing import call_id
from chatmemory_django.core.tool_calls import SHORTENED
from chatmemory_django.memory import ChatMemory
from chatmemory_django.memory.turns import Turn
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
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


GREETING = "greeting"
"""The client message id of what the assistant writes before the first question."""

GONE = "This tool is not available any more."
"""The description of a tool that the conversation has used, for vendors that want one although there are no tools."""


class TooManyRoundsError(ChatModelError):
    """The model called tools in its last allowed round, too."""


class Exchange:
    """
    The conversation between the model and its *tools* in *turn*, in at most *max_rounds* calls of the model.

    In the last call, the model is asked to use no tools. If it *is_early*, the question is stored when it opens;
    *lease* is the conversation's: if it is not taken yet, that is done before a tool runs. *answered* is what there is
    of the answer already, which nobody stores.
    """

    def __init__(
        self,
        memory: ChatMemory,
        ledger: Ledger,
        lease: Lease,
        turn: Turn,
        question: Question,
        *,
        model: ChatModel,
        is_early: bool,
        tools: Sequence[ToolSpecification],  # until ``use_tools``
        max_rounds: int,
        max_result_tokens: int | None,
        response_format: ResponseFormat | None,
        may: May,
        answer_id: str | None = None,
        resumed: Resumed | None = None,
        last_results: int = 0,
        greeting: str | None = None,
        dates_in: tzinfo | None = None,
        is_guarded: bool = False,
        tool_choice: str | None = None,
        answered: Sequence[ChatMessage] = (),
    ) -> None:
        self.memory = memory
        """What the turn is with."""
        self._lease = lease
        self.turn: Turn
        """The turn, which the caller ends."""
        self._use(turn)
        self.question = question
        self.ledger = ledger
        """The calls of the model, which the caller records."""
        self._is_early = is_early
        self._model = model
        self._thinking_tokens: Callable[[ChatMessage], int] | None = None
        self._sequences: Sequence[int] = ()
        self._tools = tuple(tools)
        self._max_result_tokens = max_result_tokens
        self._answer_id = answer_id
        self._response_format = response_format
        self._greeting = greeting
        self._tool_choice = tool_choice
        self._answered = answered
        self._day_of = None if dates_in is None else Days(dates_in)
        self._ahead = 0
        """How many messages of the turn are in front of the question that are sent like earlier ones."""
        self._system: str | None = None
        self._context: str | None = None
        self._next: ChatRequest | None = None
        self._steps = 0 if question.stored is None else question.stored.steps
        # A model and a browser alone must not go on without end.
        self._rounds_left = max_rounds if resumed is None else max(1, max_rounds - self._steps)
        self._asked_at = 0.0
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._names: dict[int, str] = {}
        self._has_stored_calls = self._has_part = False
        self._has_unstored_result = False
        self._writing = threading.Lock()  # tools that end late do so in threads of their own
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
        self._may = may
        self._waiting = OpenCalls()
        self._not_accepted: Mapping[tuple[int, int], str] = {}
        self._is_first = False
        self._is_guarded = is_guarded
        self._held_back: list[ChatEvent] = []
        self.held_back = 0
        """How many characters of the model's text guards have not let pass."""
        self._retries = 0
        self._shortened: Mapping[str, Sequence[int]] = {}
        """What ``SHORTENED`` is of the model's next message."""
        self.rejected: Rejection | None = None
        """Why the model's server has rejected the question."""
        stored = question.stored  # it is read here, since an event loop must not
        self._last_results = last_results if stored is None else stored.last_results
        self.asked = question.message if stored is None else stored.asked()
        """The question."""
        self.stored_events = [] if stored is None or resumed is not None else list(stored.events())
        """What is stored of the answer, which is yielded once more."""

    def _use(self, turn: Turn) -> None:
        turn.fence = self._lease.fence
        self.turn = turn

    def use_tools(self, tools: Sequence[ToolSpecification], tokens: int) -> None:
        """Let the model use *tools*, whose specifications have so many *tokens*; before the exchange is opened."""
        self._tools, self.memory.reserved_tokens = tuple(tools), tokens

    def again(self) -> Iterator[AssistantEvent]:
        """Yield the events of what is stored of the answer: all, if it has ended or waits; then this is complete."""
        response: ChatResponse | None = None
        for event in self.stored_events:  # who stops reading here has received nothing of the model
            response = event if isinstance(event, ChatResponse) else response
            yield event
        stored = self.question.stored
        if stored is None or self.resumed is not None:
            return
        self.is_complete, self.pending = stored.stands, stored.pending
        self.response = response if self.is_complete else None

    def open(self, system: str | None, context: str | None = None) -> None:
        """
        Begin the turn with the system message, unless it is there already, and the question.

        *context* is sent in front of the question, and never stored.

        Raises:
            QuestionTooLongError: They do not fit in the window; nothing is stored.
            UnsupportedFileError: The model does not take a file of the question; nothing is stored.

        """
        self.is_open, self._system, self._context = True, system, context
        if self._steps:  # what the process that has begun it still does is nothing any more
            self.take()
        has_open_calls = bool(unanswered(self.turn))
        if self._lease.fence is None and (
            (self._tools and (has_open_calls or not self._follows_an_answer()))
            or self._lease.is_of_another(self.memory, self.turn.seen_fence)
        ):
            self.take()  # another one may be in progress, and go on in between
            self._use(self.memory.turn().begin())
            has_open_calls = bool(unanswered(self.turn))
        if has_open_calls:
            _, self._waiting = end_waiting(self.memory, None)
            self._not_accepted = not_accepted(self.memory, self.turn)
        self._add_opening()
        if self._day_of is not None:
            self._day_of.read(self.memory, self.turn.unevicted()[0].entries())
        if self.resumed is not None:  # what comes next are the results of its calls
            if self.resumed.waiting is None:
                self._context = joined([context, DECIDED])
            return
        self._next = self._request()
        if has_open_calls and self.question.stored is None and self.question.after is None:
            has_ended, self._waiting = end_waiting(self.memory, self._may, self._lease.fence)
            if has_ended:
                self._use(self.memory.turn().begin())
                self._add_opening()
                self._next = self._request()
        if self._is_early and self.turn.can_open and self.question.message is not None:
            self.turn.save("open")

    def _follows_an_answer(self) -> bool:
        """Return whether the memory ends with a text of the model, or has nothing but system messages."""
        types = (each.type for each in reversed(self.turn.unevicted()[0].entries()))
        return next((each for each in types if each != MessageType.SYSTEM), MessageType.AI) == MessageType.AI

    def _add_opening(self) -> None:
        memory, begun = self.turn.unevicted()
        if self._system is not None and SystemMessage(self._system) not in memory.messages():
            self.turn.add(SystemMessage(self._system))
        if self.question.message is None or self.resumed is not None:
            return
        name = self.question.client_message_id
        if self._greeting and begun == 1:  # the conversation has never had a message
            self._ahead = 1 + (self._system is not None)
            self.turn.add(
                NewMessage(AiMessage(self._greeting), client_message_id=None if name == GREETING else GREETING)
            )
        self.turn.add(NewMessage(self.question.message, client_message_id=name))
        for message in self._answered:
            self.turn.show(message)

    @property
    def question_key(self) -> int | None:
        """The key of the question; None if it is not stored."""
        stored = self.question.stored
        return self.turn.question if stored is None else stored.question.sequence

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
        self._names = {}
        self._rounds_left -= 1
        self._asked_at = time.monotonic()
        return request

    def _request(self) -> ChatRequest:
        memory, begun = self.turn.unevicted()
        begun += self._ahead
        entries = memory.entries()
        # What comes before the first question is no answer. One that has only calls gives no title, and the next does.
        greeting = 1 + any(each.key == 1 and each.type == MessageType.SYSTEM for each in entries[:1])
        texts = (each.key for each in entries if each.type == MessageType.AI and not each.calls_tools)
        self._is_first = not any(greeting != key < begun for key in texts)
        window = memory.window
        self._thinking_tokens = self._thinking_tokens or thinking_tokens(self._model, window)
        send = partial(
            to_send,
            entries,
            begun,
            window,
            summary_key=None if memory.summary is None else memory.summary.key,
            day_of=self._day_of,
            pending={**self._not_accepted, **self._waiting.texts(entries)},
            extra=self._thinking_tokens,
            overhead=self.memory.reserved_tokens + specification_tokens((), self._response_format, window),
            max_result_tokens=self._max_result_tokens,
            starts_on_user=self.memory.start_on_user,
        )
        try:
            sent = send(context=self._context)
        except (QuestionTooLongError, AnswerTooLongError):
            if self._context == needed_of(self._context):
                raise
            self._context = needed_of(self._context)
            sent = send(context=self._context)
        self._shortened = {
            each.message.id: list(sent.shortened[each.key])
            for each in (entries if sent.shortened else ())
            if each.key >= begun and each.key in sent.shortened
            if isinstance(each.message, ToolExecutionResultMessage) and each.message.id
        }
        if sent.left_out or self.turn.is_compacted:
            observing.note("compacted")
        is_new = self.question.message is not None and self.question.stored is None and self.resumed is None
        rules, outgoing = self._model.rules, Outgoing(sent.messages, sent.keys)
        if rules is not None:
            keyed = list(zip(sent.keys, sent.messages, strict=True))
            outgoing = for_vendor(keyed, rules, begun=begun if is_new else None)
        if outgoing.unsupported is not None:
            raise UnsupportedFileError(f"The model does not take the {outgoing.unsupported} of the question.")
        if outgoing.changes:
            observing.note("changed", changes=[each.change for each in outgoing.changes])
        self._sequences = outgoing.sequences
        tools = self._tools or tuple(ToolSpecification(name, GONE) for name in outgoing.tools)
        return ChatRequest(
            messages=tuple(outgoing.messages),
            tools=tools,
            tool_choice=ToolChoice.NONE if tools and self._rounds_left == 1 else self._first_choice(tools),
            response_format=self._response_format,
        )

    def _first_choice(self, tools: Sequence[ToolSpecification]) -> str | None:
        """Return the client's choice among *tools*, which counts for the first call of the model."""
        choice = self._tool_choice
        if choice is None or self._steps or not tools:
            return None
        if any(tool.name == choice for tool in tools):
            return choice
        return next((each for each in ToolChoice if each.value == choice), None)

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
        self.take()
        self._add(self.response.ai_message, self._metadata(self.response))
        self._has_stored_calls, self.results = True, []
        if self._held:
            request_approvals(self.memory, self.turn, self._held)
        with self.ledger.recorded_with(self.turn):
            self.turn.save()

    def take(self) -> None:
        """Take the conversation for this answer, unless it is taken: another one then stores nothing any more."""
        self.turn.fence = self._lease.take(self.memory)

    def store_result(self, result: ToolExecutionResultMessage) -> None:
        """Store the *result* of a call; if that fails, ``finish`` does."""
        with self._writing:
            self._add_result(result)
            self._save_result()
        self.results.append(result)

    def _add_result(self, result: ToolExecutionResultMessage) -> bool:
        """Add *result* to the turn; return whether it is that of a call that was decided."""
        was_decided = self.resumed is not None and self.resumed.store_with(self.turn, result)
        self.turn.add(result)
        self._has_unstored_result = True
        return was_decided

    def _save_result(self, *, only_newest: bool = False) -> None:
        self.turn.save(only_newest=only_newest)
        self._has_unstored_result = False

    def reject(self, error: InvalidRequestError) -> None:
        """
        Leave out of later requests what the model's server did not accept: the question or, if tools have run, the
        results of the last round. They stay in the history.
        """
        if error.index is not None and error.index < len(self._sequences):
            error.sequence = self._sequences[error.index]
        stored = self.question.stored
        results = 0 if isinstance(error, GuardRefusedError) else len(self.results) or self._last_results
        has_question = self._is_early if stored is None else not stored.question.is_complete  # not one with an answer
        has_question = has_question and not (stored is None and self.resumed is not None)  # others follow that
        if results or (has_question and not self._steps):
            reason = reason_of(error, None if results else self.asked)
            self.turn.reject(results or 1, reason)
            self.rejected = None if results else reason

    def store_late(self, result: ToolExecutionResultMessage) -> None:
        """Store a *result* for which the answer has not waited, unless the conversation has gone on without it."""
        try:
            with self._writing:
                was_decided = self._add_result(result)
                self._save_result(only_newest=not was_decided)  # a decided call's is found behind other messages
        except (LeaseLostError, ConversationErasedError, NotPendingError):
            self._has_unstored_result = False
            logger.warning("A tool has ended after the answer in %r; its result is not stored.", self.memory.id)

    @property
    def calls(self) -> Sequence[ToolExecutionRequest]:
        """The tool calls of the last response."""
        return () if self.response is None else self.response.ai_message.tool_execution_requests

    def hold(self, waits: Mapping[int, Wait]) -> bool:
        """Let the answer wait for those of the calls that have the positions in *waits*; return whether it does."""
        self._held = {at: ApprovalRequested(uuid4(), self.calls[at], *each) for at, each in waits.items()}
        return bool(self._held)

    def named_apart(self, response: ChatResponse) -> ChatResponse:
        """Return the last *response*, with ids for its calls that none has which waits outside of the memory."""
        beside = ids_beside_memory(django_store(self.memory).named(self.memory.id))
        self._names = {position: _apart(name, beside) for position, name in self._names.items()}
        self.response = self._with_names(response)
        return self.response

    def _with_names(self, response: ChatResponse) -> ChatResponse:
        """Return *response* with an id for each call by which its result is found, whenever that is stored."""
        message = response.ai_message
        if not message.tool_execution_requests:
            return response
        calls = [
            replace(call, id=self._name(position, call.id))
            for position, call in enumerate(message.tool_execution_requests)
        ]
        return ChatResponse(replace(message, tool_execution_requests=calls), response.metadata)

    def _name(self, position: int, given: str | None) -> str:
        """
        Return the id of the call at *position* of the response, which its pieces have, too.

        It is none that is in the memory: many servers begin to count again with each response.
        """
        if position not in self._names:
            messages = (each.message for each in self.turn.unevicted()[0].entries() if each.calls_tools)
            earlier = {call.id for message in messages for call in calls_in(message)}
            name = call_id(given, self._names.values(), self._steps + 1, position)
            self._names[position] = _apart(name, earlier)
        return self._names[position]

    def hold_back(self, event: ChatEvent) -> int:
        """Keep *event* until guards have seen the whole response; return how many characters are kept."""
        self._held_back.append(event)
        if isinstance(event, PartialText | PartialThinking):
            self.held_back += len(event.text)
        elif isinstance(event, PartialToolCall):
            self.held_back += len(event.arguments)
        return self.held_back

    def let_go(self) -> list[ChatEvent]:
        """Return the events that were held back, in their order."""
        events, self._held_back, self.held_back = self._held_back, [], 0
        return events

    def let_pass(self, message: AiMessage) -> None:
        """Take *message*, which guards have left, as what the model has responded."""
        if self.response is not None and message is not self.response.ai_message:
            self.response = ChatResponse(message, self.response.metadata)
            self._held_back = [self.response]

    def retry(self, note: str) -> bool:
        """Drop the response, to ask the model once more with *note*; return whether it may be asked."""
        self._retries += 1
        if self._retries > MAX_RETRIES or not self._rounds_left:
            return False
        self.response, self._context = None, joined([self._context, note])
        self.let_go()
        return True

    @property
    def runnable(self) -> list[ToolExecutionRequest]:
        """The tool calls of the last response that need no approval."""
        return [call for position, call in enumerate(self.calls) if position not in self._held]

    def settle(self, resumed: Resumed) -> bool:
        """Return whether more calls of the answer were decided meanwhile; if not, note for which it goes on waiting."""
        if resumed.again():
            show_decided(resumed, self.turn)
            return True
        self.pending = resumed.still_open()
        return False

    @property
    def first(self) -> tuple[UserMessage, AiMessage] | None:
        """The question and its answer, once the model has given the first answer of the memory that ended."""
        if not (self.is_complete and self._is_first) or self.pending or self.response is None:
            return None
        return None if self.asked is None else (self.asked, self.response.ai_message)

    def noted(self, event: ChatEvent) -> ChatEvent:
        """Record an event of the model, and return it with what is known of the request."""
        self.ledger.note(event)
        match event:
            case PartialText():
                self._text.append(event.text)
            case PartialThinking():
                self._thinking.append(event.text)
            case PartialToolCall() if event.index not in self._names:
                event = replaced(event, id=self._name(event.index, event.id))
            case ChatResponse():
                event = self.response = self._with_request(self._with_names(event))
                self._latency_ms = self._elapsed_ms()
        return event

    def _with_request(self, response: ChatResponse) -> ChatResponse:
        if not self._shortened:
            return response
        attributes = {**response.metadata.attributes, SHORTENED: self._shortened}
        return ChatResponse(response.ai_message, replaced(response.metadata, attributes=attributes))

    @property
    def was_stored(self) -> bool:
        """Whether the answer had ended or waited before, so that nothing of it is stored now."""
        stored = self.question.stored
        return stored is not None and stored.stands

    def finish(self, *, keeps_part: bool, has_failed: bool) -> bool:
        """
        Store how the answer ends, whatever has become of it, and return what ``Turn.write`` does.

        If it is not complete, what there is of the last text is stored if the caller *keeps_part*; unless the answer
        *has_failed*, it ends with that. Results that could not be stored are tried again. After an error, this can be
        called again.
        """
        with self._writing:
            return self._finish(keeps_part=keeps_part, has_failed=has_failed)

    def _finish(self, *, keeps_part: bool, has_failed: bool) -> bool:
        if self._has_unstored_result:
            self._save_result()
        if self.was_stored or self.pending or not (self.is_complete or (keeps_part and self._add_part())):
            return False
        try:
            return self._write_end(has_failed=has_failed)
        except LeaseLostError:
            if self._lease.fence is not None:
                raise
        self.take()  # another answer has begun since this one did; if it has ended, this one comes after it
        return self._write_end(has_failed=has_failed)

    def _write_end(self, *, has_failed: bool) -> bool:
        if self._lease.fence is None:
            self.turn.fence = self.turn.seen_fence
        with self.ledger.recorded_with(self.turn):
            if self.is_complete or not has_failed:
                return self.turn.write()
            self.turn.save()
        return False

    def _add_part(self) -> bool:
        """Add what there is of the model's text to the turn, once, marked as partial; return whether there is any."""
        if self._has_part or self._has_stored_calls or self._is_guarded:  # what no guard has seen is not stored
            return self._has_part
        if self.response is None:
            text, thinking = "".join(self._text), "".join(self._thinking)
            metadata: Mapping[str, Any] = {"latency_ms": self._elapsed_ms()}
        else:
            text, thinking = self.response.ai_message.text or "", self.response.ai_message.thinking or ""
            metadata = self._metadata(self.response)
        if text or thinking:
            self._add(AiMessage(text or None, thinking or None), {**metadata, "partial": True})
            self._has_part = True
        return self._has_part

    def _add(self, message: AiMessage, metadata: Mapping[str, Any]) -> None:
        name = None if self._steps else self._answer_id
        self.turn.add(NewMessage(message, metadata, name))
        self._steps += 1

    def _metadata(self, response: ChatResponse) -> dict[str, Any]:
        return {**response.metadata.as_json(), "latency_ms": self._latency_ms}

    def _elapsed_ms(self) -> int:
        return round((time.monotonic() - self._asked_at) * 1000)


def _apart(name: str, taken: Collection[str | None]) -> str:
    return f"{name}-{uuid4().hex[:8]}" if name in taken else name
