"""Answers with which another process goes on: from the last stored result, in the same stream."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.test import Client

from chatmemory_django.chat.answers.ui_steps import RESTARTED
from chatmemory_django.chat.approvals.tables import ToolApproval
from chatmemory_django.chat.models import AnswerChunk, Run
from chatmemory_django.chat.orders import carried_on
from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.runs.answers import Answers, answers
from chatmemory_django.chat.runs.leases import State
from chatmemory_django.chat.runs.streams import Maker, Piece
from chatmemory_django.chat.runs.tables import before
from chatmemory_django.chat.threads import all_afterwards
from chatmemory_django.chat.tools import Tool
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from tests.database.chat.runs.test_answers import INTERRUPTED, quick
from tests.database.chat.runs.test_streams import REDIS
from tests.faces.chat.approvals.test_approvals import MEMORY_ID, PAY, paid, response_to, talk, whole
from tests.faces.chat.http.test_http import ann, asynchronous, bearer, bob, chat, chunks, no_throttle, parsed, text_of
from tests.faces.chat.scripted import ScriptedModel, calling

__all__ = ["ann", "bob", "chat", "no_throttle", "paid", "quick", "talk"]  # fixtures

pytestmark = pytest.mark.django_db(transaction=True)


@asynccontextmanager
async def cut_off(client, asking: Awaitable | None = None) -> AsyncIterator[list[dict]]:
    """
    Ask, and cut the answer off as the end of a server does, once the second word is to come; yield what its client has.
    """
    gate = client.model.gate = asyncio.Event()
    before = len(client.model.requests)
    asked = asyncio.ensure_future(asking or client.say("Go.", "q"))
    while len(client.model.requests) == before:
        await asyncio.sleep(0.01)
    [made] = answers()._made.values()
    while not any("text-delta" in event for event in made.events):
        await asyncio.sleep(0.01)
    made._task.cancel()
    found = await asked
    gate.set()
    yield found


async def stored_stream() -> str:
    stored = [Piece(chunk.position, chunk.data) async for chunk in AnswerChunk.objects.order_by("position")]
    return "".join(piece.data for piece in stored if piece.fence == stored[-1].fence)


class TestHandingOver:
    @asynchronous
    async def test_the_end_of_the_server_hands_the_run_over(self, chat):
        """Servers cancel all tasks at the end."""
        client = chat(ScriptedModel("one two"))

        async with cut_off(client) as found:
            assert found[-1] == INTERRUPTED
            assert [run.state async for run in Run.objects.all()] == ["asked"]
            assert "error" not in await stored_stream()
            assert "one" in await stored_stream()

    @asynchronous
    async def test_an_edited_question_is_answered_on_its_branch(self, chat):
        client = chat(ScriptedModel("Answer.", "one two", "three four"))
        await client.say("Ask.", "q")

        async with cut_off(client, client.say("Ask better.", "q")):
            found = await chunks(await client.get("/c/stream"))

        assert found[-1]["type"] == "finish"
        conversation = await Conversation.objects.aget()
        assert [row.text async for row in conversation.history()] == ["Ask better.", "three four"]

    @asynchronous
    async def test_a_question_behind_an_earlier_message_is_answered_there(self, chat):
        client = chat(ScriptedModel("Answer.", "one two", "three four"))
        await client.say("Ask.", "q")
        another = client.say("Something else.", "other", trigger="submit-message")  # a list that has only this one

        async with cut_off(client, another):
            found = await chunks(await client.get("/c/stream"))

        assert found[-1]["type"] == "finish"
        conversation = await Conversation.objects.aget()
        assert [row.text async for row in conversation.history()] == ["Something else.", "three four"]

    @asynchronous
    async def test_the_next_reader_sees_it_go_on(self, chat):
        client = chat(ScriptedModel("one two", "three four"))

        async with cut_off(client):
            found = await chunks(await client.get("/c/stream"))

        kinds = [each["type"] for each in found]
        assert kinds == [
            *("start", "start-step", "text-start", "text-delta", "text-end", RESTARTED, "finish-step"),
            *("start-step", "text-start", "text-delta", "text-delta", "text-end", "finish-step", "finish"),
        ]
        assert found[kinds.index(RESTARTED)] == {"type": RESTARTED, "data": {"step": 1}}
        assert text_of(found) == "one three four "
        assert await client.texts() == ["Go.", "three four"]
        [run] = [run async for run in Run.objects.all()]
        assert (run.state, run.pk.hex) == (State.DONE, found[0]["messageId"])
        assert parsed(await stored_stream()) == found
        assert (await client.get("/c/stream")).status_code == 204

    @asynchronous
    async def test_a_process_that_was_stopped_for_long_does_not_take_its_own_run(self, chat):
        client = chat(ScriptedModel("one two"))
        gate = client.model.gate = asyncio.Event()
        asked = asyncio.ensure_future(client.say("Go.", "q"))
        while not client.model.requests:
            await asyncio.sleep(0.01)
        [(maker, answer)] = answers()._made.items()

        leases.leave(answer.taken)  # it is not renewed while the process is stopped
        await Run.objects.aupdate(lease=before(2 * leases.DEAD_AFTER))
        assert await answers().carry_on(maker, carried_on(maker)) is None

        gate.set()
        assert text_of(await asked) == "one two "

    @asynchronous
    async def test_the_same_message_sent_again_goes_on_as_another_run(self, chat):
        client = chat(ScriptedModel("one two", "three four"))

        async with cut_off(client):
            found = await client.say("Go.", "q")

        assert text_of(found) == "three four "
        assert await client.texts() == ["Go.", "three four"]
        assert sorted([run.state async for run in Run.objects.all()]) == ["done", "interrupted"]

    @asynchronous
    async def test_another_question_takes_its_place_at_once(self, chat):
        client = chat(ScriptedModel("one two", "three four"))

        async with cut_off(client):
            await client.say("Another one.", "q2")

        assert await client.texts() == ["Go.", "Another one.", "three four"]
        assert sorted([run.state async for run in Run.objects.all()]) == ["done", "interrupted"]

    @asynchronous
    async def test_a_stop_ends_it_at_once_and_asks_no_model(self, chat):
        client = chat(ScriptedModel("one two"))

        async with cut_off(client):
            response = await client.post({}, "/c/stop")

        assert response.json() == {"stopped": True}
        assert [run.state async for run in Run.objects.all()] == ["stopped"]
        assert [each["type"] for each in parsed(await stored_stream())][4:] == [
            *("text-end", "finish-step", "message-metadata", "abort")
        ]
        assert len(client.model.requests) == 1
        assert (await client.get("/c/stream")).status_code == 204

    @asynchronous
    async def test_a_list_of_the_messages_does_not_go_on_with_it(self, chat):
        client = chat(ScriptedModel("one two"))

        async with cut_off(client):
            assert await client.texts() == ["Go."]

        assert len(client.model.requests) == 1

    def test_under_wsgi_the_next_reader_has_it_whole(self, chat, ann):
        client = chat(ScriptedModel("one two", "three four"))

        @asynchronous
        async def cut() -> None:
            async with cut_off(client):
                pass

        cut()
        client.model.gate = None
        response = Client(headers=bearer(ann)).get("/api/chat/c/stream")

        assert text_of(parsed(response.content.decode())) == "one three four "
        assert Run.objects.get().state == State.DONE


class TestTheDead:
    @asynchronous
    async def test_who_listens_elsewhere_goes_on_with_it(self, chat, ann):
        client, elsewhere = chat(ScriptedModel("one two", "three four")), Answers()

        async with cut_off(client):
            await Run.objects.aupdate(state=State.RUNNING)
            maker = await elsewhere.find(f"{ann.pk}:c", str(ann.pk))
            listening = [
                asyncio.create_task(joined(elsewhere, maker)),
                asyncio.create_task(joined(elsewhere, maker)),
            ]
            first, second = await asyncio.gather(*listening)

        assert first == second
        assert text_of(parsed(first)) == "one three four "
        assert await client.texts() == ["Go.", "three four"]
        assert len(client.model.requests) == 2

    @pytest.mark.parametrize("name", ["q", "r", None])
    @asynchronous
    async def test_a_new_or_edited_question_is_answered_whatever_others_have_asked_since(self, chat, ann, name):
        client = chat(ScriptedModel("Yes.", "one two", "three four"))
        await client.say("Hi.", "q")

        async with cut_off(client, client.say("Go.", name)):
            await Run.objects.aupdate(state=State.RUNNING, question=None)  # as after a kill
            await sync_to_async(get_chat_memory(f"{ann.pk}:c", owner=ann).add)(UserMessage("Something else."))
            found = await chunks(await client.get("/c/stream"))

        assert text_of(found) == "one three four "
        newest = await Run.objects.order_by("created_at").alast()
        assert (await Message.objects.aget(sequence=newest.question)).text == "Go."
        assert client.model.requests[-1].messages[-1].single_text == "Go."

    @asynchronous
    async def test_the_same_question_again_is_the_newest_one(self, chat):
        client = chat(ScriptedModel("one two", "three four", "five six"))

        async with cut_off(client), cut_off(client):
            await Run.objects.aupdate(state=State.RUNNING, question=None)
            found = await chunks(await client.get("/c/stream"))

        assert text_of(found) == "three five six "
        assert await client.texts() == ["Go.", "five six"]

    @asynchronous
    async def test_of_several_processes_one_goes_on(self, chat, ann):
        client, others = chat(ScriptedModel("one two", "three four")), [Answers() for _ in range(4)]

        async with cut_off(client):
            maker = await others[0].find(f"{ann.pk}:c", str(ann.pk))
            found = await asyncio.gather(*(joined(each, maker) for each in others))

        assert [parsed(each) for each in found] == [parsed(found[0])] * 4
        assert len(client.model.requests) == 2

    @asynchronous
    async def test_without_a_way_to_go_on_it_is_waited_for(self, chat, ann):
        client, watching, working = chat(ScriptedModel("one two", "three four")), Answers(), Answers()

        async with cut_off(client):
            maker = await watching.find(f"{ann.pk}:c", str(ann.pk))
            listening = asyncio.create_task(joined(watching, maker, goes_on=False))
            await asyncio.sleep(0.2)
            assert not listening.done()
            made = await working.carry_on(maker, carried_on(maker))
            assert made is not None
            assert await working.carry_on(maker, carried_on(maker)) is None
            found = await listening

        assert text_of(parsed(found)) == "one three four "

    @asynchronous
    async def test_one_of_which_no_stream_is_left_is_streamed_from_its_beginning(self, chat):
        client = chat(ScriptedModel("one two", "three four"))

        async with cut_off(client):
            await AnswerChunk.objects.all().adelete()
            found = await chunks(await client.get("/c/stream"))

        assert text_of(found) == "three four "
        assert RESTARTED not in [each["type"] for each in found]

    @asynchronous
    async def test_one_that_has_stored_no_question_ends_with_an_error(self, chat, ann):
        client = chat("Yes.")
        await client.say("Hi.")
        taken = await sync_to_async(leases.take)("default", f"{ann.pk}:c", ann.pk, UUID(int=1), "")
        await sync_to_async(leases.hand_over)(taken)

        found = await chunks(await client.get("/c/stream"))

        assert found[-1] == INTERRUPTED
        assert len(client.model.requests) == 1
        assert (await Run.objects.aget(pk=taken.run)).state == State.FAILED

    @asynchronous
    async def test_one_whose_assistant_is_gone_ends_with_the_reason(self, chat, settings):
        client = chat(ScriptedModel("one two"))

        async with cut_off(client):
            settings.CHATMEMORY["CHAT"]["ASSISTANT"] = None
            found = await chunks(await client.get("/c/stream"))

        assert found[-1] == {"type": "error", "errorText": "This chat has no assistant."}
        assert [run.state async for run in Run.objects.all()] == ["failed"]

    @asynchronous
    async def test_whose_stream_had_its_end_is_only_ended(self, chat, ann):
        """A process may die between the two, where they are in different places."""
        client = chat("Yes.")
        await client.say("Hi.", "q")
        before = await stored_stream()
        await Run.objects.aupdate(active=(await Conversation.objects.aget()).pk, state=State.ASKED)

        found = await chunks(await client.get("/c/stream"))

        assert found == parsed(before) == parsed(await stored_stream())
        assert len(client.model.requests) == 1

    @asynchronous
    async def test_whose_answer_is_stored_is_not_made_again(self, chat):
        client = chat("Yes.")
        await client.say("Hi.", "q")
        await Run.objects.aupdate(active=(await Conversation.objects.aget()).pk, state=State.ASKED)
        await AnswerChunk.objects.all().adelete()

        found = await chunks(await client.get("/c/stream"))

        assert text_of(found) == "Yes."
        assert await client.texts() == ["Hi.", "Yes."]
        assert len(client.model.requests) == 1

    @asynchronous
    async def test_another_answer_that_was_asked_for_is_made(self, chat):
        client = chat(ScriptedModel("Yes."))
        await client.say("Hi.", "q")
        client.model.answers = ["Yes.", "one two", "three four"]

        async with cut_off(client, client.regenerate()):
            found = await chunks(await client.get("/c/stream"))

        assert text_of(found) == "one three four "
        assert await client.texts() == ["Hi.", "three four"]
        assert await Message.objects.acount() == 3


class TestTools:
    @asynchronous
    async def test_what_was_approved_and_has_run_is_not_run_again(self, talk, paid):
        client = talk(calling(PAY, text="I pay."), "one two", "three four")
        await client.ask()
        question, answer = await client.messages(MEMORY_ID)

        async def approve() -> list[dict]:
            return await chunks(await client.post(whole([question, response_to(answer)])))

        async with cut_off(client, approve()):
            found = await chunks(await client.get(f"/{MEMORY_ID}/stream"))

        kinds = [each["type"] for each in found]
        assert kinds[:3] == ["start", "tool-output-available", "start-step"]
        assert kinds.count(RESTARTED) == 1
        assert found[0]["messageId"] == answer["id"]
        assert text_of(found) == "one three four "
        assert await client.texts(MEMORY_ID) == ["Pay 5.", "I pay.three four"]
        assert paid == [5]

    @asynchronous
    async def test_what_was_approved_and_ran_then_is_unknown(self, talk, paid):
        client, may_end = talk(calling(PAY, text="I pay."), "What a pity."), threading.Event()

        def pay(amount: int) -> str:
            """Pay an amount."""
            paid.append(amount)
            may_end.wait(30)
            return "Paid."

        client.assistant.tools["pay"] = Tool(pay, needs_approval=True)
        await client.ask()
        question, answer = await client.messages(MEMORY_ID)
        asked = asyncio.create_task(client.post(whole([question, response_to(answer)])))
        while not paid:
            await asyncio.sleep(0.01)
        [made] = answers()._made.values()
        made._task.cancel()
        await chunks(await asked)

        found = await chunks(await client.get(f"/{MEMORY_ID}/stream"))
        may_end.set()
        await all_afterwards()

        assert [each["type"] for each in found].count("tool-output-error") == 1
        assert text_of(found) == "What a pity. "
        assert paid == [5]
        assert [approval.state async for approval in ToolApproval.objects.all()] == ["ended"]

    @asynchronous
    async def test_what_waits_goes_on_waiting(self, talk, paid):
        client = talk()
        before = await client.ask()
        await Run.objects.aupdate(active=(await Conversation.objects.aget()).pk, state=State.ASKED)
        await AnswerChunk.objects.all().adelete()

        found = await chunks(await client.get(f"/{MEMORY_ID}/stream"))

        [request] = [each for each in before if each["type"] == "tool-approval-request"]
        assert request in found
        assert [run.state async for run in Run.objects.all()] == ["waiting"]
        assert len(client.model.requests) == 1
        assert paid == []


class TestPlaces:
    def test_in_redis(self, chat, settings):
        settings.CHATMEMORY["CHAT"] |= {
            "REDIS_URL": REDIS,
            "STREAMS": "chatmemory_django.chat.runs.redis_streams.RedisStreams",
        }
        redis = pytest.importorskip("redis")
        redis_streams = pytest.importorskip("chatmemory_django.chat.runs.redis_streams")
        try:
            redis_streams._client(REDIS).ping()
        except redis.ConnectionError:
            pytest.skip("There is no Redis to test with: start one, or set REDIS_URL")

        @asynchronous
        async def go_on() -> None:
            client = chat(ScriptedModel("one two", "three four"))
            async with cut_off(client):
                found = await chunks(await client.get("/c/stream"))
            assert text_of(found) == "one three four "
            assert RESTARTED in [each["type"] for each in found]
            assert not await AnswerChunk.objects.aexists()

        go_on()


async def joined(registry: Answers, maker: Maker, *, goes_on: bool = True) -> str:
    work = (lambda: carried_on(maker)) if goes_on else None
    return "".join([piece async for piece in registry.listen(maker, work)])
