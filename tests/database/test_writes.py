"""Writes with concurrent writers and failures: each happens completely, once, or not at all."""

import datetime
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, OperationalError, connection, connections, transaction
from django.utils import timezone

from chatmemory_django import signals
from chatmemory_django.core.pending import Pending
from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, SummarizingChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import AiMessage, ChatMessage, NewMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import export_lines
from chatmemory_django.stores import ChatMemoryStore, InMemoryChatMemoryStore
from chatmemory_django.stores.base import ConversationErasedError
from chatmemory_django.stores.django import DjangoChatMemoryStore
from chatmemory_django.stores.django.statements import Parameter, Statement
from chatmemory_django.stores.django.writes import MAX_ROWS
from tests.database.interleaving import after_the_first_statement, in_another_connection, set_isolation
from tests.estimators import ADDITIVE_LETTERS, ADDITIVE_WORDS, JOINT, AdditiveWords

S1, S2 = SystemMessage("Be brief."), SystemMessage("Be kind, and patient.")
U1, U2, U3, A1 = UserMessage("one"), UserMessage("two two"), UserMessage("three three three"), AiMessage("an answer")

ESTIMATORS = {"messages": None, "words": ADDITIVE_WORDS, "letters": ADDITIVE_LETTERS, "joint": JOINT}
LIMITS = {"messages": 5, "words": 32, "letters": 25, "joint": 40}


def build(
    store: ChatMemoryStore, measure: str = "messages", limit: int | None = None, memory_id: str = "c"
) -> ChatMemory:
    if ESTIMATORS[measure] is None:
        return MessageWindowChatMemory(max_messages=limit or LIMITS[measure], id=memory_id, store=store)
    return TokenWindowChatMemory(
        max_tokens=limit or LIMITS[measure], token_count_estimator=ESTIMATORS[measure], id=memory_id, store=store
    )


def django_memory(measure: str = "messages", limit: int | None = None, **options) -> ChatMemory:
    return build(DjangoChatMemoryStore(**options), measure, limit)


def assert_consistent() -> None:
    """Assert that the counters of every conversation match its rows."""
    for conversation in Conversation.objects.all():
        rows = list(conversation.memory())
        assert conversation.memory_messages == len(rows)
        assert len([row for row in rows if row.type == "SYSTEM"]) <= 1
        if conversation.counted_by:
            assert {row.counted_by for row in rows} <= {conversation.counted_by}
            assert conversation.memory_tokens == sum(row.token_count for row in rows)
        for row in conversation.messages.exclude(counted_by=""):
            assert row.token_count == ESTIMATORS[row.counted_by].estimate_token_count_in_message(row.chat_message)


VERBS: dict[str, Callable[[ChatMemory], object]] = {
    "add": lambda memory: memory.add(U3),
    "add many": lambda memory: memory.add(*[U1, U2, A1] * 5),
    "add a system message": lambda memory: memory.add(S2),
    "add the same system message": lambda memory: memory.add(S1),
    "set": lambda memory: memory.set([S2, U1, U2]),
    "set a continuation": lambda memory: memory.set([S1, A1, U3]),
    "clear": lambda memory: memory.clear(),
    "recount": lambda memory: (
        isinstance(memory.store, DjangoChatMemoryStore)
        and memory.window().counter
        and memory.store.recount(memory.id, memory.window())
    ),
    "foreign": lambda memory: memory.store.update_messages(memory.id, [U2, U1]),
}


@pytest.mark.django_db
class TestAnotherWriterBetweenReadAndWrite:
    @pytest.mark.parametrize("concurrent", VERBS)
    @pytest.mark.parametrize("verb", VERBS)
    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ("messages", "messages"),
            pytest.param("words", "words", marks=pytest.mark.slow),
            ("words", "letters"),
            pytest.param("joint", "words", marks=pytest.mark.slow),
        ],
    )
    def test_the_result_is_that_of_some_serial_order(self, verb, concurrent, first, second):
        if verb == "recount" and first not in ("words", "letters"):
            pytest.skip("there are no counts to store")

        def replay(*order: tuple[str, str]) -> list[ChatMessage]:
            store = InMemoryChatMemoryStore()
            build(store, first).add(U1, S1, U2, A1)
            for name, measure in order:
                VERBS[name](build(store, measure))
            return store.get_messages("c")

        django_memory(first).add(U1, S1, U2, A1)
        after_the_first_statement(
            lambda: VERBS[verb](django_memory(first)), lambda: VERBS[concurrent](django_memory(second))
        )

        orders = [[(concurrent, second), (verb, first)], [(verb, first), (concurrent, second)]]
        assert DjangoChatMemoryStore().get_messages("c") in [replay(*order) for order in orders]
        assert_consistent()

    @pytest.mark.parametrize("statement", [1, 2, 3])
    def test_a_turn_on_another_branch_sees_a_consistent_memory(self, statement):
        django_memory().add(U1, U2, A1, U3)
        seen = []

        def begin() -> None:
            with django_memory().turn(after=3) as turn:
                seen.append(turn.messages)

        after_the_first_statement(begin, lambda: django_memory().rewind(1), statement=statement)

        assert seen == [[U1, U2, A1]]

    def test_pop_finds_a_message_in_a_memory_that_was_never_empty(self):
        messages_window(2).add(U1, U2, A1, U3)
        popped = []

        after_the_first_statement(lambda: popped.append(messages_window(2).pop()), lambda: messages_window(2).rewind(2))

        assert popped == [U2]
        assert messages_window(2).messages() == [U1]

    @pytest.mark.parametrize("persist", ["late", "early"])
    def test_messages_of_a_turn_come_after_concurrent_ones(self, persist):
        django_memory().add(U1)

        def talk() -> None:
            with django_memory().turn(persist=persist) as turn:
                turn.add(U2)
                turn.add(A1)

        after_the_first_statement(talk, lambda: django_memory().add(U3))

        assert django_memory().messages() == [U1, U3, U2, A1]
        assert_consistent()

    def test_an_owner_who_concurrently_lost_the_conversation_writes_nothing(self):
        mine, yours = User.objects.create(username="me"), User.objects.create(username="you")
        memory = django_memory(owner=mine)
        memory.add(U1)

        with pytest.raises(PermissionDenied):
            after_the_first_statement(
                lambda: memory.add(U2), lambda: Conversation.objects.filter(memory_id="c").update(owner=yours)
            )

        assert django_memory().messages() == [U1]

    def test_an_add_to_a_concurrently_erased_conversation_creates_a_new_one(self):
        django_memory().add(U1)

        after_the_first_statement(lambda: django_memory().add(U2), lambda: Conversation.objects.all().delete())

        assert django_memory().messages() == [U2]
        assert list(Message.objects.values_list("sequence", flat=True)) == [1]

    @pytest.mark.parametrize("verb", ["add", "recount"])
    def test_counts_from_an_erased_conversation_are_not_applied_to_its_successor(self, verb):
        django_memory("letters", 1000).add(U1, U2)

        def recreate() -> None:
            Conversation.objects.all().delete()
            django_memory("letters", 1000).add(U3, S2)

        after_the_first_statement(lambda: VERBS[verb](django_memory("words", 1000)), recreate, statement=2)

        assert django_memory("words", 1000).messages() == [U3, S2, *([U3] if verb == "add" else [])]
        assert_consistent()

    def test_a_recount_there_and_back_evicts_no_more_than_necessary(self):
        words, letters = django_memory("words"), django_memory("letters", 1000)
        words.add(*[U3] * 5)

        def there_and_back() -> None:
            letters.store.recount("c", letters.window())
            words.store.recount("c", words.window())

        after_the_first_statement(lambda: words.add(U1), there_and_back)

        assert words.messages() == [U3, U3, U3, U3, U1]
        assert_consistent()


@pytest.mark.django_db
class TestAWriteThatStoresNothing:
    def test_counts_of_another_estimator_are_kept(self):
        small, large = django_memory("words", 30), django_memory("letters", 1000)
        small.add(S1, *[U2] * 4)
        before = Conversation.objects.values().get(), list(Message.objects.values("sequence", "token_count"))

        large.add(S1)

        assert (Conversation.objects.values().get(), list(Message.objects.values("sequence", "token_count"))) == before
        for _ in range(3):
            small.add(U1)
        assert small.messages() == [S1, U2, U2, U1, U1, U1]
        assert_consistent()

    @pytest.mark.parametrize("verb", ["set", "clear"])
    def test_the_version_is_unchanged(self, verb):
        memory = django_memory()
        memory.add(U1)
        memory.clear()
        before = Conversation.objects.get().version

        memory.clear() if verb == "clear" else memory.set([])

        assert Conversation.objects.get().version == before == 3


@pytest.mark.django_db
class TestVersion:
    def test_each_write_increments_it(self):
        memory = django_memory("words")
        for count, write in enumerate(
            [
                lambda: memory.add(U1),
                lambda: memory.add(U2, A1),
                lambda: memory.set([U1]),
                lambda: memory.store.recount("c", memory.window()),
                memory.clear,
            ],
            2,
        ):
            write()
            assert Conversation.objects.get().version == count

    def test_saving_a_conversation_increments_it_and_writes_no_fields_of_the_store(self):
        memory = django_memory()
        memory.add(U1)
        conversation = Conversation.objects.get()
        memory.add(U2)

        conversation.title = "A talk"
        conversation.save()

        assert conversation.version == Conversation.objects.get().version == 4
        assert Conversation.objects.get().title == "A talk"
        assert memory.add(A1) == [3]
        assert memory.messages() == [U1, U2, A1]


@pytest.mark.django_db
class TestWithoutHistory:
    def test_only_messages_evicted_by_this_write_are_deleted(self):
        keeping, without_history = django_memory(limit=2), django_memory(limit=2, keep_history=False)
        for number in range(10):
            keeping.add(UserMessage(str(number)))

        without_history.add(UserMessage("10"))

        texts = list(Message.objects.order_by("sequence").values_list("text", flat=True))
        assert texts == ["0", "1", "2", "3", "4", "5", "6", "7", "9", "10"]

    def test_only_the_replaced_system_message_is_deleted(self):
        memory = django_memory(limit=4, keep_history=False)
        memory.add(U1, S1, U2)

        memory.add(S2)

        assert memory.messages() == [U1, U2, S2]
        assert list(Message.objects.order_by("sequence").values_list("sequence", flat=True)) == [1, 3, 4]

    def test_clear_deletes_the_memory_but_not_what_other_stores_kept(self):
        django_memory(limit=2).add(U1, U2, U3)

        django_memory(limit=2, keep_history=False).clear()

        assert list(Message.objects.values_list("text", flat=True)) == ["one"]


@pytest.mark.django_db
class TestCountsOfASet:
    def test_every_message_is_counted_once_and_the_next_add_counts_only_its_own(self):
        counted: list[ChatMessage] = []

        class Counting(AdditiveWords):
            def estimate_token_count_in_message(self, message):
                counted.append(message)
                return super().estimate_token_count_in_message(message)

        memory = TokenWindowChatMemory(
            max_tokens=1000, token_count_estimator=Counting(), id="c", store=DjangoChatMemoryStore()
        )
        memory.add(U1, U2)
        counted.clear()

        memory.set([S2, U3, U2, A1])
        memory.set([S2, U3, U2, A1, U1])
        memory.add(A1)

        assert counted == [S2, U3, U2, A1, S2, U3, U2, A1, U1, A1]
        assert_consistent()
        assert Conversation.objects.get().memory_tokens == 7 + 6 + 5 + 5 + 4 + 5


@pytest.mark.django_db(transaction=True)
class TestCountingOutsideTheLock:
    def test_nothing_is_counted_while_the_lock_is_held(self):
        class Careful(AdditiveWords):
            def estimate_token_count_in_message(self, message):
                assert not connection.in_atomic_block
                return super().estimate_token_count_in_message(message)

        memory = TokenWindowChatMemory(
            max_tokens=1000, token_count_estimator=Careful(), id="c", store=DjangoChatMemoryStore()
        )
        django_memory("letters", 1000).add(U1, U2)

        # After the second: the first reads the state, and this one the memory that has to be counted.
        after_the_first_statement(lambda: memory.add(U3), lambda: django_memory("letters", 1000).add(A1), statement=2)
        after_the_first_statement(
            lambda: memory.store.recount("c", memory.window()),
            lambda: django_memory("letters", 1000).add(U1),
            statement=2,
        )

        assert memory.messages() == [U1, U2, A1, U3, U1]
        assert_consistent()


@pytest.mark.django_db
class TestColumnLimits:
    def test_a_clock_that_goes_back_does_not_move_the_activity_back(self, monkeypatch):
        memory = django_memory()
        memory.add(U1)
        before = Conversation.objects.get().updated_at
        earlier = timezone.now() - datetime.timedelta(hours=1)
        monkeypatch.setattr(timezone, "now", lambda: earlier)

        memory.add(U2)

        assert Conversation.objects.get().updated_at == before

    @pytest.mark.parametrize("column", ["next_sequence", "memory_tokens"])
    def test_a_number_too_large_for_its_column_is_rejected(self, column):
        memory = django_memory("words", 3_000_000_000)
        memory.add(U1)
        Conversation.objects.update(**{column: 2_147_483_646})

        with pytest.raises(ValueError, match=r"must not exceed 2147483647; this write needs 21474836\d\d\."):
            memory.add(U2, U2)

        assert Message.objects.count() == 1

    def test_rows_larger_than_one_packet_are_split(self):
        texts = ["😀" * 2**20, "\\" * 2**21, "'" * 2**22, "\n" * 2**21]
        memory = django_memory(limit=100)

        memory.add(*[UserMessage("😀" * 2**20)] * 5)
        memory.add(*[NewMessage(U1, {"x": "😀" * (230 * 1024)})] * 20)
        memory.add(*map(UserMessage, texts))

        assert [message.single_text for message in memory.messages()[-4:]] == texts
        assert Message.objects.filter(metadata__isnull=False).count() == 20

    @pytest.mark.parametrize("count", [MAX_ROWS - 1, MAX_ROWS, MAX_ROWS + 1, 64, 3 * MAX_ROWS])
    def test_all_of_many_rows_are_written(self, count):
        django_memory(limit=1_000).add(*(UserMessage(str(number)) for number in range(count)))

        assert Message.objects.count() == count

    def test_a_statement_that_the_orm_would_split_is_rejected(self):
        rows = Message.objects.filter(text=Parameter(Message, "text"))
        many = Statement(lambda using: [rows.using(using).update(is_complete=True) for _ in range(2)])

        with connection.cursor() as cursor, pytest.raises(RuntimeError, match="exactly one statement to record"):
            many.run(cursor, {"text": "x"})

    def test_a_row_larger_than_a_packet_is_rejected(self):
        with pytest.raises(ValueError, match=r"UserMessage takes \d+ bytes in a statement, metadata and escapes"):
            django_memory().add(NewMessage(UserMessage("\\" * 2**22), {"x": "\\" * (2**21 - 10)}))

        assert not Message.objects.exists()


@pytest.mark.django_db
class TestFailedTurns:
    def test_a_failed_add_leaves_the_turn_unchanged(self):
        with django_memory().turn(persist="early") as turn:
            turn.add(S1)
            with pytest.raises(ValueError, match="NUL"):
                turn.add(UserMessage("what\0"))
            turn.add(U1)
            seen = turn.messages
            turn.add(A1)

        assert seen == [S1, U1]
        assert django_memory().messages() == [S1, U1, A1]
        assert not Message.objects.incomplete().exists()

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("persist", ["late", "early"])
    def test_a_write_that_succeeded_but_reported_an_error_can_be_retried(self, persist):
        """As after a lost response to a commit: on PostgreSQL, which needs one statement, it really is written."""

        def lost(execute, sql, params, many, context):
            execute(sql, params, many, context)
            if "INSERT" in sql:
                raise OperationalError("the connection is lost")

        django_memory().add(U3)
        turn = django_memory().turn(persist=persist)
        turn.__enter__()
        for question in (U1, U2):
            if persist == "early":
                with pytest.raises(OperationalError), connection.execute_wrapper(lost):
                    turn.add(question)
            turn.add(question)
        turn.add(A1)
        with pytest.raises(OperationalError), connection.execute_wrapper(lost):
            turn.end()
        turn.end()
        turn.end()

        assert django_memory().messages() == [U3, U1, U2, A1]
        assert not Message.objects.incomplete().exists()

    @pytest.mark.parametrize("persist", ["late", "early"])
    @pytest.mark.parametrize("made_again", [True, False])
    def test_a_turn_in_an_erased_conversation_fails_and_stores_nothing(self, persist, made_again):
        django_memory().add(U1)

        with (
            pytest.raises(
                ConversationErasedError, match=r"The conversation 'c' was erased in the meantime; nothing is stored\."
            ),
            django_memory().turn(persist=persist) as turn,
        ):
            turn.add(U2)
            Conversation.objects.all().delete()
            if made_again:
                django_memory().turn(persist="early").__enter__().add(U3)
            turn.add(A1)

        assert django_memory().messages() == ([U3] if made_again else [])
        assert Message.objects.incomplete().count() == Conversation.objects.count() == made_again

    def test_an_early_turn_in_its_own_erased_conversation_fails(self):
        with pytest.raises(ConversationErasedError), django_memory().turn(persist="early") as turn:
            turn.add(U2)
            Conversation.objects.all().delete()

        assert not Conversation.objects.exists()


@pytest.fixture
def held() -> Iterator[None]:
    """Hold the lock of the conversation in another connection."""
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Conversation.objects.filter(memory_id="c").update(title="held")
            is_held.set()
            is_over.wait(300)
        connections.close_all()

    django_memory().add(U1)
    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(60)
    yield
    is_over.set()
    thread.join()


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite in memory is one connection")
@pytest.mark.django_db(transaction=True)
class TestInACallersTransaction:
    def test_a_failed_add_that_is_caught_rolls_the_transaction_back(self, held):
        committed: list[str] = []
        impatient = {"postgresql": "SET LOCAL lock_timeout = '100ms'", "mysql": "SET innodb_lock_wait_timeout = 1"}

        with transaction.atomic():
            transaction.on_commit(lambda: committed.append("hook"))
            Conversation.objects.create(memory_id="other")
            with connection.cursor() as cursor:
                cursor.execute(impatient[connection.vendor])
            with pytest.raises(OperationalError):
                django_memory().add(U2)
            assert transaction.get_rollback()

        assert committed == []
        assert not Conversation.objects.filter(memory_id="other").exists()

    def test_a_rejected_add_leaves_the_transaction_usable(self):
        django_memory(owner=User.objects.create(username="you")).add(U1)
        me = User.objects.create(username="me")

        with transaction.atomic():
            with pytest.raises(PermissionDenied):
                django_memory(owner=me).add(U2)
            Conversation.objects.create(memory_id="other")

        assert Conversation.objects.filter(memory_id="other").exists()

    @pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
    @pytest.mark.parametrize("verb", ["add", "add the same system message", "set", "clear"])
    def test_earlier_reads_in_the_transaction_decide_nothing(self, isolation, verb):
        if connection.vendor == "postgresql" and isolation == "REPEATABLE READ":
            pytest.skip("PostgreSQL rejects such a write, see below")
        memory = django_memory("words", 1000)
        memory.add(U1)
        expected = build(InMemoryChatMemoryStore(), "words", 1000)
        expected.add(U1)

        def others() -> None:
            for message in (S1, U2, S2, U3):
                django_memory("words", 1000).add(message)

        with isolated(isolation), transaction.atomic():
            assert memory.messages() == [U1]
            in_another_connection(others)
            VERBS[verb](memory)
            seen = memory.messages()

        expected.add(S1, U2, S2, U3)
        VERBS[verb](expected)
        assert seen == expected.messages()
        assert memory.messages() == expected.messages()
        assert_consistent()

    @pytest.mark.skipif(connection.vendor != "postgresql", reason="InnoDB permits the write")
    @pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
    def test_postgresql_rejects_writes_that_conflict_with_its_snapshot(self, isolation):
        memory = django_memory()
        memory.add(U1)

        with pytest.raises(DatabaseError), isolated(isolation), transaction.atomic():
            memory.messages()
            in_another_connection(lambda: django_memory().add(U2))
            memory.add(U3)

        assert memory.messages() == [U1, U2]
        assert_consistent()


@pytest.fixture
def added() -> Iterator[list[tuple[int, ...]]]:
    sequences: list[tuple[int, ...]] = []

    def receive(sender, **kwargs):
        sequences.append(kwargs["sequences"])

    signals.messages_added.connect(receive)
    yield sequences
    signals.messages_added.disconnect(receive)


@pytest.mark.django_db(transaction=True)
class TestAutocommitOff:
    @pytest.fixture(autouse=True)
    def manual(self) -> Iterator[None]:
        connection.ensure_connection()
        transaction.set_autocommit(False)
        yield
        transaction.rollback()
        transaction.set_autocommit(True)

    def test_a_write_is_signalled_after_its_commit(self, added):
        django_memory().add(U1)
        seen_before = list(added)
        transaction.commit()
        transaction.set_autocommit(True)

        assert seen_before == []
        assert added == [(1,)]
        assert django_memory().messages() == [U1]


class isolated:  # noqa: N801  # reads like what it is
    """Set the current connection to another isolation level."""

    def __init__(self, level: str) -> None:
        self.level = level

    def __enter__(self) -> None:
        self._set(self.level)

    def __exit__(self, *error: object) -> None:
        self._set("READ COMMITTED")

    def _set(self, level: str) -> None:
        connection.isolation_level = level.lower()
        set_isolation(level)


ONLY_MYSQL = pytest.mark.skipif(
    connection.vendor != "mysql", reason="other databases use a single snapshot, or reject the write"
)


def messages_window(limit: int, **options) -> MessageWindowChatMemory:
    return MessageWindowChatMemory(max_messages=limit, id="c", store=DjangoChatMemoryStore(**options))


def numbered(*numbers: int) -> list[UserMessage]:
    return [UserMessage(f"message {number}") for number in numbers]


@pytest.mark.django_db
def test_a_turn_keeps_its_counts_when_others_count_concurrently():
    memory = django_memory("words", 100)
    memory.add(U1, A1)

    with memory.turn("early", after=1) as turn:
        turn.add(U2)
        django_memory("letters", 100).rewind(3)
        turn.add(A1)

    assert memory.messages() == [U1, U2, A1]
    assert_consistent()


@ONLY_MYSQL
@pytest.mark.django_db(transaction=True)
def test_a_turn_on_another_branch_works_under_read_uncommitted():
    memory = messages_window(10)
    memory.add(*numbered(1, 2, 3))

    with isolated("READ UNCOMMITTED"), memory.turn(after=1) as turn:
        assert turn.messages == numbered(1)


@ONLY_MYSQL
@pytest.mark.django_db(transaction=True)
def test_the_second_write_of_a_transaction_sees_commits_made_before_the_first():
    messages_window(10).add(*numbered(1, 2))

    with isolated("REPEATABLE READ"), transaction.atomic():
        messages_window(10).messages()
        in_another_connection(lambda: messages_window(10).add(*numbered(3, 4)))
        messages_window(10).add(*numbered(5))
        messages_window(2).add(*numbered(6))

    assert messages_window(10).messages() == numbered(5, 6)
    assert_consistent()


@ONLY_MYSQL
@pytest.mark.django_db(transaction=True)
def test_a_read_after_a_write_sees_system_messages_replaced_by_others():
    messages_window(10).add(SystemMessage("old"), *numbered(1))

    with isolated("REPEATABLE READ"), transaction.atomic():
        messages_window(10).messages()
        in_another_connection(lambda: messages_window(10).add(SystemMessage("new")))
        messages_window(10).add(SystemMessage("newest"))  # Its own change makes the row of "new" visible.
        seen = messages_window(10).messages()

    assert seen == [*numbered(1), SystemMessage("newest")]


FAILED = Pending([], [], has_more=False, previous=None, summary=None, forgotten_through=0, behind=0, next_key=9)


@ONLY_MYSQL
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "write",
    [
        lambda: DjangoChatMemoryStore().evict("c", 1),
        lambda: Conversation.objects.get().save(update_fields=["title"]),
        lambda: DjangoChatMemoryStore().put_failure("c", FAILED._replace(conversation=Conversation.objects.get().pk)),
    ],
    ids=["the store", "the model", "a summary that fails"],
)
def test_a_read_after_a_write_is_of_one_moment_where_another_branch_has_as_many_messages(write):
    """Each of them writes the conversation's row, and no other."""
    memory = messages_window(8)
    first, *_, last = memory.add(*numbered(*range(1, 9)))
    memory.add(*numbered(*range(11, 18)), after=first)

    with isolated("REPEATABLE READ"), transaction.atomic():
        assert memory.messages() == numbered(1, *range(11, 18))
        in_another_connection(lambda: memory.switch(last))
        write()
        seen = memory.messages()

    assert seen in (numbered(*range(1, 9)), numbered(*range(2, 9)))


@ONLY_MYSQL
@pytest.mark.django_db(transaction=True)
def test_a_history_and_an_export_after_a_write_are_of_one_moment():
    memory = messages_window(8)
    memory.add(*numbered(1))

    with isolated("REPEATABLE READ"), transaction.atomic():
        assert memory.messages() == numbered(1)
        in_another_connection(lambda: memory.add(*numbered(2)))
        memory.add(*numbered(3))
        history = [row.text for row in memory.store.read_history("c")]
        lines = "".join(export_lines(Conversation.objects.all()))

    assert history == ["message 3", "message 2", "message 1"]
    assert all(f"message {number}" in lines for number in (1, 2, 3))


@ONLY_MYSQL
@pytest.mark.django_db(transaction=True)
def test_a_read_of_a_transaction_that_has_written_nothing_waits_for_nobody():
    messages_window(10).add(*numbered(1))

    def add_and_read() -> None:
        with isolated("REPEATABLE READ"), transaction.atomic():
            assert messages_window(10).messages() == numbered(1)

    with transaction.atomic():
        messages_window(10).add(*numbered(2))
        in_another_connection(add_and_read)


@ONLY_MYSQL
@pytest.mark.django_db(transaction=True)
def test_a_rewind_finds_the_summary_of_a_path_restored_by_others():
    memory = SummarizingChatMemory(
        max_tokens=20,
        token_count_estimator=ADDITIVE_WORDS,
        summarize=lambda previous, messages: "in short",
        summary_tokens=5,
        after_tokens=1,
        id="c",
        store=DjangoChatMemoryStore(),
    )
    memory.add(*[UserMessage("one two three four five six")] * 5)
    covered = Message.objects.get(metadata__through__isnull=False).parent_sequence
    [child] = memory.add(UserMessage("from here"), after=covered + 1)
    memory.rewind(1)
    assert memory.messages()[:1] == [UserMessage("one two three four five six")]

    with isolated("REPEATABLE READ"), transaction.atomic():
        memory.messages()
        in_another_connection(lambda: memory.switch(covered + 1))
        in_another_connection(lambda: memory.rewind(covered + 1))
        memory.rewind(child)

    assert memory.messages()[0] == SystemMessage("in short")


@ONLY_MYSQL
@pytest.mark.django_db(transaction=True)
def test_a_summary_after_a_write_goes_on_from_the_one_that_others_have_stored():
    """Found by the soak test: the write has shown the conversation with that summary, and the snapshot has no row."""
    previous = []
    memory = SummarizingChatMemory(
        max_tokens=20,
        token_count_estimator=ADDITIVE_WORDS,
        summarize=lambda text, messages: previous.append(text) or f"short {len(previous)}",
        summary_tokens=5,
        after_tokens=1,
        summarize_after_add=False,
        id="c",
        store=DjangoChatMemoryStore(),
    )
    memory.add(*[UserMessage("one two three four five six")] * 5)

    with isolated("REPEATABLE READ"), transaction.atomic():
        memory.messages()
        in_another_connection(memory.summarize)
        memory.add(*[UserMessage("seven eight nine ten eleven twelve")] * 3)
        memory.summarize()

    assert previous == [None, "short 1"]
    assert_consistent()


@ONLY_MYSQL
@pytest.mark.django_db(transaction=True)
def test_active_conversations_are_not_erased_by_a_transaction_with_an_older_snapshot():
    messages_window(10).add(*numbered(1))
    cutoff = timezone.now()

    with isolated("REPEATABLE READ"), transaction.atomic():
        messages_window(10).messages()
        in_another_connection(lambda: messages_window(10).add(*numbered(2)))
        Conversation.objects.idle_since(cutoff + datetime.timedelta(microseconds=1)).delete()

    assert messages_window(10).messages() == numbered(1, 2)


@ONLY_MYSQL
@pytest.mark.django_db(transaction=True)
def test_a_turn_after_a_write_of_its_transaction_sees_what_that_saw():
    messages_window(10).add(*numbered(1, 2))

    with isolated("REPEATABLE READ"), transaction.atomic():
        messages_window(10).messages()
        in_another_connection(lambda: messages_window(10).add(*numbered(3, 4)))
        messages_window(10).add(*numbered(5))
        with messages_window(10).turn() as turn:
            seen = turn.messages
            turn.add(*numbered(6))

    assert seen == numbered(1, 2, 3, 4, 5)
    assert messages_window(10).messages() == numbered(1, 2, 3, 4, 5, 6)
    assert_consistent()


@ONLY_MYSQL
@pytest.mark.django_db(transaction=True)
def test_rolled_back_writes_decide_nothing_under_read_uncommitted():
    messages_window(10).add(*numbered(1))
    is_added = threading.Event()

    def take_back() -> None:
        with transaction.atomic():
            messages_window(10).add(*numbered(2, 3))
            is_added.set()
            time.sleep(0.5)
            transaction.set_rollback(True)
        connections.close_all()

    taking_back = threading.Thread(target=take_back)
    taking_back.start()
    is_added.wait()
    with isolated("READ UNCOMMITTED"):
        messages_window(10).add(*numbered(5))
    taking_back.join()

    assert messages_window(10).messages() == numbered(1, 5)
    assert_consistent()


@ONLY_MYSQL
@pytest.mark.django_db(transaction=True)
def test_a_turn_that_began_on_what_was_never_committed_ends_on_what_is_there():
    messages_window(10).add(*numbered(1))
    is_added, has_begun = threading.Event(), threading.Event()

    def take_back() -> None:
        with transaction.atomic():
            messages_window(10).add(*numbered(2, 3))
            is_added.set()
            has_begun.wait(60)
            transaction.set_rollback(True)
        connections.close_all()

    taking_back = threading.Thread(target=take_back)
    taking_back.start()
    is_added.wait(60)
    with isolated("READ UNCOMMITTED"):
        turn = messages_window(10).turn().begin()
        has_begun.set()
        taking_back.join()
        messages_window(10).add(*numbered(4))  # this has the version that was rolled back
        turn.add(*numbered(5))
        turn.end()

    assert messages_window(10).messages() == numbered(1, 4, 5)
    assert_consistent()


@pytest.mark.django_db(transaction=True)
def test_no_signal_is_sent_for_messages_that_were_not_stored():
    signalled: list[int] = []

    def receive(sender, **kwargs):
        signalled.extend(kwargs["sequences"])

    signals.messages_added.connect(receive)
    try:
        messages_window(2, keep_history=False).add(*numbered(1, 2, 3, 4))
    finally:
        signals.messages_added.disconnect(receive)

    assert signalled == list(Conversation.objects.get().messages.values_list("sequence", flat=True))
