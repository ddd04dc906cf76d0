"""Attacks on the MCP server: pages of other sites, guessed tokens, floods, hostile input, conversations of others."""

import json
import secrets
from types import SimpleNamespace

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.test import Client

from chatmemory_django.access import AccessPolicy
from chatmemory_django.contrib.mcp import get_mcp_app
from chatmemory_django.messages import SystemMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory
from tests.faces.contrib.mcp.test_mcp import signed_in

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def site(settings) -> None:
    settings.ALLOWED_HOSTS = ["example.com"]
    settings.CSRF_TRUSTED_ORIGINS = ["https://app.example.org", "https://*.trusted.example"]
    settings.CHATMEMORY = {}
    cache.clear()


@pytest.fixture
def anna() -> SimpleNamespace:
    return signed_in("anna")


def post(
    token: str | None,
    body: object = None,
    *,
    address: str = "10.0.0.1",
    app=None,
    host: str = "example.com",
    kind: str = "Bearer",
    **headers: str,
) -> SimpleNamespace:
    """Send *body*, by default a list of the tools, and return the status, the headers and the body of the response."""
    if body is None:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {
        "Host": host,
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2025-06-18",
        **({} if token is None else {"Authorization": f"{kind} {token}"}),
        **headers,
    }
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/mcp", "raw_path": b"/mcp", "root_path": "", "query_string": b"", "client": (address, 4711),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in named.items()],
        "server": ("127.0.0.1", 80),
    }  # fmt: skip
    sent: list = []
    waiting = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive():
        return waiting.pop() if waiting else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    async_to_sync(app or get_mcp_app())(scope, receive, send)
    whole = b"".join(message.get("body", b"") for message in sent[1:])
    head = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return SimpleNamespace(status=sent[0]["status"], headers=head, text=whole.decode())


def call(person: SimpleNamespace, tool: str, **arguments: object) -> SimpleNamespace:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    response = post(person.token, body)
    response.result = json.loads(response.text).get("result", {})
    return response


class TestOtherSites:
    """A page whose name is bound to the server's address, or one that knows a token."""

    @pytest.mark.parametrize("host", ["evil.example", "example.com.evil.example", "127.0.0.1", "", "example.com@evil"])
    def test_a_host_that_is_not_the_sites_is_refused(self, anna, host):
        assert post(anna.token, host=host).status == 421

    @pytest.mark.parametrize(
        "origin",
        [
            "http://evil.example", "null", "", "https://example.com", "http://example.com:81", "http://app.example.org",
            "https://app.example.org.evil.example", "https://trusted.example.evil", "//example.com", "http://example.com/x",
            "http://example.com, http://evil.example", "http://[::1", "\xff",
        ],
    )  # fmt: skip
    def test_a_page_of_another_origin_is_refused(self, anna, origin):
        assert post(anna.token, Origin=origin).status == 403

    @pytest.mark.parametrize(
        "origin", ["http://example.com", "https://app.example.org", "https://a.trusted.example", None]
    )
    def test_pages_of_the_site_and_trusted_origins_are_accepted(self, anna, origin):
        headers = {} if origin is None else {"Origin": origin}

        assert post(anna.token, **headers).status == 200

    def test_they_are_refused_before_a_token_is_looked_up(self, anna, settings):
        settings.CHATMEMORY = {"REST": {"THROTTLE_RATES": {"sign_in": "1/min"}}}

        for headers in ({"host": "evil.example"}, {"Origin": "null"}):
            assert post("wrong", **headers).status in {403, 421}
        assert post("wrong").status == 401

    def test_a_session_is_not_enough(self, anna):
        client = Client()
        client.force_login(anna.user)
        cookies = "; ".join(f"{name}={each.value}" for name, each in client.cookies.items())

        assert post(None, Cookie=cookies).status == 401

    def test_no_response_may_be_stored(self, anna):
        for response in (post(anna.token), post("wrong"), post(anna.token, Origin="null")):
            assert response.headers["cache-control"] == "no-store"


class TestTokens:
    def test_guesses_are_counted_together_with_those_at_the_rest_api(self, anna, settings):
        settings.CHATMEMORY = {"REST": {"THROTTLE_RATES": {"sign_in": "3/min"}}}

        assert [post(f"wrong{number}").status for number in range(2)] == [401, 401]
        rest = Client(headers={"Authorization": "Token wrong"}, REMOTE_ADDR="10.0.0.1")
        assert [rest.get("/api/conversations/", headers={"Host": "example.com"}).status_code for _ in range(2)] == [
            401,
            429,
        ]
        refused = post("wrong")
        assert (refused.status, int(refused.headers["retry-after"]) > 0) == (429, True)
        assert post("wrong", address="10.0.0.2").status == 401
        assert post(anna.token).status == 200

    def test_valid_tokens_and_requests_without_one_are_not_guesses(self, anna, settings):
        settings.CHATMEMORY = {"REST": {"THROTTLE_RATES": {"sign_in": "1/min"}}}

        assert [post(anna.token).status for _ in range(3)] == [200, 200, 200]
        assert [post(None).status for _ in range(3)] == [401, 401, 401]
        assert post(anna.token).status == 200

    def test_a_token_may_be_sent_as_in_the_rest_api(self, anna):
        assert post(anna.token, kind="Token").status == 200
        assert post(anna.token, kind="Basic").status == 401

    @pytest.mark.parametrize("token", ["", " ", "\xff", "x" * 100_000, "a b", "' OR 1=1 --"])
    def test_a_strange_token_is_refused(self, anna, token):
        assert post(token).status == 401

    def test_the_access_policy_knows_the_tokens_of_the_site(self, anna, settings):
        settings.CHATMEMORY = {"ACCESS_POLICY": f"{__name__}.OwnTokens"}

        assert post("anna's").status == 200
        assert post(anna.token).status == 401

    def test_a_function_of_the_site_comes_first(self, anna):
        app = get_mcp_app(lambda key: anna.user if key == "ticket" else None)

        assert post("ticket", app=app).status == 200
        assert post(anna.token, app=app).status == 401


class OwnTokens(AccessPolicy):
    def user_of_token(self, key):
        return get_user_model().objects.filter(username=key.removesuffix("'s")).first() if "'s" in key else None


class TestFloods:
    def test_each_user_has_a_rate(self, anna, settings):
        settings.CHATMEMORY = {"MCP_THROTTLE_RATE": "2/min"}
        ben = signed_in("ben")

        assert [post(anna.token).status for _ in range(3)] == [200, 200, 429]
        assert post(anna.token, address="10.0.0.9").headers["retry-after"]
        assert post(ben.token).status == 200


class TestHostileInput:
    BODIES = (
        b"", b"{", b"[]", b"{}", b"null", b'"x"', b"1e999", b"\xff\xfe", b'{"jsonrpc":"2.0"}', b"[" * 30_000,
        b'{"jsonrpc":"2.0","id":1,"method":"' + b"x" * 10_000 + b'"}',
        b'{"jsonrpc":"2.0","id":{"a":1},"method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":1}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search_conversations","arguments":[]}}',
        b'{"jsonrpc":"2.0","id":1,"method":"initialize"}',
        b'[{"jsonrpc":"2.0","id":1,"method":"tools/list"},{"jsonrpc":"2.0","id":2,"method":"tools/list"}]',
    )  # fmt: skip

    @pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
    def test_an_invalid_request_is_refused_and_the_next_one_is_answered(self, anna, body):
        response = post(anna.token, body)

        assert response.status < 500
        assert "Traceback" not in response.text
        assert "site-packages" not in response.text
        assert post(anna.token).status == 200

    @pytest.mark.parametrize("version", ["", "x", "9999-12-31", "2024-11-05", "\xff", "1" * 10_000])
    def test_a_strange_version_of_the_protocol_is_no_error_of_the_server(self, anna, version):
        assert post(anna.token, **{"MCP-Protocol-Version": version}).status < 500

    @pytest.mark.parametrize(
        "query",
        [
            '"', '""', '" "', "%", "_", "\\", "*", "a*", "AND", "NEAR(a b)", "a AND (", "text:x", "'; DROP TABLE x --",
            "\0", "a\0b", "\ud800", "\u202e", "ß" * 500, "x" * 500, "-", "ⅷ", "a " * 249, '"' * 500,
        ],
    )  # fmt: skip
    def test_a_hostile_query_finds_nothing_of_others(self, anna, query):
        get_chat_memory("of ben", owner=signed_in("ben").user).add(UserMessage(f"secret {query!r} a AND x"))

        response = call(anna, "search_conversations", query=query)

        assert response.status in {200, 400}  # a lone surrogate is not JSON
        assert "secret" not in response.text
        assert "tool failed" not in response.text

    @pytest.mark.parametrize(
        "arguments",
        [
            {"conversation_id": "c", "before": 2**31}, {"conversation_id": "c", "before": -1},
            {"conversation_id": "c", "before": 1.5}, {"conversation_id": "c", "before": "1"},
            {"conversation_id": "c", "before": True}, {"conversation_id": "c", "limit": 10**400},
            {"conversation_id": ["c"]}, {"conversation_id": {"a": 1}}, {"conversation_id": None},
            {"conversation_id": "c" * 256}, {"conversation_id": ""}, {}, {"conversation_id": "c", "x": 1},
        ],
    )  # fmt: skip
    def test_arguments_of_a_wrong_type_are_refused(self, anna, arguments):
        get_chat_memory("c", owner=anna.user).add(UserMessage("hi"))

        response = call(anna, "read_conversation", **arguments)

        assert response.status < 500
        assert response.result.get("isError", True)
        assert "tool failed" not in response.text


class TestReading:
    def test_a_user_who_may_read_nothing_reads_no_title(self, anna, settings):
        settings.CHATMEMORY = {"ACCESS_POLICY": f"{__name__}.NothingToRead"}
        get_chat_memory("c", owner=anna.user).add(UserMessage("secret"), SystemMessage("prompt"))
        Conversation.objects.update(title="secret")

        assert "secret" not in call(anna, "read_conversation", conversation_id="c").text
        assert "secret" not in call(anna, "search_conversations", query=secrets.token_hex()).text

    def test_a_removed_message_is_gone_between_two_pages(self, anna):
        memory = get_chat_memory("c", owner=anna.user)
        memory.add(*(UserMessage(str(number)) for number in range(1, 6)))
        page = call(anna, "read_conversation", conversation_id="c", limit=2).result["structuredContent"]
        memory.remove(3)
        get_chat_memory("c").add(UserMessage("6"), after=1)

        rest = call(anna, "read_conversation", conversation_id="c", before=page["before"]).result["structuredContent"]

        assert [each["text"] for each in rest["messages"]] == ["1"]


class NothingToRead(AccessPolicy):
    def readable_types(self, request, *, own):
        return ()
