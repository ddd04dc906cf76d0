"""Excerpts of texts mark the search terms and contain nothing that is not in the text."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chatmemory_django.search.excerpts import ELLIPSIS, MAX_SNIPPET, snippet

# Characters whose case folding has several characters, and some that become others.
TEXTS = st.text(st.sampled_from("aAsSßẞİiςΣ ﬃfF.\n京é…") | st.characters(), max_size=800)


def marked(text: str, wanted: str, **options: int) -> str:
    return "".join(f"[{part}]" if is_hit else part for part, is_hit in snippet(text, wanted, **options).parts)


@pytest.mark.parametrize(
    ("text", "wanted", "expected"),
    [
        ("Where is my parcel?", "parcel", "Where is my [parcel]?"),
        ("Parcel, PARCEL, parcels", "pArCeL", "[Parcel], [PARCEL], [parcel]s"),
        ("Straße und STRASSE", "strasse", "[Straße] und [STRASSE]"),
        ("Strasse und Straße", "straße", "[Strasse] und [Straße]"),
        ("Ein großer Spaß, süß", "süss", "Ein großer Spaß, [süß]"),
        ("İstanbul, then Ankara", "ankara", "İstanbul, then [Ankara]"),
        ("ΛΌΓΟΣ", "λόγος", "[ΛΌΓΟΣ]"),
        ("eﬃcient", "ffi", "e[ﬃ]cient"),
        ("aaa", "aa", "[aa]a"),
        ("sßs", "ss", "[sß][s]"),
        ("ßß", "s", "[ß][ß]"),
        ("京都タワー", "タワ", "京都[タワ]ー"),
        ("100% of it", "%", "100[%] of it"),
        ("nothing like it", "parcel", "nothing like it"),
        ("nothing", "", "nothing"),
        ("", "parcel", ""),
        ("", "", ""),
    ],
)
def test_hits_are_marked_case_insensitively(text, wanted, expected):
    assert marked(text, wanted) == expected


@pytest.mark.parametrize(
    ("text", "wanted", "expected"),
    [
        ("0123456789hit9876543210", "hit", "…56789[hit]98765…"),
        ("0123hit9876543210", "hit", "0123[hit]98765…"),
        ("0123456789hit9876", "hit", "…56789[hit]9876"),
        ("0123456789hit12hit9hit", "hit", "…56789[hit]12[hit]…"),
        ("0123456789abcdef", "hit", "0123456789…"),
    ],
)
def test_text_far_from_the_first_hit_is_omitted(text, wanted, expected):
    assert marked(text, wanted, around=5) == expected


def test_a_hit_longer_than_the_excerpt_is_marked_as_far_as_shown():
    assert marked("Look: " + "x" * 500 + "!", "x" * 500) == "Look: [" + "x" * 294 + "]…"


def test_a_hit_after_many_expanding_characters_is_found_quickly():
    assert marked("ß" * 1_000_000 + "hit", "HIT", around=2) == "…ßß[hit]"


@given(TEXTS, TEXTS, st.integers(0, 1_000))
@example("ß" * 400, "s", 60)
@example("a" * 1_000, "b", 1_000)
def test_an_excerpt_is_a_short_part_of_the_text(text, wanted, around):
    parts = list(snippet(text, wanted, around=around).parts)
    is_cut_in_front = bool(parts) and parts[0] == (ELLIPSIS, False) and not text.startswith(ELLIPSIS)
    is_cut_behind = bool(parts) and parts[-1] == (ELLIPSIS, False) and not text.endswith(ELLIPSIS)

    excerpt = "".join(part for part, _ in parts[is_cut_in_front : len(parts) - is_cut_behind])

    assert excerpt in text
    assert len(excerpt) <= MAX_SNIPPET
    assert all(part for part, _ in parts)
    assert is_cut_in_front or ELLIPSIS in text[:1] or text.startswith(excerpt)


@given(TEXTS, st.data())
def test_terms_taken_from_a_text_are_marked_in_any_case(text, data):
    start = data.draw(st.integers(0, max(0, len(text) - 1)))
    wanted = text[start : start + data.draw(st.integers(1, 20))]
    recased = data.draw(
        st.sampled_from([str, str.casefold, str.upper if wanted.upper().casefold() == wanted.casefold() else str])
    )

    hits = [part for part, is_hit in snippet(text, recased(wanted)).parts if is_hit]

    assert bool(hits) == bool(wanted)
    if hits:
        assert wanted.casefold() in hits[0].casefold()
