"""Downloads of the memory or a message in OpenAI's format: a file, or an explanation why there is none."""

import json

import pytest

from chatmemory_django.admin import downloads
from chatmemory_django.formats.openai_chat import to_openai
from chatmemory_django.memory import MessageWindowChatMemory
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
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.faces.admin.admin_site import EVERYTHING, MESSAGE_WINDOW, TOKEN_WINDOW, page, staff
from tests.faces.admin.test_admin_hostile import BREAK_OUT, assert_harmless

pytestmark = pytest.mark.django_db

CALL = ToolExecutionRequest(id="1", name="weather", arguments="{}")
MESSAGES = (
    SystemMessage("Be brief"),
    UserMessage([TextContent("<script>"), ImageContent(Image(url="https://example.com/a.png"))], name="Ann"),
    AiMessage("Let me see", "a thought", [CALL]),
    ToolExecutionResultMessage.from_request(CALL, "rain"),
    UserMessage("Thanks"),
)


@pytest.fixture
def reader(client, settings):
    settings.CHATMEMORY = MESSAGE_WINDOW
    client.force_login(staff(*EVERYTHING))
    return client


def talk_of(*messages):
    MessageWindowChatMemory(max_messages=100, id="c", store=DjangoChatMemoryStore()).add(*messages)
    return Conversation.objects.get()


def refusal(client, address: str) -> str:
    """Return the error shown on the page to which *address* redirects."""
    response = client.get(address, follow=True)
    assert len(response.redirect_chain) == 1
    html = response.content.decode()
    assert_harmless(html)
    return html.partition('<li class="error">')[2].partition("</li>")[0]


class TestMemory:
    def test_the_download_contains_what_the_model_is_sent(self, reader, settings):
        talk = talk_of(*MESSAGES)
        settings.CHATMEMORY = {
            "MEMORY": {
                "CLASS": "chatmemory_django.memory.MessageWindowChatMemory",
                "OPTIONS": {"max_messages": 3, "start_on_user": True},
            }
        }

        response = reader.get(page("openai", talk.pk))

        assert response.json() == to_openai(get_chat_memory("c").messages())
        assert [each["role"] for each in response.json()] == ["system", "user"]

    def test_the_response_is_an_attachment_that_browsers_do_not_render(self, reader):
        talk = talk_of(*MESSAGES)

        response = reader.get(page("openai", talk.pk))

        assert len(response.json()) == 5
        assert response["Content-Type"] == "application/json"
        assert response["Content-Disposition"] == f'attachment; filename="memory-{talk.pk}-openai.json"'
        assert response["Content-Security-Policy"] == "default-src 'none'; sandbox"
        assert response["X-Content-Type-Options"] == "nosniff"

    def test_a_download_takes_two_statements_for_any_number_of_messages(self, reader, django_assert_num_queries):
        talk = talk_of(*MESSAGES * 5)

        # The session, the user, two for permissions, the conversation; the size and the memory.
        with django_assert_num_queries(7):
            reader.get(page("openai", talk.pk))

    def test_a_message_that_openai_cannot_represent_is_reported_with_its_number(self, reader):
        talk = talk_of(UserMessage("a"), CustomMessage({BREAK_OUT: 1}))

        assert refusal(reader, page("openai", talk.pk)) == (
            "Message #2 cannot be shown in OpenAI&#x27;s format: CustomMessage is not supported."
        )

    @pytest.mark.parametrize(
        "message",
        [
            UserMessage([VideoContent(Video(url="https://example.com/a.mp4"))]),
            UserMessage([None]),
            ToolExecutionResultMessage(None, "t", "x"),
            ToolExecutionResultMessage("1", "t", [TextContent("x"), TextContent("y")]),
            AiMessage(tool_execution_requests=[ToolExecutionRequest(name=BREAK_OUT)]),
        ],
        ids=["film", "nothing", "nameless_result", "two_texts", "nameless_call"],
    )
    def test_no_stored_message_causes_a_server_error(self, reader, message):
        talk = talk_of(message)

        assert "Message #1 cannot be shown in OpenAI" in refusal(reader, page("openai", talk.pk))
        assert "Message #1 cannot be shown in OpenAI" in refusal(reader, page("message_openai", talk.pk, 1))
        assert page("message_openai", talk.pk, 1) not in reader.get(page("message", talk.pk, 1)).content.decode()

    def test_invalid_settings_are_reported(self, reader, settings):
        talk = talk_of(*MESSAGES)
        settings.CHATMEMORY = {"MEMORY": {"CLASS": "nowhere.Memory"}}

        assert "The settings of this memory are invalid" in refusal(reader, page("openai", talk.pk))

    def test_an_unreadable_message_is_reported(self, reader):
        talk = talk_of(*MESSAGES)
        Message.objects.filter(sequence=2).update(payload="{")

        assert "The memory cannot be read" in refusal(reader, page("openai", talk.pk))
        assert "cannot be read" in refusal(reader, page("message_openai", talk.pk, 2))

    def test_an_unavailable_estimator_is_reported(self, reader, settings, monkeypatch):
        talk = talk_of(*MESSAGES)
        settings.CHATMEMORY = TOKEN_WINDOW

        def refuse(*args):
            raise RuntimeError("no encoding")

        monkeypatch.setattr("chatmemory_django.core.windows.Window.cost", refuse)

        assert refusal(reader, page("openai", talk.pk)) == "The memory cannot be read: no encoding"

    def test_a_memory_that_is_too_large_is_reported(self, reader, monkeypatch):
        monkeypatch.setattr(downloads, "MAX_MEMORY_SIZE", 10)
        talk = talk_of(*MESSAGES)

        assert "too large" in refusal(reader, page("openai", talk.pk))

    def test_an_empty_memory_is_an_empty_list(self, reader):
        talk = talk_of(*MESSAGES)
        get_chat_memory("c").clear()

        assert reader.get(page("openai", talk.pk)).json() == []

    def test_a_deleted_conversation_is_not_found(self, reader):
        assert reader.get(page("openai", 4711)).status_code == 404


class TestMessage:
    @pytest.mark.parametrize("sequence", range(1, 6))
    def test_a_message_is_downloaded_in_openai_s_format(self, reader, sequence):
        talk = talk_of(*MESSAGES)

        response = reader.get(page("message_openai", talk.pk, sequence))

        assert json.loads(response.content) == to_openai(MESSAGES)[sequence - 1]
        assert response["Content-Disposition"] == f'attachment; filename="message-{talk.pk}-{sequence}-openai.json"'

    def test_the_page_of_a_message_links_to_the_download_and_offers_a_copy(self, reader):
        talk = talk_of(*MESSAGES)

        html = reader.get(page("message", talk.pk, 1)).content.decode()

        address = page("message_openai", talk.pk, 1)
        assert f'href="{address}"' in html
        assert f'data-copy="{address}"' in html
