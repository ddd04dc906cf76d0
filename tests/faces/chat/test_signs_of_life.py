"""Heartbeats: several times a second, a process records which answers it is generating."""

import asyncio
import threading
from collections.abc import Mapping

import pytest

from chatmemory_django.chat.answers import Answer, Answers
from chatmemory_django.chat.models import AnswerStream
from chatmemory_django.chat.streams import DatabaseStreams, Maker, Piece
from tests.asgi import run

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

    async def quick(answer: Answer) -> str:
        return "Bye."

    async def slow(answer: Answer) -> str:
        await asyncio.to_thread(SlowStreams.is_alive.wait, PATIENCE)
        return "Bye."

    async def talk() -> None:
        answers = Answers()
        listening = [
            (await answers.begin(maker, make, wait=0)).listen() for maker, make in ((SECOND, slow), (FIRST, quick))
        ]
        for each in listening:
            async for _ in each:
                pass

    run(talk())

    assert SlowStreams.is_alive.is_set()
    assert not AnswerStream.objects.exists()
