"""What a run keeps of its request, so that a process can go on with it that has not seen that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self
from zoneinfo import ZoneInfo

import msgspec
from django.utils import timezone, translation

from chatmemory_django.chat.runs.tables import MAX_LANGUAGE_LENGTH, MAX_TIME_ZONE_LENGTH


class GivenOutput(msgspec.Struct, frozen=True):
    """What a client has as the output of a call: see ``approvals.Output``."""

    id: str
    value: Any
    is_error: bool = False


class Given(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was given with a question, or in its place; a run has it as a text."""

    chat_id: str = ""
    """The id of the chat, as its client names it."""
    user: str = ""
    """The key of who asks, or has decided, as text; empty for nobody."""
    body: Mapping[str, Any] = {}
    """The rest of the request's body, see ``named.Asked``."""
    is_another: bool = False
    """Whether another answer is asked for, to a question that has one."""
    about: Sequence[str] = ()
    """The approvals on which was decided."""
    outputs: Sequence[GivenOutput] = ()
    """What the client has sent for calls that ran there."""

    def as_text(self) -> str:
        """Return it as JSON: never empty."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, text: str) -> Self:
        """Return what ``as_text`` returned as *text*."""
        return msgspec.json.decode(text, type=cls)


class Kept(NamedTuple):
    """What is stored with a run; without ``asked``, no other process goes on with it."""

    asked: str = ""
    language: str = ""
    time_zone: str = ""

    @classmethod
    def now(cls, given: Given) -> Self:
        """Return what is kept with *given*: the language and the time zone are those that are active."""
        language, time_zone = translation.get_language() or "", timezone.get_current_timezone()
        name = time_zone.key if isinstance(time_zone, ZoneInfo) else ""
        return cls(given.as_text(), language[:MAX_LANGUAGE_LENGTH], (name or "")[:MAX_TIME_ZONE_LENGTH])


NOTHING = Kept()
"""What is kept of a run with which no other process can go on: that of a site's own code."""
