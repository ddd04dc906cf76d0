"""Signs of life: while a process generates an answer, or stores it, nobody takes it for dead."""

import asyncio
import threading
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model

from chatmemory_django.chat.models import Run
from chatmemory_django.chat.runs import renewals
from chatmemory_django.chat.runs.answer import Answer
from chatmemory_django.chat.runs.answers import Answers
from chatmemory_django.chat.runs.streams import DatabaseStreams, Maker, Piece
from tests.asgi import run
from tests.faces.chat.scripted import Saying
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE = 30
"""Seconds after which a test gives up waiting."""


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> Maker:
    monkeypatch.setattr(renewals, "RENEW", 0.02)
    return Maker("one", str(get_user_model().objects.create_user("ann").pk), uuid4().hex)


class SlowStreams(DatabaseStreams):
    """Streams in which the end of the first answer is written only after the second has written a piece."""

    is_ending, is_alive = threading.Event(), threading.Event()

    def write(self, pieces) -> None:
        if self.is_ending.is_set() and any(maker.memory_id == "two" for maker in pieces):
            self.is_alive.set()
        super().write(pieces)

    def end(self, maker: Maker, last: Piece, *args) -> bool:
        if maker.memory_id == "one":
            self.is_ending.set()
            assert self.is_alive.wait(PATIENCE)
        return super().end(maker, last, *args)


def test_an_answer_that_ends_slowly_does_not_delay_the_pieces_of_others(settings, maker):
    settings.CHATMEMORY = {"CHAT": {"STREAMS": f"{__name__}.SlowStreams"}}
    second = maker._replace(memory_id="two", answer_id=uuid4().hex)

    async def slow(answer: Answer) -> None:
        await asyncio.to_thread(SlowStreams.is_ending.wait, PATIENCE)
        answer.put("Hi. ")
        await asyncio.to_thread(SlowStreams.is_alive.wait, PATIENCE)

    async def talk() -> None:
        answers = Answers()
        listening = [
            (await answers.begin(each, work, wait=0)).listen()
            for each, work in ((second, Saying("Bye.", slow)), (maker, Saying("Bye.")))
        ]
        for each in listening:
            async for _ in each:
                pass

    run(talk())

    assert SlowStreams.is_alive.is_set()
    assert not Run.objects.filter(active__isnull=False).exists()


class SlowlyStored(Saying):
    """The work of an answer whose question and answer are stored only after a renewal each."""

    renewals = 0

    def begin(self, answer: Answer) -> None:
        self.wait(answer)

    def end(self, answer: Answer) -> str:
        self.wait(answer)
        return super().end(answer)

    def wait(self, answer: Answer) -> None:
        assert answer.taken is not None
        leases = Run.objects.filter(pk=answer.taken.run).values_list("lease", flat=True)
        before = leases.get()
        self.renewals += wait_until(lambda: leases.get() > before)


def test_an_answer_is_alive_while_it_is_being_stored(maker):
    work = SlowlyStored("Bye.")

    async def talk() -> list[str]:
        return [piece async for piece in (await Answers().begin(maker, work, wait=0)).listen()]

    assert run(talk()) == ["Bye."]
    assert work.renewals == 2
    assert not Run.objects.filter(active__isnull=False).exists()
