"""
A message sent again: what has its answer already, what is answered where it is, what is asked once more at the end, and
what is refused.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from chatmemory_django.chat.answers.versions import AGAIN
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import UnavailableError
from chatmemory_django.memory import ChatMemory
from chatmemory_django.messages import AiMessage, NewMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.stores.base import MessageNotFoundError
from tests.faces.chat.scripted import ScriptedModel
from tests.faces.chat.test_assistant import DOWN, ask, history, rows
from tests.quick import mostly_slow

__all__ = ["ask"]  # a fixture

pytestmark = pytest.mark.django_db(transaction=True)

LONG = "m" * 64
UUID = "0192f5a0-7d3e-7c21-9b1a-5d2f4e0b7a11"


@contextmanager
def no_answer() -> Iterator[None]:
    with pytest.raises(UnavailableError):
        yield


def assistant(*answers: object, **options: object) -> Assistant:
    return Assistant(ScriptedModel(*answers), persist="early", **options)


def everything() -> list[str]:
    return [row.text for row in Message.objects.history(all_branches=True).order_by("sequence")]


def texts() -> list[str]:
    return [row.text for row in rows()]


def memory() -> ChatMemory:
    return get_chat_memory("c")


def asked(text: str, name: str) -> NewMessage:
    return NewMessage(UserMessage(text), client_message_id=name)


def sent(bot: Assistant) -> list[str]:
    """Return the texts of the last request."""
    return [message.text if isinstance(message, AiMessage) else message.single_text for message in bot.model.sent[-1]]


class TestTheNewestMessage:
    @pytest.mark.parametrize("name", ["q1", None])
    def test_it_is_answered_where_it_is(self, ask, name):
        bot = assistant(DOWN, DOWN, "One.")
        for _ in range(2):
            with no_answer():
                ask(bot, "c", "First?", client_message_id=name)

        ask(bot, "c", "First?", client_message_id=name)

        assert everything() == ["First?", "One."]
        assert not rows(is_complete=False)

    def test_so_is_one_that_was_stored_without_an_answer(self, ask):
        """REST, for example, stores messages without asking a model."""
        bot = assistant("One.")
        memory().add(asked("First?", "q1"))

        ask(bot, "c", "First?", client_message_id="q1")

        assert everything() == ["First?", "One."]

    def test_a_system_message_behind_it_changes_nothing(self, ask):
        bot = assistant(DOWN, "One.")
        with no_answer():
            ask(bot, "c", "First?", client_message_id="q1")
        memory().add(SystemMessage("Be brief."))

        ask(bot, "c", "First?", client_message_id="q1")

        assert history() == [UserMessage("First?"), AiMessage("One.")]
        assert not rows(is_complete=False)


class TestAQuestionThatIsNotTheNewest:
    """Without an answer, it is asked once more at the end: nothing that was answered leaves the path."""

    def lost(self, ask: Callable, *answers: object, name: str = "q1") -> Assistant:
        """Ask a question that gets no answer, and then one that does."""
        bot = assistant(DOWN, "Two.", *answers)
        with no_answer():
            ask(bot, "c", "First?", client_message_id=name)
        ask(bot, "c", "Second?", client_message_id="q2")
        return bot

    def test_it_is_answered_at_the_end(self, ask):
        bot = self.lost(ask, "One.")

        ask(bot, "c", "First?", client_message_id="q1")

        assert texts() == everything() == ["First?", "Second?", "Two.", "First?", "One."]
        assert sent(bot) == texts()[:-1]
        assert [row.text for row in rows(is_complete=False)] == ["First?"]

    def test_each_further_retry_finds_it(self, ask):
        bot = self.lost(ask, DOWN, DOWN, "One.", "One, again.")

        for _ in range(2):
            with no_answer():
                ask(bot, "c", "First?", client_message_id="q1")
            assert texts() == ["First?", "Second?", "Two.", "First?"]
        for _ in range(2):
            ask(bot, "c", "First?", client_message_id="q1")
            assert texts() == everything() == ["First?", "Second?", "Two.", "First?", "One."]

        assert len(bot.model.requests) == 5

    def test_it_is_also_found_by_its_new_id(self, ask):
        bot = self.lost(ask, DOWN, "One.")
        with no_answer():
            ask(bot, "c", "First?", client_message_id="q1")

        ask(bot, "c", "First?", client_message_id=rows()[-1].client_message_id)

        assert texts() == ["First?", "Second?", "Two.", "First?", "One."]

    def test_it_can_be_left_behind_again(self, ask):
        bot = self.lost(ask, DOWN, "Three.", "One.")
        with no_answer():
            ask(bot, "c", "First?", client_message_id="q1")
        ask(bot, "c", "Third?", client_message_id="q3")

        ask(bot, "c", "First?", client_message_id="q1")

        assert texts() == ["First?", "Second?", "Two.", "First?", "Third?", "Three.", "First?", "One."]
        assert len({row.client_message_id for row in rows()}) == 8

    @pytest.mark.parametrize(
        "name",
        mostly_slow(
            [LONG, "0192f5a0-7d3e-7c21-9b1a-5d2f4e0b7a11", f"q1{AGAIN}1", f"q1{AGAIN}4", "message-1"], one_in=3
        ),
    )
    def test_its_id_may_be_of_any_form(self, ask, name):
        bot = self.lost(ask, DOWN, "One.", "Edited.", name=name)
        with no_answer():
            ask(bot, "c", "First?", client_message_id=name)

        ask(bot, "c", "First?", client_message_id=name)
        again = rows()[-2].client_message_id
        ask(bot, "c", "First, edited?", client_message_id=again)

        assert texts() == ["First?", "Second?", "Two.", "First, edited?", "Edited."]
        assert everything().count("First?") == 2

    def test_an_edit_replaces_the_question_at_the_end(self, ask):
        bot = self.lost(ask, "One.", "Edited.", "Edited, again.")
        ask(bot, "c", "First?", client_message_id="q1")

        for _ in range(2):
            ask(bot, "c", "First, edited?", client_message_id="q1")
            assert texts() == ["First?", "Second?", "Two.", "First, edited?", "Edited."]

        assert len(bot.model.requests) == 4

    def test_an_edit_before_that_replaces_it_where_it_is(self, ask):
        """As each edit of an earlier message: what followed it stays as a version that can be switched to."""
        bot = self.lost(ask, "Edited.")

        ask(bot, "c", "First, edited?", client_message_id="q1")

        assert texts() == ["First, edited?", "Edited."]
        conversation = Conversation.objects.get()
        assert [row.text for row in conversation.alternatives(rows()[0].sequence)] == ["First?"]

    def test_after_a_rewind_to_it_it_is_the_newest(self, ask):
        bot = self.lost(ask, "One.", "One, here.")
        ask(bot, "c", "First?", client_message_id="q1")
        memory().rewind(1)

        ask(bot, "c", "First?", client_message_id="q1")

        assert texts() == ["First?", "One, here."]

    def test_an_answer_that_arrived_behind_others_counts_for_nothing(self, ask):
        """It may be the answer to another question: only what follows a question on its path answers it."""
        bot = assistant("One, again.")
        with memory().turn("early") as turn:
            turn.add(asked("First?", "q1"))
            with memory().turn("early") as other:
                other.add(asked("Second?", "q2"), AiMessage("Two."))
            turn.add(AiMessage("One."))

        ask(bot, "c", "First?", client_message_id="q1")

        assert texts() == ["First?", "Second?", "Two.", "One.", "First?", "One, again."]


class TestAfterClear:
    @pytest.mark.parametrize("name", ["q1", None])
    def test_a_question_without_an_answer_is_asked_once_more(self, ask, name):
        bot = assistant("Zero.", DOWN, DOWN, "One.")
        ask(bot, "c", "Before?")
        with no_answer():
            ask(bot, "c", "First?", client_message_id=name)
        memory().clear()
        with no_answer():
            ask(bot, "c", "First?", client_message_id=name)

        ask(bot, "c", "First?", client_message_id=name)

        assert texts() == everything() == ["Before?", "Zero.", "First?", "First?", "One."]
        assert sent(bot) == ["First?"]
        assert memory().messages() == [UserMessage("First?"), AiMessage("One.")]

    @pytest.mark.parametrize("is_cleared_again", [False, True])
    def test_one_that_was_answered_after_the_clear_has_its_answer(self, ask, is_cleared_again):
        bot = assistant("One, again.")
        with memory().turn("early") as turn:
            turn.add(asked("First?", "q1"))
            memory().clear()
            turn.add(AiMessage("One."))
        if is_cleared_again:
            memory().clear()

        remembered = memory().messages()

        ask(bot, "c", "First?", client_message_id="q1")

        assert texts() == everything() == ["First?", "One."]
        assert memory().messages() == remembered == ([] if is_cleared_again else [AiMessage("One.")])
        assert not bot.model.requests

    def test_so_is_a_question_with_a_system_message_behind_it(self, ask):
        bot = assistant("Zero.", DOWN, "One.")
        ask(bot, "c", "Before?")
        with no_answer():
            ask(bot, "c", "First?", client_message_id="q1")
        memory().add(SystemMessage("Be brief."))
        memory().clear()

        ask(bot, "c", "First?", client_message_id="q1")

        assert texts() == ["Before?", "Zero.", "First?", "Be brief.", "First?", "One."]
        assert sent(bot) == ["First?"]

    def test_an_answered_question_has_its_answer_and_the_memory_stays_empty(self, ask):
        bot = assistant("Zero.", "One.", "One, again.")
        ask(bot, "c", "Before?", client_message_id="q0")
        ask(bot, "c", "First?", client_message_id="q1")
        memory().clear()

        ask(bot, "c", "First?", client_message_id="q1")

        assert texts() == everything() == ["Before?", "Zero.", "First?", "One."]
        assert memory().messages() == []
        assert len(bot.model.requests) == 2

    def test_what_was_added_after_it_stays(self, ask):
        bot = assistant(DOWN, "Two.", "One.")
        with no_answer():
            ask(bot, "c", "First?", client_message_id="q1")
        memory().clear()
        ask(bot, "c", "Second?", client_message_id="q2")

        ask(bot, "c", "First?", client_message_id="q1")

        assert texts() == ["First?", "Second?", "Two.", "First?", "One."]
        assert sent(bot) == ["Second?", "Two.", "First?"]


class TestOtherBranches:
    def test_the_conversation_goes_back_to_the_answer_of_a_question(self, ask):
        bot = assistant("Zero.", "One.", "Edited.", "One, again.")
        ask(bot, "c", "Before?", client_message_id="q0")
        ask(bot, "c", "First?", client_message_id="q1")
        ask(bot, "c", "Before, edited?", client_message_id="q0")

        ask(bot, "c", "First?", client_message_id="q1")

        assert texts() == ["Before?", "Zero.", "First?", "One."]
        assert memory().messages() == history()
        assert len(bot.model.requests) == 3

    def test_so_it_does_with_a_system_message_before_the_answer(self, ask):
        bot = assistant("One, again.")
        memory().add(asked("First?", "q1"))
        memory().add(SystemMessage("Be brief."), AiMessage("One."))
        memory().add(UserMessage("Other?"), after=0)

        ask(bot, "c", "First?", client_message_id="q1")

        assert texts() == ["First?", "Be brief.", "One."]
        assert not bot.model.requests

    @pytest.mark.parametrize("is_complete", [True, False])
    def test_a_question_without_an_answer_is_asked_at_the_end_of_the_path(self, ask, is_complete):
        bot = assistant("Zero.", *([] if is_complete else [DOWN]), "Edited.", "One.")
        ask(bot, "c", "Before?", client_message_id="q0")
        if is_complete:
            memory().add(asked("First?", "q1"))
        else:
            with no_answer():
                ask(bot, "c", "First?", client_message_id="q1")
        ask(bot, "c", "Before, edited?", client_message_id="q0")

        ask(bot, "c", "First?", client_message_id="q1")

        assert texts() == ["Before, edited?", "Edited.", "First?", "One."]

    def test_an_edit_without_an_answer_replaces_the_version_on_the_path(self, ask):
        bot = assistant("One.", "Two.", DOWN, "Edited.")
        ask(bot, "c", "First?", client_message_id="q1")
        ask(bot, "c", "Second?", client_message_id="q2")
        with no_answer():
            ask(bot, "c", "First, edited?", client_message_id="q1")
        assert texts() == ["First?", "One.", "Second?", "Two."]

        ask(bot, "c", "First, edited?", client_message_id="q1")

        assert texts() == ["First, edited?", "Edited."]
        assert everything().count("First, edited?") == 1


class TestRemoved:
    """A removed message sent again is neither stored nor answered."""

    def test_a_question_is_refused(self, ask):
        bot = assistant("One.")
        ask(bot, "c", "First?", client_message_id="q1")
        memory().remove(1)

        for text in ("First?", "First, edited?"):
            with pytest.raises(MessageNotFoundError):
                ask(bot, "c", text, client_message_id="q1")

        assert texts() == ["One."]

    def test_so_is_one_that_a_page_knows_by_its_sequence(self, ask):
        bot = assistant("One.")
        ask(bot, "c", "First?")
        Message.objects.update(client_message_id=None)
        memory().remove(1)

        with pytest.raises(MessageNotFoundError):
            ask(bot, "c", "First?", client_message_id="message-1")

        assert texts() == ["One."]

    def test_so_is_one_that_was_asked_once_more(self, ask):
        bot = assistant(DOWN, "Two.", "One.")
        with no_answer():
            ask(bot, "c", "First?", client_message_id="q1")
        ask(bot, "c", "Second?", client_message_id="q2")
        ask(bot, "c", "First?", client_message_id="q1")
        memory().remove(4)

        with pytest.raises(MessageNotFoundError):
            ask(bot, "c", "First?", client_message_id="q1")

        assert texts() == ["First?", "Second?", "Two.", "One."]

    def test_one_that_was_asked_once_more_on_a_branch_that_an_edit_has_left_has_its_answer_there(self, ask):
        bot = assistant(DOWN, "Two.", "One.", "Edited.", "Next.")
        with no_answer():
            ask(bot, "c", "First?", client_message_id="q1")
        ask(bot, "c", "Second?", client_message_id="q2")
        ask(bot, "c", "First?", client_message_id="q1")
        ask(bot, "c", "Second, edited?", client_message_id="q2")
        assert texts() == ["First?", "Second, edited?", "Edited."]

        ask(bot, "c", "First?", client_message_id="q1")

        assert texts() == ["First?", "Second?", "Two.", "First?", "One."]
        assert len(bot.model.requests) == 4

    def test_without_its_answer_a_question_has_none(self, ask):
        bot = assistant("One.", "Two.", "One, again.")
        ask(bot, "c", "First?", client_message_id="q1")
        ask(bot, "c", "Second?", client_message_id="q2")
        memory().remove(2)

        ask(bot, "c", "First?", client_message_id="q1")

        assert texts() == ["First?", "Second?", "Two.", "First?", "One, again."]

    def test_an_edit_outlives_the_first_version(self, ask):
        bot = assistant("One.", "Edited.", "Edited, again.")
        ask(bot, "c", "First?", client_message_id="q1")
        ask(bot, "c", "First, edited?", client_message_id="q1")
        memory().remove(1)

        ask(bot, "c", "First, edited?", client_message_id="q1")

        assert texts() == ["First, edited?", "Edited."]
        assert len(bot.model.requests) == 2


class TestWithoutAHistory:
    def test_an_edit_takes_the_place_of_a_question_whose_parent_is_deleted(self, ask, settings):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "KEEP_HISTORY": False}
        bot = assistant("One.", "Two.", "Three.", "Four.", memory_options={"max_messages": 4})
        ask(bot, "c", "First?", client_message_id="q1")
        memory().add(UserMessage("elsewhere"))
        memory().rewind(2)
        ask(bot, "c", "Second?", client_message_id="q2")
        ask(bot, "c", "Third?", client_message_id="q3")
        assert texts() == ["Second?", "Two.", "Third?", "Three."]

        ask(bot, "c", "Second, edited?", client_message_id="q2")

        assert texts() == everything() == ["Second, edited?", "Four."]
