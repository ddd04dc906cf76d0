"""Whole conversations out and in, and how much was said."""

import datetime
import json

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient
from django.utils import timezone
from rest_framework.authtoken.models import Token

from chatmemory_django.messages import AiMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.rest import transfer
from tests.rest.conftest import ROOT

pytestmark = pytest.mark.django_db

IMPORT = f"{ROOT}import/"
USAGE = "/api/usage/"


def exported(api, memory_id: str = "c") -> bytes:
    answer = api.get(f"{ROOT}{memory_id}/export/")
    assert answer.status_code == 200
    assert answer["Content-Type"] == "application/jsonl"
    return b"".join(answer.streaming_content)


def imported(api, lines: bytes):
    return api.generic("POST", IMPORT, lines, content_type="application/jsonl")


class TestTransfer:
    def test_brings_history_and_memory_back(self, api, begin):
        begin("c", SystemMessage("be brief"), *[UserMessage(str(number)) for number in range(250)])
        Conversation.objects.update(title="t", metadata={"a": 1})
        before = [api.get(f"{ROOT}c/{each}").json() for each in ("", "messages/?after=0", "memory/")]
        lines = exported(api)
        api.delete(f"{ROOT}c/")

        answer = imported(api, lines)

        assert answer.status_code == 201
        assert answer.json() == {"conversations": [{"memory_id": "c", "messages": 251}]}
        assert [api.get(f"{ROOT}c/{each}").json() for each in ("", "messages/?after=0", "memory/")] == before

    def test_is_to_whoever_imports_it(self, api, client_of, begin):
        begin("c", UserMessage("hi"))
        lines = exported(api)
        api.delete(f"{ROOT}c/")

        imported(client_of("other"), lines)

        assert Conversation.objects.get().owner.username == "other"

    def test_of_what_is_there_is_a_conflict(self, api, begin):
        begin("c", UserMessage("hi"))

        answer = imported(api, exported(api))

        assert answer.status_code == 409
        assert answer.json()["errors"][0]["path"] == "line 1"
        assert Message.objects.count() == 1

    def test_is_all_or_nothing(self, api, begin):
        begin("c", UserMessage("hi"))
        begin("d", UserMessage("hi"))
        lines = exported(api) + exported(api, "d")
        Conversation.objects.all().delete()

        answer = imported(api, lines + b"{\n")

        assert answer.status_code == 400
        assert answer.json()["errors"][0]["path"] == "line 5"
        assert not Conversation.objects.exists()

    def test_believes_no_counts(self, api, begin, settings):
        settings.CHATMEMORY["MEMORY"] = {
            "CLASS": "chatmemory_django.memory.TokenWindowChatMemory",
            "OPTIONS": {"max_tokens": 20, "token_count_estimator": "gpt-4o"},
        }
        begin("c", UserMessage("hi"))
        head, said = exported(api).splitlines()
        said = json.dumps({**json.loads(said), "token_count": 0})
        api.delete(f"{ROOT}c/")

        imported(api, head + b"\n" + said.encode())

        assert api.get(f"{ROOT}c/memory/").json()["messages"][0]["token_count"] == 5

    def test_takes_no_memory_that_every_read_would_suffer_from(self, api, begin, monkeypatch):
        monkeypatch.setattr(transfer, "MAX_MEMORY", 2)
        begin("c", *[UserMessage("hi")] * 3)
        lines = exported(api)
        api.delete(f"{ROOT}c/")

        assert imported(api, lines).status_code == 400
        assert not Conversation.objects.exists()

    def test_takes_no_more_than_it_may(self, api, begin, settings):
        settings.CHATMEMORY["REST"]["MAX_IMPORT_BYTES"] = 1000

        assert imported(api, b" " * 1000).json() == {"conversations": []}
        assert imported(api, b" " * 1001).status_code == 413

    @pytest.mark.parametrize("lines", [b"\xff\xfe", b"{}", b"[" * 100_000, b'{"record": "message"}', b"\0"])
    def test_says_which_line_is_wrong(self, api, lines):
        answer = imported(api, b"\n" + lines)

        assert answer.status_code == 400
        assert answer.json()["errors"][0]["path"] == "line 2"

    def test_of_no_body_is_refused(self, api):
        assert imported(api, b"").status_code == 400


def test_an_export_under_asgi_is_streamed_too(begin, people):
    begin("c", *[UserMessage("hi" * 400)] * 250)
    token = Token.objects.create(user=people["owner"])

    async def read() -> list[bytes]:
        answer = await AsyncClient().get(f"{ROOT}c/export/", headers={"Authorization": f"Token {token.key}"})
        assert answer.status_code == 200, answer.content
        return [chunk async for chunk in answer.streaming_content]

    chunks = async_to_sync(read)()

    assert len(chunks) > 2
    assert max(map(len, chunks)) < 70_000
    assert b"".join(chunks).count(b"\n") == 251


class TestUsage:
    @pytest.fixture
    def said(self, begin) -> None:
        begin("c", UserMessage("hi"))
        begin("d", UserMessage("hi"), UserMessage("ho"))
        get_chat_memory("d").add(AiMessage("hello"), metadata={"model": "m", "usage": {"total_tokens": 9}})
        get_chat_memory("d").add(AiMessage("hello"), metadata={"model": "n"})
        Message.objects.update(token_count=5)
        Message.objects.filter(text="ho").update(token_count=None)

    def usage(self, api, **query) -> list[tuple]:
        answer = api.get(USAGE, query)
        assert answer.status_code == 200, answer.content
        return [(each["key"], each["messages"], each["tokens"]) for each in answer.json()["results"]]

    def test_by_day(self, api, said):
        yesterday = timezone.now() - datetime.timedelta(days=1)
        Message.objects.filter(text="hi").update(created_at=yesterday)

        assert self.usage(api) == [
            (timezone.now().astimezone(datetime.UTC).date().isoformat(), 3, 10),
            (yesterday.astimezone(datetime.UTC).date().isoformat(), 2, 10),
        ]

    def test_by_conversation(self, api, said):
        assert self.usage(api, by="conversation") == [("d", 4, 15), ("c", 1, 5)]
        assert self.usage(api, by="conversation", limit=1) == [("d", 4, 15)]

    def test_by_model(self, api, said):
        assert self.usage(api, by="model") == [(None, 3, 10), ("m", 1, 5), ("n", 1, 5)]

    def test_of_a_time(self, api, said):
        now = timezone.now()
        Message.objects.filter(text="hi").update(created_at=now - datetime.timedelta(days=40))

        assert sum(messages for _, messages, _ in self.usage(api)) == 3
        assert sum(messages for _, messages, _ in self.usage(api, since="2000-01-01T00:00:00Z")) == 5
        assert self.usage(api, until="2000-01-01T00:00:00Z") == []

    @pytest.mark.parametrize("query", [{"by": "hour"}, {"since": "x"}, {"until": "2026-01-01"}, {"limit": "201"}])
    def test_says_which_parameter_is_wrong(self, api, query):
        answer = api.get(USAGE, query)

        assert answer.status_code == 400
        assert answer.json()["errors"][0]["path"] == f"?{next(iter(query))}"
