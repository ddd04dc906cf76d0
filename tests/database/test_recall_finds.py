"""Questions in other words than those of the facts, in several languages: how many find their answers among chatter."""

import json

import pytest

from benchmarks.recall import measure
from benchmarks.recall.people import OWN, people
from chatmemory_django.operations.recall import Recall

# InnoDB's FULLTEXT only indexes committed rows.
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("way", ["any of the words", "the tool"])
def test_nine_of_ten_questions_find_their_answer_among_five(way):
    found = {}
    for user, person in measure.store(people()):
        search = measure.ways()[way]
        hits = [bool(answers & {*search(user, text)[:5]}) for text, answers in person.questions]
        found[person.name] = sum(hits) / len(hits)

    assert len(found) == 6
    assert min(found.values()) >= 0.8, found
    assert sum(found.values()) / len(found) >= 0.9, found


def test_all_words_find_next_to_nothing():
    search = measure.ways()["all words"]
    found = [search(user, text) for user, person in measure.store(people()) for text, _ in person.questions[::2]]

    assert sum(map(bool, found)) <= len(found) / 10


def test_what_was_asked_before_in_vain_comes_after_the_answer():
    displaced = []
    for user, person in measure.store(people()):
        for question, _ in person.questions[1::2]:
            best = json.loads(Recall(user).search_conversations(question))["messages"][0]
            displaced += [question] * (best["quotation"] == question)

    assert displaced == []


class TestForms:
    """The forms of the published sets."""

    def test_of_locomo(self, tmp_path):
        turns = [{"speaker": "Ann", "dia_id": "D1:1", "text": "Hi"}, {"speaker": "Bob", "dia_id": "D1:2", "text": "Yo"}]
        written = {"speaker_a": "Ann", "speaker_b": "Bob", "session_1": turns, "session_1_date_time": "in May"}
        asked = [
            {"question": "Who?", "evidence": ["D1:2"], "category": 1},
            {"question": "Why?", "evidence": ["D1:1; D1:2"], "category": 2},
            {"question": "Never?", "evidence": ["D1:1"], "category": 5},
            {"question": "Unknown?", "evidence": ["D9:9"], "category": 1},
        ]
        path = tmp_path / "locomo.json"
        for sample in ({**written, "qa": asked}, {"sample_id": "1", "conversation": written, "qa": asked}):
            path.write_text(json.dumps([sample]))
            [person] = people(path)

            assert person.conversations == [[("USER", "Hi"), ("AI", "Yo")]]
            assert person.questions == [("Who?", {(1, 2)}), ("Why?", {(1, 1), (1, 2)})]

    def test_of_longmemeval(self, tmp_path):
        sessions = [
            [{"role": "user", "content": "Hi"}],
            [{"role": "user", "content": "Code 5", "has_answer": True}, {"role": "assistant", "content": "Ok"}],
        ]
        sample = {
            "question_id": "q1",
            "question": "Which code?",
            "haystack_session_ids": ["a", "b"],
            "haystack_sessions": sessions,
            "answer_session_ids": ["b"],
        }
        path = tmp_path / "longmemeval.json"
        path.write_text(json.dumps([sample]))
        [person] = people(path)

        assert person.conversations == [[("USER", "Hi")], [("USER", "Code 5"), ("AI", "Ok")]]
        assert person.questions == [("Which code?", {(2, 1)})]

    def test_others_are_errors(self, tmp_path):
        path = tmp_path / "others.json"
        path.write_text('[{"question": "?"}]')

        with pytest.raises(ValueError, match=r"others\.json has neither the form of LoCoMo nor"):
            list(people(path))

    def test_our_own_is_the_same_each_time(self):
        assert [*people()] == [*people(OWN)]
