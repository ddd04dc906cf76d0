"""The chat, the views that it is compared with, and one that reports the state of the process."""

from __future__ import annotations

import asyncio
import json
import threading
import time

from asgiref.sync import sync_to_async
from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt
from rest_framework.authtoken.models import Token

from benchmarks.chat.model import PACE, Clock, Plan
from chatmemory_django.access import access_policy
from chatmemory_django.chat.model import ChatResponse, PartialText
from chatmemory_django.db.threads import in_thread
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation

HISTORY = [UserMessage(f"Message {number}") for number in range(60)]


async def _asked(request: HttpRequest) -> list[UserMessage]:
    await in_thread(access_policy().user_of_token, request.headers["Authorization"].partition(" ")[2])
    [part] = json.loads(request.body)["message"]["parts"]
    return [*HISTORY, UserMessage(part["text"])]


@csrf_exempt
async def by_hand(request: HttpRequest) -> HttpResponse:
    """Do what a site would write without a memory: authenticate, and call the model."""
    response = await Clock().achat(await _asked(request))
    return JsonResponse({"text": response.ai_message.text})


@csrf_exempt
async def stream_by_hand(request: HttpRequest) -> StreamingHttpResponse:
    """Do the same as a stream."""
    asked = await _asked(request)

    async def pieces():  # type: ignore[no-untyped-def]
        async for event in Clock().astream(asked):
            if isinstance(event, PartialText):
                yield f"data: {json.dumps(event.text)}\n\n"
            elif isinstance(event, ChatResponse):
                yield "data: [DONE]\n\n"

    return StreamingHttpResponse(pieces(), content_type="text/event-stream")


@csrf_exempt
async def stream_bare(request: HttpRequest) -> StreamingHttpResponse:
    """Stream like the chat, on Django alone: sign in, insert a row, give back the connection, and send what comes."""
    key = request.headers["Authorization"].partition(" ")[2]
    token = await Token.objects.select_related("user").aget(key=key)
    asked = json.loads(request.body)
    await Conversation.objects.acreate(memory_id=asked["id"], owner=token.user)
    await sync_to_async(connections.close_all)()  # otherwise it is held until the end of the stream
    [part] = asked["messages"][0]["parts"]
    plan = Plan.of(part["text"])

    async def pieces():  # type: ignore[no-untyped-def]
        for _ in range(plan.words if plan else 0):
            await asyncio.sleep(plan.pause * PACE)
            piece = {"type": "text-delta", "id": "1", "delta": f"{time.perf_counter_ns()} "}
            yield f"data: {json.dumps(piece, separators=(',', ':'))}\n\n"
        yield 'data: {"type":"finish"}\n\ndata: [DONE]\n\n'

    return StreamingHttpResponse(pieces(), content_type="text/event-stream")


async def state(request: HttpRequest) -> JsonResponse:
    """Return the numbers of tasks and threads."""
    coroutines = [task.get_coro() for task in asyncio.all_tasks() - {asyncio.current_task()}]
    tasks = [coroutine.__qualname__ for coroutine in coroutines if coroutine is not None]
    return JsonResponse({"tasks": tasks, "threads": [thread.name for thread in threading.enumerate()]})


urlpatterns = [
    path("api/chat", include("chatmemory_django.chat.urls")),
    path("v1/", include("chatmemory_django.contrib.openai_api.urls")),
    path("by-hand", by_hand),
    path("stream-by-hand", stream_by_hand),
    path("stream-bare", stream_bare),
    path("state", state),
]
