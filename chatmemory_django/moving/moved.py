"""What was read of another framework's, before it is stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

from chatmemory_django.formats.verbatim import Given

YEARS = range(1970, 9999)
"""Of which moments are believed: databases, time zones, lists and their cursors all know them."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UnreadableError(ValueError):
    """The source as a whole is not what it should be."""


class MovedMessage(NamedTuple):
    """A message, and when it was said, where that is known."""

    given: Given
    created_at: datetime | None = None
    client_message_id: str | None = None
    follows: int | None = None
    """The place of the message that it follows, counted from 0; -1 for none, None for the one before it."""


ReadMessages: TypeAlias = Callable[[Sequence[Any]], list[MovedMessage]]
"""Returns what the messages of a conversation say; errors say which of them is wrong."""


class Moved(NamedTuple):
    """A conversation: its messages in the order in which they were said, so that what is new is at the end."""

    messages: Sequence[MovedMessage]
    title: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    is_archived: bool = False
    goes_on_from: int | None = None
    """The place of the message that the next one follows; None for the last."""


class Step(NamedTuple):
    """As much of a source as was read at once: a conversation, or why it is none."""

    memory_id: str
    conversation: Moved | ValueError
    size: int
    """How much of the source that was, in what its *noun* counts."""


class Source(NamedTuple):
    """What is to be moved, and how much that is."""

    noun: str
    total: int
    steps: Iterator[Step]


def moment(value: Any) -> datetime | None:
    """Return *value*, a time or the seconds since 1970, as an aware time, by UTC if it names no zone; None if none."""
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = EPOCH + timedelta(seconds=value)
        if not isinstance(value, datetime):
            return None
        value = (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC)
    except (OverflowError, ValueError):
        return None
    return value if value.year in YEARS else None


def from_json(text: Any, where: str) -> Any:
    """Return what the JSON *text* says, unless it is read already; ``ValueError`` says *where* it is, not what."""
    if isinstance(text, (dict, list)):  # of a column of PostgreSQL's, for example
        return text
    try:
        if isinstance(text, str):
            text.encode()  # of a file of SQLite's, it may be anything
        return json.loads(text)
    except UnicodeError:
        raise ValueError(f"{where} is not UTF-8.") from None
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply.") from None
    except (TypeError, ValueError):
        raise ValueError(f"{where} is no JSON.") from None


def having(item: Any, keys: Sequence[str], where: str) -> Any:
    """Return *item*; ``ValueError`` says *where* it is if it is an object without one of *keys*: somebody else's."""
    missing = [key for key in keys if isinstance(item, dict) and key not in item]
    if missing:
        raise ValueError(f"{where} has no {missing[0]!r}.")
    return item
