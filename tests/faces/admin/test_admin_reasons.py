"""Each message of a transcript states why the model is sent it, or why not."""

import re

import pytest

from chatmemory_django.admin import reasons
from chatmemory_django.admin.reasons import WORDS
from chatmemory_django.core.reasons import Reason
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
from tests.faces.admin.admin_site import (
    EVERYTHING,
    MESSAGE_WINDOW,
    TOKEN_WINDOW,
    counted,
    long_conversation,
    page,
    shown,
    staff,
)

pytestmark = pytest.mark.django_db

CALL = ToolExecutionRequest(id="1", name="weather", arguments="{}")
MESSAGES = (
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


def talk_of(*messages, max_messages: int = 6) -> Conversation:
    memory = MessageWindowChatMemory(max_messages=max_messages, id="c", store=DjangoChatMemoryStore())
    memory.add(*messages)
    return Conversation.objects.get()


def badges(html: str) -> dict[int, str]:
    """Return the last badge of each message that has one, which states the reason."""
    parts = re.split(r'<article class="[^"]*" id="m-(\d+)"', html)[1:]
    return {
        int(sequence): found[-1]
        for sequence, part in zip(parts[::2], parts[1::2], strict=True)
        if (found := re.findall(r'title="[^"]+">([^<]+)</span>', part))
    }


def test_every_reason_has_a_distinct_label():
    assert set(WORDS) == set(Reason)
    assert len({str(words.short) for words in WORDS.values()}) == len(Reason)
    assert len({str(words.long) for words in WORDS.values()}) == len(Reason)


def test_each_message_shows_its_reason(reader, settings):
    settings.CHATMEMORY = window(max_messages=5, start_on_user=True, repair_tools=True)

    assert badges(shown(reader, talk_of(*MESSAGES))) == {
        1: "in the memory, pinned",
        2: "evicted",
        3: "does not fit the window",
        4: "before the first user message",
        5: "before the first user message",
        6: "in the memory",
        7: "unpaired tool call",
    }


def test_messages_that_come_back_as_the_window_grew_show_it(reader, settings):
    conversation = talk_of(*(UserMessage(str(number)) for number in range(1, 6)), max_messages=2)

    settings.CHATMEMORY = window(max_messages=4)
    assert badges(shown(reader, conversation)) == {
        1: "evicted",
        2: "in the memory again",
        3: "in the memory again",
        4: "in the memory",
        5: "in the memory",
    }
    settings.CHATMEMORY = window(max_messages=4, refill=False)
    assert badges(shown(reader, conversation))[3] == "evicted"


def test_even_a_memory_that_is_empty_as_stored_shows_what_comes_back(reader, settings):
    conversation = talk_of(UserMessage("1"), AiMessage(tool_execution_requests=[CALL]), max_messages=2)
    MessageWindowChatMemory(max_messages=1, id="c", store=DjangoChatMemoryStore()).add(
        ToolExecutionResultMessage("1", "weather", "fine")
    )

    settings.CHATMEMORY = window(max_messages=4)
    assert Conversation.objects.get().memory_messages == 0
    assert set(badges(shown(reader, conversation)).values()) == {"in the memory again"}


def test_a_message_with_some_calls_not_sent_shows_it(reader, settings):
    settings.CHATMEMORY = window(max_messages=5, repair_tools=True)
    other = ToolExecutionRequest(id="2", name="trains", arguments="{}")
    result = ToolExecutionResultMessage.from_request(CALL, "rain")

    shown_badges = badges(shown(reader, talk_of(AiMessage("so", tool_execution_requests=[CALL, other]), result)))

    assert shown_badges == {1: "in the memory, in part"}  # where all are, the others need no mark


def test_messages_that_the_model_is_not_sent_are_styled_differently(reader, settings):
    settings.CHATMEMORY = window(max_messages=5, start_on_user=True, repair_tools=True)

    html = shown(reader, talk_of(*MESSAGES))

    assert re.findall(r'<article class="[^"]*cm-(sent|unsent)[^"]*" id="m-(\d)"', html) == [
        ("sent", "1"),
        *(("unsent", str(sequence)) for sequence in (2, 3, 4, 5)),
        ("sent", "6"),
        ("unsent", "7"),
    ]


def test_the_reasons_match_explain(reader, settings):
    settings.CHATMEMORY = window(max_messages=4, repair_tools=True)
    talk = talk_of(*MESSAGES, SystemMessage("Be long"), UserMessage("and?"), max_messages=8)
    memory = MessageWindowChatMemory(max_messages=4, repair_tools=True)

    shown_badges = badges(shown(reader, talk))

    explained = talk.read(memory).explain(talk.recent(100))
    assert shown_badges == {each.sequence: str(WORDS[each.reason].short) for each in explained}
    assert "superseded" in shown_badges.values()


def test_the_page_of_a_message_explains_the_reason_in_a_sentence(reader, settings):
    settings.CHATMEMORY = window(max_messages=5)
    talk = talk_of(*MESSAGES)

    html = reader.get(page("message", talk.pk, 3)).content.decode()

    assert "the current window is too small for it" in html


def test_without_permission_to_read_the_reasons_come_from_the_rows(client, settings):
    client.force_login(staff("view_conversation"))
    settings.CHATMEMORY = window(max_messages=5)

    assert badges(shown(client, talk_of(*MESSAGES)))[3] == "in the memory"


@pytest.mark.parametrize(
    "memory",
    [
        {"CLASS": "nowhere.Memory"},
        {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 0}},
        {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"unknown": 1}},
        "nowhere.function",
    ],
)
def test_with_invalid_settings_the_reasons_come_from_the_rows(reader, settings, memory):
    settings.CHATMEMORY = {"MEMORY": memory}

    assert set(badges(shown(reader, talk_of(*MESSAGES))).values()) == {
        "in the memory, pinned",
        "evicted",
        "in the memory",
    }


def test_with_an_unreadable_message_the_reasons_come_from_the_rows(reader, settings):
    settings.CHATMEMORY = window(max_messages=5)
    talk = talk_of(*MESSAGES)
    Message.objects.filter(sequence=5).update(payload="{")

    assert badges(shown(reader, talk))[3] == "in the memory"


def test_nothing_is_counted_for_the_reasons(reader, settings):
    settings.CHATMEMORY = TOKEN_WINDOW
    talk = counted(*[UserMessage("word " * 97)] * 12, max_tokens=2000)
    assert badges(shown(reader, talk))[1] == "does not fit the window"

    Conversation.objects.update(counted_by="other")

    assert badges(shown(reader, talk)) == {}  # all are, as far as is known


@pytest.mark.parametrize(("name", "bound"), [("MAX_EXPLAINED", 5), ("MAX_EXPLAINED_SIZE", 50)])
def test_a_memory_that_is_too_large_is_not_read_for_the_reasons(reader, settings, monkeypatch, name, bound):
    settings.CHATMEMORY = window(max_messages=5)
    monkeypatch.setattr(reasons, name, bound)

    assert badges(shown(reader, talk_of(*MESSAGES)))[3] == "in the memory"


def test_reasons_take_two_statements_per_page(reader, settings, django_assert_num_queries):
    settings.CHATMEMORY = MESSAGE_WINDOW
    talk = long_conversation(300)

    with django_assert_num_queries(10 + 2):
        shown(reader, talk)
    with django_assert_num_queries(7):
        shown(reader, talk, before=200)
