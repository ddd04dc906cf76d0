"""Heartbeats: several times a second, a process records which answers it is generating."""

import asyncio
import threading
from collections.abc import Mapping

import pytest

from chatmemory_django.chat.models import AnswerStream
from chatmemory_django.chat.runs.answers import Answer, Answers
from chatmemory_django.chat.runs.streams import DatabaseStreams, Maker, Piece
from tests.asgi import run
from tests.faces.chat.scripted import Saying

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE = 30
"""Seconds after which a test gives up waiting."""

FIRST, SECOND = Maker("one", "1", "a"), Maker("two", "1", "b")


class SlowStreams(DatabaseStreams):
    """Streams in which the end of the first answer is written only after the second has sent a heartbeat."""

    is_ending, is_alive = threading.Event(), threading.Event()

    def write(self, pieces: Mapping[Maker, Piece]) -> set[Maker]:
        if self.is_ending.is_set() and SECOND in pieces:
            self.is_alive.set()
        return super().write(pieces)

    def end(self, maker: Maker, last: Piece) -> None:
        if maker == FIRST:
            self.is_ending.set()
            assert self.is_alive.wait(PATIENCE)
        super().end(maker, last)


def test_an_answer_that_ends_slowly_does_not_delay_other_heartbeats(settings):
    settings.CHATMEMORY = {"CHAT": {"STREAMS": f"{__name__}.SlowStreams"}}

    async def slow(answer: Answer) -> None:
        await asyncio.to_thread(SlowStreams.is_alive.wait, PATIENCE)

    async def talk() -> None:
        answers = Answers()
        listening = [
            (await answers.begin(maker, work, wait=0)).listen()
            for maker, work in ((SECOND, Saying("Bye.", slow)), (FIRST, Saying("Bye.")))
        ]
        for each in listening:
            async for _ in each:
                pass

    run(talk())

    assert SlowStreams.is_alive.is_set()
    assert not AnswerStream.objects.exists()


class HeardStreams(DatabaseStreams):
    """Streams that signal each heartbeat."""

    is_alive = threading.Event()

    def write(self, pieces: Mapping[Maker, Piece]) -> set[Maker]:
        self.is_alive.set()
        return super().write(pieces)


class SlowlyStored(Saying):
    """The work of an answer whose question and answer are stored only after a heartbeat each."""

    heartbeats = 0

    def begin(self) -> None:
        self.wait()

    def end(self, answer: Answer) -> str:
        self.wait()
        return super().end(answer)

    def wait(self) -> None:
        HeardStreams.is_alive.clear()
        self.heartbeats += HeardStreams.is_alive.wait(PATIENCE)


def test_an_answer_is_alive_while_it_is_being_stored(settings):
    settings.CHATMEMORY = {"CHAT": {"STREAMS": f"{__name__}.HeardStreams"}}
    work = SlowlyStored("Bye.")

    async def talk() -> list[str]:
        return [piece async for piece in (await Answers().begin(FIRST, work, wait=0)).listen()]

    assert run(talk()) == ["Bye."]
    assert work.heartbeats == 2
    assert not AnswerStream.objects.exists()
