"""
Assistants: a chat model with a memory for each conversation, a system message, and tools.

An answer is a turn: it is stored when it is complete, or not at all.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, closing
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar, Unpack, overload

try:
    import docstring_parser  # noqa: F401
    import pydantic  # noqa: F401
except ImportError as exc:
    raise ImportError(
        "Assistants require pydantic and docstring-parser: pip install 'chatmemory_django[openai]'."
    ) from exc

from django.template import Context, Template
from django.utils.functional import Promise
from django.views.decorators.debug import sensitive_variables

from chatmemory_django import telemetry
from chatmemory_django.chat.answers.exchange import AssistantEvent, Exchange
from chatmemory_django.chat.answers.questions import Question, positioned, taken_ids
from chatmemory_django.chat.answers.returns import Text, Typed
from chatmemory_django.chat.answers.titles import TitleFunction, aentitle, entitle, first_words
from chatmemory_django.chat.approvals import ApprovalRequested, ApprovalRequiredError, Resume
from chatmemory_django.chat.approvals.resuming import Resumed, django_store, end_waiting
from chatmemory_django.chat.costs.ledger import Ledger
from chatmemory_django.chat.model import ChatEvent, ChatModel, ChatRequest, ModelTimeoutError
from chatmemory_django.chat.tools import (
    Tool,
    acall_tool,
    acalls_to_ask_for,
    call_tool,
    calls_to_ask_for,
    to_tools,
)
from chatmemory_django.db.private import aprivate, private
from chatmemory_django.db.threads import in_slow_thread, in_thread
from chatmemory_django.memory import ChatMemory
from chatmemory_django.memory.turns import Persist, Turn
from chatmemory_django.messages import UserMessage
from chatmemory_django.provider import get_chat_memory, refilling
from chatmemory_django.stores.django import DjangoChatMemoryStore

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.http import HttpRequest

_T = TypeVar("_T")

UserInput: TypeAlias = str | UserMessage | Resume | None
"""
The user's message; None to answer a message that is stored already, given as ``after``; or a ``Resume``, to go on with
an answer that waits for the approval of tool calls.
"""


class ChatOptions(TypedDict, total=False):
    """The options of a call to an assistant; see ``Assistant``."""

    owner: AbstractBaseUser | None
    request: HttpRequest | None
    client_message_id: str | None
    answer_id: str | None
    after: int | None
    persist: Persist
    keep_partial: bool | Callable[[], bool]


class Assistant:
    """
    Answer users' messages with *model*, and keep a memory for each conversation.

    The memory is configured by the setting ``MEMORY``, unless a class is given as *memory*; *memory_options* are passed
    to either. *system_message* is a text, a Django ``Template`` that is rendered with ``memory_id``, ``owner`` and
    ``request``, or a function of the memory id. *tools* are functions that the model can call. Each answer calls the
    model at most *max_rounds* times. *persist* is ``"late"`` to store question and answer together, or ``"early"`` to
    store the question first. An answer that takes more than *timeout* seconds is cancelled. A cancelled answer is not
    stored, unless *keep_partial* is true: then what there is of it is stored with ``"partial"`` in its metadata.
    *title* is a function of the question and the first answer of a conversation; it returns the conversation's title,
    and may be asynchronous. Without it, the title is the question's first words; with None, there is none. A
    conversation that has a title keeps it. *name* is the assistant's name in OpenTelemetry's spans.

    ``chat``, ``stream``, ``achat`` and ``astream`` take these options: *owner*, the user who owns the conversation,
    which no other user can access; *request*, which is passed to tools; *client_message_id*, which identifies the
    message: the same message sent again is answered, or answered again; an edited one replaces the earlier version.
    One without an answer that is not the newest message, or that the memory was cleared of, is asked once more at the
    end. *answer_id* is the client message id of the answer, unless another message has it; *after*, the message to
    continue from; and *persist* and *keep_partial* override the assistant's own. To regenerate an answer, pass None as
    the message, and the question's sequence as *after*.

    An answer ends early if it calls a ``Tool`` that needs an approval: it is stored as far as it has come, and goes on
    with a ``Resume`` as the message; with any other message, the calls count as denied. ``chat`` and ``achat`` then
    raise ``ApprovalRequiredError``, and the last events of ``stream`` and ``astream`` are ``ApprovalRequested``.

    Raises:
        ChatModelError: The model gave no answer; ``BudgetExceededError``: the owner's budget is used up.
        ApprovalRequiredError: The answer waits for approvals, see above.
        NotPendingError: There is nothing to resume: the calls were decided, have expired, or are gone.
        PermissionDenied: The conversation belongs to another user.
        MessageNotFoundError: The history has no message *after*, or the message *client_message_id* was removed.

    """

    def __init__(
        self,
        model: ChatModel,
        *,
        memory: Callable[..., ChatMemory] | None = None,
        memory_options: Mapping[str, Any] | None = None,
        system_message: str | Template | Callable[[Any], str | None] | None = None,
        tools: Sequence[Callable[..., Any] | Tool] = (),
        max_rounds: int = 8,
        persist: Persist = "late",
        timeout: float | None = None,
        keep_partial: bool = False,
        title: TitleFunction | None = first_words,
        name: str | None = None,
    ) -> None:
        if type(max_rounds) is not int or max_rounds < 1:
            raise ValueError(f"max_rounds must be a whole number above 0, not {max_rounds!r}.")
        if memory is not None and not callable(memory):
            raise TypeError(
                f"memory must be a class of memory, or a function that returns one, not {memory!r}; a dotted path "
                "belongs in the setting MEMORY."
            )
        self.model = model
        self.memory = memory
        self.memory_options = dict(memory_options or {})
        self.system_message = system_message
        self.tools = to_tools(tools)
        self.max_rounds = max_rounds
        self.persist: Persist = persist
        self.timeout = timeout
        self.keep_partial = keep_partial
        self.title = title
        self.name = name

    def chat_memory(self, memory_id: object, owner: AbstractBaseUser | None = None) -> ChatMemory:
        """Return the memory of a conversation."""
        if self.memory is None:
            return get_chat_memory(memory_id, owner=owner, **self.memory_options)
        options = {"id": memory_id, "store": DjangoChatMemoryStore(owner=owner), **self.memory_options}
        return refilling(self.memory(**options))  # not passed: a function may not know the option

    @overload
    def chat(self, memory_id: object, message: UserInput, **options: Unpack[ChatOptions]) -> str: ...
    @overload
    def chat(
        self, memory_id: object, message: UserInput, *, returns: type[_T], **options: Unpack[ChatOptions]
    ) -> _T: ...
    @sensitive_variables()
    def chat(self, memory_id: object, message: UserInput, *, returns: Any = str, **options: Unpack[ChatOptions]) -> Any:
        """
        Return the answer: its text or, if *returns* is another type that pydantic supports, a value of that type.

        If the model's answer does not have that type, ``InvalidAnswerError`` is raised and nothing is stored.
        """
        answer = Text() if returns is str else Typed(returns)

        def ask(request: ChatRequest) -> Generator[ChatEvent, None, None]:
            yield self.model.chat(request)

        with telemetry.invoke_agent(self):
            events = private(self._stream(ask, memory_id, message, options, answer))
            pending = [event for event in events if isinstance(event, ApprovalRequested)]
        if pending:
            raise ApprovalRequiredError(pending)
        return answer.value

    @overload
    async def achat(self, memory_id: object, message: UserInput, **options: Unpack[ChatOptions]) -> str: ...
    @overload
    async def achat(
        self, memory_id: object, message: UserInput, *, returns: type[_T], **options: Unpack[ChatOptions]
    ) -> _T: ...
    @sensitive_variables()
    async def achat(
        self, memory_id: object, message: UserInput, *, returns: Any = str, **options: Unpack[ChatOptions]
    ) -> Any:
        """Return what ``chat`` returns."""
        answer = Text() if returns is str else Typed(returns)

        async def ask(request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
            yield await self.model.achat(request)

        with telemetry.invoke_agent(self):
            events = aprivate(self._astream(ask, memory_id, message, options, answer))
            pending = [event async for event in events if isinstance(event, ApprovalRequested)]
        if pending:
            raise ApprovalRequiredError(pending)
        return answer.value

    def stream(
        self, memory_id: object, message: UserInput, **options: Unpack[ChatOptions]
    ) -> Generator[AssistantEvent, None, None]:
        """Yield the answer as it is generated. It is stored at the end; closing the generator cancels it."""
        events = private(self._stream(self.model.stream, memory_id, message, options, Text()))
        return telemetry.traced(events, self)

    def astream(
        self, memory_id: object, message: UserInput, **options: Unpack[ChatOptions]
    ) -> AsyncGenerator[AssistantEvent, None]:
        """Yield what ``stream`` yields."""
        events = aprivate(self._astream(self.model.astream, memory_id, message, options, Text()))
        return telemetry.atraced(events, self)

    def _stream(
        self,
        ask: Callable[[ChatRequest], Generator[ChatEvent, None, None]],
        memory_id: object,
        message: UserInput,
        options: ChatOptions,
        answer: Text,
    ) -> Generator[AssistantEvent, None, None]:
        deadline = _Deadline(self.timeout)
        context = self._context(memory_id, options)
        exchange = self.begin(memory_id, message, options, answer)
        if not isinstance(self.system_message, str | None):
            exchange.open(self._system_text(context))
        with exchange.ledger:
            try:
                if exchange.resumed is not None:
                    approved = [call_tool(self.tools, call, context) for call in exchange.resumed.calls]
                    yield from exchange.settle(exchange.resumed, approved)
                while (request := exchange.next_request()) is not None:
                    with exchange.ledger.call(), closing(ask(request)) as events:
                        for event in events:
                            deadline.check()
                            exchange.note(event)
                            yield event
                    exchange.hold(calls_to_ask_for(self.tools, exchange.calls, context))
                    for call in exchange.runnable:
                        exchange.results.append(call_tool(self.tools, call, context))
                        deadline.check()
                        yield exchange.results[-1]
            except BaseException:
                if self._keeps_part(options) and exchange.add_part():
                    exchange.end()
                raise
            if not exchange.pending:
                answer.read(exchange.response)
            exchange.end()
        yield from exchange.pending
        if exchange.first and self.title:
            entitle(exchange.memory, *exchange.first, self.title)

    async def _astream(
        self,
        ask: Callable[[ChatRequest], AsyncGenerator[ChatEvent, None]],
        memory_id: object,
        message: UserInput,
        options: ChatOptions,
        answer: Text,
    ) -> AsyncGenerator[AssistantEvent, None]:
        exchange = await in_thread(self.begin, memory_id, message, options, answer)
        async with exchange.ledger:
            try:
                async with aclosing(self.events(exchange, ask, memory_id, options)) as events:
                    async for event in events:
                        yield event
            except BaseException:
                if self._keeps_part(options) and exchange.add_part():
                    await exchange.aend()
                raise
            if not exchange.pending:
                answer.read(exchange.response)
            await exchange.aend()
        for request in exchange.pending:
            yield request
        if exchange.first and self.title:
            await aentitle(exchange.memory, *exchange.first, self.title)

    async def events(
        self,
        exchange: Exchange,
        ask: Callable[[ChatRequest], AsyncGenerator[ChatEvent, None]],
        memory_id: object,
        options: ChatOptions,
    ) -> AsyncGenerator[AssistantEvent, None]:
        """
        Yield the events of *exchange*, which ``begin`` has returned, without the approvals that are ``pending`` then.

        The caller stores what it ends with.
        """
        deadline = _Deadline(self.timeout)
        context = self._context(memory_id, options)
        if not isinstance(self.system_message, str | None):
            system = await deadline.of(in_slow_thread(self._system_text, context))
            await in_thread(exchange.open, system)
        if exchange.resumed is not None:
            approved = asyncio.gather(*(acall_tool(self.tools, call, context) for call in exchange.resumed.calls))
            for result in await in_thread(exchange.settle, exchange.resumed, await deadline.of(approved)):
                yield result
        while (request := await exchange.anext_request()) is not None:
            with exchange.ledger.call():
                async with aclosing(ask(request)) as events:
                    while (event := await deadline.of(anext(events, None))) is not None:
                        exchange.note(event)
                        yield event
            exchange.hold(await deadline.of(acalls_to_ask_for(self.tools, exchange.calls, context)))
            results = asyncio.gather(*(acall_tool(self.tools, call, context) for call in exchange.runnable))
            exchange.results += await deadline.of(results)
            for result in exchange.results:
                yield result

    def begin(self, memory_id: object, message: UserInput, options: ChatOptions, answer: Text) -> Exchange:
        """
        Return the exchange, before the model or any function of the site is called.

        It is open unless the system message has to be made. It is all one step: an async caller then switches threads
        only once.
        """
        memory = self.chat_memory(memory_id, options.get("owner"))
        telemetry.identify(memory.id, options.get("owner"))
        if any(tool.needs_approval for tool in self.tools.values()):
            django_store(memory)
        ledger = Ledger(self.model, memory, options.get("owner"))
        if isinstance(message, Resume):
            ledger.check()
            resumed = Resumed(memory, message)
            return self._exchange(memory, memory.turn(), Question(None), ledger, answer, None, resumed)
        asked = UserMessage(message) if isinstance(message, str) else message
        question = Question(asked, options.get("after"), options.get("client_message_id"))
        if asked is None and question.after is None:
            raise ValueError("message and after are both None; give a message, or the message to answer as after.")
        ledger.check()
        persist = options.get("persist", self.persist)
        answer_id = options.get("answer_id")
        taken = taken_ids(memory, question.client_message_id, answer_id)
        if question.after is None and (question.client_message_id or persist == "early"):
            question = positioned(question, memory, is_known=question.client_message_id in taken)
        turn = memory.turn(persist, after=question.after).begin()
        if question.after is None and end_waiting(memory, turn):
            turn = memory.turn(persist).begin()
        free_id = None if answer_id in {question.client_message_id, *taken} else answer_id
        exchange = self._exchange(memory, turn, question, ledger, answer, free_id)
        if isinstance(self.system_message, str | None):
            exchange.open(self.system_message)
        return exchange

    def _exchange(
        self,
        memory: ChatMemory,
        turn: Turn,
        question: Question,
        ledger: Ledger,
        answer: Text,
        answer_id: str | None,
        resumed: Resumed | None = None,
    ) -> Exchange:
        return Exchange(
            memory,
            turn,
            question,
            ledger,
            tools=[tool.specification for tool in self.tools.values()],
            max_rounds=self.max_rounds,
            answer_id=answer_id,
            response_format=answer.response_format,
            resumed=resumed,
        )

    def _context(self, memory_id: object, options: ChatOptions) -> Mapping[str, Any]:
        """Return the values for tools and templates."""
        return {"memory_id": memory_id, "owner": options.get("owner"), "request": options.get("request")}

    def _system_text(self, context: Mapping[str, Any]) -> str | None:
        if isinstance(self.system_message, Template):
            return self.system_message.render(Context(context, autoescape=False))
        system = self.system_message(context["memory_id"]) if callable(self.system_message) else self.system_message
        return str(system) if isinstance(system, Promise) else system

    def _keeps_part(self, options: ChatOptions) -> bool:
        keeps = options.get("keep_partial", self.keep_partial)
        return keeps() if callable(keeps) else keeps


class _Deadline:
    """A deadline in *seconds* from now, or none if that is None."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._end = math.inf if seconds is None else time.monotonic() + seconds

    def check(self) -> None:
        """Raise ``ModelTimeoutError`` if the deadline has passed."""
        if time.monotonic() > self._end:
            raise ModelTimeoutError(f"The answer took more than {self._seconds} seconds.")

    async def of(self, awaitable: Awaitable[_T]) -> _T:
        """Return the result of *awaitable*; raise ``ModelTimeoutError`` if the deadline passes first."""
        left = None if self._seconds is None else self._end - time.monotonic()
        try:
            async with asyncio.timeout(left):
                return await awaitable
        except TimeoutError:
            self.check()
            raise
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RuntimeError("A CancelledError escaped from a model, although no one cancelled the answer.") from exc
