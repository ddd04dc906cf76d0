"""Each message of a transcript says why the model is sent it, or why not."""

import re

import pytest

from chatmemory_django.admin import reasons
from chatmemory_django.admin.reasons import WORDS
from chatmemory_django.explain import Reason, read_recent
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.admin_site import EVERYTHING, MESSAGE_WINDOW, TOKEN_WINDOW, counted, long_conversation, page, shown, staff

pytestmark = pytest.mark.django_db

CALL = ToolExecutionRequest(id="1", name="weather", arguments="{}")
SAID = (
    SystemMessage("Be brief"),
    UserMessage("evicted"),
    AiMessage("fits no more"),
    ToolExecutionResultMessage("0", "weather", "unpaired result"),
    AiMessage("before the first user"),
    UserMessage("sent"),
    AiMessage(tool_execution_requests=[CALL]),
)


@pytest.fixture
def reader(client):
    client.force_login(staff(*EVERYTHING))
    return client


def window(**options) -> dict:
    return {"MEMORY": {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": options}}


def talk_of(*said, max_messages: int = 6) -> Conversation:
    memory = MessageWindowChatMemory(max_messages=max_messages, id="c", store=DjangoChatMemoryStore())
    memory.add(*said)
    return Conversation.objects.get()


def badges(html: str) -> dict[int, str]:
    """The last badge of each message, which says why."""
    parts = re.split(r'<article class="[^"]*" id="m-(\d+)"', html)[1:]
    return {
        int(sequence): re.findall(r'title="[^"]+">([^<]+)</span>', part)[-1]
        for sequence, part in zip(parts[::2], parts[1::2], strict=True)
    }


def test_every_reason_has_words_of_its_own():
    assert set(WORDS) == set(Reason)
    assert len({str(words.short) for words in WORDS.values()}) == len(Reason)
    assert len({str(words.long) for words in WORDS.values()}) == len(Reason)


def test_each_message_says_why(reader, settings):
    settings.CHATMEMORY = window(max_messages=5, start_on_user=True, repair_tools=True)

    assert badges(shown(reader, talk_of(*SAID))) == {
        1: "in the memory, pinned",
        2: "evicted",
        3: "does not fit the window",
        4: "before the first user message",
        5: "before the first user message",
        6: "in the memory",
        7: "unpaired tool call",
    }


def test_a_message_some_of_whose_calls_are_not_sent_says_so(reader, settings):
    settings.CHATMEMORY = window(max_messages=5, repair_tools=True)
    other = ToolExecutionRequest(id="2", name="trains", arguments="{}")
    result = ToolExecutionResultMessage.from_request(CALL, "rain")

    told = badges(shown(reader, talk_of(AiMessage("so", tool_execution_requests=[CALL, other]), result)))

    assert told == {1: "in the memory, in part", 2: "in the memory"}


def test_what_the_model_is_not_sent_looks_like_it(reader, settings):
    settings.CHATMEMORY = window(max_messages=5, start_on_user=True, repair_tools=True)

    html = shown(reader, talk_of(*SAID))

    assert re.findall(r'<article class="[^"]*cm-(sent|unsent)[^"]*" id="m-(\d)"', html) == [
        ("sent", "1"),
        *(("unsent", str(sequence)) for sequence in (2, 3, 4, 5)),
        ("sent", "6"),
        ("unsent", "7"),
    ]


def test_it_is_what_explain_says(reader, settings):
    settings.CHATMEMORY = window(max_messages=4, repair_tools=True)
    talk = talk_of(*SAID, SystemMessage("Be long"), UserMessage("and?"), max_messages=8)
    memory = MessageWindowChatMemory(max_messages=4, repair_tools=True)

    told = badges(shown(reader, talk))

    assert told == {
        reading.row.sequence: str(WORDS[reading.reason].short) for reading in read_recent(talk, memory, 100)
    }
    assert "superseded" in told.values()


def test_the_page_of_a_message_says_it_in_a_sentence(reader, settings):
    settings.CHATMEMORY = window(max_messages=5)
    talk = talk_of(*SAID)

    html = reader.get(page("message", talk.pk, 3)).content.decode()

    assert "the window of this moment is too small for it" in html


def test_without_the_right_to_read_the_rows_alone_say_it(client, settings):
    client.force_login(staff("view_conversation"))
    settings.CHATMEMORY = window(max_messages=5)

    assert badges(shown(client, talk_of(*SAID)))[3] == "in the memory"


@pytest.mark.parametrize(
    "memory",
    [
        {"CLASS": "nowhere.Memory"},
        {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 0}},
        {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"unknown": 1}},
        "nowhere.function",
    ],
)
def test_invalid_settings_leave_what_the_rows_say(reader, settings, memory):
    settings.CHATMEMORY = {"MEMORY": memory}

    assert set(badges(shown(reader, talk_of(*SAID))).values()) == {"in the memory, pinned", "evicted", "in the memory"}


def test_so_does_a_message_that_cannot_be_read(reader, settings):
    settings.CHATMEMORY = window(max_messages=5)
    talk = talk_of(*SAID)
    Message.objects.filter(sequence=5).update(payload="{")

    assert badges(shown(reader, talk))[3] == "in the memory"


def test_nothing_is_counted_for_it(reader, settings):
    settings.CHATMEMORY = TOKEN_WINDOW
    talk = counted(*[UserMessage("word " * 97)] * 12, max_tokens=2000)
    assert badges(shown(reader, talk))[1] == "does not fit the window"

    Conversation.objects.update(counted_by="other")

    assert badges(shown(reader, talk))[1] == "in the memory"


@pytest.mark.parametrize(("name", "bound"), [("MAX_EXPLAINED", 5), ("MAX_EXPLAINED_SIZE", 50)])
def test_a_memory_that_is_too_large_is_not_read_for_it(reader, settings, monkeypatch, name, bound):
    settings.CHATMEMORY = window(max_messages=5)
    monkeypatch.setattr(reasons, name, bound)

    assert badges(shown(reader, talk_of(*SAID)))[3] == "in the memory"


def test_it_takes_two_statements_for_a_page_that_shows_some_of_the_memory(reader, settings, django_assert_num_queries):
    settings.CHATMEMORY = MESSAGE_WINDOW
    talk = long_conversation(300)

    with django_assert_num_queries(10 + 2):
        shown(reader, talk)
    with django_assert_num_queries(7):
        shown(reader, talk, before=200)
