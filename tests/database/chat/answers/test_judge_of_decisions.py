"""The judge knows what a decision makes right, and what it does not."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User

from chatmemory_django.chat.answers import exchange
from chatmemory_django.chat.approvals import Decision, approving
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.memory.turns import Turn
from chatmemory_django.models import Conversation
from tests.database.chat.answers import world
from tests.database.chat.answers.oracle import Chat, Tables, judge
from tests.database.chat.answers.world import Act, Outcome, Question

pytestmark = pytest.mark.django_db(transaction=True)


class Conversing:
    """A conversation in which acts are done one after the other, and what the judge finds."""

    def __init__(self) -> None:
        self.chat = Chat(str(uuid4()), {"max_messages": 10_000})
        self.found: list[str] = []
        self._numbers = itertools.count(1)

    def asked(self, rounds: str = "") -> Question:
        number = next(self._numbers)
        question = Question(f"q{number}", f"id-{number}", tuple(filter(None, rounds.split("|"))))
        self.chat.questions.append(question)
        self.do("ask", question)
        return question

    def do(self, kind: str, question: Question, **options: Any) -> Outcome:
        return self.do_at_once((kind, question, options))[0]

    def do_at_once(self, *acts: tuple[str, Question, dict[str, Any]]) -> Sequence[Outcome]:
        """Do *acts*, which are judged as if nobody knew which of them came first."""
        before = self.tables
        to_do = [
            Act(next(self._numbers), kind, self.chat.memory_id, self.chat.options, question, **options)
            for kind, question, options in acts
        ]
        outcomes = [world.perform(act) for act in to_do]
        self.found += judge(self.chat, list(zip(to_do, outcomes, strict=True)), world.world.news(), before)
        return outcomes

    @property
    def tables(self) -> Tables:
        return Tables(self.chat.memory_id)

    def waiting(self) -> Sequence[str]:
        """Return the ids of the approvals that nobody has given yet."""
        return [name for name, each in self.tables.approvals.items() if each.is_pending]


@pytest.fixture
def talk(settings) -> Iterator[Conversing]:
    settings.CHATMEMORY = {**settings.CHATMEMORY, "CHAT": world.CHAT}
    with tempfile.TemporaryDirectory() as folder:
        world.begin(Path(folder))
        yield Conversing()


def test_of_decisions_by_rest_those_that_are_the_owners_count_beside_one_that_is_refused(talk):
    question = talk.asked("sf")

    outcome = talk.do("trespass", question, way="rest", decisions=[(name, True) for name in talk.waiting()])

    assert outcome.kind == "forbidden"
    assert [token.split(".")[3] for token, _ in talk.chat.effects] == ["1"]
    assert talk.found == []


def test_a_decision_that_is_refused_changes_nothing_of_what_it_was_about(talk, monkeypatch):
    question = talk.asked("sf")
    monkeypatch.setattr(User, "has_perm", lambda self, name: True)

    talk.do("trespass", question, way="rest", decisions=[(name, True) for name in talk.waiting()])

    assert any(each.startswith("what needs an approval waits for it") for each in talk.found)
    assert any(each.startswith("the owner may not decide") for each in talk.found)


def test_the_part_of_an_answer_about_a_decision_is_no_part_of_the_answer_before_it(talk, monkeypatch):
    question, _ = talk.asked("s"), talk.asked()
    [name] = talk.waiting()
    staff = User.objects.get(username="staff")
    approving.decide(Conversation.objects.all(), talk.chat.memory_id, [Decision(name, approved=True)], staff)
    talk.chat.approved_by_staff.add(name)
    made = world.assistant_of
    monkeypatch.setattr(world, "assistant_of", lambda request: _keeping_parts(made(request)))
    left = {"cut": 2, "errors": {0: "BrokenStreamError"}, "words_before_error": 2}  # behind the result and one word

    talk.do("regenerate", question, way="stream", after=talk.tables.asked(question).sequence, **left)

    assert talk.tables.rows[max(talk.tables.rows)].metadata["partial"]
    assert talk.found == []


def test_an_answer_with_a_text_behind_a_decision_may_wait_for_what_it_has_asked_its_owner(talk):
    first, question = talk.asked("s"), talk.asked("fg")
    of_first, of_owner, of_staff = talk.waiting()
    for asked, name in [(first, of_first), (question, of_staff)]:  # nobody asks anything, which would end the owner's
        assert talk.do("staff", asked, way="rest", decisions=[(name, True)]).kind == "decided"

    outcome = talk.do("retry", question)

    assert talk.tables.ended(question) is not None
    assert (outcome.kind, outcome.asked) == ("waits", (of_owner,))
    assert talk.found == []


def test_it_may_not_wait_for_what_another_one_has_asked(talk, monkeypatch):
    question, _ = talk.asked(), talk.asked("s")
    monkeypatch.setattr(world, "perform", lambda act: Outcome("waits", asked=tuple(talk.waiting())))

    talk.do("retry", question)

    assert talk.found == ["an id that was answered gets the stored answer: it waits for approvals of another one"]


def test_a_page_waits_for_the_calls_that_it_was_sent_without_an_output_also_before_this_stream(talk):
    question = talk.asked("fbb")
    of_owner, *of_browser = talk.waiting()

    again = talk.do("retry", question, way="post")
    one_is_left = talk.do("decide", question, way="post", decisions=[(of_owner, True), (of_browser[0], False)])

    assert (again.kind, {*again.asked}) == ("waits", {of_owner, *of_browser})
    assert (one_is_left.kind, one_is_left.asked) == ("waits", (of_browser[1],))
    assert talk.found == []


def test_it_does_not_wait_for_a_call_on_another_branch(talk):
    first, _ = talk.asked(), talk.asked("b")
    first.generation = 1

    outcome = talk.do("regenerate", first, way="post", after=talk.tables.asked(first).sequence)

    assert outcome.kind == "answered"
    assert talk.found == []


def test_it_may_not_wait_for_one_that_waits_for_nothing(talk, monkeypatch):
    monkeypatch.setattr(exchange, "request_approvals", lambda memory, turn, asked: None)
    question = Question("q9", "id-9", ("b",))
    talk.chat.questions.append(question)

    talk.do("ask", question, way="post")

    assert "a question waits for its own calls alone: q9" in talk.found


def test_a_question_is_not_rejected_with_the_results_of_its_answer(talk):
    question, _ = talk.asked("s"), talk.asked()
    [name] = talk.waiting()
    staff = User.objects.get(username="staff")
    approving.decide(Conversation.objects.all(), talk.chat.memory_id, [Decision(name, approved=True)], staff)
    talk.chat.approved_by_staff.add(name)
    question.generation += 1  # it might have been asked once more

    outcome = talk.do("retry", question, way="post", errors={0: "ContextLengthError"}, generations={question.name: 1})

    assert outcome.kind == "error"
    assert talk.tables.asked(question).sequence in talk.tables.memory
    assert talk.found == []


def test_it_is_with_the_first_request_and_then_leaves_the_memory(talk, monkeypatch):
    monkeypatch.setattr(Turn, "reject", lambda *args: None)
    question = Question("q9", "id-9")
    talk.chat.questions.append(question)

    talk.do("ask", question, way="post", errors={0: "ContextLengthError"})

    assert talk.found == ["a rejected question is no longer in the memory: early as post"]


def test_it_is_in_the_memory_if_somebody_else_asks_it_once_more_at_the_same_time(talk):
    question = Question("q9", "id-9")
    talk.chat.questions.append(question)

    talk.do_at_once(("ask", question, {"way": "post", "errors": {0: "ContextLengthError"}}), ("retry", question, {}))

    assert talk.tables.asked(question).sequence in talk.tables.memory
    assert talk.found == []


def test_who_asks_what_another_stops_at_the_same_time_may_get_a_part_of_the_answer(talk, monkeypatch):
    monkeypatch.setattr(
        world, "perform", lambda act: Outcome("answered" if act.cut is None else "stopped", "[q9] This")
    )
    question, stopped = Question("q9", "id-9"), {"way": "post", "cut": 5, "stops": True}
    talk.chat.questions.append(question)

    talk.do_at_once(("ask", question, stopped), ("ask", question, {**stopped, "cut": None}))

    assert talk.found == []


def test_the_result_of_a_decided_call_is_not_known_to_an_edit_of_what_is_in_front_of_it_also_if_that_is_a_retry(talk):
    first, second = talk.asked("s"), talk.asked()
    talk.do("staff", first, way="rest", decisions=[(name, True) for name in talk.waiting()])
    edit = Question("q100", second.client_id)  # which was killed before it stored anything
    talk.chat.questions.append(edit)

    talk.do("retry", edit, persist="late", errors={0: "UnavailableError"})

    assert talk.tables.answered
    assert talk.found == []


def test_one_that_was_rejected_is_known_to_an_edit_behind_it(talk, monkeypatch):
    question = talk.asked("f")
    talk.do("decide", question, decisions=[(talk.waiting()[0], True)], errors={0: "InvalidRequestError"})
    second = talk.asked()
    assert talk.found == []
    monkeypatch.setattr(exchange, "not_accepted", lambda memory, turn: {})
    edit = Question("q100", second.client_id)
    talk.chat.questions.append(edit)

    talk.do("edit", edit)

    assert [each.partition(":")[0] for each in talk.found] == ["the model reads the result that a call has"]


def _keeping_parts(assistant: Assistant) -> Assistant:
    assistant.keep_partial = True
    return assistant
