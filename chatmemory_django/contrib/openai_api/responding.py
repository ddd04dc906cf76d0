"""The views of responses: to ask for one, and to read, stop and drop one that is stored."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse

from chatmemory_django.access import AccessPolicy
from chatmemory_django.chat import named
from chatmemory_django.chat.answers.ui_stream import EVENT_STREAM
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.http.asking import Admission, admitted_reader, nothing_waits
from chatmemory_django.chat.http.views import AI_SDK, streamed
from chatmemory_django.chat.orders import carried_on
from chatmemory_django.chat.runs.answers import answers
from chatmemory_django.chat.runs.overload import in_thread_in_turn
from chatmemory_django.contrib.openai_api.answers import (
    TASK,
    AskedAnswer,
    answered,
    own_conversation_of,
    pieces_of,
    serving,
)
from chatmemory_django.contrib.openai_api.asked import asked_in
from chatmemory_django.contrib.openai_api.errors import RefusedRequestError
from chatmemory_django.contrib.openai_api.inputs import ResponseRequest, run_in
from chatmemory_django.contrib.openai_api.reading import ReadRequest
from chatmemory_django.contrib.openai_api.responses import ResponseEvents, fields_of
from chatmemory_django.contrib.openai_api.stored import StoredResponse
from chatmemory_django.contrib.openai_api.unstored import Unstored
from chatmemory_django.db.threads import in_thread
from chatmemory_django.models import Conversation

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser


MAX_DIGITS = 18
"""How many digits the number of an event has at most."""


@serving("POST")
async def responses(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """Respond to the input: whole, as events, or later."""
    return await answered(request, await in_thread_in_turn(_asked, request))


@serving("GET", "DELETE")
async def response(request: HttpRequest, response_id: str) -> HttpResponse | StreamingHttpResponse:
    """Retrieve a response, whole or as events from one of them on, or drop it: its messages stay."""
    stored = await in_thread_in_turn(_stored, request, response_id)
    if request.method == "DELETE":
        await in_thread(stored.delete)
        return JsonResponse({"id": response_id, "object": "response", "deleted": True})
    if request.GET.get("stream") != "true":
        return JsonResponse(await in_thread(stored.shown))
    events = await in_thread(stored.events)
    written = partial(events.written, after=_starting_after(request))
    pieces = await pieces_of(stored, request)
    return await streamed(request, pieces, AI_SDK._replace(write=written, headers=EVENT_STREAM))


@serving("POST")
async def cancel(request: HttpRequest, response_id: str) -> HttpResponse:
    """Stop a response that is in progress. What there is of it is stored."""
    policy, user = await in_thread_in_turn(admitted_reader, request)
    found = partial(_found, user, response_id, "response_id", policy, request)
    stored = await in_thread(found)
    if stored.is_active:
        await answers().stop(stored.maker, partial(carried_on, stored.maker, request))
    return JsonResponse(await in_thread(lambda: found().shown()))


@serving("GET")
async def input_items(request: HttpRequest, response_id: str) -> HttpResponse:
    """List what was new in the input of a response."""
    stored = await in_thread_in_turn(_stored, request, response_id)
    items = await in_thread(stored.input_items)
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    return JsonResponse({"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": False})


def _starting_after(request: HttpRequest) -> int:
    """Return the number of the last event that the client of *request* has; -1 for none."""
    given = request.GET.get("starting_after", "-1")
    if given != "-1" and not (given.isascii() and given.isdecimal() and len(given) <= MAX_DIGITS):
        what = f"It must be the sequence_number of an event, not {given[:64]!r}."
        raise RefusedRequestError(400, what, param="starting_after")
    return int(given)


def _stored(request: HttpRequest, response_id: str) -> StoredResponse:
    policy, user = admitted_reader(request)
    return _found(user, response_id, "response_id", policy, request)


def _found(
    user: AbstractBaseUser, response_id: object, param: str, policy: AccessPolicy, request: HttpRequest
) -> StoredResponse:
    run = run_in(response_id, "resp")
    found = None if run is None else StoredResponse.of(run, user)
    if found is None or not policy.may_ask(request, found.run.assistant or ""):
        raise RefusedRequestError(404, "There is no response with this id.", param=param)
    return found


def _asked(request: HttpRequest) -> AskedAnswer:
    read = ReadRequest.of(request, ResponseRequest, "$.input")
    wanted, given, wishes = read.request, read.given, read.wishes
    chat_id, conversation, shown = _place(request, read)
    known: dict[str, Any] = {
        **fields_of(read.rest),
        "previous_response_id": wanted.previous_response_id,
        "instructions": wanted.instructions if read.is_context else None,
    }
    asked: Admission | StoredResponse | Unstored
    if not chat_id:
        if wanted.background:
            raise RefusedRequestError(400, "A response in the background is stored.", param="background")
        if not given.history.turns:
            raise RefusedRequestError(400, "It must have a message of the user.", param="input")
        if given.approvals:
            raise nothing_waits()
        asked = Unstored.of(request, read, given.history)
    else:
        if given.is_mixed:
            raise RefusedRequestError(400, "Send what is answered to calls first, without a question.", param="input")
        body: dict[str, Any] = {"id": chat_id}
        if not (given.outputs or given.approvals):
            body["trigger"] = "submit-message" if shown else None
            turns = given.after_known if given.known is not None else given.history.turns
            if not turns:
                raise RefusedRequestError(400, "Nothing comes after the last item of an answer.", param="input")
            body["messages"] = [*shown, {"id": read.question_id, "role": "user", "parts": turns[-1].parts}]
        asked = asked_in(request, read, conversation, body, given.outputs, given.approvals)
        known |= {"conversation": {"id": asked.memory_id}, "store": True}

    def made(key: str) -> ResponseEvents:
        return ResponseEvents(f"resp_{key}", wanted.model, wishes=wishes, **known)

    def at_once(key: str) -> dict[str, Any]:
        return made(key).response("queued" if chat_settings().has_workers else None)

    is_stream = bool(wanted.stream)
    later = at_once if wanted.background and not is_stream else None
    return AskedAnswer(asked, made, is_stream, read.headers, later)


def _place(
    request: HttpRequest, read: ReadRequest[ResponseRequest]
) -> tuple[str, Conversation | None, list[dict[str, Any]]]:
    """
    Return the id of the conversation in which to respond, the conversation, and what the client shows there.

    The id is empty if nothing is to be stored: the client keeps the history itself, or does not want it.
    """
    wanted, given = read.request, read.given
    before: StoredResponse | None = None
    is_private = wanted.store is False or bool(request.headers.get(TASK))
    is_named = wanted.conversation_id is not None or wanted.previous_response_id is not None
    if is_private and (is_named or given.refers or given.approvals):
        detail = f"What goes on in a conversation is stored there: without store and {TASK}, or send the history."
        raise RefusedRequestError(400, detail, param="store")
    if (chat_id := wanted.conversation_id) is not None:
        conversation = own_conversation_of(request, read, chat_id)
        if conversation is None:
            raise RefusedRequestError(404, "There is no conversation with this id.", param="conversation")
        if not given.is_new:
            raise RefusedRequestError(409, "The conversation has its history: send only what is new.", param="input")
        return chat_id, conversation, []
    if wanted.previous_response_id is not None:
        before = _found(read.user, wanted.previous_response_id, "previous_response_id", read.policy, request)
        if not given.is_new:
            raise RefusedRequestError(409, "The response before has its history: send only what is new.", param="input")
    elif given.known is not None and not is_private:
        before = StoredResponse.of(given.known, read.user)
        if before is None and given.refers:
            raise RefusedRequestError(404, "An item that is referred to is not stored.", param="input")
    if before is not None:
        conversation = before.run.conversation
        if conversation.assistant != read.name:
            raise named.another()
        return conversation.memory_id, conversation, before.ids()
    has_history = not given.is_new or any(turn.answer for turn in given.history.turns)
    is_stored = given.history.turns and not (is_private or has_history)
    return (read.new_id() if is_stored else ""), None, []
