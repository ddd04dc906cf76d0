"""The terms of a search, parsed from what a user typed."""

from __future__ import annotations

import re

MAX_SEARCH = 255
"""How many characters of a search are used."""

MAX_TERMS = 8
"""How many terms of a search are used."""

_TERM = re.compile(r'"([^"]+)"(?!\S)|(\S+)')


def terms_of(text: str) -> tuple[str, ...]:
    """
    Return the terms that a text must all contain to match a search for *text*.

    Terms are words, and phrases in quotation marks, spaces included. No other character has a special meaning.
    """
    found = (phrase or word for phrase, word in _TERM.findall(text[:MAX_SEARCH]))
    different = {term.casefold(): term for term in found if term.strip()}
    return tuple(different.values())[:MAX_TERMS]
