"""Conversations to JSON lines and back: history and memory are the same after it, and wrong lines leave nothing."""

import contextlib
import json
import tracemalloc
import uuid
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatmemory_django import jsonl
from chatmemory_django.jsonl import ConversationExistsError, JsonLinesError, export_lines, import_lines
from chatmemory_django.memory import MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import AiMessage, SystemMessage, ToolExecutionRequest, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests import strategies
from tests.estimators import ADDITIVE_WORDS
from tests.test_models import PRIVATE

pytestmark = pytest.mark.django_db

U1, U2, U3 = (UserMessage(text) for text in ("one", "two", "three"))


def a_memory(memory_id: str = "a", limit: int = 3) -> MessageWindowChatMemory:
    return MessageWindowChatMemory(max_messages=limit, id=memory_id, store=DjangoChatMemoryStore())


def everything(memory_id: str) -> tuple[dict, list[dict]]:
    """All that the tables know of a conversation, but for its front, which says nothing new."""
    conversation = Conversation.objects.filter(memory_id=memory_id).values().get()
    rows = list(Message.objects.filter(conversation=conversation["id"]).order_by("sequence").values())
    return (
        {name: value for name, value in conversation.items() if name not in {"id", "front"}},
        [{name: value for name, value in row.items() if name != "conversation_id"} for row in rows],
    )


def exported(memory_id: str = "a") -> list[str]:
    return list(export_lines(Conversation.objects.filter(memory_id=memory_id)))


def exported_and_erased(memory_id: str = "a") -> list[str]:
    lines = exported(memory_id)
    Conversation.objects.filter(memory_id=memory_id).delete()
    return lines


def changed(line: str, **changes: object) -> str:
    return json.dumps({**json.loads(line), **changes})


def pinned_and_evicted() -> None:
    memory = a_memory()
    memory.add(SystemMessage("be brief"), U1, U2)
    memory.add(U3, AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "tool", "{}")]))


def replaced() -> None:
    memory = a_memory()
    memory.add(SystemMessage("be brief"), U1)
    memory.add(SystemMessage("be long"))


def compacted() -> None:
    memory = a_memory()
    memory.add(U1, U2, U3)
    memory.set([SystemMessage("a summary"), U3])
    memory.add(U1)


def counted() -> None:
    TokenWindowChatMemory(
        max_tokens=30, token_count_estimator=ADDITIVE_WORDS, id="a", store=DjangoChatMemoryStore()
    ).add(U1, U2, U3, UserMessage("four"))


def cleared() -> None:
    memory = a_memory()
    memory.add(U1, U2)
    memory.clear()


def without_history() -> None:
    memory = MessageWindowChatMemory(max_messages=2, id="a", store=DjangoChatMemoryStore(keep_history=False))
    memory.add(U1, U2)
    memory.add(U3)


def in_the_middle_of_a_turn() -> None:
    with a_memory().turn(persist="early") as turn:
        turn.add(U1)
        raise ConnectionError


class TestRoundTrip:
    @pytest.mark.parametrize(
        "make", [pinned_and_evicted, replaced, compacted, counted, cleared, without_history, in_the_middle_of_a_turn]
    )
    def test_all_that_the_tables_know_is_restored(self, make: Callable[[], None]):
        with contextlib.suppress(ConnectionError):
            make()
        Conversation.objects.update(title="京都 😀", metadata={"tags": ["a"], "n": 1.5})
        Message.objects.filter(sequence=2).update(client_id=uuid.UUID(int=7), metadata={"model": "m"})
        before = everything("a")

        assert [conversation.memory_id for conversation in import_lines(exported_and_erased())] == ["a"]
        assert everything("a") == before

    @settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(messages=st.lists(strategies.messages(storable=True), min_size=1, max_size=5))
    def test_of_any_messages(self, messages):
        Conversation.objects.all().delete()
        memory = a_memory(limit=100)
        memory.add(*messages)
        before, remembered = everything("a"), memory.messages()

        list(import_lines(exported_and_erased()))

        assert everything("a") == before
        assert memory.messages() == remembered

    def test_it_goes_on_from_there(self):
        a_memory().add(U1, U2)
        list(import_lines(exported_and_erased()))

        a_memory().add(U3, U1)

        assert a_memory().messages() == [U2, U3, U1]
        assert [row.sequence for row in Conversation.objects.get().history()] == [1, 2, 3, 4]

    def test_of_several_conversations_of_somebody_else(self):
        for memory_id in "abc":
            a_memory(memory_id).add(U1)
        lines = list(export_lines(Conversation.objects.order_by("-memory_id")))
        Conversation.objects.all().delete()
        ann = User.objects.create_user("ann")

        list(import_lines(["\n", *(line.encode() for line in lines), ""], ann))

        assert sorted(Conversation.objects.owned_by(ann).values_list("memory_id", flat=True)) == ["a", "b", "c"]
        assert Message.objects.count() == 3

    def test_one_line_for_the_conversation_and_one_for_each_message(self):
        a_memory().add(U1)

        head, said = exported()

        assert json.loads(head)["record"] == "conversation"
        assert json.loads(said)["message"] == {"type": "USER", "contents": [{"type": "TEXT", "text": "one"}]}
        assert head.endswith("\n")
        assert said.count("\n") == 1

    def test_counts_that_are_not_trusted_are_made_anew(self):
        memory = TokenWindowChatMemory(
            max_tokens=30, token_count_estimator=ADDITIVE_WORDS, id="a", store=DjangoChatMemoryStore()
        )
        memory.add(U1)
        lines = exported_and_erased()
        lying = [lines[0], changed(lines[1], token_count=0)]

        list(import_lines(lying, trusted=False))
        memory.add(U2)

        assert list(Message.objects.values_list("token_count", flat=True).order_by("sequence")) == [
            ADDITIVE_WORDS.estimate_token_count_in_message(message) for message in (U1, U2)
        ]


class TestLargeConversations:
    def test_are_never_in_python_as_a_whole(self, django_assert_max_num_queries):
        count = 5_000
        memory = a_memory()
        memory.add(*[UserMessage(f"{number} {'x' * 1000}") for number in range(count)])

        tracemalloc.start()
        try:
            with django_assert_max_num_queries(count // jsonl.PAGE + 4):
                assert sum(1 for _ in export_lines(Conversation.objects.all())) == count + 1
            exporting = tracemalloc.get_traced_memory()[1]
            lines = exported_and_erased()
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            list(import_lines(iter(lines)))
            importing = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()

        assert exporting < 2_000_000
        assert importing < 4_000_000
        assert Message.objects.count() == count


class TestWrongLines:
    @pytest.fixture
    def lines(self) -> list[str]:
        memory = a_memory()
        memory.add(SystemMessage(PRIVATE), UserMessage(PRIVATE))
        memory.add(U1, U2)
        return exported_and_erased()

    @pytest.mark.parametrize(
        ("number", "changes", "reason"),
        [
            (1, {"memory_id": ""}, "must have 1 to 255 characters"),
            (1, {"memory_id": "a\0"}, "NUL"),
            (1, {"memory_id": 5}, r"Expected `str`, got `int` - at `\$.memory_id`"),
            (1, {"title": "x" * 256}, r"length <= 255 - at `\$.title`"),
            (1, {"title": "\0"}, "title holds a NUL"),
            (1, {"title": "\ud800"}, "surrogate|UTF-8|str"),
            (1, {"metadata": {"a": ["\0"]}}, r"metadata.a\[0\] holds a NUL"),
            (1, {"metadata": []}, "Expected `object`"),
            (1, {"metadata": {"a": [[]] * 2}, "colour": 1}, "unknown field `colour`"),
            (1, {"next_sequence": 2**31}, "Expected `int` <= 2000000000"),
            (1, {"next_sequence": 10**400}, "Expected `int` <= 2000000000"),
            (1, {"next_sequence": 1}, "window_start is"),
            (1, {"window_start": 9}, "window_start is 9, which is above next_sequence, 5"),
            (1, {"said_messages": 3}, "said_messages is 3, but there are 4"),
            (1, {"said_messages": 5}, "said_messages is 5, but next_sequence is 5"),
            (1, {"pinned_sequence": 2}, "pinned_sequence is 2, which is no system message"),
            (1, {"created_at": "0001-01-01T00:00:00Z"}, "years 1000 to 9999"),
            (1, {"created_at": "9999-12-31T23:59:59-12:00"}, "years 1000 to 9999"),
            (1, {"created_at": "2026-11-21T00:00:00"}, "timezone"),
            (1, {"record": "user"}, "Invalid value 'user'"),
            (3, {"sequence": 1}, "must be above 1, the one before it"),
            (3, {"sequence": 5}, "below 5, the next of its conversation"),
            (3, {"sequence": 0}, "Expected `int` >= 1"),
            (3, {"token_count": -1}, "Expected `int` >= 0"),
            (3, {"client_id": "7"}, "Invalid UUID"),
            (3, {"metadata": {"\0": 1}}, "NUL"),
            (3, {"message": {"type": "USER"}}, r"\$.message.contents is missing"),
            (3, {"message": {"type": "USER", "contents": [{"type": "TEXT", "text": "\0"}]}}, "NUL"),
            (3, {"message": None}, r"\$.message"),
        ],
    )
    def test_are_named_and_leave_nothing(self, lines: list[str], number: int, changes: dict, reason: str):
        lines[number - 1] = changed(lines[number - 1], **changes)

        with pytest.raises(JsonLinesError, match=rf"^Line {number}: .*({reason})") as refused:
            list(import_lines(lines))

        assert refused.value.line == number
        assert PRIVATE not in str(refused.value)
        assert not Conversation.objects.exists()

    @pytest.mark.parametrize(
        "line", ["{", "[]", "null", b"\xff\xfe", "[" * 100_000, '{"record": "message"}', '{"record": 1}', "\ud800"]
    )
    def test_that_are_no_records(self, lines: list[str], line: str | bytes):
        with pytest.raises(JsonLinesError, match=r"^Line 3: "):
            list(import_lines([*lines[:2], line]))

        assert not Conversation.objects.exists()

    def test_that_are_too_long(self, lines: list[str], settings):
        settings.CHATMEMORY = {"MAX_MESSAGE_BYTES": 20}

        with pytest.raises(JsonLinesError, match="Line 1: it has 1048697 characters, but may have 1048696"):
            list(import_lines([" " * 1_048_697]))
        with pytest.raises(JsonLinesError, match=r"Line 2: SystemMessage has 25 bytes"):
            list(import_lines(lines))

    def test_that_begin_with_a_message(self, lines: list[str]):
        with pytest.raises(JsonLinesError, match="Line 1: a message before the first conversation"):
            list(import_lines(lines[1:]))

    def test_that_are_wrong_in_a_later_conversation_leave_the_earlier_one(self, lines: list[str]):
        second = [changed(lines[0], memory_id="b"), *lines[1:-1], "{"]

        with pytest.raises(JsonLinesError, match="Line 10: "):
            list(import_lines([*lines, *second]))

        assert Conversation.objects.get().memory_id == "a"
        assert Message.objects.count() == 4

    def test_of_a_conversation_that_is_there(self, lines: list[str]):
        a_memory().add(U1)

        with pytest.raises(ConversationExistsError, match="Line 1: the conversation 'a' is there already"):
            list(import_lines(lines))

        assert Message.objects.count() == 1

    def test_with_one_client_id_for_two_messages(self, lines: list[str]):
        twice = [changed(line, client_id=str(uuid.UUID(int=7))) for line in lines[1:3]]

        with pytest.raises(JsonLinesError, match="Line 1: two messages of the conversation 'a' have the same client"):
            list(import_lines([lines[0], *twice, *lines[3:]]))

        assert not Conversation.objects.exists()
