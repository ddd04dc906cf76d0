"""
The chat over HTTP, in the protocol of the AI SDK's ``useChat``.

The answer to a POST request is generated in a task of its own: its response, and any other request for the stream, only
listen to it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable
from contextlib import AbstractContextManager, aclosing, nullcontext
from functools import partial, wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.db import connections, router, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.utils import formats, timezone
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.debug import sensitive_variables

from chatmemory_django import conf, telemetry
from chatmemory_django.access import (
    AccessPolicy,
    NotAllowedError,
    access_policy,
    count_wrong_credentials,
    seconds_to_wait,
)
from chatmemory_django.chat.answers.exchange import Exchange
from chatmemory_django.chat.answers.questions import Question, conversation_of, question_again
from chatmemory_django.chat.answers.rejections import Rejection
from chatmemory_django.chat.answers.returns import Text
from chatmemory_django.chat.answers.titles import aentitle, entitle, first_words
from chatmemory_django.chat.answers.too_long import AnswerTooLongError, QuestionTooLongError
from chatmemory_django.chat.answers.ways import InEventLoop
from chatmemory_django.chat.approvals import NotPendingError, Resume
from chatmemory_django.chat.approvals.approving import May, by_policy, decide
from chatmemory_django.chat.approvals.waiting import shown_approvals
from chatmemory_django.chat.assistant import Assistant, ChatOptions
from chatmemory_django.chat.costs.ledger import BudgetExceededError
from chatmemory_django.chat.http.files import Files, question_at, stored_file
from chatmemory_django.chat.http.listing import Listed, newest_messages
from chatmemory_django.chat.http.posted import read_body
from chatmemory_django.chat.http.ui_stream import DONE, HEADERS, UiStream, encode
from chatmemory_django.chat.model import (
    OWNER,
    ChatModelError,
    ContextLengthError,
    InvalidRequestError,
    ModelTimeoutError,
    RateLimitError,
    UnsupportedFileError,
)
from chatmemory_django.chat.runs.answer import PING, Answer
from chatmemory_django.chat.runs.answers import AWAY, InterruptedAnswerError, Seat, TooManyError, answers
from chatmemory_django.chat.runs.leases import BusyError, Lease, State
from chatmemory_django.chat.runs.overload import NoThreadError, in_thread_soon
from chatmemory_django.chat.runs.streams import Maker, StreamsUnavailableError
from chatmemory_django.chat.ui_messages import message_sequence, to_ui_messages, ui_id
from chatmemory_django.chat.ui_messages.writing import OUTCOME_UNKNOWN
from chatmemory_django.core.media import AddressError, check_files
from chatmemory_django.db.private import empty_frames
from chatmemory_django.db.threads import afterwards, all_afterwards, in_background, in_thread, leave_thread, raisable
from chatmemory_django.models import Conversation, Message
from chatmemory_django.models.files import ConversationKey, file_in
from chatmemory_django.storages import StorageError
from chatmemory_django.stores.base import ConversationErasedError, LeaseLostError, MessageNotFoundError

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

logger = logging.getLogger(__name__)

REFUSED = (BudgetExceededError, NotPendingError, QuestionTooLongError, UnsupportedFileError)
"""The errors of a question for which the model was not called, and of which nothing is stored."""

View = Callable[..., Coroutine[Any, Any, HttpResponse | StreamingHttpResponse]]


def answering(*methods: str) -> Callable[[View], View]:
    """Return a decorator that makes a view for *methods*, and turns its errors into responses with a short text."""

    def decorate(view: View) -> View:
        @wraps(view)
        async def wrapper(request: HttpRequest, **kwargs: str) -> HttpResponse | StreamingHttpResponse:
            try:
                _check_method(request, methods)
                with in_background():  # otherwise the request holds a database connection as long as it waits
                    response = await view(request, **kwargs)
                    if not isinstance(request, ASGIRequest):
                        await all_afterwards()  # under WSGI, nothing can continue after this function returns
            except NotAllowedError as exc:
                response = _refusal(exc)
            except StreamsUnavailableError as exc:
                logger.error("%s", exc)  # noqa: TRY400  # the reason is enough, once for each request
                unavailable = NotAllowedError(503, "The chat cannot be used now; try again.", **{"Retry-After": "5"})
                response = _refusal(unavailable)
            except NoThreadError:  # which is logged once
                busy = NotAllowedError(503, "There are too many questions now; try again.", **{"Retry-After": "5"})
                response = _refusal(busy)
            response.headers.setdefault("Cache-Control", "no-store")  # chats are personal
            return response

        wrapped: View = csrf_exempt(wrapper)  # the access policy checks CSRF tokens where they are required
        for alias in connections:
            wrapped = transaction.non_atomic_requests(alias)(wrapped)
        return wrapped

    return decorate


@answering("POST")
@sensitive_variables()
async def chat(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """Answer or regenerate a message: as a stream, or as one message if the client only accepts JSON."""
    asked = await in_thread_soon(_asked, request)
    maker = Maker(asked.memory_id, "" if asked.owner is None else str(asked.owner.pk), uuid4().hex)
    wants_json = _wants_json(request)
    work = _Work(_assistant(request), asked, request, maker.answer_id, returns_message=wants_json)
    seat = None if wants_json else _seat(request)
    try:
        answer = await answers().begin(maker, work, wait=conf.chat()["WAIT_SECONDS"])
    except BusyError as exc:
        raise NotAllowedError(409, str(exc), **{"Retry-After": "1"}) from None
    except TooManyError as exc:
        raise _too_many(exc) from None
    if isinstance(answer.failure, REFUSED):
        await answers().stop(maker)  # the model was not called: by then, it has left nothing
        raise _nothing_waits() if isinstance(answer.failure, NotPendingError) else _refused(answer.failure)
    if seat is not None:
        return await _stream(request, answer.listen(), seat)
    await leave_thread()
    async for _piece in answer.listen():
        pass
    if answer.failure is not None:
        raise _refused(answer.failure, work.rejected)
    if work.message is None:
        raise NotAllowedError(409, "The answer was stopped before it had any text.")
    return JsonResponse({"message": work.message})


@answering("GET")
@sensitive_variables()
async def stream(request: HttpRequest, chat_id: str) -> HttpResponse | StreamingHttpResponse:
    """Stream the answer in progress from its beginning; respond with 204 if there is none."""
    maker = await _maker(request, chat_id)
    if maker is None:
        return HttpResponse(status=HTTPStatus.NO_CONTENT)
    return await _stream(request, _with_end(answers().listen(maker)), _seat(request))


@answering("POST")
@sensitive_variables()
async def stop(request: HttpRequest, chat_id: str) -> HttpResponse:
    """Stop the answer in progress, if there is one. What was generated of it is stored as the answer."""
    maker = await _maker(request, chat_id)
    if maker is not None:
        await answers().stop(maker)
    return JsonResponse({"stopped": maker is not None})


@answering("GET")
@sensitive_variables()
async def messages(request: HttpRequest, chat_id: str) -> HttpResponse:
    """List the newest messages of a conversation as ``UIMessage``s of the AI SDK; an unknown one has none."""
    user, memory_id = await in_thread(_entered, request, chat_id)
    read = partial(_messages, request, chat_id, user, memory_id)
    listed = await in_thread(read, is_answering=True)
    if listed.is_open and await answers().find(memory_id, str(user.pk)) is None:
        listed = await in_thread(read, is_answering=False)  # once more: the answer may have ended since then
    return JsonResponse(listed.messages, safe=False)


@answering("GET")
@sensitive_variables()
async def file(request: HttpRequest, chat_id: str, sequence: str, index: str) -> HttpResponse:
    """Serve a file in a question of a conversation. Its media type is detected from its first bytes."""
    return await in_thread(_file, request, chat_id, int(sequence), int(index))


class _Asked(NamedTuple):
    """A request that passed all checks."""

    owner: AbstractBaseUser | None
    """That of the conversation; somebody else may have decided on its calls."""
    memory_id: str
    question: Question
    resume: Resume | None = None
    """What lets an answer go on, instead of an answer to a question."""
    may: May | None = None
    """Whether the user may decide on calls that wait in the conversation."""


def _asked(request: HttpRequest) -> _Asked:
    """Return what *request* asks; raise ``NotAllowedError`` if it is refused."""
    try:
        return _checked(request)
    except NotAllowedError as exc:
        # Futures pass the error on to the event loop, and stay in a circle with its traceback until a garbage
        # collection. Frames that have the body of the request must not be part of it.
        exc.__context__ = exc.__traceback__ = None
        raise


def _checked(request: HttpRequest) -> _Asked:
    policy, user = _admitted(request, "question", conf.chat()["THROTTLE_RATE"])
    most = conf.chat()["MAX_BODY_BYTES"]
    content = request.read(most + 1)
    if len(content) > most:
        raise NotAllowedError(413, f"The body may have at most {most} bytes; send only the last message.")
    try:
        posted = read_body(content)
        memory_id = policy.memory_id(request, posted.id)
        # From the primary database: a replica may not have the last answer yet. What else is needed of it is read then.
        found = Conversation.objects.using(router.db_for_write(Conversation)).filter(memory_id=memory_id)
        conversation = next(iter(found.only("memory_id", "owner", "forgotten_through")), None)
        if conversation is not None and conversation.owner_id != user.pk:
            if isinstance(resume := posted.question(), Resume):
                return _decided(policy, request, conversation, resume)
            raise NotAllowedError(404, "There is no such chat.")
        files = Files.of(request, request.path, posted.id, memory_id)
        question = posted.question(partial(stored_file, conversation, files))
        if isinstance(question, Resume):
            allowed = policy.conversations(request, "view").using(found.db)
            named = allowed.filter(memory_id=posted.id)  # staff know no other id
            return _decided(policy, request, conversation or named.first(), question)
        if question.message is not None:
            check_files(question.message, remote=policy.may_link_files(request))
            policy.check_quota(request, question.message)
    except StorageError:
        raise NotAllowedError(503, "The files of this chat cannot be read now; try again later.") from None
    except AddressError as exc:
        raise NotAllowedError(400, f"{exc.where}: {exc}") from None
    except ValueError as exc:
        raise NotAllowedError(400, str(exc)) from None
    if posted.is_regenerate:
        again = None if conversation is None else question_again(conversation, posted.message_id, question)
        question = again or question
        if question == Question(None):
            raise NotAllowedError(404, "There is no message to answer.")
    may = None if conversation is None else by_policy(policy, request, conversation)
    return _Asked(user, memory_id, question, may=may)


def _decided(policy: AccessPolicy, request: HttpRequest, conversation: Conversation | None, resume: Resume) -> _Asked:
    """Record what the user decided on the calls of an answer that waits, which goes on then."""
    if conversation is None:
        raise _nothing_waits()
    may, using = by_policy(policy, request, conversation), conversation._state.db
    if conversation.owner_id != request.user.pk:
        if not policy.conversations(request, "view").using(using).filter(pk=conversation.pk).exists():
            raise NotAllowedError(404, "There is no such chat.")
        if not (resume.decisions or may(OWNER)):
            raise NotAllowedError(403, "You may not approve this.")
    try:
        own = Conversation.objects.using(using).filter(pk=conversation.pk)
        decide(own, conversation.memory_id, resume.decisions, request.user, may)
    except NotPendingError:
        raise _nothing_waits() from None
    except PermissionDenied:
        raise NotAllowedError(403, "You may not approve this.") from None
    resume = Resume(about=[each.id for each in resume.decisions])
    return _Asked(conversation.owner, conversation.memory_id, Question(None), resume)


def _nothing_waits() -> NotAllowedError:
    return NotAllowedError(409, _("Nothing waits for an approval any more. Load the conversation again."))


def _admitted(request: HttpRequest, kind: str, rate: str | None) -> tuple[AccessPolicy, AbstractBaseUser]:
    """Return the access policy, and the user of *request*, who may chat by it, within the *rate* of this *kind*."""
    policy = access_policy()
    try:
        user = policy.user(request)
    except NotAllowedError as exc:
        is_wrong = "Authorization" in request.headers and exc.status == HTTPStatus.UNAUTHORIZED
        if is_wrong and (wait := count_wrong_credentials(request)):
            raise NotAllowedError.too_often(wait, "Too many failed attempts") from None
        raise
    request.user = user  # type: ignore[assignment]  # the policy's methods, templates and tools see who it is
    if not policy.is_allowed(request):
        raise NotAllowedError(403, "You may not chat.")
    if wait := seconds_to_wait(f"chat_{kind}_{user.pk}", rate):
        raise NotAllowedError.too_often(wait)
    return policy, user


def _entered(request: HttpRequest, chat_id: str) -> tuple[AbstractBaseUser, str]:
    """Return the user of *request*, and the memory id of the conversation that *chat_id* names."""
    policy, user = _admitted(request, "read", conf.chat()["READ_THROTTLE_RATE"])
    try:
        return user, policy.memory_id(request, chat_id)
    except ValueError as exc:
        raise NotAllowedError(400, str(exc)) from None


async def _maker(request: HttpRequest, chat_id: str) -> Maker | None:
    user, memory_id = await in_thread(_entered, request, chat_id)
    return await answers().find(memory_id, str(user.pk))


def _messages(
    request: HttpRequest, chat_id: str, user: AbstractBaseUser, memory_id: str, *, is_answering: bool
) -> Listed:
    conversation = Conversation.objects.filter(memory_id=memory_id, owner=user.pk).first()
    if conversation is None:
        return Listed([], is_open=False)
    root = request.path.removesuffix("/messages").removesuffix(chat_id)
    files, may = Files.of(request, root, chat_id, memory_id), by_policy(access_policy(), request, conversation)
    return newest_messages(conversation, files, may, is_answering=is_answering)


def _file(request: HttpRequest, chat_id: str, sequence: int, index: int) -> HttpResponse:
    user, memory_id = _entered(request, chat_id)
    conversation = Conversation.objects.filter(memory_id=memory_id, owner=user.pk).first()
    message = None if conversation is None else question_at(conversation, sequence)
    try:
        found = None
        if conversation is not None and message is not None:
            found = file_in(ConversationKey.of(conversation), message, index)
    except StorageError:
        raise NotAllowedError(503, "The file cannot be read now; try again later.") from None
    if found is None:
        raise NotAllowedError(404, "There is no such file.")
    return HttpResponse(found.content, headers=found.headers(f"message-{sequence}-{index + 1}"))


class _Work:
    """An answer of *assistant*: its turn and, if it *returns_message*, the message that is stored."""

    def __init__(
        self, assistant: Assistant, asked: _Asked, request: HttpRequest, answer_id: str, *, returns_message: bool
    ) -> None:
        self._assistant = assistant
        self._asked = asked
        self._options: ChatOptions = {
            "owner": asked.owner,
            "request": request,
            "persist": "early",
            "client_message_id": asked.question.client_message_id,
            "answer_id": answer_id,
            "after": asked.question.after,
        }
        self._request = request
        self._answer_id = answer_id
        self._ui = UiStream(answer_id)
        self._returns_message = returns_message
        self._has_evicted = self._is_stored = False
        self._exchange: Exchange | None = None
        self._context = telemetry.here()  # that of the request, which the answer outlives
        self._operation: telemetry.Operation | None = None
        self.message: dict[str, Any] | None = None
        """The answer as a ``UIMessage``, if there is one."""

    def begin(self, answer: Answer) -> None:
        asked = self._asked
        self._operation = telemetry.invoke_agent(self._assistant, context=self._context)
        message = asked.question.message if asked.resume is None else asked.resume
        with self._traced():
            self._exchange = self._assistant.begin(
                asked.memory_id, message, self._options, Text(), Lease(answer.taken), may=asked.may
            )
        stored = self._exchange.question.stored
        waiting = None if self._exchange.resumed is None else self._exchange.resumed.waiting
        if waiting is not None:  # the page has the answer so far
            self._answer_id = ui_id(waiting.rows[0])
            self._ui = UiStream(self._answer_id, {}, waiting.rows)
        elif stored is not None and stored.id is not None:  # it goes on under its own name
            self._answer_id = stored.id
            self._ui = UiStream(stored.id)

    async def make(self, answer: Answer) -> None:
        answer.put(_encoded(self._ui.start()))
        if self._exchange is None:
            return
        way = InEventLoop(self._assistant.model.astream, self._assistant.timeout)
        events = self._assistant.events(self._exchange, way, self._asked.memory_id, self._options)
        with self._traced():
            async with aclosing(events):
                async for event in events:
                    if new := self._ui.feed(event):
                        answer.put(_encoded(new))

    def end(self, answer: Answer) -> str:
        with self._traced():
            last = self._end(answer)
        self._end_operation(answer)
        return last

    def give_up(self, answer: Answer) -> str:
        self._end_operation(answer)
        return _encoded(self._last(answer)) + DONE

    def _end_operation(self, answer: Answer) -> None:
        if self._operation is not None:
            if answer.failure is not None:
                self._operation.fail(answer.failure)
            self._operation.end()

    def _end(self, answer: Answer) -> str:
        exchange = self._exchange
        try:
            if exchange is not None and not isinstance(answer.failure, LeaseLostError):
                keeps_part = answer.is_stopping or self._assistant.keep_partial
                finish = partial(exchange.finish, keeps_part=keeps_part, has_failed=not answer.is_stopping)
                self._has_evicted = raisable(finish)()
                self._is_stored = exchange.is_complete and not (exchange.was_stored or exchange.pending)
                answer.state = State.WAITING if exchange.pending else answer.state
                answer.question = exchange.turn.question
                if self._is_stored and exchange.first and self._assistant.title is first_words:  # it takes no time
                    entitle(exchange.memory, *exchange.first, first_words)
                conversation = conversation_of(exchange.memory) if exchange.pending else None
                if conversation is not None:
                    may = by_policy(access_policy(), self._request, conversation)
                    for each in exchange.pending:
                        answer.put(_encoded(self._ui.feed(each, is_others=not may(each.approve_by))))
            if self._returns_message:
                self.message = _message(self._asked, self._answer_id, self._request)
        except Exception as exc:
            if isinstance(exc, AWAY) and not self._is_stored:
                raise
            answer.failure = exc  # a site's estimators and fields may raise anything
            empty_frames(exc)
        if exchange is not None:
            exchange.ledger.write()
        return _encoded(self._last(answer)) + DONE

    async def follow(self) -> None:
        exchange, title = self._exchange, self._assistant.title
        if exchange is None:
            return
        with self._traced():
            if self._has_evicted:
                await afterwards(exchange.turn.afollow())
            if exchange.first and title is not None and title is not first_words and self._is_stored:
                await afterwards(aentitle(exchange.memory, *exchange.first, title))

    @property
    def rejected(self) -> Rejection | None:
        """Why the model's server has rejected the question, if it has."""
        return None if self._exchange is None else self._exchange.rejected

    def _traced(self) -> AbstractContextManager[object]:
        return nullcontext() if self._operation is None else self._operation.active()

    def _last(self, answer: Answer) -> list[dict[str, Any]]:
        exc = answer.failure
        if exc is None:
            is_whole = self._exchange is not None and self._exchange.is_complete
            return self._ui.finish() if is_whole else self._ui.abort()
        expected = ChatModelError | ConversationErasedError | InterruptedAnswerError | LeaseLostError | NotPendingError
        is_expected = isinstance(exc, expected)
        log = logger.warning if is_expected else partial(logger.error, exc_info=exc)
        log("An answer in the conversation %r failed with %s.", self._asked.memory_id, type(exc).__name__)
        return self._ui.error(explained(exc, self.rejected)[1])


def _message(asked: _Asked, answer_id: str, request: HttpRequest) -> dict[str, Any] | None:
    """Return the answer with this id as it is stored, all its rows as one message; None if there is none."""
    rows = Message.objects.using(router.db_for_write(Message))
    sequence = message_sequence(answer_id)
    which = {"client_message_id": answer_id} if sequence is None else {"sequence": sequence}
    named = rows.filter(conversation__memory_id=asked.memory_id, **which).order_by()
    first = next(iter(named.values_list("conversation", "sequence")), None)
    if first is None:
        return None
    conversation, sequence = first  # as values: with a subquery, MariaDB reads the whole history
    answer = list(rows.history().filter(conversation=conversation, sequence__gte=sequence).order_by("sequence"))
    has_calls = any(row.payload for row in answer)  # without one, a message is only a text
    may = by_policy(access_policy(), request, answer[0].conversation) if has_calls else None
    approvals = shown_approvals(answer[0].conversation, answer, may) if has_calls else {}
    return to_ui_messages(answer, approvals, unknown=_(OUTCOME_UNKNOWN))[0]


def explained(error: Exception, rejected: Rejection | None = None) -> tuple[int, str]:
    """
    Return the HTTP status for an answer that failed with *error*, and a text for the user.

    *rejected* is why the model's server has rejected the question, if it has.
    """
    match error:
        case InvalidRequestError() if rejected is not None:
            return 422, _rejection(rejected)
        case BudgetExceededError():
            until = formats.date_format(timezone.localtime(error.until), "DATETIME_FORMAT")
            return 429, _("Your budget for this chat is used up until %(until)s.") % {"until": until}
        case RateLimitError():
            return 503, _("The model has too much to do. Try again in a moment.")
        case ModelTimeoutError():
            return 504, _("The model took too long. Try again.")
        case QuestionTooLongError():
            return 413, _(
                "Your message is too long for this chat: with all that is sent along, it needs %(needed)s tokens, and "
                "%(limit)s fit. Send a shorter one."
            ) % _numbers(error)
        case UnsupportedFileError():
            return 415, _rejection("file")
        case AnswerTooLongError():
            return 502, _(
                "What the tools of this chat have returned is too long: it needs %(needed)s tokens even shortened, and "
                "%(limit)s fit."
            ) % _numbers(error)
        case ContextLengthError():
            return 502, _("The conversation is too long for the model.")
        case ChatModelError():
            return 502, _("The model gave no answer. Try again.")
        case InterruptedAnswerError():
            return 502, _("The answer was interrupted. Try again.")
        case ConversationErasedError() | LeaseLostError() | MessageNotFoundError() | NotPendingError():
            return 409, _("The conversation has changed. Load it again.")
        case _:
            return 500, _("Something went wrong. Try again.")


def _rejection(reason: Rejection) -> str:
    """Return what a user can do about a question that the model's server has rejected."""
    match reason:
        case "too_long":
            return _("Your message is too long for the model, with what was written before. Send a shorter one.")
        case "content_filter":
            return _("The model's filter does not allow this message. Change it, and send it again.")
        case "file":
            return _("The model does not take this file. Send your message without it.")
        case "invalid":
            return _("The model does not take this message. Change it, and send it again.")


def _numbers(error: QuestionTooLongError | AnswerTooLongError) -> dict[str, str]:
    numbers = {"needed": error.needed, "limit": error.limit}
    return {name: formats.number_format(number, force_grouping=True) for name, number in numbers.items()}


def _seat(request: HttpRequest) -> Seat:
    try:
        return answers().seat(str(request.user.pk))
    except TooManyError as exc:
        raise _too_many(exc) from None


async def _stream(
    request: HttpRequest, pieces: AsyncGenerator[str, None], seat: Seat
) -> HttpResponse | StreamingHttpResponse:
    if not isinstance(request, ASGIRequest):  # under WSGI, nothing can continue after this function returns
        return HttpResponse("".join([piece async for piece in pieces]), headers=HEADERS)
    return StreamingHttpResponse(_alone(pieces, seat), headers=HEADERS)


async def _with_end(pieces: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    """Yield *pieces*, and an error in place of the end that they may lack."""
    last, error = "", None
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                last = last if piece == PING else piece
                yield piece
    except Exception as exc:  # noqa: BLE001  # whatever it is, the response has begun
        logger.warning("A stream of an answer ended with %s.", type(exc).__name__)
        error = exc
    if not last.endswith(DONE):
        if last and error is None:
            error = InterruptedAnswerError()
        chunks = [] if error is None else [{"type": "error", "errorText": explained(error)[1]}]
        yield _encoded(chunks) + DONE


async def _alone(pieces: AsyncGenerator[str, None], seat: Seat) -> AsyncGenerator[str, None]:
    """
    Yield *pieces* without holding the request's thread: the middleware has seen the response by now.

    The *seat* is given up with this generator, also if no one ever begins to read it.
    """
    await leave_thread()
    async with aclosing(pieces):
        async for piece in pieces:
            yield piece


def _assistant(request: HttpRequest) -> Assistant:
    path = conf.chat()["ASSISTANT"]
    if path is None:
        logger.error(
            'Set CHATMEMORY["CHAT"]["ASSISTANT"] to the path of an Assistant, or of a function of the request.'
        )
        raise NotAllowedError(503, _("This chat has no assistant."))
    found = import_string(path) if isinstance(path, str) else path
    assistant: Assistant = found if isinstance(found, Assistant) else found(request)
    return assistant


def _wants_json(request: HttpRequest) -> bool:
    accepted = request.headers.get("Accept", "")
    return "application/json" in accepted and "text/event-stream" not in accepted


def _encoded(chunks: Iterable[dict[str, Any]]) -> str:
    return "".join(map(encode, chunks))


def _check_method(request: HttpRequest, methods: Collection[str]) -> None:
    if request.method not in methods:
        raise NotAllowedError(405, f"Use {' or '.join(methods)} here.", Allow=", ".join(methods))


def _too_many(error: TooManyError) -> NotAllowedError:
    return NotAllowedError(429, str(error), **{"Retry-After": "5"})


def _refused(error: Exception, rejected: Rejection | None = None) -> NotAllowedError:
    """Return the response to a question whose answer failed with *error*; see ``explained``."""
    headers = {"Retry-After": f"{error.retry_after:.0f}"} if isinstance(error, BudgetExceededError) else {}
    status, text = explained(error, rejected)
    return NotAllowedError(status, text, **headers)


def _refusal(refused: NotAllowedError) -> HttpResponse:
    return HttpResponse(str(refused), "text/plain; charset=utf-8", refused.status, headers=refused.headers)
