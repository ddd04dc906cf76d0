"""Pages: for every size and order, together they are the list, and none exceeds its limit."""

import base64
import datetime
import tracemalloc
from urllib.parse import urlencode

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation, Message
from tests.faces.rest.conftest import MESSAGES, ROOT, memory_ids, pages, paths, sequences, statements, users
from tests.quick import mostly_slow
from tests.strategies import IN_DATABASE

pytestmark = pytest.mark.django_db

FIRST = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def say(sizes: list[int]) -> None:
    """Create the conversation "c" with messages of these lengths."""
    conversation = Conversation.objects.get(memory_id="c")
    conversation.messages.all().delete()
    Message.objects.bulk_create(
        (
            Message(conversation=conversation, sequence=number, type="USER", text="x" * size)
            for number, size in enumerate(sizes, 1)
        ),
        batch_size=3,  # the most that MariaDB accepts at once
    )


def begin_all(person, rows: list[tuple[int, bool, int]]) -> None:
    """Create conversations with these times, pinned or not, with metadata of these lengths."""
    owner = person("owner")
    Conversation.objects.all().delete()
    Conversation.objects.bulk_create(
        (
            Conversation(
                memory_id=str(number),
                owner=owner,
                updated_at=FIRST + datetime.timedelta(seconds=moment),
                is_pinned=is_pinned,
                metadata={"m": "x" * size},
            )
            for number, (moment, is_pinned, size) in enumerate(rows)
        ),
        batch_size=10,
    )


def walked(api, where: str, key: str) -> tuple[list, list]:
    """Return what the pages hold on the way to the last page, and on the way back."""
    there = list(pages(api, where))
    back = list(pages(api, there[-1]["previous"], "previous")) if there[-1]["previous"] else []
    return (
        [each[key] for page in there for each in page["results"]],
        [each[key] for page in [*back[::-1], there[-1]] for each in page["results"]],
    )


class TestPagesOfMessages:
    def test_begin_with_the_newest_and_go_back_in_time(self, api, begin):
        begin("c", *users(*range(1, 8)))

        read = [[each["sequence"] for each in page["results"]] for page in pages(api, f"{MESSAGES}?page_size=3")]

        assert read == [[7, 6, 5], [4, 3, 2], [1]]

    def test_go_forward_in_time_on_request(self, api, begin):
        begin("c", *users(*range(1, 8)))

        where = f"{MESSAGES}?page_size=3&ordering=sequence"
        read = [[each["sequence"] for each in page["results"]] for page in pages(api, where)]

        assert read == [[1, 2, 3], [4, 5, 6], [7]]

    def test_go_both_ways_from_the_middle(self, api, begin):
        begin("c", *users(*range(1, 8)))

        page = api.get(api.get(MESSAGES, {"page_size": 2}).json()["next"])

        assert sequences(page) == [5, 4]
        assert sequences(api.get(page.json()["previous"])) == [7, 6]
        assert sequences(api.get(page.json()["next"])) == [3, 2]

    def test_link_to_their_neighbours_in_a_header_too(self, api, begin):
        begin("c", *users(1, 2, 3))

        first = api.get(MESSAGES, {"page_size": 1})
        second = api.get(first.json()["next"])

        assert first["Link"] == f'<{first.json()["next"]}>; rel="next"'
        assert second["Link"] == f'<{second.json()["next"]}>; rel="next", <{second.json()["previous"]}>; rel="prev"'
        assert "Link" not in api.get(MESSAGES)

    def test_between_two_sequences(self, api, begin):
        begin("c", *users(*range(1, 8)))

        assert sequences(api.get(MESSAGES, {"after": 2, "before": 6})) == [5, 4, 3]
        assert sequences(api.get(MESSAGES, {"after": 6, "before": 2})) == []
        assert sequences(api.get(MESSAGES, {"before": 5, "page_size": 2})) == [4, 3]

    def test_of_an_empty_history_and_of_missing_sequences_are_empty(self, api, begin):
        begin("c")
        empty = {"results": [], "next": None, "previous": None}

        assert api.get(MESSAGES).json() == empty
        assert api.get(MESSAGES, {"before": 0}).json() == empty
        assert api.get(MESSAGES, {"after": 2**31 - 1}).json() == empty

    @pytest.mark.slow
    @IN_DATABASE
    @given(
        sizes=st.lists(st.integers(0, 30), max_size=25),
        most=st.integers(1, 60),
        page_size=st.integers(1, 10),
        ordering=st.sampled_from(["sequence", "-sequence"]),
    )
    def test_miss_and_repeat_nothing_at_any_size(self, api, begin, settings, sizes, most, page_size, ordering):
        settings.CHATMEMORY["REST"]["MAX_PAGE_CHARACTERS"] = most
        if not Conversation.objects.exists():
            begin("c")
        say(sizes)
        every = sorted(range(1, len(sizes) + 1), reverse=ordering.startswith("-"))

        there, back = walked(api, f"{MESSAGES}?page_size={page_size}&ordering={ordering}", "sequence")

        assert there == every
        assert back == every
        for page in pages(api, f"{MESSAGES}?page_size={page_size}&ordering={ordering}"):
            shown = [sizes[each["sequence"] - 1] for each in page["results"]]
            assert len(shown) <= page_size
            assert 2 * sum(shown) <= most or len(shown) == 1  # each text is shown twice

    def test_are_stable_while_messages_are_added(self, api, begin):
        begin("c", *users(*range(1, 8)))
        first = api.get(MESSAGES, {"page_size": 2}).json()

        api.post(MESSAGES, {"messages": [{"message": {"role": "user", "content": "8"}}]}, format="json")

        assert sequences(api.get(first["next"])) == [5, 4]

    @pytest.mark.slow
    def test_of_messages_of_four_megabytes_have_one_message_each(self, api, begin, settings):
        begin("c")
        say([4_000_000] * 6)

        page = api.get(MESSAGES, {"page_size": 200})

        assert sequences(page) == [6]
        assert len(page.content) < 8_100_000  # the text stands in the message and beside it
        assert [each["sequence"] for page in pages(api, f"{MESSAGES}?page_size=200") for each in page["results"]] == [
            6, 5, 4, 3, 2, 1,
        ]  # fmt: skip

    def test_do_not_read_more_than_they_show(self, api, begin):
        begin("c")
        say([1_000_000] * 40)
        api.get(MESSAGES)

        tracemalloc.start()
        try:
            assert len(sequences(api.get(MESSAGES, {"page_size": 200}))) == 2
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert most < 20_000_000  # two messages, each text twice: as characters, and as bytes


class TestPagesOfConversations:
    @pytest.mark.slow
    @IN_DATABASE
    @given(
        rows=st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 40)), max_size=20),
        most=st.integers(1, 200),
        page_size=st.integers(1, 8),
        ordering=st.sampled_from(
            ["-updated_at", "updated_at", "-is_pinned", "is_pinned", "-is_pinned,-updated_at", "created_at,is_pinned"]
        ),
    )
    def test_miss_and_repeat_nothing_at_any_size(self, api, person, settings, rows, most, page_size, ordering):
        begin_all(person, rows)
        where = f"{ROOT}?page_size={page_size}&ordering={ordering}"
        settings.CHATMEMORY["REST"]["MAX_PAGE_CHARACTERS"] = 1_000_000
        every = [each["memory_id"] for each in api.get(f"{ROOT}?page_size=200&ordering={ordering}").json()["results"]]
        settings.CHATMEMORY["REST"]["MAX_PAGE_CHARACTERS"] = most

        there, back = walked(api, where, "memory_id")

        assert sorted(every) == sorted(str(number) for number in range(len(rows)))
        assert there == every
        assert back == every

    def test_are_stable_while_others_become_the_latest(self, api, person):
        begin_all(person, [(number, False, 0) for number in range(6)])
        first = api.get(ROOT, {"page_size": 2}).json()

        Conversation.objects.filter(memory_id="0").update(updated_at=timezone.now())

        assert memory_ids(api.get(first["next"])) == ["3", "2"]

    def test_of_large_metadata_are_limited_and_read_no_more_than_they_show(self, api, person, settings):
        begin_all(person, [(number, False, 1_000_000) for number in range(30)])
        api.get(ROOT)

        tracemalloc.start()
        try:
            page = api.get(ROOT, {"page_size": 200})
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert len(memory_ids(page)) == 4
        assert len(page.content) < 4_300_000
        assert most < 40_000_000


def encoded(**parameters: str | list[str]) -> str:
    return base64.b64encode(urlencode(parameters, doseq=True).encode()).decode()


FORGED = [
    "x", "=", "AAAA", "cD0", "🙂", "%00", "null", "9" * 5_000,
    encoded(p="x"), encoded(p=""), encoded(p="None"), encoded(p="\0"), encoded(p="9" * 400), encoded(p="-1"),
    encoded(p="1e999"), encoded(p="0001-01-01 00:00:00+14:00"), encoded(p="9999-12-31T23:59:59-14:00"),
    encoded(p="2026-01-01"), encoded(p="2026-02-30T00:00:00Z"), encoded(p="' OR 1=1 --"), encoded(p="😀"),
    encoded(p=["1", "1"]), encoded(p=["2026-01-01", "1"]), encoded(p=["2026-01-01T00:00:00Z", "x"]),
    encoded(p=["True"] * 9),
    encoded(p=["0001-01-01 00:00:00+14:00", "1"]), encoded(p=["9999-12-31T23:59:59-14:00", "1"]),
    encoded(p=["2026-01-01T00:00:00Z", "9" * 30]), encoded(p=["2026-01-01T00:00:00Z", "1" * 5_000]),
    encoded(o="-1"), encoded(o="9" * 30), encoded(r="x", o="1"), encoded(r="1"), encoded(q="1"),
    base64.b64encode(b"p=%ff%fe").decode(), base64.b64encode(b"\xff\xfe").decode(),
    base64.b64encode(b"p=%ed%a0%80").decode(),
]  # fmt: skip

VALUES = st.text(st.characters(exclude_categories=["Cs"])) | st.integers().map(str) | st.datetimes().map(str)

PLACES = [
    (ROOT, "-updated_at"), (ROOT, "is_pinned"), (ROOT, "-created_at"), (MESSAGES, "-sequence"), (MESSAGES, "sequence"),
]  # fmt: skip


class TestCursors:
    @pytest.mark.parametrize(("where", "ordering"), PLACES)
    @pytest.mark.parametrize("cursor", mostly_slow(FORGED, one_in=3))
    def test_that_are_forged_are_refused_or_lead_to_a_page(self, api, begin, where, ordering, cursor):
        begin("c", *users(1, 2, 3))

        response = api.get(where, {"cursor": cursor, "ordering": ordering, "page_size": 1})

        assert response.status_code in {200, 400}
        if response.status_code == 400:
            assert paths(response) == ["?cursor"]
            assert cursor not in response.content.decode() or len(cursor) < 5

    @IN_DATABASE
    @given(
        place=st.sampled_from(PLACES),
        cursor=st.text(max_size=50)
        | st.binary(max_size=50).map(lambda raw: base64.b64encode(raw).decode())
        | st.dictionaries(st.sampled_from("opr"), st.lists(VALUES, max_size=4)).map(lambda each: encoded(**each)),
    )
    def test_of_any_text_are_refused_or_lead_to_a_page(self, api, begin, place, cursor):
        if not Conversation.objects.exists():
            begin("c", *users(1, 2, 3))
        where, ordering = place

        query = {"cursor": cursor.encode(errors="ignore").decode(), "ordering": ordering}
        assert api.get(where, query).status_code in {200, 400}

    @pytest.mark.parametrize("cursor", [encoded(p="1"), encoded(p="x"), encoded(o="1000000"), encoded(o="1000001")])
    def test_of_another_list_are_refused_or_lead_to_a_page(self, api, begin, cursor):
        begin("c", UserMessage("hi"))

        for where, ordering in PLACES:
            assert api.get(where, {"cursor": cursor, "ordering": ordering}).status_code in {200, 400}

    def test_take_no_additional_statements(self, api, begin):
        begin("c", *users(1, 2, 3))
        following = api.get(MESSAGES, {"page_size": 1}).json()["next"]

        with statements() as run:
            api.get(following)

        assert len(run) == 3, run
