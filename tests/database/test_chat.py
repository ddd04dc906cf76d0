"""What the chat leaves to the database: each message is stored once, and each answer is found again."""

from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async

from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Message
from chatmemory_django.provider import get_chat_memory
from tests.faces.chat.test_http import DOWN, all_rows, ann, asynchronous, bob, calling, chat, no_throttle, text_of, user

__all__ = ["ann", "bob", "chat", "no_throttle"]  # fixtures

pytestmark = pytest.mark.django_db(transaction=True)


class TestRepeatedMessages:
    @asynchronous
    async def test_a_message_posted_twice_is_stored_once(self, chat):
        client = chat("One.", "Two.")

        await client.say("Hi.", "u1")
        await client.say("Hi.", "u1")

        assert await client.texts() == ["Hi.", "Two."]

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
    async def test_an_answer_is_found_by_its_id_or_its_questions_id(self, chat):
        def noon() -> str:
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
