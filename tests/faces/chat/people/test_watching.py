"""The stream of what people write: who listens hears it without a question, at a bounded cost."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import OperationalError
from django.test import AsyncClient

from chatmemory_django.chat.people import answer_as, watching
from chatmemory_django.chat.people.watching import Watching, watched
from chatmemory_django.messages import AiMessage, MessageType, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.operations import give_back, hand_over
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.signals import conversations_read
from tests.faces.chat.http.test_http import asynchronous
from tests.faces.test_permissions import granted

pytestmark = pytest.mark.django_db(transaction=True)

CHAT = "8a4f1d52-6b0e-4b43-a1c4-6b8f0f3f7b11"


@pytest.fixture(autouse=True)
def soon(monkeypatch, settings) -> None:
    monkeypatch.setattr(watching, "INTERVAL", 0.01)
    monkeypatch.setattr(watching, "IDLE_INTERVAL", 0.01)
    settings.CHATMEMORY = {"LOG_READS": True, "CHAT": {"THROTTLE_RATE": None, "READ_THROTTLE_RATE": None}}


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


@pytest.fixture
def klaus() -> User:
    return granted(
        User.objects.create_user("klaus", is_staff=True),
        "view_conversation",
        "answer_conversation",
        "view_message_text",
    )


@pytest.fixture
def talk(ann) -> Conversation:
    get_chat_memory(CHAT, owner=ann).add(UserMessage("Hi"), AiMessage("Hello"))
    return Conversation.objects.get()


@pytest.fixture
def reads() -> Iterator[list[Any]]:
    heard: list[Any] = []

    def hear(sender: Any, reader: Any, **_: Any) -> None:
        heard.append(reader)

    conversations_read.connect(hear)
    yield heard
    conversations_read.disconnect(hear)


async def stream(user: User, query: str = "") -> Any:
    client = AsyncClient()
    await client.aforce_login(user)
    return await client.get(f"/api/chat/{CHAT}/stream{query}")


async def until(pieces: AsyncGenerator[Any, None], words: str) -> str:
    """Return the events of *pieces* up to those with *words*."""
    found = ""
    async for piece in pieces:
        found += piece.decode() if isinstance(piece, bytes) else piece
        if words in found:
            return found
    raise AssertionError(found)


in_thread: Callable[..., Any] = sync_to_async


@asynchronous
async def test_the_owner_hears_what_nobody_has_asked_for(talk, ann, klaus):
    response = await stream(ann, "?stays=true")

    async with aclosing(response.streaming_content) as pieces:
        assert '"state":"assistant"' in await until(pieces, "data-handover")
        await in_thread(answer_as)(talk, klaus, "Your parcel is here.")
        heard = await until(pieces, '"state":"person"')
        await in_thread(give_back)(talk)
        await until(pieces, '"state":"assistant"')

    assert "Your parcel is here." in heard
    assert response.headers["X-Chatmemory-Handover"]


@asynchronous
async def test_who_comes_back_hears_what_was_written_meanwhile(talk, ann, klaus):
    await in_thread(answer_as)(talk, klaus, "Your parcel is here.")

    response = await stream(ann, "?after=message-2")

    async with aclosing(response.streaming_content) as pieces:
        assert "Hello" not in await until(pieces, "Your parcel is here.")


@pytest.mark.parametrize(
    "after", ["%00", "unknown", "message-99999999999999999999", "%F0%9F%92%A9", "%ED%A0%80", "x" * 300]
)
@asynchronous
async def test_behind_what_is_no_message_begins_what_is_new(talk, ann, klaus, after):
    response = await stream(ann, f"?stays=true&after={after}")

    async with aclosing(response.streaming_content) as pieces:
        await until(pieces, "data-handover")
        await in_thread(answer_as)(talk, klaus, "I look into it.")
        assert "I look into it." in await until(pieces, "data-message")


@asynchronous
async def test_clients_of_the_protocol_read_that_nothing_is_in_progress(talk, ann):
    """``useChat`` would wait for the end of a stream that stays open."""
    assert (await stream(ann)).status_code == 204


@pytest.mark.parametrize("query", ["", "?stays=true"])
def test_others_hear_nothing(talk, query):
    bob = User.objects.create_user("bob", is_staff=True)
    hand_over(talk)

    @asynchronous
    async def listen() -> None:
        assert (await stream(bob, query)).status_code == 204

    listen()


@asynchronous
async def test_staff_are_readers_of_what_they_are_sent(talk, ann, klaus, reads):
    silent, other = await stream(klaus, "?stays=true"), await stream(klaus, "?stays=true&after=message-1")

    async with aclosing(silent.streaming_content) as pieces:
        await until(pieces, "data-handover")
    assert reads == []
    async with aclosing(other.streaming_content) as pieces:
        await until(pieces, "data-handover")
    assert reads == [klaus]


@asynchronous
async def test_a_stream_ends_after_a_while_so_that_a_server_can(talk, ann, monkeypatch):
    monkeypatch.setattr(watching, "MAX_SECONDS", 0.05)
    response = await stream(ann, "?stays=true")

    assert (await until(response.streaming_content, "[DONE]")).endswith("data: [DONE]\n\n")


@asynchronous
async def test_a_database_that_is_away_ends_all_streams_so_that_each_is_opened_again(talk, ann, monkeypatch):
    def away(using: str, keys: list[int]) -> dict[int, int]:
        raise OperationalError("The server has closed the connection.")

    monkeypatch.setattr(watching, "_versions", away)
    responses = [await stream(ann, "?stays=true") for _ in range(2)]

    ends = await asyncio.gather(*(until(each.streaming_content, "[DONE]") for each in responses))

    assert all('"type":"error"' in each and "closed the connection" not in each for each in ends)


def test_all_streams_of_a_process_ask_with_one_query(ann, monkeypatch):
    monkeypatch.setattr(watching, "MAX_SECONDS", 3_600.0)
    monkeypatch.setattr(watching, "IDLE_INTERVAL", 0.5)  # two rounds become one if a query takes less than a pause
    for number in range(50):
        get_chat_memory(f"c{number}", owner=ann).add(UserMessage("Hi"))
    asked: list[int] = []
    versions = watching._versions
    monkeypatch.setattr(watching, "_versions", lambda using, keys: asked.append(len(keys)) or versions(using, keys))

    async def listen(key: int) -> None:
        async for _ in watched(Watching("default", key, [MessageType.AI], None, stays=True)):
            pass

    @asynchronous
    async def all_listen() -> None:
        listening = [asyncio.create_task(listen(each)) for each in keys]
        while asked[-3:] != [50, 50, 50]:  # those that have begun at different times
            await asyncio.sleep(0.01)
        for each in listening:
            each.cancel()
        await asyncio.gather(*listening, return_exceptions=True)

    keys = list(Conversation.objects.values_list("pk", flat=True))
    all_listen()
