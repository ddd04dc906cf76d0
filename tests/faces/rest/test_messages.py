"""Messages: reading, searching, adding once, annotating."""

import pytest

from chatmemory_django.codec import message_to_json
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
from tests.faces.rest.conftest import ANSWER, HI, MEMORY, MESSAGES, PROMPT, ROOT, adding, paths, sequences, text, users

OPENAI_MESSAGES = [
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


def texts() -> list[str]:
    return list(Message.objects.order_by("conversation", "sequence").values_list("text", flat=True))


def messages(response) -> list[dict]:
    """Return only the messages, without their fields."""
    assert response.status_code < 300, response.content
    body = response.json()
    return [each["message"] for each in body.get("results", body.get("messages"))]


def post(client, body: object, where: str = MESSAGES, **headers: str):
    return client.post(
        where, body, format="json", headers={name.replace("_", "-"): each for name, each in headers.items()}
    )


class TestReading:
    def test_messages_of_a_type(self, api, begin):
        begin("c", UserMessage("1"), AiMessage("2"), UserMessage("3"), AiMessage("4"))

        assert sequences(api.get(MESSAGES, {"type": "AI"})) == [4, 2]
        assert sequences(api.get(MESSAGES, {"type": "USER", "after": 0, "page_size": 1})) == [3]
        assert sequences(api.get(MESSAGES, {"type": "CUSTOM"})) == []

    def test_messages_inside_and_outside_the_memory(self, api, begin):
        begin("c", SystemMessage("be brief"), *users(2, 3, 4, 5))

        assert sequences(api.get(MESSAGES, {"in_memory": "true"})) == [5, 4, 1]
        assert sequences(api.get(MESSAGES, {"in_memory": "false"})) == [3, 2]

    def test_turns_that_have_not_ended(self, api, begin):
        begin("c", *users(1, 2))
        Message.objects.filter(sequence=2).update(is_complete=False)

        assert sequences(api.get(MESSAGES, {"is_complete": "false"})) == [2]
        assert sequences(api.get(MESSAGES, {"is_complete": "true"})) == [1]

    def test_leaves_out_messages_that_were_only_set_in_a_memory(self, api, begin):
        begin("c", *users(1, 2))
        get_chat_memory("c").set([SystemMessage("a summary")])

        assert sequences(api.get(MESSAGES)) == [2, 1]
        assert sequences(api.get(MEMORY)) == [3]
        assert api.get(f"{MESSAGES}3/").json()["in_memory"] is True

    @pytest.mark.parametrize(
        "query",
        [{"after": "-1"}, {"before": "x"}, {"after": "9" * 30}, {"after": "1.5"}, {"after": "1e1"}, {"before": "NaN"},
         {"type": "user"}, {"in_memory": "maybe"}, {"as": "xml"}, {"media": "all"}, {"page_size": "1000"},
         {"page": "2"}, {"type": "\0"}, {"search": "x" * 256}, {"ordering": "text"}],
    )  # fmt: skip
    def test_names_an_invalid_parameter(self, api, begin, query):
        begin("c")

        response = api.get(MESSAGES, query)

        assert response.status_code == 400
        assert paths(response) == [f"?{next(iter(query))}"]


class TestSearching:
    def test_returns_the_messages_with_the_positions_of_the_match(self, api, begin):
        begin("c", UserMessage("Where is my parcel?"), AiMessage("No idea"), UserMessage("My PARCEL is blue"))

        found = api.get(MESSAGES, {"search": "parcel"}).json()["results"]

        assert [each["sequence"] for each in found] == [3, 1]
        assert found[0]["snippet"] == [
            {"text": "My ", "is_hit": False},
            {"text": "PARCEL", "is_hit": True},
            {"text": " is blue", "is_hit": False},
        ]
        assert "snippet" not in api.get(MESSAGES).json()["results"][0]

    @pytest.mark.parametrize("wanted", ["%", "_", "\\", "'", "<b>", "blue parcel"])
    def test_takes_the_text_literally(self, api, begin, wanted):
        begin("c", UserMessage("Where is my parcel?"), UserMessage(f"So: {wanted}!"))

        found = api.get(MESSAGES, {"search": wanted})

        assert sequences(found) == [2]
        assert {"text": wanted, "is_hit": True} in found.json()["results"][0]["snippet"]

    def test_combines_with_other_filters_and_pages(self, api, begin):
        begin("c", *[UserMessage("hi")] * 5, AiMessage("hi"))

        page = api.get(MESSAGES, {"search": "HI", "type": "USER", "page_size": 2})

        assert sequences(page) == [5, 4]
        assert sequences(api.get(page.json()["next"])) == [3, 2]


class TestOneMessage:
    def test_has_its_place_time_tokens_and_whether_it_is_in_memory(self, api, begin):
        begin("c", UserMessage("hi", name="Ann"), *users(2, 3, 4))
        Message.objects.filter(sequence=1).update(
            token_count=7, counted_by="x", metadata={"a": 1}, client_message_id="m"
        )

        found = api.get(f"{MESSAGES}1/").json()

        assert found.pop("created_at")
        assert found == {
            "sequence": 1,
            "in_memory": False,
            "on_path": True,
            "place": None,
            "is_pinned": False,
            "token_count": 7,
            "client_message_id": "m",
            "metadata": {"a": 1},
            "is_complete": True,
            "text": "hi",
            "message": {"type": "USER", "contents": [{"type": "TEXT", "text": "hi"}], "name": "Ann"},
        }
        assert api.get(f"{MESSAGES}4/").json()["in_memory"] is True
        Message.objects.filter(sequence=1).update(is_complete=False)
        assert api.get(f"{MESSAGES}1/").json()["is_complete"] is False
        as_openai = api.get(f"{MESSAGES}1/", {"as": "openai"}).json()
        assert as_openai["message"] == {"role": "user", "content": "hi", "name": "Ann"}
        assert (as_openai["sequence"], as_openai["token_count"]) == (1, 7)

    @pytest.mark.parametrize("sequence", ["0", "2", "99999999999999999999", "2147483648", "-1", "x", "1.0", "٣", "%00"])
    def test_that_is_missing_is_not_found(self, api, begin, sequence):
        begin("c", UserMessage("hi"))

        for where in (f"{MESSAGES}{sequence}/", f"{MESSAGES}{sequence}/media/0/"):
            assert api.get(where).status_code == 404
        response = api.patch(f"{MESSAGES}{sequence}/", {"metadata": {"feedback": 1}}, format="json")
        assert response.status_code == 404

    def test_is_in_the_codecs_format(self, api, begin):
        message = UserMessage([TextContent("a"), ImageContent(Image(base64_data="AA==", mime_type="image/png"))], "Ann")
        begin("c", message)

        body = api.get(MESSAGES, {"media": "inline"}).content.decode()

        assert f'"message":{message_to_json(message)}}}' in body


class TestAdding:
    def test_messages_of_every_type_returns_them_as_stored(self, writer, begin, settings):
        settings.CHATMEMORY["MEMORY"]["OPTIONS"] = {"max_messages": 10}
        begin("c")
        spoken = [
            HI,
            {"type": "AI", "toolExecutionRequests": [{"id": "1", "name": "t", "arguments": "{}"}], "thinking": "hm"},
            {
                "type": "TOOL_EXECUTION_RESULT",
                "id": "1",
                "toolName": "t",
                "contents": [{"type": "TEXT", "text": "4"}],
                "isError": False,
            },
        ]
        unseen = [PROMPT, {"type": "CUSTOM", "attributes": {"a": [1, 1.5, None, {"京": "都"}], "big": 10**40}}]

        response = post(writer, adding(*unseen, *spoken, metadata={"model": "m"}))

        assert response.status_code == 201
        assert sequences(response) == [1, 2, 3, 4, 5]
        assert messages(response) == [None, None, *spoken]
        assert response.json()["messages"][::-1] == writer.get(MESSAGES).json()["results"]
        assert response["ETag"] == writer.get(f"{ROOT}c/")["ETag"]
        assert {row.metadata["model"] for row in Message.objects.all()} == {"m"}
        assert [row.chat_message for row in Conversation.objects.get().history()][:2] == [
            SystemMessage("be brief"),
            CustomMessage(unseen[1]["attributes"]),
        ]

    def test_stores_the_metadata_of_each(self, api, begin):
        begin("c")

        body = {"messages": [{"message": HI, "metadata": {"n": 1}}, {"message": HI, "metadata": None}, {"message": HI}]}

        assert [each["metadata"] for each in post(api, body).json()["messages"]] == [{"n": 1}, None, None]

    def test_is_all_or_nothing(self, api, begin):
        begin("c")

        response = post(api, adding(HI, {"type": "USER"}))

        assert response.status_code == 400
        assert response.json()["errors"] == [
            {
                "path": "$.messages[1].message",
                "code": "invalid",
                "detail": "Object missing required field `contents`.",
            }
        ]
        assert not Message.objects.exists()

    def test_an_empty_list_adds_nothing(self, api, begin):
        begin("c")
        seen = api.get(f"{ROOT}c/")["ETag"]

        response = post(api, {"messages": []})

        assert (response.status_code, response.json(), response["ETag"]) == (201, {"messages": []}, seen)

    def test_an_existing_system_message_returns_the_stored_one(self, writer, begin):
        begin("c", SystemMessage("be brief"), UserMessage("hi"))

        assert sequences(post(writer, adding(PROMPT, HI))) == [1, 3]

    def test_with_an_etag_requires_the_current_one(self, api, begin):
        begin("c")
        seen = api.get(f"{ROOT}c/")["ETag"]

        responses = [post(api, adding(HI), If_Match=seen) for _ in "ab"]

        assert [each.status_code for each in responses] == [201, 412]
        assert texts() == ["hi"]

    def test_returns_messages_even_if_evicted_at_once(self, api, begin):
        begin("c")

        response = post(api, adding(*[HI] * 5))

        assert [each["in_memory"] for each in response.json()["messages"]] == [False, False, True, True, True]

    def test_without_history_returns_what_remains(self, api, begin, settings):
        settings.CHATMEMORY["KEEP_HISTORY"] = False
        begin("c")

        assert sequences(post(api, adding(*[HI] * 5))) == [3, 4, 5]

    def test_names_the_first_type_that_the_user_may_not_add(self, api, begin):
        begin("c")

        response = post(api, adding(HI, ANSWER, PROMPT))

        assert response.status_code == 403
        assert response.json()["type"] == "urn:chatmemory:forbidden_type"
        assert paths(response) == ["$.messages[1].message"]
        assert not Message.objects.exists()


class TestAnnotating:
    """PATCH of a message's metadata: feedback."""

    def test_merges_key_by_key(self, writer, begin):
        begin("c", UserMessage("hi"))
        where = f"{MESSAGES}1/"

        writer.patch(where, {"metadata": {"a": 1, "b": {"c": 1}}}, format="json")
        response = writer.patch(where, {"metadata": {"a": None, "b": 2, "new": []}}, format="json")

        assert response.status_code == 200
        assert response.json()["metadata"] == {"b": 2, "new": []}
        assert response.json() == writer.get(where).json()
        assert Message.objects.get().metadata == {"b": 2, "new": []}

    def test_an_answer_is_limited_to_feedback_for_the_owner(self, api, begin):
        begin("c", UserMessage("hi"), AiMessage("hello"), SystemMessage("secret"))
        Message.objects.update(metadata={"model": "m"})

        rated = api.patch(f"{MESSAGES}2/", {"metadata": {"feedback": {"rating": 5}}}, format="json")
        forged = api.patch(f"{MESSAGES}2/", {"metadata": {"model": "another", "x": 1}}, format="json")
        unseen = api.patch(f"{MESSAGES}3/", {"metadata": {"feedback": 1}}, format="json")

        assert rated.json()["metadata"] == {"model": "m", "feedback": {"rating": 5}}
        assert (forged.status_code, paths(forged)) == (400, ["$.metadata.model", "$.metadata.x"])
        assert unseen.status_code == 403
        assert Message.objects.get(sequence=3).metadata == {"model": "m"}

    def test_is_a_write_but_not_an_activity(self, api, begin):
        before = begin("c", UserMessage("hi"))
        seen = api.get(f"{ROOT}c/")["ETag"]

        response = api.patch(f"{MESSAGES}1/", {"metadata": {"feedback": 1}}, format="json")

        after = Conversation.objects.get()
        assert (after.updated_at, after.version) == (before.updated_at, before.version + 1)
        assert response["ETag"] == api.get(f"{ROOT}c/")["ETag"] != seen

    def test_with_equal_values_changes_nothing(self, api, begin):
        begin("c", UserMessage("hi"))
        api.patch(f"{MESSAGES}1/", {"metadata": {"feedback": 1}}, format="json")
        seen = api.get(f"{ROOT}c/")["ETag"]

        for body in ({}, {"metadata": {}}, {"metadata": {"feedback": 1}}):
            response = api.patch(f"{MESSAGES}1/", body, format="json")

            assert (response.status_code, response["ETag"]) == (200, seen), body

    def test_messages_only_set_in_a_memory_is_refused(self, writer, begin):
        begin("c", *users(1))
        get_chat_memory("c").set(users(2))
        sequence = Message.objects.filter(in_history=False).first().sequence

        response = writer.patch(f"{MESSAGES}{sequence}/", {"metadata": {"feedback": 1}}, format="json")

        assert response.status_code == 404

    def test_requires_the_current_etag(self, api, begin):
        begin("c", UserMessage("hi"))
        headers = {"If-Match": api.get(f"{MESSAGES}1/")["ETag"]}
        get_chat_memory("c").add(*users(2))

        response = api.patch(f"{MESSAGES}1/", {"metadata": {"feedback": 1}}, format="json", headers=headers)

        assert response.status_code == 412
        assert Message.objects.get(sequence=1).metadata is None

    @pytest.mark.parametrize(
        ("body", "path"),
        [
            ({"metadata": None}, "$.metadata"),
            ({"metadata": []}, "$.metadata"),
            ({"metadata": "x"}, "$.metadata"),
            ({"metadata": {"feedback": "\0"}}, "$.metadata"),
            ({"metadata": {"feedback": "x" * 20_000}}, "$.metadata"),
            ({"metadata": {"feedback": 1}, "message": HI}, "$.message"),
            ([], "$"),
        ],
    )
    def test_names_errors(self, api, begin, body, path):
        begin("c", UserMessage("hi"))

        response = api.patch(f"{MESSAGES}1/", body, format="json")

        assert (response.status_code, paths(response)) == (400, [path])
        assert Message.objects.get().metadata is None

    def test_limits_the_merged_size(self, writer, begin):
        begin("c", UserMessage("hi"))

        statuses = [
            writer.patch(f"{MESSAGES}1/", {"metadata": {str(key): "x" * 5_000}}, format="json").status_code
            for key in range(5)
        ]

        assert statuses == [200, 200, 200, 400, 400]
        assert set(Message.objects.get().metadata) == {"0", "1", "2"}


class TestRetries:
    def test_with_a_key_store_once_and_respond_the_same(self, writer, begin):
        begin("c", UserMessage("0"))
        body = adding(HI, ANSWER)

        responses = [post(writer, body, Idempotency_Key="schlüssel") for _ in range(2)]

        assert {each.status_code for each in responses} == {201}
        assert responses[0].content == responses[1].content
        assert responses[0]["ETag"] == responses[1]["ETag"]
        assert texts() == ["0", "hi", "hello"]

    def test_long_after_store_nothing_and_return_the_current_state(self, writer, begin):
        begin("c")
        first = post(writer, adding(HI, ANSWER), Idempotency_Key="k")
        post(writer, adding(HI, HI))

        again = post(writer, adding(HI, ANSWER), Idempotency_Key="k")

        assert (again.status_code, sequences(again)) == (201, sequences(first))
        assert [each["in_memory"] for each in again.json()["messages"]] == [False, True]
        assert texts() == ["hi", "hello", "hi", "hi"]

    def test_are_recognized_after_concurrent_feedback(self, writer, begin):
        begin("c")
        body = adding(HI, ANSWER, metadata={"model": "m"})
        post(writer, body, Idempotency_Key="k")
        writer.patch(f"{MESSAGES}2/", {"metadata": {"feedback": 1}}, format="json")

        again = post(writer, body, Idempotency_Key="k")

        assert (again.status_code, sequences(again)) == (201, [1, 2])
        assert again.json()["messages"][1]["metadata"] == {"model": "m", "feedback": 1}
        assert texts() == ["hi", "hello"]

    @pytest.mark.parametrize("how", ["key", "client message ids"])
    def test_of_stored_messages_succeed_despite_a_stale_etag(self, api, begin, how):
        begin("c")
        seen = api.get(f"{ROOT}c/")["ETag"]
        headers = {"Idempotency_Key": "k"} if how == "key" else {}
        body = adding(HI) if how == "key" else adding(HI, client_message_id="1")

        first, again = (post(api, body, If_Match=seen, **headers) for _ in range(2))

        assert (first.status_code, again.status_code) == (201, 201)
        assert again.content == first.content
        assert post(api, adding(HI), If_Match=seen, Idempotency_Key="another").status_code == 412
        assert texts() == ["hi"]

    @pytest.mark.parametrize("named", ["f08c2aea-521b-470b-a585-4cb2afb803a3", "msg_7", "京" * 64, " "])
    def test_with_client_message_ids_store_once(self, writer, begin, named):
        begin("c")

        def body(second: str | None) -> dict:
            return {"messages": [{"message": HI, "client_message_id": named},
                                 {"message": ANSWER, "client_message_id": second}]}  # fmt: skip

        post(writer, body(None))
        response = post(writer, body("another"))

        assert sequences(response) == [1, 3]
        assert [each["client_message_id"] for each in response.json()["messages"]] == [named, "another"]
        assert texts() == ["hi", "hello", "hello"]

    @pytest.mark.parametrize("how", ["key", "client message ids"])
    @pytest.mark.parametrize(
        "changed",
        [
            adding(HI, ANSWER),
            adding(HI, text("ho")),
            adding(text("ho"), HI),
            {"messages": [*adding(HI)["messages"], *adding(HI, metadata={"a": 1})["messages"]]},
            adding({**HI, "name": "Ann"}, HI),
        ],
    )
    def test_with_another_body_are_refused_and_store_nothing(self, writer, begin, how, changed):
        begin("c")
        headers = {"Idempotency_Key": "k"} if how == "key" else {}

        def named(body: dict) -> dict:
            ids = [{"client_message_id": str(number)} if how != "key" else {} for number in range(2)]
            return {"messages": [each | name for each, name in zip(body["messages"], ids, strict=True)]}

        post(writer, named(adding(HI, HI)), **headers)

        response = post(writer, named(changed), **headers)

        assert response.status_code == 422
        assert response.json()["type"] == "urn:chatmemory:key_reused"
        assert texts() == ["hi", "hi"]

    @pytest.mark.parametrize("count", [0, 1, 3, 5])
    def test_with_a_longer_or_shorter_body_are_refused(self, api, begin, count):
        begin("c")
        post(api, adding(HI, HI), Idempotency_Key="k")

        response = post(api, adding(*[HI] * count), Idempotency_Key="k")

        assert response.status_code == 422
        assert texts() == ["hi", "hi"]

    def test_with_a_key_and_ids_store_once(self, api, begin):
        begin("c")
        body = {"messages": [{"message": HI, "client_message_id": "1"}, {"message": HI}]}

        responses = [post(api, body, Idempotency_Key="k") for _ in range(2)]

        assert responses[0].content == responses[1].content
        assert texts() == ["hi", "hi"]

    def test_with_an_existing_system_message_store_once(self, writer, begin):
        begin("c", SystemMessage("be brief"))

        responses = [post(writer, adding(PROMPT, HI), Idempotency_Key="k") for _ in range(2)]

        assert [sequences(each) for each in responses] == [[1, 2], [1, 2]]
        assert texts() == ["be brief", "hi"]

    def test_with_one_id_for_two_messages_are_refused(self, api, begin):
        begin("c")

        response = post(api, adding(HI, HI, client_message_id="a"))

        assert (response.status_code, paths(response)) == (400, ["$.messages"])
        assert not Message.objects.exists()

    def test_keys_belong_to_one_conversation(self, api, begin):
        for name in "cd":
            begin(name)
            post(api, adding(HI), f"{ROOT}{name}/messages/", Idempotency_Key="k")

        assert texts() == ["hi", "hi"]

    @pytest.mark.parametrize(
        ("headers", "item", "path"),
        [
            ({"Idempotency_Key": ""}, {}, "Idempotency-Key"),
            ({"Idempotency_Key": "k" * 256}, {}, "Idempotency-Key"),
            ({}, {"client_message_id": ""}, "$.messages[0].client_message_id"),
            ({}, {"client_message_id": "x" * 65}, "$.messages[0].client_message_id"),
            ({}, {"client_message_id": "\0"}, "$.messages[0].client_message_id"),
            ({}, {"client_message_id": 1}, "$.messages[0].client_message_id"),
            ({}, {"client_message_id": ["a"]}, "$.messages[0].client_message_id"),
            ({}, {"client_message_ids": "a"}, "$.messages[0].client_message_ids"),
        ],
    )
    def test_name_errors(self, api, begin, headers, item, path):
        begin("c")

        response = post(api, adding(HI, **item), **headers)

        assert (response.status_code, paths(response)) == (400, [path])
        assert not Message.objects.exists()


class TestOpenAi:
    def test_messages_come_back_unchanged(self, client_of, begin, settings):
        settings.CHATMEMORY["MEMORY"]["OPTIONS"] = {"max_messages": 10}
        begin("c")
        staff = client_of("staff with every permission")

        response = post(staff, adding(*OPENAI_MESSAGES), f"{MESSAGES}?as=openai")

        assert messages(response) == OPENAI_MESSAGES
        assert messages(staff.get(MESSAGES, {"as": "openai", "ordering": "sequence"})) == OPENAI_MESSAGES
        assert messages(staff.get(MEMORY, {"as": "openai"})) == OPENAI_MESSAGES
        assert [row.chat_message for row in Conversation.objects.get().history()] == [
            SystemMessage("be brief"),
            UserMessage([TextContent("what is it?"), ImageContent(Image(url="https://x/a.png"))]),
            AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "t", "{}")]),
            ToolExecutionResultMessage("1", "t", "4"),
            AiMessage("four", attributes={"refusal": "no"}),
        ]

    def test_both_formats_can_be_mixed(self, api, begin):
        begin("c")

        response = post(api, adding(HI, {"role": "user", "content": "ho"}))

        assert messages(response) == [HI, text("ho")]

    @pytest.mark.parametrize(
        ("spoken", "path"),
        [
            ([{"role": "narrator", "content": "x"}], "$.messages[0].message.role"),
            ([{"role": "user", "content": []}], "$.messages[0].message.content"),
            ([{"role": "user", "content": [{"type": "video"}]}], "$.messages[0].message.content[0].type"),
            ([{"role": "user", "content": "x", "colour": "red"}], "$.messages[0].message"),
            ([{"role": "user", "content": "x"}, {"role": "system", "content": " "}], "$.messages[1].message.content"),
            ([{"role": "user", "type": "USER", "content": "x"}], "$.messages[0].message"),
        ],
    )
    def test_messages_that_cannot_be_read_are_refused(self, api, begin, spoken, path):
        begin("c")

        response = post(api, adding(*spoken))

        assert (response.status_code, paths(response)) == (400, [path])
        assert not Message.objects.exists()

    def test_messages_that_cannot_be_written_are_named(self, client_of, begin):
        begin("c", UserMessage("hi"), CustomMessage({"a": 1}))

        response = client_of("staff who read").get(MESSAGES, {"as": "openai"})

        assert (response.status_code, paths(response)) == (400, ["?as"])
        assert "CustomMessage is not supported" in response.json()["errors"][0]["detail"]
        assert messages(client_of("owner").get(MESSAGES, {"as": "openai"})) == [None, {"role": "user", "content": "hi"}]
