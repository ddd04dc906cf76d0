"""A process that stops after it has looked whether its run is its own, and writes once another one has taken that."""

import asyncio
import threading

import pytest
from asgiref.sync import sync_to_async

from chatmemory_django.chat.orders import carried_on
from chatmemory_django.chat.runs.answers import Answers, answers
from chatmemory_django.chat.runs.streams import Streams
from tests.database.chat.runs.test_answers import PATIENCE, let_die, quick
from tests.database.chat.runs.test_streams import REDIS
from tests.faces.chat.http.test_http import ann, asynchronous, bob, chat, no_throttle, parsed, text_of
from tests.faces.chat.scripted import ScriptedModel

__all__ = ["ann", "bob", "chat", "no_throttle", "quick"]  # fixtures

pytestmark = pytest.mark.django_db(transaction=True)


class Stopped:
    """Stops those who write to *streams* before they do, once this is ``armed``, until they ``may_write``."""

    def __init__(self, streams: Streams) -> None:
        self._write = streams.write
        self.armed, self.is_stopped, self.may_write, self.has_written = (threading.Event() for _ in range(4))
        streams.write = self.write

    def write(self, pieces) -> None:
        if self.armed.is_set():
            self.is_stopped.set()
            assert self.may_write.wait(PATIENCE)
        self._write(pieces)
        if self.may_write.is_set():
            self.has_written.set()

    async def end(self) -> None:
        """Let them write, and wait until they have."""
        self.may_write.set()
        assert await asyncio.to_thread(self.has_written.wait, PATIENCE)


@pytest.fixture(params=["database", "redis"])
def kept(request, no_throttle, settings) -> None:
    if request.param == "redis":
        pytest.importorskip("redis")
        redis_streams = pytest.importorskip("chatmemory_django.chat.runs.redis_streams")
        path = "chatmemory_django.chat.runs.redis_streams.RedisStreams"
        settings.CHATMEMORY["CHAT"] |= {"STREAMS": path, "REDIS_URL": REDIS}
        try:
            redis_streams._client(REDIS).ping()
        except redis_streams.RedisError:
            pytest.skip("There is no Redis to test with: start one, or set REDIS_URL")


class Listener:
    """Listens in a process of its own, and goes on with no answer."""

    def __init__(self, maker) -> None:
        self.heard = ""
        self.done = asyncio.create_task(self._listen(maker))

    async def _listen(self, maker) -> None:
        async for piece in Answers().listen(maker):
            self.heard += piece

    async def hears(self, text: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while text not in self.heard:
                await asyncio.sleep(0.01)


LATE = 'data: {"type":"text-delta","id":"text-1","delta":"late "}\n\n'

MOMENTS = ["before its successor has written", "while its successor writes", "after the end of its successor"]


@pytest.mark.parametrize("moment", MOMENTS)
@asynchronous
async def test_all_who_listen_and_since_when_hear_one_stream(chat, kept, ann, moment):
    client = chat(ScriptedModel("one two", "three four", gate=asyncio.Event()))
    asked = asyncio.create_task(client.say("Go.", "q"))
    while not client.model.requests:
        await asyncio.sleep(0.01)
    maker = await Answers().find(f"{ann.pk}:c", str(ann.pk))
    listening = [Listener(maker)]
    await listening[0].hears("one")
    predecessor, elsewhere = Stopped(answers()._streams), Answers()
    successor = Stopped(elsewhere._streams)
    predecessor.armed.set()
    answers()._made[maker].put(LATE)
    assert await asyncio.to_thread(predecessor.is_stopped.wait, PATIENCE)
    await sync_to_async(let_die)()

    client.model.gate = asyncio.Event()
    if moment == MOMENTS[0]:
        successor.armed.set()
    made = await elsewhere.carry_on(maker, carried_on(maker))
    listening.append(Listener(maker))
    if moment == MOMENTS[0]:
        assert await asyncio.to_thread(successor.is_stopped.wait, PATIENCE)
        await predecessor.end()
        listening.append(Listener(maker))
        await asyncio.sleep(0.2)  # all listeners read it now
        await successor.end()
    for each in listening:
        await each.hears("three")
    if moment == MOMENTS[1]:
        await predecessor.end()
        listening.append(Listener(maker))
        await listening[-1].hears("three")
    client.model.gate.set()
    whole = "".join([piece async for piece in made.listen()])
    if moment == MOMENTS[2]:
        await predecessor.end()
        await asked  # it has learned that its run is lost
    listening.append(Listener(maker))
    await asyncio.gather(asked, *(each.done for each in listening))

    assert text_of(parsed(whole)) == "one three four "
    assert [parsed(each.heard) for each in listening] == [parsed(whole)] * len(listening)
