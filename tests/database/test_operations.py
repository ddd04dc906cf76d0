"""Operations on conversations: each completes or changes nothing, despite concurrent writers."""

import datetime
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.contrib.auth.models import Group, User
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connection, connections, models, transaction
from django.db.models.signals import pre_delete
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import chatmemory_django.models.conversations
from chatmemory_django import operations
from chatmemory_django.core.windows import Window
from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import AiMessage, MessageType, NewMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation, ConversationQuerySet, Message, new_expiry, remains
from chatmemory_django.operations import Finding, Invariant, NoCounterError, Pruned, one_by_one
from chatmemory_django.stores.django import DjangoChatMemoryStore
from example_project.models import Feedback
from tests.database.interleaving import another_writer, set_isolation
from tests.database.test_models import PRIVATE, STORIES
from tests.estimators import ADDITIVE_WORDS

pytestmark = pytest.mark.django_db

S1, S2 = SystemMessage("be brief"), SystemMessage("be long")
U1, U2, U3, U4 = (UserMessage(text) for text in ("one", "two", "three", "four"))
A1 = AiMessage("hello")
DAY = datetime.timedelta(days=1)
NO_WINDOW = lambda memory_id: None  # noqa: E731
STATEMENTS = range(1, 14)
"""More statements than any operation takes for a conversation: another writer may come between any two of them."""


def a_memory(memory_id: str = "a", limit: int = 3, *, keep_history: bool = True) -> ChatMemory:
    store = DjangoChatMemoryStore(keep_history=keep_history)
    return MessageWindowChatMemory(max_messages=limit, id=memory_id, store=store)


def counted_memory(memory_id: str = "a", limit: int = 1000) -> ChatMemory:
    return TokenWindowChatMemory(
        max_tokens=limit, token_count_estimator=ADDITIVE_WORDS, id=memory_id, store=DjangoChatMemoryStore()
    )


def everyone() -> models.QuerySet:
    return Conversation.objects.all()


def found_in(conversations=None, window_of=NO_WINDOW, *, repair: bool = False) -> list[Finding]:
    findings: list[Finding] = []
    operations.check(conversations or everyone(), window_of, findings.append, repair=repair)
    return findings


def everything_is_whole() -> dict[str, int]:
    """Assert that nothing is inconsistent, and return the number of rows of each conversation by memory id."""
    assert found_in() == []
    rows = everyone().annotate(rows=models.Count("messages")).order_by("pk")
    return dict(rows.values_list("memory_id", "rows"))


def rules_broken(**options) -> list[Invariant]:
    return [finding.rule for finding in found_in(**options)]


def age(by: datetime.timedelta, **which: object) -> None:
    """Make the messages older."""
    Message.objects.filter(**which).update(created_at=timezone.now() - by)


@contextmanager
def holding(memory_id: str) -> Iterator[None]:
    """Create objects of another model that protect a conversation."""

    def hold(sender, instance, **kwargs):
        if instance.memory_id == memory_id:
            raise models.ProtectedError("held", {Feedback(pk=1, is_good=True)})

    pre_delete.connect(hold, sender=Conversation)
    try:
        yield
    finally:
        pre_delete.disconnect(hold, sender=Conversation)


class TestClear:
    def test_clear_empties_the_memories_and_keeps_the_history(self):
        for memory_id in "ab":
            a_memory(memory_id).add(U1, U2, U3, U4)
        calls = []

        count = operations.clear(everyone(), each=lambda each, messages: calls.append((each.memory_id, messages)))

        assert count == 2
        assert calls == [("a", 3), ("b", 3)]
        assert a_memory("a").messages() == []
        assert Message.objects.count() == 8

    def test_clear_is_rolled_back_if_its_callback_fails(self):
        for memory_id in "ab":
            a_memory(memory_id).add(U1)

        def fail_at_b(conversation, messages):
            if conversation.memory_id == "b":
                raise RuntimeError

        with pytest.raises(RuntimeError):
            operations.clear(everyone(), each=fail_at_b)

        assert a_memory("a").messages() == []
        assert a_memory("b").messages() == [U1]


class TestRecount:
    def test_recount_uses_the_window_of_each_conversation(self):
        a_memory("a").add(U1, U2)
        calls = []

        count = operations.recount(
            everyone(),
            lambda memory_id: Window(10, ADDITIVE_WORDS),
            each=lambda each, tokens: calls.append((each.memory_tokens, tokens)),
        )

        expected = sum(ADDITIVE_WORDS.estimate_token_count_in_message(message) for message in (U1, U2))
        assert count == 1
        assert calls == [(0, expected)]
        assert Conversation.objects.get().memory_tokens == expected

    def test_recount_is_rejected_without_an_estimator(self):
        a_memory("a").add(U1)
        refused = []

        count = operations.recount(
            everyone(), NO_WINDOW, refused=lambda each, error: refused.append((each.memory_id, type(error)))
        )

        assert count == 0
        assert refused == [("a", NoCounterError)]
        with pytest.raises(NoCounterError, match="'a' has no estimator"):
            operations.recount(everyone(), lambda memory_id: Window(10))


class TestErase:
    def test_erase_deletes_everything_and_returns_a_receipt(self):
        a_memory("a").add(U1, U2, U3, U4)
        a_memory("b").add(U1)
        a_memory("other").add(U1)
        before = datetime.datetime.now(datetime.UTC)

        receipt = operations.erase(Conversation.objects.filter(memory_id__in=["a", "b"]))

        assert receipt.messages == {"a": 4, "b": 1}
        assert before <= receipt.erased_at <= datetime.datetime.now(datetime.UTC)
        assert Conversation.objects.get().memory_id == "other"
        assert Message.objects.count() == 1

    def test_a_dry_run_returns_the_same_and_deletes_nothing(self):
        a_memory("a").add(U1, U2)

        assert operations.erase(everyone(), dry_run=True).messages == {"a": 2}
        assert operations.erase(everyone()).messages == {"a": 2}

    def test_erase_reads_no_messages(self):
        a_memory("a").add(U1, U2)

        with CaptureQueriesContext(connection) as statements:
            operations.erase(everyone())

        about_messages = [each["sql"] for each in statements if "chatmemory_message" in each["sql"]]
        assert about_messages
        assert all(sql.startswith(("DELETE", "SELECT COUNT(*)")) or " EXISTS(" in sql for sql in about_messages)

    def test_protected_conversations_are_skipped(self):
        for memory_id in "abc":
            a_memory(memory_id).add(U1)
        refused = []

        with holding("b"):
            receipt = operations.erase(everyone(), refused=lambda each, error: refused.append(each.memory_id))

        assert receipt.messages == {"a": 1, "c": 1}
        assert refused == ["b"]
        assert a_memory("b").messages() == [U1]

    def test_protection_raises_an_error_without_a_callback(self):
        a_memory("b").add(U1)

        with holding("b"), pytest.raises(models.ProtectedError):
            operations.erase(everyone())

        assert a_memory("b").messages() == [U1]

    @pytest.mark.django_db(transaction=True)
    def test_erasing_idle_conversations_never_loses_a_concurrent_message(self):
        for after in STATEMENTS:
            everyone().delete()
            a_memory("a").add(U1)
            everyone().update(updated_at=timezone.now() - 2 * DAY)

            with another_writer(lambda: a_memory("a").add(U2), after):
                operations.erase(Conversation.objects.idle_since(timezone.now() - DAY))

            assert a_memory("a").messages() in [[U1, U2], [U2]]
            assert found_in() == []

    @pytest.mark.django_db(transaction=True)
    def test_concurrently_erased_conversations_are_skipped(self):
        for after in STATEMENTS:
            for memory_id in "ab":
                a_memory(memory_id).add(U1)

            with another_writer(lambda: Conversation.objects.filter(memory_id="b").delete(), after):
                operations.erase(everyone())

            assert not Conversation.objects.exists()
            assert not Message.objects.exists()

    @pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite in memory is one connection")
    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("erase", [operations.erase, ConversationQuerySet.delete])
    def test_conversations_written_after_the_snapshot_are_kept(self, erase: Callable[[models.QuerySet], object]):
        a_memory("a").add(U1)
        Conversation.objects.update(updated_at=timezone.now() - 2 * DAY)
        idle = Conversation.objects.idle_since(timezone.now() - DAY)

        with reading_repeatably():
            try:
                with transaction.atomic():
                    assert idle.count() == 1
                    with another_writer(lambda: a_memory("a").add(U2), 1):
                        Message.objects.count()
                    erase(idle)
            except DatabaseError:
                assert connection.vendor == "postgresql"  # PostgreSQL raises an error where MariaDB continues.

        assert a_memory("a").messages() == [U1, U2]

    @pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite in memory is one connection")
    @pytest.mark.django_db(transaction=True)
    def test_a_transaction_aborted_by_another_one_is_retried(self):
        a_memory("a").add(U1)
        everyone().update(updated_at=timezone.now() - 2 * DAY)
        has_written = threading.Event()

        def add_slowly() -> None:
            with transaction.atomic():
                a_memory("a").add(U2)
                has_written.set()
                time.sleep(0.3)
            connections.close_all()

        other = threading.Thread(target=add_slowly)
        other.start()
        has_written.wait()
        with reading_repeatably():
            receipt = operations.erase(Conversation.objects.idle_since(timezone.now() - DAY))
        other.join()

        assert receipt.messages == {}
        assert a_memory("a").messages() == [U1, U2]


@contextmanager
def reading_repeatably() -> Iterator[None]:
    """Set the connection of this thread to REPEATABLE READ."""
    set_isolation("REPEATABLE READ")
    try:
        yield
    finally:
        connection.close()


def an_old_talk() -> ChatMemory:
    """Create three evicted messages and a memory of a pinned system message and two others, all old."""
    memory = a_memory("a")
    memory.add(S1, U1, A1)
    memory.add(U2, U3, U4)
    age(10 * DAY)
    return memory


class NoReplica:
    """A router that directs all reads to a nonexistent database."""

    def db_for_read(self, model, **hints):
        return "replica"

    def db_for_write(self, model, **hints):
        return "default"


def joined() -> models.QuerySet:
    """Select conversations as a tenant policy might, with joins that return each several times."""
    return Conversation.objects.filter(messages__in_history=True, owner__groups__name__startswith="tenant")


def distinct() -> models.QuerySet:
    return joined().distinct()


def distinct_and_ordered() -> models.QuerySet:
    return joined().select_related("owner").order_by("-owner__username", "-updated_at").distinct()


def annotated() -> models.QuerySet:
    return joined().annotate(groups=models.Count("owner__groups")).filter(groups__gt=1)


def with_everything() -> models.QuerySet:
    return distinct().with_size().with_preview([MessageType.USER])


@pytest.mark.parametrize("selected", [joined, distinct, distinct_and_ordered, annotated, with_everything])
class TestConversationsSelectedThroughJoins:
    """Each conversation is processed once, on every database."""

    @pytest.fixture(autouse=True)
    def talks(self) -> None:
        ann = User.objects.create_user("ann")
        ann.groups.add(*(Group.objects.create(name=f"tenant {number}") for number in range(2)))
        for memory_id in "abc":
            a_memory(memory_id).add(U1, A1, U2)
        Conversation.objects.filter(memory_id__in="ab").update(owner=ann, metadata={"tier": "gold"})

    def test_erase_processes_each_conversation_once(self, selected):
        calls = []

        receipt = operations.erase(selected(), each=lambda conversation, count: calls.append(conversation.memory_id))

        assert receipt.messages == {"a": 3, "b": 3}
        assert calls == ["a", "b"]
        assert everything_is_whole() == {"c": 3}

    def test_protected_conversations_are_skipped(self, selected):
        refused = []

        with holding("a"):
            receipt = operations.erase(
                selected(), refused=lambda conversation, error: refused.append((conversation.memory_id, type(error)))
            )

        assert receipt.messages == {"b": 3}
        assert refused == [("a", models.ProtectedError)]
        assert everything_is_whole() == {"a": 3, "c": 3}

    def test_delete_processes_each_conversation_once(self, selected):
        _, deleted = selected().delete()

        assert deleted["chatmemory.Conversation"] == 2
        assert deleted["chatmemory.Message"] == 6
        assert everything_is_whole() == {"c": 3}

    def test_clear_reports_each_conversation_once(self, selected):
        calls = []

        assert (
            operations.clear(selected(), each=lambda conversation, count: calls.append((conversation.memory_id, count)))
            == 2
        )

        assert calls == [("a", 3), ("b", 3)]

    def test_export_contains_each_conversation_once(self, selected):
        heads = [json.loads(line) for line in operations.export_lines(selected()) if '"conversation"' in line]

        assert [head["memory_id"] for head in heads] == ["a", "b"]

    def test_lock_returns_each_conversation_once(self, selected):
        keys = list(selected().order_by("pk").values_list("pk", flat=True))

        with transaction.atomic():
            assert {each.memory_id for each in selected().lock(keys)} == {"a", "b"}

    def test_search_finds_each_conversation_once(self, selected):
        found = selected().with_metadata("tier", "gold").search("hello")

        assert {each.memory_id for each in found} == {"a", "b"}
        assert operations.annotate(selected(), "a", 1, {"k": 1}).metadata == {"k": 1}
        assert operations.annotate(selected(), "c", 1, {"k": 1}) is None


class TestAnnotate:
    @pytest.fixture(autouse=True)
    def talk(self) -> None:
        a_memory("a").add(S1, U1, NewMessage(A1, {"model": "m", "n": 1}))
        a_memory("b").add(U1)

    def annotated(self, sequence: int, changes: object, memory_id: str = "a", **options) -> Message | None:
        return operations.annotate(everyone(), memory_id, sequence, changes, **options)

    @pytest.mark.parametrize(
        ("sequence", "changes", "expected"),
        [
            (3, {"rating": "up"}, {"model": "m", "n": 1, "rating": "up"}),
            (3, {"model": {"name": "m"}}, {"model": {"name": "m"}, "n": 1}),
            (3, {"n": None, "missing": None}, {"model": "m"}),
            (3, {"n": True}, {"model": "m", "n": True}),
            (3, {"n": {"deep": None}}, {"model": "m", "n": {"deep": None}}),
            (2, {"rating": "Grüße 京都 😀"}, {"rating": "Grüße 京都 😀"}),
        ],
    )
    def test_values_are_merged_and_none_removes_a_key(self, sequence, changes, expected):
        before = Conversation.objects.get(memory_id="a")

        message = self.annotated(sequence, changes)

        after = Conversation.objects.get(memory_id="a")
        stored = Message.objects.get(conversation=after, sequence=sequence).metadata
        assert json.dumps(stored, sort_keys=True) == json.dumps(expected, sort_keys=True)  # In Python, 1 == True.
        assert json.dumps(message.metadata, sort_keys=True) == json.dumps(expected, sort_keys=True)
        assert after.version == message.conversation.version == before.version + 1
        assert after.updated_at == before.updated_at
        everything_is_whole()

    @pytest.mark.parametrize(
        ("sequence", "changes"), [(3, {}), (3, {"n": 1}), (3, {"missing": None}), (2, {}), (2, {"a": None})]
    )
    def test_nothing_is_written_if_nothing_changes(self, sequence, changes):
        before = list(Conversation.objects.values()), list(Message.objects.values())

        assert self.annotated(sequence, changes).sequence == sequence

        assert (list(Conversation.objects.values()), list(Message.objects.values())) == before

    def test_only_history_messages_of_the_given_conversations_and_types_are_found(self):
        a_memory("a").set([UserMessage("a summary")])

        assert self.annotated(1, {"k": 1}, types=[MessageType.SYSTEM]) is not None
        assert self.annotated(1, {"k": 1}, types=[MessageType.USER, MessageType.AI]) is None
        assert self.annotated(4, {"k": 1}) is None
        assert self.annotated(9, {"k": 1}) is None
        assert self.annotated(1, {"k": 1}, memory_id="c") is None
        assert operations.annotate(everyone().filter(memory_id="b"), "a", 1, {"k": 1}) is None
        assert (
            not Message.objects.exclude(conversation__memory_id="a", sequence__in=[1, 3])
            .exclude(metadata__isnull=True)
            .exists()
        )

    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            (["k"], TypeError),
            ({1: "k"}, TypeError),
            ({"k": object()}, TypeError),
            ({"k": "\0"}, ValueError),
            ({"\ud800": 1}, ValueError),
            ({"k": float("nan")}, ValueError),
            ({"k": "x" * 5 * 1024 * 1024}, ValueError),
            ({"k": "\u0001" * 3 * 1024 * 1024}, ValueError),
        ],
    )
    def test_values_that_a_database_cannot_store_are_rejected(self, changes, error):
        with pytest.raises(error, match=r"metadata|MAX_MESSAGE_BYTES"):
            self.annotated(3, changes)

        assert Message.objects.get(conversation__memory_id="a", sequence=3).metadata == {"model": "m", "n": 1}

    def test_the_limit_applies_to_the_merged_metadata(self):
        self.annotated(2, {"a": "x" * 50}, max_bytes=100)

        with pytest.raises(ValueError, match="metadata has 115 bytes; at most 100 are allowed"):
            self.annotated(2, {"b": "x" * 50}, max_bytes=100)

    def test_annotate_is_part_of_the_surrounding_transaction(self):
        with pytest.raises(ConnectionError), transaction.atomic():
            self.annotated(2, {"rating": "up"})
            raise ConnectionError

        assert Message.objects.get(conversation__memory_id="a", sequence=2).metadata is None

    @pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite in memory is one connection")
    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("statement", range(1, 8))
    def test_concurrent_annotations_are_kept(self, statement):
        with reading_repeatably():
            try:
                with another_writer(lambda: self.annotated(3, {"theirs": 1}), statement), transaction.atomic():
                    Message.objects.count()
                    self.annotated(3, {"mine": 1})
            except DatabaseError:
                assert connection.vendor == "postgresql"  # PostgreSQL raises an error where MariaDB continues.
                self.annotated(3, {"mine": 1})

        noted = Message.objects.get(conversation__memory_id="a", sequence=3).metadata
        assert noted == {"model": "m", "n": 1, "theirs": 1, "mine": 1}


class TestConversationQuerySetDelete:
    def test_the_write_database_is_used(self, settings):
        a_memory("a").add(U1)
        settings.DATABASE_ROUTERS = ["tests.database.test_operations.NoReplica"]

        Conversation.objects.filter(memory_id="a").delete()
        operations.erase(Conversation.objects.filter(memory_id="a"))

        settings.DATABASE_ROUTERS = []
        assert not Conversation.objects.exists()

    def test_many_take_as_many_statements_as_one(self, django_assert_max_num_queries):
        for number in range(50):
            a_memory(str(number)).add(U1)

        with django_assert_max_num_queries(18):  # One each for records, approvals and calls, four for streams.
            Conversation.objects.all().delete()

    def test_long_conversations_are_deleted_in_separate_transactions(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(chatmemory_django.models.conversations, "ERASE_MESSAGES", 6)
        for number, length in enumerate([1, 2, 9, 1, 1]):
            a_memory(str(number)).add(*[U1] * length)

        with CaptureQueriesContext(connection) as statements:
            deleted, counts = Conversation.objects.all().delete()

        erasures = [each["sql"] for each in statements if each["sql"].startswith("DELETE FROM")]
        assert len([sql for sql in erasures if "chatmemory_message" in sql.split("WHERE")[0]]) == 3
        assert (deleted, counts["chatmemory.Message"], counts["chatmemory.Conversation"]) == (19, 14, 5)

    def test_django_s_own_deletion_leaves_no_messages(self):
        a_memory("a").add(U1)

        Conversation._base_manager.all().delete()

        assert not Message.objects.exists()


class TestPrune:
    @pytest.fixture
    def talk(self) -> ChatMemory:
        return an_old_talk()

    def left(self) -> list[int]:
        return list(Message.objects.values_list("sequence", flat=True).order_by("sequence"))

    def test_old_messages_outside_the_memory_are_deleted(self, talk: ChatMemory):
        age(2 * DAY, sequence=3)
        before = talk.messages()

        pruned = operations.prune(everyone(), history_older_than=5 * DAY)

        assert pruned == Pruned(conversations=0, messages=2)
        assert self.left() == [1, 3, 5, 6]
        assert talk.messages() == before == [S1, U3, U4]
        assert found_in() == []

    def test_messages_replaced_inside_the_window_are_deleted(self):
        memory = a_memory("a")
        memory.add(U1, S1)
        memory.add(S2)
        age(10 * DAY)

        operations.prune(everyone(), history_older_than=5 * DAY)

        assert self.left() == [1, 3]
        assert memory.messages() == [U1, S2]
        assert found_in() == []

    @pytest.mark.parametrize(
        ("leave", "left"),
        [
            (lambda memory: memory.pop(), [1, 2]),
            (lambda memory: memory.remove(2), [1, 3]),
            (lambda memory: memory.remove(1), [2, 3]),
            (lambda memory: memory.rewind(2), [1, 2]),
            (lambda memory: memory.set([U1]), [4]),
            (lambda memory: (memory.set([A1]), memory.pop(), memory.add(U4)), [5]),
            (lambda memory: memory.clear(), []),
        ],
        ids=["popped", "removed", "first_removed", "rewound", "set", "replaced", "cleared"],
    )
    def test_messages_that_left_without_being_evicted_are_deleted(self, leave, left):
        memory = a_memory("a", limit=10)
        memory.add(U1, U2, U3)
        leave(memory)
        before = memory.messages()
        age(10 * DAY)

        operations.prune(everyone(), history_older_than=5 * DAY)

        assert self.left() == left
        assert memory.messages() == before
        assert found_in() == []

    @pytest.mark.parametrize(
        ("title", "left"), [("one", ""), ("two", "two"), ("a title of its user", "a title of its user")]
    )
    def test_a_title_that_is_made_of_a_pruned_message_goes_with_it(self, title, left):
        a_memory("a", limit=1).add(U1, U2, U3)
        Conversation.objects.update(title=title)
        age(10 * DAY, sequence=1)

        operations.prune(everyone(), history_older_than=5 * DAY)

        assert (self.left(), Conversation.objects.get().title) == ([2, 3], left)

    def test_a_client_message_id_is_known_until_its_message_is_pruned(self):
        memory = a_memory("a", limit=2)
        memory.add(NewMessage(U1, client_message_id="one"), NewMessage(U2, client_message_id="two"), U3)
        memory.remove(2)
        again = [NewMessage(U1, client_message_id="one"), NewMessage(U2, client_message_id="two")]
        kept = memory.add(*again)
        age(10 * DAY)
        operations.prune(everyone(), history_older_than=5 * DAY)

        assert kept == [1, 2]
        assert memory.add(*again) == [4, 5]

    def test_conversations_that_are_all_in_memory_are_not_visited(self, django_assert_num_queries):
        for number in range(5):
            a_memory(str(number), limit=10).add(U1, U2)
        age(10 * DAY)

        with django_assert_num_queries(3):  # One for temporary conversations, one for what is left of erased ones.
            operations.prune(everyone(), history_older_than=5 * DAY)

    def test_pruning_is_a_write_but_not_activity(self, talk: ChatMemory):
        before = Conversation.objects.get()

        operations.prune(everyone(), history_older_than=5 * DAY)
        operations.prune(everyone(), history_older_than=5 * DAY)  # Nothing is left to prune.

        after = Conversation.objects.get()
        assert after.version == before.version + 1
        assert after.updated_at == before.updated_at
        assert after.total_messages == before.total_messages == 6

    def test_prune_works_in_batches(self, talk: ChatMemory, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(remains, "BATCH", 2)
        calls = []

        operations.prune(everyone(), history_older_than=5 * DAY, each=lambda each, messages: calls.append(messages))

        assert calls == [2, 1]  # sequences 2 to 3, and 4 to 5
        assert self.left() == [1, 5, 6]

    def test_idle_conversations_are_erased_and_others_kept(self, talk: ChatMemory):
        a_memory("b").add(U1)
        Conversation.objects.filter(memory_id="a").update(updated_at=timezone.now() - 10 * DAY)

        assert operations.prune(everyone(), idle=5 * DAY) == Pruned(conversations=1, messages=0)
        assert Conversation.objects.get().memory_id == "b"

    def test_temporary_conversations_end_at_their_time_whatever_is_written_to_them(self):
        now = datetime.datetime.now(datetime.UTC)
        for memory_id, hours in [("over", -1), ("going on", 1)]:
            a_memory(memory_id).add(U1)
            Conversation.objects.filter(memory_id=memory_id).update(expires_at=now + hours * DAY / 24)

        assert operations.prune(everyone(), idle=DAY, dry_run=True) == Pruned(1, 0)
        assert operations.prune(everyone()) == Pruned(1, 0)
        assert Conversation.objects.get().memory_id == "going on"

    def test_the_setting_has_the_periods(self, settings, talk: ChatMemory):
        settings.CHATMEMORY = {"RETENTION": {"HISTORY_OLDER_THAN": 5, "IDLE": 6 * DAY}}
        for memory_id, days in [("idle", 7), ("active", 5)]:
            a_memory(memory_id).add(U1)
            Conversation.objects.filter(memory_id=memory_id).update(updated_at=timezone.now() - days * DAY)

        assert operations.apply_retention(everyone(), dry_run=True) == Pruned(1, 3)
        assert operations.apply_retention(everyone()) == Pruned(1, 3)
        assert {each.memory_id for each in everyone()} == {"a", "active"}

        settings.CHATMEMORY = {}
        with pytest.raises(ImproperlyConfigured, match="RETENTION"):
            operations.apply_retention(everyone())

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite in memory is one connection")
    @pytest.mark.parametrize("statement", STATEMENTS)
    def test_a_conversation_that_gets_a_message_just_then_is_not_idle(self, settings, statement):
        settings.CHATMEMORY = {"RETENTION": {"IDLE": 5}}
        a_memory("a").add(U1)
        Conversation.objects.update(updated_at=timezone.now() - 6 * DAY)

        with another_writer(lambda: a_memory("a").add(U2), statement):
            pruned = operations.apply_retention(everyone())

        found = Conversation.objects.filter(memory_id="a").first()
        texts = [] if found is None else [row.text for row in found.history()]
        # The writer came before the lock, and all stays; or after the erasure, and began another one; or not at all.
        assert (pruned.conversations, texts) in [(0, ["one", "two"]), (1, ["two"]), (1, [])]

    @pytest.mark.parametrize("use_tz", [True, False])
    def test_a_conversation_is_kept_until_the_first_of_its_ends(self, settings, use_tz):
        settings.USE_TZ, settings.TIME_ZONE = use_tz, "America/Los_Angeles"
        settings.CHATMEMORY = {"RETENTION": {"TEMPORARY": 2}}
        usual, temporary = Conversation(memory_id="a"), Conversation(memory_id="b", expires_at=new_expiry())
        in_two_days = datetime.datetime.now(datetime.UTC) + 2 * DAY

        assert usual.kept_until is None
        assert abs(temporary.kept_until - in_two_days) < DAY / 24
        settings.CHATMEMORY = {"RETENTION": {"IDLE": 1, "TEMPORARY": None}}
        assert usual.kept_until == temporary.kept_until - (temporary.updated_at - usual.updated_at)
        assert abs(usual.kept_until - in_two_days + DAY) < DAY / 24
        with pytest.raises(ValueError, match="TEMPORARY"):
            new_expiry()

    def test_a_fork_and_an_import_of_a_temporary_conversation_end_with_it(self):
        a_memory("a").add(U1)
        end = datetime.datetime.now(datetime.UTC) + DAY
        Conversation.objects.update(expires_at=end)

        operations.fork(Conversation.objects.get(), "fork")
        operations.import_lines(list(operations.export_lines(everyone().filter(memory_id="a"))), rename=True)

        assert [each.expires_at for each in everyone()] == [end] * 3

    def test_a_dry_run_reports_and_deletes_nothing(self, talk: ChatMemory):
        a_memory("b").add(U1)
        Conversation.objects.filter(memory_id="b").update(updated_at=timezone.now() - 10 * DAY)
        before = list(Conversation.objects.values())

        pruned = operations.prune(everyone(), history_older_than=5 * DAY, idle=5 * DAY, dry_run=True)

        assert pruned == Pruned(conversations=1, messages=3)
        assert list(Conversation.objects.values()) == before
        assert Message.objects.count() == 7

    def test_prune_works_the_same_without_time_zones(self, settings):
        settings.USE_TZ = False
        settings.TIME_ZONE = "America/Los_Angeles"
        an_old_talk()
        Conversation.objects.create(updated_at=timezone.now() - 10 * DAY)

        assert operations.prune(everyone(), history_older_than=11 * DAY, idle=11 * DAY) == Pruned(0, 0)
        assert operations.prune(everyone(), history_older_than=9 * DAY, idle=9 * DAY) == Pruned(1, 3)

    def test_pruning_nothing_does_nothing(self, talk: ChatMemory):
        assert operations.prune(everyone()) == Pruned(0, 0)

    @pytest.mark.django_db(transaction=True)
    def test_messages_that_returned_to_the_memory_are_never_deleted(self):
        def rewind() -> None:
            Conversation.objects.update(window_start=2, memory_messages=6, version=models.F("version") + 1)

        for after in STATEMENTS:
            everyone().delete()
            an_old_talk()

            with another_writer(rewind, after):
                operations.prune(everyone(), history_older_than=5 * DAY)

            assert self.left() in [[1, 2, 3, 4, 5, 6], [1, 5, 6]]

    @pytest.mark.django_db(transaction=True)
    def test_concurrently_written_conversations_are_never_erased(self):
        for after in STATEMENTS:
            everyone().delete()
            talk = an_old_talk()
            everyone().update(updated_at=timezone.now() - 10 * DAY)

            with another_writer(lambda: a_memory("a").add(U1), after):
                operations.prune(everyone(), idle=5 * DAY, history_older_than=5 * DAY)

            assert talk.messages() in [[S1, U4, U1], [U1]]
            assert found_in() == []


def the_memory(**columns: object) -> Callable[[], object]:
    return lambda: Conversation.objects.update(**columns)


def the_row(number: int, /, **columns: object) -> Callable[[], object]:
    return lambda: Message.objects.filter(sequence=number).update(**columns)


def without_row(sequence: int) -> Callable[[], object]:
    return lambda: Message.objects.filter(sequence=sequence).delete()


BROKEN: dict[str, tuple[Callable[[], object], set[Invariant]]] = {
    "a sequence too high": (
        the_row(2, sequence=99),
        {Invariant.SEQUENCE, Invariant.MEMORY_MESSAGES, Invariant.MEMORY_TOKENS},
    ),
    "a sequence of 0": (the_row(2, sequence=0), {Invariant.SEQUENCE}),
    "a window after the end": (
        the_memory(window_start=99),
        {Invariant.WINDOW_START, Invariant.MEMORY_MESSAGES, Invariant.MEMORY_TOKENS},
    ),
    "a window before the beginning": (
        the_memory(window_start=0),
        {Invariant.WINDOW_START, Invariant.MEMORY_MESSAGES, Invariant.MEMORY_TOKENS},
    ),
    "a missing pinned message": (
        without_row(1),
        {Invariant.PINNED, Invariant.MEMORY_MESSAGES, Invariant.MEMORY_TOKENS},
    ),
    "a pinned message that is not a system message": (the_row(1, type="USER"), {Invariant.PINNED}),
    "a pinned message that was replaced": (the_row(1, superseded=True), {Invariant.PINNED}),
    "a missing message of the memory": (
        without_row(5),
        {Invariant.GAP, Invariant.MEMORY_MESSAGES, Invariant.MEMORY_TOKENS},
    ),
    "too many messages in memory": (the_memory(memory_messages=4), {Invariant.MEMORY_MESSAGES}),
    "too few messages in memory": (the_memory(memory_messages=0), {Invariant.MEMORY_MESSAGES}),
    "too many tokens": (the_memory(memory_tokens=99), {Invariant.MEMORY_TOKENS}),
    "uncounted tokens": (the_memory(counted_by=""), {Invariant.MEMORY_TOKENS}),
    "a row counted by another estimator": (the_row(5, counted_by="other"), {Invariant.COUNTED_BY}),
    "an uncounted row": (the_row(5, token_count=None), {Invariant.COUNTED_BY}),
    "too few messages in all": (the_memory(total_messages=5), {Invariant.TOTAL_MESSAGES}),
    "too many messages in all": (the_memory(total_messages=7), {Invariant.TOTAL_MESSAGES}),
    "a payload that is not JSON": (the_row(2, payload="{"), {Invariant.CONTENT}),
    "a payload of another type": (the_row(2, payload='{"type":"AI","text":"x"}'), {Invariant.CONTENT}),
    "an unknown type": (the_row(2, type="ROBOT"), {Invariant.CONTENT}),
    "a type that needs a payload": (the_row(2, type="CUSTOM"), {Invariant.CONTENT}),
}


class TestCheck:
    @pytest.fixture
    def talk(self) -> None:
        """Create six messages: the first is pinned, two others are in the memory."""
        tokens = ADDITIVE_WORDS.estimate_token_count_in_messages([S1, U1, U2])
        memory = counted_memory("a", limit=tokens)
        memory.add(S1, U1, U2)
        memory.add(UserMessage(f"{PRIVATE} "))
        memory.clear()
        Conversation.objects.all().delete()
        memory.add(S1, U1, U2)
        memory.add(U3)
        memory.add(U4)
        memory.add(A1)

    @pytest.mark.parametrize("keep_history", [True, False])
    @pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
    def test_no_problem_is_found_after_any_operation(self, story, keep_history: bool):
        happens, options, *_ = story
        store = DjangoChatMemoryStore(keep_history=keep_history)
        happens(MessageWindowChatMemory(max_messages=3, id="a", store=store, **options))
        happens(
            TokenWindowChatMemory(max_tokens=20, token_count_estimator=ADDITIVE_WORDS, id="b", store=store, **options)
        )
        age(10 * DAY)

        assert found_in(window_of=lambda memory_id: Window(3) if memory_id == "a" else Window(20, ADDITIVE_WORDS)) == []
        operations.prune(everyone(), history_older_than=DAY)
        assert found_in() == []

    @pytest.mark.parametrize("added", [(), (U2,), (SystemMessage("later"),)])
    def test_two_system_messages_stored_by_a_set_that_continues_are_valid(
        self, added: tuple[SystemMessage | UserMessage, ...]
    ):
        memory = a_memory("a")
        memory.add(S1, U1)

        memory.set([*memory.messages(), SystemMessage("another")])
        memory.add(*added)

        assert sum(each.type == "SYSTEM" for each in memory.messages()) == 2
        assert found_in() == []

    def test_two_system_messages_stored_by_set_are_valid(self):
        memory = a_memory("a")
        memory.add(U1, U2)
        memory.set([S1, S2, U1])

        assert found_in() == []

    @pytest.mark.parametrize(("break_it", "expected"), BROKEN.values(), ids=BROKEN.keys())
    def test_the_violated_rule_is_named(self, talk, break_it: Callable[[], object], expected: set[Invariant]):
        assert found_in() == []
        break_it()

        assert set(rules_broken()) == expected

    def test_findings_describe_the_problem_without_message_text(self):
        a_memory("a").add(UserMessage(PRIVATE), UserMessage(PRIVATE))
        Message.objects.filter(sequence=2).update(payload=f'{{"type":"USER","contents":"{PRIVATE}"}}')
        Conversation.objects.update(memory_messages=5)

        findings = found_in()

        assert [(each.memory_id, each.rule, each.detail) for each in findings] == [
            ("a", "content", "1 rows do not hold a message; the first is 2."),
            ("a", "memory_messages", "It is 5, but 2 rows are in the memory."),
        ]

    @pytest.mark.parametrize(
        ("window", "expected"),
        [
            (Window(3), []),
            (Window(2), [Invariant.WINDOW]),
            (Window(1000, ADDITIVE_WORDS), []),
            (Window(4, ADDITIVE_WORDS), [Invariant.WINDOW]),
            (None, []),
        ],
    )
    def test_memories_are_checked_against_the_window(self, talk, window: Window | None, expected: list[Invariant]):
        assert rules_broken(window_of=lambda memory_id: window) == expected

    def test_a_system_message_larger_than_the_window_is_valid(self):
        counted_memory("a", limit=1).add(SystemMessage("one two three four"))

        assert rules_broken(window_of=lambda memory_id: Window(1, ADDITIVE_WORDS)) == []

    def test_a_memory_set_to_system_messages_is_valid(self):
        memory = a_memory("a")
        memory.add(U1)
        memory.set([SystemMessage("one"), SystemMessage("two"), U2])
        memory.add(SystemMessage("three"))
        memory.add(SystemMessage("four"))

        assert rules_broken() == []

    def test_counts_of_another_estimator_are_ignored(self):
        a_memory("a").add(U1, U2)

        assert rules_broken(window_of=lambda memory_id: Window(1, ADDITIVE_WORDS)) == []

    def test_check_changes_nothing(self, talk):
        Conversation.objects.update(memory_messages=9)
        before = Conversation.objects.values().get()

        found_in()

        assert Conversation.objects.values().get() == before

    @pytest.mark.parametrize(
        "columns",
        [
            {"memory_messages": 9},
            {"memory_tokens": 99},
            {"counted_by": "other"},
            {"total_messages": 5},
            {"memory_messages": 0, "memory_tokens": 0, "total_messages": 0},
        ],
    )
    def test_counters_are_repaired(self, talk, columns: dict[str, object]):
        before = Conversation.objects.values().get()
        Conversation.objects.update(**columns)

        findings = found_in(repair=True)

        assert findings
        assert all(finding.is_repaired for finding in findings)
        assert Conversation.objects.values().get() == {**before, "version": before["version"] + 1}
        assert found_in() == []

    def test_nothing_is_repaired_by_guessing(self, talk):
        Message.objects.filter(sequence=2).delete()  # As far as the rows show, no history was lost.
        Conversation.objects.update(total_messages=2)
        before = Conversation.objects.values().get()

        assert [(each.rule, each.is_repaired) for each in found_in(repair=True)] == [(Invariant.TOTAL_MESSAGES, False)]
        assert Conversation.objects.values().get() == before

    def test_the_callback_gets_the_number_of_findings_per_conversation(self, talk):
        a_memory("b").add(U1)
        Conversation.objects.filter(memory_id="b").update(memory_messages=5)
        calls = []

        operations.check(
            everyone(), NO_WINDOW, lambda finding: None, each=lambda each, count: calls.append((each.memory_id, count))
        )

        assert calls == [("a", 0), ("b", 1)]

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("keep_history", [True, False])
    def test_a_concurrent_write_is_not_a_finding(self, keep_history: bool, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(one_by_one, "PAGE", 2)
        for after in STATEMENTS:
            everyone().delete()
            memory = a_memory("a", keep_history=keep_history)
            memory.add(S1, U1, U2)
            memory.add(U3)

            with another_writer(lambda memory=memory: memory.add(S2, U4), after):
                assert found_in() == []
