"""Conversations are found by their metadata, the same on every database."""

import pytest

from chatmemory_django.models import Conversation

pytestmark = pytest.mark.django_db

# The stored value, and the texts that find it.
CASES = [
    ("gold", ["gold"]),
    ("Gold", ["Gold"]),
    ("gold ", ["gold "]),
    ("", [""]),
    ("Grüße", ["Grüße"]),
    ("Gruße", ["Gruße"]),
    ("京都 😀", ["京都 😀"]),
    ('say "hi"', ['say "hi"']),
    ('"hi"', ['"hi"']),
    ("it's", ["it's"]),
    ("-5", ["-5"]),
    ("-", ["-"]),
    ('"-"-\\"-', ['"-"-\\"-']),
    ("back\\slash", ["back\\slash"]),
    ("100%", ["100%"]),
    ("a\nb", ["a\nb"]),
    ("5", ["5"]),
    (5, ["5", "5.0", "5e0"]),
    (5.0, ["5", "5.0", "5e0"]),
    (5.5, ["5.5", "5.50", "55e-1"]),
    (0, ["0", "-0", "0.0", "-0.0"]),
    (-0.0, ["0", "-0", "0.0", "-0.0"]),
    (-3, ["-3"]),
    (0.1, ["0.1"]),
    (1e-7, ["1e-7", "0.0000001"]),
    (1e16, ["1e16", "10000000000000000", "1E+16"]),
    (2**53 + 1, ["9007199254740993"]),
    (2**63 - 1, ["9223372036854775807"]),
    (-(2**63) + 1, ["-9223372036854775807"]),
    ("05", ["05"]),
    (" 5", [" 5"]),
    ("NaN", ["NaN"]),
    (True, ["true"]),
    (False, ["false"]),
    ("true", ["true"]),
    ("True", ["True"]),
    ("null", ["null"]),
    ("[1]", ["[1]"]),
    # Values without a text, or without one that all databases agree on.
    (None, []),
    ([1], []),
    (["gold"], []),
    ({"a": 1}, []),
    ({}, []),
    (2**63, []),
    (1e22, []),
    (1e308, []),
    (10**400, []),
]
TEXTS = sorted(
    {text for _, texts in CASES for text in texts}
    | {
        "1",
        "None",
        "[1]",
        '{"a": 1}',
        "{}",
        "1e22",
        "1e308",
        "1e999",
        "1" + "0" * 400,
        "9" * 5_000,
        "9223372036854775808",
    }
    | {"gold\0", "\ud800", "%", "Infinity", "-", "9007199254740992"}
)
KEYS = [
    "tier",
    "a b",
    "a.b",
    "a-b",
    "a'b",
    'a"b',
    "a\\b",
    "a%b",
    "%s",
    "ü",
    "京",
    "😀",
    "",
    "0",
    "12",
    "-1",
    "-",
    'a"-b',
    "\\\\-",
    "$",
    "*",
    "[0]",
    "\n",
]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text)[:30])
def test_a_text_finds_only_the_string_literal_or_number_that_it_equals(text):
    Conversation.objects.bulk_create(
        Conversation(memory_id=str(index), metadata={"k": value}) for index, (value, _) in enumerate(CASES)
    )

    found = Conversation.objects.with_metadata("k", text).values_list("memory_id", flat=True)

    expected = {str(index) for index, (_, texts) in enumerate(CASES) if text in texts}
    assert set(found) == expected


@pytest.mark.parametrize("key", KEYS, ids=ascii)
def test_a_key_is_matched_literally(key):
    made = Conversation.objects.create(metadata={key: "x", "other": "y"})
    Conversation.objects.bulk_create(Conversation(metadata={other: "x"}) for other in KEYS if other != key)

    assert list(Conversation.objects.with_metadata(key, "x")) == [made]
    assert not Conversation.objects.with_metadata(key, "y").exists()


def test_only_the_top_level_of_an_object_is_searched():
    Conversation.objects.bulk_create(
        Conversation(metadata=metadata) for metadata in ({"a": {"k": "x"}}, [{"k": "x"}], ["x"], "k", {})
    )

    for key in ("k", "a", "0", "a.k"):
        assert not Conversation.objects.with_metadata(key, "x").exists()


@pytest.mark.parametrize("key", ["K", "k ", "k\0", "\ud800", "missing"], ids=ascii)
def test_another_key_finds_nothing(key):
    Conversation.objects.create(metadata={"k": "x"})

    assert not Conversation.objects.with_metadata(key, "x").exists()


def test_conditions_can_be_combined_and_excluded():
    both, one = (Conversation.objects.create(metadata=each) for each in ({"a": "1", "b": 2}, {"a": "1"}))

    assert list(Conversation.objects.with_metadata("a", "1").with_metadata("b", "2")) == [both]
    found = Conversation.objects.with_metadata("b", "2")
    assert list(Conversation.objects.exclude(pk__in=found)) == [one]
