"""Pinned messages stay in the memory, whatever leaves it, and are counted; without pins, nothing is read for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import connection

from chatmemory_django import operations
from chatmemory_django.memory import MessageWindowChatMemory, SummarizingChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.stores.base import MessageNotFoundError, PinError
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.database.interleaving import another_writer
from tests.estimators import ADDITIVE_LETTERS, ADDITIVE_WORDS, JOINT

pytestmark = pytest.mark.django_db(transaction=True)

CALL = AiMessage(tool_execution_requests=[ToolExecutionRequest(id="1", name="look", arguments="{}")])
RESULT = ToolExecutionResultMessage("1", "look", "found it")


def memory(most: int = 4, *, keep_history: bool = True, **options) -> MessageWindowChatMemory:
    return MessageWindowChatMemory(
        max_messages=most, id="c", store=DjangoChatMemoryStore(keep_history=keep_history), **options
    )


def tokens(most: int = 40, estimator=ADDITIVE_WORDS, **options) -> TokenWindowChatMemory:
    return TokenWindowChatMemory(
        max_tokens=most, token_count_estimator=estimator, id="c", store=DjangoChatMemoryStore(), **options
    )


def users(*numbers: int) -> list[ChatMessage]:
    return [UserMessage(str(number)) for number in numbers]


def sent(read: MessageWindowChatMemory | TokenWindowChatMemory) -> list[str]:
    return [getattr(message, "text", None) or message.single_text for message in read.messages()]


def conversation() -> Conversation:
    return Conversation.objects.get(memory_id="c")


def assert_right() -> None:
    """Assert that ``check_chatmemory`` finds nothing."""
    found: list[operations.Finding] = []
    operations.check(Conversation.objects.all(), lambda _: None, found.append)
    assert found == []


def test_a_pinned_message_stays_while_others_are_evicted_in_their_order():
    memory().add(*users(1, 2, 3))
    memory().pin(2)
    memory().add(*users(4, 5, 6, 7, 8))

    assert sent(memory()) == ["2", "6", "7", "8"]
    assert conversation().memory_messages == 4
    assert_right()


def test_a_pinned_message_in_the_window_stays_where_it_is_and_is_sent_once():
    memory().add(*users(1, 2, 3))
    memory().pin(2)

    assert sent(memory()) == ["1", "2", "3"]
    assert conversation().memory_messages == 3


def test_a_message_that_was_evicted_returns_and_others_leave_with_the_next_add():
    memory().add(*users(1, 2, 3, 4, 5, 6))
    memory().pin(1)

    assert sent(memory()) == ["1", "4", "5", "6"]
    assert conversation().memory_messages == 5
    memory().add(*users(7))
    assert sent(memory()) == ["1", "5", "6", "7"]
    assert conversation().memory_messages == 4
    assert_right()


def test_it_comes_behind_the_system_message():
    memory().add(SystemMessage("s"), *users(2, 3))
    memory().pin(2)
    memory().add(*users(4, 5, 6))

    assert sent(memory()) == ["s", "2", "5", "6"]


def test_the_whole_call_is_pinned_with_a_result_and_named():
    call = AiMessage(tool_execution_requests=[ToolExecutionRequest(id=each, name="look") for each in ("a", "b")])
    results = [ToolExecutionResultMessage(each, "look", each) for each in ("a", "b")]
    memory(8).add(*users(1), call, *results, *users(5))

    assert memory(8).pin(4) == [2, 3, 4]
    assert memory(8).pin(2) == [2, 3, 4]
    memory(8).add(*users(*range(6, 20)))
    assert memory(8).messages() == [call, *results, *users(15, 16, 17, 18, 19)]
    assert memory(8).unpin(3) == [2, 3, 4]
    assert memory(8).messages() == users(15, 16, 17, 18, 19)
    assert_right()


def test_unpinning_what_is_not_pinned_changes_nothing():
    memory().add(*users(1, 2))
    version = conversation().version

    assert memory().unpin(2) == [2]
    assert conversation().version == version


@pytest.mark.parametrize("estimator", [ADDITIVE_WORDS, JOINT])
def test_tokens_are_counted(estimator):
    read = tokens(40, estimator)
    read.add(*users(1, 2, 3))
    read.pin(1)
    for number in range(4, 30):
        read.add(*users(number))

    assert sent(read)[0] == "1"
    assert estimator.estimate_token_count_in_messages(read.messages()) <= 40
    assert read.unpin(1) == [1]
    assert sent(read)[0] != "1"
    assert_right()


def test_another_estimator_counts_it_again():
    tokens().add(*users(*range(1, 30)))
    tokens(40, ADDITIVE_LETTERS).pin(1)
    assert conversation().counted_by == ""
    tokens().add(*users(30))

    assert conversation().counted_by == "words"
    assert_right()


def test_no_more_are_pinned_than_half_of_the_window_holds():
    memory(5).add(*users(*range(1, 6)))
    memory(5).pin(1)
    memory(5).pin(3)

    with pytest.raises(PinError, match="3 messages of the window; they may take 2"):
        memory(5).pin(5)
    assert Message.objects.filter(is_pinned=True).count() == conversation().pinned_count == 2


def test_no_more_than_twenty_are_pinned():
    memory(100).add(*users(*range(1, 30)))
    for number in range(1, 21):
        memory(100).pin(number)

    with pytest.raises(PinError, match="at most 20"):
        memory(100).pin(21)


def test_what_no_longer_fits_since_the_limit_shrank_is_not_sent_until_it_fits_again():
    memory(10).add(*users(*range(1, 11)))
    for number in (1, 2, 3):
        memory(10).pin(number)
    memory(10).add(*users(*range(11, 16)))

    assert sent(memory(10)) == ["1", "2", "3", "9", "10", "11", "12", "13", "14", "15"]
    assert sent(memory(4)) == ["2", "3", "14", "15"]
    assert {each.sequence: each.reason for each in memory(4).explain()}[1] == "does_not_fit"
    memory(4).add(*users(16))
    assert sent(memory(4)) == ["2", "3", "15", "16"]
    assert sent(memory(10)) == ["1", "2", "3", "15", "16"]
    assert conversation().memory_messages == 5
    assert_right()


@pytest.mark.parametrize("refused", [SystemMessage("s")])
def test_a_system_message_cannot_be_pinned(refused):
    memory().add(refused)

    with pytest.raises(PinError, match="system message"):
        memory().pin(1)


def test_what_is_not_there_cannot_be_pinned():
    with pytest.raises(MessageNotFoundError):
        memory().pin(1)
    memory().add(*users(1, 2))
    memory().rewind(1)
    for number in (0, 2, 3):
        with pytest.raises(MessageNotFoundError):
            memory().pin(number)


def test_a_summary_covers_it_and_it_is_sent_all_the_same():
    memory_ = SummarizingChatMemory(
        max_tokens=40,
        token_count_estimator=ADDITIVE_WORDS,
        id="c",
        store=DjangoChatMemoryStore(),
        summarize=lambda old, messages: " ".join([old or "", *(each.single_text for each in messages)]),
        summary_tokens=20,
        after_tokens=8,
    )
    memory_.add(*users(1, 2, 3))
    memory_.pin(2)
    for number in range(4, 13):
        memory_.add(*users(number))

    assert sent(memory_)[1] == "2"
    assert "2" in sent(memory_)[0].split()
    assert_right()


def test_on_another_branch_it_has_no_effect_until_the_path_returns():
    memory().add(*users(1, 2, 3))
    memory().pin(2)
    memory().add(UserMessage("other"), after=1)

    assert sent(memory()) == ["1", "other"]
    assert conversation().pinned_count == 1
    memory().add(*users(5, 6, 7, 8))
    memory().switch(3)
    memory().add(*users(9, 10, 11))
    assert sent(memory()) == ["2", "9", "10", "11"]
    assert_right()


def test_a_rewind_before_the_window_keeps_it_where_it_is():
    memory().add(*users(1))
    memory().pin(1)
    memory().add(*users(*range(2, 20)))
    memory().rewind(10)

    assert sent(memory()) == ["1", "8", "9", "10"]
    assert_right()


def test_a_fork_copies_pins():
    memory().add(*users(1, 2, 3))
    memory().pin(1)
    memory().add(*users(4, 5, 6))
    forks = [operations.fork(conversation(), each, through=through) for each, through in (("d", None), ("e", 5))]

    for fork, expected in zip(forks, (["1", "4", "5", "6"], ["1", "3", "4", "5"]), strict=True):
        copied = MessageWindowChatMemory(max_messages=4, id=fork.memory_id, store=DjangoChatMemoryStore())
        assert sent(copied)[0] == "1"
        assert sent(copied)[-1] == expected[-1]
        assert fork.pinned_count == 1
    assert_right()


def test_what_is_removed_is_no_longer_pinned():
    memory().add(*users(1, 2, 3))
    memory().pin(1)
    memory().add(*users(4, 5, 6))
    memory().remove(1)

    assert sent(memory()) == ["4", "5", "6"]
    assert conversation().pinned_count == 0
    assert_right()


def test_a_cleared_memory_has_no_pins():
    memory().add(*users(1, 2, 3))
    memory().pin(1)
    memory().clear()

    assert sent(memory()) == []
    assert conversation().pinned_count == 0
    memory().add(*users(4))
    assert sent(memory()) == ["4"]


def test_a_memory_that_is_set_has_the_pins_that_are_in_it():
    memory(6).add(*users(*range(1, 7)))
    memory(6).pin(1)
    memory(6).add(*users(7, 8))
    memory(6).set(*memory(6).messages()[1:], *users(9))

    assert sent(memory(6)) == ["4", "5", "6", "7", "8", "9"]
    assert conversation().pinned_count == 0
    memory(9).pin(5)
    memory(6).add(*users(*range(10, 15)))
    assert sent(memory(6)) == ["5", "10", "11", "12", "13", "14"]
    memory(9).set(*memory(6).messages(), *users(15))
    assert sent(memory(9)) == ["5", "10", "11", "12", "13", "14", "15"]
    assert conversation().pinned_count == 1
    memory(9).set(*users(20))
    assert conversation().pinned_count == 0
    assert_right()


def test_evict_passes_over_it():
    memory().add(*users(1, 2, 3))
    memory().pin(1)

    assert memory().evict(1) == [2]
    assert sent(memory()) == ["1", "3"]
    assert memory().evict(9) == [3]
    assert sent(memory()) == ["1"]
    assert_right()


def test_a_grown_limit_fills_the_memory_around_it():
    memory(refill=True).add(*users(1, 2, 3))
    memory().pin(2)
    memory().add(*users(*range(4, 10)))

    assert sent(memory(6, refill=True)) == ["2", "5", "6", "7", "8", "9"]
    assert sent(memory(9, refill=True)) == [*"123456789"]
    assert [each.sequence for each in memory(9, refill=True).explain() if each.is_sent] == [*range(1, 10)]
    memory(9, refill=True).add(*users(10))
    assert sent(memory(9)) == [*"23456789", "10"]
    assert_right()


def test_a_pinned_result_is_not_cleared_and_a_cleared_one_is_whole_again():
    clearing = memory(6, clear_tool_results={"keep": 0})
    clearing.add(*users(1), CALL, ToolExecutionResultMessage("1", "look", "found it " * 50), *users(4))
    clearing.pin(3)
    clearing.add(*users(*range(5, 9)))
    assert clearing.messages()[1] == ToolExecutionResultMessage("1", "look", "found it " * 50)
    clearing.unpin(3)
    clearing.clear()

    first = ToolExecutionResultMessage("1", "look", "found it " * 50)
    clearing.add(*users(1), CALL, first, *users(4))
    clearing.add(*users(5, 6, 7))
    call = Message.objects.filter(is_cleared=True).values_list("sequence", flat=True).get()
    clearing.pin(call)
    assert first in clearing.messages()
    assert_right()


def test_explain_gives_the_pin_as_reason():
    memory().add(*users(1, 2, 3))
    memory().pin(1)
    memory().pin(3)
    memory().add(*users(4, 5, 6))

    reasons = {each.sequence: each.reason for each in memory().explain() if each.is_sent}
    assert reasons == {1: "pinned", 3: "pinned", 5: "in_window", 6: "in_window"}
    statuses = dict(Message.objects.with_status().values_list("sequence", "status"))
    assert statuses == {
        1: "pinned", 2: "evicted", 3: "pinned", 4: "evicted", 5: "in_memory", 6: "in_memory",
    }  # fmt: skip


def test_retention_leaves_it_and_without_a_history_it_is_kept_alone():
    memory().add(*users(1, 2, 3))
    memory().pin(1)
    memory().add(*users(4, 5, 6))
    Message.objects.update(created_at=datetime(2000, 1, 1, tzinfo=UTC))
    operations.prune(Conversation.objects.all(), history_older_than=timedelta(days=1))
    assert [*Message.objects.values_list("sequence", flat=True)] == [1, 4, 5, 6]

    without = memory(keep_history=False)
    without.add(*users(7, 8, 9))
    assert [*Message.objects.values_list("sequence", flat=True)] == [1, 7, 8, 9]
    without.unpin(1)
    assert [*Message.objects.values_list("sequence", flat=True)] == [7, 8, 9]
    without.pin(7)
    without.rewind(0)
    assert conversation().pinned_count == 0
    assert_right()


@pytest.mark.parametrize("ends", [MessageWindowChatMemory.clear, lambda read: read.set([])], ids=["cleared", "set"])
def test_without_a_history_nothing_is_left_of_a_pin_that_ended_with_the_memory(ends):
    memory(keep_history=False).add(*users(1, 2, 3))
    memory(keep_history=False).pin(1)
    memory(keep_history=False).add(*users(4, 5, 6, 7))

    ends(memory(keep_history=False))
    assert not Message.objects.exists()


def test_a_message_that_is_rejected_on_another_branch_does_not_come_back_with_it():
    memory().add(*users(1, 2, 3))
    memory().pin(3)
    memory().add(UserMessage("other"), after=1)
    memory().store.reject("c", [3], "too_long", memory().window())
    memory().switch(3)

    assert sent(memory()) == ["1", "2"]
    assert conversation().pinned_count == 0
    assert_right()


def test_a_question_that_was_pinned_while_it_was_set_aside_stays_in_the_memory_of_its_answer():
    memory().add(*users(1, 2, 3))
    with memory().turn("early", after=1) as turn:
        turn.add(UserMessage("q"))
        memory().switch(4)
        memory().pin(4)
        memory().switch(3)
        for number in range(6):
            turn.add(AiMessage(f"a{number}"))

    assert sent(memory()) == ["q", "a3", "a4", "a5"]
    assert conversation().memory_messages == 4
    assert_right()


def test_a_pinned_message_of_another_branch_is_in_no_memory_that_is_imported():
    memory().add(*users(1, 2, 3))
    memory().pin(3)
    memory().add(UserMessage("other"), after=1)
    memory().add(*users(*range(5, 9)))
    lines = list(operations.export_lines(Conversation.objects.all()))
    Conversation.objects.all().delete()

    wrong = [
        line.replace('"superseded":true', '"superseded":false') if '"is_pinned":true' in line else line
        for line in lines
    ]
    with pytest.raises(operations.JsonLinesError, match="superseded must be true"):
        operations.import_lines(wrong)
    operations.import_lines(lines)
    Message.objects.filter(is_pinned=True).update(superseded=False)
    found: list[operations.Finding] = []
    operations.check(Conversation.objects.all(), lambda _: None, found.append)
    assert operations.Invariant.OFF_PATH in {each.rule for each in found}


def test_lines_carry_it_and_a_wrong_count_is_found_and_repaired():
    memory().add(*users(1, 2, 3))
    memory().pin(1)
    memory().add(*users(4, 5, 6))
    lines = list(operations.export_lines(Conversation.objects.all()))
    Conversation.objects.all().delete()
    operations.import_lines(lines)
    assert sent(memory()) == ["1", "4", "5", "6"]
    assert_right()

    Conversation.objects.update(pinned_count=0)
    found: list[operations.Finding] = []
    operations.check(Conversation.objects.all(), lambda _: None, found.append, repair=True)
    assert [each.rule for each in found] == [operations.Invariant.PINNED_COUNT]
    assert sent(memory()) == ["1", "4", "5", "6"]


def test_a_turn_sends_it_and_adds_behind_it():
    memory().add(*users(1, 2, 3))
    memory().pin(1)
    for persist in ("late", "early"):
        with memory().turn(persist) as turn:
            turn.add(UserMessage("q"))
            assert turn.messages[0] == UserMessage("1")
            turn.add(AiMessage("a"))

        assert sent(memory())[0] == "1"
        assert sent(memory())[-2:] == ["q", "a"]
        assert conversation().memory_messages == 4
    assert_right()


def test_without_pins_no_statement_asks_for_them(django_assert_num_queries):
    memory().add(*users(1, 2, 3))

    for read in (memory(), memory(refill=True)):
        with django_assert_num_queries(1):
            read.messages()
    with django_assert_num_queries(1):
        MessageWindowChatMemory(max_messages=4, id="unknown", store=DjangoChatMemoryStore()).messages()


def test_with_pins_a_read_takes_one_statement_more(django_assert_num_queries):
    memory().add(*users(1, 2, 3))
    memory().pin(1)

    for read in (memory(), memory(refill=True)):
        with django_assert_num_queries(2):
            read.messages()


def test_where_only_a_pin_is_left_it_is_read():
    memory().add(*users(1, 2))
    memory().pin(1)
    memory().evict(9)

    for read in (memory(), memory(refill=True)):
        assert sent(read) == ["1"]
    with DjangoChatMemoryStore().exclusive("c"):
        assert sent(memory()) == ["1"]


def test_it_works_asynchronously():
    async def run() -> list[list[int]]:
        await memory().aadd(*users(1, 2))
        return [await memory().apin(1), await memory().aunpin(1)]

    assert async_to_sync(run)() == [[1], [1]]


OTHERS = {
    "adds": lambda: memory().add(*users(7, 8)),
    "evicts": lambda: memory().evict(3),
    "pins another": lambda: memory().pin(5),
    "unpins": lambda: memory().unpin(2),
    "removes": lambda: memory().remove(2),
    "clears": lambda: memory().clear(),
    "rewinds": lambda: memory().rewind(1),
    "forks": lambda: operations.fork(conversation()),
}


@pytest.mark.parametrize("after", [1, 2, 3, 5])
@pytest.mark.parametrize("other", OTHERS)
def test_whatever_another_does_meanwhile_the_counts_are_right(other, after):
    memory().add(*users(1, 2, 3, 4, 5, 6))
    memory().pin(2)
    memory().unpin(2)

    with another_writer(OTHERS[other], after):
        try:
            memory().pin(2)
        except MessageNotFoundError:
            assert other in {"removes", "rewinds"}
    with another_writer(OTHERS[other] if other not in {"removes", "rewinds", "clears"} else (lambda: None), after):
        memory().add(*users(9))

    assert_right()
    assert conversation().pinned_count == Message.objects.filter(conversation=conversation(), is_pinned=True).count()


def test_a_summary_that_is_made_meanwhile_takes_nothing_from_the_memory():
    def summarizing() -> SummarizingChatMemory:
        return SummarizingChatMemory(
            max_tokens=30,
            token_count_estimator=ADDITIVE_WORDS,
            id="c",
            store=DjangoChatMemoryStore(),
            summarize=lambda *_: "old",
            summary_tokens=8,
            after_tokens=4,
            summarize_after_add=False,
        )

    summarizing().add(*users(*range(1, 12)))
    with another_writer(lambda: summarizing().summarize(), 1):
        summarizing().pin(2)

    assert sent(summarizing())[:2] == ["old", "2"]
    assert connection.is_usable()
    assert_right()
