"""The terms of a search, parsed from what a user typed, and excerpts of texts, in which its matches are marked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

MAX_SEARCH = 255
"""How many characters of a search are used."""

MAX_TERMS = 8
"""How many terms of a search are used."""

_TERM = re.compile(r'"([^"]+)"(?!\S)|(\S+)')

ELLIPSIS = "…"
"""Marks where an excerpt was cut."""

MAX_SNIPPET = 300
"""The maximum length of an excerpt, in characters of the text."""

MAX_EXCERPTED = 20_000
"""The maximum number of characters of a text that are read for an excerpt."""


class Snippet(NamedTuple):
    """An excerpt of a text."""

    parts: tuple[tuple[str, bool], ...]
    """Its pieces in order, none of them empty, each with whether it is a match."""

    def __str__(self) -> str:
        return "".join(part for part, _ in self.parts)


def terms_of(text: str) -> tuple[str, ...]:
    """
    Return the terms that a text must all contain to match a search for *text*.

    Terms are words, and phrases in quotation marks, spaces included. No other character has a special meaning.
    """
    found = (phrase or word for phrase, word in _TERM.findall(text[:MAX_SEARCH]))
    different = {term.casefold(): term for term in found if term.strip()}
    return tuple(different.values())[:MAX_TERMS]


def snippet(
    text: str, wanted: str, *, around: int = 60, is_cut_before: bool = False, is_cut_behind: bool = False
) -> Snippet:
    """
    Return an excerpt of *text*: the first match of *wanted*, case-insensitively, with *around* characters on either
    side.

    Every match in the excerpt is marked. If *wanted* does not occur as a whole, its terms are matched instead, see
    ``terms_of``. Without a match (a database may consider "o" and "ö" equal), it is the beginning of *text*.

    *text* may be a part of a longer one, whose beginning or end *is_cut*. The time that this takes is proportional to
    the length of *text*.
    """
    matched = [wanted]
    first = _first_hit(text, matched)
    if first is None:
        matched = [*terms_of(wanted)]
        first = _first_hit(text, matched)
    around = min(around, MAX_SNIPPET // 2)
    start = 0 if first is None else max(0, first[0] - around)
    end = min(len(text), start + MAX_SNIPPET, around + (around if first is None else first[1]))
    if first is not None and first[1] > end:  # the match is longer than the excerpt
        hits = [(first[0], end)]
    else:
        hits = [(start + hit_start, start + hit_end) for hit_start, hit_end in _hits(text[start:end], matched)]
    parts = [(ELLIPSIS if start or is_cut_before else "", False)]
    done = start
    for hit_start, hit_end in hits:
        # Two matches may share a character: "ss" occurs twice in "sßs".
        parts += [(text[done:hit_start], False), (text[max(done, hit_start) : hit_end], True)]
        done = hit_end
    parts += [(text[done:end], False), (ELLIPSIS if end < len(text) or is_cut_behind else "", False)]
    return Snippet(tuple(part for part in parts if part[0]))


def _first_hit(text: str, wanted: Iterable[str]) -> tuple[int, int] | None:
    """Return the span of the first match of any of *wanted* in *text*, of the longest one if several start there."""
    # Not by a pattern of alternatives: that takes time in proportion to the length of *wanted*, too.
    all_folded = text.casefold()
    found = ((all_folded.find(each), -len(each)) for each in _folded(wanted))
    place, length = min((each for each in found if each[0] >= 0), default=(-1, 0))
    return None if place < 0 else _span(text, all_folded, place, place - length)


def _hits(text: str, wanted: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield the spans of *text* that match any of *wanted*, the longest one at each place."""
    all_folded = text.casefold()
    longest_first = sorted(_folded(wanted), key=len, reverse=True)
    for hit in re.finditer("|".join(map(re.escape, longest_first)) or "(?!)", all_folded):
        yield _span(text, all_folded, *hit.span())


def _folded(wanted: Iterable[str]) -> Iterator[str]:
    return filter(None, map(str.casefold, wanted))


def _span(text: str, all_folded: str, start: int, end: int) -> tuple[int, int]:
    """Return the span of *text* that was folded to the one from *start* to *end* in *all_folded*."""
    if len(all_folded) == len(text):
        return start, end
    return _place(text, start), _place(text, end - 1) + 1  # some characters became several: "ß" becomes "ss"


def _place(text: str, folded_place: int) -> int:
    """Return the index of the character of *text* that produced *folded_place* in the case-folded text."""
    start, end = 0, len(text)
    # Each step folds half of what the step before it folded, so all of them together fold the text once.
    while end - start > 1:
        middle = (start + end) // 2
        length = len(text[start:middle].casefold())
        if folded_place < length:
            end = middle
        else:
            start, folded_place = middle, folded_place - length
    return start
