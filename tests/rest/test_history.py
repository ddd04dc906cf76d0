"""Messages: read page by page, added once."""

import threading

import pytest
from django.conf import settings as django_settings
from django.db import connections
from rest_framework.test import APIClient

from chatmemory_django.codec import message_from_json
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
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.rest import history
from tests.rest.conftest import ROOT

MESSAGES = f"{ROOT}c/messages/"
HI = {"type": "USER", "contents": [{"type": "TEXT", "text": "hi"}]}
ANSWER = {"type": "AI", "text": "hello"}

SAID = [
    {"role": "system", "content": "be brief"},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "what is it?"},
            {"type": "image_url", "image_url": {"url": "https://x/a.png", "detail": "low"}},
        ],
    },
    {
        "role": "assistant",
        "tool_calls": [{"type": "function", "id": "1", "function": {"name": "t", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "4"},
    {"role": "assistant", "content": "four", "refusal": "no"},
]

pytestmark = pytest.mark.django_db


def users(*numbers: int) -> list[UserMessage]:
    return [UserMessage(str(number)) for number in numbers]


def sequences(answer) -> list[int]:
    assert answer.status_code == 200, answer.content
    return [each["sequence"] for each in answer.json()["results"]]


def texts() -> list[str]:
    return list(Message.objects.order_by("sequence").values_list("text", flat=True))


class TestPages:
    def test_begin_with_the_latest_and_go_back(self, api, begin):
        begin("c", *users(*range(1, 8)))
        seen, where = [], f"{MESSAGES}?limit=3"

        while where:
            page = api.get(where)
            seen.append(sequences(page))
            where = page.json()["previous"]

        assert seen == [[5, 6, 7], [2, 3, 4], [1]]

    def test_go_on_from_any_place(self, api, begin):
        begin("c", *users(*range(1, 8)))
        seen, where = [], f"{MESSAGES}?limit=3&after=0"

        while where:
            page = api.get(where)
            seen.append(sequences(page))
            where = page.json()["next"]

        assert seen == [[1, 2, 3], [4, 5, 6], [7]]
        assert sequences(api.get(page.json()["previous"])) == [4, 5, 6]

    def test_go_both_ways_from_the_middle(self, api, begin):
        begin("c", *users(*range(1, 8)))

        page = api.get(MESSAGES, {"before": 5, "limit": 2})

        assert sequences(page) == [3, 4]
        assert sequences(api.get(page.json()["next"])) == [5, 6]
        assert sequences(api.get(page.json()["previous"])) == [1, 2]

    def test_between_two_places(self, api, begin):
        begin("c", *users(*range(1, 8)))

        assert sequences(api.get(MESSAGES, {"after": 2, "before": 6})) == [3, 4, 5]
        assert sequences(api.get(MESSAGES, {"after": 6, "before": 2})) == []

    def test_of_an_empty_history_and_of_places_that_are_not_there(self, api, begin):
        begin("c")
        empty = {"results": [], "next": None, "previous": None}

        assert api.get(MESSAGES).json() == empty
        assert api.get(MESSAGES, {"before": 0}).json()["results"] == []
        assert sequences(api.get(MESSAGES, {"after": 2**31 - 1})) == []

    def test_of_messages_of_a_type(self, api, begin):
        begin("c", UserMessage("1"), AiMessage("2"), UserMessage("3"), AiMessage("4"))

        assert sequences(api.get(MESSAGES, {"type": "AI"})) == [2, 4]
        assert sequences(api.get(MESSAGES, {"type": "USER", "after": 0, "limit": 1})) == [1]
        assert sequences(api.get(MESSAGES, {"type": "CUSTOM"})) == []

    def test_of_what_is_in_memory_and_of_what_is_not(self, api, begin):
        begin("c", SystemMessage("be brief"), *users(2, 3, 4, 5))

        assert sequences(api.get(MESSAGES, {"in_memory": "true"})) == [1, 4, 5]
        assert sequences(api.get(MESSAGES, {"in_memory": "false"})) == [2, 3]

    @pytest.mark.parametrize("direction", ["next", "previous"])
    def test_look_no_farther_than_they_may_and_still_find_all(self, api, begin, monkeypatch, direction):
        monkeypatch.setattr(history, "REACH", 3)
        begin("c", AiMessage("1"), *users(*range(2, 10)), AiMessage("10"), *users(11, 12, 13, 14, 15))
        seen, count = [], 0
        where = f"{MESSAGES}?type=AI&limit=2" + ("&after=0" if direction == "next" else "")

        while where:
            page = api.get(where)
            seen += sequences(page)
            where, count = page.json()[direction], count + 1

        assert sorted(seen) == [1, 10]
        assert count >= 5

    def test_leave_out_what_only_a_memory_was_made_of(self, api, begin):
        begin("c", *users(1, 2))
        get_chat_memory("c").set([SystemMessage("a summary")])

        assert sequences(api.get(MESSAGES)) == [1, 2]

    @pytest.mark.parametrize(
        "query",
        [{"after": "-1"}, {"before": "x"}, {"after": "9" * 30}, {"type": "user"}, {"in_memory": "maybe"}, {"as": "xml"},
         {"limit": "1000"}, {"page": "2"}, {"type": "\0"}],
    )  # fmt: skip
    def test_say_which_parameter_is_wrong(self, api, begin, query):
        begin("c")

        answer = api.get(MESSAGES, query)

        assert answer.status_code == 400
        assert answer.json()["errors"][0]["path"] in {f"?{next(iter(query))}", "?"}


class TestOneMessage:
    def test_has_its_place_its_time_its_tokens_and_whether_it_is_in_memory(self, api, begin, settings):
        begin("c", UserMessage("hi", name="Ann"), *users(2, 3, 4))
        Message.objects.filter(sequence=1).update(token_count=7, counted_by="x")

        found = api.get(f"{MESSAGES}1/").json()

        assert found.pop("created_at")
        assert found == {
            "type": "USER",
            "contents": [{"type": "TEXT", "text": "hi"}],
            "name": "Ann",
            "sequence": 1,
            "in_memory": False,
            "is_complete": True,
            "token_count": 7,
        }
        assert api.get(f"{MESSAGES}4/").json()["in_memory"] is True
        Message.objects.filter(sequence=1).update(is_complete=False)
        assert api.get(f"{MESSAGES}1/").json()["is_complete"] is False
        assert api.get(f"{MESSAGES}1/", {"as": "openai"}).json() == {"role": "user", "content": "hi", "name": "Ann"}

    @pytest.mark.parametrize("sequence", ["0", "2", "99999999999999999999", "-1", "x"])
    def test_that_is_not_there(self, api, begin, sequence):
        begin("c", UserMessage("hi"))

        assert api.get(f"{MESSAGES}{sequence}/").status_code == 404


class TestAdding:
    def test_messages_of_every_kind_gives_their_sequences(self, api, begin):
        begin("c")
        said = [
            {"type": "SYSTEM", "text": "be brief"},
            HI,
            {"type": "AI", "toolExecutionRequests": [{"id": "1", "name": "t", "arguments": "{}"}], "thinking": "hm"},
            {
                "type": "TOOL_EXECUTION_RESULT",
                "id": "1",
                "toolName": "t",
                "contents": [{"type": "TEXT", "text": "4"}],
                "isError": False,
            },
            {"type": "CUSTOM", "attributes": {"a": [1, 1.5, None, {"京": "都"}], "big": 10**40}},
        ]

        answer = api.post(MESSAGES, {"messages": said, "metadata": {"model": "m"}}, format="json")

        assert answer.status_code == 201
        assert answer.json() == {"sequences": [1, 2, 3, 4, 5]}
        told = api.get(MESSAGES).json()["results"]
        assert [{name: each[name] for name in one} for one, each in zip(said, told, strict=True)] == said
        assert {row.metadata["model"] for row in Message.objects.all()} == {"m"}

    def test_is_all_or_nothing(self, api, begin):
        begin("c")

        answer = api.post(MESSAGES, {"messages": [HI, {"type": "USER"}]}, format="json")

        assert answer.status_code == 400
        assert answer.json()["errors"] == [
            {"path": "$.messages[1]", "detail": "Object missing required field `contents`."}
        ]
        assert not Message.objects.exists()

    def test_of_nothing_adds_nothing(self, api, begin):
        begin("c")

        assert api.post(MESSAGES, {"messages": []}, format="json").json() == {"sequences": []}

    def test_of_a_system_message_that_is_there_names_that_one(self, api, begin):
        begin("c", SystemMessage("be brief"), UserMessage("hi"))

        answer = api.post(MESSAGES, {"messages": [{"type": "SYSTEM", "text": "be brief"}, HI]}, format="json")

        assert answer.json() == {"sequences": [1, 3]}

    def test_only_to_what_one_has_seen_if_one_says_so(self, api, begin):
        begin("c")
        seen = api.get(f"{ROOT}c/")["ETag"]
        headers = {"If-Match": seen}

        statuses = [api.post(MESSAGES, {"messages": [HI]}, format="json", headers=headers).status_code for _ in "ab"]

        assert statuses == [201, 412]


class TestRetries:
    def test_with_a_key_store_once_and_answer_the_same(self, api, begin):
        begin("c", UserMessage("0"))
        headers = {"Idempotency-Key": "schlüssel"}

        answers = [api.post(MESSAGES, {"messages": [HI, ANSWER]}, format="json", headers=headers) for _ in range(2)]
        api.post(MESSAGES, {"messages": [HI]}, format="json")
        answers.append(api.post(MESSAGES, {"messages": [HI, ANSWER]}, format="json", headers=headers))

        assert {each.status_code for each in answers} == {201}
        assert [each.content for each in answers] == [answers[0].content] * 3
        assert texts() == ["0", "hi", "hello", "hi"]

    @pytest.mark.parametrize("named", ["f08c2aea-521b-470b-a585-4cb2afb803a3", "msg_7", "京" * 64, " "])
    def test_with_client_message_ids_store_once(self, api, begin, named):
        begin("c")
        body = {"messages": [HI, ANSWER], "client_message_ids": [named, None]}

        api.post(MESSAGES, body, format="json")
        answer = api.post(MESSAGES, {**body, "client_message_ids": [named, "another"]}, format="json")

        assert answer.json() == {"sequences": [1, 3]}
        assert texts() == ["hi", "hello", "hello"]
        assert Message.objects.get(sequence=1).client_message_id == named

    @pytest.mark.parametrize("how", ["key", "client message ids"])
    def test_with_another_body_are_refused_and_store_nothing(self, api, begin, how):
        begin("c")
        headers = {"Idempotency-Key": "k"} if how == "key" else {}
        ids = {"client_message_ids": ["1", "2"]} if how == "client message ids" else {}
        api.post(MESSAGES, {"messages": [HI, HI], **ids}, format="json", headers=headers)

        answer = api.post(MESSAGES, {"messages": [HI, ANSWER], **ids}, format="json", headers=headers)

        assert answer.status_code == 422
        assert texts() == ["hi", "hi"]

    def test_say_that_two_messages_must_not_have_one_name(self, api, begin):
        begin("c")

        answer = api.post(MESSAGES, {"messages": [HI, ANSWER], "client_message_ids": ["a", "a"]}, format="json")

        assert answer.status_code == 400
        assert answer.json()["errors"][0]["path"] == "$.client_message_ids"
        assert not Message.objects.exists()

    def test_keys_are_of_one_conversation(self, api, begin):
        begin("c")
        begin("d")

        for name in "cd":
            headers = {"Idempotency-Key": "k"}
            api.post(f"{ROOT}{name}/messages/", {"messages": [HI]}, format="json", headers=headers)

        assert texts() == ["hi", "hi"]

    @pytest.mark.parametrize(
        ("headers", "ids", "path"),
        [
            ({"Idempotency-Key": ""}, None, "Idempotency-Key"),
            ({"Idempotency-Key": "k" * 256}, None, "Idempotency-Key"),
            ({}, [""], "$.client_message_ids[0]"),
            ({}, ["x" * 65], "$.client_message_ids[0]"),
            ({}, ["\0"], "$.client_message_ids[0]"),
            ({}, [1], "$.client_message_ids[0]"),
            ({}, ["a", "b"], "$.client_message_ids"),
            ({}, {}, "$.client_message_ids"),
        ],
    )
    def test_say_what_is_wrong_with_their_names(self, api, begin, headers, ids, path):
        begin("c")

        answer = api.post(MESSAGES, {"messages": [HI], "client_message_ids": ids}, format="json", headers=headers)

        assert answer.status_code == 400
        assert answer.json()["errors"][0]["path"] == path
        assert not Message.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(
    django_settings.DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3",
    reason="SQLite's test database is in memory, where threads cannot race",
)
def test_two_retries_that_race_store_once(begin, people):
    begin("c")
    answers, barrier = [], threading.Barrier(6)

    def post() -> None:
        client = APIClient()
        client.force_authenticate(people["owner"])
        barrier.wait()
        headers = {"Idempotency-Key": "k"}
        answers.append(client.post(MESSAGES, {"messages": [HI, ANSWER]}, format="json", headers=headers))
        connections.close_all()

    threads = [threading.Thread(target=post) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [each.content for each in answers] == [b'{"sequences":[1,2]}'] * 6
    assert texts() == ["hi", "hello"]


class TestOpenAi:
    def test_comes_in_and_goes_out_the_same(self, api, begin, settings):
        settings.CHATMEMORY["MEMORY"]["OPTIONS"] = {"max_messages": 10}
        begin("c")

        answer = api.post(f"{MESSAGES}?as=openai", {"messages": SAID}, format="json")

        assert answer.json() == {"sequences": [1, 2, 3, 4, 5]}
        assert api.get(MESSAGES, {"as": "openai"}).json()["results"] == SAID
        assert api.get(f"{ROOT}c/memory/", {"as": "openai"}).json()["messages"] == SAID
        assert [row.chat_message for row in Conversation.objects.get().history()] == [
            SystemMessage("be brief"),
            UserMessage([TextContent("what is it?"), ImageContent(Image(url="https://x/a.png"))]),
            AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "t", "{}")]),
            ToolExecutionResultMessage("1", "t", "4"),
            AiMessage("four", attributes={"refusal": "no"}),
        ]

    @pytest.mark.parametrize(
        ("said", "path"),
        [
            ([{"role": "narrator", "content": "x"}], "$.messages[0].role"),
            ([{"role": "user", "content": []}], "$.messages[0].content"),
            ([{"role": "user", "content": [{"type": "video"}]}], "$.messages[0].content[0].type"),
            ([{"role": "user", "content": "x", "colour": "red"}], "$.messages[0]"),
            ([{"role": "user", "content": "x"}, {"role": "system", "content": " "}], "$.messages[1].content"),
            ([HI, {"role": "user", "content": "x"}], "$.messages[0]"),
        ],
    )
    def test_says_what_it_cannot_take(self, api, begin, said, path):
        begin("c")

        answer = api.post(MESSAGES, {"messages": said}, format="json")

        assert answer.status_code == 400
        assert answer.json()["errors"][0]["path"] == path
        assert not Message.objects.exists()

    def test_says_what_it_cannot_tell(self, api, begin):
        begin("c", UserMessage("hi"), CustomMessage({"a": 1}))

        answer = api.get(MESSAGES, {"as": "openai"})

        assert answer.status_code == 400
        assert answer.json()["detail"] == ("messages[1] cannot be told to OpenAI: it has no place for a CustomMessage.")


def test_what_is_told_is_what_the_codec_writes(api, begin):
    message = UserMessage([TextContent("a"), ImageContent(Image(base64_data="AA==", mime_type="image/png"))], "Ann")
    begin("c", message)

    told = api.get(MESSAGES).content.decode()

    start, end = told.index("[") + 1, told.index(',"sequence"')
    assert message_from_json(told[start:end] + "}") == message
