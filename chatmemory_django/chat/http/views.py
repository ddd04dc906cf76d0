"""
The chat over HTTP, in the protocol of the AI SDK's ``useChat``.

The answer to a POST request is generated in a task of its own: its response, and any other request for the stream, only
listen to it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping
from contextlib import aclosing
from functools import partial, wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from django.contrib.auth.decorators import login_not_required
from django.core.handlers.asgi import ASGIRequest
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt

from chatmemory_django.access import (
    NotAllowedError,
    access_policy,
)
from chatmemory_django.chat import named
from chatmemory_django.chat.answers.explained import explained, refused
from chatmemory_django.chat.answers.shown import UnknownQuestionError
from chatmemory_django.chat.answers.too_long import QuestionTooLongError
from chatmemory_django.chat.answers.ui_stream import DONE, HEADERS, error_in
from chatmemory_django.chat.approvals import NotPendingError
from chatmemory_django.chat.approvals.approving import by_policy
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.costs.ledger import BudgetExceededError
from chatmemory_django.chat.guards import GuardRefusedError
from chatmemory_django.chat.http.asking import (
    Admission,
    admission,
    entered,
    greeting,
    is_next,
    nothing_waits,
    own_conversation,
    watchable,
)
from chatmemory_django.chat.http.files import FileAddresses, question_at
from chatmemory_django.chat.http.listing import ListedMessages, newest_ids, newest_messages
from chatmemory_django.chat.http.rating import rated
from chatmemory_django.chat.http.refusals import asks_for_json, refusal
from chatmemory_django.chat.model import (
    UnsupportedFileError,
)
from chatmemory_django.chat.orders import carried_on
from chatmemory_django.chat.people.answering import state_of
from chatmemory_django.chat.people.watching import stored, watched
from chatmemory_django.chat.runs.answer import PING, Answer, InterruptedAnswerError
from chatmemory_django.chat.runs.answers import Seat, TooManyError, answers
from chatmemory_django.chat.runs.leases import BusyError, HandedOverError, OtherAssistantError
from chatmemory_django.chat.runs.overload import NoThreadError, in_thread_in_turn
from chatmemory_django.chat.runs.streams import Maker, StreamsUnavailableError
from chatmemory_django.chat.threads import all_afterwards, close_with, has_threads
from chatmemory_django.chat.work import ChatWork, encoded
from chatmemory_django.db.contexts import current
from chatmemory_django.db.row_codec import address_of
from chatmemory_django.db.threads import context_of, in_background, in_thread, leave_thread
from chatmemory_django.models.message_codec import StorageError, file_in
from chatmemory_django.private import private
from chatmemory_django.security import report_refusal
from chatmemory_django.stores.base import ConversationErasedError

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

logger = logging.getLogger(__name__)

REFUSED = (
    BudgetExceededError,
    GuardRefusedError,
    NotPendingError,
    QuestionTooLongError,
    UnknownQuestionError,
    UnsupportedFileError,
)
"""The errors of a question for which the model was not called, and of which nothing is stored."""

View = Callable[..., Coroutine[Any, Any, HttpResponse | StreamingHttpResponse]]


Refusal = Callable[[HttpRequest, NotAllowedError], HttpResponse]


def answering(*methods: str, refusal: Refusal = refusal) -> Callable[[View], View]:
    """Return a decorator that makes a view for *methods*, and turns its errors into responses, by *refusal*."""

    def decorate(view: View) -> View:
        @wraps(view)
        async def wrapper(request: HttpRequest, **kwargs: str) -> HttpResponse | StreamingHttpResponse:
            try:
                _check_method(request, methods)
                with in_background(await context_of(request)):  # otherwise it holds a connection as long as it waits
                    response = await view(request, **kwargs)
                    if not isinstance(request, ASGIRequest):
                        await all_afterwards()  # under WSGI, nothing can continue after this function returns
            except NotAllowedError as exc:
                report_refusal(request, exc.status, str(exc), exc.event)
                response = refusal(request, exc)
            except StreamsUnavailableError as exc:
                logger.error("The chat refuses requests: %r", exc)  # noqa: TRY400  # the reason is enough, once for each request
                unavailable = NotAllowedError(503, "The chat cannot be used now; try again.", **{"Retry-After": "5"})
                response = refusal(request, unavailable)
            except NoThreadError:  # which is logged once
                busy = NotAllowedError(503, "There are too many requests now; try again.", **{"Retry-After": "5"})
                response = refusal(request, busy)
            response.headers.setdefault("Cache-Control", "no-store")  # chats are personal
            return response

        # The access policy checks who signed in, and the CSRF token where one is required.
        wrapped: Any = login_not_required(csrf_exempt(wrapper if has_threads() else _refuse_greenlets))
        for alias in connections:
            wrapped = transaction.non_atomic_requests(alias)(wrapped)
        return wrapped  # type: ignore[no-any-return]

    return decorate


def _refuse_greenlets(request: HttpRequest, **kwargs: str) -> HttpResponse:
    """
    Refuse *request* on a server whose threads are greenlets.

    These share one thread of the system. An event loop that runs for one of them seems to run for all, so that Django's
    database refuses their calls. This view starts none.
    """
    logger.error(
        "gevent or eventlet has replaced Python's threads, so the chat refuses all requests. Serve it by ASGI, or by "
        "gunicorn's workers with threads: --worker-class gthread."
    )
    return refusal(request, NotAllowedError(503, _("This server cannot run the chat.")))


@answering("POST")
@private
async def chat(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """Answer or regenerate a message: as a stream, or as one message if the client only accepts JSON."""
    return await respond(request, AI_SDK)


class Protocol(NamedTuple):
    """How clients ask and read, as what they send and get differs from the AI SDK's protocol."""

    admit: Callable[[HttpRequest], Admission]
    """Returns what a request asks, in a thread."""
    write: Callable[[AsyncGenerator[str, None]], AsyncGenerator[str, None]]
    """A function of the AI SDK's events, which are whole in each piece."""
    headers: Mapping[str, str]
    """Those of a stream."""


HANDOVER = "X-Chatmemory-Handover"
"""The header of a stream that is no answer: what is written while a person answers."""

AI_SDK = Protocol(admission, lambda pieces: pieces, HEADERS)


async def respond(request: HttpRequest, protocol: Protocol) -> HttpResponse | StreamingHttpResponse:
    """Answer what *request* asks in *protocol*; with the AI SDK's, as one message if its client only accepts JSON."""
    asked = await in_thread_in_turn(protocol.admit, request)
    wants_json = protocol is AI_SDK and _wants_json(request)
    seat = None if wants_json else seat_of(request)
    begun = await begin(request, asked, returns_message=wants_json)
    if begun is None:
        return await _stored(request, asked, protocol, seat)
    error, work = begun.refusal, begun.work
    if isinstance(error, UnknownQuestionError) and asks_for_json(request):
        return refusal(request, refused(error), **await in_thread(_reloadable, asked, error))
    begun.check()
    if seat is not None:
        return await _stream(request, begun.pieces(), seat, protocol)
    whole = await begun.whole()
    if begun.answer.is_handed_over:
        if (failure := error_in(whole)) is not None:
            raise failure
        await in_thread(work.read_message)
    if work.message is None:
        raise NotAllowedError(409, "The answer was stopped before it had any text.")
    return JsonResponse({"message": work.message})


class BegunAnswer(NamedTuple):
    """An answer that has begun, unless it was refused."""

    maker: Maker
    work: ChatWork
    answer: Answer

    @property
    def refusal(self) -> Exception | None:
        """The error for which the model was not called, and nothing is stored; None if there is none."""
        return self.answer.failure if isinstance(self.answer.failure, REFUSED) else None

    def check(self) -> None:
        """Raise ``NotAllowedError`` if it was refused."""
        if (error := self.refusal) is not None:
            raise nothing_waits() if isinstance(error, NotPendingError) else refused(error)

    def pieces(self) -> AsyncGenerator[str, None]:
        """Return its stream, in whichever process it is generated."""
        return with_end(answers().listen(self.maker)) if self.answer.is_handed_over else self.answer.listen()

    async def whole(self) -> str:
        """Return its whole stream; raise ``NotAllowedError`` if it failed here."""
        await leave_thread()
        whole = "".join([piece async for piece in self.pieces()])
        if self.answer.failure is not None:
            raise refused(self.answer.failure, self.work.rejected)
        return whole


async def begin(request: HttpRequest, asked: Admission, *, returns_message: bool = False) -> BegunAnswer | None:
    """
    Begin to answer what is *asked*, and return that; its work keeps the message if it *returns_message*.

    Return None if a person answers in the conversation. Then the question is stored, unless it is a regeneration.

    Raises:
        NotAllowedError: Another answer is in progress, or too many are, or the conversation is another assistant's.

    """
    owner_key = "" if asked.owner is None else str(asked.owner.pk)
    maker = Maker(asked.memory_id, owner_key, uuid4().hex, current.get())
    again = asked.question.after if asked.question.message is None else None
    goes_on = asked.resume is not None
    work = ChatWork(
        asked.order,
        asked.name,
        maker.answer_id,
        request,
        question=again,
        goes_on=goes_on,
        returns_message=returns_message,
    )
    try:
        answer = await _begun(maker, work, asked, request)
    except BusyError as exc:
        raise NotAllowedError(409, str(exc), **{"Retry-After": "1"}) from None
    except OtherAssistantError:
        raise named.another() from None
    except TooManyError as exc:
        raise _too_many(exc) from None
    except GuardRefusedError as exc:  # of a question for a person
        raise refused(exc) from None
    if answer is None:
        return None
    begun = BegunAnswer(maker, work, answer)
    if begun.refusal is not None:
        await answers().stop(maker)  # the model was not called: by then, it has left nothing
    return begun


async def _begun(maker: Maker, work: ChatWork, asked: Admission, request: HttpRequest) -> Answer | None:
    """Begin the answer to what is *asked*; None if a person answers in the conversation, and the question is stored."""
    settings = chat_settings()
    while True:
        try:
            return await answers().begin(
                maker,
                work,
                wait=settings.WAIT_SECONDS,
                left=settings.LEFT,
                may_stop=partial(is_next, asked, request),
                given=asked.given,
                hands_over=settings.has_workers,
            )
        except HandedOverError:
            if await in_thread(asked.left, request):
                return None


async def _stored(
    request: HttpRequest, asked: Admission, protocol: Protocol, seat: Seat | None
) -> HttpResponse | StreamingHttpResponse:
    """Respond to a question that is stored for a person, as a stream in this *seat*, or refuse to regenerate then."""
    conversation = await in_thread(asked.conversation)
    if asked.question.message is None:
        raise refused(HandedOverError(asked.memory_id))
    if conversation is None:
        raise refused(ConversationErasedError())
    if seat is None:
        state = await in_thread(state_of, conversation)
        return JsonResponse({"message": None, "handover": state}, status=HTTPStatus.ACCEPTED)
    return await _stream(request, _one(await in_thread(stored, conversation)), seat, protocol)


async def _one(piece: str) -> AsyncGenerator[str, None]:
    yield piece


@answering("GET")
@private
async def stream(request: HttpRequest, chat_id: str) -> HttpResponse | StreamingHttpResponse:
    """
    Stream the answer in progress from its beginning; respond with 204 if there is none.

    If nobody works on it, because its server has ended, this process does, unless that is for workers to do. While a
    person answers, stream who it is and what is new, behind the message ``?after=``, until the assistant does again:
    to the owner, and to staff who may answer there. With ``?stays=true``, that is streamed in any case.
    """
    user, memory_id = await in_thread_in_turn(entered, request, chat_id)
    pieces = await _following(request, user, memory_id)
    if pieces is not None:
        return await streamed(request, pieces)
    pieces = await _watching(request, chat_id, user, memory_id)
    if pieces is None:
        return HttpResponse(status=HTTPStatus.NO_CONTENT)
    response = await streamed(request, pieces)
    response.headers[HANDOVER] = "person"
    return response


@answering("POST")
@private
async def stop(request: HttpRequest, chat_id: str) -> HttpResponse:
    """Stop the answer in progress, if there is one. What was generated of it is stored as the answer."""
    user, memory_id = await in_thread_in_turn(entered, request, chat_id)
    maker = await answers().find(memory_id, str(user.pk))
    if maker is not None:
        await answers().stop(maker, partial(carried_on, maker, request))
    return JsonResponse({"stopped": maker is not None})


@answering("POST")
@private
async def rating(request: HttpRequest, chat_id: str) -> HttpResponse:
    """Store what the user thinks of an answer, and why."""
    await in_thread_in_turn(rated, request, chat_id)
    return HttpResponse(status=HTTPStatus.NO_CONTENT)


@answering("GET")
@private
async def messages(request: HttpRequest, chat_id: str) -> HttpResponse:
    """List the newest messages of a conversation as ``UIMessage``s of the AI SDK; an unknown one has none."""
    root = request.path.removesuffix("/messages").removesuffix(chat_id)
    return JsonResponse((await newest(request, chat_id, root)).messages, safe=False)


@answering("GET")
@private
async def file(request: HttpRequest, chat_id: str, sequence: str, index: str) -> HttpResponse:
    """Serve a file in a question of a conversation. Its media type is detected from its first bytes."""
    return await in_thread_in_turn(_file, request, chat_id, int(sequence), int(index))


async def newest(request: HttpRequest, chat_id: str, root: str) -> ListedMessages:
    """
    Return the newest messages of a conversation, without what the stream of an answer in progress has.

    The addresses of their files are below *root*, the path of the chat.
    """
    user, memory_id = await in_thread_in_turn(entered, request, chat_id)
    read = partial(_messages, request, chat_id, root, user, memory_id)
    listed = await in_thread(read, is_answering=True)
    if listed.is_open and await answers().find(memory_id, str(user.pk)) is None:
        listed = await in_thread(read, is_answering=False)  # once more: the answer may have ended since then
    return listed


async def following(request: HttpRequest, chat_id: str) -> AsyncGenerator[str, None] | None:
    """Return the events of the answer in progress, if any, from its beginning; it goes on if nobody works on it."""
    return await _following(request, *await in_thread_in_turn(entered, request, chat_id))


async def _following(request: HttpRequest, user: AbstractBaseUser, memory_id: str) -> AsyncGenerator[str, None] | None:
    maker = await answers().find(memory_id, str(user.pk))
    if maker is None:
        return None
    work = None if chat_settings().has_workers else partial(carried_on, maker, request)
    return with_end(answers().listen(maker, work))


async def _watching(
    request: HttpRequest, chat_id: str, user: AbstractBaseUser, memory_id: str
) -> AsyncGenerator[str, None] | None:
    if not isinstance(request, ASGIRequest):  # under WSGI, the stream would be sent at its end
        return None
    watching = await in_thread(watchable, request, chat_id, user, memory_id)
    return None if watching is None else with_end(watched(watching))


async def streamed(
    request: HttpRequest, pieces: AsyncGenerator[str, None], protocol: Protocol = AI_SDK, seat: Seat | None = None
) -> HttpResponse | StreamingHttpResponse:
    """Return the response that streams *pieces* in *protocol*, by default in a *seat* of its own."""
    return await _stream(request, pieces, seat or seat_of(request), protocol)


def _messages(
    request: HttpRequest, chat_id: str, root: str, user: AbstractBaseUser, memory_id: str, *, is_answering: bool
) -> ListedMessages:
    conversation = own_conversation(user, memory_id)
    if text := greeting(request, conversation):
        return ListedMessages.greeting(text)
    if conversation is None:
        return ListedMessages([], is_open=False)
    files, may = FileAddresses.of(request, root, chat_id, memory_id), by_policy(access_policy(), request, conversation)
    return newest_messages(conversation, files, may, is_answering=is_answering)


def _file(request: HttpRequest, chat_id: str, sequence: int, index: int) -> HttpResponse:
    user, memory_id = entered(request, chat_id)
    conversation = own_conversation(user, memory_id)
    message = None if conversation is None else question_at(conversation, sequence)
    try:
        found = None
        if conversation is not None and message is not None:
            found = file_in(message, index, address_of(conversation))
    except StorageError:
        raise NotAllowedError(503, "The file cannot be read now; try again later.") from None
    if found is None:
        raise NotAllowedError(404, "There is no such file.")
    return HttpResponse(found.content, headers=found.headers(f"message-{sequence}-{index + 1}"))


def _reloadable(asked: Admission, error: UnknownQuestionError) -> dict[str, Any]:
    """Return what a program needs to show the conversation as it is, after the *error* of a question."""
    conversation = asked.conversation()
    ids = [] if conversation is None else newest_ids(conversation)
    return {"unknown": error.id, "messages": ids}


def seat_of(request: HttpRequest, kind: str = "", most: int | None = None) -> Seat:
    """Return a place for one more stream of this *kind*; ``NotAllowedError`` if the user has *most* open here."""
    try:
        return answers().seat(f"{request.user.pk}{kind}", most)
    except TooManyError as exc:
        raise _too_many(exc) from None


async def _stream(
    request: HttpRequest, pieces: AsyncGenerator[str, None], seat: Seat, protocol: Protocol
) -> HttpResponse | StreamingHttpResponse:
    written = protocol.write(pieces)
    if not isinstance(request, ASGIRequest):  # under WSGI, nothing can continue after this function returns
        return HttpResponse("".join([piece async for piece in written]), headers=protocol.headers)
    alone = _alone(written, seat)
    response = StreamingHttpResponse(alone, headers=protocol.headers)
    close_with(response, alone)
    return response


async def with_end(pieces: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
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
        yield encoded(chunks) + DONE


async def _alone(pieces: AsyncGenerator[str, None], seat: Seat) -> AsyncGenerator[str, None]:
    """
    Yield *pieces* without holding the request's thread: the middleware has seen the response by now.

    The *seat* is given up with this generator, also if no one ever begins to read it.
    """
    await leave_thread()
    async with aclosing(pieces):
        async for piece in pieces:
            yield piece


def _wants_json(request: HttpRequest) -> bool:
    accepted = request.headers.get("Accept", "")
    return "application/json" in accepted and "text/event-stream" not in accepted


def _check_method(request: HttpRequest, methods: Collection[str]) -> None:
    if request.method not in methods:
        raise NotAllowedError(405, f"Use {' or '.join(methods)} here.", Allow=", ".join(methods))


def _too_many(error: TooManyError) -> NotAllowedError:
    return NotAllowedError(429, str(error), **{"Retry-After": "5"})
