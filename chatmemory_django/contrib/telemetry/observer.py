"""
An observer: spans and metrics for OpenTelemetry, by the names of its conventions for generative AI, and without any
content. The names are those of the conventions of October 2026, which are in development.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from hashlib import sha256
from typing import Any

from opentelemetry import context, metrics, trace

SCOPE = "chatmemory_django"
"""The name by which a site finds, or leaves out, the spans and metrics of this package."""

OPERATION = "gen_ai.operation.name"
AGENT = "gen_ai.agent.name"
MODEL, RESPONSE_MODEL = "gen_ai.request.model", "gen_ai.response.model"
CONVERSATION = "gen_ai.conversation.id"
COMPACTED = "gen_ai.conversation.compacted"
CHANGES = "chatmemory.outgoing.changes"
SESSION, USER = "session.id", "user.id"
TOOL, TOOL_TYPE, TOOL_CALL = "gen_ai.tool.name", "gen_ai.tool.type", "gen_ai.tool.call.id"
RECORDS = "gen_ai.memory.record.count"
ERROR = "error.type"
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105  # no secret
USAGE: Mapping[str, str] = {
    "input": "gen_ai.aggregated_usage.input_tokens",
    "output": "gen_ai.aggregated_usage.output_tokens",
    "cached_input": "gen_ai.aggregated_usage.cache_read.input_tokens",
    "cache_write": "gen_ai.aggregated_usage.cache_creation.input_tokens",
    "reasoning": "gen_ai.aggregated_usage.reasoning.output_tokens",
}
"""
The sums of an answer, by the field of ``TokenUsage``. These are the names of pydantic-ai: by those of the conventions,
what adds up all spans would count the tokens twice, in the answer and in its calls of the model.
"""

TOKENS_METRIC, EVICTED_METRIC, SUMMARY_METRIC = (
    "gen_ai.client.token.usage",
    "chatmemory.evicted",
    "chatmemory.summary.duration",
)
ANSWERS_METRIC, WAITING_METRIC, WAIT_METRIC, REFUSED_METRIC = (
    "chatmemory.answers.active",
    "chatmemory.queue.waiting",
    "chatmemory.queue.duration",
    "chatmemory.queue.refused",
)
ASKED_METRIC, DATABASE = "chatmemory.answers.waiting", "chatmemory.database"
TOKEN_BUCKETS = [4.0**power for power in range(14)]
"""The boundaries that the conventions recommend: 1, 4, 16 … 67108864."""
WAIT_BUCKETS = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]

MAX_ID = 200
"""The length of the ids of sessions and users that Langfuse accepts, and of tags in Sentry. They must be ASCII."""


def note(event: str, /, **values: Any) -> None:
    """See ``observing.Observer``."""
    if event in _NOTES:
        _NOTES[event](**values)


def begin(operation: str, /, **values: Any) -> BegunSpan | BegunSummary | None:
    """See ``observing.Observer``."""
    return _OPERATIONS[operation](**values) if operation in _OPERATIONS else None


class BegunSpan:
    """A span, which begins now."""

    def __init__(self, name: str, subject: str | None = None, attributes: Mapping[str, Any] | None = None) -> None:
        title = f"{name} {subject}" if subject else name
        given = {key: value for key, value in (attributes or {}).items() if value}
        tracer = _tracer(trace.get_tracer_provider())
        self._span = tracer.start_span(title, attributes={OPERATION: name, **given})
        self._context = trace.set_span_in_context(self._span)

    def active(self) -> AbstractContextManager[object]:
        """See ``observing.Begun``."""
        return _Active(self._context)

    def end(self, error: BaseException | None = None) -> None:
        """See ``observing.Begun``. An operation that was only cancelled did not fail."""
        _fail(self._span, error)
        self._span.end()


class _Active:
    """
    Makes a *context* the present one.

    OpenTelemetry's own ``use_span`` takes longer, and by default records the texts of exceptions.
    """

    def __init__(self, context: context.Context) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = context.attach(self._context)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: Any) -> None:
        context.detach(self._token)


class BegunSummary:
    """The seconds that it takes to make a summary, which begins now: a metric, and no span."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def active(self) -> AbstractContextManager[object]:
        """See ``observing.Begun``."""
        return nullcontext()

    def end(self, error: BaseException | None = None) -> None:
        """See ``observing.Begun``."""
        failed = {ERROR: type(error).__qualname__} if isinstance(error, Exception) else {}
        _instrument(SUMMARY_METRIC).record(time.monotonic() - self._began, failed)


def short(name: str) -> str:
    """Return the id *name* as consumers accept it: the same for the same, and another one for another."""
    if len(name) <= MAX_ID and name.isascii():
        return name
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{name[: MAX_ID - 17].encode('ascii', 'replace').decode()}~{digest}"


def _answer(assistant: Any) -> BegunSpan:
    model = str(getattr(assistant.model, "model_name", "") or "")
    return BegunSpan("invoke_agent", assistant.name, {AGENT: assistant.name, MODEL: model})


def _tool(name: str | None, call_id: str | None) -> BegunSpan:
    """Return the span of a call of the tool *name*; it fails without one: the model gave another."""
    span = BegunSpan("execute_tool", name, {TOOL: name, TOOL_TYPE: "function", TOOL_CALL: (call_id or "")[:MAX_ID]})
    if name is None:
        _fail(span._span, LookupError())
    return span


def _counted(records: int) -> None:
    trace.get_current_span().set_attribute(RECORDS, records)


def _identified(memory_id: object, owner: Any) -> None:
    key = str(memory_id)
    span = trace.get_current_span()
    span.set_attributes({CONVERSATION: key, SESSION: short(key)})
    if owner is not None:
        span.set_attribute(USER, short(str(owner.pk)))


def _compacted() -> None:
    trace.get_current_span().set_attribute(COMPACTED, True)  # the conventions know no False


def _changed(changes: Iterable[object]) -> None:
    trace.get_current_span().set_attribute(CHANGES, sorted(set(map(str, changes))))


def _used(calls: Iterable[Any], new: Iterable[Any]) -> None:
    """Note what all *calls* of an answer used on its span, and in the metrics what the *new* ones used."""
    counts = {name: [getattr(call.usage, field) for call in calls] for field, name in USAGE.items()}
    known = {name: [each for each in found if each is not None] for name, found in counts.items()}
    trace.get_current_span().set_attributes({name: sum(found) for name, found in known.items() if found})
    for call in new:
        for kind in ("input", "output"):
            count = getattr(call.usage, kind)
            if count is not None:
                attributes = {OPERATION: "invoke_agent", TOKEN_TYPE: kind, RESPONSE_MODEL: call.model}
                _instrument(TOKENS_METRIC).record(count, attributes)


@lru_cache(maxsize=1)
def _tracer(provider: trace.TracerProvider) -> trace.Tracer:
    """Return the tracer of *provider*: to get another one for each span takes longer than the span."""
    return provider.get_tracer(SCOPE)


def _fail(span: trace.Span, error: BaseException | None) -> None:
    if isinstance(error, Exception):
        span.set_attribute(ERROR, type(error).__qualname__)
        span.set_status(trace.StatusCode.ERROR)


@cache
def _instrument(name: str) -> Any:
    meter = metrics.get_meter(SCOPE)
    if name == EVICTED_METRIC:
        return meter.create_counter(name, "{message}", "Messages that left a memory.")
    if name == SUMMARY_METRIC:
        return meter.create_histogram(name, "s", "How long it takes to summarize.")
    if name == WAIT_METRIC:
        text = "How long calls waited for a thread with a connection."
        return meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=WAIT_BUCKETS)
    if name == WAITING_METRIC:
        return meter.create_up_down_counter(name, "{call}", "Calls that wait for a thread with a connection.")
    if name == ASKED_METRIC:
        return meter.create_gauge(name, "{answer}", "Answers that wait for a worker.")
    if name == ANSWERS_METRIC:
        return meter.create_up_down_counter(name, "{answer}", "Answers in progress.")
    if name == REFUSED_METRIC:
        return meter.create_counter(name, "{request}", "Requests that were refused, as no thread was free.")
    return meter.create_histogram(
        name, "{token}", "Tokens that calls of models used.", explicit_bucket_boundaries_advisory=TOKEN_BUCKETS
    )


_NOTES: Mapping[str, Callable[..., None]] = {
    "answering": lambda change: _instrument(ANSWERS_METRIC).add(change),
    "asked": lambda database, count: _instrument(ASKED_METRIC).set(count, {DATABASE: database}),
    "changed": _changed,
    "compacted": _compacted,
    "counted": _counted,
    "evicted": lambda count: _instrument(EVICTED_METRIC).add(count),
    "failed": lambda error: _fail(trace.get_current_span(), error),
    "identified": _identified,
    "refused": lambda: _instrument(REFUSED_METRIC).add(1),
    "used": _used,
    "waited": lambda seconds: _instrument(WAIT_METRIC).record(seconds),
    "waiting": lambda change: _instrument(WAITING_METRIC).add(change),
}

_OPERATIONS: Mapping[str, Callable[..., BegunSpan | BegunSummary]] = {
    "answer": _answer,
    "delete": lambda: BegunSpan("delete_memory"),
    "search": lambda: BegunSpan("search_memory"),
    "summarize": BegunSummary,
    "tool": _tool,
}
