"""Export to JSON lines and import: history and memory survive unchanged, and invalid lines leave nothing behind."""

import contextlib
import itertools
import json
import threading
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, OperationalError, connection, connections
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django import operations
from chatmemory_django.memory import MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    Image,
    ImageContent,
    MessageType,
    NewMessage,
    SystemMessage,
    ToolExecutionRequest,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import one_by_one
from chatmemory_django.operations.jsonl import (
    ConversationExistsError,
    ImportLimits,
    JsonLinesError,
    check_lines,
    export_lines,
    import_lines,
    importing,
)
from chatmemory_django.stores.django import DjangoChatMemoryStore
from chatmemory_django.stores.django.writes import MAX_ROWS
from tests import strategies
from tests.database.interleaving import Connected, another_writer, in_another_connection
from tests.database.test_models import PRIVATE
from tests.database.test_operations import everything_is_whole
from tests.estimators import ADDITIVE_WORDS
from tests.quick import mostly_slow
from tests.strategies import IN_DATABASE

pytestmark = pytest.mark.django_db

UUID = "c2c1a8f4-5f0c-4d0e-9c3b-6f1f5f0e7a11"
U1, U2, U3 = (UserMessage(text) for text in ("one", "two", "three"))


def a_memory(memory_id: str = "a", limit: int = 3) -> MessageWindowChatMemory:
    return MessageWindowChatMemory(max_messages=limit, id=memory_id, store=DjangoChatMemoryStore())


def everything(memory_id: str) -> tuple[dict, list[dict]]:
    """Return everything in the tables about a conversation, except its number of writes."""
    conversation = Conversation.objects.filter(memory_id=memory_id).values().get()
    rows = list(Message.objects.filter(conversation=conversation["id"]).order_by("sequence").values())
    return (
        {name: value for name, value in conversation.items() if name not in {"id", "version"}},
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
    def test_everything_in_the_tables_is_restored(self, make: Callable[[], None]):
        with contextlib.suppress(ConnectionError):
            make()
        Conversation.objects.update(
            title="京都 😀", metadata={"tags": ["a"], "n": 1.5}, is_pinned=True, is_archived=True, assistant="support"
        )
        Message.objects.filter(sequence=2).update(client_message_id="msg_7 é", metadata={"model": "m"})
        before = everything("a")

        assert import_lines(exported_and_erased()) == 1
        assert everything("a") == before

    @IN_DATABASE
    @given(messages=st.lists(strategies.messages(storable=True), min_size=1, max_size=5))
    def test_any_messages_are_restored(self, messages):
        Conversation.objects.all().delete()
        memory = a_memory(limit=100)
        memory.add(*messages)
        before, remembered = everything("a"), memory.messages()

        import_lines(exported_and_erased())

        assert everything("a") == before
        assert memory.messages() == remembered

    @pytest.mark.parametrize("make", [pinned_and_evicted, replaced, compacted, counted, cleared])
    @pytest.mark.parametrize(
        "types", list(itertools.combinations([MessageType.SYSTEM, MessageType.USER, MessageType.AI], 2))
    )
    def test_omitted_types_are_treated_as_if_never_stored(self, make, types):
        make()
        rows = Message.objects.filter(type__in=types)
        before, remembered = list(rows.values_list("sequence", "text")), list(rows.in_memory().values_list("sequence"))
        lines = list(export_lines(Conversation.objects.all(), types=types))
        total = Conversation.objects.get().total_messages
        Conversation.objects.all().delete()

        assert import_lines(lines) == 1

        assert list(Message.objects.values_list("sequence", "text")) == before
        assert list(Message.objects.in_memory().values_list("sequence")) == remembered
        assert Conversation.objects.get().total_messages == total
        everything_is_whole()

    def test_an_export_without_types_has_only_a_header(self):
        pinned_and_evicted()

        (line,) = export_lines(Conversation.objects.all(), types=[])

        assert "be brief" not in "".join(operations.export(Conversation.objects.all(), types=[MessageType.USER]))
        assert json.loads(line)["messages"] == 0

    def test_an_imported_conversation_can_be_continued(self):
        a_memory().add(U1, U2)
        import_lines(exported_and_erased())

        a_memory().add(U3, U1)

        assert a_memory().messages() == [U2, U3, U1]
        assert [row.sequence for row in Conversation.objects.get().history()] == [1, 2, 3, 4]

    def test_several_conversations_can_be_imported_for_another_user(self):
        for memory_id in "abc":
            a_memory(memory_id).add(U1)
        lines = list(export_lines(Conversation.objects.order_by("-memory_id")))
        Conversation.objects.all().delete()
        ann = User.objects.create_user("ann")

        made = []
        count = import_lines(
            ["\n", *(line.encode() for line in lines), ""], ann, each=lambda conversation, _: made.append(conversation)
        )

        assert count == 3
        assert [conversation.memory_id for conversation in made] == ["a", "b", "c"]

        assert sorted(Conversation.objects.owned_by(ann).values_list("memory_id", flat=True)) == ["a", "b", "c"]
        assert Message.objects.count() == 3

    def test_there_is_one_line_per_conversation_and_one_per_message(self):
        a_memory().add(U1)

        head, line = exported()

        assert json.loads(head)["record"] == "conversation"
        assert json.loads(line)["message"] == {"type": "USER", "contents": [{"type": "TEXT", "text": "one"}]}
        assert head.endswith("\n")
        assert line.count("\n") == 1

    def test_untrusted_counts_are_recounted(self):
        memory = TokenWindowChatMemory(
            max_tokens=30, token_count_estimator=ADDITIVE_WORDS, id="a", store=DjangoChatMemoryStore()
        )
        memory.add(U1)
        lines = exported_and_erased()
        lying = [lines[0], changed(lines[1], token_count=0)]

        import_lines(lying, trusted=False)
        memory.add(U2)

        assert list(Message.objects.values_list("token_count", flat=True).order_by("sequence")) == [
            ADDITIVE_WORDS.estimate_token_count_in_message(message) for message in (U1, U2)
        ]


class TestInvalidLines:
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
            (1, {"total_messages": 3}, "total_messages is 3, but there are 4"),
            (1, {"total_messages": 5}, "total_messages is 5, but next_sequence is 5"),
            (1, {"pinned_sequence": 2}, "pinned_sequence is 2, which is not a system message in the memory"),
            (1, {"created_at": "0001-01-01T00:00:00Z"}, "years 1970 and 9998"),
            (1, {"created_at": "1969-12-31T23:59:59Z"}, "years 1970 and 9998"),
            (1, {"updated_at": "9999-01-01T00:00:00Z"}, "years 1970 and 9998"),
            (1, {"created_at": "9999-12-31T23:59:59-12:00"}, "years 1970 and 9998"),
            (1, {"created_at": "2026-11-21T00:00:00"}, "timezone"),
            (1, {"record": "user"}, "Invalid value 'user'"),
            (3, {"sequence": 1}, "must be above 1, the one before it"),
            (3, {"sequence": 5}, "below 5, the next of its conversation"),
            (3, {"sequence": 0}, "Expected `int` >= 1"),
            (3, {"token_count": -1}, "Expected `int` >= 0"),
            (3, {"client_message_id": ""}, "client_message_id must have 1 to 64 characters, not 0"),
            (3, {"client_message_id": "7" * 65}, "client_message_id must have 1 to 64 characters, not 65"),
            (3, {"client_message_id": "\0"}, "NUL"),
            (3, {"token_count": 1, "counted_by": "a\0"}, "counted_by holds a NUL"),
            (3, {"client_message_id": 7}, "Expected `str | null`"),
            (3, {"created_at": "9999-12-31T23:59:59Z"}, "years 1970 and 9998"),
            (1, {"messages": 5}, "5 messages should follow, but 4 do"),
            (3, {"metadata": {"\0": 1}}, "NUL"),
            (3, {"message": {"type": "USER"}}, r"\$.message.contents is missing"),
            (3, {"message": {"type": "USER", "contents": [{"type": "TEXT", "text": "\0"}]}}, "NUL"),
            (3, {"message": None}, r"\$.message"),
        ],
    )
    def test_invalid_lines_are_reported_and_store_nothing(
        self, lines: list[str], number: int, changes: dict, reason: str
    ):
        lines[number - 1] = changed(lines[number - 1], **changes)

        with pytest.raises(JsonLinesError, match=rf"^Line {number}: .*({reason})") as refused:
            import_lines(lines)

        assert refused.value.line == number
        assert PRIVATE not in str(refused.value)
        assert not Conversation.objects.exists()

    @pytest.mark.parametrize(
        "line", ["{", "[]", "null", b"\xff\xfe", "[" * 100_000, '{"record": "message"}', '{"record": 1}', "\ud800"]
    )
    def test_lines_that_are_not_records_are_rejected(self, lines: list[str], line: str | bytes):
        with pytest.raises(JsonLinesError, match=r"^Line 3: "):
            import_lines([*lines[:2], line])

        assert not Conversation.objects.exists()

    def test_overlong_lines_are_rejected(self, lines: list[str], settings):
        settings.CHATMEMORY = {"MAX_MESSAGE_BYTES": 20}

        with pytest.raises(JsonLinesError, match="Line 1: it has 65677 characters; at most 65676 are allowed"):
            import_lines([" " * 65_677])
        with pytest.raises(JsonLinesError, match=r"Line 2: SystemMessage has 25 bytes"):
            import_lines(lines)

    def test_lines_that_begin_with_a_message_are_rejected(self, lines: list[str]):
        with pytest.raises(JsonLinesError, match="Line 1: a message precedes the first conversation"):
            import_lines(lines[1:])

    def test_an_invalid_later_conversation_keeps_the_earlier_one(self, lines: list[str]):
        second = [changed(lines[0], memory_id="b"), *lines[1:-1], "{"]

        with pytest.raises(JsonLinesError, match="Line 10: "):
            import_lines([*lines, *second])

        assert Conversation.objects.get().memory_id == "a"
        assert Message.objects.count() == 4

    def test_an_existing_conversation_is_rejected(self, lines: list[str]):
        a_memory().add(U1)

        with pytest.raises(ConversationExistsError, match="Line 1: the conversation 'a' exists already"):
            import_lines(lines)

        assert Message.objects.count() == 1

    def test_a_client_id_used_by_two_messages_is_rejected(self, lines: list[str], monkeypatch: pytest.MonkeyPatch):
        twice = [changed(lines[number], client_message_id="7") for number in (1, 3)]
        wrong = [lines[0], twice[0], lines[2], twice[1], lines[4]]

        for rows in (1, 500):  # in one INSERT, and in two
            monkeypatch.setattr(importing, "MAX_ROWS", rows)
            with pytest.raises(JsonLinesError, match="Line 4: client_message_id is already used"):
                import_lines(wrong)

        assert not Conversation.objects.exists()

    def test_a_pinned_message_that_was_replaced_is_rejected(self, lines: list[str]):
        with pytest.raises(
            JsonLinesError, match="Line 1: pinned_sequence is 1, which is not a system message in the mem"
        ):
            import_lines([lines[0], changed(lines[1], superseded=True), *lines[2:]])

    def test_too_few_history_messages_are_rejected(self, lines: list[str]):
        wrong = [lines[0], changed(lines[1], in_history=False), *lines[2:]]

        with pytest.raises(JsonLinesError, match="total_messages is 4, but only 3 of the 4"):
            import_lines(wrong)

    def test_more_tokens_than_a_memory_can_hold_are_rejected(self, lines: list[str]):
        many = {"token_count": 2_000_000_000, "counted_by": "words"}

        with pytest.raises(
            JsonLinesError, match="Line 1: the memory has 6000000000 tokens; at most 2147483647 are allowed"
        ):
            import_lines([lines[0], *(changed(line, **many) for line in lines[1:])])

    @pytest.mark.parametrize("missing", [1, 2, 4])
    def test_truncated_lines_are_rejected(self, lines: list[str], missing: int):
        with pytest.raises(JsonLinesError, match=f"Line 1: 4 messages should follow, but {4 - missing} do"):
            import_lines(lines[:-missing])

        assert not Conversation.objects.exists()

    def test_an_invalid_line_directly_after_a_conversation_keeps_it(self, lines: list[str]):
        with pytest.raises(JsonLinesError, match="Line 6: "):
            import_lines([*lines, lines[0][:20]])

        assert Conversation.objects.get().memory_id == "a"

    def test_existing_conversations_can_be_skipped(self, lines: list[str]):
        a_memory().add(U1)
        made = []

        count = import_lines(
            [*lines, changed(lines[0], memory_id="b"), *lines[1:]],
            skip_existing=True,
            each=lambda conversation, _: made.append(conversation),
        )

        assert count == 1
        assert [conversation.memory_id for conversation in made] == ["b"]
        assert Message.objects.count() == 5

    def test_the_number_of_messages_is_optional(self, lines: list[str]):
        head = {name: value for name, value in json.loads(lines[0]).items() if name != "messages"}

        assert import_lines([json.dumps(head), *lines[1:]]) == 1


class TestLimits:
    """Limits on lines from untrusted sources."""

    @pytest.fixture
    def lines(self) -> list[str]:
        a_memory("a").add(NewMessage(UserMessage("Hi"), {"k": "v"}), AiMessage("Hello, you there"))
        a_memory("b").add(U1)
        picture = ImageContent(Image(base64_data="A" * 100, mime_type="image/png"))
        a_memory("b").add(UserMessage([picture]))
        lines = list(export_lines(Conversation.objects.all()))
        Conversation.objects.all().delete()
        return lines

    @pytest.mark.parametrize(
        ("enough", "too_few", "reason"),
        [
            ({"max_conversations": 2}, {"max_conversations": 1}, "Line 4: there are more than 1 conversations"),
            ({"max_messages": 4}, {"max_messages": 3}, "Line 6: there are more than 3 messages"),
            (
                {"max_memory_messages": 2},
                {"max_memory_messages": 1},
                "Line 1: the memory has 2 messages; at most 1 are allowed",
            ),
            (
                {"max_text_length": 27},  # datetime
                {"max_text_length": 15},
                r"Line 1: \$.created_at: It has \d+ characters; at most 15 are allowed",
            ),
            ({"max_depth": 5}, {"max_depth": 4}, r"Line 6: \$.message.contents\[0\].image: It is nested too deeply"),
            (
                {"max_metadata_bytes": 9},
                {"max_metadata_bytes": 8},
                "Line 2: metadata has 9 bytes; at most 8 are allowed",
            ),
        ],
    )
    def test_limits_are_enforced_before_anything_is_stored(self, lines, enough, too_few, reason):
        assert check_lines(lines, ImportLimits(**enough)) == ["a", "b"]
        for run in (check_lines, lambda lines, limits: import_lines(lines, limits=limits)):
            with pytest.raises(JsonLinesError, match=reason):
                run(lines, ImportLimits(**too_few))

        assert not Conversation.objects.filter(memory_id="b").exists()

    def test_limits_apply_to_texts_and_keys_but_not_to_files(self, lines):
        limits = ImportLimits(max_text_length=60)

        assert check_lines(lines, limits) == ["a", "b"]
        for metadata in ({"note": "x" * 61}, {"x" * 61: 1}, {"deep": [{"note": "x" * 61}]}):
            with pytest.raises(
                JsonLinesError, match=r"^Line 1: \$.metadata.*: It has 61 characters; at most 60 are allowed\.$"
            ):
                check_lines([changed(lines[0], metadata=metadata), *lines[1:]], limits)

    def test_limits_apply_to_metadata_of_a_conversation(self, lines):
        with pytest.raises(JsonLinesError, match="Line 1: metadata has 12 bytes; at most 10 are allowed"):
            check_lines([changed(lines[0], metadata={"k": "long"}), *lines[1:]], ImportLimits(max_metadata_bytes=10))

    def test_a_line_with_too_many_values_for_its_size_is_rejected(self, lines):
        lines[1] = changed(lines[1], metadata={"a": [[]] * 20_000})

        with pytest.raises(JsonLinesError, match=r"^Line 2: It has more than \d+ values in \d+ bytes"):
            check_lines(lines, ImportLimits())
        assert check_lines(lines) == ["a", "b"]  # without limits, a file is trusted

    @pytest.mark.parametrize(
        "memory_id", ["a", "support-4711", UUID.upper(), f"{{{UUID}}}", f"urn:uuid:{UUID}", f"{UUID} "]
    )
    def test_guessable_memory_ids_are_rejected(self, lines, memory_id, django_assert_num_queries):
        lines[0] = changed(lines[0], memory_id=memory_id)

        with django_assert_num_queries(0), pytest.raises(JsonLinesError, match=r"Line 1: .* but must be a UUID"):
            check_lines(lines, ImportLimits(uuids_only=True))
        assert check_lines([changed(lines[0], memory_id=UUID), *lines[1:3]], ImportLimits(uuids_only=True)) == [UUID]
        assert check_lines(lines, ImportLimits(uuids_only=True), rename=True) == [memory_id, "b"]


class TestCheckLines:
    def test_it_reports_the_same_as_an_import_without_a_database(self, django_assert_num_queries):
        for memory_id in "ab":
            a_memory(memory_id).add(U1, U2)
        lines = list(export_lines(Conversation.objects.all()))

        with django_assert_num_queries(0):
            assert check_lines(iter(lines)) == ["a", "b"]
            assert check_lines([]) == []
            for wrong in (lines[:-1], lines[1:], [*lines, "{"], [*lines[:4], changed(lines[4], sequence=2), lines[5]]):
                with pytest.raises(JsonLinesError):
                    check_lines(wrong)

    def test_it_finds_a_memory_id_used_by_two_conversations(self):
        a_memory().add(U1)
        lines = exported()

        with pytest.raises(JsonLinesError, match="Line 3: 'a' is the memory id of another conversation before it"):
            check_lines([*lines, *lines])
        assert check_lines([*lines, *lines], rename=True) == ["a", "a"]

    def test_it_finds_a_client_id_used_by_two_messages(self):
        a_memory().add(NewMessage(U1, client_message_id="1"), NewMessage(U2, client_message_id="2"))
        lines = exported()

        with pytest.raises(JsonLinesError, match="Line 3: client_message_id is already used"):
            check_lines([*lines[:2], changed(lines[2], client_message_id="1")])


class TestRenaming:
    def test_each_conversation_gets_a_new_id_and_the_old_one_is_reported(self):
        a_memory().add(U1, U2)
        lines = exported()
        made = {}

        count = import_lines([*lines, *lines], rename=True, each=lambda new, old: made.update({new.memory_id: old}))

        assert count == 2
        assert set(made.values()) == {"a"}
        assert {each.memory_id for each in Conversation.objects.all()} == {"a", *made}
        for memory_id in made:
            assert str(uuid.UUID(memory_id)) == memory_id
            assert a_memory(memory_id).messages() == [U1, U2]

    def test_an_invalid_id_can_be_renamed(self):
        a_memory().add(U1)
        lines = exported()

        for memory_id in ("", "x" * 256, "\0"):
            assert import_lines([changed(lines[0], memory_id=memory_id), *lines[1:]], rename=True) == 1


class TestConcurrentImports:
    @pytest.mark.parametrize("rows", [1, 500])
    def test_no_transaction_is_open_while_lines_are_read(self, monkeypatch, rows):
        monkeypatch.setattr(importing, "MAX_ROWS", rows)
        for memory_id in "ab":
            a_memory(memory_id).add(U1, U2)
        lines = list(export_lines(Conversation.objects.all()))
        Conversation.objects.all().delete()
        depth = len(connection.savepoint_ids)
        open_transactions = []

        def slow_lines() -> Iterator[str]:
            for line in lines:
                open_transactions.append(len(connection.savepoint_ids) - depth)
                yield line

        assert import_lines(slow_lines()) == 2
        assert open_transactions == [0] * 6

    @pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite in memory is one connection")
    @pytest.mark.django_db(transaction=True)
    def test_imports_of_the_same_ids_in_different_order_do_not_deadlock(self):
        names = [f"talk-{number}" for number in range(12)]
        for name in names:
            a_memory(name).add(U1, U2)
        by_name = {name: exported(name) for name in names}
        Conversation.objects.all().delete()
        counts: list[int] = []
        barrier = threading.Barrier(4)

        def import_in(order: list[str]) -> None:
            barrier.wait()
            lines = [line for name in order for line in by_name[name]]
            counts.append(import_lines(lines, skip_existing=True))

        threads = [
            Connected(partial(import_in, order)) for order in (names, names[::-1], names[6:] + names[:6], names[::-1])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.end()

        assert sum(counts) == len(names)
        assert everything_is_whole() == dict.fromkeys(everything_is_whole(), 2)

    @pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite in memory is one connection")
    @pytest.mark.django_db(transaction=True)
    def test_an_import_aborted_by_the_database_is_retried(self, monkeypatch):
        a_memory().add(U1, U2)
        lines = exported_and_erased()
        save, calls = Conversation.save, []

        def save_at_the_second_try(self, **options):
            save(self, **options)
            calls.append(self)
            if len(calls) == 1:
                raise OperationalError(1213, "Deadlock found when trying to get lock")

        monkeypatch.setattr(Conversation, "save", save_at_the_second_try)

        assert import_lines(lines) == 1
        assert len(calls) == 2
        assert a_memory().messages() == [U1, U2]

    def test_an_existing_id_is_reported_the_same_for_any_owner(self):
        ann, bob = (User.objects.create_user(name) for name in ("ann", "bob"))
        a_memory().add(U1)
        lines = exported()
        errors = set()

        for owner in (ann, bob, None):
            Conversation.objects.update(owner=owner)
            with pytest.raises(ConversationExistsError) as refused:
                import_lines(lines, ann)
            errors.add(str(refused.value))

        assert errors == {"Line 1: the conversation 'a' exists already."}


class TestIteration:
    def test_an_import_runs_without_iteration(self):
        a_memory().add(U1)
        lines = exported_and_erased()

        import_lines(lines)

        assert a_memory().messages() == [U1]

    def test_nothing_is_locked_between_two_lines_of_an_export(self):
        for memory_id in "ab":
            a_memory(memory_id).add(U1, U2)

        lines = export_lines(Conversation.objects.all())
        next(lines)

        assert not connection.needs_rollback
        assert a_memory("a").add(U3) == [3]
        assert "".join(lines).count("\n") == 5


@pytest.mark.django_db(transaction=True)
class TestAnIdThatIsTaken:
    @pytest.fixture
    def erasures(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Let another process erase each conversation that refused the import, before the import looks for it."""
        erased: list[str] = []

        def look(memory_id: str, using: str) -> bool:
            in_another_connection(Conversation.objects.filter(memory_id=memory_id).delete)
            erased.append(memory_id)
            return is_there(memory_id, using)

        is_there = one_by_one.is_there
        monkeypatch.setattr(one_by_one, "is_there", look)
        return erased

    @pytest.mark.parametrize("skip_existing", [False, True])
    def test_and_free_again_is_imported(self, erasures: list[str], skip_existing: bool):
        a_memory().add(U1, U2)
        lines = exported()
        a_memory().add(U3)

        assert import_lines(lines, skip_existing=skip_existing) == 1

        assert erasures == ["a"]
        assert a_memory().messages() == [U1, U2]

    def test_another_error_of_the_database_is_raised_at_once(self, erasures: list[str]):
        owner = User.objects.create_user("ann")
        a_memory().add(U1)
        lines = exported_and_erased()
        User.objects.filter(pk=owner.pk).delete()

        with pytest.raises(IntegrityError):
            import_lines(lines, owner)

        assert erasures == ["a"]


class TestConcurrentWriters:
    """With a concurrent writer between any two statements, an export shows a consistent state of the memory."""

    STATEMENTS = range(1, 20)

    @pytest.fixture(autouse=True)
    def in_small_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(one_by_one, "PAGE", 2)

    @pytest.mark.slow
    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("keep_history", [True, False])
    def test_concurrent_adds_replacements_and_evictions(self, keep_history: bool):
        store = DjangoChatMemoryStore(keep_history=keep_history)
        memory = MessageWindowChatMemory(max_messages=3, id="a", store=store)
        for after in self.STATEMENTS:
            Conversation.objects.all().delete()
            memory.add(SystemMessage("be brief"), U1, U2, U3)
            before = everything("a")

            with another_writer(lambda: memory.add(SystemMessage("be long"), U1), after):
                lines = exported()

            later = everything("a")
            Conversation.objects.all().delete()
            import_lines(lines)
            assert everything("a") in (before, later)

    @pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite in memory is one connection")
    @pytest.mark.django_db(transaction=True)
    def test_continuous_writes(self):
        store = DjangoChatMemoryStore(keep_history=False)
        memory = MessageWindowChatMemory(max_messages=3, id="a", store=store)
        memory.add(U1, U2, U3)
        is_done = threading.Event()

        def keep_writing() -> None:
            while not is_done.is_set():
                memory.add(U1)
            connections.close_all()

        writer = threading.Thread(target=keep_writing)
        writer.start()
        try:
            for _ in range(20):
                head, *messages = map(json.loads, exported())
                end = head["next_sequence"]
                assert [each["sequence"] for each in messages] == [end - 3, end - 2, end - 1]
        finally:
            is_done.set()
            writer.join()

    @pytest.mark.django_db(transaction=True)
    def test_a_concurrent_erasure(self):
        for after in self.STATEMENTS:
            Conversation.objects.all().delete()
            for memory_id in "ab":
                a_memory(memory_id).add(U1, U2, U3)

            with another_writer(lambda: Conversation.objects.filter(memory_id="b").delete(), after):
                heads = [json.loads(line) for line in export_lines(Conversation.objects.all()) if '"conver' in line]

            assert [(head["memory_id"], head["messages"]) for head in heads] in ([("a", 3), ("b", 3)], [("a", 3)])

    @pytest.mark.slow
    @pytest.mark.django_db(transaction=True)
    def test_a_concurrent_erasure_and_new_start(self):
        def begin_again() -> None:
            Conversation.objects.filter(memory_id="a").delete()
            a_memory().add(U3)

        for after in range(1, 40):
            Conversation.objects.all().delete()
            for memory_id in "abc":
                a_memory(memory_id).add(U1, U2, U3)

            with another_writer(begin_again, after):
                heads = [json.loads(line) for line in export_lines(Conversation.objects.all()) if '"conver' in line]

            assert [(head["memory_id"], head["messages"]) for head in heads] in (
                [("a", 3), ("b", 3), ("c", 3)],
                [("b", 3), ("c", 3)],
                [("b", 3), ("c", 3), ("a", 1)],
            )


class TestDatetimes:
    @pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "Pacific/Kiritimati", "America/Los_Angeles"])
    @pytest.mark.parametrize("use_tz", [True, False])
    def test_datetimes_are_unchanged_without_time_zones(self, settings, name: str, use_tz: bool):
        settings.TIME_ZONE = name
        settings.USE_TZ = use_tz
        a_memory().add(U1, U2)
        before = everything("a")

        lines = exported_and_erased()
        import_lines(lines)

        assert everything("a") == before
        assert all(json.loads(line)["created_at"].endswith("Z") for line in lines)

    @pytest.mark.parametrize("moment", ["1970-01-01T00:00:00Z", "9998-12-31T23:59:59.999999Z"])
    @pytest.mark.parametrize("name", ["UTC", "Pacific/Kiritimati", "America/Los_Angeles"])
    def test_extreme_datetimes_can_be_shown_in_every_time_zone(self, settings, name: str, moment: str, admin_client):
        settings.TIME_ZONE = name
        a_memory().add(U1)
        lines = [changed(line, created_at=moment) for line in exported_and_erased()]
        import_lines([changed(lines[0], updated_at=moment), *lines[1:]])

        for page in ("", f"{Conversation.objects.get().pk}/change/", "?until=9998-12-31"):
            assert admin_client.get(f"/admin/chatmemory/conversation/{page}").status_code == 200
        assert json.loads(exported()[0])["updated_at"] == moment


class TestLargeConversations:
    @pytest.mark.slow
    def test_large_conversations_are_never_loaded_as_a_whole(self):
        count = 2_500
        memory = a_memory()
        memory.add(*[UserMessage(f"{number} {'x' * 1000}") for number in range(count)])

        lines, exporting = peak_of(lambda: sum(1 for _ in export_lines(Conversation.objects.all())))
        written = exported_and_erased()
        _, importing = peak_of(lambda: import_lines(iter(written)))

        assert lines == count + 1
        assert exporting < 7_000_000
        assert importing < 7_000_000
        assert Message.objects.count() == count

    def test_large_messages_are_read_in_small_batches(self):
        memory = a_memory()
        for _ in range(30):
            memory.add(UserMessage("é" * 500_000))

        lines, peak = peak_of(lambda: sum(1 for _ in export_lines(Conversation.objects.all())))

        assert lines == 31
        assert peak < 12_000_000

    @pytest.mark.slow
    def test_large_conversations_take_few_statements(self, django_assert_max_num_queries):
        a_memory().add(*[U1] * 3_000)

        with django_assert_max_num_queries(3 * 3 + 5):
            written = exported()
        Conversation.objects.all().delete()
        with django_assert_max_num_queries(3_000 // MAX_ROWS + 10):  # SQLite once accepted only 999 parameters at once.
            import_lines(written)

    @pytest.mark.parametrize("character", mostly_slow(["'", "😀", "\x1a"]), ids=ascii)
    def test_messages_of_any_characters_fit_into_one_packet(self, character: str):
        """By default, MariaDB accepts 16 MiB per packet; escaped text may take twice the space."""
        memory = a_memory(limit=100)
        text = character * (2**20 // len(json.dumps(character)))
        for _ in range(9):
            metadata = {"quoted": text[: 2**18], "escaped": "é" * 2**16}
            memory.add(NewMessage(UserMessage(text, name="someone"), metadata), NewMessage(AiMessage(text), metadata))
        before = everything("a")

        import_lines(exported_and_erased())

        assert everything("a") == before


class TestCorruptedRows:
    @pytest.mark.parametrize(
        ("columns", "error"),
        [
            ({"type": "CUSTOM"}, "KeyError"),
            ({"type": "ROBOT"}, "KeyError"),
            ({"type": "SYSTEM", "text": ""}, "ValueError"),
            ({"payload": "{"}, "ValueError"),
            ({"payload": f'{{"type":"USER","contents":"{PRIVATE}"}}'}, "ValueError"),
        ],
    )
    def test_a_corrupted_message_is_reported_and_not_exported(self, columns: dict, error: str):
        a_memory().add(UserMessage(PRIVATE), U2)
        row = Message.objects.get(sequence=2)
        for name, value in columns.items():
            setattr(row, name, value)
        row.save()

        with pytest.raises(ValueError, match=f"Cannot export message 2 of conversation 'a': {error}") as errors:
            exported()

        assert PRIVATE not in str(errors.value)

    @pytest.mark.skipif(connection.vendor != "sqlite", reason="no other database accepts such text")
    def test_a_corrupted_conversation_is_reported(self):
        Conversation.objects.create(memory_id="a", metadata={"half": "\ud800"})

        with pytest.raises(ValueError, match="Cannot export conversation 'a': UnicodeEncodeError"):
            exported()

    def test_a_payload_of_several_lines_is_one_line(self):
        a_memory().add(U1)
        Message.objects.update(payload='{"type":"USER",\r\n"contents":[{"type":"TEXT","text":"one"}]}')

        lines = exported_and_erased()

        assert [line.count("\n") for line in lines] == [1, 1]
        import_lines(lines)
        assert a_memory().messages() == [U1]


def peak_of(work: Callable[[], int]) -> tuple[int, int]:
    """Return the result of *work*, and the peak number of bytes in use."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        return work(), tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
