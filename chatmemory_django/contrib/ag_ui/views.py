"""The views: a run, which asks or goes on, and the connection to a conversation that is there already."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse

from chatmemory_django.access import NotAllowedError
from chatmemory_django.chat.answers.ui_stream import EVENT_STREAM, encode
from chatmemory_django.chat.http.asking import Admission, admission_of, admitted, admitted_body_of, body_of
from chatmemory_django.chat.http.declared import declared_tools
from chatmemory_django.chat.http.views import AI_SDK, Protocol, answering, following, newest, respond, streamed
from chatmemory_django.chat.runs.overload import in_thread_in_turn
from chatmemory_django.chat.wishes import Wishes
from chatmemory_django.contrib.ag_ui.events import RunEvents
from chatmemory_django.contrib.ag_ui.inputs import RunInput
from chatmemory_django.contrib.ag_ui.snapshots import MessagesSnapshot
from chatmemory_django.private import private


@answering("POST")
@private
async def run(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """Answer the last message of a ``RunAgentInput``, or go on with an answer whose calls have waited for it."""
    inputs: list[RunInput] = []

    def admit(request: HttpRequest) -> Admission:
        policy, user = admitted(request)
        try:
            asked = RunInput.of(body_of(request))
            body, wishes = asked.as_body(), Wishes(declared_tools(asked.tools))
        except ValueError as exc:
            raise NotAllowedError(400, str(exc)) from None
        inputs.append(asked)
        return admission_of(request, policy, user, body, wishes)

    def write(pieces: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        return RunEvents(inputs[0].thread_id, inputs[0].run_id).written(pieces)

    return await respond(request, Protocol(admit, write, EVENT_STREAM))


@answering("POST")
@private
async def connect(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """Stream the messages of the conversation that a ``RunAgentInput`` names, and the answer in progress, if any."""
    try:
        asked = RunInput.of(await in_thread_in_turn(admitted_body_of, request))
    except ValueError as exc:
        raise NotAllowedError(400, str(exc)) from None
    read = partial(newest, request, asked.thread_id, request.path.removesuffix("connect"))
    listed, pieces = await read(), await following(request, asked.thread_id)
    if pieces is None and (listed.is_open or [each["role"] for each in listed.messages[-1:]] == ["user"]):
        listed = await read()  # an answer may have ended since then
    snapshot = MessagesSnapshot.of(listed.messages)
    events = RunEvents(asked.thread_id, asked.run_id)
    first = [events.started(), {"type": "MESSAGES_SNAPSHOT", "messages": snapshot.messages}]

    async def all_pieces() -> AsyncGenerator[str, None]:
        yield "".join(map(encode, first))
        if pieces is None:
            yield encode(events.waiting(snapshot.interrupts, snapshot.pending))
        else:
            async with aclosing(events.written(pieces)) as written:
                async for piece in written:
                    yield piece

    return await streamed(request, all_pieces(), AI_SDK._replace(headers=EVENT_STREAM))
