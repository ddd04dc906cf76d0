"""What Open WebUI 0.12.4 and LibreChat's ``@librechat/agents`` 3.9.2 send, with fewer tools and shorter prompts."""

from typing import Any

import openai
import pytest

from chatmemory_django.chat.model import ChatModelError
from chatmemory_django.chat.models import ModelCall
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Conversation
from tests.faces.chat.scripted import calling
from tests.pictures import PNG as PICTURE
from tests.pictures import encoded

pytestmark = pytest.mark.django_db(transaction=True)

CHAT = "8f250295-a224-49f8-876d-f902227a120b"
TIMES = [
    {
        "type": "function",
        "function": {
            "name": "get_current_timestamp",
            "description": "Get the current Unix timestamp in seconds.",
            "parameters": {"properties": {}, "type": "object"},
        },
    }
]
CALL = {"id": "call_4", "type": "function", "function": {"name": "get_current_timestamp", "arguments": "{}"}}
PNG = f"data:image/png;base64,{encoded(PICTURE)}"
ASKS_ABOUT_PICTURE = [
    {"type": "text", "text": '<attached_files>\n<file type="file" name="a.png"/>\n</attached_files>\n\n'},
    {"type": "text", "text": "What is in the picture?"},
    {"type": "image_url", "image_url": {"url": PNG}},
]
TITLE = {
    "model": "assistant",
    "stream": False,
    "max_tokens": 1000,
    "messages": [
        {
            "role": "user",
            "content": "### Task:\nGenerate a concise title summarizing the chat history.\n### Chat History:\n"
            "<chat_history>\nUSER: Hello\nASSISTANT: \n</chat_history>",
        }
    ],
}
FOLLOW_UPS = {
    "model": "assistant",
    "stream": False,
    "messages": [{"role": "user", "content": "### Task:\nPredict 3-5 useful messages this user might send next."}],
}


def asks(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answered(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


class OpenWebUi:
    """A chat of Open WebUI, with the headers of its connection as they are filled in."""

    def __init__(self, client: openai.OpenAI, *, is_stored: bool = True) -> None:
        self.client = client
        self.headers = {"X-Conversation-ID": CHAT, "X-Task": ""} if is_stored else {}

    def ask(self, *messages: dict[str, Any]) -> str:
        """Ask with a history, as it streams each answer; return the text."""
        body = {"stream": True, "model": "assistant", "tools": TIMES, "messages": list(messages)}
        stream = self.client.chat.completions.create(**body, extra_headers=self.headers)
        return "".join(each.choices[0].delta.content or "" for each in stream)

    def task(self, name: str, body: dict[str, Any], path: str = "/chat/completions") -> None:
        """Ask for something of its own."""
        headers = {**self.headers, "X-Task": name}
        self.client.post(path, body=body, cast_to=object, options={"headers": headers})


def stored() -> list[tuple[str, str]]:
    return [(row.type, row.text.strip()) for row in Conversation.objects.get().history().order_by("sequence")]


class TestOpenWebUi:
    def test_has_a_conversation_in_which_its_own_tasks_are_not(self, client, site):
        site("{}", "One", "{}", "Two", "{}")
        chat = OpenWebUi(client)

        chat.task("title_generation", TITLE)
        chat.ask(asks("Hello"))
        chat.task("follow_up_generation", FOLLOW_UPS)
        chat.ask(asks("Hello"), answered("One"), asks("And?"))
        chat.task("follow_up_generation", FOLLOW_UPS)

        assert stored() == [("USER", "Hello"), ("AI", "One"), ("USER", "And?"), ("AI", "Two")]
        assert Conversation.objects.get().title == "Hello"
        assert ModelCall.objects.count() == 5

    def test_has_no_conversations_for_its_tasks_as_responses(self, client, site):
        site("{}")

        body = {"model": "assistant", "stream": False, "input": TITLE["messages"]}
        OpenWebUi(client).task("title_generation", body, "/responses")

        assert not Conversation.objects.exists()

    @pytest.mark.parametrize("is_stored", [True, False])
    def test_runs_its_tools(self, client, site, is_stored):
        model = site(calling(("call_4", "get_current_timestamp", "{}"), text="Let me see."), "Noon.", "Bye")
        chat = OpenWebUi(client, is_stored=is_stored)
        history = [asks("What time is it?")]

        chat.ask(*history)
        history += [
            {**answered("Let me see."), "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_4", "content": '{"current_timestamp":1795820651}'},
        ]
        chat.ask(*history)
        chat.ask(*history, answered("Noon."), asks("Thanks"))

        assert [len(sent) for sent in model.sent] == [1, 3, 5]
        assert Conversation.objects.count() == is_stored

    @pytest.mark.parametrize("is_stored", [True, False])
    def test_sends_a_picture_and_goes_on(self, client, site, is_stored):
        model = site("A dot.", "Red.")
        chat = OpenWebUi(client, is_stored=is_stored)

        chat.ask(asks(ASKS_ABOUT_PICTURE))
        assert chat.ask(asks(ASKS_ABOUT_PICTURE), answered("A dot."), asks("Its color?")) == "Red."

        assert model.sent[1][0] == model.sent[0][0]
        assert len(model.sent[1][0].contents) == 3

    def test_continues_an_answer_that_is_not_stored(self, client, site):
        model = site("and more.")

        assert OpenWebUi(client, is_stored=False).ask(asks("Hello"), answered("One")) == "and more."

        assert model.sent == [[UserMessage("Hello"), AiMessage("One")]]

    def test_does_not_continue_an_answer_that_is_stored(self, client, site):
        site("One")
        chat = OpenWebUi(client)
        chat.ask(asks("Hello"))

        with pytest.raises(openai.BadRequestError) as caught:
            chat.ask(asks("Hello"), answered("One"))

        assert caught.value.param == "messages"
        assert stored() == [("USER", "Hello"), ("AI", "One")]

    def test_goes_on_after_an_answer_of_which_it_has_a_part(self, client, site):
        model = site("One two three", "Four", "Five")
        chat = OpenWebUi(client)

        chat.ask(asks("Count"))
        chat.ask(asks("Count"), answered("One tw"), asks("On"))
        chat.ask(asks("Count"), answered("One tw"), asks("On"), answered("Four"), asks("On!"))

        assert model.sent[2] == [
            UserMessage("Count"),
            AiMessage("One two three"),
            UserMessage("On"),
            AiMessage("Four"),
            UserMessage("On!"),
        ]

    def test_goes_on_after_an_answer_that_has_failed(self, client, site):
        site("One", ChatModelError("x"), "Two", "Three").words_before_error = 2
        chat = OpenWebUi(client)
        history = [asks("First"), answered("One"), asks("Second")]

        chat.ask(history[0])
        with pytest.raises(openai.APIError):
            chat.ask(*history)
        history += [answered("word0"), asks("Third")]
        chat.ask(*history)
        chat.ask(*history, answered("Two"), asks("Fourth"))

        assert [text for _, text in stored()] == ["First", "One", "Second", "Third", "Two", "Fourth", "Three"]

    def test_goes_on_after_a_first_question_that_has_failed(self, client, site):
        site(ChatModelError("x"), "Two", "Three")
        chat = OpenWebUi(client)

        with pytest.raises(openai.APIError):
            chat.ask(asks("First"))
        chat.ask(asks("First"), asks("Second"))
        chat.ask(asks("First"), asks("Second"), answered("Two"), asks("Third"))

        assert [text for _, text in stored()] == ["First", "First\nSecond", "Two", "Third", "Three"]

    def test_has_two_questions_as_one_where_they_were_stored_so(self, client, site):
        site("One", "Two")
        chat = OpenWebUi(client)

        chat.ask(asks("First"), asks("Second"))
        chat.ask(asks("First"), asks("Second"), answered("One"), asks("Third"))

        assert [text for _, text in stored()] == ["First\nSecond", "One", "Third", "Two"]


class TestLibreChat:
    def test_has_usage_in_streams_and_sends_tools_of_before_as_a_text(self, client, site):
        site("Four")
        text = "[Previous tool interaction]\nAI: Let me see. \nAI: [tool_call] get_time({})\nTool: noon"
        body = {
            "model": "assistant",
            "user": "507f1f77bcf86cd799439011",
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [
                {"role": "system", "content": "You are LibreChat."},
                asks("What time is it?"),
                asks([{"type": "text", "text": text}]),
                answered("Noon."),
                asks(
                    [
                        {"type": "text", "text": "And this?"},
                        {"type": "image_url", "image_url": {"url": PNG, "detail": "auto"}},
                    ]
                ),
            ],
        }

        *_, last = client.chat.completions.create(**body)

        assert last.usage.total_tokens == 12
        assert not Conversation.objects.exists()

    def test_asks_for_a_title_as_json(self, client, site):
        model = site('{"language": "English", "title": "Time"}')
        schema = {
            "type": "object",
            "properties": {"language": {"type": "string"}, "title": {"type": "string"}},
            "required": ["language", "title"],
        }
        form = {"type": "json_schema", "json_schema": {"name": "extract", "schema": schema}}

        client.chat.completions.create(
            model="assistant",
            user="507f1f77bcf86cd799439011",
            stream=False,
            response_format=form,
            messages=[asks("Analyze this conversation and provide:\n1. The detected language of the conversation")],
        )

        assert model.requests[0].response_format.name == "extract"
