"""Excerpts of texts mark the search terms and contain nothing that is not in the text."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chatmemory_django.core.excerpts import ELLIPSIS, MAX_SNIPPET, snippet, terms_of

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


def test_a_part_of_a_text_is_marked_as_cut():
    assert marked("a hit b", "hit") == "a [hit] b"
    assert marked("a hit b", "hit", is_cut_before=True) == "…a [hit] b"
    assert marked("a hit b", "hit", is_cut_behind=True) == "a [hit] b…"
    assert marked("0123456789hit", "hit", around=5, is_cut_before=True) == "…56789[hit]"


class Folded(str):
    """A text that counts how many of its characters are case-folded."""

    folded = 0

    def __getitem__(self, key):
        return Folded(super().__getitem__(key))

    def casefold(self):
        Folded.folded += len(self)
        return super().casefold()


@pytest.mark.parametrize("length", [10_000, 40_000])
@pytest.mark.parametrize("wanted", ["HIT", "not there, HIT", "not there"])
def test_each_character_of_a_text_is_folded_a_few_times_at_any_length(length, wanted):
    Folded.folded = 0

    snippet(Folded("ß" * length + "hit"), wanted)

    assert Folded.folded <= 5 * length


def plain(text, wanted, around):
    """Return an excerpt as the documentation of ``snippet`` describes it, character by character."""
    around = min(around, MAX_SNIPPET // 2)
    searched = [wanted] if hits_of(text, [wanted]) else terms_of(wanted)
    hits = hits_of(text, searched)
    start, behind = (max(0, hits[0][0] - around), hits[0][1] + around) if hits else (0, 2 * around)
    end = min(len(text), start + MAX_SNIPPET, behind)
    hits = hits_of(text[start:end], searched) if not hits or hits[0][1] <= end else [(hits[0][0] - start, end - start)]
    excerpt = ELLIPSIS if start else ""
    done = 0
    for hit_start, hit_end in hits:
        if hit_end <= done:
            continue  # another hit in a character that is marked, as both "s" of "ß" are
        excerpt += text[start + done : start + hit_start]
        excerpt += f"[{text[start + max(done, hit_start) : start + hit_end]}]"
        done = hit_end
    return excerpt + text[start + done : end] + (ELLIPSIS if end < len(text) else "")


def hits_of(text, searched):
    # Which character of the text each character of the folded text comes from.
    sources = [place for place, character in enumerate(text) for _ in character.casefold()]
    folded = "".join(character.casefold() for character in text)
    hits, place = [], 0
    while place < len(folded):
        found = [len(each.casefold()) for each in searched if each and folded.startswith(each.casefold(), place)]
        if found:
            hits.append((sources[place], sources[place + max(found) - 1] + 1))
        place += max(found, default=1)
    return hits


@given(TEXTS, TEXTS | st.text(st.sampled_from("aßs "), max_size=6), st.integers(0, 1_000))
@example("x" * 200 + "ß a ss", "ss a", 60)
@example("sßs", "ss", 60)
@example("ß", "S", 0)
def test_an_excerpt_is_what_its_documentation_describes(text, wanted, around):
    assert marked(text, wanted, around=around) == plain(text, wanted, around)


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
