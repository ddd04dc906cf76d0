"""What a search is for, taken from what a person typed."""

from __future__ import annotations

import re

MAX_SEARCH = 255
"""How many characters of a search count."""

MAX_TERMS = 8
"""How many terms of it count."""

_TERM = re.compile(r'"([^"]+)"(?!\S)|(\S+)')


def terms_of(text: str) -> tuple[str, ...]:
    """
    Return what a text must have, all of it, to be found by a search for *text*.

    These are its words, and what stands in quotation marks, spaces and all. No other character has a meaning.
    """
    found = (phrase or word for phrase, word in _TERM.findall(text[:MAX_SEARCH]))
    different = {term.casefold(): term for term in found if term.strip()}
    return tuple(different.values())[:MAX_TERMS]
