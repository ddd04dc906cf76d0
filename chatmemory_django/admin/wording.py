"""Preparation of untrusted text for display, beyond the escaping that templates do."""

from __future__ import annotations

import datetime
import json
from contextlib import suppress
from typing import Any, NamedTuple

from django.utils import timezone
from django.utils.formats import date_format

from chatmemory_django.core.shown import visible

EXCERPT = 4_000
"""Maximum number of characters of a text in a transcript."""


class Excerpt(NamedTuple):
    """The displayed part of a text, and the length of all of it."""

    text: str
    length: int

    @property
    def is_cut(self) -> bool:
        """Whether the text was cut."""
        return self.length > len(self.text)


def excerpt(text: str, limit: int = EXCERPT) -> Excerpt:
    """Return the first *limit* characters of *text*."""
    shown = visible(text[:limit])
    return Excerpt(shown, len(text) if len(text) > limit else len(shown))


def moment(value: datetime.datetime) -> str:
    """
    Return *value* in the active time zone and the active language's ``DATETIME_FORMAT``, with the zone's name.

    In English: ``Nov. 21, 2026, 9:30 a.m. UTC``. Naive values, if ``USE_TZ`` is off, are in ``TIME_ZONE``.
    """
    local = timezone.localtime(value) if timezone.is_aware(value) else value
    return f"{date_format(local, 'DATETIME_FORMAT')} {date_format(local, 'T')}".strip()


def pretty_json(text: str, limit: int = EXCERPT) -> Excerpt:
    """Return *text* as indented JSON, or unchanged if it is not JSON or is longer than *limit*."""
    if len(text) <= limit:
        with suppress(ValueError, RecursionError):  # models may write invalid arguments
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return excerpt(text, limit=limit)


def shortened(value: Any, limit: int) -> Any:
    """Return the JSON *value* with every string in it cut to *limit* characters."""
    if isinstance(value, str):
        return value if len(value) <= limit else f"{value[:limit]}… ({len(value):,})"
    if isinstance(value, dict):
        return {key: shortened(item, limit) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [shortened(item, limit) for item in value]
    return value
