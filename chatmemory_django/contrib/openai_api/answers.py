"""The views that answer: chat completions. They are the chat's, in another protocol."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import uuid4

from django.core.handlers.asgi import ASGIRequest
from django.db import router
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse

from chatmemory_django.access import AccessPolicy, NotAllowedError
from chatmemory_django.chat import named
from chatmemory_django.chat.answers.stored import StoredAnswer
from chatmemory_django.chat.answers.ui_stream import EVENT_STREAM, error_in
from chatmemory_django.chat.approvals.waiting import pending_calls
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.http.asking import Admission, admission_of, admitted, body_of, nothing_waits
from chatmemory_django.chat.http.views import AI_SDK, View, answering, begin, seat_of, streamed
from chatmemory_django.chat.runs.answers import Seat
from chatmemory_django.chat.runs.overload import in_thread_in_turn
from chatmemory_django.contrib.openai_api.assistants import ModelsView, ModelView, name_of
from chatmemory_django.contrib.openai_api.completions import CompletionEvents, CompletionRequest
from chatmemory_django.contrib.openai_api.errors import RefusedRequestError, in_openai_format, new_request_id
from chatmemory_django.contrib.openai_api.history import check_begins_with, placed, read_history
from chatmemory_django.contrib.openai_api.unstored import Unstored
from chatmemory_django.core.media import AddressError, check_files
from chatmemory_django.models import Conversation
from chatmemory_django.private import private

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

__all__ = ["ModelView", "ModelsView", "completions"]

CONVERSATION = "X-Conversation-ID"
"""The header by which a client names a conversation, and the response names the one that it is in."""

CONVERSATION_KEY = "conversation_id"
"""The key in the metadata of a completion that does the same as the header."""

INSTRUCTIONS = "X-Instructions"
"""The header of a response to a client that has sent instructions: "context", or "left-out"."""


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


class AskedCompletion(NamedTuple):
    """What a request for a completion asks, of which something is stored or nothing."""

    asked: Admission | Unstored
    request: CompletionRequest
    headers: dict[str, str]


@serving("POST")
async def completions(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """Answer the last message of a history, whole or in pieces."""
    asking = await in_thread_in_turn(_asking, request)
    wanted, is_stream = asking.request, bool(asking.request.stream)
    made = partial(CompletionEvents, model=wanted.model, wants_usage=is_stream and wanted.wants_usage)
    return await answered(
        request, asking.asked, lambda key: made(f"chatcmpl-{key}"), is_stream=is_stream, headers=asking.headers
    )


class Events(Protocol):
    """How a protocol has an answer."""

    def written(self, pieces: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        """Yield *pieces* of the AI SDK's stream as this protocol has them."""

    def whole(self, stream: str) -> dict[str, Any]:
        """Return what the protocol has for a whole *stream* of the AI SDK."""


async def answered(
    request: HttpRequest,
    asked: Admission | Unstored,
    events_of: Callable[[str], Events],
    *,
    is_stream: bool,
    headers: Mapping[str, str],
    at_once: Callable[[str], dict[str, Any]] | None = None,
) -> HttpResponse | StreamingHttpResponse:
    """
    Answer what is *asked*: as a stream, or whole, by the events of the answer with a key, 32 hexadecimal digits.

    With *at_once*, which has the response for the key, nobody waits for the answer, where it can go on then.
    """
    seat = seat_of(request) if is_stream else None
    if isinstance(asked, Unstored):
        place = seat_of(request, "unstored", chat_settings().MAX_ANSWERS)
        pieces, events = _seated(await asked.begun(request), place), events_of(uuid4().hex)
        whole = "" if seat else "".join([piece async for piece in pieces])
    else:
        begun = await begin(request, asked)
        begun.check()
        events = events_of(begun.maker.answer_id)
        if at_once is not None and (isinstance(request, ASGIRequest) or begun.answer.is_handed_over):
            return JsonResponse(at_once(begun.maker.answer_id), headers=headers)
        pieces = begun.pieces()
        whole = "" if seat else await begun.whole()
    if seat is not None:
        protocol = AI_SDK._replace(write=events.written, headers={**EVENT_STREAM, **headers})
        return await streamed(request, pieces, protocol, seat)
    if (error := error_in(whole)) is not None:
        raise NotAllowedError(502, error)
    return JsonResponse(events.whole(whole), headers=headers)


async def _seated(pieces: AsyncGenerator[str, None], seat: Seat) -> AsyncGenerator[str, None]:
    """Yield *pieces*, whose *seat* is given up with this generator."""
    async for piece in pieces:
        yield piece


def _asking(request: HttpRequest) -> AskedCompletion:
    policy, user = admitted(request)
    check = partial(check_files, remote=policy.may_link_files(request))
    try:
        wanted = CompletionRequest.of(body_of(request))
        name = name_of(wanted.model, policy, request)
        history = read_history(wanted.messages, check)
        pairs = wanted.pairs()
        is_context = bool(history.instructions) and policy.may_instruct(request)
        wishes = wanted.wishes(history.instructions if is_context else "")
    except AddressError as exc:
        raise NotAllowedError(400, f"$.messages: {exc}") from None
    except ValueError as exc:
        raise NotAllowedError(400, str(exc)) from None
    headers = {INSTRUCTIONS: "context" if is_context else "left-out"} if history.instructions else {}
    rest = {"model": wanted.model, "metadata": pairs}
    chat_id = request.headers.get(CONVERSATION) or pairs.get(CONVERSATION_KEY) or (str(uuid4()) if wanted.store else "")
    if not chat_id:
        return AskedCompletion(Unstored.of(request, name, user, history, wishes, rest), wanted, headers)
    conversation = own_conversation_of(request, policy, user, chat_id, name)
    if history.turns[-1].outputs:
        check_begins_with(history, conversation)
        messages = answered_calls(conversation, history.turns[-1].outputs)
        body = {**rest, "id": chat_id, "messages": messages}
    else:
        new = placed(history, conversation)
        body = {**rest, "id": chat_id, "messages": new.messages, "trigger": new.trigger, "messageId": new.message_id}
    asked = admission_of(request, policy, user, json.dumps({**body, "assistant": name or None}).encode(), wishes)
    return AskedCompletion(asked, wanted, {**headers, CONVERSATION: asked.memory_id})


def own_conversation_of(
    request: HttpRequest, policy: AccessPolicy, user: AbstractBaseUser, chat_id: object, name: str
) -> Conversation | None:
    """
    Return the conversation of *user* that *chat_id* names; None if there is none yet.

    Raises:
        NotAllowedError: It is another assistant's than that of this *name*, or the id is invalid.

    """
    try:
        if not isinstance(chat_id, str):
            raise ValueError(f"It must be a string, not {type(chat_id).__name__}.")  # noqa: TRY004, TRY301  # of the body
        memory_id = policy.memory_id(request, chat_id)
    except ValueError as exc:
        raise RefusedRequestError(400, str(exc), param=CONVERSATION_KEY) from None
    rows = Conversation.objects.using(router.db_for_write(Conversation)).filter(memory_id=memory_id, owner=user.pk)
    conversation = rows.first()
    if conversation is not None and not name and conversation.assistant:
        raise named.another()
    return conversation


def answered_calls(
    conversation: Conversation | None, outputs: Mapping[str, Any], approvals: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """
    Return the answer in *conversation* that goes on, as the AI SDK's clients send it: with the *outputs* for which it
    waits, by the ids of calls, and the *approvals*.

    Raises:
        NotAllowedError: 409: Nothing waits for them.

    """
    pending = [] if conversation is None or not outputs else pending_calls(conversation, in_client=True)
    for approval, call in pending:
        answer = StoredAnswer.before(approval.conversation, approval.sequence) if call.id in outputs else None
        if answer is not None:
            parts = [
                {"toolCallId": name, "state": "output-available", "output": output} for name, output in outputs.items()
            ]
            return [{"id": answer.id, "role": "assistant", "parts": [*parts, *approvals]}]
    if not approvals:
        raise nothing_waits()
    return [{"id": "", "role": "assistant", "parts": list(approvals)}]
