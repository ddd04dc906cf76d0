"""What OpenTelemetry receives: one trace for each answer, with the spans of others in it, and no content."""

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.core.cache import cache
from django.db import connection
from django.test import AsyncClient
from opentelemetry import metrics, trace
from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rest_framework.authtoken.models import Token

from chatmemory_django import observing, operations
from chatmemory_django.chat.answers import recall
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import (
    BrokenStreamError,
    ChatModelError,
    ChatRequest,
    ChatResponse,
    ChatResponseMetadata,
    RateLimitError,
    TokenUsage,
)
from chatmemory_django.chat.models import ModelCall
from chatmemory_django.chat.openai import OpenAiChatModel
from chatmemory_django.chat.outgoing import ANTHROPIC
from chatmemory_django.chat.runs import overload
from chatmemory_django.chat.worker import Worker
from chatmemory_django.contrib.telemetry import observer
from chatmemory_django.db.background import Background
from chatmemory_django.db.threads import in_background
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory
from tests.asgi import run
from tests.faces.chat.scripted import ScriptedModel, calling
from tests.faces.chat.server import serving

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "Marzipan"
"""What messages, calls and results contain, and must be in no span."""


class Watched:
    """What OpenTelemetry has received."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.spans_of = TracerProvider()
        self.spans_of.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.metrics_of = MeterProvider([self.reader])

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def span(self, name: str) -> ReadableSpan:
        """Return the only span of this *name*."""
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def parent(self, span: ReadableSpan) -> str | None:
        """Return the name of the span of which *span* is a part."""
        names = {each.context.span_id: each.name for each in self.spans if each.context}
        return None if span.parent is None else names[span.parent.span_id]

    def metric(self, name: str) -> list[Any]:
        """Return what was measured by this *name*."""
        data = self.reader.get_metrics_data()
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
        found = [each for scope in scopes for each in scope.metrics if each.name == name]
        return [point for each in found for point in each.data.data_points]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    watched = Watched()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: watched.spans_of)
    monkeypatch.setattr(metrics, "get_meter", watched.metrics_of.get_meter)
    monkeypatch.setattr(observing, "observers", [observer])
    observer._instrument.cache_clear()
    yield watched
    observer._instrument.cache_clear()
    watched.spans_of.shutdown()
    watched.metrics_of.shutdown()


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


def look(what: str) -> str:
    """Return what it is."""
    return f"{what} is {SECRET}"


def fail(what: str) -> str:
    """Fail."""
    raise LookupError(what)


async def all_of(events: AsyncGenerator[Any, None]) -> list[Any]:
    return [event async for event in events]


WAYS: dict[str, Callable[..., Any]] = {
    "chat": lambda assistant, *given, **options: assistant.chat(*given, **options),
    "stream": lambda assistant, *given, **options: list(assistant.stream(*given, **options)),
    "achat": lambda assistant, *given, **options: run(assistant.achat(*given, **options)),
    "astream": lambda assistant, *given, **options: run(all_of(assistant.astream(*given, **options))),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_its_tools_the_calls_of_the_model_and_the_statements_are_one_trace_without_content(
    watched: Watched, ann: User, way: str
):
    openai = OpenAIInstrumentor()
    if connection.vendor == "postgresql":
        from opentelemetry.instrumentation.psycopg import PsycopgInstrumentor  # which imports the driver

        psycopg = PsycopgInstrumentor()
        psycopg.instrument(tracer_provider=watched.spans_of, skip_dep_check=True)
        connection.close()
    openai.instrument(tracer_provider=watched.spans_of, meter_provider=watched.metrics_of)
    try:
        with serving() as server:
            calls = [
                ("1", "look", f'{{"what": "{SECRET}"}}'),
                ("2", "fail", f'{{"what": "{SECRET}"}}'),
                ("3", SECRET, ""),
            ]
            functions = [
                {"id": key, "type": "function", "function": {"name": name, "arguments": given}}
                for key, name, given in calls
            ]
            server.answer({"content": None, "tool_calls": functions}, "tool_calls")
            server.answer({"content": SECRET})
            model = OpenAiChatModel("gpt-x", base_url=server.url, api_key=SECRET)
            assistant = Assistant(model, tools=[look, fail], name="helper")
            WAYS[way](assistant, "c1", SECRET, owner=ann)
    finally:
        openai.uninstrument()
        if connection.vendor == "postgresql":
            psycopg.uninstrument()
            connection.close()

    agent = watched.span("invoke_agent helper")
    parts = Counter(span.name for span in watched.spans if watched.parent(span) == agent.name)
    expected = {"chat gpt-x": 2, "execute_tool look": 1, "execute_tool fail": 1, "execute_tool": 1}
    assert {name: count for name, count in parts.items() if "gpt" in name or "tool" in name} == expected
    if connection.vendor == "postgresql":
        assert parts["WITH"] or parts["INSERT"] or parts["SELECT"]
    assert {span.context.trace_id for span in watched.spans} == {agent.context.trace_id}
    received = dict(agent.attributes or {})
    usage = {name: received.pop(name) for name in [*received] if "aggregated_usage" in name}
    assert received == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "helper",
        "gen_ai.request.model": "gpt-x",
        "gen_ai.conversation.id": "c1",
        "session.id": "c1",
        "user.id": str(ann.pk),
    }
    asked = [span.attributes["gen_ai.usage.input_tokens"] for span in watched.spans if span.name == "chat gpt-x"]
    assert usage["gen_ai.aggregated_usage.input_tokens"] == sum(asked) > 0
    assert watched.span("execute_tool fail").attributes["error.type"] == "LookupError"
    assert not watched.span("execute_tool look").status.description
    assert SECRET not in "".join(span.to_json() for span in watched.spans)
    ours = [
        point for point in watched.metric("gen_ai.client.token.usage") if "invoke_agent" in point.attributes.values()
    ]
    assert sum(point.sum for point in ours if point.attributes["gen_ai.token.type"] == "input") == sum(asked)


def test_what_a_caller_does_between_two_events_is_not_part_of_the_answer(watched: Watched):
    events = Assistant(ScriptedModel("one two three")).stream("c1", "hi")
    next(events)
    assert not trace.get_current_span().get_span_context().is_valid
    assert not watched.spans

    events.close()

    assert watched.span("invoke_agent").status.is_unset


@pytest.mark.parametrize("way", WAYS)
def test_an_error_is_named_by_its_class_alone(watched: Watched, way: str):
    with suppress(ChatModelError):
        WAYS[way](Assistant(ScriptedModel(RateLimitError(SECRET))), "c1", SECRET)

    agent = watched.span("invoke_agent")
    assert (agent.attributes["error.type"], agent.status.is_ok, agent.events) == ("RateLimitError", False, ())
    assert SECRET not in agent.to_json()


def test_what_was_read_from_and_written_to_a_cache_is_summed_up(watched: Watched):
    class Caching(ScriptedModel):
        def do_chat(self, request: ChatRequest) -> ChatResponse:
            usage = TokenUsage(9, 1, 10, cached_input=2, cache_write=5, cache_write_1h=4)
            return ChatResponse(super().do_chat(request).ai_message, ChatResponseMetadata(token_usage=usage))

    Assistant(Caching("Yes")).chat("c1", "hi")

    attributes = watched.span("invoke_agent").attributes or {}
    assert attributes["gen_ai.aggregated_usage.cache_read.input_tokens"] == 2
    assert attributes["gen_ai.aggregated_usage.cache_creation.input_tokens"] == 5


def test_estimates_are_not_reported(watched: Watched):
    with suppress(BrokenStreamError):
        list(Assistant(ScriptedModel(BrokenStreamError(SECRET), words_before_error=3)).stream("c1", "hi"))

    assert ModelCall.objects.get().input_tokens
    assert "aggregated_usage" not in watched.span("invoke_agent").to_json()
    assert watched.metric("gen_ai.client.token.usage") == []


def test_workers_count_the_answers_that_wait(watched: Watched, settings):
    counted: list[list[int]] = []

    def answer(request: object) -> str:
        counted.append([point.value for point in watched.metric("chatmemory.answers.waiting")])
        return SECRET

    assistant = Assistant(ScriptedModel(answer))
    settings.CHATMEMORY = {"CHAT": {"ASSISTANT": assistant, "RUNS": "worker"}}
    for name in "ab":
        assistant.start(name, "hi")

    run(Worker(["default"], concurrency=1).work_off())

    assert counted[1] == [1]


def test_an_answer_over_http_belongs_to_its_request_and_ends_with_its_stream(watched: Watched, ann: User, settings):
    gate = asyncio.Event()
    settings.CHATMEMORY = {"CHAT": {"ASSISTANT": Assistant(ScriptedModel(f"one {SECRET}", gate=gate))}}
    cache.clear()
    headers = {"Authorization": f"Bearer {Token.objects.create(user=ann).key}", "accept": "text/event-stream"}
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": SECRET}]}
    body = {"id": "11111111-1111-4111-8111-111111111111", "trigger": "submit-message", "messages": [message]}

    async def ask() -> None:
        with watched.spans_of.get_tracer("site").start_as_current_span("request"):
            response = await AsyncClient().post("/api/chat", body, content_type="application/json", headers=headers)
        assert response.status_code == 200
        assert [span.name for span in watched.spans] == ["request"]
        assert [point.value for point in watched.metric("chatmemory.answers.active")] == [1]
        gate.set()
        async for _ in response.streaming_content:
            pass
        await sync_to_async(response.close)()

    run(ask())

    assert [point.value for point in watched.metric("chatmemory.answers.active")] == [0]
    agent = watched.span("invoke_agent")
    assert watched.parent(agent) == "request"
    assert agent.attributes["user.id"] == str(ann.pk)
    assert agent.end_time > watched.span("request").end_time
    assert SECRET not in "".join(span.to_json() for span in watched.spans)


def test_a_search_and_an_erasure_are_spans_with_the_number_of_messages(watched: Watched, ann: User):
    get_chat_memory("old", owner=ann).add(UserMessage(f"I like {SECRET}"))
    assistant = Assistant(
        ScriptedModel(calling(("1", "search_conversations", f'{{"query": "{SECRET}"}}')), "Yes"), tools=recall.tools()
    )
    assistant.chat("new", "What do I like?", owner=ann)
    search = watched.span("search_memory")
    assert (watched.parent(search), search.attributes["gen_ai.memory.record.count"]) == (
        "execute_tool search_conversations",
        1,
    )

    operations.erase(Conversation.objects.all(), dry_run=True)
    operations.erase(Conversation.objects.filter(memory_id="new"))

    assert watched.span("delete_memory").attributes["gen_ai.memory.record.count"] == 4
    assert SECRET not in "".join(span.to_json() for span in watched.spans)


def test_evictions_are_counted_and_mark_the_answer_as_compacted(watched: Watched):
    assistant = Assistant(ScriptedModel("yes"), memory_options={"max_messages": 2})
    assistant.chat("c1", "one")
    assert "gen_ai.conversation.compacted" not in watched.span("invoke_agent").attributes
    watched.exporter.clear()

    assistant.chat("c1", "two")

    assert watched.span("invoke_agent").attributes["gen_ai.conversation.compacted"] is True
    assert [point.value for point in watched.metric("chatmemory.evicted")] == [2]


def test_what_is_changed_for_a_vendor_is_an_attribute_of_the_answer(watched: Watched):
    class Claude(ScriptedModel):
        rules = ANTHROPIC  # type: ignore[assignment]

    assistant = Assistant(Claude("yes"))
    assistant.chat_memory("c1").add(AiMessage(SECRET), UserMessage(" "))

    assistant.chat("c1", "two")

    assert watched.span("invoke_agent").attributes["chatmemory.outgoing.changes"] == ("blank", "inserted")


@pytest.mark.parametrize("name", ["a" * 255, "ü" * 255, "ü" * 254 + "u", "é", "e", "\ud83d"])
def test_ids_fit_the_rules_of_langfuse_and_sentry_and_stay_distinct(name: str):
    assert len(observer.short(name)) <= 200
    assert observer.short(name).isascii()
    assert observer.short(name) == observer.short(name) != observer.short(name + "x")


def test_without_the_app_nothing_imports_opentelemetry():
    code = """
import sys
sys.modules["opentelemetry"] = None
from django.conf import settings
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=[
        "django.contrib.auth", "django.contrib.contenttypes", "chatmemory_django", "chatmemory_django.chat"
    ],
)
import django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from chatmemory_django import operations
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.models import Conversation
from tests.asgi import run
from tests.faces.chat.scripted import ScriptedModel
assert Assistant(ScriptedModel("Hello"), memory_options={"max_messages": 1}).chat("c1", "Hi") == "Hello"
operations.erase(Conversation.objects.all())
assert not [name for name in sys.modules if name.startswith(("opentelemetry.", "chatmemory_django.contrib"))]
"""
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[4], check=True)


def test_how_many_calls_wait_for_a_thread_and_for_how_long(watched: Watched):
    background, has_begun, may_end = Background(1), threading.Event(), threading.Event()

    def hold() -> None:
        has_begun.set()
        may_end.wait(60)

    calls = [background.submit(hold)]
    has_begun.wait(60)
    calls += [background.submit(str), background.new.submit(str)]
    assert [point.value for point in watched.metric("chatmemory.queue.waiting")] == [2]
    may_end.set()
    assert [each.result(60) for each in calls] == [None, "", ""]

    assert [point.value for point in watched.metric("chatmemory.queue.waiting")] == [0]
    assert [point.count for point in watched.metric("chatmemory.queue.duration")] == [3]


def test_how_many_requests_are_refused(watched: Watched, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(overload, "WAITING", 0)

    async def ask() -> None:
        with in_background():
            await overload.in_thread_in_turn(str)

    for _ in range(2):
        with pytest.raises(overload.NoThreadError):
            run(ask())

    assert [point.value for point in watched.metric("chatmemory.queue.refused")] == [2]
