"""The title that a conversation gets with its first answer."""

import asyncio
import json
import logging
from contextlib import suppress
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import AsyncClient

from chatmemory_django.chat.answers import titles
from chatmemory_django.chat.answers.titles import first_words
from chatmemory_django.chat.approvals import ApprovalRequiredError, Decision, Resume
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import UnavailableError
from chatmemory_django.chat.models import ToolApproval
from chatmemory_django.chat.threads import all_afterwards
from chatmemory_django.chat.tools import Tool
from chatmemory_django.messages import AiMessage, Image, ImageContent, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory
from tests.asgi import run
from tests.faces.chat.scripted import ScriptedModel, calling
from tests.logs import logged_by

pytestmark = pytest.mark.django_db(transaction=True)


def title() -> str:
    return Conversation.objects.get().title


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Where is my parcel?", "Where is my parcel?"),
        (" Where\n\n  is\tit? ", "Where is it?"),
        ("word " * 30, "word " * 11 + "word…"),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 59 + "…"),
        ("荷物はどこですか" * 20, ("荷物はどこですか" * 20)[:59] + "…"),
    ],
)
def test_the_first_words_are_whole_and_at_most_60_characters(question, expected):
    found = first_words(UserMessage(question), AiMessage("In Hamburg"))

    assert found == expected
    assert len(found) <= 61


def test_a_question_of_files_alone_gives_the_first_words_of_its_answer():
    question = UserMessage([ImageContent(Image(url="https://example.org/cat.png"))])

    assert first_words(question, AiMessage("A cat")) == "A cat"


@pytest.mark.parametrize("title_now", ["Where is my parcel?", "My parcel"])
def test_a_title_made_of_a_message_is_removed_with_it(title_now):
    Assistant(ScriptedModel("In Hamburg")).chat("c", "Where is my  parcel?")
    Conversation.objects.update(title=title_now)
    memory = get_chat_memory("c")

    memory.remove(2)
    assert title() == title_now
    memory.remove(1)

    assert title() == ("My parcel" if title_now == "My parcel" else "")


class Ways:
    """All four ways to ask."""

    @staticmethod
    def ask(way: str, assistant: Assistant, *args, **options) -> None:
        match way:
            case "chat":
                assistant.chat(*args, **options)
            case "stream":
                list(assistant.stream(*args, **options))
            case "achat":
                run(assistant.achat(*args, **options))
            case "astream":

                async def collect() -> None:
                    async for _ in assistant.astream(*args, **options):
                        pass

                run(collect())


def waiting_tool(**options: str) -> Tool:
    def find() -> str:
        """Find the parcel."""
        return "Hamburg"

    return Tool(find, needs_approval=True, **options)


each_way = pytest.mark.parametrize("way", ["chat", "stream", "achat", "astream"])


@each_way
class TestAssistants:
    def test_the_first_answer_gives_the_title_and_later_ones_leave_it(self, way):
        assistant = Assistant(ScriptedModel("In Hamburg"), system_message="Be brief")

        Ways.ask(way, assistant, "c", "Where is my parcel?")
        assert title() == "Where is my parcel?"
        Ways.ask(way, assistant, "c", "And the other one?")
        assert title() == "Where is my parcel?"

    def test_a_title_that_a_person_gave_stays(self, way):
        Conversation.objects.create(memory_id="c", title="My parcel")

        Ways.ask(way, Assistant(ScriptedModel("In Hamburg")), "c", "Where is my parcel?")

        assert title() == "My parcel"

    def test_an_answer_by_way_of_a_tool_gives_it_too(self, way):
        def find() -> str:
            """Find the parcel."""
            return "Hamburg"

        assistant = Assistant(ScriptedModel(calling(("1", "find", "{}")), "In Hamburg"), tools=[find])
        Ways.ask(way, assistant, "c", "Where is my parcel?")

        assert title() == "Where is my parcel?"

    def test_an_answer_that_waits_for_an_approval_gives_it_when_it_ends(self, way):
        assistant = Assistant(ScriptedModel(calling(("1", "find", "{}")), "In Hamburg"), tools=[waiting_tool()])
        with suppress(ApprovalRequiredError):
            Ways.ask(way, assistant, "c", "Where is my parcel?")
        assert title() == ""

        Ways.ask(way, assistant, "c", Resume(Decision(ToolApproval.objects.get().pk, approved=True)))

        assert title() == "Where is my parcel?"

    @pytest.mark.parametrize("approve_by", ["owner", "chatmemory.clear_conversation"])
    def test_if_it_never_ends_the_next_answer_gives_it(self, way, approve_by):
        tools = [waiting_tool(approve_by=approve_by)]
        assistant = Assistant(ScriptedModel(calling(("1", "find", "{}")), "Sunny"), tools=tools)
        with suppress(ApprovalRequiredError):
            Ways.ask(way, assistant, "c", "Where is my parcel?")

        Ways.ask(way, assistant, "c", "And the weather?")

        assert title() == "And the weather?"

    def test_an_answer_that_fails_gives_none(self, way):
        assistant = Assistant(ScriptedModel(UnavailableError("down"), "In Hamburg"), persist="early")

        with pytest.raises(UnavailableError):
            Ways.ask(way, assistant, "c", "Where is my parcel?")

        assert title() == ""

    def test_a_function_of_the_site_is_called_once_with_question_and_answer(self, way):
        asked = []

        def of(question, answer):
            asked.append((question.single_text, answer.text))
            return "  A parcel  "

        assistant = Assistant(ScriptedModel("In Hamburg"), title=of)
        Ways.ask(way, assistant, "c", "Where?")
        Ways.ask(way, assistant, "c", "And?")

        assert asked == [("Where?", "In Hamburg")]
        assert title() == "A parcel"

    def test_the_function_may_be_asynchronous(self, way):
        async def of(question, answer):
            await asyncio.sleep(0)
            return f"{question.single_text} {answer.text}"

        Ways.ask(way, Assistant(ScriptedModel("In Hamburg"), title=of), "c", "Where?")

        assert title() == "Where? In Hamburg"

    @pytest.mark.parametrize("given", [None, "", "  "], ids=repr)
    def test_a_function_may_return_nothing(self, way, given):
        Ways.ask(way, Assistant(ScriptedModel("In Hamburg"), title=lambda *_: given), "c", "Where?")

        assert title() == ""

    @pytest.mark.parametrize("wrong", [RuntimeError("secret"), 5], ids=repr)
    def test_a_function_that_fails_is_logged_and_the_answer_stays(self, way, wrong, caplog):
        def of(question, answer):
            if isinstance(wrong, Exception):
                raise wrong
            return wrong

        with caplog.at_level(logging.ERROR):
            Ways.ask(way, Assistant(ScriptedModel("In Hamburg"), title=of), "c", "Where?")

        logged = [each.getMessage() for each in logged_by(caplog, titles.logger.name)]
        assert logged == ["The conversation 'c' got no title."]
        assert len(get_chat_memory("c").messages()) == 2

    def test_a_question_that_is_removed_while_its_title_is_made_gives_none(self, way):
        def of(question, answer):
            get_chat_memory("c").remove(1)
            return question.single_text

        Ways.ask(way, Assistant(ScriptedModel("In Hamburg"), title=of), "c", "Where?")

        assert title() == ""

    def test_without_a_function_there_is_no_title(self, way):
        Ways.ask(way, Assistant(ScriptedModel("In Hamburg"), title=None), "c", "Where?")

        assert title() == ""

    def test_a_title_is_cut_to_the_length_of_the_column(self, way):
        Ways.ask(way, Assistant(ScriptedModel("In Hamburg"), title=lambda *_: "x" * 300), "c", "Where?")

        assert title() == "x" * 255

    def test_the_activity_stays_and_the_version_is_a_new_one(self, way):
        Ways.ask(way, Assistant(ScriptedModel("In Hamburg"), title=None), "a", "Where?")
        Ways.ask(way, Assistant(ScriptedModel("In Hamburg")), "b", "Where?")

        versions = dict(Conversation.objects.values_list("memory_id", "version"))
        assert versions["b"] == versions["a"] + 1


class TestHttp:
    @pytest.fixture(autouse=True)
    def no_throttle(self, settings) -> None:
        settings.CHATMEMORY = {"CHAT": {"THROTTLE_RATE": None}}
        cache.clear()

    def asked(self, settings, assistant: Assistant) -> Conversation:
        settings.CHATMEMORY["CHAT"]["ASSISTANT"] = assistant

        async def ask() -> Conversation:
            client = AsyncClient()
            user = await User.objects.acreate(username="ann")
            await client.aforce_login(user)
            message = {"id": "q", "role": "user", "parts": [{"type": "text", "text": "Where is it?"}]}
            body = {"id": str(uuid4()), "messages": [message], "trigger": "submit-message"}
            response = await client.post("/api/chat", json.dumps(body), content_type="application/json")
            async for _ in response:
                pass
            seen = await Conversation.objects.aget()
            await all_afterwards()
            return seen

        return run(ask())

    def test_the_title_is_there_when_the_stream_ends(self, settings):
        assert self.asked(settings, Assistant(ScriptedModel("In Hamburg"))).title == "Where is it?"

    def test_no_one_waits_for_a_function_of_the_site(self, settings):
        release = asyncio.Event()

        async def of(question, answer):
            await asyncio.wait_for(release.wait(), 60)
            return "A parcel"

        settings.CHATMEMORY["CHAT"]["ASSISTANT"] = Assistant(ScriptedModel("In Hamburg"), title=of)

        async def ask() -> str:
            client = AsyncClient()
            await client.aforce_login(await User.objects.acreate(username="ann"))
            message = {"id": "q", "role": "user", "parts": [{"type": "text", "text": "Where is it?"}]}
            body = {"id": str(uuid4()), "messages": [message], "trigger": "submit-message"}
            response = await client.post("/api/chat", json.dumps(body), content_type="application/json")
            async for _ in response:
                pass
            before = await sync_to_async(title)()
            release.set()
            await all_afterwards()
            return before

        assert run(ask()) == ""
        assert title() == "A parcel"
