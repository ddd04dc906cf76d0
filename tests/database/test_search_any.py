"""The search for any of the words: the same messages in the same order on every database, with an index and without."""

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chatmemory_django.messages import AiMessage, MessageType, UserMessage
from chatmemory_django.models import Conversation, Message, finding
from chatmemory_django.provider import get_chat_memory
from tests.database.test_search import say

# InnoDB's FULLTEXT only indexes committed rows.
pytestmark = pytest.mark.django_db(transaction=True)

HAS_INDEX = finding.index is not None


@pytest.fixture
def ann():
    return get_user_model().objects.create_user("ann")


def found(text, **options):
    return [row.text for row in Message.objects.search(text, match="any", **options)]


def test_a_sentence_finds_what_answers_it_best_first():
    for number, text in enumerate(["Where is my parcel?", "My bicycles are blue.", "A blue parcel came.", "Hello"]):
        say(text, memory_id=str(number))

    rows = Message.objects.search("When did I get the blue parcel from Kiel?", match="any")

    assert [row.text for row in rows] == ["A blue parcel came.", "My bicycles are blue.", "Where is my parcel?"]
    assert sorted((row.rank for row in rows), reverse=True) == [row.rank for row in rows]
    assert not Message.objects.search("When did I get the blue parcel from Kiel?").exists()


def test_other_scripts_and_inflections_are_found_alike():
    texts = ["Die Katze heißt Mimi", "护照放在书桌的抽屉里", "鍵は玄関の棚にある", "Ключ на столе", "I am allergic"]
    for number, text in enumerate(texts):
        say(text, memory_id=str(number))

    questions = ["Wie heißen die Katzen?", "我的护照呢", "玄関の鍵", "Где ключи?", "Which allergies have I?"]
    assert [found(question)[:1] for question in questions] == [[text] for text in texts]


@pytest.mark.parametrize("text", ["", " ", "?!", "\0", "\ud800", "a\0b", "zyxomatic", "%", "_", "'; DROP TABLE"])
def test_what_has_no_word_in_common_is_not_found(text):
    say("my parcel 100 %")

    assert found(text) == []


def test_only_what_may_be_read_is_found(ann):
    for owner, memory_id in ((ann, "hers"), (get_user_model().objects.create_user("ben"), "his"), (None, "nobody's")):
        get_chat_memory(memory_id, owner=owner).add(UserMessage(f"a parcel, {memory_id}"), AiMessage("Parcel?"))

    assert found("the parcel", owner=ann, types=[MessageType.USER]) == ["a parcel, hers"]
    assert len(found("the parcel", owner=ann)) == 2
    assert found("the parcel", owner=ann, types=[]) == []
    assert found("the parcel", owner=AnonymousUser()) == []
    assert len(found("the parcel")) == 6


def test_neither_other_branches_nor_removed_messages_are_found(ann):
    memory = get_chat_memory("c", owner=ann)
    memory.add(UserMessage("one parcel"), AiMessage("two parcels"), UserMessage("three parcels"))
    memory.remove(1)
    memory.rewind(2)

    assert found("my parcel", owner=ann) == ["two parcels"]


def test_the_filters_of_its_queryset_are_respected():
    say("parcel", "letter", memory_id="a")
    conversation = say("parcel", memory_id="b")

    assert [row.conversation_id for row in conversation.messages.search("a parcel", match="any")] == [conversation.pk]
    (row,) = Message.objects.with_status().filter(conversation=conversation.pk).search("a parcel", match="any")
    assert row.status == "in_memory"


def test_other_ways_to_match_are_errors():
    with pytest.raises(ValueError, match="match must be one of all, any, not 'some'"):
        Message.objects.search("parcel", match="some")


class TestBounds:
    """Whatever a person wrote, a search reads the newest messages, and beyond them what an index finds."""

    @pytest.fixture(autouse=True)
    def few(self, monkeypatch):
        monkeypatch.setattr(finding, "WEIGHED", 20)

    def test_the_newest_messages_are_read_and_rare_words_looked_up_beyond_them(self, ann):
        say("zyxomatic machines", memory_id="old", owner=ann)
        for number in range(30):
            say("a parcel", memory_id=f"{number}", owner=ann)

        assert found("My zyxomatic parcel", owner=ann)[0] == ("zyxomatic machines" if HAS_INDEX else "a parcel")
        assert found("My zyxomatic parcel")[0] == ("zyxomatic machines" if HAS_INDEX else "a parcel")
        assert len(found("A parcel", owner=ann)) == 20 // 2  # each of these conversations has one message

    def test_they_are_those_of_the_conversations_that_were_used_last(self, ann):
        old = say(*["an old parcel"] * 25, memory_id="old", owner=ann)
        for number in range(10):
            say("a parcel", memory_id=f"{number}", owner=ann)
        Conversation.objects.exclude(memory_id="old").update(updated_at="2020-01-01T00:00Z")

        rows = Message.objects.search("my parcel", match="any", owner=ann)

        assert {row.pk for row in rows} == {(old.pk, sequence) for sequence in range(6, 26)}

    def test_of_a_long_text_the_beginning_is_read(self):
        say("x " * 2_000 + "parcel", memory_id="a")
        say("parcel" + " x" * 2_000, memory_id="b")

        assert [row.conversation.memory_id for row in Message.objects.search("a parcel", match="any")] == ["b"]

    def test_it_takes_a_few_statements_and_loads_no_whole_texts(self, ann):
        say(*["parcel"] * 15, memory_id="a", owner=ann)

        with CaptureQueriesContext(connection) as queries:
            list(Message.objects.search("a parcel", match="any", owner=ann).values_list("pk")[:5])

        assert len(queries) == 3

    def test_not_all_that_a_person_wrote_is_read_for_it(self, ann):
        for number in range(30):
            say("a parcel", memory_id=f"{number}", owner=ann)

        with CaptureQueriesContext(connection) as queries:
            best = Message.objects.search("A zyxomatic parcel", match="any", owner=ann)

        assert len(best) == 10
        if connection.vendor == "sqlite":  # it plans the same for few rows as for many
            plans = [best.explain()]
            with connection.cursor() as cursor:
                for each in queries.captured_queries[1:]:
                    cursor.execute(f"EXPLAIN QUERY PLAN {each['sql']}")
                    plans.append(str(cursor.fetchall()))
            assert not [plan for plan in plans if "chatmemory_of_owner" in plan or "SCAN chatmemory_message" in plan]

    def test_at_most_a_hundred_are_found(self, monkeypatch):
        monkeypatch.setattr(finding, "WEIGHED", 200)
        say(*["parcel"] * 150)

        assert len(found("a parcel")) == 100


def test_a_page_of_the_best_is_read_by_its_keys():
    say(*["parcel"] * 5)

    best = Message.objects.search("a parcel", match="any")

    assert [row.sequence for row in best[1:3]] == [4, 3] or len({row.rank for row in best}) > 1
    assert best.count() == 5
