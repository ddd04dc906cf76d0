"""
Assistants: a chat model with a memory for each conversation, a system message, and tools.

What happens in an answer is stored as it happens: calls before they run, results as they come, the text at the end. See
docs/answers.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from datetime import tzinfo
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, TypedDict, TypeVar, Unpack, cast, overload
from uuid import uuid4

try:
    import docstring_parser  # noqa: F401
    import pydantic  # noqa: F401
except ImportError as exc:
    raise ImportError(
        "Assistants require pydantic and docstring-parser: pip install 'chatmemory_django[openai]'."
    ) from exc

from django.template import Context, Template
from django.utils.functional import Promise
from django.utils.timezone import get_default_timezone
from msgspec.structs import replace

from chatmemory_django import observing
from chatmemory_django.chat.answers.beginning import Beginning
from chatmemory_django.chat.answers.context import Checked, ContextFunction, checked, labels_function
from chatmemory_django.chat.answers.days import check_dates
from chatmemory_django.chat.answers.exchange import AssistantEvent, Exchange
from chatmemory_django.chat.answers.guarded import MAX_HELD, Guards
from chatmemory_django.chat.answers.observed import aobserved, observed
from chatmemory_django.chat.answers.questions import Question
from chatmemory_django.chat.answers.returns import Text, Typed
from chatmemory_django.chat.answers.sent import specification_tokens
from chatmemory_django.chat.answers.shown import Shown
from chatmemory_django.chat.answers.titles import TitleFunction, first_words
from chatmemory_django.chat.answers.ways import InEventLoop, InThisThread, Way, in_this_thread
from chatmemory_django.chat.approvals import ApprovalRequested, ApprovalRequiredError, Resume
from chatmemory_django.chat.approvals.approving import May, may_decide
from chatmemory_django.chat.approvals.resuming import Resumed, check_resume, django_store
from chatmemory_django.chat.costs.labels import MAX_LABEL_LENGTH, checked_labels
from chatmemory_django.chat.costs.ledger import Ledger
from chatmemory_django.chat.guards import Guard, GuardFunction, GuardRefusedError, Retry
from chatmemory_django.chat.model import (
    BrokenStreamError,
    ChatEvent,
    ChatModel,
    ChatRequest,
    ChatResponse,
    InvalidRequestError,
    TokenUsage,
)
from chatmemory_django.chat.outgoing import with_changes
from chatmemory_django.chat.responses import AnswerResponse, Protocol
from chatmemory_django.chat.runs.leases import Lease, State
from chatmemory_django.chat.started import StartedRun, StartOptions, start
from chatmemory_django.chat.tools import Tool, Tools, calls_to_ask_for, client_tool, to_tools
from chatmemory_django.chat.ui_messages.writing import answer_text
from chatmemory_django.chat.wishes import NONE, Wishes
from chatmemory_django.core.reasons import Explained
from chatmemory_django.core.windows import Window
from chatmemory_django.db.threads import in_thread
from chatmemory_django.memory import ChatMemory
from chatmemory_django.memory.turns import Persist
from chatmemory_django.messages import ChatMessage, ToolExecutionResultMessage, UserMessage
from chatmemory_django.private import private
from chatmemory_django.provider import get_chat_memory, refilling
from chatmemory_django.stores import InMemoryChatMemoryStore
from chatmemory_django.stores.django import DjangoChatMemoryStore

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser
    from django.http import HttpRequest

_T = TypeVar("_T")

UserInput: TypeAlias = str | UserMessage | Resume | None
"""
The user's message; None to answer a message that is stored already, given as ``after``; or a ``Resume``, to go on with
an answer that waits for the approval, or for the output, of tool calls.
"""


class ResponseOptions(TypedDict, total=False):
    """The options of ``Assistant.response``; see ``Assistant``."""

    owner: AbstractBaseUser | None
    client_message_id: str | None
    answer_id: str | None
    after: int | None
    persist: Persist
    keep_partial: bool | Callable[[], bool]
    labels: Mapping[str, str]


class ChatOptions(ResponseOptions, total=False):
    """The options of a call to an assistant; see ``Assistant``."""

    request: HttpRequest | None


class ClientsHistory(NamedTuple):
    """What a client sends along with a question, of a conversation that is stored nowhere here."""

    earlier: Sequence[ChatMessage]
    answered: Sequence[ChatMessage] = ()
    """What there is of the answer to the question already: calls, and their results."""


class Assistant:
    """
    Answer users' messages with *model*, and keep a memory for each conversation.

    The memory is configured by the setting ``MEMORY``, unless a class is given as *memory*; *memory_options* are passed
    to either. *system_message* is a text, a Django ``Template`` that is rendered with ``memory_id``, ``owner`` and
    ``request``, or a function with any of the parameters ``memory_id``, ``owner``, ``request`` and ``question``.
    *context* is a function with such parameters, or several: what they return is sent in front of the question, and
    never stored. *tools* are functions that the model can call, or a function with such parameters that returns those
    for an answer, when it begins and when it goes on. Each answer calls the model at most *max_rounds* times.
    The model is sent at most *max_result_tokens* of each result: by default a quarter of a window of tokens, and all of
    it in a window of messages; the row has all of it.

    A call is stored before it runs, and its result when it ends; both stay, however the answer ends. *persist* is
    ``"early"`` to store the question first, or ``"late"`` to store it with the first calls or, if there are none, with
    the answer. An answer that takes more than *timeout* seconds is cancelled. Text that was not complete then is not
    stored, unless *keep_partial* is true: then it is stored with ``"partial"`` in its metadata.

    *title* is a function of the question and the first answer of a conversation; it returns the conversation's title,
    and may be asynchronous. Without it, the title is the question's first words; with None, there is none. A
    conversation that has a title keeps it. *name* is the assistant's name in OpenTelemetry's spans.

    *labels* are stored with each call of a model for an answer, to sum them up by; they are texts by their names, or a
    function that returns them, with any of the parameters ``memory_id``, ``owner`` and ``request``. The label
    ``assistant`` is by default the name in the settings, for an answer over HTTP, or *name*. *reserves* is what a call
    of the model uses at most, for budgets: by default as many tokens as the memory's window has, or 8,000 in a window
    of messages, and 4,000 of output.

    *input_guards* see each question before anything is stored of it, *output_guards* each response of the model before
    anything of it is shown or stored; see ``chat.guards``.

    With *dates*, the model is sent on which day each message of a user was written: one line in front of the first
    message of a day, which is not stored. Days begin in the site's ``TIME_ZONE`` or, if *dates* is a time zone, there.

    ``chat``, ``stream``, ``achat`` and ``astream`` take these options: *owner*, the user who owns the conversation,
    which no other user can access; *request*, which is passed to tools and functions; *client_message_id*, which
    identifies the message: the same one sent again has the stored answer if that has ended, and goes on from the last
    stored result if not, so that no call runs twice; an edited one replaces the earlier version. One without an answer
    that is not the newest message, or that the memory was cleared of, is asked once more at the end. *answer_id* is the
    client message id of the answer, unless another message has it; *after*, the message to continue from; *labels* are
    added to the assistant's own, and *persist* and *keep_partial* override them. To regenerate an answer, pass None as
    the message, and the question's sequence as *after*; one that has not ended goes on.

    An answer ends early if it calls a ``Tool`` that needs an approval, or that runs in the client: it is stored as far
    as it has come, and goes on with a ``Resume`` as the message; with any other message, the calls that the owner may
    approve count as denied, and those of the client as given up.
    ``chat`` and ``achat`` then raise ``ApprovalRequiredError``, and the last events of ``stream`` and ``astream`` are
    ``ApprovalRequested``.

    Raises:
        ChatModelError: The model gave no answer; ``BudgetExceededError``: a budget is used up;
            ``InvalidRequestError``: the model's server has rejected the question, which later requests leave out.
        GuardRefusedError: A guard has refused the question, of which nothing is stored, or the answer.
        QuestionTooLongError: The question does not fit in the memory's window; nothing is stored.
        UnsupportedFileError: The model does not take a file of the question; nothing is stored.
        AnswerTooLongError: What tools have returned does not fit, even shortened; what is stored stays.
        BusyError: Another answer is in progress in the conversation; it may have begun while the model was asked.
        HandedOverError: A person answers in the conversation, or is waited for; the question is stored.
        ApprovalRequiredError: The answer waits for approvals or outputs, see above.
        NotPendingError: There is nothing to resume: the calls were decided or have results, have expired, or are gone.
        PermissionDenied: The conversation belongs to another user.
        MessageNotFoundError: The history has no message *after*, or the message *client_message_id* was removed.

    """

    def __init__(
        self,
        model: ChatModel,
        *,
        memory: Callable[..., ChatMemory] | None = None,
        memory_options: Mapping[str, Any] | None = None,
        system_message: str | Template | ContextFunction | None = None,
        context: ContextFunction | Sequence[ContextFunction] = (),
        tools: Tools | Callable[..., Tools | Awaitable[Tools]] = (),
        max_rounds: int = 8,
        max_result_tokens: int | None = None,
        persist: Persist = "late",
        timeout: float | None = None,
        keep_partial: bool = False,
        title: TitleFunction | None = first_words,
        name: str | None = None,
        labels: Mapping[str, str] | Callable[..., Mapping[str, str]] | None = None,
        reserves: TokenUsage | None = None,
        dates: bool | tzinfo = False,
        input_guards: Sequence[Guard | GuardFunction] = (),
        output_guards: Sequence[Guard | GuardFunction] = (),
    ) -> None:
        for name_of, number in (("max_rounds", max_rounds), ("max_result_tokens", max_result_tokens)):
            if (type(number) is not int or number < 1) and not (number is None and name_of != "max_rounds"):
                raise ValueError(f"{name_of} must be a whole number above 0, not {number!r}.")
        if memory is not None and not callable(memory):
            raise TypeError(
                f"memory must be a class of memory, or a function that returns one, not {memory!r}; a dotted path "
                "belongs in the setting MEMORY."
            )
        tokens = (0,) if reserves is None else (reserves.input, reserves.output)
        if any(type(each) is not int or not 0 <= each < 2**31 for each in tokens if each is not None):
            raise ValueError(f"reserves must have whole numbers of tokens, of at least 0, not {reserves!r}.")
        if not isinstance(dates, bool | tzinfo):
            raise TypeError(f"dates must be True, False or a time zone, like ZoneInfo('Europe/Berlin'), not {dates!r}.")
        self.model = model
        self.memory = memory
        self.memory_options = dict(memory_options or {})
        self.system_message = system_message
        self._system = _texts(system_message)
        self._text = system_message if isinstance(system_message, str) else None
        functions = context if isinstance(context, Sequence) else [context]
        self._context = [checked(each, "context") for each in functions]
        self._tools_of = Checked(tools, "tools") if callable(tools) else None
        self.tools = {} if callable(tools) else to_tools(tools)
        """The tools by name; none if a function returns those for each answer."""
        self._specifications = [tool.specification for tool in self.tools.values()]
        self._counts: dict[str, int] = {}
        self.max_rounds = max_rounds
        self.max_result_tokens = max_result_tokens
        self.persist: Persist = persist
        self.timeout = timeout
        self.keep_partial = keep_partial
        self.title = title
        self.name = name
        self._own_labels = labels_function(labels) if callable(labels) else checked_labels(labels or {})
        self.reserves = reserves
        self.dates = dates
        self._input_guards = Guards(input_guards, "input_guards")
        self._output_guards = Guards(output_guards, "output_guards", "answer")
        made = [*self._system, *self._context, *([] if self._tools_of is None else [self._tools_of])]
        self._has_to_make = bool(made)
        self._wishes, self._remembered = NONE, cast("ClientsHistory | None", None)
        self.functions = [*made, *self._output_guards.functions]
        """The functions of the site that whichever process calls that answers, beside the tools."""

    def chat_memory(self, memory_id: object, owner: AbstractBaseUser | None = None) -> ChatMemory:
        """Return the memory of a conversation."""
        if self.memory is None:
            memory = get_chat_memory(memory_id, owner=owner, **self.memory_options)
        else:
            options = {"id": memory_id, "store": DjangoChatMemoryStore(owner=owner), **self.memory_options}
            memory = refilling(self.memory(**options))  # not passed: a function may not know the option
        if self._remembered is not None:  # the window is the same, and only here
            memory.store = InMemoryChatMemoryStore()
            memory.store.update_messages(memory_id, self._remembered.earlier)
        return memory

    def wished(self, wishes: Wishes, remembered: ClientsHistory | None = None) -> Self:
        """
        Return this assistant for one answer, with what a client *wishes* for it.

        With what its client has *remembered*, it has no other memory: nothing is stored. Tools of the site that would
        wait for somebody are left out then, and an answer ends with the first calls of the client's.
        """
        other = copy(self)
        other._wishes, other._remembered = wishes, remembered
        if remembered is not None:
            other.title = None
        if wishes.context:
            other._context = [*self._context, checked(lambda: wishes.context, "context")]
            other._has_to_make = True
        other.tools = other._with_clients(self.tools)
        other._specifications = [tool.specification for tool in other.tools.values()]
        other._counts = {}
        return other

    def _with_clients(self, tools: dict[str, Tool]) -> dict[str, Tool]:
        """Return *tools* of this assistant, and those that the client wishes, of which the names are free."""
        clients = {each.name: client_tool(each) for each in self._wishes.tools}
        if self._remembered is not None:
            tools = {name: tool for name, tool in tools.items() if not tool.may_wait}
        return {**clients, **tools}

    def start(
        self, memory_id: object, message: str | UserMessage | None, **options: Unpack[StartOptions]
    ) -> StartedRun:
        """
        Begin an answer in the background, and return its run, which can be awaited, watched and stopped.

        It is generated in this process, or in a worker if the setting ``RUNS`` is ``"worker"``. The assistant has to be
        one of the settings'. The question is stored when this returns, in a transaction of its own. *owner*,
        *client_message_id* and *after* are those of ``chat``; *request* is only that by which ``THREAD_CONTEXT`` knows
        the tenant, and what functions get in this process.

        Raises:
            BusyError: Another answer is in progress in the conversation.
            TooManyError: The owner has ``MAX_ANSWERS`` in progress.
            ImproperlyConfigured: The settings do not name the assistant.
            TransactionManagementError: A transaction is in progress: see ``transaction.on_commit``.

        What ``chat`` raises before it asks the model is raised, too.

        """
        return start(self, memory_id, message, options).result()

    async def astart(
        self, memory_id: object, message: str | UserMessage | None, **options: Unpack[StartOptions]
    ) -> StartedRun:
        """See ``start``."""
        return await asyncio.wrap_future(await in_thread(start, self, memory_id, message, options))

    def explain(self, memory_id: object, *, owner: AbstractBaseUser | None = None, count: int = 50) -> list[Explained]:
        """
        Return what ``ChatMemory.explain`` returns, with the ``changes`` that make each message fit for the vendor.

        They are those of the next question, a text. Each is a ``chat.outgoing.Change``. Tools that a function returns
        are not known, and do not count.
        """
        memory = self.chat_memory(memory_id, owner)
        memory.reserved_tokens = self._reserved_tokens(memory.window())
        return with_changes(memory.explain(count), self.model.rules)

    async def aexplain(
        self, memory_id: object, *, owner: AbstractBaseUser | None = None, count: int = 50
    ) -> list[Explained]:
        """See ``explain``."""
        return await in_thread(self.explain, memory_id, owner=owner, count=count)

    @overload
    def chat(self, memory_id: object, message: UserInput, **options: Unpack[ChatOptions]) -> str: ...
    @overload
    def chat(
        self, memory_id: object, message: UserInput, *, returns: type[_T], **options: Unpack[ChatOptions]
    ) -> _T: ...
    @private
    def chat(self, memory_id: object, message: UserInput, *, returns: Any = str, **options: Unpack[ChatOptions]) -> Any:
        """
        Return the answer: its text or, if *returns* is another type that pydantic supports, a value of that type.

        If the model's answer does not have that type, ``InvalidAnswerError`` is raised, and it is not stored.
        """
        answer = Text() if returns is str else Typed(returns)

        def ask(request: ChatRequest) -> Generator[ChatEvent, None, None]:
            yield self.model.chat(request)

        with observing.Operation("answer", assistant=self):
            events = self._stream(ask, memory_id, message, options, answer)
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
    @private
    async def achat(
        self, memory_id: object, message: UserInput, *, returns: Any = str, **options: Unpack[ChatOptions]
    ) -> Any:
        """Return what ``chat`` returns."""
        answer = Text() if returns is str else Typed(returns)

        async def ask(request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
            yield await self.model.achat(request)

        with observing.Operation("answer", assistant=self):
            events = self._astream(ask, memory_id, message, options, answer)
            pending = [event async for event in events if isinstance(event, ApprovalRequested)]
        if pending:
            raise ApprovalRequiredError(pending)
        return answer.value

    def stream(
        self, memory_id: object, message: UserInput, **options: Unpack[ChatOptions]
    ) -> Generator[AssistantEvent, None, None]:
        """Yield the answer as it is generated. Its text is stored at the end; closing the generator cancels it."""
        return observed(self._stream(self.model.stream, memory_id, message, options, Text()), self)

    def astream(
        self, memory_id: object, message: UserInput, **options: Unpack[ChatOptions]
    ) -> AsyncGenerator[AssistantEvent, None]:
        """Yield what ``stream`` yields."""
        return aobserved(self._astream(self.model.astream, memory_id, message, options, Text()), self)

    def response(
        self,
        request: HttpRequest,
        memory_id: object,
        message: str | UserMessage,
        *,
        protocol: Protocol | None = None,
        **options: Unpack[ResponseOptions],
    ) -> AnswerResponse:
        """
        Return the answer as the response of a view: a stream under ASGI and WSGI, also with ``ATOMIC_REQUESTS``.

        It is plain text unless *protocol* is ``"sse"`` or ``"ui"``; without one, server-sent events if the request
        prefers them. The assistant is asked after the view has returned, as Django renders a ``TemplateResponse``; so
        the status is that of an error before the first piece: 401 without a user, who becomes the *owner* unless one is
        given; 404 for the conversation of another user; and otherwise as in the chat over HTTP. A later error ends the
        stream. The check of the CSRF token is Django's middleware's.
        """
        return self._response(request, request.user, memory_id, message, protocol, options)

    async def aresponse(
        self,
        request: HttpRequest,
        memory_id: object,
        message: str | UserMessage,
        *,
        protocol: Protocol | None = None,
        **options: Unpack[ResponseOptions],
    ) -> AnswerResponse:
        """Return what ``response`` returns, for an asynchronous view: the answer has begun by then."""
        user = await request.auser()
        response: AnswerResponse = await self._response(request, user, memory_id, message, protocol, options).arender()
        return response

    def _response(
        self,
        request: HttpRequest,
        user: AbstractBaseUser | AnonymousUser,
        memory_id: object,
        message: str | UserMessage,
        protocol: Protocol | None,
        options: ResponseOptions,
    ) -> AnswerResponse:
        own: ChatOptions = {"owner": cast("AbstractBaseUser", user), "request": request, **options}
        answer_id = own.get("answer_id") or uuid4().hex
        if protocol == "ui":
            own["answer_id"] = answer_id  # that of the message in the page
        return AnswerResponse(
            request,
            partial(self.stream, memory_id, message, **own),
            partial(self.astream, memory_id, message, **own),
            memory_id=memory_id,
            question=UserMessage(message) if isinstance(message, str) else message,
            answer_id=answer_id,
            protocol=protocol,
            is_allowed="owner" in options or user.is_authenticated,
            is_others=lambda asked: not may_decide(own.get("owner"), asked.approve_by),
        )

    @private
    def _stream(
        self,
        ask: Callable[[ChatRequest], Generator[ChatEvent, None, None]],
        memory_id: object,
        message: UserInput,
        options: ChatOptions,
        answer: Text,
    ) -> Generator[AssistantEvent, None, None]:
        way, lease = InThisThread(ask, self.timeout), Lease(request=options.get("request"))
        exchange = self.begin(memory_id, message, options, answer, lease)
        yield from in_this_thread(self._answered(exchange, way, lease, memory_id, options, answer))

    @private
    async def _astream(
        self,
        ask: Callable[[ChatRequest], AsyncGenerator[ChatEvent, None]],
        memory_id: object,
        message: UserInput,
        options: ChatOptions,
        answer: Text,
    ) -> AsyncGenerator[AssistantEvent, None]:
        way, lease = InEventLoop(ask, self.timeout), Lease(request=options.get("request"))
        try:
            exchange = await way.stored(self.begin, memory_id, message, options, answer, lease)
        except asyncio.CancelledError:  # by then, the conversation is taken, and nobody else would give it up
            await way.stored(lease.end, State.STOPPED, None)
            raise
        async with aclosing(self._answered(exchange, way, lease, memory_id, options, answer)) as events:
            async for event in events:
                yield event

    async def _answered(
        self, exchange: Exchange, way: Way, lease: Lease, memory_id: object, options: ChatOptions, answer: Text
    ) -> AsyncGenerator[AssistantEvent, None]:
        """Yield the events of *exchange*, and store how it ends."""
        state = State.DONE
        try:
            async with aclosing(self.events(exchange, way, memory_id, options)) as events:
                async for event in events:
                    yield event
            if not exchange.pending:
                answer.read(exchange.response)
            if self._remembered is None:
                await way.end(exchange)
            state = State.WAITING if exchange.pending else state
        except BaseException as exc:
            state = State.FAILED if isinstance(exc, Exception) else State.STOPPED
            if not exchange.is_complete:
                keeps_part = self._keeps_part(options)
                await way.stored(exchange.finish, keeps_part=keeps_part, has_failed=isinstance(exc, Exception))
            raise
        finally:
            if exchange.ledger.has_new:
                await way.stored(exchange.ledger.write)
            if lease.has_to_end:
                await way.stored(lease.end, state, exchange.turn.question)
        for request in exchange.pending:
            yield request
        if self.title and not (exchange.was_stored or exchange.pending):
            await way.entitle(exchange, self.title)

    async def events(
        self, exchange: Exchange, way: Way, memory_id: object, options: ChatOptions
    ) -> AsyncGenerator[AssistantEvent, None]:
        """
        Yield the events of *exchange*, which ``begin`` has returned, without the approvals that are ``pending`` then.

        Calls of tools are stored before they run, and each result when it ends. The caller stores what it ends with.
        """
        values, tools = self._values(memory_id, options), self.tools
        for event in exchange.again():
            yield event
        if exchange.is_complete:
            return
        if not exchange.is_open:
            try:
                tools = await self._opened(exchange, way, {**values, "question": exchange.asked})
            except BaseException:
                if exchange.resumed is not None:  # what was approved has not run, and can still
                    await way.stored(exchange.resumed.release)
                raise
        may_wait, is_stored = _may_wait(tools), self._remembered is None
        if exchange.resumed is not None:
            async with aclosing(self._decided(exchange, exchange.resumed, way, tools, values)) as results:
                async for result in results:
                    await way.stored(exchange.store_result, result)
                    yield result
        while (request := await self._next(exchange, way)) is not None:
            try:
                with exchange.ledger.call(request):
                    async with aclosing(way.asked(request)) as events:
                        async for event in events:
                            event = exchange.noted(event)
                            if may_wait and is_stored and isinstance(event, ChatResponse) and exchange.calls:
                                event = await way.stored(exchange.named_apart, event)
                            if not self._output_guards:
                                yield event
                            elif exchange.hold_back(event) > MAX_HELD:
                                break
                    # A model of the site has ended without; asked again, it might never end.
                    if exchange.response is None and exchange.held_back <= MAX_HELD:
                        raise BrokenStreamError("The model has ended without a ChatResponse.")
                if self._output_guards and not await self._guarded(exchange, way, values):
                    continue
            except InvalidRequestError as exc:
                await way.stored(exchange.reject, exc)
                raise
            for event in exchange.let_go():
                yield event
            if not exchange.calls:
                continue
            if may_wait:
                waits = exchange.hold(await way.called(calls_to_ask_for, tools, exchange.calls, values))
                if waits and not is_stored:  # the client sends the calls along when it goes on
                    continue
            await way.stored(exchange.store_calls)
            async with aclosing(way.results(exchange, tools, exchange.runnable, values)) as results:
                async for result in results:
                    await way.stored(exchange.store_result, result)
                    yield result

    async def _opened(self, exchange: Exchange, way: Way, asked: Mapping[str, Any]) -> dict[str, Tool]:
        """Open *exchange* with what the functions of the site make of what is *asked*, and return the tools."""
        tools = self.tools
        system = await way.text(self._system, asked) if self._system else self._text
        context = await way.text(self._context, asked) if self._context else None
        if self._tools_of is not None:
            tools = self._as_tools(await way.value(self._tools_of, asked))
            await way.stored(self._equip, exchange, tools)
        await way.stored(exchange.open, system, context)
        return tools

    async def _guarded(self, exchange: Exchange, way: Way, values: Mapping[str, Any]) -> bool:
        """Return whether the response is let pass, as the guards have left it; if not, the model is asked once more."""
        response = exchange.response
        if response is None:
            raise GuardRefusedError(f"An answer of more than {MAX_HELD} characters is not held back for guards.")
        message = response.ai_message
        if (text := answer_text(message)) != (message.text or ""):  # a refusal is shown like a text
            message = replace(message, text=text)
        if not (message.text or message.thinking):
            return True
        guarded = await way.called(self._output_guards.answer, message, {**values, "question": exchange.asked})
        if not isinstance(guarded, Retry):
            exchange.let_pass(response.ai_message if guarded is message else guarded)
            return True
        if not exchange.retry(guarded.note):
            raise GuardRefusedError("The guards wanted another answer more often than the model is asked.")
        return False

    async def _decided(
        self,
        exchange: Exchange,
        resumed: Resumed,
        way: Way,
        tools: Mapping[str, Tool],
        values: Mapping[str, Any],
    ) -> AsyncGenerator[ToolExecutionResultMessage, None]:
        """Yield the results of the calls that were decided, which the caller stores."""
        is_going_on = True
        while is_going_on:
            for result in resumed.ended:
                yield result
            async with aclosing(way.results(exchange, tools, resumed.calls, values)) as results:
                async for result in results:
                    yield result
            is_going_on = await way.stored(exchange.settle, resumed)

    async def _next(self, exchange: Exchange, way: Way) -> ChatRequest | None:
        takes_time = exchange.ledger.takes_time
        return await way.stored(exchange.next_request) if takes_time else exchange.next_request()

    def begin(
        self,
        memory_id: object,
        message: UserInput | Question,
        options: ChatOptions,
        answer: Text,
        lease: Lease,
        *,
        may: May | None = None,
        shown: Sequence[Shown] | None = None,
        greeting: str | None = None,
        only_asks: bool = False,
        is_guarded: bool = False,
    ) -> Exchange:
        """
        Return the exchange, before the model or any function of the site is called.

        It is open unless the system message, the context or the tools have to be made. It is all one step: an async
        caller then switches threads only once. *may* is whether who asks may decide on calls that wait, by default
        whether the owner may. *shown* is what a page shows before the message, the nearest first; *greeting*, what the
        assistant has written there before anybody asked it anything. A ``Question`` as the *message* has its place in
        the conversation already. If it *only_asks*, the question is stored, and nothing else is done: another process
        answers, and makes the system message. If it *is_guarded*, the message is as guards have left it.

        Raises:
            UnknownQuestionError: By *shown*, the message does not belong in the conversation; nothing is stored.

        """
        memory = self.chat_memory(memory_id, options.get("owner"))
        observing.note("identified", memory_id=memory.id, owner=options.get("owner"))
        memory.labels = self._labels(memory_id, options)
        if _may_wait(self.tools) and self._remembered is None:
            django_store(memory)
        dates = self.dates if self._remembered is None else False  # when a client's were written, nobody knows here
        if dates is not False:
            check_dates(memory)
        lease.check(memory)
        if self.tools:
            memory.reserved_tokens = self._reserved_tokens(memory.window())
        try:
            if isinstance(message, str | UserMessage) and not is_guarded:
                message = self.guarded(memory_id, message, options)
            ledger = Ledger(self.model, memory, options.get("owner"), lease, self.reserves)
            make = partial(
                Exchange,
                memory,
                ledger,
                lease,
                model=self.model,
                is_early=self._is_early(options),
                tools=self._specifications,
                max_rounds=self.max_rounds,
                max_result_tokens=self.max_result_tokens,
                response_format=answer.response_format or self._wishes.response_format,
                may=may or partial(may_decide, options.get("owner")),
                greeting=greeting,
                dates_in=get_default_timezone() if dates is True else dates or None,
                is_guarded=bool(self._output_guards),
                tool_choice=self._wishes.tool_choice,
                answered=() if self._remembered is None else self._remembered.answered,
            )
            named = options.get("client_message_id"), options.get("answer_id"), options.get("after")
            beginning = Beginning(memory, ledger, lease, make, *named, shown, self._is_early(options))
            exchange = beginning.begun(message, has_tools=bool(self.tools or self._tools_of), only_asks=only_asks)
            if only_asks:
                opens = exchange.question.stored is None
            else:
                opens = not (exchange.is_open or exchange.was_stored or self._has_to_make)
            if opens:
                exchange.open(self._text)
        except BaseException:
            lease.end(State.FAILED, None)
            raise
        return exchange

    def guarded(self, memory_id: object, message: str | UserMessage, options: ChatOptions) -> UserMessage:
        """Return what is asked and stored in place of *message*; ``GuardRefusedError`` if a guard refuses it."""
        return self._input_guards.question(message, self._values(memory_id, options))

    def leave(
        self,
        memory_id: object,
        message: UserMessage,
        options: ChatOptions,
        *,
        shown: Sequence[Shown] | None = None,
        is_guarded: bool = False,
    ) -> bool:
        """
        Store *message*, once, for the person who answers in the conversation; return whether one does.

        *options*, *shown* and *is_guarded* are those of ``begin``. The model is not asked, and no budget is used.
        """
        memory = self.chat_memory(memory_id, options.get("owner"))
        asked = message if is_guarded else self.guarded(memory_id, message, options)
        lease = Lease()
        ledger = Ledger(self.model, memory, options.get("owner"), lease, self.reserves)
        named = options.get("client_message_id"), None, options.get("after")
        return Beginning(memory, ledger, lease, Exchange, *named, shown, is_early=True).left(asked)

    def check_resume(self, memory_id: object, resume: Resume, owner: AbstractBaseUser | None, lease: Lease) -> None:
        """
        Do nothing of *resume*, with which another process goes on.

        Raises:
            BudgetExceededError: The budget of *owner* for the conversation is used up.
            NotPendingError: There is nothing with which to go on.

        """
        memory = self.chat_memory(memory_id, owner)
        memory.labels = self._labels(memory_id, {"owner": owner})
        Ledger(self.model, memory, owner, Lease(), self.reserves).check()
        check_resume(memory, resume, lease.fence)

    def _reserved_tokens(self, window: Window) -> int:
        """Return the tokens of the tools' specifications, counted once if counts can be stored."""
        if window.counter not in self._counts or not window.counter:
            self._counts[window.counter] = specification_tokens(self._specifications, None, window)
        return self._counts[window.counter]

    def _as_tools(self, returned: object) -> dict[str, Tool]:
        """Return what the function that is given as *tools* has *returned* as tools by name."""
        if not isinstance(returned, Sequence) or isinstance(returned, str):
            name = "" if self._tools_of is None else self._tools_of.name
            raise TypeError(f"tools: {name} returned {type(returned).__name__}; it must return a list of tools.")
        return self._with_clients(to_tools(returned))

    def _equip(self, exchange: Exchange, tools: Mapping[str, Tool]) -> None:
        """Give *exchange*, which is not open yet, the *tools* that were made for it."""
        if _may_wait(tools) and self._remembered is None:
            django_store(exchange.memory)
        specifications = [tool.specification for tool in tools.values()]
        exchange.use_tools(specifications, specification_tokens(specifications, None, exchange.memory.window()))

    def _values(self, memory_id: object, options: ChatOptions) -> Mapping[str, Any]:
        """Return the values for tools, and for functions that make a text."""
        return {"memory_id": memory_id, "owner": options.get("owner"), "request": options.get("request")}

    def _labels(self, memory_id: object, options: ChatOptions) -> dict[str, str]:
        """Return the labels of the calls for an answer."""
        labels = self._own_labels
        own = labels(self._values(memory_id, options)) if callable(labels) else labels
        name = {"assistant": self.name[:MAX_LABEL_LENGTH]} if self.name else {}
        return checked_labels({**name, **own, **options.get("labels", {})})

    def _is_early(self, options: ChatOptions) -> bool:
        persist = options.get("persist", self.persist)
        if persist not in {"late", "early"}:
            raise ValueError(f"persist must be 'late' or 'early', not {persist!r}.")
        return persist == "early"

    def _keeps_part(self, options: ChatOptions) -> bool:
        keeps = options.get("keep_partial", self.keep_partial)
        return keeps() if callable(keeps) else keeps


def _may_wait(tools: Mapping[str, Tool]) -> bool:
    """Return whether an answer may wait for an approval, or for an output, of a call of *tools*."""
    return any(tool.may_wait for tool in tools.values())


def _texts(system_message: object) -> list[Checked]:
    """Return what makes the system message of an answer; nothing if it is always the same text."""
    if isinstance(system_message, str | None):
        return []
    if isinstance(system_message, Template):
        system_message = partial(_rendered, system_message)
    elif isinstance(system_message, Promise):
        system_message = system_message.__str__
    return [checked(system_message, "system_message")]  # type: ignore[arg-type]  # it is checked


def _rendered(template: Template, memory_id: object, owner: object, request: object) -> str:
    values = {"memory_id": memory_id, "owner": owner, "request": request}
    return str(template.render(Context(values, autoescape=False)))
