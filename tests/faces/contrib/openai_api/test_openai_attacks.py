"""Attacks on OpenAI's Conversations API: hostile input, wrong types, two users, requests in odd orders."""

import json

import pytest
from django.contrib.auth.models import Permission, User
from django.core.cache import cache
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

from chatmemory_django.messages import AiMessage, SystemMessage, ToolExecutionRequest, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from tests.quick import mostly_slow

pytestmark = pytest.mark.django_db

ROOT = "/openai/v1/conversations"
HI = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "hello"}
CALL = {"type": "function_call", "call_id": "1", "name": "t", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "1", "output": "noon"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}


@pytest.fixture(autouse=True)
def without_rates(settings) -> None:
    settings.CHATMEMORY = {"REST": {"THROTTLE_RATES": {}}}
    cache.clear()


def client_of(name: str, *codenames: str, is_staff: bool = False) -> APIClient:
    user, _ = User.objects.get_or_create(username=name, defaults={"is_staff": is_staff})
    user.user_permissions.add(*Permission.objects.filter(codename__in=codenames))
    return APIClient(headers={"Authorization": f"Bearer {Token.objects.get_or_create(user=user)[0].key}"})


@pytest.fixture
def server() -> APIClient:
    """Return a client of a server of the site."""
    return client_of("server", "add_message", "delete_message")


@pytest.fixture
def ann() -> APIClient:
    """Return a client of a user without permissions."""
    return client_of("ann")


def begun(client: APIClient, *items: dict) -> str:
    """Return the path of a new conversation with *items*."""
    response = client.post(ROOT, {"items": list(items)}, format="json")
    assert response.status_code == 200, response.content
    return f"{ROOT}/{response.json()['id']}"


def shown(client: APIClient, path: str, **query: object) -> list[dict]:
    response = client.get(f"{path}/items", {"order": "asc", **query})
    assert response.status_code == 200, response.content
    return response.json()["data"]


def sent(client: APIClient, method: str, path: str, body: str | bytes):
    response = client.generic(method, path, body, content_type="application/json")
    assert response.status_code < 500, response.content
    assert response["Content-Type"] == "application/json"
    return response


WRONG = (
    "", "null", "[]", '"x"', "1", "1e999", "NaN", "{", '{"items": {}}', '{"items": "x"}', '{"items": [1]}',
    '{"items": [null]}', '{"items": [[]]}', '{"items": [{}]}', '{"items": []}', '{"items": [{"type": null}]}',
    '{"items": [{"type": ["message"], "role": "user", "content": "x"}]}', '{"items": [{"type": {"a": 1}}]}',
    '{"items": [{"role": ["user"], "content": "x"}]}', '{"items": [{"role": {"user": 1}, "content": "x"}]}',
    '{"items": [{"role": "user", "content": 1}]}', '{"items": [{"role": "user", "content": {"text": "x"}}]}',
    '{"items": [{"role": "user", "content": [1]}]}', '{"items": [{"role": "user", "content": [[]]}]}',
    '{"items": [{"role": "user", "content": [{"type": ["input_text"], "text": "x"}]}]}',
    '{"items": [{"role": "user", "content": [{"type": "input_text", "text": null}]}]}',
    '{"items": [{"role": "user", "content": [{"type": "input_image", "image_url": {"url": "https://x/"}}]}]}',
    '{"items": [{"role": "user", "content": [{"type": "input_image", "image_url": 5}]}]}',
    '{"items": [{"role": "user", "content": [{"type": "input_audio", "input_audio": "x"}]}]}',
    '{"items": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": 1, "format": []}}]}]}',
    '{"items": [{"role": "user", "content": [{"type": "input_file", "file_data": ["x"]}]}]}',
    '{"items": [{"role": "user", "content": "a\\u0000b"}]}', '{"items": [{"role": "user", "content": "\\ud800"}]}',
    '{"items": [{"role": "user", "content": "x", "status": ["completed"]}]}',
    '{"items": [{"role": "user", "content": "x", "\\u0000": 1}]}',
    '{"items": [{"type": "function_call", "call_id": 1, "name": "t", "arguments": "{}"}]}',
    '{"items": [{"type": "function_call", "call_id": "1", "name": ["t"], "arguments": {}}]}',
    '{"items": [{"type": "function_call_output", "call_id": "1", "output": {"a": 1}}]}',
    '{"items": [{"type": "function_call_output", "call_id": ["1"], "output": "x"}]}',
    '{"items": [{"type": "reasoning", "id": 5, "summary": []}]}',
    '{"items": [{"type": "reasoning", "id": "' + "x" * 65 + '", "summary": []}]}',
    '{"items": [{"type": "reasoning", "id": "rs_2", "summary": "x"}]}',
    '{"items": [{"type": "compaction", "encrypted_content": {"a": [1, {"b": null}]}}]}',
    '{"items": [{"type": "web_search_call", "id": "w", "action": [], "status": {}}]}',
    '{"items": ' + "[" * 5_000 + "]" * 5_000 + "}", '{"metadata": []}', '{"metadata": {"a": 1}}',
    '{"metadata": {"a": null}}', '{"metadata": {"a": "\\u0000"}}', '{"metadata": {"\\ud800": "x"}}',
    '{"metadata": {"a": {"b": "c"}}}', '{"items": [{"role": "user", "content": "x"}], "x": 1}',
    '{"items": [' + ", ".join(['{"role": "user", "content": "x"}'] * 21) + "]}",
    '{"items": [{"role": "user", "content": [' + ", ".join(['{"type": "input_text", "text": "x"}'] * 3_000) + "]}]}",
    '{"items": [{"role": "user", "content": []}]}', '{"items": [{"role": "assistant", "content": []}]}',
    '{"items": [{"role": "system", "content": ""}]}', '{"items": [{"role": "user", "content": ""}]}',
    '{"items": [{"role": "assistant", "content": [{"type": "input_image", "image_url": "https://x.example/"}]}]}',
)  # fmt: skip


class TestHostileInput:
    @pytest.mark.parametrize("body", mostly_slow(WRONG, one_in=3), ids=range(len(WRONG)))
    def test_a_body_is_stored_as_a_whole_or_refused(self, server, body):
        path = begun(server, HI)
        for where in (ROOT, path, f"{path}/items"):
            before = Message.objects.count()

            response = sent(server, "POST", where, body)

            if response.status_code >= 400:
                assert Message.objects.count() == before
                assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        for each in Conversation.objects.all():
            shown(server, f"{ROOT}/{each.memory_id}")
            get_chat_memory(each.memory_id).messages()
            assert server.get(f"{ROOT}/{each.memory_id}").status_code == 200

    @pytest.mark.parametrize(
        "query",
        [
            "after=", "after=%00", "after=x", "after=msg_%ED%A0%80", "after=" + "9" * 5_000, "limit=0", "limit=101",
            "limit=1e3", "limit=%D9%A3", "limit=", "order=up", "order=", "order[]=asc", "after=a&after=b", "x=1",
            "include[]=a&include[]=b", "include=%00", "limit=5&limit=x",
        ],
    )  # fmt: skip
    def test_a_query_is_answered_or_refused(self, server, query):
        response = server.get(f"{begun(server, HI)}/items?{query}")

        assert response.status_code in {200, 400}

    @pytest.mark.parametrize(
        "item_id",
        [
            "%00", "msg_", "msg_1", "%2e%2e", "x" * 300, "msg_ffffffffffffffff", "msg_00000000ffffffff_9999",
            "%ED%A0%80", "'--",
        ],
    )  # fmt: skip
    def test_a_strange_item_is_not_found(self, server, item_id):
        path = f"{begun(server, HI)}/items/{item_id}"

        assert [server.get(path).status_code, server.delete(path).status_code] == [404, 404]

    @pytest.mark.parametrize("name", ["%00", "x" * 300, "%ED%A0%80", "..", "%2F", "conv_", "'--"])
    def test_a_strange_conversation_is_not_found(self, server, name):
        for method, end in (("GET", ""), ("POST", ""), ("DELETE", ""), ("GET", "/items"), ("POST", "/items")):
            body = json.dumps({"items": [HI]} if end else {"metadata": {}})

            assert sent(server, method, f"{ROOT}/{name}{end}", body).status_code == 404

    @pytest.mark.parametrize("count", ["1", "-1", "x", "\xff", "9" * 5_000])
    def test_a_strange_count_of_retries_stores_one_item_or_two(self, server, count):
        path = begun(server)
        for _ in range(2):
            response = server.post(
                f"{path}/items", {"items": [HI]}, format="json", headers={"X-Stainless-Retry-Count": count}
            )
            assert response.status_code == 200

        assert len(shown(server, path)) in {1, 2}

    def test_the_texts_of_an_item_are_bounded_together(self, server, settings):
        settings.CHATMEMORY["REST"]["MAX_TEXT_LENGTH"] = 100
        path = begun(server)

        for length, status in ((50, 200), (51, 400)):
            parts = [{"type": "input_text", "text": "x" * length}] * 2
            item = {"role": "user", "content": parts}
            assert server.post(f"{path}/items", {"items": [item]}, format="json").status_code == status


class TestTwoUsers:
    def test_an_item_of_another_conversation_is_not_found(self, server, ann):
        theirs, own = begun(server, HI, ANSWER), begun(ann, HI)
        item = shown(server, theirs)[0]["id"]

        assert ann.get(f"{own}/items/{item}").status_code == 404
        assert ann.get(f"{own}/items", {"after": item}).status_code == 400
        assert server.delete(f"{begun(server, HI)}/items/{item}").status_code == 404

    def test_two_users_may_use_the_same_id_of_an_item(self, server):
        other = client_of("other", "add_message")
        paths = [begun(client, REASONING) for client in (server, other)]

        assert [shown(client, path)[0]["id"] for client, path in zip((server, other), paths, strict=True)] == [
            "rs_1"
        ] * 2

    @pytest.mark.parametrize(
        "item",
        [
            *(ANSWER, CALL, RESULT, REASONING),
            {"role": "system", "content": "x"},
            {"role": "developer", "content": "x"},
            {"type": "compaction", "encrypted_content": "x"},
        ],
    )
    def test_a_user_forges_nothing(self, ann, item):
        path = begun(ann, HI)

        for where, body in ((f"{path}/items", {"items": [HI, item]}), (ROOT, {"items": [item]})):
            for retry in ("0", "1"):
                headers = {"X-Stainless-Retry-Count": retry}
                assert ann.post(where, body, format="json", headers=headers).status_code == 403
        assert len(shown(ann, path)) == 1
        assert Conversation.objects.count() == 1

    def test_a_retry_does_not_return_what_the_user_may_not_read(self, ann):
        """The retry of a user's item is recognized among all items, of which the user reads only some."""
        path = begun(ann, HI)
        get_chat_memory(path.rpartition("/")[2]).add(SystemMessage("secret"))

        response = ann.post(f"{path}/items", {"items": [HI]}, format="json", headers={"X-Stainless-Retry-Count": "1"})

        assert "secret" not in response.content.decode()

    def test_staff_write_and_delete_only_with_the_permissions(self, server):
        path = begun(server, HI, ANSWER)
        item = shown(server, path)[1]["id"]
        clerk = client_of("clerk", "view_conversation", "change_conversation", is_staff=True)

        assert clerk.get(path).status_code == 200
        assert clerk.get(f"{path}/items").json()["data"] == []
        assert clerk.post(f"{path}/items", {"items": [HI]}, format="json").status_code == 403
        assert clerk.delete(f"{path}/items/{item}").status_code in {403, 404}
        assert clerk.delete(path).status_code == 403
        assert len(shown(server, path)) == 2


class TestOddOrders:
    def test_an_item_is_deleted_once(self, server):
        path = begun(server, HI, ANSWER)
        item = shown(server, path)[0]["id"]

        assert [server.delete(f"{path}/items/{item}").status_code for _ in range(2)] == [200, 404]
        assert server.get(f"{path}/items", {"after": item}).status_code == 400
        assert len(shown(server, path)) == 1

    def test_an_id_may_be_sent_again_once_its_item_is_deleted(self, server):
        path = begun(server, REASONING)
        server.delete(f"{path}/items/rs_1")

        again = server.post(f"{path}/items", {"items": [REASONING]}, format="json")
        twice = server.post(f"{path}/items", {"items": [REASONING]}, format="json")

        assert (again.status_code, twice.status_code) == (200, 400)
        assert [each["id"] for each in shown(server, path)] == ["rs_1"]

    def test_nothing_can_be_done_to_a_deleted_conversation(self, server):
        path = begun(server, HI)
        server.delete(path)

        assert server.get(path).status_code == 404
        assert server.post(f"{path}/items", {"items": [HI]}, format="json").status_code == 404
        assert server.delete(path).status_code == 404

    def test_calls_results_and_answers_come_in_any_order(self, server):
        path = begun(server, RESULT, CALL, RESULT, CALL, CALL, ANSWER, RESULT, REASONING, HI)

        assert [each["type"] for each in shown(server, path)] == [
            "function_call_output", "function_call", "function_call_output", "function_call", "function_call",
            "message", "function_call_output", "reasoning", "message",
        ]  # fmt: skip
        for item in shown(server, path)[::2]:
            assert server.delete(f"{path}/items/{item['id']}").status_code == 200
        assert len(shown(server, path)) == 4

    def test_one_of_several_items_in_a_message_is_deleted_at_the_end_alone(self, server):
        memory_id = begun(server, HI).rpartition("/")[2]
        calls = [ToolExecutionRequest(str(number), "t", "{}") for number in range(3)]
        get_chat_memory(memory_id).add(AiMessage("let me see", None, calls))
        items = shown(server, f"{ROOT}/{memory_id}")

        response = server.delete(f"{ROOT}/{memory_id}/items/{items[2]['id']}")

        assert response.status_code == 200
        rest = shown(server, f"{ROOT}/{memory_id}")
        assert [each.get("call_id") for each in rest] == [None, None, "1", "2"]
        get_chat_memory(memory_id).add(UserMessage("go on"))
        refused = server.delete(f"{ROOT}/{memory_id}/items/{items[3]['id']}")
        assert refused.status_code in {400, 404}

    def test_pages_do_not_repeat_items_while_others_are_added_and_deleted(self, server):
        path = begun(server, *[{"role": "user", "content": str(number)} for number in range(6)])
        first = server.get(f"{path}/items", {"order": "asc", "limit": 2}).json()
        server.post(f"{path}/items", {"items": [HI]}, format="json")
        third = shown(server, path)[2]["id"]
        server.delete(f"{path}/items/{third}")

        rest = shown(server, path, after=first["last_id"])

        assert [each["content"][0]["text"] for each in rest] == ["3", "4", "5", "hi"]

    def test_metadata_of_the_site_that_is_no_text_is_kept(self, server):
        path = begun(server)
        Conversation.objects.update(metadata={"n": 1, "a": "x"})

        for metadata in ({"b": "y"}, None):
            assert server.post(path, {"metadata": metadata}, format="json").json()["metadata"] == (metadata or {})

        assert Conversation.objects.get().metadata == {"n": 1}
