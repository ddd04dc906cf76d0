"""Forks: a new conversation with a copy of the messages up to a chosen one."""

import datetime
import itertools
from collections.abc import Callable

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.db import connection
from hypothesis import example, given
from hypothesis import strategies as st

from chatmemory_django import operations
from chatmemory_django.core.windows import Window
from chatmemory_django.db import row_codec
from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, SummarizingChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import AiMessage, NewMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import one_by_one
from chatmemory_django.stores.base import ConversationErasedError, MemoryIdTakenError, MessageNotFoundError
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.database.interleaving import another_writer, in_another_connection
from tests.database.test_state_machine import POOL, turn_of
from tests.estimators import ADDITIVE_LETTERS, ADDITIVE_WORDS
from tests.strategies import IN_DATABASE

pytestmark = pytest.mark.django_db

numbers = itertools.count()


def a_memory(memory_id: str = "source", limit: int = 3, *, keep_history: bool = True) -> ChatMemory:
    return MessageWindowChatMemory(
        max_messages=limit, id=memory_id, store=DjangoChatMemoryStore(keep_history=keep_history)
    )


def counted_memory(memory_id: str = "source", limit: int = 1000) -> ChatMemory:
    return TokenWindowChatMemory(
        max_tokens=limit, token_count_estimator=ADDITIVE_WORDS, id=memory_id, store=DjangoChatMemoryStore()
    )


def user_messages(*texts: str) -> list[UserMessage]:
    return [UserMessage(text) for text in texts]


def source() -> Conversation:
    return Conversation.objects.get(memory_id="source")


def texts(rows) -> list[str]:
    return [row.text for row in rows]


def table(conversation: Conversation) -> list[tuple]:
    columns = ("sequence", "type", "text", "payload", "metadata", "in_history", "is_complete", "client_message_id")
    return list(conversation.messages.order_by("sequence").values_list(*columns, "created_at", "parent_sequence"))


def counters(conversation: Conversation) -> dict:
    names = ("window_start", "pinned_sequence", "summary_sequence", "memory_messages", "memory_tokens", "counted_by")
    return {name: getattr(conversation, name) for name in names}


def check(conversation: Conversation) -> None:
    """Check that the object matches its row, and the row its messages."""
    stored = Conversation.objects.get(pk=conversation.pk)
    concrete = [field.attname for field in Conversation._meta.concrete_fields if field.attname != "metadata"]
    assert [getattr(conversation, name) for name in concrete] == [getattr(stored, name) for name in concrete]
    memory = list(stored.memory())
    assert stored.memory_messages == len(memory)
    if stored.counted_by:
        assert {row.counted_by for row in memory} <= {stored.counted_by}
        assert stored.memory_tokens == sum(row.token_count for row in memory)
    assert stored.total_messages == stored.history(all_branches=True).count() == stored.history().count()
    assert stored.next_sequence == max(stored.messages.values_list("sequence", flat=True), default=0) + 1
    assert stored.window_start <= stored.next_sequence
    assert stored.forgotten_through < stored.next_sequence


class TestCopiedMessages:
    def test_all_messages_with_their_sequences_and_the_memory_are_copied(self):
        memory = a_memory()
        messages = SystemMessage("be brief"), *user_messages("one", "two", "three")
        memory.add(*(NewMessage(each, client_message_id=name) for each, name in zip(messages, "sabc", strict=True)))
        memory.add(NewMessage(AiMessage("four"), {"model": "m"}))

        fork = operations.fork(source(), "copy")

        check(fork)
        assert table(fork) == table(source())
        assert counters(fork) == counters(source())
        assert a_memory("copy").messages() == memory.messages()
        assert texts(fork.evicted()) == ["one", "two"]

    def test_a_fork_was_active_when_it_was_made(self):
        a_memory().add(*user_messages("one", "two"))
        made = source().updated_at
        Conversation.objects.update(updated_at=made - datetime.timedelta(days=1))

        for fork in (operations.fork(source(), "whole"), operations.fork(source(), "a part", through=1)):
            assert fork.updated_at >= made
            check(fork)

    def test_messages_up_to_one_in_the_memory_are_copied(self):
        memory = counted_memory()
        memory.add(SystemMessage("be brief"), *user_messages("one", "two", "three"))

        fork = operations.fork(source(), "copy", through=3)

        check(fork)
        assert texts(fork.history()) == ["be brief", "one", "two"]
        assert counted_memory("copy").messages() == memory.messages()[:3]
        assert (fork.memory_tokens, fork.counted_by) == (5 + 4 + 4, "words")

    def test_at_an_evicted_message_the_memory_of_that_time_is_restored(self):
        a_memory(limit=2).add(*user_messages("one", "two", "three", "four", "five", "six"))

        assert texts(operations.fork(source(), through=3).memory()) == ["two", "three"]
        assert texts(operations.fork(source(), through=3, window=Window(3)).memory()) == ["one", "two", "three"]
        assert texts(operations.fork(source(), through=3, window=Window(1)).memory()) == ["three"]

    def test_a_token_window_counts_uncounted_messages(self):
        a_memory(limit=2).add(*user_messages("one", "two", "three", "four", "five", "six"))

        fork = operations.fork(source(), through=4, window=Window(11, ADDITIVE_WORDS))

        check(fork)
        assert (texts(fork.memory()), fork.memory_tokens, fork.counted_by) == (["three", "four"], 8, "words")
        assert set(source().messages.values_list("token_count", flat=True)) == {None}

    def test_the_path_to_a_message_on_another_branch_is_copied(self):
        memory = a_memory(limit=5)
        memory.add(*user_messages("one", "two", "three"))
        memory.rewind(1)
        memory.add(*user_messages("other two", "other three"))

        fork = operations.fork(source(), "copy", through=2)

        check(fork)
        assert texts(fork.history()) == texts(fork.memory()) == ["one", "two"]
        assert texts(operations.fork(source()).history()) == ["one", "other two", "other three"]
        a_memory("copy").add(UserMessage("and on"))
        assert texts(fork.history()) == ["one", "two", "and on"]

    def test_the_system_message_of_that_time_is_restored(self):
        a_memory(limit=9).add(
            *user_messages("one"), SystemMessage("be brief"), *user_messages("two"), SystemMessage("be kind")
        )

        assert texts(operations.fork(source(), through=3).memory()) == ["one", "be brief", "two"]
        assert texts(operations.fork(source(), through=4).memory()) == ["one", "two", "be kind"]

    def test_a_system_message_replaced_on_another_branch_stays_replaced(self):
        memory = a_memory(limit=9)
        memory.add(*user_messages("one"), SystemMessage("be brief"), *user_messages("two"), SystemMessage("be kind"))
        memory.rewind(0)
        memory.add(UserMessage("other"))

        fork = operations.fork(source(), through=4, window=Window(9))

        check(fork)
        assert texts(fork.memory()) == ["one", "two", "be kind"]

    def test_cleared_messages_are_not_restored(self):
        memory = a_memory(limit=2)
        memory.add(*user_messages("one", "two"))
        memory.clear()
        memory.add(*user_messages("three", "four", "five"))

        for through in (None, 4):
            fork = operations.fork(source(), through=through, window=Window(9))
            assert fork.forgotten_through == 2
            a_memory(fork.memory_id, 9).rewind(3)
            assert a_memory(fork.memory_id).messages() == user_messages("three")

    def test_a_fork_and_an_empty_conversation_can_be_forked(self):
        a_memory().add(*user_messages("one", "two"))

        assert texts(operations.fork(operations.fork(source(), "a"), "b", through=1).memory()) == ["one"]
        empty = operations.fork(source(), "c", through=0)
        check(empty)
        assert (list(empty.messages.all()), empty.next_sequence) == ([], 1)
        a_memory("c").add(UserMessage("new"))
        again = operations.fork(Conversation.objects.create(memory_id="never used"))
        check(again)
        assert texts(Conversation.objects.get(memory_id="c").history()) == ["new"]

    def test_a_memory_that_was_set_is_copied(self):
        memory = a_memory(limit=9)
        memory.add(*user_messages("one", "two"))
        memory.set([AiMessage("they counted")])
        memory.add(UserMessage("three"))

        for through in (None, 4):
            fork = operations.fork(source(), through=through)
            check(fork)
            assert texts(fork.memory()) == ["they counted", "three"]
            assert texts(fork.history()) == ["one", "two", "three"]

    def test_a_cleared_memory_stays_empty(self):
        memory = a_memory()
        memory.add(*user_messages("one", "two"))
        memory.clear()

        fork = operations.fork(source(), "copy")

        check(fork)
        assert (texts(fork.memory()), texts(fork.history())) == ([], ["one", "two"])
        a_memory("copy").add(UserMessage("three"))
        assert a_memory("copy").messages() == user_messages("three")

    def test_without_history_only_the_memory_is_copied(self):
        a_memory(limit=2, keep_history=False).add(*user_messages("one", "two", "three"))

        fork = operations.fork(source())

        check(fork)
        assert texts(fork.messages.all()) == ["two", "three"]

    def test_summaries_of_copied_messages_are_copied(self):
        a_memory().add(*user_messages("one", "two", "three", "four", "five", "six"))
        for sequence, through in ((7, 1), (8, 3)):
            summarize(sequence, through)

        fork, earlier = operations.fork(source()), operations.fork(source(), through=2, window=Window(3))

        check(fork)
        check(earlier)
        assert texts(fork.memory()) == ["summary of 3", "four", "five", "six"]
        assert texts(earlier.memory()) == ["summary of 1", "two"]
        assert texts(earlier.messages.filter(in_history=False)) == ["summary of 1"]

    def test_title_metadata_and_owner_are_copied_but_not_the_position_in_a_list(self):
        ann, bob = (User.objects.create(username=name) for name in ("ann", "bob"))
        conversation = Conversation.objects.create(
            memory_id="source", owner=ann, title="Parcels", metadata={"topic": [1]}, is_pinned=True, is_archived=True
        )
        Conversation.objects.update(assistant="support")
        conversation.refresh_from_db()

        fork = operations.fork(conversation)

        assert fork.assistant == "support"

        assert (fork.owner, fork.title, fork.metadata) == (ann, "Parcels", {"topic": [1]})
        assert (fork.is_pinned, fork.is_archived, len(fork.memory_id)) == (False, False, 36)
        assert operations.fork(conversation, owner=bob).owner == bob
        assert operations.fork(conversation, owner=None).owner is None

    def test_the_source_is_unchanged(self):
        a_memory().add(*user_messages("one", "two", "three", "four"))
        before = source().__dict__ | {"_state": None}, table(source())

        operations.fork(source(), through=1)

        assert (source().__dict__ | {"_state": None}, table(source())) == before


class TestRejectedForks:
    def test_an_unknown_message_is_rejected(self):
        a_memory().add(*user_messages("one", "two"))

        for through in (3, -1, 10**12):
            with pytest.raises(MessageNotFoundError):
                operations.fork(source(), "copy", through=through)
        assert not Conversation.objects.filter(memory_id="copy")

    def test_an_existing_memory_id_is_rejected(self):
        a_memory().add(UserMessage("one"))

        with pytest.raises(MemoryIdTakenError, match="'source' already exists"):
            operations.fork(source(), "source")
        with pytest.raises(ValueError, match="memory"):
            operations.fork(source(), "x" * 256)
        assert Conversation.objects.count() == 1

    def test_an_unsaved_owner_is_rejected(self):
        a_memory().add(UserMessage("one"))

        with pytest.raises(ValueError, match="owner must be a saved user"):
            operations.fork(source(), owner=User())

    def test_a_deleted_conversation_is_rejected(self):
        a_memory().add(UserMessage("one"))
        conversation = source()
        Conversation.objects.all().delete()

        with pytest.raises(ConversationErasedError):
            operations.fork(conversation)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("after", range(1, 9))
def test_a_fork_is_a_consistent_snapshot_despite_concurrent_writers(after):
    memory = counted_memory()
    memory.add(*user_messages("one", "two"))
    conversation = source()

    with another_writer(lambda: counted_memory().add(*user_messages("three", "four")), after):
        fork = operations.fork(conversation)

    check(fork)
    assert texts(fork.history()) in (["one", "two"], ["one", "two", "three", "four"])
    assert counted_memory(fork.memory_id).messages() == user_messages(*texts(fork.history()))


def test_a_message_that_the_model_rejected_stays_out_of_the_memory_of_a_fork_of_its_branch():
    memory = a_memory(limit=8)
    memory.add(*user_messages("one", "two", "too long", "four"))
    memory.store.reject("source", [3], "too_long", memory.window())
    memory.add(UserMessage("other"), after=1)

    fork = operations.fork(source(), through=4)

    check(fork)
    assert a_memory(fork.memory_id, limit=8).messages() == user_messages("two", "four")


@pytest.mark.skipif(connection.vendor != "postgresql", reason="Elsewhere, who was refused a row has a lock on it")
@pytest.mark.django_db(transaction=True)
def test_an_id_that_is_free_again_is_given_to_the_fork(monkeypatch):
    for memory in (counted_memory(), counted_memory("b")):
        memory.add(*user_messages("one"))

    def look(memory_id, using):
        in_another_connection(Conversation.objects.filter(memory_id=memory_id).delete)
        return is_there(memory_id, using)

    is_there = one_by_one.is_there
    monkeypatch.setattr(one_by_one, "is_there", look)

    check(operations.fork(source(), "b"))


@pytest.mark.parametrize("length", [10, 2_000])
def test_a_fork_takes_the_same_statements_at_any_length(length, django_assert_num_queries, monkeypatch):
    a_memory(limit=5).add(*user_messages(*map(str, range(length))))
    conversation = source()
    monkeypatch.setattr(Message, "from_db", None)
    locks = 2 if connection.vendor == "sqlite" else 1
    origins = 0 if row_codec.installed is None else 2  # that of the source, and that of the fork

    with django_assert_num_queries(12 + locks + origins):  # one of them asks for files in a storage
        operations.fork(conversation)


def test_the_async_version_creates_the_same_fork():
    a_memory().add(*user_messages("one", "two"))

    conversation = source()

    async def talk() -> list[str]:
        fork = await operations.afork(conversation, "copy", through=1)
        return [row.text async for row in fork.history()]

    assert async_to_sync(talk)() == ["one"]


def summarize(sequence: int, through: int) -> None:
    """Store a summary as ``SummarizingChatMemory`` does."""
    conversation = source()
    Message.objects.create(
        conversation=conversation,
        sequence=sequence,
        type="SYSTEM",
        text=f"summary of {through}",
        in_history=False,
        on_path=False,
        superseded=True,
        parent_sequence=through,
        metadata={"through": through},
    )
    conversation.summary_sequence = sequence
    conversation.window_start = max(conversation.window_start, through + 1)
    Conversation.objects.filter(pk=conversation.pk).update(
        summary_sequence=sequence,
        next_sequence=sequence + 1,
        memory_messages=conversation.memory().count(),
        window_start=conversation.window_start,
    )


def summarizing(memory: ChatMemory) -> SummarizingChatMemory:
    return SummarizingChatMemory(
        max_tokens=60,
        token_count_estimator=ADDITIVE_WORDS,
        summarize=lambda previous, messages: f"so far {len(messages)}",
        summary_tokens=20,
        after_tokens=1,
        id=memory.id,
        store=DjangoChatMemoryStore(),  # Needs a history: without one there is nothing to summarize.
    )


VERBS: list[Callable] = [
    lambda memory, message, to: memory.add(message),
    lambda memory, message, to: memory.add(message, AiMessage("hello")),
    lambda memory, message, to: memory.set([*memory.messages()[1:], message]),
    lambda memory, message, to: memory.set([message, UserMessage("set")]),
    lambda memory, message, to: memory.clear(),
    lambda memory, message, to: memory.rewind(to),
    lambda memory, message, to: memory.switch(to),
    lambda memory, message, to: memory.pop(),
    lambda memory, message, to: memory.remove(to),
    lambda memory, message, to: turn_of(memory, "early", to, [message], True, lambda _: None),
    lambda memory, message, to: summarizing(memory).summarize(),
]
EVERY_VERB = [st.tuples(st.just(verb), st.sampled_from(POOL), st.integers(0, 12)) for verb in VERBS]
AN_ADD = EVERY_VERB[0]


def do(memory: ChatMemory, verbs: list[tuple]) -> None:
    for verb, message, to in verbs:
        try:
            verb(memory, message, to)
        except MessageNotFoundError:
            continue


@IN_DATABASE
@given(
    verbs=st.lists(st.one_of(AN_ADD, *EVERY_VERB), max_size=20),
    later=st.lists(st.one_of(AN_ADD, *EVERY_VERB), max_size=3),
    estimator=st.sampled_from([None, ADDITIVE_WORDS, ADDITIVE_LETTERS]),
    limit=st.integers(1, 30),
    system_first=st.booleans(),
    data=st.data(),
)
@example(
    verbs=[(VERBS[0], POOL[2], 0)], later=[], estimator=None, limit=3, system_first=False, data=None
)  # a list of one
@pytest.mark.slow
def test_a_fork_equals_the_source_after_a_rewind(verbs, later, estimator, limit, system_first, data):
    memory_id = f"machine {next(numbers)}"

    def memory_of(memory_id: str) -> ChatMemory:
        options = {"id": memory_id, "store": DjangoChatMemoryStore(), "always_keep_system_message_first": system_first}
        if estimator is None:
            return MessageWindowChatMemory(max_messages=limit, **options)
        return TokenWindowChatMemory(max_tokens=limit, token_count_estimator=estimator, **options)

    memory = memory_of(memory_id)
    do(memory, verbs)
    conversation = Conversation.objects.filter(memory_id=memory_id).first()
    if conversation is None:
        return
    sequences = list(conversation.history(all_branches=True).values_list("sequence", flat=True))
    through = data.draw(st.sampled_from([None, 0, *sequences])) if data else None
    window = Window(limit, estimator, always_keep_system_message_first=system_first)
    fork = operations.fork(conversation, through=through, window=window)
    check(fork)
    if through is not None:
        memory.rewind(through)

    def compare() -> None:
        mine, copied = (Conversation.objects.get(pk=each.pk) for each in (conversation, fork))
        if later:  # Later messages have other sequences there.
            assert texts(mine.history()) == texts(copied.history())
        else:
            assert [row[:-1] for row in path(mine)] == [row[:-1] for row in path(copied)]
        assert [row.chat_message for row in mine.memory()] == [row.chat_message for row in copied.memory()]
        assert mine.memory_messages == copied.memory_messages
        # With a window that counts no tokens, a rewind loses the name of the estimator; a fork reads it from its rows.
        if mine.counted_by:
            assert (mine.memory_tokens, mine.counted_by) == (copied.memory_tokens, copied.counted_by)
        assert memory.messages() == memory_of(fork.memory_id).messages()

    compare()
    to = data.draw(st.sampled_from([0, *fork.history().values_list("sequence", flat=True)])) if data else 0
    later = [(verb, message, to) for verb, message, _ in later if verb is not VERBS[6]]
    for each in later:
        do(memory, [each])
        do(memory_of(fork.memory_id), [each])
        compare()


def path(conversation: Conversation) -> list[tuple]:
    return [
        (row.sequence, row.chat_message, row.parent_sequence, row.superseded)
        for row in conversation.history().order_by("sequence")
    ]
