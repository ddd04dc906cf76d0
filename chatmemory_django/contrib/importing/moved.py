"""What is read from another framework, and how its values are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

from chatmemory_django.core.limits import YEARS
from chatmemory_django.operations import ImportedConversation, ImportedMessage

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UnreadableSourceError(ValueError):
    """The source as a whole is invalid."""


ReadMessages: TypeAlias = Callable[[Iterable[Any]], list[ImportedMessage]]
"""Returns the messages of a conversation; errors name the invalid one."""


class ReadResult(NamedTuple):
    """The result of one read: a conversation, or the error that makes it invalid."""

    memory_id: str
    conversation: ImportedConversation | ValueError
    size: int
    """The amount of the source that was read, in units of its *noun*."""


class Source(NamedTuple):
    """A source, and its size."""

    noun: str
    total: int
    steps: Iterator[ReadResult]


def moment(value: Any) -> datetime | None:
    """Return *value*, a time or the seconds since 1970, as an aware time, in UTC unless it has a time zone, or None."""
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
    """Parse the JSON *text*, unless it is parsed already; ``ValueError`` names *where* it is, and not its content."""
    if isinstance(text, (dict, list)):  # a JSON column of PostgreSQL, for example
        return text
    try:
        if isinstance(text, str):
            text.encode()  # a column of SQLite may hold anything
        return json.loads(text)
    except UnicodeError:
        raise ValueError(f"{where} is not UTF-8.") from None
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply.") from None
    except (TypeError, ValueError):
        raise ValueError(f"{where} is not JSON.") from None


def having(item: Any, keys: Sequence[str], where: str) -> Any:
    """Return *item*; raise ``ValueError``, which names *where* it is, if it is an object without one of *keys*."""
    missing = [key for key in keys if isinstance(item, dict) and key not in item]
    if missing:
        raise ValueError(f"{where} has no {missing[0]!r}.")
    return item
