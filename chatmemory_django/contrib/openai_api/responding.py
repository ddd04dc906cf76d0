"""The views of responses: to ask for one, and to read, stop and drop one that is stored."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse

from chatmemory_django.access import AccessPolicy, NotAllowedError
from chatmemory_django.chat import named
from chatmemory_django.chat.answers.ui_stream import EVENT_STREAM
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.http.asking import Admission, admission_of, admitted, admitted_reader, body_of
from chatmemory_django.chat.http.views import AI_SDK, streamed
from chatmemory_django.chat.orders import carried_on
from chatmemory_django.chat.runs.answers import answers
from chatmemory_django.chat.runs.overload import in_thread_in_turn
from chatmemory_django.chat.work import encoded
from chatmemory_django.contrib.openai_api.answers import (
    INSTRUCTIONS,
    answered,
    answered_calls,
    own_conversation_of,
    serving,
)
from chatmemory_django.contrib.openai_api.assistants import name_of
from chatmemory_django.contrib.openai_api.errors import RefusedRequestError
from chatmemory_django.contrib.openai_api.inputs import Input, read_input, run_in
from chatmemory_django.contrib.openai_api.responses import ResponseEvents, ResponseRequest
from chatmemory_django.contrib.openai_api.stored import StoredResponse
from chatmemory_django.contrib.openai_api.unstored import Unstored
from chatmemory_django.core.media import AddressError, check_files
from chatmemory_django.db.threads import in_thread
from chatmemory_django.models import Conversation

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser


class AskedResponse(NamedTuple):
    """What a request for a response asks."""

    asked: Admission | Unstored
    request: ResponseRequest
    headers: dict[str, str]
    made: Any
    """Returns the events of the response with an id."""


@serving("POST")
async def responses(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """Respond to the input: whole, as events, or later."""
    asking = await in_thread_in_turn(_asking, request)
    wanted, made = asking.request, asking.made

    def at_once(key: str) -> dict[str, Any]:
        response: dict[str, Any] = made(f"resp_{key}").response("queued" if chat_settings().has_workers else None)
        return response

    is_stream = bool(wanted.stream)
    return await answered(
        request,
        asking.asked,
        lambda key: made(f"resp_{key}"),
        is_stream=is_stream,
        headers=asking.headers,
        at_once=at_once if wanted.background and not is_stream else None,
    )


@serving("GET", "DELETE")
async def response(request: HttpRequest, response_id: str) -> HttpResponse | StreamingHttpResponse:
    """Retrieve a response, whole or as events from the first one on, or drop it: its messages stay."""
    stored = await in_thread_in_turn(_stored, request, response_id)
    if request.method == "DELETE":
        await in_thread(stored.delete)
        return JsonResponse({"id": response_id, "object": "response", "deleted": True})
    if request.GET.get("stream") != "true":
        return JsonResponse(await in_thread(stored.shown))
    events = stored.events()
    if stored.is_active:
        work = None if chat_settings().has_workers else partial(carried_on, stored.maker, request)
        pieces = answers().listen(stored.maker, work)
    else:
        pieces = _once(encoded(await in_thread(stored.chunks)))
    return await streamed(request, pieces, AI_SDK._replace(write=events.written, headers=EVENT_STREAM))


@serving("POST")
async def cancel(request: HttpRequest, response_id: str) -> HttpResponse:
    """Stop a response that is in progress. What there is of it is stored."""
    stored = await in_thread_in_turn(_stored, request, response_id)
    if stored.is_active:
        await answers().stop(stored.maker, partial(carried_on, stored.maker, request))
    return JsonResponse(await in_thread(lambda: _stored(request, response_id).shown()))


@serving("GET")
async def input_items(request: HttpRequest, response_id: str) -> HttpResponse:
    """List what was new in the input of a response."""
    stored = await in_thread_in_turn(_stored, request, response_id)
    items = await in_thread(stored.input_items)
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    return JsonResponse({"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": False})


async def _once(piece: str) -> Any:
    yield piece


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


def _asking(request: HttpRequest) -> AskedResponse:
    policy, user = admitted(request)
    check = partial(check_files, remote=policy.may_link_files(request))
    try:
        wanted = ResponseRequest.of(body_of(request))
        name = name_of(wanted.model, policy, request)
        given = read_input(wanted.input, wanted.instructions, check)
        instructions, pairs = given.history.instructions, wanted.pairs()
        is_context = bool(instructions) and policy.may_instruct(request)
        wishes = wanted.wishes(instructions if is_context else "")
        chat_id, conversation, shown = _place(request, policy, user, wanted, given, name)
    except AddressError as exc:
        raise NotAllowedError(400, f"$.input: {exc}") from None
    except ValueError as exc:
        raise NotAllowedError(400, str(exc)) from None
    headers = {INSTRUCTIONS: "context" if is_context else "left-out"} if instructions else {}
    known: dict[str, Any] = {
        "metadata": {key: value for key, value in pairs.items() if isinstance(value, str)},
        "previous_response_id": wanted.previous_response_id,
        "background": bool(wanted.background),
        "instructions": wanted.instructions if is_context else None,
    }
    rest = {"model": wanted.model, "metadata": pairs}
    if not chat_id:
        if wanted.background:
            raise RefusedRequestError(400, "A response in the background is stored.", param="background")
        if not given.history.turns:
            raise RefusedRequestError(400, "It must have a message of the user.", param="input")
        asked: Admission | Unstored = Unstored.of(request, name, user, given.history, wishes, rest)
        made = partial(ResponseEvents, model=wanted.model, wishes=wishes, **known)
        return AskedResponse(asked, wanted, headers, made)
    body: dict[str, Any] = {**rest, "id": chat_id, "assistant": name or None}
    if given.outputs or given.approvals:
        body["messages"] = answered_calls(conversation, given.outputs, given.approvals)
    else:
        turns = given.after_known if given.known is not None else given.history.turns
        body["messages"] = [*shown, {"id": "", "role": "user", "parts": turns[-1].parts}]
        body["trigger"] = "submit-message" if shown else None
    asked = admission_of(request, policy, user, json.dumps(body).encode(), wishes)
    known |= {"conversation": {"id": asked.memory_id}, "store": True}
    return AskedResponse(asked, wanted, headers, partial(ResponseEvents, model=wanted.model, wishes=wishes, **known))


def _place(
    request: HttpRequest,
    policy: AccessPolicy,
    user: AbstractBaseUser,
    wanted: ResponseRequest,
    given: Input,
    name: str,
) -> tuple[str, Conversation | None, list[dict[str, Any]]]:
    """
    Return the id of the conversation in which to respond, the conversation, and what the client shows there.

    The id is empty if nothing is to be stored: the client keeps the history itself, or does not want it.
    """
    before: StoredResponse | None = None
    if (chat_id := wanted.conversation_id) is not None:
        conversation = own_conversation_of(request, policy, user, chat_id, name)
        if conversation is None:
            raise RefusedRequestError(404, "There is no conversation with this id.", param="conversation")
        if not given.is_new:
            raise RefusedRequestError(409, "The conversation has its history: send only what is new.", param="input")
        return chat_id, conversation, []
    if wanted.previous_response_id is not None:
        before = _found(user, wanted.previous_response_id, "previous_response_id", policy, request)
        if not given.is_new:
            raise RefusedRequestError(409, "The response before has its history: send only what is new.", param="input")
    elif given.known is not None:
        before = StoredResponse.of(given.known, user)
        if before is None and given.refers:
            raise RefusedRequestError(404, "An item that is referred to is not stored.", param="input")
        if before is not None and not (given.after_known or given.outputs or given.approvals):
            raise RefusedRequestError(400, "Nothing comes after the last item of an answer.", param="input")
    if before is not None:
        conversation = before.run.conversation
        if conversation.assistant != name:
            raise named.another()
        return conversation.memory_id, conversation, before.ids()
    has_history = not given.is_new or any(turn.answer for turn in given.history.turns)
    is_stored = wanted.store is not False and given.history.turns and not has_history
    return (str(uuid4()) if is_stored else ""), None, []
