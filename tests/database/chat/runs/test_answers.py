"""Answers whose process is in trouble: its database is away, its run is taken from it, or it has too much to do."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections
from django.db.models import F

from chatmemory_django.chat.models import AnswerChunk, ModelCall, Run
from chatmemory_django.chat.runs import answer as answer_module
from chatmemory_django.chat.runs import answers as answers_module
from chatmemory_django.chat.runs import following, leases, overload, renewals, writing
from chatmemory_django.chat.runs.answer import TOUCH_AFTER, Answer
from chatmemory_django.chat.runs.answers import Answers, answers
from chatmemory_django.chat.runs.leases import DEAD_AFTER, Taken
from chatmemory_django.chat.runs.streams import MAX_PIECES, DatabaseStreams, Maker, Piece
from chatmemory_django.db import threads
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from tests.faces.chat.http.test_http import (
    _joined,
    ann,
    asynchronous,
    bob,
    chat,
    chunks,
    no_throttle,
    text_of,
    under_way,
    user,
)
from tests.faces.chat.scripted import Saying, ScriptedModel
from tests.logs import logged_by
from tests.waiting import wait_until

__all__ = ["ann", "bob", "chat", "no_throttle"]  # fixtures

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE = 30
"""Seconds after which a test gives up waiting."""

CHANGED = {"type": "error", "errorText": "The conversation has changed. Load it again."}
INTERRUPTED = {"type": "error", "errorText": "The answer was interrupted. Try again."}
WRONG = {"type": "error", "errorText": "Something went wrong. Try again."}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, seconds in (
        (renewals, "RENEW", 0.02),
        (answers_module, "INTERVAL", 0.02),
        (following, "INTERVAL", 0.02),
        (writing, "INTERVAL", 0.02),
        (answers_module, "FIRST_PAUSE", 0.02),
    ):
        monkeypatch.setattr(module, name, seconds)


@contextmanager
def away() -> Iterator[None]:
    """Let each new connection to the database fail, as all do if the server is away: here, they end with each call."""
    settings = connection.settings_dict
    broken = {"NAME": "/nowhere/db.sqlite3"} if connection.vendor == "sqlite" else {"HOST": "127.0.0.1", "PORT": "1"}
    before = {name: settings[name] for name in broken}
    settings.update(broken)
    try:
        yield
    finally:
        settings.update(before)


def let_die(**conditions: object) -> None:
    """Pretend that the process of the runs in progress has renewed no lease for long."""
    renewals.renewal("default").stop()
    silent = Run.objects.filter(active__isnull=False, **conditions)
    silent.update(lease=F("lease") - timedelta(seconds=DEAD_AFTER + 1))


def take_over(memory_id: str) -> Taken:
    let_die()
    taken = leases.take("default", memory_id, None, uuid4())
    assert isinstance(taken, Taken)
    return taken


class TestEnds:
    @asynchronous
    async def test_an_answer_is_stored_once_the_database_is_there_again(self, chat, caplog):
        gate = asyncio.Event()
        client = chat(ScriptedModel("one two", gate=gate))

        async with under_way(client, "Count.") as asked:
            with away():
                gate.set()
                while "this is tried again" not in caplog.text:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.2)
                assert not asked.done()
            found = await asked

        assert text_of(found) == "one two "
        assert found[-1]["type"] == "finish"
        assert await client.texts() == ["Count.", "one two"]
        assert [run.state async for run in Run.objects.all()] == ["done"]
        assert [call.outcome async for call in ModelCall.objects.all()] == ["completed"]
        assert caplog.text.count("this is tried again") == 1
        assert len(client.model.requests) == 1

    @asynchronous
    async def test_a_stopped_one_is_stored_once_and_in_part(self, chat, caplog):
        client = chat(ScriptedModel("one two", gate=asyncio.Event()))

        async with under_way(client, "Count.") as asked:
            while not await AnswerChunk.objects.aexists():
                await asyncio.sleep(0.01)
            [made] = answers()._made.values()
            with away():
                made.stop()
                while "this is tried again" not in caplog.text:
                    await asyncio.sleep(0.01)
            found = await asked

        assert found[-1]["type"] == "abort"
        assert await client.texts() == ["Count.", "one "]
        assert [run.state async for run in Run.objects.all()] == ["stopped"]

    @asynchronous
    async def test_one_is_given_up_after_some_time_with_an_error(self, chat, settings, caplog):
        settings.CHATMEMORY["CHAT"]["END_SECONDS"] = 1
        gate = asyncio.Event()
        client = chat(ScriptedModel("one two", gate=gate))

        async with under_way(client, "Count.") as asked:
            with away():
                gate.set()
                found = await asked

        assert text_of(found) == "one two "
        assert found[-1] == WRONG
        assert "was given up" in caplog.text
        assert await client.texts() == ["Count."]
        # The next question takes it over.
        before = await Run.objects.aget()
        await asyncio.sleep(0.1)
        assert (await Run.objects.aget()).lease == before.lease
        assert before.state == "running"
        await sync_to_async(let_die)()
        assert text_of(await client.say("Again.")) == "one two "

    def test_errors_that_do_not_pass_are_not_tried_again(self, ann, caplog):
        class Broken(Saying):
            ends = 0

            def end(self, answer: Answer) -> str:
                self.ends += 1
                raise ValueError("Broken.")

        @asynchronous
        async def test() -> None:
            made = await Answers().begin(Maker("c", str(ann.pk), uuid4().hex), work, wait=0)
            assert await _joined(made.listen()) == "Given up: ValueError."

        work = Broken("Bye.")
        test()

        assert work.ends == 1
        assert "was given up" in caplog.text


class TestRunsThatAreLost:
    @asynchronous
    async def test_whose_run_was_taken_over_stops_at_once_and_stores_nothing(self, chat, ann):
        client = chat(ScriptedModel("one two", gate=asyncio.Event()))
        memory_id = f"{ann.pk}:c"

        async with under_way(client, "Count.") as asked:
            while not await AnswerChunk.objects.aexists():
                await asyncio.sleep(0.01)
            other = await sync_to_async(take_over)(memory_id)
            pieces = {Maker(memory_id, str(ann.pk), other.run.hex): Piece(0, "of the other")}
            await sync_to_async(DatabaseStreams().write)(pieces)
            found = await asked

        assert found[-1] == CHANGED
        assert client.model.open_streams == 0
        assert await client.texts() == ["Count."]
        assert [chunk.data async for chunk in AnswerChunk.objects.all()] == ["of the other"]
        states = {run.pk: run.state async for run in Run.objects.all()}
        assert sorted(states.values()) == ["interrupted", "running"]
        assert states[other.run] == "running"

    @asynchronous
    async def test_one_that_ends_while_that_is_looked_up_keeps_its_stream(self, chat, monkeypatch):
        """Who reads it in another process would miss its end."""
        gate, loop = asyncio.Event(), asyncio.get_running_loop()
        client = chat(ScriptedModel("one two", gate=gate))
        stopping = leases.stopping

        def late(*args: object) -> object:
            loop.call_soon_threadsafe(gate.set)
            assert wait_until(lambda: not Run.objects.filter(active__isnull=False).exists())
            return stopping(*args)

        async with under_way(client, "Count.") as asked:
            while not await AnswerChunk.objects.aexists():
                await asyncio.sleep(0.01)
            monkeypatch.setattr(leases, "stopping", late)
            await asked
            await asyncio.sleep(0.1)

        assert (await AnswerChunk.objects.alast()).data.endswith("data: [DONE]\n\n")

    @asynchronous
    async def test_whose_conversation_is_erased_writes_nothing_more(self, chat):
        client = chat(ScriptedModel("one two", gate=asyncio.Event()))

        async with under_way(client, "Count.") as asked:
            while not await AnswerChunk.objects.aexists():
                await asyncio.sleep(0.01)
            [made] = answers()._made.values()
            await sync_to_async(Conversation.objects.all().delete)()
            made.put('data: {"type":"more"}\n\n')
            found = await asked

        assert found[-1] == CHANGED
        assert not await AnswerChunk.objects.aexists()
        assert not await Message.objects.aexists()

    @asynchronous
    async def test_a_process_that_paused_goes_on_if_nobody_took_its_place(self, chat):
        gate = asyncio.Event()
        client = chat(ScriptedModel("one two", gate=gate))

        async with under_way(client, "Count.") as asked:
            await sync_to_async(let_die)()
            await asyncio.sleep(0.1)
            gate.set()
            found = await asked

        assert text_of(found) == "one two "
        assert await client.texts() == ["Count.", "one two"]


class TestListenersElsewhere:
    """Clients that listen in another process than the one that generates the answer."""

    async def listening(self, chat, ann, pieces: list[str]) -> tuple[Taken, asyncio.Task[list[dict]]]:
        """Return a run of another process that has written *pieces*, and a client that has read them."""
        client, memory_id = chat("Yes."), str(uuid4())
        await get_chat_memory(memory_id, owner=ann).aadd(UserMessage("Hi."))
        taken = await sync_to_async(leases.take)("default", memory_id, ann.pk, uuid4())
        maker = Maker(memory_id, str(ann.pk), taken.run.hex)
        for place, piece in enumerate(pieces):
            position = taken.fence * MAX_PIECES + place
            await sync_to_async(DatabaseStreams().write)({maker: Piece(position, piece)})
        response = await client.get(f"/{memory_id}/stream")
        task = asyncio.create_task(chunks(response))
        while pieces and not any(followed.events for followed in answers()._following._followed.values()):
            await asyncio.sleep(0.01)
        return taken, task

    @asynchronous
    async def test_they_learn_that_its_process_died(self, chat, ann):
        _, listening = await self.listening(chat, ann, ['data: {"type":"start"}\n\n'])

        await sync_to_async(let_die)()

        assert await listening == [{"type": "start"}, INTERRUPTED]

    @asynchronous
    async def test_they_learn_that_another_has_taken_its_place(self, chat, ann):
        taken, listening = await self.listening(chat, ann, [])
        memory_id = (await Conversation.objects.aget(pk=taken.conversation)).memory_id

        await sync_to_async(take_over)(memory_id)

        assert await listening == [INTERRUPTED]

    @asynchronous
    async def test_they_learn_that_its_conversation_was_erased(self, chat, ann):
        _, listening = await self.listening(chat, ann, ['data: {"type":"start"}\n\n'])

        await sync_to_async(Conversation.objects.all().delete)()

        assert await listening == [{"type": "start"}, INTERRUPTED]

    @asynchronous
    async def test_they_learn_that_the_database_is_away(self, chat, ann):
        _, listening = await self.listening(chat, ann, ['data: {"type":"start"}\n\n'])

        with away():
            assert await listening == [{"type": "start"}, WRONG]

    @asynchronous
    async def test_they_learn_that_its_end_is_lost(self, chat, ann):
        taken, listening = await self.listening(chat, ann, ['data: {"type":"start"}\n\n'])

        await sync_to_async(leases.end)(taken, leases.State.DONE)

        assert await listening == [{"type": "start"}, INTERRUPTED]

    @asynchronous
    async def test_a_run_without_a_stream_ends_without_an_error(self, chat, ann):
        """As that of ``Assistant.chat``, which nobody can listen to."""
        taken, listening = await self.listening(chat, ann, [])

        await sync_to_async(leases.end)(taken, leases.State.DONE)

        assert await listening == []

    @asynchronous
    async def test_a_stop_waits_for_the_end_whatever_that_is(self, chat, ann):
        taken, listening = await self.listening(chat, ann, [])
        maker = Maker((await Conversation.objects.aget()).memory_id, str(ann.pk), taken.run.hex)
        stopping = asyncio.create_task(answers().stop(maker))
        while not (await Run.objects.aget()).is_stopping:
            await asyncio.sleep(0.01)

        await sync_to_async(let_die)()

        assert await stopping is None
        await listening

    @asynchronous
    async def test_a_silent_answer_keeps_its_pieces(self, ann, monkeypatch):
        monkeypatch.setattr(answer_module, "TOUCH_AFTER", 0.05)
        gate = asyncio.Event()

        async def make(answer: Answer) -> None:
            answer.put("Hi. ")
            await gate.wait()

        made = await answers().begin(Maker("c", str(ann.pk), uuid4().hex), Saying("Bye.", make), wait=0)
        while not await AnswerChunk.objects.aexists():
            await asyncio.sleep(0.01)
        before = (await AnswerChunk.objects.aget()).written_at

        while (await AnswerChunk.objects.aget()).written_at == before:
            await asyncio.sleep(0.01)

        assert TOUCH_AFTER < answer_module.KEEP
        gate.set()
        assert await _joined(made.listen()) == "Hi. Bye."


class TestOverload:
    @pytest.fixture
    def go_on(self, monkeypatch) -> Iterator[Callable[[], None]]:
        """Keep all threads that use the database busy until the test calls this."""
        monkeypatch.setattr(overload, "BEGIN_SECONDS", 0.1)
        monkeypatch.setattr(overload._overload, "is_there", False)
        may_go_on, are_busy = threading.Event(), threading.Barrier(threads.background().threads + 1)

        def wait() -> None:
            are_busy.wait(PATIENCE)
            may_go_on.wait(PATIENCE)

        waiting = [threads.background().submit(wait) for _ in range(threads.background().threads)]
        are_busy.wait(PATIENCE)

        def go_on() -> None:
            monkeypatch.setattr(overload, "BEGIN_SECONDS", PATIENCE)
            may_go_on.set()

        yield go_on
        go_on()
        for each in waiting:
            each.result(PATIENCE)

    def test_a_question_is_refused_instead_of_waiting_without_end(self, chat, go_on, caplog):
        @asynchronous
        async def test() -> None:
            client = chat("Yes.")
            for _ in range(3):
                response = await client.post({"id": "c", "message": user("Hi.")})
                assert (response.status_code, response.headers["Retry-After"]) == (503, "5")
                assert response.content == b"There are too many requests now; try again."
            go_on()
            assert text_of(await client.say("Hi.")) == "Yes. "
            assert await client.texts() == ["Hi.", "Yes."]

        test()

        logged = logged_by(caplog, overload.logger.name)
        assert [record.levelno for record in logged] == [logging.WARNING] * 2
        assert Run.objects.count() == 1

    def test_other_requests_are_refused_just_as_well(self, chat, go_on):
        @asynchronous
        async def test() -> None:
            client = chat("Yes.")
            for response in (
                await client.get("/c/messages"),
                await client.get("/c/stream"),
                await client.post({}, "/c/stop"),
            ):
                assert (response.status_code, response.headers["Retry-After"]) == (503, "5")

        test()

    def test_an_answer_that_no_thread_takes_up_never_begins(self, ann, go_on):
        begun = []

        class Noted(Saying):
            def begin(self, answer: Answer) -> None:
                begun.append(answer)

        @asynchronous
        async def test() -> None:
            with pytest.raises(overload.NoThreadError):
                await answers().begin(Maker("c", str(ann.pk), uuid4().hex), Noted("Bye."), wait=0)
            go_on()
            assert answers()._made == {}

        test()

        assert wait_until(lambda: threads.background()._executor._work_queue.empty())
        assert begun == []
        assert not Run.objects.exists()

    def test_answers_in_progress_go_on(self, ann, go_on):
        """They hold their leases, and their own listeners read on."""

        @asynchronous
        async def test() -> None:
            go_on()
            gate = asyncio.Event()

            async def make(answer: Answer) -> None:
                await gate.wait()
                answer.put("Hi. ")

            made = await answers().begin(Maker("c", str(ann.pk), uuid4().hex), Saying("Bye.", make), wait=0)
            may_go_on = threading.Event()
            submit = threads.background().submit
            waiting = [submit(may_go_on.wait, PATIENCE) for _ in range(2 * threads.background().threads)]
            lease = (await Run.objects.aget()).lease
            while (await Run.objects.aget()).lease == lease:
                await asyncio.sleep(0.01)
            gate.set()
            listening = made.listen()
            assert await anext(listening) == "Hi. "
            may_go_on.set()
            assert await _joined(listening) == "Bye."
            assert all(each.result() for each in waiting)

        test()


def test_the_registry_names_a_run_by_the_id_of_its_answer(ann):
    @asynchronous
    async def test() -> None:
        maker = Maker("c", str(ann.pk), uuid4().hex)
        gate = asyncio.Event()

        async def make(answer: Answer) -> None:
            await gate.wait()

        made = await answers().begin(maker, Saying("Bye.", make), wait=0)
        assert (await Run.objects.aget()).pk == UUID(maker.answer_id)
        assert await Answers().find("c", str(ann.pk)) == maker
        assert await Answers().find("c", str(ann.pk + 1)) is None
        gate.set()
        await _joined(made.listen())

    test()
    connections.close_all()
