"""Text from anywhere, made fit to be shown. Templates escape it; this is for what escaping leaves."""

from __future__ import annotations

import datetime
import json
import re
from contextlib import suppress
from typing import Any, NamedTuple

from django.utils import timezone
from django.utils.formats import date_format

EXCERPT = 4_000
"""How many characters of a text stand in a transcript."""

# Controls, which may be anything to a terminal that it is copied to; what turns the direction of the text behind it;
# halves of surrogate pairs, which no response can hold. Line feeds and tabs are text.
_UNSEEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


class Excerpt(NamedTuple):
    """A text as far as it is shown, and how long it is."""

    text: str
    length: int

    @property
    def is_cut(self) -> bool:
        """Whether there is more of it."""
        return self.length > len(self.text)


def visible(text: str) -> str:
    """*text* with a name in the place of each character that would not be seen, but felt: ``⟦U+202E⟧``."""
    return _UNSEEN.sub(lambda match: f"⟦U+{ord(match[0]):04X}⟧", text.replace("\r\n", "\n"))


def excerpt(text: str, limit: int = EXCERPT) -> Excerpt:
    """The first *limit* characters of *text*."""
    shown = visible(text[:limit])
    return Excerpt(shown, len(text) if len(text) > limit else len(shown))


def moment(value: datetime.datetime) -> str:
    """
    *value* in the active time zone and the active language's ``DATETIME_FORMAT``, with its zone.

    In English: ``Nov. 21, 2026, 9:30 a.m. UTC``. A naive value, where ``USE_TZ`` is off, is in ``TIME_ZONE``.
    """
    local = timezone.localtime(value) if timezone.is_aware(value) else value
    return f"{date_format(local, 'DATETIME_FORMAT')} {date_format(local, 'T')}".strip()


def pretty_json(text: str, limit: int = EXCERPT) -> Excerpt:
    """*text* as indented JSON, if it is JSON of a size worth reading; else as it is."""
    if len(text) <= limit:
        with suppress(ValueError, RecursionError):  # models do write such arguments
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return excerpt(text, limit=limit)


def shortened(value: Any, limit: int) -> Any:
    """The JSON *value* with every text in it cut to *limit* characters."""
    if isinstance(value, str):
        return value if len(value) <= limit else f"{value[:limit]}… ({len(value):,})"
    if isinstance(value, dict):
        return {key: shortened(item, limit) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [shortened(item, limit) for item in value]
    return value
