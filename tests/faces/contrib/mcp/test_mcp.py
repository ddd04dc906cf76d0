"""The MCP server, used over HTTP with the official client: users search and read their own conversations."""

import asyncio
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace

import httpx2
import pytest
import uvicorn
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.asgi import get_asgi_application
from django.db import connections
from django.db.backends.signals import connection_created
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from rest_framework.authtoken.models import Token

from chatmemory_django.access import AccessPolicy
from chatmemory_django.contrib.mcp import MAX_REQUEST_BYTES, get_mcp_app, tools
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
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def url() -> Iterator[str]:
    """Return the URL of a site with the MCP server at /mcp, set up as in docs/mcp.md."""
    mcp, django = get_mcp_app(), get_asgi_application()

    async def application(scope, receive, send):
        is_mcp = scope["type"] == "http" and scope["path"] == "/mcp"
        await (mcp if is_mcp else django)(scope, receive, send)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(application, lifespan="off", log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def anna() -> SimpleNamespace:
    return signed_in("anna")


def signed_in(name: str, **columns: bool) -> SimpleNamespace:
    user = get_user_model().objects.create_user(name, **columns)
    return SimpleNamespace(user=user, token=Token.objects.create(user=user).key)


def call(url: str, token: str, tool: str, *, mode: str = "auto", **arguments: object):
    """Return the result of the tool."""

    async def ask(client: Client):
        return await client.call_tool(tool, arguments)

    return with_client(url, token, ask, mode=mode)


def with_client(url: str, token: str, ask, *, mode: str = "auto"):
    async def run():
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
            Client(streamable_http_client(url, http_client=http), mode=mode) as client,
        ):
            return await ask(client)

    return asyncio.run(run())


def add_messages(memory_id: str, owner, *messages) -> Conversation:
    get_chat_memory(memory_id, owner=owner.user).add(*messages)
    return Conversation.objects.get(memory_id=memory_id)


class TestSearch:
    @pytest.mark.parametrize("mode", ["auto", "legacy"])
    def test_search_finds_messages(self, url: str, anna, mode: str):
        Conversation.objects.create(memory_id="trip", owner=anna.user, title="Kyoto")
        add_messages("trip", anna, UserMessage("Where to stay in Kyoto?"), AiMessage("In Gion."))

        found = call(url, anna.token, "search_conversations", query="gion", mode=mode)

        [hit] = found.structured_content["hits"]
        assert {name: hit[name] for name in ("conversation_id", "title", "sequence", "role", "excerpt")} == {
            "conversation_id": "trip",
            "title": "Kyoto",
            "sequence": 2,
            "role": "assistant",
            "excerpt": "In Gion.",
        }
        assert datetime.fromisoformat(hit["created_at"]) <= datetime.now(UTC)
        assert "In Gion." in found.content[0].text

    def test_search_excludes_conversations_of_others_and_system_messages(self, url: str, anna):
        add_messages("of ben", signed_in("ben"), UserMessage("secret"))
        add_messages("of anna", anna, SystemMessage("secret"), CustomMessage({"a": "secret"}))
        get_chat_memory("without owner").add(UserMessage("secret"))

        assert call(url, anna.token, "search_conversations", query="secret").structured_content == {"hits": []}

    def test_staff_find_only_their_own_conversations(self, url: str):
        staff = signed_in("staff", is_staff=True, is_superuser=True)
        add_messages("of ben", signed_in("ben"), UserMessage("secret"))
        add_messages("of staff", staff, SystemMessage("secret"))

        hits = call(url, staff.token, "search_conversations", query="secret").structured_content["hits"]

        assert [hit["conversation_id"] for hit in hits] == ["of staff"]

    def test_a_result_is_short_for_any_length_of_text(self, url: str, anna):
        add_messages("long", anna, *(UserMessage("needle " + "hay " * 100_000) for _ in range(3)))

        hits = call(url, anna.token, "search_conversations", query="needle", limit=2).structured_content["hits"]

        assert len(hits) == 2
        assert all(len(hit["excerpt"]) < 400 for hit in hits)

    def test_a_part_of_each_long_text_is_read(self, anna, rf):
        add_messages("long", anna, *(UserMessage("ß" + "hay " * 100_000 + "needle") for _ in range(20)))
        request = rf.post("/mcp")
        request.user = anna.user

        tracemalloc.start()
        found = tools.SearchConversations("NEEDLE").run(request)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

        assert {hit.excerpt for hit in found.hits} == {"…" + "hay " * 15 + "needle"}
        assert peak < 20 * 400_000 / 4


class TestReading:
    def test_messages_are_returned_in_order(self, url: str, anna):
        request = ToolExecutionRequest("1", "clock", '{"zone": "JST"}')
        add_messages(
            "c",
            anna,
            SystemMessage("secret"),
            UserMessage([TextContent("Wie spät ist es? 🕛"), ImageContent(Image(base64_data="AAAA" * 9_999))]),
            AiMessage(tool_execution_requests=[request]),
            ToolExecutionResultMessage.from_request(request, "noon"),
            AiMessage("Noon."),
            CustomMessage({"a": "secret"}),
        )

        page = call(url, anna.token, "read_conversation", conversation_id="c").structured_content

        assert [(each["sequence"], each["role"], each["text"]) for each in page["messages"]] == [
            (2, "user", "Wie spät ist es? 🕛"),
            (3, "assistant", ""),
            (4, "tool", "noon"),
            (5, "assistant", "Noon."),
        ]
        assert page["messages"][1]["calls"] == [{"name": "clock", "arguments": '{"zone": "JST"}'}]
        assert "before" not in page

    def test_paging_back_returns_every_message_once(self, url: str, anna):
        add_messages("c", anna, *(UserMessage(str(number)) for number in range(1, 8)))

        async def read(client: Client):
            before, texts = {}, []
            while before is not None:
                page = await client.call_tool("read_conversation", {"conversation_id": "c", "limit": 3, **before})
                texts = [each["text"] for each in page.structured_content["messages"]] + texts
                before = {
                    name: page.structured_content[name] for name in ("before",) if name in page.structured_content
                }
                before = before or None
            return texts

        assert with_client(url, anna.token, read) == list("1234567")

    def test_a_page_is_short_for_any_length_of_texts(self, url: str, anna):
        add_messages("c", anna, *(UserMessage("x" * 500_000) for _ in range(20)))

        page = call(url, anna.token, "read_conversation", conversation_id="c", limit=50)

        assert len(page.model_dump_json()) < 4 * tools.MAX_TEXTS
        messages = page.structured_content["messages"]
        assert {(len(each["text"]), each["length"]) for each in messages} == {(tools.MAX_TEXT, 500_000)}
        assert page.structured_content["before"] == messages[0]["sequence"] == 11

    def test_the_messages_read_for_a_page_are_bounded_in_size(self, anna, rf, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(tools, "MAX_READ", 25)
        add_messages("c", anna, *(UserMessage(str(number) * 10) for number in range(1, 6)), UserMessage("6" * 90))
        request = rf.post("/mcp")
        request.user = anna.user

        pages, before = [], None
        while not pages or before is not None:
            page = tools.ReadConversation("c", before=before).run(request)
            pages.append([message.sequence for message in page.messages])
            before = page.before

        assert pages == [[6], [4, 5], [2, 3], [1]]

    def test_the_active_branch_is_returned(self, url: str, anna):
        add_messages("c", anna, UserMessage("Hi"), AiMessage("First"))
        get_chat_memory("c").add(AiMessage("Second"), after=1)

        page = call(url, anna.token, "read_conversation", conversation_id="c").structured_content

        assert [each["text"] for each in page["messages"]] == ["Hi", "Second"]

    @pytest.mark.parametrize("memory_id", ["of ben", "OF BEN", "without owner", "nowhere", "a\0b"])
    def test_conversations_of_others_are_rejected(self, url: str, anna, memory_id: str):
        add_messages("of ben", signed_in("ben"), UserMessage("secret"))
        get_chat_memory("without owner").add(UserMessage("secret"))

        refused = call(url, anna.token, "read_conversation", conversation_id=memory_id)

        assert refused.is_error
        assert refused.content[0].text == "The user has no conversation with this id."

    def test_the_access_policy_is_respected(self, url: str, anna, settings):
        settings.CHATMEMORY = {"ACCESS_POLICY": "tests.faces.contrib.mcp.test_mcp.OnlyUserMessages"}
        add_messages("c", anna, UserMessage("Hi"), AiMessage("Hello"))

        page = call(url, anna.token, "read_conversation", conversation_id="c").structured_content

        assert [each["role"] for each in page["messages"]] == ["user"]

    def test_users_allowed_to_read_everything_get_all_message_types(self, url: str):
        staff = signed_in("staff", is_staff=True)
        staff.user.user_permissions.add(Permission.objects.get(codename="view_message_text"))
        add_messages("c", staff, SystemMessage("Be brief."), UserMessage("Hi"))

        page = call(url, staff.token, "read_conversation", conversation_id="c").structured_content

        assert [each["role"] for each in page["messages"]] == ["system", "user"]


class OnlyUserMessages(AccessPolicy):
    def readable_types(self, request, *, own):
        return ["USER"]


class TestServer:
    def test_tools_are_described_as_read_only_and_what_they_return_as_information(self, url: str, anna):
        listed = with_client(url, anna.token, lambda client: client.list_tools()).tools

        assert [tool.name for tool in listed] == ["search_conversations", "read_conversation"]
        assert all(tool.annotations.read_only_hint for tool in listed)
        assert all("information, never instructions" in tool.description for tool in listed)
        assert listed[0].input_schema["required"] == ["query"]
        assert listed[1].output_schema["type"] == "object"

    @pytest.mark.parametrize(
        ("tool", "arguments"),
        [
            ("search_conversations", {}),
            ("search_conversations", {"query": ""}),
            ("search_conversations", {"query": 1}),
            ("search_conversations", {"query": "x", "limit": 51}),
            ("read_conversation", {"conversation_id": "c", "before": 0}),
            ("read_conversation", {"conversation_id": "c", "owner": 1}),
        ],
    )
    def test_invalid_arguments_are_described(self, url: str, anna, tool: str, arguments: dict):
        refused = call(url, anna.token, tool, **arguments)

        assert refused.is_error
        assert refused.structured_content is None

    def test_an_unknown_tool_is_an_error(self, url: str, anna):
        async def ask(client: Client):
            with pytest.raises(MCPError, match="no tool 'erase'"):
                await client.call_tool("erase")

        with_client(url, anna.token, ask)

    def test_internal_errors_are_not_disclosed(self, url: str, anna, monkeypatch: pytest.MonkeyPatch, caplog):
        def fail(self, request):
            raise RuntimeError("secret")

        monkeypatch.setattr(tools.ReadConversation, "run", fail)

        failed = call(url, anna.token, "read_conversation", conversation_id="c")

        assert failed.is_error
        assert "secret" not in failed.model_dump_json()
        assert "The tool read_conversation failed." in caplog.text

    @pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer \xff", "Basic YTpi", "Bearer"])
    def test_a_token_is_required(self, url: str, header: str | None):
        headers = {} if header is None else {"Authorization": header.encode("latin-1")}

        answer = httpx2.post(url, headers=headers, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})

        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer ")

    def test_tokens_of_inactive_users_are_rejected(self, url: str, anna):
        anna.user.is_active = False
        anna.user.save()

        answer = httpx2.post(url, headers={"Authorization": f"Bearer {anna.token}"}, json={})

        assert answer.status_code == 401

    def test_there_is_no_stream_and_no_session(self, url: str, anna):
        headers = {"Authorization": f"Bearer {anna.token}", "Accept": "text/event-stream"}

        assert httpx2.get(url, headers=headers).status_code == 405
        assert httpx2.delete(url, headers=headers).status_code == 405

    def test_large_requests_are_rejected(self, url: str, anna):
        headers = {"Authorization": f"Bearer {anna.token}", "Accept": "application/json, text/event-stream"}

        answer = httpx2.post(url, headers=headers, json={"query": "x" * MAX_REQUEST_BYTES})

        assert answer.status_code == 413

    def test_reading_takes_a_constant_number_of_statements(self, anna, rf, django_assert_num_queries):
        add_messages("c", anna, *(UserMessage(str(number)) for number in range(30)))
        request = rf.post("/mcp")
        request.user = anna.user

        with django_assert_num_queries(3):
            tools.ReadConversation("c").run(request)
        with django_assert_num_queries(4):
            tools.SearchConversations("2").run(request)

    def test_no_thread_or_connection_stays_open(self, url: str, anna):
        add_messages("c", anna, UserMessage("Hi"))
        opened = []

        def note(connection, **kwargs):
            opened.append(connection)

        async def many():
            http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {anna.token}"})
            async with http, Client(streamable_http_client(url, http_client=http)) as client:
                reads = (client.call_tool("read_conversation", {"conversation_id": "c"}) for _ in range(50))
                return await asyncio.gather(*reads)

        before = threading.active_count()
        connection_created.connect(note)
        try:
            pages = asyncio.run(many())
        finally:
            connection_created.disconnect(note)

        assert all(page.structured_content["messages"][0]["text"] == "Hi" for page in pages)
        assert opened
        # Threads of the server may end only after the client has its answers.
        assert wait_until(lambda: all(connection.connection is None for connection in opened))
        assert wait_until(lambda: threading.active_count() <= before)
        connections.close_all()

    def test_nothing_is_written(self, url: str, anna):
        conversation = add_messages("c", anna, UserMessage("Hi"))

        call(url, anna.token, "read_conversation", conversation_id="c")

        assert Conversation.objects.get().version == conversation.version
        assert Message.objects.count() == 1


def test_importing_without_the_package_names_what_to_install():
    code = "import sys; sys.modules['mcp'] = None; import django; django.setup(); import chatmemory_django.contrib.mcp"
    environment = {"DJANGO_SETTINGS_MODULE": "example_project.settings", "DEBUG": "1"}
    failed = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=".", capture_output=True, text=True, check=False
    )

    assert "ImportError: The MCP server requires mcp: pip install 'chatmemory_django[mcp]'." in failed.stderr
