"""Dates, ids, metadata and numbers at their limits survive import and export, the same on every database."""

import datetime
import json
from zoneinfo import ZoneInfo

import pytest
from django.test import override_settings
from hypothesis import example, given
from hypothesis import strategies as st

from chatmemory_django.core.limits import MAX_METADATA_DEPTH
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations.jsonl import JsonLinesError, check_lines, export_lines, import_lines
from tests import strategies
from tests.database.test_operations import everything_is_whole
from tests.strategies import IN_DATABASE

pytestmark = pytest.mark.django_db

ZONES = ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Kiritimati", "America/St_Johns"]
FIRST = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
LAST = datetime.datetime(9998, 12, 31, 23, 59, 59, 999_999, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)


def moments() -> st.SearchStrategy[datetime.datetime]:
    """Generate datetimes of all valid years, including those at which clocks change, as any time zone writes them."""
    berlin = ZoneInfo("Europe/Berlin")
    changes = [
        datetime.datetime(2026, 10, 25, 1, tzinfo=datetime.UTC),
        datetime.datetime(2026, 3, 29, 1, tzinfo=datetime.UTC),
    ]
    near = st.builds(
        lambda change, seconds: change + datetime.timedelta(seconds=seconds),
        st.sampled_from([*changes, *(change - 14.5 * HOUR for change in changes)]),  # Lord Howe: on other nights
        st.integers(-8_000, 8_000),
    )
    anywhere = st.datetimes(FIRST.replace(tzinfo=None), LAST.replace(tzinfo=None), timezones=st.just(datetime.UTC))
    offsets = st.integers(-24 * 60 + 1, 24 * 60 - 1).map(lambda minutes: datetime.timezone(minutes * HOUR / 60))
    zones = st.one_of(offsets, st.just(berlin), st.just(datetime.UTC))
    return st.builds(_as_written_in, st.one_of(anywhere, near), zones)


def _as_written_in(moment: datetime.datetime, zone: datetime.tzinfo) -> datetime.datetime:
    try:
        return moment.astimezone(zone)
    except OverflowError:
        return moment


def in_utc(moment: datetime.datetime) -> datetime.datetime:
    return moment.astimezone(datetime.UTC)  # In Python, the second of two ambiguous datetimes equals no other.


def a_talk(message: dict | None = None, **head: object) -> list[str]:
    """Return the lines of a conversation of one message."""
    first = {
        "record": "conversation",
        "memory_id": "a",
        "next_sequence": 2,
        "window_start": 1,
        "pinned_sequence": None,
        "total_messages": 1,
        "title": "",
        "metadata": {},
        "created_at": "2026-11-21T00:00:00Z",
        "updated_at": "2026-11-21T00:00:00Z",
        "messages": 1,
        "is_pinned": False,
        "is_archived": True,
        **head,
    }
    second = {
        "record": "message",
        "sequence": 1,
        "created_at": "2026-11-21T00:00:00Z",
        "message": {"type": "AI", "text": "Hi"},
        **(message or {}),
    }
    return [json.dumps(first), json.dumps(second)]


def imported_and_exported(lines: list[str]) -> list[dict]:
    Conversation.objects.all().delete()
    assert check_lines(lines)
    assert import_lines(lines) == 1
    return list(map(as_data, export_lines(Conversation.objects.all())))


def as_data(line: str) -> dict:
    """Parse a line. PostgreSQL has no -0.0 and writes 1e308 with 309 digits, so numbers are compared as floats."""
    return json.loads(line, parse_int=float)


class TestDatetimes:
    @IN_DATABASE
    @given(written=st.lists(moments(), min_size=3, max_size=3), name=st.sampled_from(ZONES))
    @example([FIRST, LAST, FIRST], "Pacific/Kiritimati")
    @example([LAST, FIRST, LAST], "America/St_Johns")
    def test_datetimes_are_unchanged_to_the_microsecond(self, written, name):
        lines = a_talk(
            {"created_at": written[0].isoformat()},
            created_at=written[1].isoformat(),
            updated_at=written[2].isoformat(),
        )

        with override_settings(TIME_ZONE=name):
            head, message = imported_and_exported(lines)

        exported = [message["created_at"], head["created_at"], head["updated_at"]]
        assert list(map(datetime.datetime.fromisoformat, exported)) == list(map(in_utc, written))
        assert all(moment.endswith("Z") for moment in exported)

    @IN_DATABASE
    @given(moment=moments(), name=st.sampled_from(ZONES))
    def test_without_time_zones_only_ambiguous_datetimes_change(self, moment, name):
        with override_settings(USE_TZ=False, TIME_ZONE=name):
            _, message = imported_and_exported(a_talk({"created_at": moment.isoformat()}))
            _, again = imported_and_exported(a_talk({"created_at": message["created_at"]}))

        exported = datetime.datetime.fromisoformat(message["created_at"])
        there = moment.astimezone(ZoneInfo(name))
        assert again == message
        assert exported in [in_utc(there.replace(fold=fold)) for fold in (0, 1)]  # Databases accept either of them.

    @pytest.mark.parametrize(
        "moment",
        [
            "1969-12-31T23:59:59.999999Z",
            "1970-01-01T00:00:00+00:01",
            "9999-01-01T00:00:00Z",
            "9998-12-31T23:59:00-00:01",
            "0001-01-01T00:00:00+23:59",
            "9999-12-31T23:59:59-23:59",
        ],
    )
    @pytest.mark.parametrize("name", ["created_at", "updated_at", "message"])
    def test_datetimes_of_other_years_are_rejected(self, moment, name):
        lines = a_talk({"created_at": moment}) if name == "message" else a_talk(**{name: moment})

        for run in (check_lines, import_lines):
            with pytest.raises(JsonLinesError, match="must be between the years 1970 and 9998"):
                run(lines)


IDS = [
    "x",
    "京",
    "😀",
    "a ",
    " a",
    "A",
    "a",
    "á",
    "a\u0301",
    "\ufeff",
    "\u200b",
    "\n",
    "/",
    "..",
    "%",
    "_",
    "\\",
    "'",
    '"',
    "0",
]


class TestIds:
    @pytest.mark.parametrize(
        "memory_id", [*IDS, *(character * 255 for character in "x京😀 \\")], ids=lambda each: ascii(each)[:20]
    )
    def test_memory_ids_are_unchanged(self, memory_id):
        head, _ = imported_and_exported(a_talk(memory_id=memory_id))

        assert head["memory_id"] == memory_id

    def test_similar_memory_ids_are_different(self):
        lines = [line for memory_id in IDS for line in a_talk(memory_id=memory_id)]

        assert check_lines(lines) == IDS
        assert import_lines(lines) == len(IDS)
        assert everything_is_whole() == dict.fromkeys(IDS, 1)

    @pytest.mark.parametrize("client_message_id", [*IDS, "x" * 64, "😀" * 64], ids=lambda each: ascii(each)[:20])
    def test_client_ids_are_unchanged(self, client_message_id):
        _, message = imported_and_exported(a_talk({"client_message_id": client_message_id}))

        assert message["client_message_id"] == client_message_id

    def test_similar_client_ids_are_different(self):
        head, message = map(json.loads, a_talk(next_sequence=100, total_messages=len(IDS), messages=len(IDS)))
        messages = [{**message, "sequence": number, "client_message_id": each} for number, each in enumerate(IDS, 1)]

        assert import_lines(map(json.dumps, [head, *messages])) == 1
        assert list(Message.objects.order_by("sequence").values_list("client_message_id", flat=True)) == IDS

    @pytest.mark.parametrize(
        "memory_id", ["", "x" * 256, "😀" * 256, "a\0", "\ud800", "a\udfff"], ids=lambda each: ascii(each)[:20]
    )
    def test_ids_that_no_database_can_store_are_rejected(self, memory_id):
        for lines in (a_talk(memory_id=memory_id), a_talk({"client_message_id": memory_id})):
            for run in (check_lines, import_lines):
                with pytest.raises(JsonLinesError):
                    run(lines)

        assert not Conversation.objects.exists()

    @pytest.mark.parametrize(
        "title", ["x" * 255, "😀" * 255, "", " ", "a\n", "\\" * 255], ids=lambda each: ascii(each)[:20]
    )
    def test_titles_are_unchanged(self, title):
        head, _ = imported_and_exported(a_talk(title=title))

        assert head["title"] == title


def nested(depth: int) -> dict:
    """Return an object nested *depth* levels deep."""
    return {} if depth == 1 else {"k": nested(depth - 1)}


class TestMetadata:
    @pytest.mark.parametrize(
        "metadata",
        [
            {"number": number}
            for number in (0, -0.0, 0.1, 5e-324, 1e308, -1e308, 1e16, 2**53 + 1, 2**63, -(2**63), 2**64, 10**400)
        ]
        + [
            {"text": text}
            for text in (
                "",
                " ",
                "京😀",
                "\u2028",
                "\ufeff",
                "\x7f\x01",
                "\\u0000",
                "'\"`;--",
                "%s %(a)s",
                "x" * 100_000,
            )
        ]
        + [{"": None}, {"a.b": {"$": [True, False, None, [], {}]}}, {" k": 1, "k ": 2, "K": 3}]
        + [nested(MAX_METADATA_DEPTH), {str(number): number for number in range(2_000)}],
        ids=lambda each: ascii(each)[:30],
    )
    def test_metadata_is_unchanged(self, metadata):
        head, message = imported_and_exported(a_talk({"metadata": metadata}, metadata=metadata))

        expected = as_data(json.dumps(metadata))
        assert head["metadata"] == message["metadata"] == expected

    @IN_DATABASE
    @given(metadata=strategies.attributes(storable=True))
    def test_metadata_of_any_type_is_unchanged(self, metadata):
        head, message = imported_and_exported(a_talk({"metadata": metadata}, metadata=metadata))

        assert head["metadata"] == message.get("metadata", {}) == as_data(json.dumps(metadata))

    def test_metadata_of_the_maximum_size_fits_into_one_packet(self):
        large = {"k": "é" * (2 * 1024 * 1024 - 4)}

        head, _ = imported_and_exported(a_talk(metadata=large))

        assert head["metadata"] == large
        with pytest.raises(JsonLinesError, match="Line 1: metadata has 4194306 bytes"):
            check_lines(a_talk(metadata={"k": large["k"] + "é"}))

    @pytest.mark.parametrize(
        "metadata",
        [
            nested(MAX_METADATA_DEPTH + 1),
            nested(900),
            {"k": "\0"},
            {"\0": 1},
            {"k": ["\ud800"]},
            {"k": "x" * 5_000_000},
        ],
        ids=["deep", "very deep", "NUL", "NUL in a key", "surrogate", "large"],
    )
    def test_metadata_that_no_database_can_store_is_rejected(self, metadata):
        for lines in (a_talk(metadata=metadata), a_talk({"metadata": metadata})):
            for run in (check_lines, import_lines):
                with pytest.raises(JsonLinesError):
                    run(lines)

        assert not Conversation.objects.exists()

    @pytest.mark.parametrize("number", ["1e309", "-1e999", "NaN", "Infinity", "1" * 5_000])
    def test_metadata_with_nan_or_infinity_is_rejected(self, number):
        for lines in (a_talk(metadata={"k": 77}), a_talk({"metadata": {"k": 77}})):
            with pytest.raises(JsonLinesError):
                import_lines([line.replace("77", number) for line in lines])
