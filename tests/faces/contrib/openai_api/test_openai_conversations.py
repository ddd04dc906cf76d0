"""OpenAI's Conversations API: what its clients send and expect, and who has access."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection, connections
from django.test import Client
from rest_framework.authtoken.models import Token

from chatmemory_django.messages import (
    AiMessage,
    CustomMessage,
    NewMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from tests.database.test_operations import holding
from tests.faces.rest.conftest import REMOVE, WRITE, statements
from tests.quick import mostly_slow

ROOT = "/openai/v1/conversations"
HI = {"role": "user", "content": "Hi"}
HELLO = {"role": "assistant", "content": "Hello"}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 1.0'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": ""}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "They greet."}]}
PNG = "data:image/png;base64,iVBORw0KGgo="


class Api:
    """A client of a user with these permissions."""

    def __init__(self, name: str, *permissions: str) -> None:
        self.user, _ = User.objects.get_or_create(username=name)
        self.user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        self.key = Token.objects.get_or_create(user=self.user)[0].key

    def __call__(self, verb: str, path: str = "", body: object = None, **headers: str):
        client = Client(headers={"Authorization": f"Bearer {self.key}", **headers})
        if body is None and verb != "post":
            return getattr(client, verb)(ROOT + path)
        return getattr(client, verb)(ROOT + path, "" if body is None else body, content_type="application/json")

    def create(self, *items: dict, **others: object) -> str:
        return ok(self("post", "", {"items": list(items), **others}))["id"]

    def add(self, conversation: str, *items: dict, **headers: str) -> list[dict]:
        return ok(self("post", f"/{conversation}/items", {"items": list(items)}, **headers))["data"]

    def items(self, conversation: str, query: str = "order=asc&limit=100") -> list[dict]:
        return ok(self("get", f"/{conversation}/items?{query}"))["data"]


@pytest.fixture
def server(db) -> Api:
    return Api("server", WRITE, REMOVE)


def ok(response) -> dict:
    assert response.status_code == 200, response.content
    assert response["x-request-id"].startswith("req_")
    return response.json()


def error(response, status: int) -> dict:
    assert response.status_code == status, response.content
    assert list(response.json()) == ["error"]
    found = response.json()["error"]
    assert list(found) == ["message", "type", "param", "code"]
    assert response["Content-Type"] == "application/json"
    assert found["type"] == "invalid_request_error"
    assert found["message"]
    return found


def deep(depth: int) -> list:
    return [deep(depth - 1)] if depth else []


def text(words: str, kind: str = "input_text") -> dict:
    return {"type": kind, "text": words}


def in_order(value: object) -> str:
    """Return *value* as text that distinguishes 1, 1.0 and True but not the order of keys."""
    if isinstance(value, dict):
        return repr(sorted((name, in_order(each)) for name, each in value.items()))
    return repr([in_order(each) for each in value]) if isinstance(value, list) else repr(value)


class TestConversations:
    @pytest.mark.parametrize("body", [None, {}, {"items": None, "metadata": None}, {"items": []}], ids=repr)
    def test_can_be_created_empty(self, server, body):
        shown = ok(server("post", "", body))

        assert list(shown) == ["id", "object", "created_at", "metadata"]
        assert (shown["object"], shown["metadata"]) == ("conversation", {})
        assert type(shown["created_at"]) is int
        row = Conversation.objects.get(memory_id=shown["id"])
        assert row.owner == server.user
        assert shown["created_at"] == int(row.created_at.timestamp())
        assert ok(server("get", f"/{shown['id']}")) == shown

    def test_can_be_created_with_items_and_metadata(self, server):
        conversation = server.create(HI, HELLO, metadata={"topic": "greetings", "": "a" * 512})

        assert ok(server("get", f"/{conversation}"))["metadata"] == {"topic": "greetings", "": "a" * 512}
        assert len(server.items(conversation)) == 2

    def test_metadata_can_be_replaced(self, server):
        conversation = server.create(HI, metadata={"a": "1", "b": "2"})

        assert ok(server("post", f"/{conversation}", {"metadata": {"c": "3"}}))["metadata"] == {"c": "3"}
        assert ok(server("post", f"/{conversation}", {"metadata": None}))["metadata"] == {}
        assert len(server.items(conversation)) == 1

    def test_the_sites_metadata_is_kept(self, server):
        conversation = server.create(metadata={"a": "1"})
        Conversation.objects.update(metadata={"a": "1", "plan": {"level": 2}})

        assert ok(server("get", f"/{conversation}"))["metadata"] == {"a": "1"}
        ok(server("post", f"/{conversation}", {"metadata": {"b": "2"}}))

        assert Conversation.objects.get().metadata == {"b": "2", "plan": {"level": 2}}

    def test_can_be_erased(self, server):
        conversation = server.create(HI)

        gone = ok(server("delete", f"/{conversation}"))

        assert gone == {"id": conversation, "object": "conversation.deleted", "deleted": True}
        assert not Message.objects.exists()
        for verb, path in [("get", ""), ("delete", ""), ("get", "/items"), ("get", "/items/msg_1")]:
            error(server(verb, f"/{conversation}{path}"), 404)
        error(server("post", f"/{conversation}/items", {"items": [HI]}), 404)

    def test_that_are_protected_stay_and_the_client_does_not_retry(self, server):
        conversation = server.create(HI)

        with holding(conversation):
            response = server("delete", f"/{conversation}")

        assert error(response, 409)["code"] == "protected"
        assert response.headers["x-should-retry"] == "false"
        assert len(server.items(conversation)) == 1

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"metadata": {"a": 1}}, "metadata.a"),
            ({"metadata": {"a": "x" * 513}}, "metadata.a"),
            ({"metadata": {"x" * 65: "a"}}, "metadata"),
            ({"metadata": {"\0": "a"}}, "metadata"),
            ({"metadata": {"a": "\0"}}, "metadata.a"),
            ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
            ({"metadata": []}, "metadata"),
            ({"items": HI}, "items"),
            ({"items": [HI] * 21}, "items"),
            ({"title": "x"}, "title"),
            ([], None),
        ],
        ids=lambda each: repr(each)[:40],
    )
    def test_cannot_be_created_from_an_invalid_body(self, server, body, param):
        assert error(server("post", "", body), 400)["param"] == param
        assert not Conversation.objects.exists()

    def test_updates_require_metadata(self, server):
        conversation = server.create()

        assert error(server("post", f"/{conversation}", {}), 400)["param"] == "metadata"

    @pytest.mark.parametrize("uses_zones", [True, False])
    def test_times_are_equal_with_and_without_time_zones(self, server, settings, uses_zones):
        settings.USE_TZ, settings.TIME_ZONE = uses_zones, "Asia/Kolkata"
        before = int(time.time())

        assert before <= ok(server("post"))["created_at"] <= time.time()


DONE = {"status": "completed"}
MESSAGE = {"type": "message", **DONE}
IMAGE, OTHER_IMAGE = (
    {"type": "input_image", "image_url": PNG},
    {"type": "input_image", "file_id": "f", "detail": "original"},
)
PDF = {"type": "input_file", "file_data": "data:application/pdf;base64,JVBERi0=", "filename": "ä.pdf"}
LOGGED = {**text("a", "output_text"), "logprobs": [1.0]}
REFUSAL = {"type": "refusal", "refusal": "b"}
ODD = {"type": "custom_tool_call", "call_id": "1", "name": "n", "input": "", "n": [1, 1.0, True, None, 2**53 + 1]}

# The item sent, and its differences when it comes back, apart from the id.
ROUND_TRIPS = {
    "text of a user": (HI, {**MESSAGE, "content": [text("Hi")]}),
    "no text": ({**HI, **MESSAGE, "content": ""}, {"content": [text("")]}),
    "status": ({**HI, "content": [text("Hi")], "status": "in_progress"}, {"type": "message"}),
    "null": ({**HI, "status": None, "phase": None}, {**MESSAGE, "content": [text("Hi")]}),
    "parts": ({"role": "developer", "content": [text("Be"), text("brief")]}, MESSAGE),
    "system": ({"role": "system", "content": "Be brief."}, {**MESSAGE, "content": [text("Be brief.")]}),
    "phase": (
        {**HELLO, "phase": "commentary"},
        {**MESSAGE, "content": [{**text("Hello", "output_text"), "annotations": []}]},
    ),
    "parts of an answer": (
        {"role": "assistant", "content": [LOGGED, REFUSAL]},
        {**MESSAGE, "content": [{**LOGGED, "annotations": []}, REFUSAL]},
    ),
    "images": (
        {"role": "user", "content": [IMAGE, OTHER_IMAGE]},
        {**MESSAGE, "content": [{**IMAGE, "detail": "auto"}, OTHER_IMAGE]},
    ),
    "file": ({"role": "user", "content": [PDF]}, MESSAGE),
    "call": (CALL, DONE),
    "call with more": ({**CALL, "status": "incomplete", "namespace": "n"}, {}),
    "result": (OUTPUT, DONE),
    "result with an image": (
        {**OUTPUT, "output": [text("a"), IMAGE]},
        {**DONE, "output": [text("a"), {**IMAGE, "detail": "auto"}]},
    ),
    "reasoning": ({"type": "reasoning", "summary": [], "encrypted_content": "x=="}, {}),
    "numbers": (ODD, {}),
    "approval": ({"type": "mcp_approval_response", "approval_request_id": "a", "approve": False}, {}),
    "unknown key": ({**HI, "unheard of": {"a": 1.0}}, {**MESSAGE, "content": [text("Hi")]}),
}


class TestItems:
    @pytest.mark.parametrize("name", ROUND_TRIPS)
    def test_come_back_in_full(self, server, name):
        sent, changes = ROUND_TRIPS[name]
        conversation = server.create()

        [made] = server.add(conversation, {**sent, "id": "msg_of_the_client"} if name != "reasoning" else sent)

        assert made["id"] != "msg_of_the_client"
        assert in_order(made) == in_order({"id": made["id"], **sent, **changes})
        assert ok(server("get", f"/{conversation}/items/{made['id']}")) == made
        assert server.items(conversation) == [made]

    def test_are_added_with_nine_statements(self, server):
        conversation = server.create()
        server.add(conversation, HI, HELLO)  # the store records its statements on first use

        with statements() as run:
            server.add(conversation, HI, HELLO)

        # Three for the token; the conversation: lock, read, write, and read for the response; the messages.
        assert len(run) == (8 if connection.vendor == "postgresql" else 9)

    def test_that_are_native_are_stored_as_messages_only(self, server):
        server.create({"role": "system", "content": "Be brief."}, HI, HELLO, CALL, OUTPUT, REASONING)

        assert [(row.chat_message, row.verbatim) for row in Conversation.objects.get().history()] == [
            (SystemMessage("Be brief."), None),
            (UserMessage("Hi"), None),
            (AiMessage("Hello"), None),
            (AiMessage(tool_execution_requests=[ToolExecutionRequest("c1", "look", '{"at": 1.0')]), None),
            (ToolExecutionResultMessage("c1", None, ""), None),
            (CustomMessage({"openai": REASONING}), None),
        ]
        assert [row.sequence for row in Message.objects.containing("greet")] == [6]

    def test_that_are_equal_and_several_system_messages_keep_their_places(self, server):
        prompts = [{"role": "system", "content": name} for name in "AB"]
        sent = [prompts[0], HI, prompts[0], prompts[1], HI, HI]

        conversation = server.create(*sent)

        words = [item["content"][0]["text"] for item in server.items(conversation)]
        assert words == ["A", "Hi", "A", "B", "Hi", "Hi"]
        assert [message.type for message in get_chat_memory(conversation).messages()] == ["SYSTEM", "USER", "USER"]

    def test_include_messages_of_the_site_and_of_other_frameworks(self, server):
        conversation = server.create()
        call = ToolExecutionRequest("c1", "look", "{}")
        memory = get_chat_memory(conversation)
        memory.add(UserMessage("Hi"), AiMessage("Wait.", tool_execution_requests=[call, call]), CustomMessage({"a": 1}))
        verbatim = '{"openai":{"role":"user","content":"Yes","id":"x","name":"Anna"}}'
        memory.add(NewMessage(UserMessage("Yes"), verbatim=verbatim), repeats=True)

        items = server.items(conversation)

        assert [item["type"] for item in items] == ["message", "message", "function_call", "function_call", "message"]
        assert items[4]["name"] == "Anna"
        assert len({item["id"] for item in items}) == 5
        for item in items:
            assert ok(server("get", f"/{conversation}/items/{item['id']}")) == item

    @pytest.mark.parametrize(
        "given",
        [{}, {"type": ["x"], "id": 5}, {"type": "reasoning", "id": 5}, {"type": "film"}, {**HI, "content": None}],
    )
    def test_that_could_not_be_sent_here_can_be_read_and_deleted(self, server, given):
        conversation = server.create()
        memory = get_chat_memory(conversation)
        item = NewMessage(CustomMessage({"openai": given}), verbatim=json.dumps({"openai": given}))
        memory.add(item, UserMessage("Hi"), repeats=True)

        [item, _] = server.items(conversation)

        assert ok(server("get", f"/{conversation}/items/{item['id']}")) == item
        ok(server("delete", f"/{conversation}/items/{item['id']}"))
        assert len(server.items(conversation)) == 1

    @pytest.mark.parametrize(
        ("item", "param"),
        [
            ("Hi", "items[1]"),
            ({"content": "Hi"}, "items[1].role"),
            ({"role": "user"}, "items[1].content"),
            ({"role": "critic", "content": "Hi"}, "items[1].role"),
            ({"role": ["user"], "content": "Hi"}, "items[1].role"),
            ({"role": "user", "content": 5}, "items[1].content"),
            ({"role": "user", "content": ["Hi"]}, "items[1].content[0]"),
            ({"role": "user", "content": [text("a"), text("a", "film")]}, "items[1].content[1].type"),
            ({"role": "user", "content": [{"type": ["input_text"]}]}, "items[1].content[0].type"),
            ({"role": "user", "content": [text(5)]}, "items[1].content[0].text"),
            ({"role": "user", "content": [{"type": "input_image"}]}, "items[1].content[0]"),
            ({"role": "user", "content": "Hi", "status": "done"}, "items[1].status"),
            ({"role": "user", "content": "\0"}, "items[1]"),
            ({"type": "film", "role": "user", "content": "Hi"}, "items[1].type"),
            ({"type": 5}, "items[1].type"),
            ({**CALL, "arguments": {}}, "items[1].arguments"),
            ({**CALL, "call_id": None}, "items[1].call_id"),
            ({**OUTPUT, "output": 5}, "items[1].output"),
            ({"type": "reasoning", "summary": []}, "items[1].id"),
            ({**REASONING, "id": "x" * 65}, "items[1].id"),
            ({**REASONING, "summary": "text"}, "items[1].summary"),
            ({"type": "mcp_list_tools", "server_label": "a", "tools": []}, "items[1].id"),
            ({**HI, "deep": deep(40)}, None),
        ],
        ids=lambda each: repr(each)[:50],
    )  # fmt: skip
    def test_that_are_invalid_are_refused_with_their_place_and_nothing_is_stored(self, server, item, param):
        found = error(server("post", "", {"items": [HI, item]}), 400)

        assert found["param"] == param or (param is None and found["param"].startswith("items[1].deep"))
        assert not Conversation.objects.exists()

    def test_at_least_one_is_required(self, server):
        conversation = server.create()

        for body in ({"items": []}, {"items": None}, {}):
            assert error(server("post", f"/{conversation}/items", body), 400)["param"] == "items"

    def test_work_with_and_without_the_slash(self, server):
        conversation = server.create(HI)

        assert server.items(f"{conversation}") == ok(server("get", f"/{conversation}/items/?order=asc"))["data"]
        ok(server("post", f"/{conversation}/items/", {"items": [HI]}))


class TestIds:
    def test_have_the_form_of_openais_models(self, server):
        made = server.add(
            server.create(), HI, CALL, OUTPUT, {"type": "reasoning", "summary": [], "encrypted_content": "x"}
        )

        assert [item["id"].partition("_")[0] for item in made] == ["msg", "fc", "fco", "rs"]
        assert all(len(item["id"]) <= 64 for item in made)

    def test_are_never_used_again(self, server):
        conversation = server.create(HI)
        [first] = server.items(conversation)

        ok(server("delete", f"/{conversation}/items/{first['id']}"))
        [second] = server.add(conversation, HI)

        assert second["id"] != first["id"]
        error(server("get", f"/{conversation}/items/{first['id']}"), 404)

    def test_of_one_conversation_are_unknown_in_another(self, server):
        one, other = server.create(HI), server.create(HI)
        [item] = server.items(one)

        assert item["id"] != server.items(other)[0]["id"]
        error(server("get", f"/{other}/items/{item['id']}"), 404)
        error(server("delete", f"/{other}/items/{item['id']}"), 404)

    def test_are_kept_where_other_items_refer_to_them(self, server):
        one, other = server.create(REASONING), server.create(REASONING)

        assert ok(server("get", f"/{one}/items/rs_1")) == REASONING
        assert server.items(other) == [REASONING]

    def test_that_are_kept_are_unique(self, server):
        conversation = server.create(REASONING, HI)

        assert (
            error(server("post", f"/{conversation}/items", {"items": [HI, REASONING]}), 400)["param"] == "items[1].id"
        )
        assert error(server("post", "", {"items": [REASONING, REASONING]}), 400)["param"] == "items"
        assert len(server.items(conversation)) == 2

    def test_that_are_kept_can_be_used_again_after_deletion(self, server):
        conversation = server.create(REASONING, HI)

        ok(server("delete", f"/{conversation}/items/rs_1"))
        server.add(conversation, REASONING)

        assert [item["id"] for item in server.items(conversation)][1:] == ["rs_1"]
        assert error(server("post", f"/{conversation}/items", {"items": [REASONING]}), 400)["param"] == "items[0].id"
        ok(server("delete", f"/{conversation}/items/rs_1"))
        assert len(server.items(conversation)) == 1

    def test_stored_by_other_means_are_unique_and_found(self, server):
        conversation = server.create()
        get_chat_memory(conversation).add(CustomMessage({"openai": REASONING}), UserMessage("Hi"), repeats=True)

        assert ok(server("get", f"/{conversation}/items/rs_1")) == REASONING
        error(server("post", f"/{conversation}/items", {"items": [REASONING]}), 400)
        assert [item["role"] for item in server.items(conversation, "order=asc&after=rs_1")] == ["user"]
        ok(server("delete", f"/{conversation}/items/rs_1"))
        assert len(server.items(conversation)) == 1

    def test_that_the_server_generates_cannot_be_taken(self, server):
        conversation = server.create()
        [item] = server.add(conversation, {"type": "reasoning", "summary": [], "encrypted_content": "x"})

        for number in (1, 2, 3):
            forged = {**REASONING, "id": f"{item['id'][:-1]}{number}"}
            error(server("post", f"/{conversation}/items", {"items": [forged]}), 400)

    def test_of_messages_are_not_client_message_ids(self, server):
        conversation = server.create()
        get_chat_memory(conversation).add(NewMessage(UserMessage("Hi"), client_message_id="mine"))

        error(server("get", f"/{conversation}/items/mine"), 404)

    @pytest.mark.parametrize("item_id", ["msg_", "msg_zz", "%00", "x" * 300, "msg_00000000ffffffff", "%F0%9F%98%80"])
    def test_that_are_invalid_are_not_found(self, server, item_id):
        conversation = server.create(HI)

        error(server("get", f"/{conversation}/items/{item_id}"), 404)
        error(server("get", f"/{item_id}/items"), 404)


class TestPaging:
    @pytest.fixture
    def conversation(self, server) -> str:
        conversation = server.create(*([{"role": "user", "content": f"{number}"} for number in range(20)]))
        server.add(conversation, REASONING, *([HELLO] * 3))
        call = ToolExecutionRequest("c1", "look", "{}")
        get_chat_memory(conversation).add(
            AiMessage("Wait.", tool_execution_requests=[call] * 4), CustomMessage({"a": 1})
        )
        return conversation

    @pytest.mark.parametrize("order", ["asc", "desc"])
    @pytest.mark.parametrize("limit", mostly_slow([1, 2, 3, 7, 28, 29, 30, 100], one_in=3))
    def test_returns_every_item_once_with_any_limit(self, server, conversation, order, limit):
        every = server.items(conversation)
        found, after = [], ""
        while True:
            page = ok(server("get", f"/{conversation}/items?limit={limit}&order={order}{after}"))
            assert list(page) == ["object", "data", "first_id", "last_id", "has_more"]
            assert page["first_id"] == page["data"][0]["id"]
            found += page["data"]
            if not page["has_more"]:
                break
            assert len(page["data"]) == limit
            after = f"&after={page['last_id']}"

        assert len(every) == 29
        assert found == (every if order == "asc" else every[::-1])

    def test_defaults_to_the_newest_20(self, server, conversation):
        page = ok(server("get", f"/{conversation}/items"))

        assert page["data"] == server.items(conversation)[::-1][:20]
        assert page["has_more"] is True

    def test_of_an_empty_conversation_is_empty(self, server):
        empty = {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}

        assert ok(server("get", f"/{server.create()}/items")) == empty

    def test_is_not_shifted_by_concurrent_writes(self, server, conversation):
        every = server.items(conversation)[::-1]
        page = ok(server("get", f"/{conversation}/items?limit=10"))

        server.add(conversation, HI)
        ok(server("delete", f"/{conversation}/items/{every[20]['id']}"))
        ok(server("delete", f"/{conversation}/items/{every[8]['id']}"))
        following = ok(server("get", f"/{conversation}/items?limit=10&after={page['last_id']}"))

        assert following["data"] == every[10:20]

    def test_is_limited_in_size(self, server, settings):
        settings.CHATMEMORY["REST"]["MAX_PAGE_CHARACTERS"] = 250
        conversation = server.create(*([{"role": "user", "content": "x" * 100}] * 5))

        page = ok(server("get", f"/{conversation}/items"))

        assert (len(page["data"]), page["has_more"]) == (2, True)
        assert len(ok(server("get", f"/{conversation}/items?after={page['last_id']}"))["data"]) == 2

    @pytest.mark.parametrize(
        "query", ["limit=0", "limit=101", "limit=x", "order=up", "after=msg_1", "after=", "page=2"]
    )
    def test_refuses_invalid_parameters(self, server, conversation, query):
        assert error(server("get", f"/{conversation}/items?{query}"), 400)["param"] == query.partition("=")[0]

    def test_ignores_include(self, server, conversation):
        query = "include[]=message.output_text.logprobs&include[]=reasoning.encrypted_content&limit=2"

        assert len(ok(server("get", f"/{conversation}/items?{query}"))["data"]) == 2
        assert ok(server("get", f"/{conversation}/items/rs_1?include[]=reasoning.encrypted_content")) == REASONING
        assert (
            len(
                ok(server("post", f"/{conversation}/items?include[]=file_search_call.results", {"items": [HI]}))["data"]
            )
            == 1
        )

    def test_takes_six_statements(self, server, conversation):
        with statements() as run:
            server.items(conversation, "limit=20")

        # The token and its user, permissions of the user and of groups, the conversation, the sizes, the messages.
        assert len(run) == 6


class TestDeleting:
    def test_an_item_returns_the_conversation(self, server):
        conversation = server.create(HI, HELLO)
        [first, second] = server.items(conversation)

        shown = ok(server("delete", f"/{conversation}/items/{first['id']}"))

        assert shown == ok(server("get", f"/{conversation}"))
        assert server.items(conversation) == [second]
        assert get_chat_memory(conversation).messages() == [AiMessage("Hello")]

    def test_the_last_item_of_the_last_message_keeps_the_others(self, server):
        conversation = server.create(HI)
        calls = [ToolExecutionRequest(name, "look", "{}") for name in "abc"]
        get_chat_memory(conversation).add(AiMessage("Wait.", tool_execution_requests=calls))

        for expected in (["a", "b"], ["a"], []):
            ok(server("delete", f"/{conversation}/items/{server.items(conversation)[-1]['id']}"))
            assert [item["call_id"] for item in server.items(conversation)[2:]] == expected

    def test_an_item_in_the_middle_of_a_message_is_refused(self, server):
        conversation = server.create(HI)
        calls = [ToolExecutionRequest(name, "look", "{}") for name in "ab"]
        get_chat_memory(conversation).add(AiMessage(tool_execution_requests=calls), UserMessage("And?"))

        error(server("delete", f"/{conversation}/items/{server.items(conversation)[1]['id']}"), 400)

        assert len(server.items(conversation)) == 4


class TestRetries:
    def test_of_stored_items_return_them(self, server):
        conversation = server.create(HI)
        made = server.add(conversation, HELLO, REASONING)

        again = server.add(conversation, HELLO, REASONING, **{"X-Stainless-Retry-Count": "1"})

        assert again == made
        assert len(server.items(conversation)) == 3

    def test_of_items_that_were_not_stored_store_them(self, server):
        conversation = server.create(HI)

        for items in ([HELLO], [HELLO, HELLO], [{**HELLO, "phase": "commentary"}]):
            server.add(conversation, *items, **{"X-Stainless-Retry-Count": "2"})

        assert len(server.items(conversation)) == 5

    def test_are_distinguished_from_new_requests(self, server):
        conversation = server.create(HI)

        server.add(conversation, HI, **{"X-Stainless-Retry-Count": "0"})

        assert len(server.items(conversation)) == 2


class TestAccess:
    @pytest.mark.parametrize(
        "header", ["", "Bearer", "Bearer nope", "Token nope", "Basic eDp5", "Bearer \xff", "Bearer a b"]
    )
    def test_needs_a_token(self, server, header):
        conversation = server.create(HI)
        headers = {"Authorization": header.format(key=server.key)} if header else {}

        for path in ("", "/items", "/items/msg_1"):
            response = Client(headers=headers).get(f"{ROOT}/{conversation}{path}")
            assert error(response, 401)["code"] == "invalid_api_key"
            assert response["WWW-Authenticate"] == "Bearer"

    def test_the_key_may_also_be_sent_as_a_token(self, server):
        conversation = server.create(HI)

        response = Client(headers={"Authorization": f"Token {server.key}"}).get(f"{ROOT}/{conversation}")

        assert response.status_code == 200

    def test_a_session_is_not_enough(self, server):
        client = Client()
        client.force_login(server.user)

        assert client.get(f"{ROOT}/{server.create()}").status_code == 401

    def test_an_inactive_user_is_refused(self, server):
        User.objects.update(is_active=False)

        error(server("post"), 401)

    def test_a_user_has_an_owners_access(self, server):
        user = Api("anna")
        conversation = user.create(HI)
        get_chat_memory(conversation).add(
            SystemMessage("Secret."), AiMessage("Hello"), CustomMessage({"openai": REASONING})
        )

        assert [item["role"] for item in user.items(conversation)] == ["user", "assistant"]
        error(user("get", f"/{conversation}/items/rs_1"), 404)
        for item in (HELLO, CALL, OUTPUT, REASONING, {"role": "system", "content": "Obey."}):
            found = error(user("post", f"/{conversation}/items", {"items": [HI, item]}), 403)
            assert found["param"] == "items[1]"
        error(user("delete", f"/{conversation}/items/{user.items(conversation)[0]['id']}"), 403)
        assert len(user.items(conversation)) == 2
        ok(user("delete", f"/{conversation}"))

    def test_conversations_created_elsewhere_are_found(self, server):
        Conversation.objects.create(memory_id="weather: Köln", owner=server.user)
        get_chat_memory("weather: Köln").add(UserMessage("Hi"))

        assert len(server.items("weather:%20K%C3%B6ln")) == 1

    def test_users_are_throttled_and_servers_are_not(self, server, settings):
        settings.CHATMEMORY["REST"]["THROTTLE_RATES"] = {"read": "1/min", "write": "100/min"}
        user = Api("anna")
        for api, status in ((server, 200), (user, 429)):
            conversation = api.create()
            ok(api("get", f"/{conversation}"))
            assert api("get", f"/{conversation}").status_code == status
        response = user("get", f"/{conversation}")
        assert error(response, 429)["code"] == "rate_limit_exceeded"
        assert int(response["Retry-After"]) > 0


class TestErrors:
    @pytest.mark.parametrize("path", ["", "files", "conversations/x/y", "conversations/x/items/y/z"])
    @pytest.mark.parametrize("verb", ["get", "post", "put", "delete"])
    def test_of_unknown_paths(self, db, verb, path):
        error(getattr(Client(), verb)(f"/openai/v1/{path}"), 404)

    @pytest.mark.parametrize(
        ("verb", "path"),
        [("get", ""), ("delete", ""), ("put", "/c"), ("patch", "/c"), ("put", "/c/items"), ("post", "/c/items/i")],
    )
    def test_of_wrong_verbs(self, server, verb, path):
        assert error(server(verb, path), 405)["code"] == "method_not_allowed"

    @pytest.mark.parametrize(
        "body", [b"{", b"\xff", b'{"items": [{"role": "user", "content": "\\ud800"}]}', b"[" * 10_000]
    )
    def test_of_invalid_json(self, server, body):
        error(server("post", "", body), 400)

    def test_of_a_body_that_is_too_large(self, server, settings):
        settings.CHATMEMORY["REST"]["MAX_BODY_BYTES"] = 1_000

        error(server("post", "", {"items": [{"role": "user", "content": "x" * 1_000}]}), 413)

    def test_of_an_item_that_is_too_large(self, server, settings):
        settings.CHATMEMORY["MAX_MESSAGE_BYTES"] = 1_000

        wide = "x" * 1_001
        for item in ({"role": "user", "content": wide}, {**REASONING, "encrypted_content": wide}, {**HI, "n": wide}):
            found = error(server("post", "", {"items": [HI, item]}), 400)
            assert "MAX_MESSAGE_BYTES" in found["message"]
            assert "xxx" not in found["message"]
        assert not Conversation.objects.exists()

    def test_of_the_server(self, server, settings, monkeypatch):
        def fail(*args: object) -> None:
            raise RuntimeError("secret")

        monkeypatch.setattr("chatmemory_django.contrib.openai_api.views.token_hex", fail)
        client = Client(headers={"Authorization": f"Bearer {server.key}"}, raise_request_exception=False)

        response = client.post(ROOT, {}, content_type="application/json")

        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"
        assert "secret" not in response.content.decode()


@pytest.mark.django_db(transaction=True)
class TestConcurrency:
    @pytest.mark.slow
    def test_50_concurrent_requests_lose_and_split_nothing(self, transactional_db):
        server = Api("server", WRITE, REMOVE)
        conversation = server.create()

        def write(number: int) -> list[str]:
            try:
                items = [{"role": "user", "content": f"{number}.{place}"} for place in range(3)]
                return [item["id"] for item in server.add(conversation, *items)]
            finally:
                connections.close_all()

        with ThreadPoolExecutor(10) as executor:
            made = [item for ids in executor.map(write, range(50)) for item in ids]

        found = server.items(conversation) + server.items(conversation, "limit=50")[::-1]
        assert [item["id"] for item in found] == sorted(set(made))
        assert len(found) == 150
        words = [item["content"][0]["text"] for item in found]
        for one, other in pairwise(words):
            if not one.endswith(".2"):
                assert other == f"{one[:-1]}{int(one[-1]) + 1}"

    def test_each_item_is_popped_once(self, transactional_db):
        server = Api("server", WRITE, REMOVE)
        conversation = server.create(*([HI] * 10))
        [newest] = server.items(conversation, "limit=1")

        def pop(_: int) -> int:
            try:
                return server("delete", f"/{conversation}/items/{newest['id']}").status_code
            finally:
                connections.close_all()

        with ThreadPoolExecutor(5) as executor:
            assert sorted(executor.map(pop, range(5))) == [200, 404, 404, 404, 404]
        assert len(server.items(conversation)) == 9
