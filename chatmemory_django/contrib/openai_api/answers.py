"""The views that answer: chat completions. They are the chat's, in another protocol."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial, wraps
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from django.core.handlers.asgi import ASGIRequest
from django.db import router
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse

from chatmemory_django.chat import named
from chatmemory_django.chat.answers.explained import refused
from chatmemory_django.chat.answers.ui_stream import DONE, EVENT_STREAM, error_in
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.http.asking import Admission
from chatmemory_django.chat.http.views import AI_SDK, View, answering, begin, seat_of, streamed, with_end
from chatmemory_django.chat.orders import carried_on
from chatmemory_django.chat.runs.answers import Seat, answers
from chatmemory_django.chat.runs.leases import HandedOverError
from chatmemory_django.chat.runs.overload import in_thread_in_turn
from chatmemory_django.chat.work import encoded
from chatmemory_django.contrib.openai_api.asked import asked_in
from chatmemory_django.contrib.openai_api.assistants import ModelsView, ModelView
from chatmemory_django.contrib.openai_api.completions import CompletionEvents, CompletionRequest
from chatmemory_django.contrib.openai_api.errors import RefusedRequestError, in_openai_format, new_request_id
from chatmemory_django.contrib.openai_api.history import Continuation, check_begins_with, placed
from chatmemory_django.contrib.openai_api.reading import ReadRequest
from chatmemory_django.contrib.openai_api.stored import StoredResponse
from chatmemory_django.contrib.openai_api.unstored import Unstored
from chatmemory_django.db.threads import in_thread, leave_thread
from chatmemory_django.models import Conversation
from chatmemory_django.private import private

__all__ = ["ModelView", "ModelsView", "completions"]

CONVERSATION = "X-Conversation-ID"
"""The header by which a client names a conversation, and the response names the one that it is in."""

TASK = "X-Task"
"""The header by which a program names what it asks for itself, as a title: that belongs to no conversation."""

CONVERSATION_KEY = "conversation_id"
"""The key in the metadata of a completion that does the same as the header."""


def serving(*methods: str) -> Callable[[View], View]:
    """Return a decorator that makes a view for *methods*, whose errors are in OpenAI's format."""

    def decorate(view: View) -> View:
        @wraps(view)
        async def served(request: HttpRequest, **kwargs: str) -> HttpResponse | StreamingHttpResponse:
            response = await view(request, **kwargs)
            response["x-request-id"] = new_request_id()
            return response

        return answering(*methods, refusal=in_openai_format)(private(served))

    return decorate


class Events(Protocol):
    """How a protocol has an answer."""

    def written(self, pieces: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        """Yield *pieces* of the AI SDK's stream as this protocol has them."""

    def whole(self, stream: str) -> dict[str, Any]:
        """Return what the protocol has for a whole *stream* of the AI SDK."""


class AskedAnswer(NamedTuple):
    """What a request asks, of which something is stored or nothing, or what it has asked before."""

    asked: Admission | StoredResponse | Unstored
    events_of: Callable[[str], Events]
    """Returns the events of the answer with a key, 32 hexadecimal digits."""
    is_stream: bool
    headers: Mapping[str, str]
    at_once: Callable[[str], dict[str, Any]] | None = None
    """Returns the response for the key where nobody waits for the answer, if it can go on then."""


@serving("POST")
async def completions(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """Answer the last message of a history, whole or in pieces."""
    return await answered(request, await in_thread_in_turn(_asked, request))


async def answered(request: HttpRequest, asked: AskedAnswer) -> HttpResponse | StreamingHttpResponse:
    """Answer what is *asked*: as a stream, or whole."""
    question, headers, at_once = asked.asked, asked.headers, asked.at_once
    seat = seat_of(request) if asked.is_stream else None
    if isinstance(question, Unstored):
        place = seat_of(request, "unstored", chat_settings().MAX_ANSWERS)
        await leave_thread()
        pieces, events = _seated(await question.begun(request), place), asked.events_of(uuid4().hex)
        whole = "" if seat else "".join([piece async for piece in pieces])
    elif isinstance(question, StoredResponse):
        key = question.run.id.hex
        if at_once is not None and question.is_active:
            return JsonResponse(at_once(key), headers=headers)
        pieces, events = await pieces_of(question, request), asked.events_of(key)
        await leave_thread()
        whole = "" if seat else "".join([piece async for piece in pieces])
    else:
        begun = await begin(request, question)
        if begun is None:
            raise refused(HandedOverError(question.memory_id))
        begun.check()
        events = asked.events_of(begun.maker.answer_id)
        if at_once is not None and (isinstance(request, ASGIRequest) or begun.answer.is_handed_over):
            return JsonResponse(at_once(begun.maker.answer_id), headers=headers)
        pieces = begun.pieces()
        whole = "" if seat else await begun.whole()
    if seat is not None:
        protocol = AI_SDK._replace(write=events.written, headers={**EVENT_STREAM, **headers})
        return await streamed(request, pieces, protocol, seat)
    if (error := error_in(whole)) is not None:
        raise error
    return JsonResponse(events.whole(whole), headers=headers)


async def pieces_of(stored: StoredResponse, request: HttpRequest) -> AsyncGenerator[str, None]:
    """Return the AI SDK's whole stream of a *stored* response; *request* goes on with it if nobody does."""
    if not stored.is_active:
        kept = "".join([piece async for piece in answers().listen(stored.maker)])  # for a minute after its end
        return _once(kept if kept.endswith(DONE) else encoded(await in_thread(stored.chunks)))
    work = None if chat_settings().has_workers else partial(carried_on, stored.maker, request)
    return with_end(answers().listen(stored.maker, work))


async def _once(piece: str) -> AsyncGenerator[str, None]:
    yield piece


async def _seated(pieces: AsyncGenerator[str, None], seat: Seat) -> AsyncGenerator[str, None]:
    """Yield *pieces*, whose *seat* is given up with this generator."""
    async with aclosing(pieces):
        async for piece in pieces:
            yield piece


def _asked(request: HttpRequest) -> AskedAnswer:
    read = ReadRequest.of(request, CompletionRequest, "$.messages")
    wanted, history, pairs = read.request, read.given, read.pairs
    is_stream = bool(wanted.stream)
    made = partial(CompletionEvents, model=wanted.model, wants_usage=is_stream and wanted.wants_usage)

    def asked(question: Admission | StoredResponse | Unstored, **headers: str) -> AskedAnswer:
        return AskedAnswer(question, lambda key: made(f"chatcmpl-{key}"), is_stream, {**read.headers, **headers})

    chat_id = (
        request.headers.get(CONVERSATION) or pairs.get(CONVERSATION_KEY) or (read.new_id() if wanted.store else "")
    )
    if not chat_id or request.headers.get(TASK):
        return asked(Unstored.of(request, read, history))
    conversation = own_conversation_of(request, read, chat_id)
    new, outputs = Continuation([]), history.turns[-1].outputs
    guarded = partial(read.guarded, request, "" if conversation is None else conversation.memory_id)
    if outputs:
        check_begins_with(history, conversation, guarded)
    else:
        new = placed(history, conversation, guarded, read.question_id, is_retry=read.is_retry)
    body = {"id": chat_id, "messages": new.messages, "trigger": new.trigger, "messageId": new.message_id}
    found = asked_in(request, read, conversation, body, outputs)
    return asked(found, **{CONVERSATION: found.memory_id})


def own_conversation_of(request: HttpRequest, read: ReadRequest[Any], chat_id: object) -> Conversation | None:
    """
    Return the conversation of the user that *chat_id* names; None if there is none yet.

    Raises:
        NotAllowedError: It is another assistant's than the one that is asked, or the id is invalid.

    """
    try:
        if not (isinstance(chat_id, str) and chat_id.isprintable()):  # it is sent back in a header
            raise ValueError("It must be a string without control characters.")  # noqa: TRY301  # as the policy's
        memory_id = read.policy.memory_id(request, chat_id)
    except ValueError as exc:
        raise RefusedRequestError(400, str(exc), param=CONVERSATION_KEY) from None
    rows = Conversation.objects.using(router.db_for_write(Conversation)).filter(memory_id=memory_id, owner=read.user.pk)
    conversation = rows.first()
    if conversation is not None and conversation.has_expired:
        raise RefusedRequestError(404, "There is no such conversation.", param=CONVERSATION_KEY)
    if conversation is not None and not read.name and conversation.assistant:
        raise named.another()
    return conversation
