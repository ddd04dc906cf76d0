"""What a page can show of an answer in words: what was refused, rejected or shortened, and what nobody knows."""

import asyncio

import pytest

from chatmemory_django.chat.model import ContentFilterError, ContextLengthError, InvalidRequestError
from chatmemory_django.chat.tools import Tool
from chatmemory_django.memory import TokenWindowChatMemory
from chatmemory_django.messages import UserMessage
from chatmemory_django.provider import get_chat_memory
from tests.estimators import Words
from tests.faces.chat.http.test_http import ann, asynchronous, bob, chat, chunks, no_throttle, reason_of, text_of, user
from tests.faces.chat.scripted import ScriptedModel, calling
from tests.pictures import PNG as PICTURE
from tests.pictures import encoded

__all__ = ["ann", "bob", "chat", "no_throttle"]  # fixtures

pytestmark = pytest.mark.django_db(transaction=True)

CALL = calling(("c1", "wait", "{}"))
JSON = {"Accept": "application/json"}
UNKNOWN = "The outcome of this call is unknown."
PNG = {
    "type": "file",
    "mediaType": "image/png",
    "url": f"data:image/png;base64,{encoded(PICTURE)}",
}


def wait() -> str:
    """Wait."""
    return "word " * 1_000


async def send(client, message: dict) -> list[dict]:
    """Send a message, and read the whole stream of the answer."""
    return await chunks(await client.post({"id": "c", "message": message}))


class TestRefused:
    @pytest.mark.parametrize("accept", [{}, JSON], ids=["stream", "json"])
    @asynchronous
    async def test_a_question_that_cannot_fit_is_413_with_both_numbers_and_nothing_is_stored(self, chat, accept):
        options = {"max_tokens": 1_000, "token_count_estimator": Words()}
        client = chat("Yes.", memory=TokenWindowChatMemory, memory_options=options)

        response = await client.post({"id": "c", "message": user("word " * 1_200)}, **accept)

        assert response.status_code == 413
        assert reason_of(response) == (
            "Your message is too long for this chat: with all that is sent along, it needs 1,206 tokens, and 1,000 "
            "fit. Send a shorter one."
        )
        assert await client.messages() == []

    @asynchronous
    async def test_what_is_sent_along_and_leaves_no_room_is_413_with_its_own_number(self, chat):
        options = {"max_tokens": 20, "token_count_estimator": Words()}
        client = chat("Yes.", memory=TokenWindowChatMemory, memory_options=options, system_message="word " * 30)

        response = await client.post({"id": "c", "message": user("Hi.")})

        assert response.status_code == 413
        assert reason_of(response) == (
            "No message fits in this chat: what is sent along, such as tools, needs 36 tokens by itself, and 20 fit."
        )

    @asynchronous
    async def test_what_tools_return_has_an_error_of_its_own(self, chat):
        options = {"max_tokens": 70, "token_count_estimator": Words()}
        calls = calling(*((f"c{number}", "wait", "{}") for number in range(8)))
        client = chat(ScriptedModel(calls), memory=TokenWindowChatMemory, memory_options=options, tools=[wait])

        found = await client.say("Hi.")

        text = "What the tools of this chat have returned is too long: it needs "
        assert found[-1]["errorText"].startswith(text)
        assert found[-1]["errorText"].endswith(" tokens even shortened, and 70 fit.")


class TestRejected:
    @pytest.mark.parametrize(
        ("error", "files", "kind", "text"),
        [
            (
                ContextLengthError("8193 tokens"),
                [],
                "too_long",
                "Your message is too long for the model, with what was written before. Send a shorter one.",
            ),
            (
                ContentFilterError("hate"),
                [PNG],
                "content_filter",
                "The model's filter does not allow this message. Change it, and send it again.",
            ),
            (
                InvalidRequestError("no images"),
                [PNG],
                "file",
                "The model does not take this file. Send your message without it.",
            ),
            (
                InvalidRequestError("no"),
                [],
                "invalid",
                "The model does not take this message. Change it, and send it again.",
            ),
        ],
    )
    @asynchronous
    async def test_a_question_has_the_reason_the_error_names_what_to_do_and_the_chat_goes_on(
        self, chat, error, files, kind, text
    ):
        client = chat(ScriptedModel(error, error, "Yes."))
        bad = user("Bad.", "bad")
        bad["parts"] += files

        found = await send(client, bad)
        refused = await client.post({"id": "c", "message": {**bad, "id": "worse"}}, **JSON)
        answered = await client.say("Good.")

        assert found[-1] == {"type": "error", "errorText": text}
        assert (refused.status_code, reason_of(refused)) == (422, text)
        assert text_of(answered) == "Yes. "
        assert client.model.sent[-1] == [UserMessage("Good.")]
        shown = await client.messages()
        assert [each["metadata"].get("rejected") for each in shown] == [kind, kind, None, None]

    @asynchronous
    async def test_sent_again_without_the_file_it_is_answered_in_its_place(self, chat):
        client = chat(ScriptedModel(InvalidRequestError("no images"), "Yes."))
        bad = user("Look.", "bad")
        await send(client, {**bad, "parts": [*bad["parts"], PNG]})
        [posted] = await client.messages()

        found = await send(client, {**posted, "parts": posted["parts"][:1]})

        assert text_of(found) == "Yes. "
        question, _ = await client.messages()
        assert "rejected" not in question["metadata"]
        assert [part["type"] for part in question["parts"]] == ["text"]
        assert question["id"] == "bad"


class TestShortened:
    @asynchronous
    async def test_an_answer_has_the_results_that_the_model_was_sent_shortened(self, chat):
        client = chat(ScriptedModel(CALL, "Yes.", "And yes."), tools=[wait], max_result_tokens=100)

        found = await client.say("Hi.")
        again = await client.say("Hi.", "u2")

        sent, of = found[-1]["messageMetadata"]["shortened"]["c1"]
        assert 50 < sent <= 100
        assert of == 1_250
        shown = await client.messages()
        assert shown[1]["metadata"]["shortened"] == {"c1": [sent, of]}
        assert shown[1]["parts"][1]["output"] == wait()
        assert "shortened" not in again[-1]["messageMetadata"]
        assert "shortened" not in shown[3]["metadata"]


class TestInProgress:
    @pytest.mark.parametrize("again", [False, True], ids=["first answer", "another answer"])
    @asynchronous
    async def test_what_the_stream_has_is_not_in_the_list_of_messages(self, chat, again):
        gate = asyncio.Event()
        before = ["Before."] if again else []
        client = chat(ScriptedModel(*before, CALL, "one two three", gate=gate), tools=[wait])
        if again:
            gate.set()
            await client.say("Go.", "u1")
            gate.clear()

        asked = asyncio.create_task(client.regenerate("u1") if again else client.say("Go.", "u1"))
        while len(client.model.requests) < len(before) + 2:
            await asyncio.sleep(0.01)
        during = await client.messages()
        gate.set()
        await asked

        assert [each["id"] for each in during] == ["u1"]
        assert [part["type"] for part in (await client.messages())[1]["parts"]] == [
            *("step-start", "tool-wait", "step-start", "text")
        ]

    @asynchronous
    async def test_calls_that_were_approved_are_in_it(self, chat):
        is_called, may_return = asyncio.Event(), asyncio.Event()

        async def pay() -> str:
            """Pay."""
            is_called.set()
            await may_return.wait()
            return "Paid."

        client = chat(ScriptedModel(calling(("c1", "pay", "{}")), "Yes."), tools=[Tool(pay, needs_approval=True)])
        await client.say("Go.")
        [_, waiting] = await client.messages()
        approval = {**waiting["parts"][-1]["approval"], "approved": True}
        decision = {"type": "tool-pay", "state": "approval-responded", "approval": approval}

        asked = asyncio.create_task(send(client, {**waiting, "parts": [decision]}))
        await is_called.wait()
        during = await client.messages()
        may_return.set()
        await asked

        assert [part["type"] for part in during[1]["parts"]] == ["step-start", "tool-pay"]
        assert during[1]["parts"][-1]["state"] == "approval-responded"
        assert (await client.messages())[1]["parts"][1]["state"] == "output-available"


class TestUnknown:
    @asynchronous
    async def test_nobody_knows_the_outcome_of_a_call_whose_result_is_not_stored_after_a_stop(self, chat):
        is_called = asyncio.Event()

        async def wait() -> str:
            """Wait."""
            is_called.set()
            await asyncio.sleep(60)
            return "Done."

        client = chat(ScriptedModel(CALL, "Yes."), tools=[wait])
        asked = asyncio.create_task(client.say("Hi.", "u1"))
        await is_called.wait()

        await client.post({}, "/c/stop")
        found = await asked
        stopped = await client.messages()

        assert found[-3] == {"type": "tool-output-error", "toolCallId": "c1", "errorText": UNKNOWN}
        assert stopped[-1]["parts"][-1]["errorText"] == UNKNOWN

        answered = await client.say("Hi.", "u1")

        assert text_of(answered) == "Yes. "
        assert [each["errorText"] for each in answered if each["type"] == "tool-output-error"] == [UNKNOWN]
        assert (await client.messages())[-1]["parts"][1]["errorText"] == UNKNOWN

    @asynchronous
    async def test_it_is_unknown_in_the_language_of_who_asks(self, chat, ann, settings):
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
        settings.LANGUAGE_CODE = "de"
        client = chat("Yes.")
        await get_chat_memory(f"{ann.pk}:c", owner=ann).aadd(UserMessage("Hi."), CALL)

        shown = await client.messages()

        assert shown[-1]["parts"][-1]["errorText"] == "Der Ausgang dieses Aufrufs ist unbekannt."
