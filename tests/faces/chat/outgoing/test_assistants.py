"""What an assistant sends, refuses and explains by the rules of its model's vendor."""

import asyncio
import base64
import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from chatmemory_django.chat import outgoing
from chatmemory_django.chat.admin import CHANGES
from chatmemory_django.chat.approvals import Decision, Resume
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.costs.recording import RecordedChatModel
from chatmemory_django.chat.model import InvalidRequestError, UnsupportedFileError
from chatmemory_django.chat.openai import OpenAiChatModel
from chatmemory_django.chat.outgoing import BEDROCK, DEEPSEEK, MISTRAL, OPENAI, Difference, Rules
from chatmemory_django.chat.tools import Tool
from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, SummarizingChatMemory
from chatmemory_django.messages import (
    AiMessage,
    Audio,
    AudioContent,
    Image,
    ImageContent,
    PdfFile,
    PdfFileContent,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
    Video,
    VideoContent,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.stores.django import DjangoChatMemoryStore
from chatmemory_django.tokens import OpenAiTokenCountEstimator
from tests.asgi import run
from tests.faces.admin.admin_site import EVERYTHING, MESSAGE_WINDOW, page, shown, staff
from tests.faces.chat.http.test_http import Chat, ann, asynchronous, bob, chat, reason_of  # noqa: F401  # fixtures
from tests.faces.chat.outgoing.vendors import VENDORS, broken, calls_of
from tests.faces.chat.scripted import ScriptedModel, calling
from tests.faces.chat.server import ModelServer, refusal
from tests.faces.chat.vendors import VENDORS as SERVERS
from tests.faces.chat.vendors import chat_model

pytestmark = pytest.mark.django_db(transaction=True)

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
PICTURE = ImageContent(Image(base64_data=PNG, mime_type="image/png"))
SIGNATURE = base64.b64encode(b"signed by the vendor").decode()


class Model(ScriptedModel):
    """A model of a vendor with these rules."""

    def __init__(self, rules: Rules, *answers: Any) -> None:
        super().__init__(*answers)
        self.own = rules

    @property
    def rules(self) -> Rules:
        return self.own


def look(where: str = "") -> str:
    """Look somewhere."""
    return f"Nothing {where}."


def asked(bot: Assistant, text: Any, way: str = "chat", **options: Any) -> None:
    if way == "chat":
        bot.chat("c", text, **options)
    elif way == "achat":
        asyncio.run(bot.achat("c", text, **options))
    elif way == "stream":
        list(bot.stream("c", text, **options))
    else:

        async def collected() -> list[Any]:
            return [event async for event in bot.astream("c", text, **options)]

        asyncio.run(collected())


@pytest.mark.parametrize("way", ["chat", "achat", "stream", "astream"])
class TestEveryWay:
    def test_what_is_sent_is_fit(self, way):
        model = Model(MISTRAL, "Yes.")
        memory = Assistant(model).chat_memory("c")
        memory.add(UserMessage("Hi."), calling(("functions.look:0", "look", "{")))
        memory.add(ToolExecutionResultMessage("functions.look:0", "look", "Nothing."), SystemMessage("Be brief."))

        asked(Assistant(model), "And now?", way)

        assert broken("MISTRAL", model.sent[0]) == []
        assert memory.messages()[1] == calling(("functions.look:0", "look", "{"))

    def test_a_file_that_the_model_does_not_take_is_refused_before_anything_is_stored(self, way):
        bot = Assistant(Model(DEEPSEEK, "Yes."), persist="early")
        bot.chat("c", "Hi.")
        before = list(Message.objects.values_list("sequence", "is_complete"))

        with pytest.raises(UnsupportedFileError, match=r"the image \(image/png, 8 bytes\) of"):
            asked(bot, UserMessage([TextContent("What is it?"), PICTURE]), way)

        assert len(bot.model.requests) == 1
        assert list(Message.objects.values_list("sequence", "is_complete")) == before
        asked(bot, "And now?", way)


def test_what_is_sent_for_a_call_stays_the_same_until_it_leaves_the_window():
    model = Model(MISTRAL, calling(("functions.look:0", "look", "{}")), "Nothing.", *["Yes."] * 5)
    memory = partial(MessageWindowChatMemory, max_messages=7)
    bot = Assistant(model, tools=[look], memory=memory, system_message="Be brief.")
    bot.chat_memory("c").add(UserMessage("Hi."), AiMessage("Hi."))

    for text in ("Look!", "1", "2", "3"):
        bot.chat("c", text)

    made = [calls_of(sent)[0].id for sent in model.sent if calls_of(sent)]
    assert len(made) == 3
    assert len(set(made)) == 1


class TestFiles:
    def test_nothing_is_stored_where_a_function_makes_the_system_message(self):
        bot = Assistant(Model(DEEPSEEK, "Yes."), system_message=lambda: "Be brief.", persist="early")

        with pytest.raises(UnsupportedFileError):
            bot.chat("c", UserMessage([PICTURE]))

        assert not Message.objects.exists()

    def test_in_earlier_messages_they_are_notes(self):
        Assistant(Model(OPENAI, "A cat.")).chat("c", UserMessage([TextContent("What is it?"), PICTURE]))
        bot = Assistant(Model(DEEPSEEK, "I do not see it."))

        bot.chat("c", "And its color?")

        assert bot.model.sent[0][0].contents[1] == TextContent("[image (image/png, 8 bytes) left out]")
        assert PICTURE in bot.chat_memory("c").messages()[0].contents

    def test_the_answer_to_a_stored_question_is_made_again_with_a_note(self):
        Assistant(Model(OPENAI, "A cat.")).chat("c", UserMessage([TextContent("What is it?"), PICTURE]))
        bot = Assistant(Model(DEEPSEEK, "I do not see it."))

        assert bot.chat("c", None, after=1) == "I do not see it."

    @asynchronous
    async def test_over_http_it_is_415(self, chat):  # noqa: F811
        client: Chat = chat(Model(DEEPSEEK, "Yes."))
        picture = {"type": "file", "mediaType": "image/png", "url": f"data:image/png;base64,{PNG}"}
        message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "See:"}, picture]}
        for headers in ({}, {"Accept": "application/json"}):
            response = await client.post({"id": "c", "messages": [message]}, **headers)

            assert response.status_code == 415
            assert reason_of(response) == "The model does not take this file. Send your message without it."
        assert not await Conversation.objects.aexists()
        assert client.model.requests == []


class TestTools:
    def test_bedrock_is_given_tools_that_are_gone_and_calling_one_is_an_error(self):
        first = Assistant(Model(BEDROCK, calling(("a", "look", "{}")), "Nothing."), tools=[look])
        first.chat("c", "Look!")
        second = Assistant(Model(BEDROCK, calling(("b", "look", "{}")), "It is gone."))

        assert second.chat("c", "Look again!") == "It is gone."

        [specified] = second.model.requests[0].tools
        assert (specified.name, specified.description) == ("look", "This tool is not available any more.")
        assert second.model.sent[1][-1].text == "There is no such tool; the tools are: none."
        assert second.model.sent[1][-1].is_error

    def test_no_tool_is_chosen_where_there_is_none(self):
        bot = Assistant(Model(OPENAI, "Yes."), max_rounds=1)

        bot.chat("c", "Hi.")

        assert (bot.model.requests[0].tools, bot.model.requests[0].tool_choice) == ((), None)

    def test_an_answer_that_waited_goes_on_with_what_is_fit(self):
        def pay() -> str:
            """Pay."""
            return "Done."

        model = Model(MISTRAL, calling(("functions.pay:0", "pay", "{}")), "Paid.")
        bot = Assistant(model, tools=[Tool(pay, needs_approval=True)])
        *_, requested = bot.stream("c", "Pay!")

        assert bot.chat("c", Resume(Decision(requested.id, approved=True))) == "Paid."

        assert broken("MISTRAL", model.sent[1]) == []


class TestExplain:
    def test_it_shows_what_is_changed_for_the_vendor(self):
        bot = Assistant(Model(MISTRAL, "Yes."))
        memory = bot.chat_memory("c")
        memory.add(AiMessage("Hello."), UserMessage("Look!"), calling(("call_1", "look", "{")))
        memory.add(ToolExecutionResultMessage("call_1", "look", "Nothing."))

        explained = bot.explain("c")

        assert [each.changes for each in explained] == [
            (Difference.INSERTED,),
            (),
            (Difference.CALL_ID, Difference.ARGUMENTS),
            (Difference.CALL_ID,),
        ]
        assert explained == run(bot.aexplain("c"))
        assert [each.changes for each in Assistant(Model(OPENAI, "Yes.")).explain("c")] == [()] * 4
        assert [each.changes for each in memory.explain()] == [()] * 4

    def test_a_file_in_a_storage_is_none_of_them(self, settings):
        settings.CHATMEMORY = {"MEDIA_STORAGE": "media", "MEDIA_MIN_BYTES": 1}
        settings.STORAGES = {**settings.STORAGES, "media": {"BACKEND": "django.core.files.storage.InMemoryStorage"}}
        model = Model(replace(OPENAI, audio_types=frozenset({"audio/wav"})), "Yes.")
        bot = Assistant(model)
        sound = AudioContent(Audio(base64_data=base64.b64encode(b"RIFF\0\0\0\0WAVEfmt ").decode()))
        bot.chat("c", UserMessage([TextContent("Look!"), PICTURE, sound]))

        assert [each.changes for each in bot.explain("c")] == [(), ()]
        assert model.sent[0][0].contents[1] == PICTURE

    def test_a_recorded_model_has_the_rules_of_its_model(self):
        assert RecordedChatModel(Model(MISTRAL), "title").rules is MISTRAL


class TestAdmin:
    """The page of a conversation shows the same, for the site's assistant."""

    @pytest.fixture
    def page_of(self, client, settings):
        client.force_login(staff(*EVERYTHING))
        memory = MessageWindowChatMemory(id="c", max_messages=10, store=DjangoChatMemoryStore())
        memory.add(UserMessage("Look!"), calling(("call_1", "look", "{")))
        memory.add(ToolExecutionResultMessage("call_1", "look", "Nothing."), AiMessage("There is nothing."))

        def shown_with(assistant: Any) -> str:
            settings.CHATMEMORY = {**settings.CHATMEMORY, **MESSAGE_WINDOW, "CHAT": {"ASSISTANT": assistant}}
            return shown(client, Conversation.objects.get())

        return shown_with

    def test_it_names_what_is_changed_for_the_vendor_of_the_sites_assistant(self, page_of, client):
        html = page_of(Assistant(Model(MISTRAL, "Yes.")))

        words = "Its call has another id. The arguments of a call are put into a JSON object."
        assert re.findall(r'title="([^"]+)">made fit for the model<', html) == [words, "Its call has another id."]
        assert "in the memory<" not in html  # where all are
        alone = client.get(page("message", Conversation.objects.get().pk, 2)).content.decode()
        assert f"This message is sent to the model. {words}</p>" in alone

    @pytest.mark.parametrize(
        "assistant",
        [None, Assistant(Model(OPENAI, "Yes.")), Assistant(ScriptedModel("Yes.")), lambda request: 1, "no.such.module"],
    )
    def test_it_names_nothing_where_nothing_is_changed_or_the_vendor_is_not_known(self, page_of, assistant):
        assert "made fit for the model" not in page_of(assistant)

    def test_it_has_words_for_each_change(self):
        assert {*CHANGES} == {*Difference}
        assert len({str(words) for words in CHANGES.values()}) == len(Difference)


class TestThinking:
    """What Claude signed goes back, whatever was made to fit of its answer."""

    def answered(self, server: ModelServer, *blocks: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
        """Return what Claude is sent of an answer with *blocks* in the next round."""
        claude = SERVERS["anthropic"]
        claude.answer(server, *blocks)
        claude.answer(server, claude.text("Done."))
        model = chat_model(claude, server)
        bot = Assistant(model, tools=[look], **options)
        bot.chat_memory("c").add(
            UserMessage("Hi."), calling(("c1", "look", "{}")), ToolExecutionResultMessage("c1", "look", "x")
        )
        bot.chat("c", "Look!")
        [*_, sent] = [each for each in server.requests[-1].body["messages"] if each["role"] == "assistant"]
        return sent["content"]

    def test_with_another_id(self, server: ModelServer):
        claude = SERVERS["anthropic"]

        sent = self.answered(
            server, claude.thinking("Hm.", SIGNATURE), claude.call("functions.look:0", "look", where="here")
        )

        assert sent[0] == {"type": "thinking", "thinking": "Hm.", "signature": SIGNATURE}
        assert sent[1]["id"] == server.requests[-1].body["messages"][-1]["content"][0]["tool_use_id"]
        assert sent[1]["id"] != "a.b:0"

    def test_with_a_blank_text(self, server: ModelServer):
        claude = SERVERS["anthropic"]

        blank, called = claude.text("\n\n"), claude.call("c2", "look", where="")
        sent = self.answered(server, claude.thinking("Hm.", SIGNATURE), blank, called)

        assert [block["type"] for block in sent] == ["thinking", "tool_use"]
        assert sent[0]["signature"] == SIGNATURE

    def test_reasoning_of_another_server_does_not_go_to_deepseek_and_its_own_does(self, server: ModelServer):
        memory = partial(MessageWindowChatMemory, max_messages=40)
        for name in ("qwen3:8b", "deepseek-reasoner", "deepseek-reasoner"):
            call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            server.replies.clear()
            server.answer({"reasoning_content": f"{name} thinks.", "tool_calls": [call]}, "tool_calls")
            server.answer({"content": "Noon."})
            model = OpenAiChatModel(name, base_url=server.url, api_key="key", max_retries=0)
            Assistant(model, tools=[look], memory=memory).chat("c", "Look!")

        found = [
            each["reasoning_content"] for each in server.requests[-1].body["messages"] if "reasoning_content" in each
        ]
        assert found == [outgoing.fitting.REASONING, "deepseek-reasoner thinks.", "deepseek-reasoner thinks."]
        assert not any("reasoning_content" in each for each in server.requests[1].body["messages"])


class TestErrors:
    def test_it_names_the_message_that_the_server_does_not_accept_and_what_to_do(self, server: ModelServer):
        server.reply_json(refusal(message="SECRET is not fine.", param="messages[1].content"), 400)
        model = OpenAiChatModel("gpt-test", base_url=server.url, api_key="key", max_retries=0)
        bot = Assistant(model, system_message="Be brief.")
        bot.chat_memory("c").add(UserMessage("Hi."), UserMessage("Hi again."))

        with pytest.raises(InvalidRequestError) as caught:
            bot.chat("c", "And now?")

        assert caught.value.sequence == 1
        assert "SECRET is not fine." in caught.value.server_text
        assert str(caught.value) == (
            "The model's server rejected the request: status 400. It is about the message 1 of the conversation. "
            "What it wrote is in server_text; if that is a rule of the vendor's, give the model such rules."
        )

    def test_claudes_text_is_there_too(self, server: ModelServer):
        claude = SERVERS["anthropic"]
        claude.refuse(server, 400, "invalid_request_error", "messages.0: SECRET")

        with pytest.raises(InvalidRequestError, match=r"status 400\. What it wrote is in server_text") as caught:
            chat_model(claude, server, max_retries=0).chat("Hi.")

        assert "messages.0: SECRET" in caught.value.server_text
        assert "SECRET" not in str(caught.value)


class TestACarriedChat:
    """One chat, with tools, thinking, files and a summary, answered by each vendor in turn and back again."""

    def memory(self, **options: Any) -> ChatMemory:
        window = {"max_tokens": 12_000, "token_count_estimator": OpenAiTokenCountEstimator("gpt-4o")}
        summary = {"summarize": lambda *_: "They talked.", "summary_tokens": 100, "after_tokens": 1_000}
        return SummarizingChatMemory(**window, **summary, **options)

    def test_no_vendor_refuses_it(self):
        files = [
            PICTURE,
            AudioContent(Audio(base64_data="UklGRg==", mime_type="audio/wav")),
            PdfFileContent(PdfFile(base64_data="JVBERi0=", mime_type="application/pdf")),
            VideoContent(Video(url="https://example.com/cat.mp4")),
        ]
        ids = ["functions.look:0", "call_0", "a" * 70, "toolu_01", "abcdefghi"]
        order = [*VENDORS, *reversed(VENDORS)]

        for number, name in enumerate(order):
            rules = getattr(outgoing, name)
            answers = [
                AiMessage("\n\n" if number % 3 else None, "Hm.", [ToolExecutionRequest(ids[number % 5], "look", "{}")]),
                AiMessage("Nothing." if number % 4 else "\n", "So…"),
            ]
            model = Model(rules, *answers)
            bot = Assistant(model, tools=[look], memory=self.memory, system_message=f"You are {name}.")
            taken = [each for each in files if not outgoing.for_vendor([(1, UserMessage([each]))], rules).changes]
            bot.chat("c", UserMessage([TextContent(f"Question {number}"), *taken], "Ann Lee"))
            if number % 5 == 0:
                bot.chat_memory("c").add(AiMessage("By the way."), UserMessage(" "))

            assert [broken(name, sent) for sent in model.sent] == [[], []]
