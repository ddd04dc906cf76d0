"""What the chat leaves to the database: each message is stored once, and each answer is found again."""

import asyncio
import logging
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.db import connection

from chatmemory_django.chat.runs import renewals, writing
from chatmemory_django.db import threads
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Message
from chatmemory_django.provider import get_chat_memory
from tests.faces.chat.http.test_http import (
    DOWN,
    all_rows,
    ann,
    asynchronous,
    bob,
    calling,
    chat,
    chunks,
    no_throttle,
    text_of,
    under_way,
    user,
)
from tests.faces.chat.scripted import ScriptedModel
from tests.quick import mostly_slow

__all__ = ["ann", "bob", "chat", "no_throttle"]  # fixtures

pytestmark = pytest.mark.django_db(transaction=True)


class TestRepeatedMessages:
    @asynchronous
    async def test_an_answered_message_posted_again_gets_the_stored_answer_under_its_id(self, chat):
        client = chat("One.", "Two.")
        first = await client.say("Hi.", "u1")

        again = await client.say("Hi.", "u1")

        assert (text_of(first), text_of(again)) == ("One. ", "One.")
        assert first[0]["messageId"] == again[0]["messageId"] == (await client.messages())[1]["id"]
        assert again[-1]["type"] == first[-1]["type"] == "finish"
        assert await client.texts() == ["Hi.", "One."]
        assert len(client.model.requests) == 1

    @asynchronous
    async def test_an_edited_message_keeps_its_id(self, chat):
        client = chat("One.", "Two.", "Three.", "Four.")
        await client.say("First.", "u1")
        await client.say("Second.", "u2")

        await client.say("First, edited.", "u1", messageId="u1")
        assert await client.texts() == ["First, edited.", "Three."]
        assert (await client.messages())[0]["id"] == "u1"

        await client.say("First, edited twice.", "u1", messageId="u1")
        assert await client.texts() == ["First, edited twice.", "Four."]
        assert client.model.sent[-1] == [UserMessage("First, edited twice.")]

    @asynchronous
    async def test_the_last_answer_is_regenerated(self, chat):
        client = chat("One.", "Two.")
        await client.say("Hi.", "u1")

        found = await client.regenerate(messages=[user("Hi.", "u1")])

        assert text_of(found) == "Two. "
        assert await client.texts() == ["Hi.", "Two."]

    @asynchronous
    async def test_so_is_that_of_an_edit_which_its_page_knows_by_the_id_of_the_first_version(self, chat):
        client = chat("One.", "Edited.", "Edited, again.")
        await client.say("First.", "u1")
        await client.say("First, edited.", "u1", messageId="u1")

        await client.regenerate(messages=[user("First, edited.", "u1")])

        assert await client.texts() == ["First, edited.", "Edited, again."]

    @asynchronous
    async def test_an_answer_is_found_by_its_id_or_its_questions_id(self, chat):
        def noon() -> str:
            """Do it."""
            return "12:00"

        client = chat("One.", calling(("1", "noon", "{}")), "Two.", "Three.", "Four.", tools=[noon])
        await client.say("First.", "u1")
        await client.say("Second.", "u2")
        answer = (await client.messages())[3]["id"]

        await client.regenerate(answer)
        assert await client.texts() == ["First.", "One.", "Second.", "Three."]
        await client.regenerate("u1")
        assert await client.texts() == ["First.", "Four."]

    @asynchronous
    async def test_messages_without_an_id_are_found_by_their_sequence(self, chat, ann):
        chat_id = str(uuid4())
        await get_chat_memory(chat_id, owner=ann).aadd(UserMessage("Hi."), AiMessage("One."))
        await Message.objects.aupdate(client_message_id=None)
        client = chat("Two.")
        assert [each["id"] for each in await client.messages(chat_id)] == ["message-1", "message-2"]

        await client.regenerate("message-2", chat_id)

        assert await client.texts(chat_id) == ["Hi.", "Two."]

    @asynchronous
    async def test_after_an_error_the_question_is_stored_once_and_can_be_answered(self, chat):
        client = chat(DOWN, DOWN, "Hello.")

        failed = await client.say("Hi.", "u1")
        again = await client.regenerate(messages=[user("Hi.", "u1")])
        waiting = await client.texts()
        found = await client.regenerate(messages=[user("Hi.", "u1")])

        assert failed[-1]["type"] == again[-1]["type"] == "error"
        assert waiting == ["Hi."]
        assert text_of(found) == "Hello. "
        assert await client.texts() == ["Hi.", "Hello."]
        assert not await Message.objects.incomplete().aexists()

    @asynchronous
    async def test_regenerate_stores_a_question_that_never_arrived(self, chat):
        client = chat("Hello.")

        await client.regenerate(messages=[user("Hi.", "u1")])

        assert await client.texts() == ["Hi.", "Hello."]

    @pytest.mark.parametrize("message_id", [None, "u2"])
    @asynchronous
    async def test_a_question_that_is_named_is_the_one_that_its_page_sends(self, chat, message_id):
        client = chat("One.", "Two.", "Three.")
        await client.say("First.", "u1")
        shown = await client.messages()

        await client.regenerate(message_id, messages=[*shown, user("Never arrived.", "u2")])
        assert await client.texts() == ["First.", "One.", "Never arrived.", "Two."]
        await client.regenerate(message_id, messages=[*shown, user("Edited.", "u2")])

        assert await client.texts() == ["First.", "One.", "Edited.", "Three."]

    @asynchronous
    async def test_a_failed_edit_keeps_the_previous_version_and_can_be_retried(self, chat):
        client = chat("One.", DOWN, "Two.")
        await client.say("First.", "u1")

        await client.say("Edited.", "u1", messageId="u1")
        assert await client.texts() == ["First.", "One."]
        await client.regenerate(messages=[user("Edited.", "u1")])

        assert await client.texts() == ["Edited.", "Two."]
        assert [row.text for row in await sync_to_async(all_rows)()] == ["First.", "One.", "Edited.", "Two."]

    @asynchronous
    async def test_regenerate_requires_an_existing_message(self, chat):
        client = chat("One.")

        for body in ({}, {"messageId": "nothing"}):
            response = await client.post({"id": "c", "trigger": "regenerate-message", "messages": [], **body})
            assert (response.status_code, response.content) == (404, b"There is no message to answer.")


class TestLostQuestions:
    """A question whose answer failed: its page sends it again, and other pages went on in the meantime."""

    async def lost(self, chat, *answers, **options):
        client = chat(DOWN, "Two.", *answers, **options)
        await client.say("First?", "u1")
        await client.say("Second?", "u2")
        return client

    @pytest.mark.parametrize(
        ("how", "last"),
        [
            ("regenerate", "One, again."),
            ("regenerate by id", "One, again."),
            ("say", "One."),
            ("json", "One."),
        ],
    )
    def test_what_was_answered_meanwhile_stays(self, chat, how, last):
        """Once it has an answer, only to regenerate makes another one."""

        @asynchronous
        async def test() -> None:
            client = await self.lost(chat, DOWN, "One.", "One, again.")
            for answer in ("", "One.", last):
                match how:
                    case "regenerate":
                        await client.regenerate(messages=[user("First?", "u1")])
                    case "regenerate by id":
                        await client.regenerate("u1", messages=[user("First?", "u1")])
                    case "say":
                        await client.say("First?", "u1")
                    case "json":
                        body = {"id": "c", "message": user("First?", "u1")}
                        await client.post(body, Accept="application/json")
                assert await client.texts() == ["First?", "Second?", "Two.", "First?", *([answer] if answer else [])]

        test()

    @asynchronous
    async def test_each_message_of_a_page_has_an_id_of_its_own(self, chat):
        client = await self.lost(chat, "One.", "One, again.", "Edited.")
        await client.say("First?", "u1")

        messages = await client.messages()
        assert len({each["id"] for each in messages}) == 5
        again = messages[3]["id"]
        await client.regenerate(again)
        assert await client.texts() == ["First?", "Second?", "Two.", "First?", "One, again."]
        await client.say("First, edited?", again, messageId=again)

        assert await client.texts() == ["First?", "Second?", "Two.", "First, edited?", "Edited."]
        assert (await client.messages())[3]["id"] == again

    @asynchronous
    async def test_an_answer_is_regenerated_by_its_id_wherever_its_question_is(self, chat):
        client = await self.lost(chat, "One.", "One, again.", "Two, again.")
        await client.say("First?", "u1")

        await client.regenerate((await client.messages())[4]["id"])
        assert await client.texts() == ["First?", "Second?", "Two.", "First?", "One, again."]

        await client.regenerate((await client.messages())[2]["id"])
        assert await client.texts() == ["First?", "Second?", "Two, again."]

    @pytest.mark.parametrize("how", ["regenerate", "regenerate by id", "regenerate the newest", "say"])
    def test_after_a_clear_it_is_asked_once_more(self, chat, ann, how):
        @asynchronous
        async def test() -> None:
            client = chat("Zero.", DOWN, DOWN, "One.")
            await client.say("Before?", "u0")
            await client.say("First?", "u1")
            await get_chat_memory(f"{ann.pk}:c", owner=ann).aclear()

            for _ in range(2):
                match how:
                    case "regenerate":
                        found = await client.regenerate(messages=[user("First?", "u1")])
                    case "regenerate by id":
                        found = await client.regenerate("u1", messages=[user("First?", "u1")])
                    case "regenerate the newest":
                        found = await client.regenerate()
                    case "say":
                        found = await client.say("First?", "u1")

            assert text_of(found) == "One. "
            assert client.model.sent[-1] == [UserMessage("First?")]
            assert await client.texts() == ["Before?", "Zero.", "First?", "First?", "One."]

        test()

    @pytest.mark.parametrize("how", ["regenerate", "regenerate by id", "say"])
    def test_a_removed_question_is_refused(self, chat, ann, how):
        @asynchronous
        async def test() -> None:
            client = chat("One.")
            await client.say("First?", "u1")
            await get_chat_memory(f"{ann.pk}:c", owner=ann).aremove(1)
            again = {"messages": [user("First?", "u1")]}

            match how:
                case "regenerate":
                    found = await client.regenerate(**again)
                case "regenerate by id":
                    found = await client.regenerate("u1", **again)
                case "say":
                    found = await client.say("First?", "u1")
            refused = await client.post({"id": "c", **again}, Accept="application/json")

            assert found[-1] == {"type": "error", "errorText": "The conversation has changed. Load it again."}
            assert refused.status_code == 409
            assert await client.texts() == ["One."]

        test()

    @pytest.mark.parametrize("how", mostly_slow(["regenerate", "regenerate by id", "say"]))
    def test_where_it_is_answered_is_decided_when_its_turn_comes(self, chat, settings, how):
        """It was the newest message when it was sent again, but another question was answered before it."""

        @asynchronous
        async def test() -> None:
            gate = asyncio.Event()
            client = chat(ScriptedModel(DOWN, "Two words.", "One.", gate=gate))
            settings.CHATMEMORY["CHAT"]["WAIT_SECONDS"] = 60
            await client.say("First?", "u1")

            async with under_way(client, "Second?") as second:
                match how:
                    case "regenerate":
                        again = client.regenerate(messages=[user("First?", "u1")])
                    case "regenerate by id":
                        again = client.regenerate("u1", messages=[user("First?", "u1")])
                    case "say":
                        again = client.say("First?", "u1")
                first = asyncio.create_task(again)
                await asyncio.sleep(0.6)
                gate.set()
                await second
                await first

            assert await client.texts() == ["First?", "Second?", "Two words.", "First?", "One."]

        test()

    @pytest.mark.slow
    @asynchronous
    async def test_of_several_retries_at_once_one_is_answered_and_the_others_get_that_answer(self, chat, settings):
        client = await self.lost(chat, "One.")
        settings.CHATMEMORY["CHAT"]["WAIT_SECONDS"] = 60

        await asyncio.gather(*(client.say("First?", "u1") for _ in range(4)))

        assert await client.texts() == ["First?", "Second?", "Two.", "First?", "One."]
        assert len(await sync_to_async(all_rows)()) == 5


class TestCosts:
    """How often an answer goes to the database: each of these takes the processor as long as a small request."""

    @pytest.fixture
    def sent(self, settings, monkeypatch, caplog):
        """Record the statements of each call in a thread."""
        calls = []
        call = threads._call

        def recorded(function):
            caplog.clear()
            try:
                return call(function)
            finally:
                found = [record.sql for record in caplog.records if getattr(record, "sql", None)]
                new = ("SET", "SELECT @@", "SELECT VERSION")  # what a new connection asks
                calls.append([sql for sql in found if not sql.strip().startswith(new)])

        settings.DEBUG = True
        caplog.set_level(logging.DEBUG, "django.db.backends")
        monkeypatch.setattr(threads, "_call", recorded)
        monkeypatch.setattr(writing, "INTERVAL", 60)  # nothing is written while the answer is made
        monkeypatch.setattr(renewals, "RENEW", 60)
        return calls

    @pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
    def test_an_answer_takes_three_calls_in_threads_and_few_statements(self, chat, sent, accept):
        @asynchronous
        async def test() -> None:
            client = chat("One.", "Two.")
            chat_id = str(uuid4())
            await client.say("First?", chat_id=chat_id)
            sent.clear()

            response = await client.post({"id": chat_id, "message": user("Second?")}, Accept=accept)
            if accept != "application/json":
                await chunks(response)

            assert response.status_code == 200

        test()
        at_once = connection.vendor == "postgresql"
        run, question, answer, end = (1, 1, 1, 1) if at_once else (4, 4, 5, 4)
        calls = 0 if at_once else 1  # that are recorded
        message = 2 * (accept == "application/json")
        assert [len(each) for each in sent] == [2, run + 3 + question, answer + calls + message + end]
