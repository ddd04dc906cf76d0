"""One way to write: whatever others do meanwhile, and whatever fails, a write happens whole, once, or not at all."""

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
from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import AiMessage, ChatMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.stores import ChatMemoryStore, InMemoryChatMemoryStore
from chatmemory_django.stores.base import ConversationErasedError
from chatmemory_django.stores.django import DjangoChatMemoryStore
from chatmemory_django.stores.django.recorded import Parameter, Statement
from chatmemory_django.stores.django.writes import MAX_ROWS
from chatmemory_django.summaries import SummarizingChatMemory
from tests.estimators import ADDITIVE_LETTERS, ADDITIVE_WORDS, JOINT, AdditiveWords
from tests.interleaving import after_the_first_statement, in_another_connection, set_isolation

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


def assert_sound() -> None:
    """Assert that the counters of every conversation are those of its rows."""
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
    "add the system message that is there": lambda memory: memory.add(S1),
    "set": lambda memory: memory.set([S2, U1, U2]),
    "set what goes on": lambda memory: memory.set([S1, A1, U3]),
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
    @pytest.mark.parametrize("meanwhile", VERBS)
    @pytest.mark.parametrize("verb", VERBS)
    @pytest.mark.parametrize(
        "measures", [("messages", "messages"), ("words", "words"), ("words", "letters"), ("joint", "words")]
    )
    def test_the_result_is_that_of_one_after_the_other(self, verb, meanwhile, measures):
        first, second = measures
        if verb == "recount" and first not in ("words", "letters"):
            pytest.skip("there are no counts to keep")

        def replay(*order: tuple[str, str]) -> list[ChatMessage]:
            store = InMemoryChatMemoryStore()
            build(store, first).add(U1, S1, U2, A1)
            for name, measure in order:
                VERBS[name](build(store, measure))
            return store.get_messages("c")

        django_memory(first).add(U1, S1, U2, A1)
        after_the_first_statement(
            lambda: VERBS[verb](django_memory(first)), lambda: VERBS[meanwhile](django_memory(second))
        )

        orders = [[(meanwhile, second), (verb, first)], [(verb, first), (meanwhile, second)]]
        assert DjangoChatMemoryStore().get_messages("c") in [replay(*order) for order in orders]
        assert_sound()

    @pytest.mark.parametrize("statement", [1, 2, 3])
    def test_a_turn_from_elsewhere_sees_a_memory_that_was(self, statement):
        django_memory().add(U1, U2, A1, U3)
        seen = []

        def begin() -> None:
            with django_memory().turn(after=3) as turn:
                seen.append(turn.messages)

        after_the_first_statement(begin, lambda: django_memory().rewind(1), statement=statement)

        assert seen == [[U1, U2, A1]]

    def test_a_memory_that_never_was_empty_has_a_message_to_pop(self):
        messages_window(2).add(U1, U2, A1, U3)
        popped = []

        after_the_first_statement(lambda: popped.append(messages_window(2).pop()), lambda: messages_window(2).rewind(2))

        assert popped == [U2]
        assert messages_window(2).messages() == [U1]

    @pytest.mark.parametrize("persist", ["late", "early"])
    def test_a_turn_comes_behind_what_others_added(self, persist):
        django_memory().add(U1)

        def talk() -> None:
            with django_memory().turn(persist=persist) as turn:
                turn.add(U2)
                turn.add(A1)

        after_the_first_statement(talk, lambda: django_memory().add(U3))

        assert django_memory().messages() == [U1, U3, U2, A1]
        assert_sound()

    def test_an_owner_who_lost_the_conversation_meanwhile_writes_nothing(self):
        mine, yours = User.objects.create(username="me"), User.objects.create(username="you")
        memory = django_memory(owner=mine)
        memory.add(U1)

        with pytest.raises(PermissionDenied):
            after_the_first_statement(
                lambda: memory.add(U2), lambda: Conversation.objects.filter(memory_id="c").update(owner=yours)
            )

        assert django_memory().messages() == [U1]

    def test_an_add_to_a_conversation_erased_meanwhile_begins_a_new_one(self):
        django_memory().add(U1)

        after_the_first_statement(lambda: django_memory().add(U2), lambda: Conversation.objects.all().delete())

        assert django_memory().messages() == [U2]
        assert list(Message.objects.values_list("sequence", flat=True)) == [1]

    @pytest.mark.parametrize("verb", ["add", "recount"])
    def test_what_was_counted_in_a_conversation_erased_meanwhile_counts_for_no_other(self, verb):
        django_memory("letters", 1000).add(U1, U2)

        def begun_anew() -> None:
            Conversation.objects.all().delete()
            django_memory("letters", 1000).add(U3, S2)

        after_the_first_statement(lambda: VERBS[verb](django_memory("words", 1000)), begun_anew, statement=2)

        assert django_memory("words", 1000).messages() == [U3, S2, *([U3] if verb == "add" else [])]
        assert_sound()

    def test_a_recount_there_and_back_evicts_no_more_than_is_due(self):
        words, letters = django_memory("words"), django_memory("letters", 1000)
        words.add(*[U3] * 5)

        def there_and_back() -> None:
            letters.store.recount("c", letters.window())
            words.store.recount("c", words.window())

        after_the_first_statement(lambda: words.add(U1), there_and_back)

        assert words.messages() == [U3, U3, U3, U3, U1]
        assert_sound()


@pytest.mark.django_db
class TestAWriteThatStoresNothing:
    def test_it_leaves_the_counts_of_another_estimator_alone(self):
        small, large = django_memory("words", 30), django_memory("letters", 1000)
        small.add(S1, *[U2] * 4)
        before = Conversation.objects.values().get(), list(Message.objects.values("sequence", "token_count"))

        large.add(S1)

        assert (Conversation.objects.values().get(), list(Message.objects.values("sequence", "token_count"))) == before
        for _ in range(3):
            small.add(U1)
        assert small.messages() == [S1, U2, U2, U1, U1, U1]
        assert_sound()

    @pytest.mark.parametrize("verb", ["set", "clear"])
    def test_the_version_stays(self, verb):
        memory = django_memory()
        memory.add(U1)
        memory.clear()
        before = Conversation.objects.get().version

        memory.clear() if verb == "clear" else memory.set([])

        assert Conversation.objects.get().version == before == 3


@pytest.mark.django_db
class TestVersion:
    def test_each_write_makes_it_grow_by_one(self):
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

    def test_saving_a_conversation_makes_it_grow_and_writes_nothing_of_the_stores(self):
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
    def test_only_what_leaves_by_this_write_is_deleted(self):
        keeping, forgetting = django_memory(limit=2), django_memory(limit=2, keep_history=False)
        for number in range(10):
            keeping.add(UserMessage(str(number)))

        forgetting.add(UserMessage("10"))

        texts = list(Message.objects.order_by("sequence").values_list("text", flat=True))
        assert texts == ["0", "1", "2", "3", "4", "5", "6", "7", "9", "10"]

    def test_a_replaced_system_message_is_deleted_and_the_others_stay(self):
        memory = django_memory(limit=4, keep_history=False)
        memory.add(U1, S1, U2)

        memory.add(S2)

        assert memory.messages() == [U1, U2, S2]
        assert list(Message.objects.order_by("sequence").values_list("sequence", flat=True)) == [1, 3, 4]

    def test_clearing_deletes_the_memory_and_not_what_others_kept(self):
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
        assert_sound()
        assert Conversation.objects.get().memory_tokens == 7 + 6 + 5 + 5 + 4 + 5


@pytest.mark.django_db(transaction=True)
class TestCountingBehindTheLock:
    def test_nothing_is_counted_while_others_wait(self):
        class Careful(AdditiveWords):
            def estimate_token_count_in_message(self, message):
                assert not connection.in_atomic_block
                return super().estimate_token_count_in_message(message)

        memory = TokenWindowChatMemory(
            max_tokens=1000, token_count_estimator=Careful(), id="c", store=DjangoChatMemoryStore()
        )
        django_memory("letters", 1000).add(U1, U2)

        # After the second: the first reads the state, and this the memory, which has to be counted.
        after_the_first_statement(lambda: memory.add(U3), lambda: django_memory("letters", 1000).add(A1), statement=2)
        after_the_first_statement(
            lambda: memory.store.recount("c", memory.window()),
            lambda: django_memory("letters", 1000).add(U1),
            statement=2,
        )

        assert memory.messages() == [U1, U2, A1, U3, U1]
        assert_sound()


@pytest.mark.django_db
class TestLimitsOfColumns:
    def test_time_that_goes_back_moves_no_activity_back(self, monkeypatch):
        memory = django_memory()
        memory.add(U1)
        before = Conversation.objects.get().updated_at
        earlier = timezone.now() - datetime.timedelta(hours=1)
        monkeypatch.setattr(timezone, "now", lambda: earlier)

        memory.add(U2)

        assert Conversation.objects.get().updated_at == before

    @pytest.mark.parametrize("column", ["next_sequence", "memory_tokens"])
    def test_a_number_that_no_column_holds_is_refused(self, column):
        memory = django_memory("words", 3_000_000_000)
        memory.add(U1)
        Conversation.objects.update(**{column: 2_147_483_646})

        with pytest.raises(ValueError, match=r"holds numbers up to 2147483647; this write needs 21474836\d\d\."):
            memory.add(U2, U2)

        assert Message.objects.count() == 1

    def test_rows_that_are_more_than_one_packet_are_written_in_several(self):
        texts = ["😀" * 2**20, "\\" * 2**21, "'" * 2**22, "\n" * 2**21]
        memory = django_memory(limit=100)

        memory.add(*[UserMessage("😀" * 2**20)] * 5)
        memory.add(*[U1] * 20, metadata={"x": "😀" * (230 * 1024)})
        memory.add(*map(UserMessage, texts))

        assert [message.single_text for message in memory.messages()[-4:]] == texts
        assert Message.objects.filter(metadata__isnull=False).count() == 20

    @pytest.mark.parametrize("count", [MAX_ROWS - 1, MAX_ROWS, MAX_ROWS + 1, 64, 3 * MAX_ROWS])
    def test_many_rows_are_all_written(self, count):
        django_memory(limit=1_000).add(*(UserMessage(str(number)) for number in range(count)))

        assert Message.objects.count() == count

    def test_a_statement_that_the_orm_makes_several_of_is_refused(self):
        rows = Message.objects.filter(text=Parameter(Message, "text"))
        many = Statement(lambda using: [rows.using(using).update(is_complete=True) for _ in range(2)])

        with connection.cursor() as cursor, pytest.raises(RuntimeError, match="One statement is to be recorded"):
            many.run(cursor, {"text": "x"})

    def test_a_row_that_no_packet_holds_is_refused(self):
        with pytest.raises(ValueError, match=r"UserMessage takes \d+ bytes in a statement, metadata and escapes"):
            django_memory().add(UserMessage("\\" * 2**22), metadata={"x": "\\" * (2**21 - 10)})

        assert not Message.objects.exists()


@pytest.mark.django_db
class TestTurnsThatFail:
    def test_an_add_that_fails_leaves_the_turn_as_it_was(self):
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
    def test_a_write_that_fails_though_it_happened_can_be_done_again(self, persist):
        """As where the answer to a commit is lost: on PostgreSQL, where one statement is all, it really is written."""

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
    def test_a_turn_whose_conversation_was_erased_fails_and_stores_nothing(self, persist, made_again):
        django_memory().add(U1)

        with (
            pytest.raises(
                ConversationErasedError, match=r"The conversation 'c' was erased meanwhile; nothing is stored\."
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

    def test_nor_does_an_early_turn_that_made_the_conversation_itself(self):
        with pytest.raises(ConversationErasedError), django_memory().turn(persist="early") as turn:
            turn.add(U2)
            Conversation.objects.all().delete()

        assert not Conversation.objects.exists()


@pytest.fixture
def held() -> Iterator[None]:
    """The lock of the conversation, held by another connection."""
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Conversation.objects.filter(memory_id="c").update(title="held")
            is_held.set()
            is_over.wait(30)
        connections.close_all()

    django_memory().add(U1)
    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(10)
    yield
    is_over.set()
    thread.join()


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite in memory is one connection")
@pytest.mark.django_db(transaction=True)
class TestInACallersTransaction:
    def test_an_add_that_fails_and_is_caught_rolls_the_transaction_back(self, held):
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

    def test_a_refusal_leaves_the_transaction_as_it_is(self):
        django_memory(owner=User.objects.create(username="you")).add(U1)
        me = User.objects.create(username="me")

        with transaction.atomic():
            with pytest.raises(PermissionDenied):
                django_memory(owner=me).add(U2)
            Conversation.objects.create(memory_id="other")

        assert Conversation.objects.filter(memory_id="other").exists()

    @pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
    @pytest.mark.parametrize("verb", ["add", "add the system message that is there", "set", "clear"])
    def test_what_was_read_before_in_it_decides_nothing(self, isolation, verb):
        if connection.vendor == "postgresql" and isolation == "REPEATABLE READ":
            pytest.skip("PostgreSQL refuses such a write, see below")
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
            meanwhile = memory.messages()

        expected.add(S1, U2, S2, U3)
        VERBS[verb](expected)
        assert meanwhile == expected.messages()
        assert memory.messages() == expected.messages()
        assert_sound()

    @pytest.mark.skipif(connection.vendor != "postgresql", reason="InnoDB lets it write")
    @pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
    def test_postgresql_refuses_what_its_snapshot_forbids(self, isolation):
        memory = django_memory()
        memory.add(U1)

        with pytest.raises(DatabaseError), isolated(isolation), transaction.atomic():
            memory.messages()
            in_another_connection(lambda: django_memory().add(U2))
            memory.add(U3)

        assert memory.messages() == [U1, U2]
        assert_sound()


@pytest.fixture
def added() -> Iterator[list[tuple[int, ...]]]:
    sequences: list[tuple[int, ...]] = []

    def receive(sender, **kwargs):
        sequences.append(kwargs["sequences"])

    signals.messages_added.connect(receive)
    yield sequences
    signals.messages_added.disconnect(receive)


@pytest.mark.django_db(transaction=True)
class TestWithAutocommitOff:
    @pytest.fixture(autouse=True)
    def manual(self) -> Iterator[None]:
        connection.ensure_connection()
        transaction.set_autocommit(False)
        yield
        transaction.rollback()
        transaction.set_autocommit(True)

    def test_a_write_is_announced_once_it_is_committed(self, added):
        django_memory().add(U1)
        meanwhile = list(added)
        transaction.commit()
        transaction.set_autocommit(True)

        assert meanwhile == []
        assert added == [(1,)]
        assert django_memory().messages() == [U1]


class isolated:  # noqa: N801  # reads like what it is
    """The present connection at another isolation level."""

    def __init__(self, level: str) -> None:
        self.level = level

    def __enter__(self) -> None:
        self._set(self.level)

    def __exit__(self, *error: object) -> None:
        self._set("READ COMMITTED")

    def _set(self, level: str) -> None:
        connection.isolation_level = level.lower()
        set_isolation(level)


ONLY_MYSQL = pytest.mark.skipif(connection.vendor != "mysql", reason="others have one snapshot, or refuse")


def messages_window(limit: int, **options) -> MessageWindowChatMemory:
    return MessageWindowChatMemory(max_messages=limit, id="c", store=DjangoChatMemoryStore(**options))


def numbered(*numbers: int) -> list[UserMessage]:
    return [UserMessage(f"message {number}") for number in numbers]


@pytest.mark.django_db
def test_a_turn_keeps_its_counts_of_what_others_have_counted_meanwhile():
    memory = django_memory("words", 100)
    memory.add(U1, A1)

    with memory.turn("early", after=1) as turn:
        turn.add(U2)
        django_memory("letters", 100).rewind(3)
        turn.add(A1)

    assert memory.messages() == [U1, U2, A1]
    assert_sound()


@ONLY_MYSQL
@pytest.mark.django_db(transaction=True)
def test_a_turn_from_elsewhere_can_be_read_where_all_reads_are_of_what_is_not_committed():
    memory = messages_window(10)
    memory.add(*numbered(1, 2, 3))

    with isolated("READ UNCOMMITTED"), memory.turn(after=1) as turn:
        assert turn.messages == numbered(1)


@ONLY_MYSQL
@pytest.mark.django_db(transaction=True)
def test_the_second_write_of_a_transaction_sees_what_others_wrote_before_the_first():
    messages_window(10).add(*numbered(1, 2))

    with isolated("REPEATABLE READ"), transaction.atomic():
        messages_window(10).messages()
        in_another_connection(lambda: messages_window(10).add(*numbered(3, 4)))
        messages_window(10).add(*numbered(5))
        messages_window(2).add(*numbered(6))

    assert messages_window(10).messages() == numbered(5, 6)
    assert_sound()


@ONLY_MYSQL
@pytest.mark.django_db(transaction=True)
def test_a_read_after_a_write_sees_which_system_message_others_replaced():
    messages_window(10).add(SystemMessage("old"), *numbered(1))

    with isolated("REPEATABLE READ"), transaction.atomic():
        messages_window(10).messages()
        in_another_connection(lambda: messages_window(10).add(SystemMessage("new")))
        messages_window(10).add(SystemMessage("newest"))  # its own change makes the row of "new" visible
        seen = messages_window(10).messages()

    assert seen == [*numbered(1), SystemMessage("newest")]


@ONLY_MYSQL
@pytest.mark.django_db(transaction=True)
def test_a_rewind_finds_the_summary_of_a_path_that_others_have_gone_back_to():
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
    [beside] = memory.add(UserMessage("from here"), after=covered + 1)
    memory.rewind(1)
    assert memory.messages()[:1] == [UserMessage("one two three four five six")]

    with isolated("REPEATABLE READ"), transaction.atomic():
        memory.messages()
        in_another_connection(lambda: memory.switch(covered + 1))
        in_another_connection(lambda: memory.rewind(covered + 1))
        memory.rewind(beside)

    assert memory.messages()[0] == SystemMessage("in short")


@ONLY_MYSQL
@pytest.mark.django_db(transaction=True)
def test_what_is_not_idle_any_more_is_not_erased_by_a_transaction_with_an_older_snapshot():
    messages_window(10).add(*numbered(1))
    cutoff = timezone.now()

    with isolated("REPEATABLE READ"), transaction.atomic():
        messages_window(10).messages()
        in_another_connection(lambda: messages_window(10).add(*numbered(2)))
        Conversation.objects.idle_since(cutoff + datetime.timedelta(microseconds=1)).delete()

    assert messages_window(10).messages() == numbered(1, 2)


@ONLY_MYSQL
@pytest.mark.django_db(transaction=True)
def test_what_somebody_took_back_decides_nothing_where_one_sees_what_is_not_committed():
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
    assert_sound()


@pytest.mark.django_db(transaction=True)
def test_nobody_is_told_of_what_was_not_stored():
    told: list[int] = []

    def receive(sender, **kwargs):
        told.extend(kwargs["sequences"])

    signals.messages_added.connect(receive)
    try:
        messages_window(2, keep_history=False).add(*numbered(1, 2, 3, 4))
    finally:
        signals.messages_added.disconnect(receive)

    assert told == list(Conversation.objects.get().messages.values_list("sequence", flat=True))
