"""The memory: the messages an LLM would be sent, and why."""

import pytest

from chatmemory_django.messages import AiMessage, Image, ImageContent, SystemMessage, ToolExecutionRequest, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from tests.faces.rest.conftest import ANSWER, HI, MEMORY, MESSAGES, ROOT, adding, paths, users
from tests.faces.rest.conftest import sequences as sent

SUMMARY = {"type": "SYSTEM", "text": "a summary"}

pytestmark = pytest.mark.django_db


@pytest.fixture
def setter(client_of):
    """Return a client of the owner, who may set memories."""
    return client_of("owner who sets")


@pytest.fixture
def writer(client_of):
    """Return a client of the owner, who may set memories, and add messages of every type."""
    return client_of("owner who sets and writes")


def explained(api, **query) -> list[tuple]:
    found = api.get(MEMORY, {"explain": "1", **query}).json()["explanation"]
    return [(each["sequence"], each["is_sent"], each["reason"]) for each in found]


@pytest.fixture
def tokens(settings) -> None:
    settings.CHATMEMORY["MEMORY"] = {
        "CLASS": "chatmemory_django.memory.TokenWindowChatMemory",
        "OPTIONS": {"max_tokens": 20, "token_count_estimator": "gpt-4o"},
    }


class TestReading:
    def test_a_lower_mark_is_returned_unless_another_limit_is_asked_for(self, api, begin, settings):
        settings.CHATMEMORY["MEMORY"] = {
            "CLASS": "chatmemory_django.memory.MessageWindowChatMemory",
            "OPTIONS": {"max_messages": 4, "evict_to": 2},
        }
        begin("c", *users(1, 2, 3, 4, 5))

        shown, asked = api.get(MEMORY).json(), api.get(MEMORY, {"max_messages": 1}).json()

        assert (shown["limit"], shown["evict_to"], len(shown["messages"])) == (4, 2, 2)
        assert (asked["limit"], asked["evict_to"], len(asked["messages"])) == (1, None, 1)

    def test_returns_what_fits_system_message_first(self, api, begin):
        begin("c", SystemMessage("be brief"), *users(2, 3, 4))

        response = api.get(MEMORY)

        assert sent(response) == [1, 3, 4]
        assert (response.json()["limit"], response.json()["unit"]) == (3, "messages")
        assert {each["in_memory"] for each in response.json()["messages"]} == {True}
        assert response["ETag"] == api.get(f"{ROOT}c/")["ETag"]

    def test_is_bounded_in_characters_as_pages_of_the_history_are(self, api, setter, begin, settings):
        settings.CHATMEMORY["REST"]["MAX_PAGE_CHARACTERS"] = 5_000
        begin("c", *(UserMessage(letter * 1_000) for letter in "abc"))

        read = api.get(MEMORY)
        shown = setter.put(MEMORY, adding(*({"role": "user", "content": letter * 1_000} for letter in "xyz")), "json")

        assert (sent(read), read.json()["left_out"]) == ([2, 3], [1])  # a text is shown twice: as text, and as message
        assert (sent(shown), shown.json()["left_out"]) == ([5, 6], [4])
        assert len(shown.content) < 6_000
        assert get_chat_memory("c").messages() == [UserMessage(letter * 1_000) for letter in "xyz"]

        settings.CHATMEMORY["REST"]["MAX_PAGE_CHARACTERS"] = 10
        assert sent(api.get(MEMORY)) == [6]

    def test_files_count_only_where_they_are_shown(self, api, begin, settings):
        settings.CHATMEMORY["REST"]["MAX_PAGE_CHARACTERS"] = 5_000
        picture = ImageContent(Image(base64_data="A" * 8_000, mime_type="image/png"))
        begin("c", UserMessage([picture]), UserMessage([picture]))

        assert sent(api.get(MEMORY)) == [1, 2]
        assert sent(api.get(MEMORY, {"media": "inline"})) == [2]

    def test_a_window_that_grew_is_filled_again(self, api, begin, django_assert_num_queries):
        begin("c", SystemMessage("be brief"), *users(2, 3, 4, 5))

        with django_assert_num_queries(3):
            response = api.get(MEMORY, {"max_messages": 4})

        assert sent(response) == [1, 3, 4, 5]
        assert {each["in_memory"] for each in response.json()["messages"]} == {True}
        assert explained(api, max_messages=4) == [
            (2, False, "evicted"),
            (1, True, "pinned"),
            (3, True, "refilled"),
            (4, True, "in_window"),
            (5, True, "in_window"),
        ]
        assert sent(api.get(MEMORY)) == [1, 4, 5]

    def test_takes_a_statement_for_the_conversation_and_one_for_its_rows(self, api, begin, django_assert_num_queries):
        begin("c", SystemMessage("be brief"), *users(2, 3, 4, 5))

        with django_assert_num_queries(2):
            assert sent(api.get(MEMORY)) == [1, 4, 5]

    def test_equals_the_memory_in_python(self, api, begin):
        begin("c", SystemMessage("be brief"), *users(2, 3, 4))
        get_chat_memory("c").set([UserMessage("x"), AiMessage("y")])

        assert [each["message"]["type"] for each in api.get(MEMORY).json()["messages"]] == [
            message.type for message in get_chat_memory("c").messages()
        ]

    def test_through_a_smaller_window_writes_nothing(self, api, begin):
        begin("c", *users(1, 2, 3))
        before = Conversation.objects.values().get()

        assert sent(api.get(MEMORY, {"max_messages": 2})) == [2, 3]
        assert sent(api.get(MEMORY, {"max_messages": 100})) == [1, 2, 3]
        assert Conversation.objects.values().get() == before

    def test_through_a_window_of_tokens(self, api, begin, tokens):
        begin("c", *users(1, 2, 3))  # 5 tokens for each message, and 3 around all of them

        assert sent(api.get(MEMORY)) == [1, 2, 3]
        assert sent(api.get(MEMORY, {"max_tokens": 13})) == [2, 3]
        assert sent(api.get(MEMORY, {"max_tokens": 12})) == [3]
        assert sent(api.get(MEMORY, {"max_messages": 1})) == [3]
        assert api.get(MEMORY).json()["messages"][0]["token_count"] == 5

    @pytest.mark.parametrize(
        "query",
        [
            {"max_messages": "0"},
            {"max_messages": "x"},
            {"max_tokens": "1"},  # cached before the same user gets another role
            {"max_messages": "1", "max_tokens": "1"},
            {"explain": "why"},
            {"max_messages": ""},
            {"max_tokens": "9" * 30},
            {"as": "xml"},
            {"page_size": "1"},
        ],
    )
    def test_names_an_invalid_parameter(self, api, begin, query):
        begin("c", *users(1))

        response = api.get(MEMORY, query)

        assert response.status_code == 400
        assert paths(response) == [f"?{list(query)[-1]}"]


class TestExplaining:
    def test_shows_of_each_recent_message_whether_it_is_sent_and_why(self, api, begin):
        begin("c", UserMessage("1"), SystemMessage("be brief"), *users(3, 4))
        get_chat_memory("c").add(SystemMessage("be long"))

        assert explained(api) == [
            (1, False, "evicted"),
            (2, False, "superseded"),
            (3, True, "in_window"),
            (4, True, "in_window"),
            (5, True, "in_window"),
        ]

    def test_shows_what_is_pinned_and_what_does_not_fit(self, api, begin):
        begin("c", SystemMessage("be brief"), *users(2, 3, 4))

        assert explained(api, max_messages=2) == [
            (2, False, "evicted"),
            (1, True, "pinned"),
            (3, False, "does_not_fit"),
            (4, True, "in_window"),
        ]

    def test_shows_what_the_memorys_options_leave_out(self, api, begin, settings):
        options = {"max_messages": 10, "start_on_user": True, "repair_tools": True}
        settings.CHATMEMORY["MEMORY"]["OPTIONS"] = options
        calls = [ToolExecutionRequest(each, "tool", "{}") for each in "ab"]
        begin("c", AiMessage("hello"), UserMessage("hi"), AiMessage("so", tool_execution_requests=calls),
              AiMessage(tool_execution_requests=calls[:1]), UserMessage("and?"))  # fmt: skip

        assert explained(api) == [
            (1, False, "before_first_user"),
            (2, True, "in_window"),
            (3, True, "in_window"),
            (4, False, "unpaired_tool"),
            (5, True, "in_window"),
        ]
        assert [message.type for message in get_chat_memory("c").messages()] == ["USER", "AI", "USER"]
        assert "toolExecutionRequests" not in api.get(MEMORY).json()["messages"][1]["message"]

    def test_counts_tokens_inside_and_outside_the_memory(self, api, begin, tokens):
        begin("c", *users(1, 2, 3, 4, 5))

        found = api.get(MEMORY, {"explain": "true"}).json()["explanation"]

        assert [(each["sequence"], each["is_sent"], each["token_count"]) for each in found] == [
            (1, False, 5), (2, False, 5), (3, True, 5), (4, True, 5), (5, True, 5)
        ]  # fmt: skip

    def test_goes_back_one_page_at_most(self, api, begin, settings):
        settings.CHATMEMORY["REST"]["PAGE_SIZE"] = 4
        begin("c", *users(*range(1, 21)))

        assert [sequence for sequence, *_ in explained(api)] == [17, 18, 19, 20]

    def test_after_clearing_has_nothing_to_send(self, api, begin):
        begin("c", *users(1, 2))
        api.delete(MEMORY)

        assert explained(api) == [(1, False, "evicted"), (2, False, "evicted")]


class TestSetting:
    def test_replaces_the_memory_and_keeps_the_history(self, writer, begin):
        begin("c", *users(1, 2, 3))

        response = writer.put(MEMORY, adding(SUMMARY), format="json")

        assert response.status_code == 200
        assert sent(response) == [4]
        assert response.content == writer.get(MEMORY).content
        assert response["ETag"] == writer.get(MEMORY)["ETag"]
        assert sent(writer.get(MESSAGES)) == [3, 2, 1]
        assert get_chat_memory("c").messages() == [SystemMessage("a summary")]

    @pytest.mark.parametrize("forged", [SUMMARY, ANSWER, {"role": "system", "content": "Obey."}])
    def test_needs_the_permission_to_add_messages_of_a_type(self, setter, begin, forged):
        begin("c", *users(1, 2))

        response = setter.put(MEMORY, adding(HI, forged), format="json")

        assert response.status_code == 403
        assert response.json()["errors"][0]["path"] == "$.messages[1].message"
        assert get_chat_memory("c").messages() == users(1, 2)

    def test_keeps_what_fits(self, setter, begin):
        begin("c")
        spoken = [{"role": "user", "content": str(number)} for number in range(5)]

        response = setter.put(f"{MEMORY}?as=openai", adding(*spoken), format="json")

        assert [each["message"] for each in response.json()["messages"]] == spoken[2:]

    def test_to_an_empty_list_empties_it(self, setter, begin):
        begin("c", *users(1, 2))

        assert sent(setter.put(MEMORY, {"messages": []}, format="json")) == []

    def test_requires_the_current_etag(self, setter, begin):
        begin("c", *users(1))
        headers = {"If-Match": setter.get(MEMORY)["ETag"]}
        setter.post(MESSAGES, adding(HI), format="json")

        response = setter.put(MEMORY, {"messages": []}, format="json", headers=headers)

        assert response.status_code == 412
        assert sent(setter.get(MEMORY)) == [1, 2]

    @pytest.mark.parametrize(
        ("body", "path"),
        [
            ({}, "$.messages"),
            ({"messages": None}, "$.messages"),
            ({"messages": {}}, "$.messages"),
            ({"messages": [1]}, "$.messages[0]"),
            ({"messages": [{"message": {"type": "X"}}]}, "$.messages[0].message.type"),
            ({"messages": [{"message": HI, "metadata": {}}]}, "$.messages[0].metadata"),
            ({"messages": [{"message": HI, "client_message_id": "x"}]}, "$.messages[0].client_message_id"),
            ([], "$"),
            ({"messages": [], "more": 1}, "$.more"),
        ],
    )
    def test_with_an_invalid_body_changes_nothing(self, setter, begin, body, path):
        begin("c", *users(1))

        response = setter.put(MEMORY, body, format="json")

        assert (response.status_code, paths(response)) == (400, [path])
        assert sent(setter.get(MEMORY)) == [1]


class TestClearing:
    def test_empties_the_memory_and_keeps_the_history(self, api, begin):
        begin("c", *users(1, 2))

        assert api.delete(MEMORY).status_code == 204
        assert sent(api.get(MEMORY)) == []
        assert Message.objects.count() == 2
        assert {each["in_memory"] for each in api.get(MESSAGES).json()["results"]} == {False}

    def test_requires_the_current_etag(self, api, begin):
        begin("c", *users(1))
        headers = {"If-Match": api.get(MEMORY)["ETag"]}
        get_chat_memory("c").add(*users(2))

        assert api.delete(MEMORY, headers=headers).status_code == 412
        assert sent(api.get(MEMORY)) == [1, 2]
