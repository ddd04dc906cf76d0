"""A turn takes one read and one write, or stores nothing."""

import asyncio
from contextlib import nullcontext

import pytest
from django.db import connection, transaction

from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.asgi import run
from tests.estimators import ADDITIVE_WORDS, AdditiveWords

CALLS = AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "look", "{}")])
QUESTION, ANSWER = UserMessage("how are you"), AiMessage("very well")

pytestmark = pytest.mark.django_db


def memory(max_messages: int = 4, **options) -> ChatMemory:
    return MessageWindowChatMemory(max_messages=max_messages, id="c", store=DjangoChatMemoryStore(), **options)


def history() -> list:
    return [row.chat_message for row in Message.objects.history()]


@pytest.fixture(params=["in memory", "django"])
def any_memory(request) -> ChatMemory:
    store = DjangoChatMemoryStore() if request.param == "django" else None
    return MessageWindowChatMemory(max_messages=4, id="c", store=store)


class TestOnEveryStore:
    def test_messages_of_a_turn_are_stored_when_it_ends(self, any_memory):
        any_memory.add(UserMessage("hi"))

        with any_memory.turn() as turn:
            turn.add(QUESTION)
            turn.add(ANSWER)
            stored_so_far = any_memory.messages()

        assert stored_so_far == [UserMessage("hi")]
        assert any_memory.messages() == [UserMessage("hi"), QUESTION, ANSWER]

    def test_a_turn_returns_stored_and_added_messages_within_the_limit(self, any_memory):
        any_memory.add(SystemMessage("Be brief."), *(UserMessage(str(number)) for number in range(3)))

        with any_memory.turn() as turn:
            before = turn.messages
            turn.add(QUESTION)
            after = turn.messages

        assert before == [SystemMessage("Be brief."), UserMessage("0"), UserMessage("1"), UserMessage("2")]
        assert after == [SystemMessage("Be brief."), UserMessage("1"), UserMessage("2"), QUESTION]
        assert any_memory.messages() == after

    def test_a_failed_turn_stores_nothing(self, any_memory):
        any_memory.add(UserMessage("hi"))

        with pytest.raises(TimeoutError), any_memory.turn() as turn:
            turn.add(QUESTION)
            raise TimeoutError

        assert any_memory.messages() == [UserMessage("hi")]

    @pytest.mark.parametrize("persist", ["late", "early"])
    def test_a_turn_that_adds_nothing_changes_nothing(self, any_memory, persist):
        any_memory.add(UserMessage("hi"))

        with any_memory.turn(persist=persist):
            pass

        assert any_memory.messages() == [UserMessage("hi")]

    def test_an_early_turn_stores_the_user_message_immediately(self, any_memory):
        with any_memory.turn(persist="early") as turn:
            turn.add(QUESTION)
            stored_so_far = any_memory.messages()
            turn.add(ANSWER)

        assert stored_so_far == [QUESTION]
        assert any_memory.messages() == [QUESTION, ANSWER]

    def test_what_an_early_turn_stores_evicts_nothing_before_its_end(self, any_memory):
        any_memory.add(*(UserMessage(str(number)) for number in range(4)))

        with any_memory.turn("early") as turn:
            turn.add(QUESTION)
            stored_so_far = any_memory.store.get_messages("c")
            turn.add(ANSWER)

        assert stored_so_far == [*(UserMessage(str(number)) for number in range(4)), QUESTION]
        assert any_memory.store.get_messages("c") == [UserMessage("2"), UserMessage("3"), QUESTION, ANSWER]

    def test_neither_does_what_a_turn_saves(self, any_memory):
        any_memory.add(*(UserMessage(str(number)) for number in range(4)))

        with any_memory.turn() as turn:
            turn.add(QUESTION)
            turn.save()
            turn.add(ANSWER)
            turn.save()
            stored_so_far = any_memory.store.get_messages("c")

        assert stored_so_far == [*(UserMessage(str(number)) for number in range(4)), QUESTION, ANSWER]
        assert any_memory.store.get_messages("c") == stored_so_far[2:]

    def test_the_next_write_evicts_for_what_a_failed_early_turn_has_stored(self, any_memory):
        any_memory.add(*(UserMessage(str(number)) for number in range(4)))
        with pytest.raises(TimeoutError), any_memory.turn("early") as turn:
            turn.add(QUESTION)
            raise TimeoutError

        left, read = any_memory.store.get_messages("c"), any_memory.messages()
        any_memory.add(ANSWER)

        assert (len(left), read) == (5, left[1:])
        assert any_memory.store.get_messages("c") == [*left[2:], ANSWER]

    def test_a_system_message_that_came_after_an_early_question_keeps_its_place(self, any_memory):
        with any_memory.turn("early") as turn:
            turn.add(QUESTION)
            any_memory.add(SystemMessage("Be brief."))
            turn.add(ANSWER)

        assert any_memory.messages() == [QUESTION, SystemMessage("Be brief."), ANSWER]

    def test_concurrently_added_messages_come_before_those_of_the_turn(self, any_memory):
        with any_memory.turn() as turn:
            turn.add(QUESTION)
            any_memory.add(UserMessage("from another tab"))

        assert any_memory.messages() == [UserMessage("from another tab"), QUESTION]

    def test_a_turn_cannot_be_used_after_its_end(self, any_memory):
        with pytest.raises(RuntimeError, match=r"use it as 'with memory.turn\(\) as turn:'"):
            any_memory.turn().add(QUESTION)

    def test_persist_accepts_two_values(self, any_memory):
        with pytest.raises(ValueError, match=r"persist must be 'late' or 'early', not 'never'\."):
            any_memory.turn(persist="never")

    def test_the_options_of_the_memory_apply_in_a_turn(self):
        calling = MessageWindowChatMemory(max_messages=9, repair_tools=True, start_on_user=True)
        calling.add(AiMessage("first"), QUESTION)

        with calling.turn() as turn:
            turn.add(AiMessage("looking", tool_execution_requests=[ToolExecutionRequest(id="1", name="f")]))
            seen = turn.messages

        assert seen == [QUESTION, AiMessage("looking")]


class TestStatements:
    def test_a_turn_takes_one_read_and_one_write(self, django_assert_num_queries):
        chat = TokenWindowChatMemory(
            max_tokens=23, token_count_estimator=ADDITIVE_WORDS, id="c", store=DjangoChatMemoryStore()
        )
        chat.add(*[QUESTION, ANSWER] * 2)

        with django_assert_num_queries(1 + (2 if connection.vendor == "postgresql" else 3)), chat.turn() as turn:
            turn.add(QUESTION)
            turn.add(ANSWER)
            sent = turn.messages

        assert chat.messages() == sent == [ANSWER, QUESTION, ANSWER]

    @pytest.mark.parametrize("persist", ["late", "early"])
    def test_a_message_is_counted_once(self, persist):
        class Counting(AdditiveWords):
            def __init__(self) -> None:
                self.counted: list[ChatMessage] = []

            def estimate_token_count_in_message(self, message: ChatMessage) -> int:
                self.counted.append(message)
                return super().estimate_token_count_in_message(message)

        counting = Counting()
        chat = TokenWindowChatMemory(
            max_tokens=23, token_count_estimator=counting, id="c", store=DjangoChatMemoryStore()
        )

        with chat.turn(persist) as turn:
            turn.add(QUESTION)
            assert turn.messages == [QUESTION]
            turn.add(ANSWER)

        assert counting.counted == [QUESTION, ANSWER]
        assert [row.token_count for row in Message.objects.history()] == [6, 5]


def window(memory_id: str, max_messages: int = 6) -> ChatMemory:
    return MessageWindowChatMemory(max_messages=max_messages, id=memory_id, store=DjangoChatMemoryStore())


def filled(memory_id: str) -> ChatMemory:
    """Return a memory that is full, with a system message in front."""
    found = window(memory_id)
    found.add(SystemMessage("Be brief."), *(UserMessage(str(number)) for number in range(9)))
    return found


def rows_of(memory_id: str) -> list:
    columns = ("sequence", "type", "text", "superseded", "in_history", "on_path", "is_complete", "parent_sequence")
    return list(Message.objects.filter(conversation__memory_id=memory_id).order_by("sequence").values_list(*columns))


OTHERS = {
    "nothing": lambda other: None,
    "an add": lambda other: other.add(UserMessage("by another")),
    "a smaller window": lambda other: window(other.id, 2).add(UserMessage("by another")),
    "many adds": lambda other: [other.add(UserMessage(f"{number} by another")) for number in range(7)],
    "a new system message": lambda other: other.add(SystemMessage("Be kind.")),
    "a clear": lambda other: other.clear(),
    "a set": lambda other: other.set([UserMessage("set")]),
    "an eviction": lambda other: other.evict(3),
    "a removal": lambda other: other.remove(10),
    "a rewind": lambda other: other.rewind(7),
    "a new title": lambda other: Conversation.objects.filter(memory_id=other.id).update(title="new"),
}
ADDED = {
    "a question and an answer": [QUESTION, ANSWER],
    "the same system message": [SystemMessage("Be brief.")],
    "another system message": [SystemMessage("Be bold."), QUESTION],
    "more than the window": [UserMessage(f"new {number}") for number in range(8)],
}


@pytest.mark.django_db(transaction=True)
class TestOtherWriters:
    @pytest.mark.parametrize("added", ADDED)
    @pytest.mark.parametrize("other", OTHERS)
    def test_a_turn_ends_like_an_add_after_what_others_wrote_since_it_began(self, other, added):
        turned, expected = filled("turned"), filled("expected")

        with turned.turn() as turn:
            OTHERS[other](window("turned"))
            turn.add(*ADDED[added])
        OTHERS[other](expected)
        expected.add(*ADDED[added])

        assert turned.messages() == expected.messages()
        assert rows_of("turned") == rows_of("expected")

    @pytest.mark.parametrize("other", OTHERS)
    def test_an_early_turn_ends_like_an_add_after_what_others_wrote_since_its_question(self, other):
        turned, expected = filled("turned"), filled("expected")

        with turned.turn("early") as turn:
            turn.add(QUESTION)
            OTHERS[other](window("turned"))
            turn.add(ANSWER)
        expected.max_messages += 1  # nothing is evicted before the end
        expected.add(QUESTION)
        expected.max_messages -= 1
        OTHERS[other](expected)
        expected.add(ANSWER)

        assert turned.messages() == expected.messages()
        assert rows_of("turned") == rows_of("expected")

    @pytest.mark.parametrize("other", OTHERS)
    def test_without_history_the_rows_are_those_of_the_memory_whatever_others_wrote_between_its_rounds(
        self, other, settings
    ):
        kept, left = [], []
        for keeps, found in ((True, kept), (False, left)):
            settings.CHATMEMORY = {**settings.CHATMEMORY, "KEEP_HISTORY": keeps}
            turned = filled(f"turned {keeps}")
            with turned.turn("early") as turn:
                turn.add(QUESTION)
                turn.add(CALLS)
                turn.save()
                OTHERS[other](window(turned.id))
                turn.add(ToolExecutionResultMessage.from_request(*CALLS.tool_execution_requests, "found"))
                turn.save()
                turn.add(ANSWER)
            found += turned.store.get_messages(turned.id)

        assert left == kept
        conversation = Conversation.objects.get(memory_id="turned False")
        assert {*conversation.messages.all()} == {*conversation.memory()}
        assert conversation.memory_messages == len(left)

    def test_a_question_stays_open_when_what_continues_from_it_is_in_the_memory_already(self):
        """Found by the soak test: nothing is stored, so nothing is its answer."""
        broken_off = filled("c")
        with pytest.raises(RuntimeError), broken_off.turn("early") as turn:
            turn.add(QUESTION)
            raise RuntimeError
        question = Message.objects.order_by("sequence").last().sequence
        before = rows_of("c"), list(Conversation.objects.values())

        broken_off.add(SystemMessage("Be brief."), after=question)

        assert (rows_of("c"), list(Conversation.objects.values())) == before
        broken_off.add(ANSWER, after=question)
        assert all(row.is_complete for row in Message.objects.all())

    @pytest.mark.parametrize("limit", [1, 2, 3, 6, 20])
    def test_an_early_turn_of_many_questions_evicts_like_as_many_adds(self, limit):
        turned, expected = filled("turned"), filled("expected")
        turned.max_messages = expected.max_messages = limit
        added = [UserMessage(f"new {number}") for number in range(12)]

        with turned.turn("early") as turn:
            for message in added:
                turn.add(message)
        for message in added:
            expected.add(message)

        assert turned.messages() == expected.messages()
        assert rows_of("turned") == rows_of("expected")

    @pytest.mark.parametrize("outer", [nullcontext, transaction.atomic])
    def test_a_turn_that_began_on_what_was_rolled_back_ends_on_what_is_there(self, outer):
        turned, expected = filled("turned"), filled("expected")
        turn = turned.turn()

        with outer():
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                turned.add(*(UserMessage(f"{number} rolled back") for number in range(5)))
                turn.begin()
                raise ZeroDivisionError
            turned.add(UserMessage("instead"))  # this has the version that was rolled back
            turn.add(QUESTION)
            turn.end()
        expected.add(UserMessage("instead"))
        expected.add(QUESTION)

        assert turned.messages() == expected.messages()
        assert rows_of("turned") == rows_of("expected")

    @pytest.mark.parametrize("overtaken", [False, True])
    def test_only_a_turn_that_another_writer_overtook_reads_again(self, overtaken, django_assert_num_queries):
        turned = filled("turned")
        turn = turned.turn().begin()
        turn.add(QUESTION)
        if overtaken:
            turned.add(UserMessage("by another"))

        # Elsewhere, with BEGIN and COMMIT. Behind a lock, the client message ids are looked up as well.
        statements = {"postgresql": (1, 3), "sqlite": (4, 7), "mysql": (4, 8)}[connection.vendor]
        with django_assert_num_queries(statements[overtaken]):
            turn.end()


class TestEarlyTurns:
    def test_the_message_is_incomplete_until_the_turn_ends(self):
        with memory().turn(persist="early") as turn:
            turn.add(QUESTION)
            incomplete = [row.chat_message for row in Message.objects.incomplete()]
            turn.add(ANSWER)

        assert incomplete == [QUESTION]
        assert not Message.objects.incomplete().exists()
        assert history() == [QUESTION, ANSWER]

    def test_the_message_of_a_failed_turn_stays_incomplete(self):
        with pytest.raises(TimeoutError), memory().turn(persist="early") as turn:
            turn.add(QUESTION)
            turn.add(AiMessage("half an ans"))
            raise TimeoutError

        assert history() == [row.chat_message for row in Message.objects.incomplete()] == [QUESTION]

    def test_messages_added_before_the_user_message_come_before_it(self):
        with memory().turn(persist="early") as turn:
            turn.add(SystemMessage("Be brief."))
            turn.add(QUESTION)

        assert memory().messages() == [SystemMessage("Be brief."), QUESTION]

    def test_a_system_message_is_never_incomplete(self):
        with pytest.raises(TimeoutError), memory().turn(persist="early") as turn:
            turn.add(SystemMessage("Be brief."), QUESTION)
            raise TimeoutError

        assert [row.chat_message for row in Message.objects.incomplete()] == [QUESTION]

    @pytest.mark.parametrize("persist", ["late", "early"])
    @pytest.mark.parametrize("branch", [False, True], ids=["on the path", "on a branch"])
    def test_continuing_from_an_unanswered_message_completes_it(self, persist, branch):
        memory().add(UserMessage("before"), ANSWER)
        with pytest.raises(TimeoutError), memory().turn(persist="early", after=1 if branch else None) as turn:
            turn.add(QUESTION)
            raise TimeoutError

        with memory().turn(persist=persist, after=3) as turn:
            turn.add(AiMessage("at last"))

        assert not Message.objects.incomplete().exists()
        assert history() == [UserMessage("before"), *([] if branch else [ANSWER]), QUESTION, AiMessage("at last")]

    def test_continuing_before_an_unanswered_message_leaves_it_incomplete(self):
        memory().add(UserMessage("before"))
        with pytest.raises(TimeoutError), memory().turn(persist="early") as turn:
            turn.add(QUESTION)
            raise TimeoutError

        memory().add(ANSWER, after=1)

        assert [row.chat_message for row in Message.objects.incomplete()] == [QUESTION]
        assert history() == [UserMessage("before"), ANSWER]

    def test_a_turn_that_adds_nothing_completes_nothing(self):
        with pytest.raises(TimeoutError), memory().turn(persist="early") as turn:
            turn.add(QUESTION)
            raise TimeoutError

        with memory().turn(after=1):
            pass

        assert [row.chat_message for row in Message.objects.incomplete()] == [QUESTION]


class TestUnderAsgi:
    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("persist", ["late", "early"])
    def test_a_turn_is_stored_when_it_ends(self, persist):
        async def talk():
            async with memory().turn(persist=persist) as turn:
                await turn.aadd(QUESTION)
                await turn.aadd(ANSWER)
                return turn.messages

        assert run(talk()) == history() == [QUESTION, ANSWER]

    @pytest.mark.django_db(transaction=True)
    def test_a_cancelled_turn_stores_nothing(self):
        async def talk():
            async with memory().turn() as turn:
                turn.add(QUESTION)
                await asyncio.sleep(60)

        async def impatient():
            async with asyncio.timeout(0.2):
                await talk()

        with pytest.raises(TimeoutError):
            run(impatient())

        assert not Conversation.objects.exists()


class MessagesAlone:
    """A router that reads messages from the default database, and everything else from one that does not exist."""

    def db_for_read(self, model, **hints):
        return "default" if model is Message else "elsewhere"

    def db_for_write(self, model, **hints):
        return "default"


def test_a_turn_reads_where_the_router_has_messages(settings):
    settings.DATABASE_ROUTERS = [MessagesAlone()]

    with memory().turn() as turn:
        turn.add(QUESTION)
        turn.add(ANSWER)
        seen = turn.messages

    assert seen == [QUESTION, ANSWER]
    assert memory().messages() == seen
