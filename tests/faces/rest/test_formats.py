"""The site chooses the format of messages once, and each envelope has the text that a person would read."""

import pytest

from chatmemory_django.messages import (
    AiMessage,
    CustomMessage,
    Image,
    ImageContent,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
    Video,
    VideoContent,
)
from tests.faces.rest.conftest import MEMORY, MESSAGES, adding

pytestmark = pytest.mark.django_db

ASKED = {"role": "user", "content": "hi"}
CALL = ToolExecutionRequest("1", "track", "{}")


@pytest.fixture
def openai(settings) -> None:
    """Make OpenAI's format that of the site."""
    settings.CHATMEMORY["REST"]["FORMAT"] = "openai"


def envelopes(response) -> list[dict]:
    assert response.status_code in {200, 201}, response.content
    body = response.json()
    return body.get("results") or body["messages"]


@pytest.mark.usefixtures("openai")
class TestOpenAisFormatAsTheSites:
    def test_what_is_sent_comes_back_the_same(self, api, begin):
        begin("c")
        [stored] = envelopes(api.post(MESSAGES, adding(ASKED), format="json"))

        assert stored["message"] == ASKED
        for where in (MESSAGES, MEMORY):
            assert [each["message"] for each in envelopes(api.get(where))] == [ASKED]
        assert api.get(f"{MESSAGES}1/").json()["message"] == ASKED

    def test_a_client_can_ask_for_the_other_format(self, api, begin):
        begin("c", UserMessage("hi"))

        assert envelopes(api.get(MESSAGES, {"as": "langchain4j"}))[0]["message"]["type"] == "USER"

    @pytest.mark.parametrize(
        "message", [CustomMessage({"a": 1}), UserMessage([VideoContent(Video(url="https://example.com/a.mp4"))])]
    )
    def test_a_message_that_it_does_not_have_is_in_the_other_format(self, client_of, begin, message):
        begin("c", UserMessage("hi"), message)
        staff = client_of("staff who read")
        last, first = envelopes(staff.get(MESSAGES))

        assert first["message"] == ASKED
        assert last["message"]["type"] == message.type
        assert staff.get(MESSAGES, {"as": "openai"}).status_code == 400  # as it was asked for

    def test_both_formats_are_read(self, api, begin):
        begin("c")
        body = adding({"type": "USER", "contents": [{"type": "TEXT", "text": "hi"}]})

        assert envelopes(api.post(MESSAGES, body, format="json"))[0]["message"] == ASKED


def test_by_default_messages_are_in_the_format_of_langchain4j(api, begin):
    begin("c", UserMessage("hi"))

    assert envelopes(api.get(MESSAGES))[0]["message"]["type"] == "USER"


@pytest.mark.parametrize("form", ["langchain4j", "openai"])
def test_each_envelope_has_the_text_that_a_person_would_read(client_of, begin, settings, form):
    settings.CHATMEMORY["REST"]["FORMAT"] = form
    picture = ImageContent(Image(url="https://example.com/a.png"))
    begin(
        "c",
        SystemMessage("be brief"),
        UserMessage([TextContent("what"), picture, TextContent("is this?")], name="Ann"),
        AiMessage(None, None, [CALL]),
        ToolExecutionResultMessage("1", "track", "Hamburg"),
        AiMessage("It is in Hamburg.", "hm"),
    )
    shown = envelopes(client_of("staff who read").get(MESSAGES, {"ordering": "sequence"}))

    assert [each["text"] for each in shown] == ["be brief", "what\nis this?", "", "Hamburg", "It is in Hamburg."]


def test_who_may_not_read_a_message_does_not_read_its_text(api, client_of, begin):
    begin("c", SystemMessage("swordfish"), UserMessage("hi"))

    assert [each["text"] for each in envelopes(api.get(MESSAGES))] == ["hi", None]
    assert [each["text"] for each in envelopes(client_of("staff who see").get(MESSAGES))] == [None, None]
    assert b"swordfish" not in api.get(MEMORY).content


def test_the_text_of_a_memory_is_what_is_sent(client_of, begin, settings):
    settings.CHATMEMORY["MEMORY"]["OPTIONS"]["repair_tools"] = True
    begin("c", UserMessage("hi"), AiMessage("wait", None, [CALL]))
    for each in envelopes(client_of("staff who read").get(MEMORY)):
        assert each["text"] == (each["message"].get("text") or each["message"]["contents"][0]["text"])
