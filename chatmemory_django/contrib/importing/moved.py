"""The data that was read from another framework, before it is stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

from chatmemory_django.core.limits import YEARS
from chatmemory_django.messages import NewMessage

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UnreadableSourceError(ValueError):
    """The source as a whole is invalid."""


class MovedMessage(NamedTuple):
    """A message, and its time if it is known."""

    new: NewMessage
    created_at: datetime | None = None
    follows: int | None = None
    """The position of the message that it follows, counted from 0; -1 for none, None for the previous one."""


ReadMessages: TypeAlias = Callable[[Iterable[Any]], list[MovedMessage]]
"""Returns the messages of a conversation; errors name the invalid one."""


class Moved(NamedTuple):
    """A conversation with its messages in chronological order, so that new ones come last."""

    messages: Sequence[MovedMessage]
    title: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    is_archived: bool = False
    goes_on_from: int | None = None
    """The position of the message that the next one follows; None for the last."""

    def path(self) -> set[int]:
        """Return the positions of the messages from the first to that one."""
        position = len(self.messages) - 1 if self.goes_on_from is None else self.goes_on_from
        found = set()
        while position >= 0:
            found.add(position)
            follows = self.messages[position].follows
            position = position - 1 if follows is None else follows
        return found


class ReadResult(NamedTuple):
    """The result of one read: a conversation, or the error that makes it invalid."""

    memory_id: str
    conversation: Moved | ValueError
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
