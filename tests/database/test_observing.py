"""Those who observe what happens, see ``chatmemory_django.observing``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from chatmemory_django import observing
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.db.background import Background
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.provider import get_chat_memory
from tests.asgi import run
from tests.faces.chat.scripted import ScriptedModel, calling

pytestmark = pytest.mark.django_db(transaction=True)


class Witness:
    """Writes down what it observes."""

    def __init__(self, *ignored: str) -> None:
        self.seen: list[str] = []
        self.ignored = ignored

    def note(self, event: str, /, **values: Any) -> None:
        self.seen.append(event)

    def begin(self, operation: str, /, **values: Any) -> "Operation | None":
        return None if operation in self.ignored else Operation(self, operation)


class Operation:
    def __init__(self, witness: Witness, name: str) -> None:
        self.witness, self.name = witness, name

    @contextmanager
    def active(self) -> Iterator[None]:
        self.witness.seen.append(f"in {self.name}")
        try:
            yield
        finally:
            self.witness.seen.append(f"out of {self.name}")

    def end(self, error: BaseException | None) -> None:
        self.witness.seen.append(f"end of {self.name}: {error!r}")


def fail() -> str:
    """Fail."""
    raise LookupError


def test_each_observer_has_its_own_operations(monkeypatch: pytest.MonkeyPatch):
    all_of, few = Witness(), Witness("tool")
    monkeypatch.setattr(observing, "observers", [all_of, few])

    Assistant(ScriptedModel(calling(("1", "fail", "")), "Yes"), tools=[fail]).chat("c1", "hi")

    tool = ["in tool", "failed", "out of tool", "end of tool: None"]
    assert [each for each in all_of.seen if each in {*tool, "in answer", "end of answer: None"}] == [
        "in answer",
        *tool,
        "end of answer: None",
    ]
    assert [each for each in few.seen if "tool" in each] == []
    assert few.seen.count("failed") == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_stream_is_one_operation_with_its_error(monkeypatch: pytest.MonkeyPatch, is_async: bool):
    witness = Witness()
    monkeypatch.setattr(observing, "observers", [witness])
    assistant = Assistant(ScriptedModel(LookupError("why"), words_before_error=1))

    async def all_of() -> None:
        async for _ in assistant.astream("c1", "hi"):
            pass

    with pytest.raises(LookupError):
        run(all_of()) if is_async else list(assistant.stream("c1", "hi"))

    assert [each for each in witness.seen if each.startswith("end")] == ["end of answer: LookupError('why')"]
    assert witness.seen.count("in answer") == witness.seen.count("out of answer") > 1


def test_without_observers_nothing_is_noted_of_a_message_or_of_a_thread(monkeypatch: pytest.MonkeyPatch):
    def note(event: str, /, **values: Any) -> None:
        raise AssertionError(event)

    monkeypatch.setattr(observing, "note", note)

    memory = get_chat_memory("c1", max_messages=1)
    memory.add(UserMessage("one"), AiMessage("two"), UserMessage("three"))
    assert Background(1).submit(str).result(60) == ""


def test_an_installed_app_observes_once(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("opentelemetry", exc_type=ImportError)
    from chatmemory_django.contrib import telemetry
    from chatmemory_django.contrib.telemetry.apps import TelemetryConfig
    from chatmemory_django.contrib.telemetry.observer import note

    monkeypatch.setattr(observing, "observers", [])
    config = TelemetryConfig("chatmemory_django.contrib.telemetry", telemetry)
    config.ready()
    config.ready()

    assert [each.note for each in observing.observers] == [note]


class Broken(Witness):
    """Fails in one of the methods."""

    def begin(self, operation: str, /, **values: Any) -> "Operation | None":
        begun = Operation(self, operation)
        (method,) = self.ignored
        if method == "begin":
            self.fail()
        setattr(begun, method, self.fail)
        return begun

    def fail(self, *args: object) -> None:
        raise LookupError("no way out")


@pytest.mark.parametrize(("fails_in", "begun"), [("begin", 1), ("active", 2), ("end", 2)])
def test_an_observer_that_fails_leaves_no_operation_of_another_open(
    monkeypatch: pytest.MonkeyPatch, fails_in: str, begun: int
):
    witness = Witness()
    monkeypatch.setattr(observing, "observers", [witness, Broken(fails_in), witness])

    with pytest.raises(LookupError, match="no way out"), observing.Operation("search"):
        pass

    assert witness.seen.count("in search") == witness.seen.count("out of search")
    assert sum(each.startswith("end of search: ") for each in witness.seen) == begun
