"""What the app reads of ``CHATMEMORY``."""

from typing import Annotated

from chatmemory_django.conf import Count, Rule, Section

LONGEST = 10_000
"""How many characters a site may allow for one note."""

_Length = Annotated[
    int,
    Rule(f"a whole number from 1 to {LONGEST:,}", lambda value: type(value) is int and 1 <= value <= LONGEST),
]


class Notes(Section):
    """``NOTES``: the settings of the app."""

    key = "NOTES"
    ids = ("chatmemory.E101", "chatmemory.W101", "chatmemory.E102")
    hint = 'Write "NOTES": {"MAX_NOTES": 30}, for example, or leave it out.'

    MAX_NOTES: Count = 30
    """How many notes each user has at most."""
    MAX_LENGTH: _Length = 300
    """How many characters each of them has at most."""


notes = Notes.current
