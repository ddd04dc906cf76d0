"""pydantic-ai's conversation store in the site's own tables: an agent's messages come back unchanged."""

import asyncio
import datetime
import decimal
from dataclasses import replace
from typing import ClassVar

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

import chatmemory_django.models.messages
from chatmemory_django.contrib.adapters.histories import History
from chatmemory_django.formats.openai_items import OPENAI_ITEMS
from chatmemory_django.messages import (
    AiMessage,
    CustomMessage,
    MessageType,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations.jsonl import export_lines, import_lines
from chatmemory_django.provider import get_chat_memory
from tests.faces.contrib.adapters.contract import StoreContract, owner, stored
from tests.faces.contrib.adapters.running import in_threads, run

pytest.importorskip("pydantic_ai", reason="pydantic-ai is needed: pip install pydantic-ai-slim")

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation as Carried
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    RetryInfo,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RequestUsage, RunUsage

from chatmemory_django.contrib.adapters.pydantic_ai import DjangoConversationStore, from_pydantic_ai, to_pydantic_ai
from chatmemory_django.contrib.adapters.records.models import Record
from tests.strategies import IN_DATABASE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("a_small_memory")]

AT = datetime.datetime(2026, 11, 22, 18, 0, 0, 123456, tzinfo=datetime.UTC)
HI = ModelRequest(parts=[SystemPromptPart("Be brief.", timestamp=AT), UserPromptPart("Hi", timestamp=AT)], run_id="r")
CALL = ModelResponse(
    parts=[
        ThinkingPart("I look.", signature="s"),
        ToolCallPart("look", {"n": 1}, "c1"),
        ToolCallPart("see", "{", "c2"),
    ],
    usage=RequestUsage(input_tokens=7, output_tokens=3),
    model_name="m",
    timestamp=AT,
)
FOUND = ModelRequest(
    parts=[
        ToolReturnPart("look", {"a": [1, 1.0, True, None]}, "c1", timestamp=AT),
        ToolReturnPart("see", "nothing", "c2", outcome="failed", timestamp=AT),
        UserPromptPart(["And this?", BinaryContent(b"\xfb\xff", media_type="application/pdf")], timestamp=AT),
    ],
    instructions="Be quick.",
)
HELLO = ModelResponse(
    parts=[TextPart("Hello")], model_name="m", timestamp=AT, metadata={"half": "\ud800\0", "n": 2**60}
)
RETRY = ModelRequest(parts=[RetryFeedbackPart("Once more.", retry=RetryInfo("no_output"), timestamp=AT)])
NOTHING = ModelResponse(parts=[], timestamp=AT)
ALL = [HI, CALL, FOUND, HELLO, RETRY, NOTHING]


@pytest.fixture
def store():
    return DjangoConversationStore()


def user_request(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text, timestamp=AT)])


def talk(store: ConversationStore, *messages, conversation_id: str = "c", scope: str | None = None) -> Carried:
    """Continue from what is stored, or begin, and save it."""

    async def go() -> Carried:
        carried = await store.load(conversation_id, scope=scope) or Carried(conversation_id=conversation_id)
        carried.messages.extend(messages)
        await store.save(carried, scope=scope)
        return carried

    return run(go())


def loaded(store: ConversationStore, conversation_id: str = "c", **options) -> list | None:
    carried = run(store.load(conversation_id, **options))
    return None if carried is None else carried.messages


class TestContract(StoreContract):
    EVERY = ALL
    SHOWN: ClassVar = [["SystemPromptPart"], ["UserPromptPart"], ["TextPart", "ToolCallPart"], ["ToolReturnPart"]]
    BASE = ConversationStore
    WRITES: ClassVar = {"write_record": 3, "delete_record": 0}
    REFUSAL = ConversationConflict

    def store(self, memory_id="c", user=None):
        return DjangoConversationStore()

    async def add(self, *messages, to="c", user=None):
        scope = None if user is None else str(user.pk)
        carried = await self.store().load(to, scope=scope) or Carried(conversation_id=to)
        carried.messages.extend(messages)
        await self.store().save(carried, scope=scope)

    async def read(self, user=None):
        carried = await self.store().load("c", scope=None if user is None else str(user.pk))
        return [] if carried is None else carried.messages

    async def clear(self, user=None):
        record = await self.store().read_record("c")
        scope = None if user is None else str(user.pk)
        await self.store().write_record(
            replace(record, head_id=None, revision="cleared", scope=scope), expected_revision=record.revision
        )

    def question(self, text):
        return user_request(text)

    def write(self, kind):
        record = run(self.store().read_record("c"))
        if kind == "delete_record":
            return self.store().delete_record("c", expected_revision=record.revision)
        entry = ConversationEntry(parent_id=record.head_id, message=HELLO)
        after = replace(record, head_id=entry.id, revision="after")
        return self.store().write_record(after, new_entries=[entry], expected_revision=record.revision)

    def exactly(self, messages):
        return repr(ModelMessagesTypeAdapter.dump_python(messages, mode="json"))

    def shape(self, messages):
        return [[type(part).__name__ for part in message.parts] for message in messages]


class TestMessages:
    def test_a_response_is_a_message_and_a_request_one_or_more(self, store):
        talk(store, HI, CALL, FOUND, HELLO)

        requested = [ToolExecutionRequest("c1", "look", '{"n": 1}'), ToolExecutionRequest("c2", "see", "{")]
        system, user, call, *results, also, hello = stored()
        assert (system, user) == (SystemMessage("Be brief."), UserMessage("Hi"))
        assert call == AiMessage(None, "I look.", requested)
        assert results == [
            ToolExecutionResultMessage("c1", "look", '{"a":[1,1.0,true,null]}', is_error=False),
            ToolExecutionResultMessage("c2", "see", "nothing", is_error=True),
        ]
        assert [type(content).__name__ for content in also.contents] == ["TextContent", "PdfFileContent"]
        assert hello == AiMessage("Hello")
        assert [row.sequence for row in Message.objects.look_through("nothing")] == [5]

    def test_messages_without_a_native_form_are_searched_and_counted_too(self, store):
        talk(store, RETRY)

        assert isinstance(stored()[0], CustomMessage)
        assert [row.sequence for row in Message.objects.look_through("once more")] == [1]

    def test_model_and_usage_are_stored_with_an_answer(self, store):
        talk(store, HI, CALL)

        metadata = [row.metadata for row in Conversation.objects.get().history()]
        assert metadata == [None, None, {"model": "m", "usage": {"input": 7, "output": 3}}]

    def test_another_framework_reads_and_continues_the_same_conversation(self, store):
        talk(store, HI, CALL)
        items = History("c", OPENAI_ITEMS)

        assert [item.get("role", item.get("name")) for item in items.read()] == ["system", "user", "look", "see"]
        items.add([{"role": "user", "content": [{"type": "input_text", "text": "And this?"}]}])

        assert loaded(store)[:2] == [HI, CALL]
        assert loaded(store)[2].parts[0].content == "And this?"

    def test_after_a_partial_removal_the_rest_of_a_request_stays(self, store):
        talk(store, HI, CALL, FOUND, HELLO)

        get_chat_memory("c").remove(1)

        [user, *others] = loaded(store)
        assert [part.content for part in user.parts] == ["Hi"]
        assert others == [CALL, FOUND, HELLO]

    def test_without_history_the_memory_is_returned(self, store, settings):
        settings.CHATMEMORY["KEEP_HISTORY"] = False
        talk(store, user_request("1"), HELLO, user_request("2"), HELLO)
        talk(store, user_request("3"))

        assert loaded(store) == [user_request("2"), HELLO, user_request("3")]

    def test_they_can_be_large_and_many(self, store):
        many = [user_request("😀" * 250_000), *(user_request(str(number)) for number in range(1_200))]

        talk(store, *many)

        assert loaded(store) == many


class TestHistory:
    def test_the_last_ones_come_in_order_with_their_parents(self, store):
        talk(store, *ALL * 5)
        entries = run(store.load_entries("c"))

        assert [entry.parent_id for entry in entries] == [None, *(entry.id for entry in entries[:-1])]
        for limit in (0, 1, 2, 7, 29, 30, 31, 500):
            assert run(store.load_entries("c", limit=limit)) == entries[len(entries) - min(limit, len(entries)) :]

    def test_it_takes_one_statement_at_any_length(self, store, django_assert_num_queries):
        talk(store, *ALL * 20)

        with django_assert_num_queries(1):
            head = store._find_record("c").head_id
        for limit in (None, 10):
            with django_assert_num_queries(1):
                store._find_history(head, limit)
            with django_assert_num_queries(2):  # its position has to be looked up
                store._find_history(str(head), limit)

    def test_a_save_takes_as_many_statements_at_any_length(self, store):
        counts = []
        for length in (1, 40):
            carried = talk(store, *ALL * length, conversation_id=f"c{length}")
            record = run(store.read_record(carried.conversation_id))
            entry = ConversationEntry(parent_id=record.head_id, message=HI)
            after = replace(record, head_id=entry.id, revision="after")
            with CaptureQueriesContext(connection) as queries:
                store._save(after, [entry], record.revision)
            counts.append(len(queries))

        assert counts[0] == counts[1] < 20

    @pytest.mark.parametrize("parts", [1, 2, 100])
    def test_a_branch_is_read_across_any_number_of_branches(self, store, monkeypatch, parts):
        monkeypatch.setattr(chatmemory_django.models.messages, "MAX_PARTS", parts)
        kept = []
        for number in range(5):
            carried = talk(store, user_request(f"{number} kept"), user_request(f"{number} left"), HELLO)
            kept.append(carried.messages[-3])
            at = len(carried.messages) - 2
            run(store.branch("c", at=at, expected_revision=carried.revision))
        tip = run(store.read_record("c")).branches[-1]
        get_chat_memory("c").rewind(1)

        line = [*kept, user_request("4 left"), HELLO]
        assert [entry.message for entry in run(store.read_history(tip))] == line
        for limit in (1, 3, 6, 50):
            assert [entry.message for entry in run(store.read_history(tip, limit=limit))] == line[-limit:]

    def test_an_entry_is_found_by_its_id_alone(self, store):
        get_chat_memory("c").add(UserMessage("Hi"))
        entries = [*talk_entries(store, HI, CALL)]

        first = run(store.load_entries("c"))[0]
        assert [run(store.read_entry(str(entry.id))) for entry in entries] == entries
        assert run(store.read_entry(str(first.id))) == first
        assert entries[0].parent_id == first.id

    @pytest.mark.parametrize("entry_id", ["", "nobody", "message:1:1", "message:0:0", "x" * 500, "\0"])
    def test_an_unknown_one_is_a_lookup_error(self, store, entry_id):
        for read in (store.read_entry, store.read_history):
            with pytest.raises(LookupError):
                run(read(entry_id))

    def test_without_a_head_it_is_empty(self, store):
        assert run(store.read_history(None)) == []


class TestRecords:
    RECORD = ConversationRecord(
        conversation_id="c",
        head_id="e1",
        usage=RunUsage(requests=2, tool_calls=1, input_tokens=3, cost=decimal.Decimal("0.10"), details={"x": 1}),
        deferred_tool_requests=DeferredToolRequests(
            calls=[ToolCallPart("see", "{", "c2")],
            approvals=[ToolCallPart("look", {"a": 1.0, "half": "\ud800\0"}, "c1")],
            metadata={"c1": {"why": [True, 1, None, float("inf")]}},
        ),
        scope="tenant",
        forked_from="other",
        forked_at="e0",
        branches=["e7", "e8"],
        revision="r1",
        updated_at=AT,
    )
    ENTRY = ConversationEntry(id="e1", parent_id=None, message=HI)

    def test_they_come_back_as_saved(self, store):
        run(store.write_record(self.RECORD, new_entries=[self.ENTRY], expected_revision=None))

        assert run(store.read_record("c")) == self.RECORD
        assert run(store.read_entry("e1")) == self.ENTRY

    def test_a_record_can_be_saved_without_messages(self, store):
        empty = ConversationRecord(conversation_id="c", head_id=None, updated_at=AT)
        run(store.write_record(empty, expected_revision=None))

        assert run(store.read_record("c")) == empty
        assert loaded(store) == []

    @pytest.mark.parametrize("expected", [None, "r0"])
    def test_another_revision_is_a_conflict_and_nothing_is_stored(self, store, expected):
        run(store.write_record(self.RECORD, new_entries=[self.ENTRY], expected_revision=None))
        after = replace(self.RECORD, head_id="e2", revision="r2")
        entry = ConversationEntry(id="e2", parent_id="e1", message=CALL)

        with pytest.raises(ConversationConflict):
            run(store.write_record(after, new_entries=[entry], expected_revision=expected))

        assert run(store.read_record("c")) == self.RECORD
        assert Message.objects.count() == 2

    @pytest.mark.parametrize("expected", [None, "r0"])
    def test_a_missing_head_or_parent_is_a_conflict(self, store, expected):
        lost = [ConversationEntry(id="e1", parent_id=parent, message=HI) for parent in ("e0", "\0", "message:1:1")]
        for entries in ([], *([each] for each in lost)):
            with pytest.raises(ConversationConflict):
                run(store.write_record(self.RECORD, new_entries=entries, expected_revision=expected))

        assert not Conversation.objects.exists()

    def test_a_new_conversation_cannot_be_saved_as_an_existing_one(self, store):
        with pytest.raises(ConversationConflict):
            run(store.write_record(self.RECORD, new_entries=[self.ENTRY], expected_revision="r1"))
        with pytest.raises(ConversationConflict):
            run(store.delete_record("c", expected_revision="r1"))

        assert not Conversation.objects.exists()

    def test_existing_entries_are_not_stored_again(self, store):
        run(store.write_record(self.RECORD, new_entries=[self.ENTRY], expected_revision=None))
        again = ConversationEntry(id="e2", parent_id="e1", message=CALL)
        after = replace(self.RECORD, head_id="e2", revision="r2")

        run(store.write_record(after, new_entries=[self.ENTRY, again], expected_revision="r1"))

        assert loaded(store) == [HI, CALL]
        assert Message.objects.count() == 3

    def test_entries_can_be_a_tree(self, store):
        tree = [
            self.ENTRY,
            ConversationEntry(id="e2", parent_id="e1", message=CALL),
            ConversationEntry(id="e3", parent_id="e1", message=HELLO),
            ConversationEntry(id="e4", parent_id="e2", message=FOUND),
            ConversationEntry(id="e5", parent_id=None, message=RETRY),
        ]
        run(store.write_record(replace(self.RECORD, head_id="e4"), new_entries=tree, expected_revision=None))

        assert loaded(store) == [HI, CALL, FOUND]
        assert [run(store.read_entry(entry.id)) for entry in tree] == tree
        assert [entry.message for entry in run(store.read_history("e3"))] == [HI, HELLO]
        assert [entry.message for entry in run(store.read_history("e5", limit=5))] == [RETRY]
        run(store.write_record(replace(self.RECORD, head_id="e5", revision="r2"), expected_revision="r1"))
        assert loaded(store) == [RETRY]
        run(store.write_record(replace(self.RECORD, head_id=None, revision="r3"), expected_revision="r2"))
        assert loaded(store) == []

    @pytest.mark.parametrize("use_tz", [True, False])
    def test_the_last_saved_come_first(self, store, settings, use_tz):
        settings.USE_TZ = use_tz
        zone = datetime.timezone(datetime.timedelta(hours=9))
        for number, scope in enumerate(["a", "b", "a", None]):
            saved = (AT - datetime.timedelta(microseconds=number)).astimezone(zone)
            made = ConversationRecord(conversation_id=f"c{number}", head_id=None, scope=scope, updated_at=saved)
            run(store.write_record(made, expected_revision=None))

        def found(**options) -> list[str]:
            return [record.conversation_id for record in run(store.list_conversations(**options))]

        assert found() == ["c0", "c1", "c2", "c3"]
        assert found(limit=3) == ["c0", "c1", "c2"]
        assert found(scope="a") == ["c0", "c2"]
        assert found(scope="a", limit=1) == ["c0"]
        assert found(scope="b") == ["c1"]
        assert found(limit=0) == found(scope="unknown") == []
        assert run(store.read_record("c0")).updated_at == AT

    def test_listing_takes_a_few_statements(self, store, django_assert_num_queries):
        anna = owner("anna")
        for number in range(5):
            talk(store, HI, conversation_id=f"c{number}", scope=str(anna.pk))

        with django_assert_num_queries(2):
            assert len(store._find_records(None, 10)) == 5
        with django_assert_num_queries(4):  # the scope's user, and the user's conversations without a record
            assert len(store._find_records(str(anna.pk), 10)) == 5

    @pytest.mark.parametrize("conversation_id", ["", "x" * 256, "\0", None])
    def test_an_impossible_id_is_not_found(self, store, conversation_id):
        assert run(store.read_record(conversation_id)) is None
        with pytest.raises(ConversationConflict):
            run(store.delete_record(conversation_id, expected_revision="r1"))
        with pytest.raises(UserError, match="cannot be stored"):
            wrong = ConversationRecord(conversation_id=conversation_id, head_id=None)
            run(store.write_record(wrong, expected_revision=None))


class TestInvalidInput:
    @pytest.mark.parametrize(
        ("wrong", "expected"),
        [
            (ConversationEntry(id="x" * 65, parent_id="e1", message=HI), r"new_entries\[1\].id must have 1 to 64"),
            (ConversationEntry(id="", parent_id="e1", message=HI), r"new_entries\[1\].id must have 1 to 64"),
            (ConversationEntry(id=5, parent_id="e1", message=HI), r"new_entries\[1\].id must be a str"),
            (ConversationEntry(id="e2", parent_id="e1", message="Hi"), "messages must be requests and responses"),
            (
                ConversationEntry(id="e2", parent_id="e1", message=ModelResponse(parts=[TextPart(5)])),
                r"invalid: 1\.response\.parts",
            ),
            (
                ConversationEntry(id="e2", parent_id="e1", message=ModelResponse(parts=[], metadata={"x": object()})),
                "serialize",
            ),
            (ConversationEntry(id="e2", parent_id="e1", message=user_request("x" * 30_000_000)), "MAX_MESSAGE_BYTES"),
        ],
    )
    def test_it_is_refused_and_nothing_is_stored(self, store, wrong, expected):
        record = replace(TestRecords.RECORD, head_id="e1")

        with pytest.raises(UserError, match=expected):
            run(store.write_record(record, new_entries=[TestRecords.ENTRY, wrong], expected_revision=None))

        assert not Conversation.objects.exists()

    def test_errors_never_repeat_a_message(self, store):
        private = ModelResponse(parts=[TextPart(["private"])])
        waiting = replace(TestRecords.RECORD, deferred_tool_requests="private")
        for record, message in ((TestRecords.RECORD, private), (waiting, HI)):
            entry = ConversationEntry(id="e1", parent_id=None, message=message)
            with pytest.raises(UserError, match=r"invalid: 0\.") as refusal:
                run(store.write_record(record, new_entries=[entry], expected_revision=None))
            assert "private" not in str(refusal.value)

    @pytest.mark.parametrize("scope", ["x" * 256, "\0", "\ud800"], ids=repr)
    def test_a_scope_that_fits_no_column_is_refused(self, store, scope):
        with pytest.raises(UserError, match="scope must have at most 255 characters"):
            talk(store, HI, scope=scope)

        assert not Conversation.objects.exists()

    def test_the_callers_transaction_stays_usable(self, store):
        talk(store, HI)
        stale = async_to_sync(store.load)("c")
        talk(store, CALL)
        stale.messages.append(HELLO)

        with transaction.atomic():
            with pytest.raises(ConversationConflict):
                async_to_sync(store.save)(stale)
            new = Carried(conversation_id="d", messages=[HELLO])
            async_to_sync(store.save)(new)

        assert loaded(store) == [HI, CALL]
        assert loaded(store, "d") == [HELLO]


class TestSiteChangesTheConversation:
    def test_the_record_follows(self, store):
        carried = talk(store, HI, CALL)
        stored = run(store.read_record("c"))

        get_chat_memory("c").add(UserMessage("Stop."))

        seen = run(store.read_record("c"))
        assert seen.revision != stored.revision
        assert run(store.read_history(seen.head_id))[-1].message.parts[0].content == "Stop."
        carried.messages.append(HELLO)
        with pytest.raises(ConversationConflict):
            run(store.save(carried))
        talk(store, HELLO)
        assert [len(message.parts) for message in loaded(store)] == [2, 3, 1, 1]

    def test_calls_that_waited_for_approval_are_no_longer_pending(self, store):
        waiting = Carried(
            conversation_id="c",
            messages=[HI, CALL],
            deferred_tool_requests=DeferredToolRequests(approvals=[CALL.parts[1]]),
        )
        run(store.save(waiting))
        assert run(store.load("c")).deferred_tool_requests == waiting.deferred_tool_requests

        get_chat_memory("c").add(UserMessage("Stop."))

        assert run(store.load("c")).deferred_tool_requests is None

    def test_a_removed_response_takes_its_pending_calls_along(self, store):
        talk(store, HI, HELLO)
        waiting = run(store.load("c"))
        waiting.messages.append(CALL)
        waiting.deferred_tool_requests = DeferredToolRequests(
            approvals=[CALL.parts[1]], metadata={"c1": {"why": "private"}}
        )
        run(store.save(waiting))

        get_chat_memory("c").remove(1)

        loaded = run(store.load("c"))
        assert loaded.deferred_tool_requests == waiting.deferred_tool_requests

        get_chat_memory("c").pop()

        assert "private" not in Record.objects.get().text
        loaded = run(store.load("c"))
        assert loaded.deferred_tool_requests is None
        loaded.messages.append(HELLO)
        run(store.save(loaded))

    def test_a_new_title_changes_nothing(self, store):
        carried = talk(store, HI)
        conversation = Conversation.objects.get()
        conversation.title = "Greetings"
        conversation.save()

        carried.messages.append(CALL)
        run(store.save(carried))

        assert loaded(store) == [HI, CALL]

    def test_rewound_entries_are_a_branch_to_return_to(self, store):
        talk(store, HI, CALL, FOUND)

        get_chat_memory("c").rewind(3)

        record = run(store.read_record("c"))
        assert loaded(store) == [HI, CALL]
        assert len(record.branches) == 1
        run(store.branch("c", from_entry=record.branches[0], expected_revision=record.revision))
        assert loaded(store) == [HI, CALL, FOUND]

    def test_removed_entries_are_gone(self, store):
        talk(store, HI, CALL)

        get_chat_memory("c").remove(3)

        assert loaded(store) == [HI]
        assert run(store.read_record("c")).branches == []

    def test_a_conversation_of_the_site_is_available_to_agents(self, store):
        get_chat_memory("c").add(UserMessage("Hi"))

        talk(store, HELLO)

        assert [message.parts[0].content for message in loaded(store)] == ["Hi", "Hello"]
        with pytest.raises(ConversationConflict):
            run(store.save(Carried(conversation_id="c", messages=[HI])))

    def test_an_empty_conversation_is_not_found(self, store):
        anna = owner("anna")
        Conversation.objects.create(memory_id="c", owner=anna, title="Greetings")

        assert run(store.read_record("c")) is None
        talk(store, HI, scope=str(anna.pk))

        assert Conversation.objects.get().title == "Greetings"
        assert loaded(store, scope=str(anna.pk)) == [HI]

    def test_exported_and_imported_conversations_come_back(self, store):
        carried = talk(store, *ALL)
        lines = list(export_lines(Conversation.objects.all()))
        run(store.delete("c"))

        import_lines(lines)

        assert loaded(store) == carried.messages
        assert [entry.id for entry in run(store.load_entries("c"))] == [
            row.client_message_id for row in Message.objects.exclude(client_message_id=None)
        ]

    def test_an_owners_export_has_no_hidden_messages(self, store):
        talk(store, *ALL)

        lines = "".join(export_lines(Conversation.objects.all(), types=[MessageType.USER, MessageType.AI]))

        assert "And this?" in lines
        assert not any(secret in lines for secret in ("Be brief.", "Be quick.", "nothing", "verbatim"))

    def test_a_branch_that_ends_with_its_message_can_be_rewound_to(self, store):
        get_chat_memory("c").add(UserMessage("Hi"), AiMessage("Hello"))
        first = run(store.load("c"))

        run(store.branch("c", at=1, expected_revision=first.revision))
        talk(store, HELLO)
        record = run(store.read_record("c"))
        run(store.branch("c", from_entry=record.branches[0], expected_revision=record.revision))

        assert loaded(store) == first.messages


class TestForks:
    def test_a_fork_is_a_new_conversation_with_the_same_entries(self, store):
        talk(store, *ALL)
        entries = run(store.load_entries("c"))

        forked = run(store.fork("c", at=3, new_conversation_id="d"))
        talk(store, HELLO, conversation_id="d")

        assert run(store.load_entries("d"))[:3] == entries[:3]
        assert loaded(store, "d") == [HI, CALL, FOUND, HELLO]
        assert loaded(store) == ALL
        record = run(store.read_record("d"))
        assert (record.forked_from, record.forked_at) == ("c", entries[2].id)
        assert forked.messages == ALL[:3]
        assert [type(message).__name__ for message in stored("d")][:3] == ["SystemMessage", "UserMessage", "AiMessage"]

    def test_a_fork_outlives_its_origin(self, store):
        talk(store, HI, CALL)
        run(store.fork("c", new_conversation_id="d"))

        run(store.delete("c"))

        assert loaded(store, "d") == [HI, CALL]
        assert Conversation.objects.get().memory_id == "d"

    def test_fork_and_origin_continue_independently(self, store):
        talk(store, HI, CALL, FOUND, HELLO)
        run(store.fork("c", new_conversation_id="d"))

        get_chat_memory("c").remove(3)

        assert loaded(store) == [HI, FOUND, HELLO]
        assert loaded(store, "d") == [HI, CALL, FOUND, HELLO]

    def test_a_fork_of_the_sites_messages_too(self, store):
        get_chat_memory("c").add(UserMessage("Hi"), AiMessage("Hello"))
        first = loaded(store)

        run(store.fork("c", at=1, new_conversation_id="d"))
        talk(store, CALL, conversation_id="d")
        record = run(store.read_record("d"))
        run(store.branch("d", at=1, expected_revision=record.revision))

        assert loaded(store, "d") == first[:1]
        assert loaded(store) == first

    def test_a_fork_of_an_empty_conversation_is_empty(self, store):
        talk(store, HI)

        run(store.fork("c", at=0, new_conversation_id="d"))

        assert loaded(store, "d") == []

    def test_an_unused_branch_can_be_forked(self, store):
        carried = talk(store, HI, CALL)
        run(store.branch("c", at=1, expected_revision=carried.revision))
        left = run(store.read_record("c")).branches[0]

        run(store.fork("c", from_entry=left, new_conversation_id="d"))

        assert loaded(store, "d") == [HI, CALL]
        assert loaded(store) == [HI]

    def test_an_existing_conversation_is_not_overwritten(self, store):
        talk(store, HI)
        talk(store, HELLO, conversation_id="d")

        with pytest.raises(ConversationConflict):
            run(store.fork("c", new_conversation_id="d"))

        assert loaded(store, "d") == [HELLO]


class TestScope:
    def test_another_users_conversation_is_not_found(self, store):
        anna, ben = (str(owner(name).pk) for name in ("anna", "ben"))
        carried = talk(store, HI, scope=anna)

        assert loaded(store, scope=ben) is None
        assert run(store.list_conversations(scope=ben)) == []
        run(store.delete("c", scope=ben))
        for stolen in (carried, Carried(conversation_id="c", messages=[HELLO])):
            with pytest.raises(ConversationConflict):
                run(store.save(stolen, scope=ben))
        assert loaded(store, scope=anna) == [HI]

    def test_nor_can_its_record_be_taken_over(self, store):
        anna, ben = (str(owner(name).pk) for name in ("anna", "ben"))
        talk(store, HI, scope=anna)
        record = run(store.read_record("c"))

        for scope in (ben, None, "tenant"):
            with pytest.raises(ConversationConflict):
                run(store.write_record(replace(record, scope=scope), expected_revision=record.revision))

        assert Conversation.objects.get().owner.username == "anna"

    def test_the_users_conversations_from_the_site_are_found(self, store):
        anna = owner("anna")
        get_chat_memory("site", owner=anna).add(UserMessage("Hi"))
        get_chat_memory("nobodys").add(UserMessage("Hi"))
        talk(store, HI, scope=str(anna.pk))

        listed = run(store.list_conversations(scope=str(anna.pk)))

        assert [record.conversation_id for record in listed] == ["c", "site"]
        assert {record.scope for record in listed} == {str(anna.pk)}
        assert run(store.read_record("nobodys")).scope is None
        assert len(run(store.list_conversations(scope=str(anna.pk), limit=1))) == 1

    def test_a_new_owner_has_access(self, store):
        anna, ben = owner("anna"), owner("ben")
        talk(store, HI, scope=str(anna.pk))
        Conversation.objects.update(owner=ben)

        assert loaded(store, scope=str(anna.pk)) is None
        assert run(store.list_conversations(scope=str(anna.pk))) == []
        assert loaded(store, scope=str(ben.pk)) == [HI]
        assert len(run(store.list_conversations(scope=str(ben.pk)))) == 1

    @pytest.mark.parametrize("scope", ["tenant", "", " 1", "01", "1.0", "9" * 400], ids=repr)
    def test_a_scope_without_a_user_is_separate_too(self, store, scope):
        get_user_model().objects.create_user("anna", pk=1)
        if len(scope) > 255:
            assert store.get_owner(scope) is None
            return

        talk(store, HI, scope=scope)

        assert Conversation.objects.get().owner is None
        assert loaded(store, scope=scope) == [HI]
        assert loaded(store, scope="another") is None

    def test_a_site_can_define_its_scopes(self):
        class ByName(DjangoConversationStore):
            def get_owner(self, scope):
                return get_user_model().objects.filter(username=scope).first()

            def get_scope(self, owner_key):
                return get_user_model().objects.get(pk=owner_key).username if owner_key else None

        anna = owner("anna")
        get_chat_memory("site", owner=anna).add(UserMessage("Hi"))

        talk(ByName(), HI, scope="anna")

        assert Conversation.objects.get(memory_id="c").owner == anna
        assert loaded(ByName(), scope="anna") == [HI]
        assert run(ByName().read_record("site")).scope == "anna"

    def test_without_a_scope_all_are_found(self, store):
        talk(store, HI, scope=str(owner("anna").pk))

        assert loaded(store) == [HI]
        talk(store, CALL)
        assert Conversation.objects.get().owner.username == "anna"


class TestDelete:
    def test_it_deletes_everything(self, store):
        carried = talk(store, HI, CALL)
        run(store.branch("c", at=1, expected_revision=carried.revision))

        run(store.delete("c"))

        assert not Conversation.objects.exists()
        assert not Message.objects.exists()
        assert not Record.objects.exists()

    def test_a_conversation_saved_concurrently_stays(self, store):
        stale = talk(store, HI).revision
        talk(store, CALL)

        with pytest.raises(ConversationConflict):
            run(store.delete_record("c", expected_revision=stale))

        assert loaded(store) == [HI, CALL]

    def test_a_conversation_with_messages_of_the_site_stays(self, store):
        get_chat_memory("c").add(UserMessage("Hi"))

        run(store.delete("c"))

        assert not Conversation.objects.exists()

    def test_erasing_a_conversation_deletes_its_record(self, store):
        talk(store, HI, scope=str(owner("anna").pk))
        talk(store, HI, conversation_id="d")

        Conversation.objects.filter(memory_id="d").delete()
        get_user_model().objects.get().delete()

        assert not Record.objects.exists()
        assert run(store.list_conversations()) == []


class TestConcurrency:
    def test_of_50_concurrent_saves_one_succeeds_and_the_others_conflict(self, store):
        talk(store, HI)
        carried = [run(store.load("c")) for _ in range(50)]

        def save(number: int) -> bool:
            carried[number].messages += [user_request(str(number)), CALL]
            try:
                run(DjangoConversationStore().save(carried[number]))
            except ConversationConflict:
                return False
            return True

        assert sum(in_threads(50, save)) == 1
        assert len(loaded(store)) == 3

    def test_of_50_that_create_a_conversation_at_once_one_succeeds(self):
        def begin(number: int) -> bool:
            try:
                run(DjangoConversationStore().save(Carried(conversation_id="c", messages=[user_request(str(number))])))
            except ConversationConflict:
                return False
            return True

        assert sum(in_threads(50, begin)) == 1
        assert Message.objects.count() == 1

    @pytest.mark.slow
    def test_50_writers_that_retry_lose_and_split_nothing(self, store):
        async def save(number: int) -> None:
            while True:
                carried = await store.load("c") or Carried(conversation_id="c")
                carried.messages += [user_request(str(number)), CALL]
                try:
                    await store.save(carried)
                except ConversationConflict:
                    continue
                return

        async def go() -> None:
            await asyncio.gather(*map(save, range(50)))

        run(go())

        messages = loaded(store)
        assert sorted(int(message.parts[0].content) for message in messages[::2]) == list(range(50))
        assert messages[1::2] == [CALL] * 50


class TestConstruction:
    def test_without_its_app_the_error_names_it(self, settings):
        app = "chatmemory_django.contrib.adapters.records"
        settings.INSTALLED_APPS = [each for each in settings.INSTALLED_APPS if each != app]

        with pytest.raises(ImproperlyConfigured, match=r"add '.*adapters\.records' to INSTALLED_APPS"):
            DjangoConversationStore()


class TestMessageHistory:
    def test_an_agent_continues_from_a_memory_and_adds_to_it(self):
        agent = Agent(TestModel(custom_output_text="Hello"))
        memory = get_chat_memory("c", max_messages=10)
        memory.add(SystemMessage("Be brief."), UserMessage("Hi"), AiMessage("Hello"))

        result = run(agent.run("And now?", message_history=to_pydantic_ai(memory.messages())))
        memory.add(*from_pydantic_ai(result.new_messages()))

        assert [len(message.parts) for message in result.all_messages()] == [2, 1, 1, 1]
        assert stored()[3:] == [UserMessage("And now?"), AiMessage("Hello")]

    def test_one_request_comes_back_as_one(self):
        [request, call, found] = to_pydantic_ai(from_pydantic_ai([HI, CALL, FOUND]))

        assert [part.content for part in request.parts] == ["Be brief.", "Hi"]
        assert [part.args for part in call.tool_calls] == ['{"n": 1}', "{"]
        assert [part.part_kind for part in found.parts] == ["tool-return", "tool-return", "user-prompt"]
        assert found.parts[1].outcome == "failed"

    def test_messages_without_a_native_form_come_back_whole(self):
        assert to_pydantic_ai(from_pydantic_ai([RETRY, NOTHING, HI]))[:2] == [RETRY, NOTHING]

    def test_other_objects_are_refused(self):
        with pytest.raises(UserError, match="messages must be requests and responses"):
            from_pydantic_ai([HI, "Hello"])


class _World:
    """A store, and the conversations of one of its clients."""

    def __init__(self, store: ConversationStore, name: str) -> None:
        self.store = store
        self.names = {number: f"{name}-{number}" for number in range(3)}
        self.carried: dict[int, Carried] = {}

    async def step(self, kind: str, number: int, other: int, at: int, messages: list) -> object:
        """Take a step, and return its result."""
        store, name = self.store, self.names[number]
        carried = self.carried.get(number)
        try:
            match kind:
                case "load":
                    found = await store.load(name, limit=at or None)
                    if found is not None:
                        self.carried[number] = found
                case "begin":
                    self.carried[number] = Carried(conversation_id=name, messages=list(messages))
                    await store.save(self.carried[number])
                case "say" if carried is not None:
                    carried.messages.extend(messages)
                    carried.usage += RunUsage(requests=1)
                    await store.save(carried)
                case "rewrite" if carried is not None:
                    carried.messages[at:] = messages
                    carried.new_message_index = None
                    await store.save(carried)
                case "branch" if carried is not None:
                    self.carried[number] = await store.branch(name, at=at, expected_revision=carried.revision)
                case "return" if carried is not None and (record := await store.read_record(name)) is not None:
                    if len(record.branches) > at:
                        tip = record.branches[at]
                        again = await store.branch(name, from_entry=tip, expected_revision=record.revision)
                        self.carried[number] = again
                case "fork":
                    self.carried[other] = await store.fork(name, at=at, new_conversation_id=self.names[other])
                case "delete":
                    await store.delete(name)
        except UserError as exc:
            return type(exc)
        return await self.seen()

    async def seen(self) -> list:
        """Return everything stored, without values that are generated each time."""
        numbers = {name: number for number, name in self.names.items()}
        found = []
        for record in await self.store.list_conversations():
            if (number := numbers.get(record.conversation_id)) is None:
                continue
            lines = [await self.store.read_history(tip) for tip in [record.head_id, *record.branches]]
            for line in lines:
                assert [entry.parent_id for entry in line] == [None, *(entry.id for entry in line[:-1])][: len(line)]
                assert [await self.store.read_entry(str(entry.id)) for entry in line[-1:]] == line[-1:]
            texts = [[entry.message for entry in line] for line in lines]
            origin = numbers.get(record.forked_from)
            found.append((number, texts, record.usage, origin, record.forked_at is None))
        return found


STEPS = st.tuples(
    st.sampled_from(["load", "begin", "say", "say", "rewrite", "branch", "return", "fork", "delete"]),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 3),
    st.lists(st.sampled_from(ALL), max_size=3),
)


@pytest.mark.slow
@given(st.lists(STEPS, min_size=3, max_size=14))
@IN_DATABASE
def test_it_behaves_like_the_store_in_memory(steps):
    async def go() -> None:
        ours, theirs = _World(DjangoConversationStore(), "c"), _World(InMemoryConversationStore(), "c")
        for step in steps:
            assert await ours.step(*step) == await theirs.step(*step)
        for name in ours.names.values():
            await ours.store.delete(name)

    run(go())


def talk_entries(store: ConversationStore, *messages) -> list[ConversationEntry]:
    """Continue from what is stored, and return the saved entries."""
    carried = run(store.load("c")) or Carried(conversation_id="c")
    carried.messages.extend(messages)
    return run(store.save(carried))
