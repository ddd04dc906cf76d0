"""Answers that are stopped at the worst moments."""

import asyncio
import threading
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import ChatResponse
from chatmemory_django.chat.models import AnswerChunk, Run
from chatmemory_django.chat.runs.answer import Answer
from chatmemory_django.chat.runs.answers import Answers
from chatmemory_django.chat.runs.streams import DatabaseStreams, Maker, Piece
from chatmemory_django.db.threads import background, in_background, in_thread
from chatmemory_django.models import Conversation
from tests.asgi import run
from tests.faces.chat.scripted import Saying, ScriptedModel

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE = 30
"""Seconds after which a test gives up waiting."""


@pytest.fixture
def maker() -> Maker:
    return Maker("c", str(get_user_model().objects.create_user("ann").pk), uuid4().hex)


class HeldStreams(DatabaseStreams):
    """Streams whose ``end`` returns once the test lets it."""

    has_written, may_return = threading.Event(), threading.Event()

    def end(self, maker: Maker, last: Piece, *args) -> bool:
        self.has_written.set()
        assert self.may_return.wait(PATIENCE)
        return super().end(maker, last, *args)


class Impatient(Answers):
    """Answers that are stopped as soon as they begin."""

    async def _begin(self, *args) -> Answer | float:
        begun = await super()._begin(*args)
        assert isinstance(begun, Answer)
        begun.stop()
        return begun


async def listened(answer: Answer) -> str:
    async with asyncio.timeout(PATIENCE):
        return "".join([piece async for piece in answer.listen()])


class Storing(Saying):
    """The work of an answer that has stored something, so that its conversation stays."""

    def begin(self, answer: Answer) -> None:
        Conversation.objects.update(version=2)


def test_an_answer_stopped_while_its_end_is_written_ends(settings, maker):
    settings.CHATMEMORY = {"CHAT": {"STREAMS": f"{__name__}.HeldStreams"}}

    async def stop() -> str:
        answer = await Answers().begin(maker, Storing("Bye."), wait=0)
        assert await asyncio.to_thread(HeldStreams.has_written.wait, PATIENCE)
        answer.stop()
        HeldStreams.may_return.set()
        return await listened(answer)

    assert run(stop()) == "Bye."
    assert Run.objects.get().state == "done"
    assert [chunk.data for chunk in AnswerChunk.objects.all()] == ["Bye."]


def test_an_answer_stopped_before_its_task_starts_ends(maker):
    made = []

    async def make(answer: Answer) -> None:
        made.append(answer)

    async def stop() -> str:
        return await listened(await Impatient().begin(maker, Storing("Bye.", make), wait=0))

    assert run(stop()) == "Bye."
    assert made == []
    assert Run.objects.get().state == "stopped"


def test_an_answer_stopped_after_its_end_but_before_it_is_stored_is_stored():
    assistant = Assistant(ScriptedModel("Hello!"))
    is_whole, may_go_on = asyncio.Event(), threading.Event()
    are_busy = threading.Barrier(background().threads + 1)

    def keep_busy() -> None:
        are_busy.wait(PATIENCE)
        assert may_go_on.wait(PATIENCE)

    async def make() -> None:
        with in_background():
            async for event in assistant.astream("c", "Hi.", persist="early"):
                if isinstance(event, ChatResponse):
                    busy.extend(asyncio.create_task(in_thread(keep_busy)) for _ in range(background().threads))
                    await asyncio.to_thread(are_busy.wait, PATIENCE)
                    is_whole.set()

    async def stop() -> None:
        making = asyncio.create_task(make())
        await asyncio.wait_for(is_whole.wait(), PATIENCE)
        making.cancel()
        for _ in range(100):
            await asyncio.sleep(0)  # so that a cancellable call is cancelled
        may_go_on.set()
        await asyncio.wait([making, *busy], timeout=PATIENCE)
        assert making.cancelled()

    busy: list[asyncio.Task[None]] = []
    run(stop())

    assert [row.text for row in Conversation.objects.get().history()] == ["Hi.", "Hello!"]
