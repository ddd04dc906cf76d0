"""Excerpts of texts, with the matches of a search marked."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from chatmemory_django.search.terms import terms_of

ELLIPSIS = "…"
"""Marks where an excerpt was cut."""

MAX_SNIPPET = 300
"""The maximum length of an excerpt, in characters of the text."""


class Snippet(NamedTuple):
    """An excerpt of a text."""

    parts: tuple[tuple[str, bool], ...]
    """Its pieces in order, none of them empty, each with whether it is a match."""

    def __str__(self) -> str:
        return "".join(part for part, _ in self.parts)


def snippet(text: str, wanted: str, *, around: int = 60) -> Snippet:
    """
    Return an excerpt of *text*: the first match of *wanted*, case-insensitively, with *around* characters on either
    side.

    Every match in the excerpt is marked. If *wanted* does not occur as a whole, its terms are matched instead, see
    ``terms_of``. Without a match (a database may consider "o" and "ö" equal), it is the beginning of *text*.
    """
    pattern = _pattern([wanted])
    if next(_hits(text, pattern), None) is None:
        pattern = _pattern(terms_of(wanted))
    around = min(around, MAX_SNIPPET // 2)
    first = next(_hits(text, pattern), None)
    start = 0 if first is None else max(0, first[0] - around)
    end = min(len(text), start + MAX_SNIPPET, around + (around if first is None else first[1]))
    if first is not None and first[1] > end:  # the match is longer than the excerpt
        hits = [(first[0], end)]
    else:
        hits = [(start + hit_start, start + hit_end) for hit_start, hit_end in _hits(text[start:end], pattern)]
    parts = [(ELLIPSIS if start else "", False)]
    done = start
    for hit_start, hit_end in hits:
        # Two matches may share a character: "ss" occurs twice in "sßs".
        parts += [(text[done:hit_start], False), (text[max(done, hit_start) : hit_end], True)]
        done = hit_end
    parts += [(text[done:end], False), (ELLIPSIS if end < len(text) else "", False)]
    return Snippet(tuple(part for part in parts if part[0]))


def _pattern(wanted: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds each of *wanted* in case-folded text, preferring the longest."""
    folded = sorted(filter(None, map(str.casefold, wanted)), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, folded)) or "(?!)")


def _hits(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield the spans of *text* that *pattern* matches, case-insensitively."""
    all_folded = text.casefold()
    is_same_length = len(all_folded) == len(text)  # if not, some characters became several: "ß" becomes "ss"
    for hit in pattern.finditer(all_folded):
        start, end = hit.span()
        yield (start, end) if is_same_length else (_place(text, start), _place(text, end - 1) + 1)


def _place(text: str, folded_place: int) -> int:
    """Return the index of the character of *text* that produced *folded_place* in the case-folded text."""
    ends = range(len(text) + 1)
    return bisect_right(ends, folded_place, key=lambda end: len(text[:end].casefold())) - 1
