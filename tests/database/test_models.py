"""The models and their querysets: always consistent with the store."""

import datetime
import uuid

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from chatmemory_django.db.moments import aware, to_moment
from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    CustomMessage,
    MessageType,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, MemoryStatus, Message
from chatmemory_django.models.conversations import hour_of
from chatmemory_django.stores.django import DjangoChatMemoryStore

pytestmark = pytest.mark.django_db

PRIVATE = "what no one else may read"
S1, S2, S3 = SystemMessage("be brief"), SystemMessage("be long"), SystemMessage("be both")
U1, U2, U3, U4 = (UserMessage(text) for text in ("one", "two", "three", "four"))
A1 = AiMessage("hello")
CALL = AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "tool", "{}")])
RESULT = ToolExecutionResultMessage("1", "tool", "4")


def memory_of(limit: int, memory_id: str = "a", **options: object) -> ChatMemory:
    return MessageWindowChatMemory(max_messages=limit, id=memory_id, store=DjangoChatMemoryStore(), **options)


def messages_of(rows) -> list[ChatMessage]:
    return [row.chat_message for row in rows]


def evict_some(memory: ChatMemory) -> None:
    memory.add(U1, A1)
    memory.add(U2, U3)


def pin_the_system_message(memory: ChatMemory) -> None:
    memory.add(S1, U1, A1)
    memory.add(U2, U3, U4)


def replace_the_system_message(memory: ChatMemory) -> None:
    memory.add(S1, U1)
    memory.add(S2)


def replace_a_pinned_system_message(memory: ChatMemory) -> None:
    memory.add(S1, U1, A1, U2)
    memory.add(S2)


def replace_twice_at_once(memory: ChatMemory) -> None:
    memory.add(U1, S1, S2, U2, S3)


def evict_a_call_with_its_result(memory: ChatMemory) -> None:
    memory.add(U1, CALL, RESULT)
    memory.add(U2, U3)


def add_more_than_fits(memory: ChatMemory) -> None:
    memory.add(S1, U1, A1, U2, U3, U4)


def compact(memory: ChatMemory) -> None:
    memory.add(U1, A1, U2)
    memory.set([SystemMessage("summary"), U2])
    memory.add(U3)


def compact_after_a_pinned_message(memory: ChatMemory) -> None:
    memory.add(S1, U1, A1, U2)
    memory.set([UserMessage("summary"), S1, U2])


def continue_with_set(memory: ChatMemory) -> None:
    memory.add(S1, U1, A1)
    memory.set([S1, A1, U2])


def clear_and_continue(memory: ChatMemory) -> None:
    memory.add(S1, U1)
    memory.clear()
    memory.add(U2)


def only_clear(memory: ChatMemory) -> None:
    memory.add(S1, U1, A1, U2)
    memory.clear()


# The operations; then the expected memory, the whole history, and its evicted messages.
STORIES = {
    "eviction": (evict_some, {}, [A1, U2, U3], [U1, A1, U2, U3], [U1]),
    "pinned": (pin_the_system_message, {}, [S1, U3, U4], [S1, U1, A1, U2, U3, U4], [U1, A1, U2]),
    "replaced": (replace_the_system_message, {}, [U1, S2], [S1, U1, S2], [S1]),
    "replaced_at_the_front": (
        replace_the_system_message,
        {"always_keep_system_message_first": True},
        [S2, U1],
        [S1, U1, S2],
        [S1],
    ),
    "replaced_pinned": (replace_a_pinned_system_message, {}, [A1, U2, S2], [S1, U1, A1, U2, S2], [S1, U1]),
    "replaced_pinned_at_the_front": (
        replace_a_pinned_system_message,
        {"always_keep_system_message_first": True},
        [S2, A1, U2],
        [S1, U1, A1, U2, S2],
        [S1, U1],
    ),
    "replaced_twice_at_once": (replace_twice_at_once, {}, [U1, U2, S3], [U1, S1, S2, U2, S3], [S1, S2]),
    "replaced_twice_at_the_front": (
        replace_twice_at_once,
        {"always_keep_system_message_first": True},
        [S3, U1, U2],
        [U1, S1, S2, U2, S3],
        [S1, S2],
    ),
    "tools": (evict_a_call_with_its_result, {}, [U2, U3], [U1, CALL, RESULT, U2, U3], [U1, CALL, RESULT]),
    "too_many_at_once": (add_more_than_fits, {}, [S1, U3, U4], [S1, U1, A1, U2, U3, U4], [U1, A1, U2]),
    "compaction": (compact, {}, [SystemMessage("summary"), U2, U3], [U1, A1, U2, U3], [U1, A1, U2]),
    "compaction_of_pinned": (
        compact_after_a_pinned_message,
        {},
        [UserMessage("summary"), S1, U2],
        [S1, U1, A1, U2],
        [S1, U1, A1, U2],
    ),
    "continuation": (continue_with_set, {}, [S1, A1, U2], [S1, U1, A1, U2], [U1]),
    "clear": (only_clear, {}, [], [S1, U1, A1, U2], [S1, U1, A1, U2]),
    "clear_and_continue": (clear_and_continue, {}, [U2], [S1, U1, U2], [S1, U1]),
}


class TestHistoryMemoryAndEvicted:
    """A window of three messages, under any sequence of operations."""

    @pytest.fixture(params=STORIES.values(), ids=STORIES.keys())
    def story(self, request):
        happens, options, in_memory, history, evicted = request.param
        memory = memory_of(3, **options)
        happens(memory)
        # Another conversation, which must not appear in the results.
        memory_of(2, "other").add(S3, U1, U2, U3)
        return memory, in_memory, history, evicted

    def test_the_conversation_matches_its_store(self, story):
        memory, in_memory, _, _ = story
        conversation = Conversation.objects.get(memory_id="a")

        rows = conversation.memory()

        assert messages_of(rows) == in_memory
        assert messages_of(rows) == memory.store.get_messages("a")
        assert messages_of(rows) == memory.messages()
        assert conversation.memory_messages == len(in_memory)

    def test_the_history_contains_every_message_in_order(self, story):
        _, _, history, _ = story
        conversation = Conversation.objects.get(memory_id="a")

        assert messages_of(conversation.history()) == history
        assert conversation.total_messages == len(history)

    def test_evicted_returns_the_history_that_is_not_in_the_memory(self, story):
        _, _, _, evicted = story
        conversation = Conversation.objects.get(memory_id="a")

        assert messages_of(conversation.evicted()) == evicted

    def test_every_message_of_the_history_is_in_the_memory_or_evicted(self, story):
        conversation = Conversation.objects.get(memory_id="a")

        in_memory = [row.sequence for row in conversation.memory() if row.in_history]
        evicted = [row.sequence for row in conversation.evicted()]

        assert sorted(in_memory + evicted) == [row.sequence for row in conversation.history()]

    def test_each_row_is_annotated_with_its_state(self, story):
        conversation = Conversation.objects.get(memory_id="a")

        standings = dict(conversation.messages.with_status().values_list("sequence", "status"))

        remembered = {row.sequence for row in conversation.memory()}
        assert remembered == {
            sequence
            for sequence, standing in standings.items()
            if standing in {MemoryStatus.IN_MEMORY, MemoryStatus.PINNED}
        }
        pinned = [sequence for sequence, standing in standings.items() if standing == MemoryStatus.PINNED]
        assert pinned == [number for number in [conversation.pinned_sequence] if number]
        superseded = conversation.messages.filter(superseded=True)
        assert {row.sequence for row in superseded} == {
            sequence for sequence, standing in standings.items() if standing == MemoryStatus.SUPERSEDED
        }

    def test_conversations_with_evictions_are_found(self, story):
        both = Conversation.objects.all()

        evicted = {conversation for conversation in both if conversation.evicted().exists()}
        assert set(both.with_evictions()) == evicted
        assert set(both.without_evictions()) == set(both) - evicted

    def test_methods_of_the_message_queryset_return_the_same(self, story):
        conversation = Conversation.objects.get(memory_id="a")
        mine = Message.objects.filter(conversation=conversation).order_by("sequence")

        assert set(mine.in_memory()) == set(conversation.memory())
        assert list(mine.evicted()) == list(conversation.evicted())
        assert list(mine.history()) == list(conversation.history())
        assert set(conversation.messages.in_memory()) == set(conversation.memory())

    def test_the_methods_cover_all_conversations(self, story):
        both = Conversation.objects.order_by("memory_id")

        for verb in ("history", "evicted"):
            rows = getattr(Message.objects.all(), verb)().order_by("conversation__memory_id", "sequence")
            assert list(rows) == [row for conversation in both for row in getattr(conversation, verb)()]
        assert Message.objects.in_memory().count() == sum(conversation.memory().count() for conversation in both)

    def test_sequences_have_no_gaps_and_are_never_reused(self, story):
        conversation = Conversation.objects.get(memory_id="a")

        sequences = [row.sequence for row in conversation.messages.all()]

        assert sequences == list(range(1, conversation.next_sequence))


class TestOutsideTheHistory:
    def test_a_compaction_is_stored_after_the_history_but_is_not_part_of_it(self):
        memory = memory_of(3)
        memory.add(U1, A1, U2)

        memory.set([SystemMessage("summary"), U2])

        rows = Conversation.objects.get(memory_id="a").messages.all()
        assert [(row.sequence, row.in_history) for row in rows] == [
            (1, True),
            (2, True),
            (3, True),
            (4, False),
            (5, False),
        ]

    def test_messages_set_in_an_empty_conversation_are_history(self):
        memory_of(3).set([S1, U1])

        assert messages_of(Conversation.objects.get(memory_id="a").history()) == [S1, U1]

    def test_a_compaction_that_left_the_memory_is_not_an_evicted_message(self):
        memory = memory_of(2)
        memory.add(U1, A1)
        memory.set([UserMessage("summary")])

        memory.add(U2, U3)

        conversation = Conversation.objects.get(memory_id="a")
        assert messages_of(conversation.memory()) == [U2, U3]
        assert messages_of(conversation.evicted()) == [U1, A1]
        assert messages_of(Message.objects.evicted()) == [U1, A1]

    @pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
    def test_without_history_only_the_memory_has_rows(self, story):
        happens, options, in_memory, _, _ = story
        store = DjangoChatMemoryStore(keep_history=False)
        memory = MessageWindowChatMemory(max_messages=3, id="a", store=store, **options)

        happens(memory)

        conversation = Conversation.objects.get(memory_id="a")
        assert set(conversation.messages.all()) == set(conversation.memory())
        assert messages_of(conversation.memory()) == memory.messages() == in_memory


class TestConversationQuerySet:
    @pytest.fixture
    def ann(self):
        return User.objects.create_user("ann")

    def test_owned_by_finds_only_the_conversations_of_a_user(self, ann):
        bob = User.objects.create_user("bob")
        mine = Conversation.objects.create(owner=ann)
        Conversation.objects.create(owner=bob)
        Conversation.objects.create()

        assert list(Conversation.objects.owned_by(ann)) == [mine]

    def test_an_anonymous_user_owns_nothing(self, ann):
        Conversation.objects.create()
        Conversation.objects.create(owner=ann)

        assert list(Conversation.objects.owned_by(AnonymousUser())) == []

    def test_idle_since_and_active_since_partition_all_conversations(self):
        now = timezone.now()
        hour = datetime.timedelta(hours=1)
        old = Conversation.objects.create(updated_at=now - hour)
        at_the_cutoff = Conversation.objects.create(updated_at=now)
        new = Conversation.objects.create(updated_at=now + hour)

        assert list(Conversation.objects.idle_since(now)) == [old]
        assert set(Conversation.objects.active_since(now)) == {at_the_cutoff, new}

    def test_a_write_makes_a_conversation_active(self):
        memory = memory_of(3)
        memory.add(U1)
        Conversation.objects.update(updated_at=timezone.now() - datetime.timedelta(days=30))
        cutoff = timezone.now()

        memory.messages()
        after_reading = Conversation.objects.active_since(cutoff).count()
        memory.add(U2)

        assert after_reading == 0
        assert Conversation.objects.active_since(cutoff).count() == 1

    @pytest.mark.parametrize("text", ["shop-1", "Parcels", "where is", "どこ"])
    def test_search_finds_memory_ids_titles_and_messages(self, text):
        memory_of(2, "shop-1").add(UserMessage("Where is it?"), UserMessage("どこですか"), U1, U2)
        memory_of(2, "other").add(UserMessage("Tea?"))
        Conversation.objects.filter(memory_id="shop-1").update(title="About parcels")

        assert [conversation.memory_id for conversation in Conversation.objects.search(text)] == ["shop-1"]

    @pytest.mark.parametrize("text", ["%", "_", "\\", "'", "summary", "nothing like it"])
    def test_search_treats_every_character_literally_and_excludes_summaries(self, text):
        memory = memory_of(3)
        memory.add(U1, U2)
        memory.set([UserMessage("a summary"), U2])

        assert not Conversation.objects.search(text).exists()

    def test_search_covers_messages_of_the_readable_types(self):
        memory_of(9).add(SystemMessage("Never say gnu"), UserMessage("What is a gnat?"))

        def found(text, *types):
            return Conversation.objects.search(text, types=types).exists()

        assert found("gnat", MessageType.USER, MessageType.AI)
        assert not found("gnu", MessageType.USER, MessageType.AI)
        assert not found("gnat")
        assert found("a")
        assert Conversation.objects.search("gnu").exists()

    def test_a_preview_is_the_newest_readable_text_of_the_history(self):
        memory_of(9, "a").add(S1, U1, A1, CALL, RESULT, CustomMessage({"k": PRIVATE}), S2)
        memory_of(9, "b").add(U1, UserMessage("x" * 300))
        memory_of(9, "c").add(S1)
        memory_of(9, "d").add(U1)
        memory_of(9, "d").set([UserMessage("a summary")])
        Conversation.objects.create(memory_id="e")

        found = Conversation.objects.with_preview([MessageType.USER, MessageType.AI]).order_by("memory_id")

        assert [conversation.preview for conversation in found] == ["hello", "x" * 200, None, "one", None]
        assert {conversation.preview for conversation in Conversation.objects.with_preview([])} == {None}

    def test_a_preview_reads_the_conversation_from_its_end(self, django_assert_num_queries):
        memory_of(9).add(U1)
        conversation = Conversation.objects.get()
        messages_of = {"conversation": conversation, "type": "USER", "text": "x"}
        Message.objects.bulk_create(Message(sequence=number, **messages_of) for number in range(2, 3_000))
        previews = Conversation.objects.with_preview([MessageType.USER])

        with django_assert_num_queries(1):
            assert [each.preview for each in previews] == ["x"]
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("ANALYZE chatmemory_message")
            assert "Index Scan Backward using chatmemory_message_pkey" in previews.explain()

    def test_sizes_are_those_of_the_stored_data(self):
        conversation = Conversation.objects.create(metadata={"k": "x" * 1_000})
        Message.objects.create(conversation=conversation, sequence=1, type="USER", text="ü" * 10)
        Message.objects.create(
            conversation=conversation, sequence=2, type="USER", text="ab", payload="c" * 5, metadata={"k": "x" * 100}
        )

        sizes = Message.objects.with_size().values_list("size", flat=True)

        assert Conversation.objects.with_size().get().size == 1_000 + len('{"k": ""}')
        assert list(sizes) == [10, 2 + 5 + 100 + len('{"k": ""}')]

    def test_a_pinned_system_message_alone_is_not_an_eviction(self):
        memory = MessageWindowChatMemory(max_messages=3, id="a", store=DjangoChatMemoryStore())
        memory.add(S1)
        Conversation.objects.update(window_start=2, pinned_sequence=1)

        assert not Conversation.objects.with_evictions().exists()
        assert Conversation.objects.without_evictions().exists()

    def test_without_history_evictions_are_still_known(self):
        store = DjangoChatMemoryStore(keep_history=False)
        for memory_id, messages in {"a": (U1, U2, U3), "b": (U1, U2), "c": ()}.items():
            MessageWindowChatMemory(max_messages=2, id=memory_id, store=store).add(*messages)

        assert [conversation.memory_id for conversation in Conversation.objects.with_evictions()] == ["a"]

    def test_methods_can_be_chained(self, ann):
        mine = Conversation.objects.create(owner=ann)
        cutoff = timezone.now() + datetime.timedelta(hours=1)

        assert list(Conversation.objects.owned_by(ann).idle_since(cutoff)) == [mine]
        assert list(Conversation.objects.active_since(cutoff).owned_by(ann)) == []


class TestProblems:
    """Unfinished turns and failed tools."""

    @pytest.mark.parametrize(
        ("contents", "attributes"),
        [
            ("no", {}),
            ("no", {"a": {"isError": False}}),
            ([TextContent("no"), TextContent("really")], {"a": 1}),
        ],
        ids=["text", "attributes", "texts"],
    )
    def test_a_tool_failed_if_its_result_is_an_error(self, contents, attributes):
        for memory_id, is_error in {"failed": True, "went well": False, "unknown": None}.items():
            result = ToolExecutionResultMessage("1", "tool", contents, is_error, attributes)
            memory_of(9, memory_id).add(U1, CALL, result)

        assert [(row.conversation.memory_id, row.sequence) for row in Message.objects.failed_tools()] == [("failed", 3)]
        assert [each.memory_id for each in Conversation.objects.with_failed_tools()] == ["failed"]

    @pytest.mark.parametrize(
        "message",
        [
            ToolExecutionResultMessage("1", "tool", '"isError":true'),
            ToolExecutionResultMessage("1", "tool", '{"isError":true}'),
            ToolExecutionResultMessage("1", "tool", '{"isError":true,"attributes":{}}'),
            ToolExecutionResultMessage("1", "tool", "x", attributes={"isError": True}),
            ToolExecutionResultMessage("1", "tool", "x", False, {"is": {"isError": True}}),
            ToolExecutionResultMessage('"isError":true}', '"isError":true,"attributes":{', "x", attributes={"a": 1}),
            CustomMessage({"isError": True}),
            UserMessage("x", name='"isError":true}'),
        ],
    )
    def test_quoting_an_error_is_not_a_failed_tool(self, message):
        memory_of(9).add(message)

        assert not Message.objects.failed_tools()

    def test_a_conversation_has_an_unfinished_turn_while_a_message_is_incomplete(self):
        memory_of(9, "ended").add(U1, A1)
        memory_of(9, "broken off").add(U1, A1)
        memory = memory_of(9, "under way")
        Message.objects.filter(conversation__memory_id="broken off", sequence=2).update(is_complete=False)

        with memory.turn(persist="early") as turn:
            turn.add(U1)
            during = {each.memory_id for each in Conversation.objects.with_incomplete_turns()}

        assert during == {"broken off", "under way"}
        assert [each.memory_id for each in Conversation.objects.with_incomplete_turns()] == ["broken off"]


class TestConversation:
    def test_a_new_conversation_gets_an_unguessable_memory_id(self):
        one, other = Conversation.objects.create(), Conversation.objects.create()

        assert uuid.UUID(one.memory_id).version == 4
        assert one.memory_id != other.memory_id

    def test_an_existing_empty_conversation_is_filled(self):
        conversation = Conversation.objects.create(title="A talk", metadata={"topic": "tea"})

        memory_of(3, conversation.memory_id).add(U1)

        conversation.refresh_from_db()
        assert messages_of(conversation.memory()) == [U1]
        assert (conversation.title, conversation.metadata) == ("A talk", {"topic": "tea"})

    @pytest.mark.parametrize("other", ["A", "a ", " a", "á", "a\u0301", "\uff41", "a\u200b", "a\n"], ids=ascii)
    def test_ids_that_are_not_the_same_text_are_different_conversations(self, other):
        memory_of(3, "a").add(U1)

        memory_of(3, other).add(U2)

        assert memory_of(3, "a").messages() == [U1]
        assert memory_of(3, other).messages() == [U2]
        assert Conversation.objects.get(memory_id=other).memory_id == other
        assert Conversation.objects.count() == 2

    def test_changes_by_the_site_are_not_activity(self):
        ann = User.objects.create_user("ann")
        memory_of(3, "a").add(U1)
        memory_of(3, "b").add(U1)
        conversation = Conversation.objects.get(memory_id="a")
        version, updated_at = conversation.version, conversation.updated_at

        for name, value in {
            "title": "A talk",
            "metadata": {"topic": "tea"},
            "owner": ann,
            "is_pinned": True,
            "is_archived": True,
        }.items():
            setattr(conversation, name, value)
            conversation.save()

        conversation = Conversation.objects.get(memory_id="a")
        assert (conversation.title, conversation.is_pinned, conversation.is_archived) == ("A talk", True, True)
        assert (conversation.version, conversation.updated_at) == (version + 5, updated_at)
        assert [each.memory_id for each in Conversation.objects.order_by("-updated_at")] == ["b", "a"]

    def test_memory_ids_are_unique(self):
        Conversation.objects.create(memory_id="a")

        with pytest.raises(IntegrityError), transaction.atomic():
            Conversation.objects.create(memory_id="a")

    def test_its_str_is_its_memory_id_and_never_its_title(self):
        memory_of(3).add(UserMessage(PRIVATE))
        conversation = Conversation.objects.get()

        assert str(conversation) == "a"
        assert str(Conversation(memory_id="b", title=PRIVATE)) == "b"
        assert PRIVATE not in repr(conversation)

    def test_deleting_one_deletes_only_its_messages_in_a_few_statements(self, django_assert_max_num_queries):
        memory_of(10).add(*(UserMessage(str(number)) for number in range(500)))
        memory_of(10, "b").add(U1)
        conversation = Conversation.objects.get(memory_id="a")

        # This holds even if a table of the site references messages, as in the example project. One statement is for
        # its record, one for the calls of models, four are for the streams of its answers.
        with django_assert_max_num_queries(11):
            conversation.delete()

        assert messages_of(Message.objects.all()) == [U1]
        assert memory_of(10).messages() == []


class TestMessagesWithKeys:
    def test_they_are_those_with_these_keys_and_read_by_the_index(self):
        for name in "ab":
            memory_of(9, name).add(U1, A1, U2)
        first, second = Conversation.objects.order_by("memory_id").values_list("pk", flat=True)

        found = Message.objects.with_keys([(first, 3), (second, 1), (first, 1), (second, 99)])

        assert {row.pk for row in found} == {(first, 1), (first, 3), (second, 1)}
        assert not Message.objects.with_keys([]).exists()
        if connection.vendor == "sqlite":
            assert "SCAN" not in found.order_by().explain()


class TestMessage:
    def test_search_is_case_insensitive(self):
        memory = memory_of(9)
        memory.add(UserMessage("Where is my Parcel?"), AiMessage("At the door"), UserMessage("100% of PARCELS?"))
        memory.set([UserMessage("a summary about a parcel")])

        assert [row.sequence for row in Message.objects.containing("parcel")] == [1, 3]
        assert [row.sequence for row in Message.objects.containing("%")] == [3]

    ONE_OF_EACH = (
        SystemMessage(PRIVATE),
        UserMessage(PRIVATE, name=PRIVATE),
        AiMessage(PRIVATE, PRIVATE),
        ToolExecutionResultMessage("1", "tool", PRIVATE),
        CustomMessage({"k": PRIVATE}),
    )

    def test_its_str_never_contains_its_text(self):
        memory_of(10).add(*self.ONE_OF_EACH)

        rows = list(Message.objects.all())

        assert [str(row) for row in rows] == ["SYSTEM 1", "USER 2", "AI 3", "TOOL_EXECUTION_RESULT 4", "CUSTOM 5"]
        assert PRIVATE not in repr(rows)

    def test_a_row_returns_the_original_message(self):
        memory_of(10).add(*self.ONE_OF_EACH)

        assert messages_of(Message.objects.all()) == list(self.ONE_OF_EACH)

    def test_its_text_is_its_searchable_text(self):
        memory_of(10).add(*self.ONE_OF_EACH)

        assert [row.text for row in Message.objects.all()] == [PRIVATE] * 5

    def test_a_message_of_only_text_needs_no_payload(self):
        memory_of(10).add(S1, U1, A1, CALL, UserMessage("Hi", name="Klaus"))

        has_payload = [row.payload is not None for row in Message.objects.all()]

        assert has_payload == [False, False, False, True, True]

    def test_it_is_found_by_conversation_and_sequence(self):
        memory_of(10).add(U1, A1)
        conversation = Conversation.objects.get()

        row = Message.objects.get(pk=(conversation.pk, 2))

        assert row.chat_message == A1
        assert conversation.messages.get(sequence=1).chat_message == U1

    def test_client_ids_are_unique_within_a_conversation(self):
        memory_of(10).add(U1, A1)
        client_message_id = uuid.uuid4()
        Message.objects.filter(sequence=1).update(client_message_id=client_message_id)

        with pytest.raises(IntegrityError), transaction.atomic():
            Message.objects.filter(sequence=2).update(client_message_id=client_message_id)

    def test_client_ids_may_repeat_across_conversations_and_be_missing(self):
        memory_of(10).add(U1, A1)
        memory_of(10, "b").add(U1, A1)
        client_message_id = uuid.uuid4()

        Message.objects.filter(sequence=1).update(client_message_id=client_message_id)

        assert Message.objects.filter(client_message_id=client_message_id).count() == 2
        assert Message.objects.filter(client_message_id=None).count() == 2


def test_without_time_zones_datetimes_ignore_the_active_time_zone(settings):
    settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Berlin"

    with timezone.override("Asia/Tokyo"):
        moment = to_moment(datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC))

    assert moment == datetime.datetime(2026, 7, 1, 14)  # noqa: DTZ001  # naive, as its columns are


def test_a_datetime_column_is_returned_in_the_time_zone_of_the_site(settings):
    settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Berlin"
    moment = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC)

    with timezone.override("Asia/Tokyo"):
        assert aware(to_moment(moment)) == aware(moment) == moment


@pytest.mark.parametrize("use_tz", [True, False])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
def test_the_hour_of_the_last_activity_is_that_of_the_moment(settings, use_tz, zone):
    settings.USE_TZ, settings.TIME_ZONE = use_tz, zone
    start = datetime.datetime(2026, 10, 31, 22, 59, 59, 999_999, tzinfo=datetime.UTC)
    moments = [to_moment(start + datetime.timedelta(minutes=20) * number) for number in range(9)]
    for moment in moments:
        Conversation.objects.create(updated_at=moment)

    rows = Conversation.objects.order_by("updated_at")

    assert [row.active_hour for row in rows] == sorted(row.active_hour for row in rows)
    assert len({row.active_hour for row in rows}) in {3, 4}
    for moment in moments:
        assert rows.get(updated_at=moment).active_hour == rows.filter(active_hour=hour_of(moment))[0].active_hour
        assert rows.active_since(aware(moment)).count() == rows.filter(updated_at__gte=moment).count()
        assert rows.idle_since(aware(moment)).count() == rows.filter(updated_at__lt=moment).count()


def test_a_write_within_the_hour_keeps_it():
    memory_of(10).add(U1)
    first = Conversation.objects.get()

    memory_of(10).add(U2)

    second = Conversation.objects.get()
    assert second.updated_at > first.updated_at
    assert second.active_hour - first.active_hour in {0, 1}
