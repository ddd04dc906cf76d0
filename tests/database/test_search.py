"""Search: matches, order and visibility, the same with and without the app ``chatmemory_django.contrib.search``."""

import datetime
import re
import tracemalloc
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.db import connection
from django.utils import timezone

from chatmemory_django.core.excerpts import MAX_EXCERPTED, MAX_SEARCH, MAX_TERMS, terms_of
from chatmemory_django.messages import AiMessage, MessageType, SystemMessage, UserMessage
from chatmemory_django.models import Conversation, Message, finding
from chatmemory_django.operations import export_lines, import_lines
from chatmemory_django.operations.searching import find_messages
from chatmemory_django.provider import get_chat_memory

# InnoDB's FULLTEXT only indexes committed rows.
pytestmark = pytest.mark.django_db(transaction=True)

HAS_INDEX = finding.index is not None


def say(*texts, memory_id="c", owner=None):
    """Create a conversation of *texts*, a minute apart."""
    conversation = Conversation.objects.create(memory_id=memory_id, owner=owner, next_sequence=len(texts) + 1)
    start = timezone.now() - datetime.timedelta(days=1)
    rows = (
        Message(
            conversation=conversation,
            sequence=number,
            type="USER",
            text=text,
            created_at=start + datetime.timedelta(minutes=number),
        )
        for number, text in enumerate(texts, 1)
    )
    Message.objects.bulk_create(rows)
    return conversation


def found(text, **options):
    return [row.text for row in Message.objects.search(text, **options)]


class TestTerms:
    @pytest.mark.parametrize(
        ("text", "terms"),
        [
            ("blue parcel", ("blue", "parcel")),
            ('"blue parcel" Kiel', ("blue parcel", "Kiel")),
            ("  blue \n parcel\u3000Kiel ", ("blue", "parcel", "Kiel")),
            ("parcel PARCEL Parcel", ("Parcel",)),
            ('say "hi', ("say", '"hi')),
            ('x="1" ""', ('x="1"', '""')),
            ('"foo"bar', ('"foo"bar',)),
            ('" " a', ("a",)),
            ("-v --no +x NOT (a|b)", ("-v", "--no", "+x", "NOT", "(a|b)")),
            ("", ()),
            (" \n\t", ()),
        ],
    )
    def test_terms_are_words_and_quoted_phrases(self, text, terms):
        assert terms_of(text) == terms

    def test_number_and_length_of_terms_are_limited(self):
        assert len(terms_of(" ".join(map(str, range(100))))) == MAX_TERMS
        assert terms_of("x" * 100_000) == ("x" * MAX_SEARCH,)


class TestMatches:
    @pytest.mark.parametrize(
        ("wanted", "text"),
        [
            ("parcel", "Where is my PARCEL?"),
            ("PARC", "Parcels, please"),
            ("straße", "Die Straße nach Köln"),
            ("über", "Sie ist über dem Wasser"),
            ("köln", "Köln am Rhein"),
            ("京都", "私は京都タワーに行きたい"),
            ("タワー", "私は京都タワーに行きたい"),
            ("都", "京都"),
            ("서울", "서울에서 만나요"),
            ("ไทย", "ประเทศไทย"),
            ("مرحبا", "مرحبا بالعالم"),
            ("😀", "Well 😀 done"),
            ("👩‍👩‍👧", "The 👩‍👩‍👧 came"),
            ("foo_bar", "call foo_bar.baz() now"),
            ("foo_bar.baz()", "call foo_bar.baz() now"),
            ("baz(", "call foo_bar.baz() now"),
            ("--no-input", "pip --no-input install"),
            ("C++", "I like C++ more"),
            ("3.14", "pi is 3.14159"),
            ("#42", "see #42"),
            ("https://example.com/a?b=c", "at https://example.com/a?b=c&d"),
            ("it's", "it's late"),
            ("the", "the end"),
            ("I", "I see"),
            ("%", "100 %"),
            ("\\", "a \\ b"),
            ("NOT", "not now"),
            ("parcel kiel", "Kiel has the parcel"),
            ('"my parcel"', "Where is my parcel?"),
            ('"', 'He wrote "no"'),
            ("x" * 84, "x" * 84),
            ("y" * 90, "y" * 3_000),
        ],
    )
    def test_any_text_is_found_and_nothing_else(self, wanted, text):
        say(text, "zebra")

        assert found(wanted) == [text]
        assert [row.text for row in Message.objects.containing(wanted)] == [text]

    @pytest.mark.parametrize(
        "wanted",
        ["", " ", '" "', "zebra\0", "\0", "\ud800", "_", "*", "zeb*", "+zebra", "-parcel", "zebra -parcel", "ze~ra",
         "zebra & parcel", "zebra:*", "parcel @@", "'; DROP TABLE",
         "zebra parcel", '"my zebra"', '" zebra"', "x" * 1_000],
    )  # fmt: skip
    def test_no_character_has_a_special_meaning(self, wanted):
        say("my parcel", "zebra")

        assert found(wanted) == []

    def test_all_terms_must_match(self):
        say("blue parcel", "blue", "parcel", "parcel, blue!")

        assert sorted(found("parcel blue")) == ["blue parcel", "parcel, blue!"]
        assert found('"parcel, blue"') == ["parcel, blue!"]

    def test_parts_of_words_match_as_far_as_the_index_supports_them(self):
        say("Postpaket")

        assert found("paket") == ([] if HAS_INDEX and connection.vendor == "mysql" else ["Postpaket"])
        assert [row.text for row in Message.objects.containing("paket")] == ["Postpaket"]

    def test_search_is_case_insensitive(self):
        say("ÜBER DEN FLÜSSEN")

        # SQLite supports this for other scripts only with an index.
        expected = [] if connection.vendor == "sqlite" and not HAS_INDEX else ["ÜBER DEN FLÜSSEN"]
        assert found("flüssen") == expected

    @pytest.mark.parametrize(("wanted", "text"), [("strasse", "Straße"), ("straße", "STRASSE"), ("o", "ö")])
    def test_letters_are_compared_as_the_database_compares_them(self, wanted, text):
        say(text)

        # MariaDB and MySQL treat "ö" as "o" in their default collation, and MySQL also "ß" as "ss".
        assert found(wanted) == ([text] if connection.vendor == "mysql" and text == "ö" else [])

    def test_messages_that_are_only_in_a_memory_are_not_found(self):
        memory = get_chat_memory("c", max_messages=5)
        memory.add(UserMessage("one parcel"))
        memory.set([UserMessage("a summary about a parcel")])

        assert found("parcel") == ["one parcel"]

    @pytest.mark.slow
    def test_a_text_of_four_megabytes_can_be_added_and_found(self):
        text = "needle " + " ".join(f"{number:x}" for number in range(600_000))
        get_chat_memory("c").add(UserMessage(text[:4_000_000]))

        assert len(found("needle")) == 1
        assert len(found("1869f")) == 1

    def test_the_index_follows_erasures_and_imports(self):
        get_chat_memory("c", max_messages=1).add(UserMessage("one parcel"), UserMessage("two parcels"))
        lines = list(export_lines(Conversation.objects.all()))

        Conversation.objects.all().delete()
        assert found("parcel") == []
        import_lines(lines, owner=None)
        assert sorted(found("parcel")) == ["one parcel", "two parcels"]

    def test_a_changed_text_is_found_by_its_new_words(self):
        say("parcel")

        Message.objects.update(text="letter")

        assert found("parcel") == []
        assert found("letter") == ["letter"]


class TestOrder:
    def test_the_best_match_comes_first(self):
        say(
            "a parcel that is mentioned only once " + "among very many other words " * 20,
            "parcel parcel parcel",
            "my parcel",
        )

        assert [text[:15] for text in found("parcel")] == [
            "parcel parcel p", "my parcel", "a parcel that i",
        ]  # fmt: skip

    def test_adjacent_terms_rank_higher(self):
        say("a blue parcel for me", "a parcel, blue for me")

        assert found("blue parcel") == ["a blue parcel for me", "a parcel, blue for me"]

    def test_of_equal_matches_the_newest_comes_first(self):
        say("parcel 1", "parcel 2", "parcel 3")

        rows = list(Message.objects.search("parcel"))
        assert [row.text for row in rows] == ["parcel 3", "parcel 2", "parcel 1"]
        assert len({row.rank for row in rows}) == 1
        assert isinstance(rows[0].rank, float)

    def test_of_too_many_matches_only_the_newest_are_ranked(self, monkeypatch):
        monkeypatch.setattr(finding, "RANKED", 2)
        say("parcel parcel", *["a parcel"] * 3)

        if not (connection.vendor == "postgresql" and HAS_INDEX):
            assert found("parcel") == ["a parcel", "a parcel"]


class TestVisibility:
    @pytest.fixture
    def ann(self):
        return get_user_model().objects.create_user("ann")

    @pytest.fixture
    def bob(self, ann):
        return get_user_model().objects.create_user("bob")

    def test_an_owner_finds_their_own_conversations(self, ann, bob):
        say("ann's parcel", memory_id="a", owner=ann)
        say("bob's parcel", memory_id="b", owner=bob)
        say("parcel without owner", memory_id="n")

        assert found("parcel", owner=ann) == ["ann's parcel"]
        assert sorted(found("parcel")) == ["ann's parcel", "bob's parcel", "parcel without owner"]

    def test_an_anonymous_user_finds_nothing(self):
        say("parcel without owner")

        assert found("parcel", owner=AnonymousUser()) == []

    def test_matches_of_others_do_not_displace_those_of_an_owner(self, ann, bob, monkeypatch):
        monkeypatch.setattr(finding, "RANKED", 2)
        say("ann's parcel", memory_id="a", owner=ann)
        say(*["bob's parcel"] * 9, memory_id="b", owner=bob)

        assert found("parcel", owner=ann) == ["ann's parcel"]

    def test_messages_of_other_types_are_not_found(self):
        get_chat_memory("c").add(SystemMessage("Never say gnu"), UserMessage("a gnu?"), AiMessage("No gnu"))

        assert found("gnu", types=[MessageType.USER, MessageType.AI]) == ["No gnu", "a gnu?"]
        assert found("gnu", types=[]) == []


class TestQuerySet:
    def test_results_can_be_filtered_counted_and_sliced(self):
        say(*["parcel"] * 5)
        say(*["parcel"] * 4, memory_id="d")
        hits = Message.objects.search("parcel")

        assert hits.count() == 9
        assert len(hits[2:5]) == 3
        assert hits.filter(conversation__memory_id="d", sequence__gt=2).count() == 2
        assert hits.exists()
        assert not hits.filter(type="AI").exists()
        assert len(hits.values_list("sequence", flat=True)) == 9

    def test_search_respects_the_filters_of_its_queryset(self):
        say("parcel", "letter")
        conversation = say("parcel", memory_id="d")

        assert [row.conversation_id for row in conversation.messages.search("parcel")] == [conversation.pk]
        (row,) = Message.objects.with_status().filter(conversation__memory_id="c").search("parcel")
        assert row.status == "in_memory"

    def test_a_search_takes_one_statement(self, django_assert_num_queries):
        say(*["parcel"] * 5)

        with django_assert_num_queries(1):
            assert len(Message.objects.search("parcel")[:20]) == 5

    def test_a_row_has_a_snippet(self):
        say("Where is my blue parcel?")

        (row,) = Message.objects.search("PARCEL my")

        assert row.snippet("PARCEL my").parts == (
            ("Where is ", False), ("my", True), (" blue ", False), ("parcel", True), ("?", False),
        )  # fmt: skip


class TestSnippets:
    """Excerpts of many messages, of whose texts only a part is read."""

    def test_they_are_those_of_the_rows(self):
        say("Where is my blue parcel?", "A PARCEL", "nothing", "x" * 500 + " my parcel " + "y" * 500)

        snippets = Message.objects.all().snippets("PARCEL my")

        assert snippets == {row.pk: row.snippet("PARCEL my") for row in Message.objects.all()}
        assert len(snippets) == 4

    @pytest.mark.parametrize("wanted", ["Hit", "a hit", "hit there", "other HIT"])
    @pytest.mark.parametrize("before", [0, MAX_EXCERPTED // 2 + 3, MAX_EXCERPTED, 3 * MAX_EXCERPTED])
    def test_a_match_far_into_a_long_text_is_shown(self, wanted, before):
        say("ß" + "x " * (before // 2) + "a HIT" + " y" * MAX_EXCERPTED + " other there")
        (row,) = Message.objects.all()

        (shown,) = Message.objects.snippets(wanted).values()

        assert ("HIT", True) in shown.parts or ("a HIT", True) in shown.parts or wanted == "other HIT"
        assert ("other", True) in shown.parts or wanted != "other HIT"
        if wanted != "other HIT":  # whose first term is not the first to occur
            assert shown == row.snippet(wanted)

    def test_without_a_match_it_is_the_beginning_of_the_text(self):
        say("x" * 3 * MAX_EXCERPTED)

        for wanted in ("hit", "", "a\0b"):
            (shown,) = Message.objects.snippets(wanted).values()
            assert shown.parts == (("x" * 120, False), ("…", False))

    def test_a_part_of_each_text_is_read(self):
        for number in range(30):
            say("ß" + "x" * 10 * MAX_EXCERPTED + "hit", memory_id=str(number))

        tracemalloc.start()
        assert len(Message.objects.snippets("HIT")) == 30
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

        assert peak < 30 * 10 * MAX_EXCERPTED / 2

    def test_they_take_two_statements(self, django_assert_num_queries):
        say(*["parcel"] * 5)

        with django_assert_num_queries(2):
            assert len(Message.objects.snippets("parcel")) == 5


class TestConversations:
    """``Conversation.objects.search()`` finds the same, whether it reads messages one by one or uses the index."""

    UUID = "0192f5a0-7d3e-7c21-9b1a-5d2f4e0b7a11"

    @pytest.fixture(
        params=[(1_000, 30), (1, 30), (1, 0)], ids=["few conversations", "a rare word", "a common word"], autouse=True
    )
    def conversations(self, request, monkeypatch):
        sample, common = request.param
        if HAS_INDEX:
            monkeypatch.setattr("chatmemory_django.contrib.search.postgresql.SAMPLE", sample)
            monkeypatch.setattr("chatmemory_django.contrib.search.postgresql.COMMON", common)
        say("Where is my parcel?", "parcels parcel", memory_id="one")
        say("a letter", memory_id="parcel-2")
        say("a letter", memory_id="three")
        say("100 %", memory_id=self.UUID)
        Conversation.objects.filter(memory_id="three").update(title="My Parcel")

    @pytest.mark.parametrize(
        ("text", "ids"),
        [
            ("parcel", ["one", "parcel-2", "three"]),
            ("arce", ["one", "parcel-2", "three"]),
            ("where parcel", ["one"]),
            ("letter", ["parcel-2", "three"]),
            ("zyxomatic", []),
            ("%", [UUID]),
            ("7d3e", [UUID]),
            (UUID, [UUID]),
            (f" {UUID.upper()}", [UUID]),
            ("0192f5a0-7d3e-7c21-9b1a-5d2f4e0b7a12", []),
            ("", ["one", "parcel-2", "three", UUID]),
        ],
    )
    def test_finds_memory_ids_titles_and_messages(self, text, ids):
        found = Conversation.objects.search(text)

        assert sorted(found.values_list("memory_id", flat=True)) == sorted(ids)
        assert found.count() == len(ids)

    @pytest.mark.parametrize(
        ("types", "ids"),
        [
            ({MessageType.USER}, ["one", "parcel-2", "three"]),
            ({MessageType.AI}, ["parcel-2", "three"]),
            ((), ["parcel-2"]),
        ],
    )
    def test_reads_only_what_may_be_read(self, types, ids):
        found = Conversation.objects.search("parcel", types=types)

        assert sorted(found.values_list("memory_id", flat=True)) == ids

    def test_searches_only_some(self):
        some = Conversation.objects.filter(memory_id__in=["one", "three"])

        assert sorted(some.search("parcel").values_list("memory_id", flat=True)) == ["one", "three"]
        assert sorted(some.search("letter").values_list("memory_id", flat=True)) == ["three"]
        assert not some.search(self.UUID).exists()

    def test_finds_by_messages_alone(self):
        found = Conversation.objects.with_messages_containing("parcel")

        assert [each.memory_id for each in found] == ["one"]

    def test_what_is_found_can_be_erased(self):
        Conversation.objects.search("letter").delete()

        assert Conversation.objects.count() == 2


class TestFindingMessages:
    def test_of_an_owner_in_some_conversations_with_excerpts(self):
        ann, ben = (get_user_model().objects.create_user(name) for name in ("ann", "ben"))
        say("one parcel", "nothing", "parcel parcel " + "x" * 30_000, memory_id="a", owner=ann)
        say("a parcel", memory_id="b", owner=ann)
        say("parcel", memory_id="hidden", owner=ann)
        say("parcel", memory_id="theirs", owner=ben)
        shown = Conversation.objects.exclude(memory_id="hidden")
        options = {"owner": ann, "types": [MessageType.USER]}
        hits = find_messages(shown, "parcel", stop=10, **options)

        assert {(each.memory_id, each.sequence) for each in hits} == {("a", 1), ("a", 3), ("b", 1)}
        assert [
            hit for start in range(4) for hit in find_messages(shown, "parcel", start=start, stop=start + 1, **options)
        ] == hits
        assert all(str(each.snippet).count("parcel") for each in hits)
        assert find_messages(shown, "parcel", stop=10, owner=ann, types=[MessageType.AI]) == []
        assert find_messages(shown, "parcel", stop=10, owner=AnonymousUser(), types=[MessageType.USER]) == []
        assert find_messages(shown, "parcel", stop=10, owner=ben, types=[MessageType.USER])[0].memory_id == "theirs"


def test_a_search_finds_what_the_page_on_searches_lists():
    page = (Path(__file__).parents[2] / "docs/searching.md").read_text()
    rows = re.findall(r"^\| (`.*?`)(?:: .*?)? \| (.+) \| (.+) \| (.+) \| (.+) \|$", page, re.MULTILINE)
    column = {"sqlite": 1, "postgresql": 2, "mysql": 4 if HAS_INDEX else 3}[connection.vendor]
    words = {"yes": True, "no": False, "no; yes with the index": HAS_INDEX}
    listed = {text: words[row[column]] for row in rows for text in re.findall("`(.+?)`", row[0])}
    [message] = re.findall(r'A message reads "(.+?)" Which', page, re.DOTALL)
    get_chat_memory("c").add(UserMessage(message.replace("\n", " ")))

    assert len(listed) == 14
    assert {text: Message.objects.search(text).exists() for text in listed} == listed
