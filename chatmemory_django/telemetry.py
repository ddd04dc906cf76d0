"""
Spans and metrics for OpenTelemetry, by the names of its conventions for generative AI, and without any content.

Nothing is imported here. A site that wants to see spans has loaded OpenTelemetry; in a process that has not, there are
none, and nothing is spent on them. The names are those of the conventions of October 2026, which are in development.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, lru_cache
from hashlib import sha256
from typing import Any, Protocol, TypeVar

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
TOKEN_BUCKETS = [4.0**power for power in range(14)]
"""The boundaries that the conventions recommend: 1, 4, 16 … 67108864."""

MAX_ID = 200
"""The length of the ids of sessions and users that Langfuse accepts, and of tags in Sentry. They must be ASCII."""

_T = TypeVar("_T")


class Agent(Protocol):
    """What is known of an assistant."""

    name: str | None
    model: Any


class UsedCall(Protocol):
    """What is counted of a call of a model: ``chat.costs.calls.Call`` is one."""

    model: str
    usage: Any


class Operation:
    """
    A span that begins now, in the *context* given or the present one.

    It is nothing where OpenTelemetry is not loaded, or if it is not *is_real*.
    """

    def __init__(
        self,
        name: str,
        subject: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        *,
        context: Any = None,
        is_real: bool = True,
    ) -> None:
        trace = _loaded("trace") if is_real else None
        self._span: Any = None
        self._context: Any = None
        if trace is not None:
            title = f"{name} {subject}" if subject else name
            given = {key: value for key, value in (attributes or {}).items() if value}
            tracer = _tracer(trace.get_tracer_provider())
            self._span = tracer.start_span(title, context, attributes={OPERATION: name, **given})
            self._context = trace.set_span_in_context(self._span, context)

    def active(self) -> AbstractContextManager[object]:
        """Return a context manager in which other spans are part of this one."""
        return nullcontext() if self._context is None else _Active(self._context)

    def count(self, records: int) -> None:
        """Note how many records of the memory were found or deleted."""
        if self._span is not None:
            self._span.set_attribute(RECORDS, records)

    def fail(self, error: BaseException) -> None:
        """Note that *error* ended the operation, unless it was only cancelled."""
        _fail(self._span, error)

    def end(self) -> None:
        """End the span."""
        if self._span is not None:
            self._span.end()

    def __enter__(self) -> Operation:
        self._active = self.active()
        self._active.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: Any) -> None:
        self._active.__exit__(None, None, None)
        if error is not None:
            self.fail(error)
        self.end()


class _Active:
    """
    Makes a *context* the present one.

    OpenTelemetry's own ``use_span`` takes longer, and by default records the texts of exceptions.
    """

    def __init__(self, context: Any) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = _loaded("context").attach(self._context)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: Any) -> None:
        _loaded("context").detach(self._token)


def here() -> Any:
    """Return the present context, in which an ``Operation`` can begin later, in another task or thread."""
    context = _loaded("context")
    return None if context is None else context.get_current()


def invoke_agent(agent: Agent, *, context: Any = None) -> Operation:
    """Return the operation of an answer of *agent*."""
    model = str(getattr(agent.model, "model_name", "") or "")
    return Operation("invoke_agent", agent.name, {AGENT: agent.name, MODEL: model}, context=context)


def execute_tool(name: str | None, call_id: str | None) -> Operation:
    """Return the operation of a call of the tool *name*; it fails without one: the model gave another."""
    given = {TOOL: name, TOOL_TYPE: "function", TOOL_CALL: (call_id or "")[:MAX_ID]}
    operation = Operation("execute_tool", name, given)
    if name is None:
        operation.fail(LookupError())
    return operation


def search_memory() -> Operation:
    """Return the operation of a search in messages."""
    return Operation("search_memory")


def delete_memory(*, dry_run: bool) -> Operation:
    """Return the operation that erases conversations or messages."""
    return Operation("delete_memory", is_real=not dry_run)


def identify(memory_id: object, owner: Any) -> None:
    """Note on the present span whose conversation it is about."""
    span = _present()
    if span is not None:
        key = str(memory_id)
        span.set_attributes({CONVERSATION: key, SESSION: short(key)})
        if owner is not None:
            span.set_attribute(USER, short(str(owner.pk)))


def note_compacted() -> None:
    """Note on the present span that the model is not sent all of the conversation."""
    span = _present()
    if span is not None:
        span.set_attribute(COMPACTED, True)  # the conventions know no False


def note_changes(changes: Iterable[str]) -> None:
    """Note on the present span which *changes* make what is sent fit for the model's vendor."""
    span = _present()
    if span is not None:
        span.set_attribute(CHANGES, sorted(set(map(str, changes))))


def note_usage(calls: Iterable[UsedCall], new: Iterable[UsedCall]) -> None:
    """Note on the present span what all *calls* of an answer used, and in the metrics what the *new* ones used."""
    span = _present()
    if span is not None:
        counts = {name: [getattr(call.usage, field) for call in calls] for field, name in USAGE.items()}
        known = {name: [each for each in found if each is not None] for name, found in counts.items()}
        span.set_attributes({name: sum(found) for name, found in known.items() if found})
    for call in new:
        for kind in ("input", "output"):
            count = getattr(call.usage, kind)
            if count is not None:
                attributes = {OPERATION: "invoke_agent", TOKEN_TYPE: kind, RESPONSE_MODEL: call.model}
                _record(TOKENS_METRIC, count, attributes)


def note_evicted(count: int) -> None:
    """Note in the metrics that *count* messages left a memory."""
    if count and _loaded("metrics") is not None:
        _instrument(EVICTED_METRIC).add(count)


def note_failure(error: BaseException) -> None:
    """Note on the present span that it fails with *error*, which the caller handles."""
    _fail(_present(), error)


@contextmanager
def summarizing() -> Iterator[None]:
    """Note in the metrics how long the block, which makes a summary, takes, and whether it fails."""
    began, attributes = time.monotonic(), {}
    try:
        yield
    except Exception as exc:
        attributes[ERROR] = type(exc).__qualname__
        raise
    finally:
        _record(SUMMARY_METRIC, time.monotonic() - began, attributes)


def traced(events: Generator[_T, None, None], agent: Agent) -> Generator[_T, None, None]:
    """
    Return *events*, of which each step is part of one ``invoke_agent``.

    What the caller does between two events is no part of it: a generator shares its context with who iterates.
    """
    return events if _loaded("trace") is None else _traced(events, agent)


def atraced(events: AsyncGenerator[_T, None], agent: Agent) -> AsyncGenerator[_T, None]:
    """See ``traced``."""
    return events if _loaded("trace") is None else _atraced(events, agent)


def short(name: str) -> str:
    """Return the id *name* as consumers accept it: the same for the same, and another one for another."""
    if len(name) <= MAX_ID and name.isascii():
        return name
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{name[: MAX_ID - 17].encode('ascii', 'replace').decode()}~{digest}"


def _traced(events: Generator[_T, None, None], agent: Agent) -> Generator[_T, None, None]:
    operation = invoke_agent(agent)
    try:
        while True:
            with operation.active():
                try:
                    event = next(events)
                except StopIteration:
                    return
            yield event
            del event  # it has no place in an error report
    except BaseException as exc:
        operation.fail(exc)
        raise
    finally:
        with operation.active():
            events.close()
        operation.end()


async def _atraced(events: AsyncGenerator[_T, None], agent: Agent) -> AsyncGenerator[_T, None]:
    operation = invoke_agent(agent)
    try:
        while True:
            with operation.active():
                try:
                    event = await anext(events)
                except StopAsyncIteration:
                    return
            yield event
            del event
    except BaseException as exc:
        operation.fail(exc)
        raise
    finally:
        with operation.active():
            await events.aclose()
        operation.end()


def _loaded(name: str) -> Any:
    """Return the module *name* of OpenTelemetry's API, if anything in this process has loaded it."""
    return sys.modules.get(f"opentelemetry.{name}")


@lru_cache(maxsize=1)
def _tracer(provider: Any) -> Any:
    """Return the tracer of *provider*: to get another one for each span takes longer than the span."""
    return provider.get_tracer(SCOPE)


def _present() -> Any:
    """Return the present span, if it is recorded."""
    trace = _loaded("trace")
    span = None if trace is None else trace.get_current_span()
    return span if span is not None and span.is_recording() else None


def _fail(span: Any, error: BaseException) -> None:
    trace = _loaded("trace")
    if span is not None and trace is not None and isinstance(error, Exception):
        span.set_attribute(ERROR, type(error).__qualname__)
        span.set_status(trace.StatusCode.ERROR)


def _record(name: str, value: float, attributes: Mapping[str, str]) -> None:
    if _loaded("metrics") is not None:
        _instrument(name).record(value, attributes)


@cache
def _instrument(name: str) -> Any:
    meter = _loaded("metrics").get_meter(SCOPE)
    if name == EVICTED_METRIC:
        return meter.create_counter(name, "{message}", "Messages that left a memory.")
    if name == SUMMARY_METRIC:
        return meter.create_histogram(name, "s", "How long it takes to summarize.")
    return meter.create_histogram(
        name, "{token}", "Tokens that calls of models used.", explicit_bucket_boundaries_advisory=TOKEN_BUCKETS
    )
