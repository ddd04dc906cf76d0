"""
What is written in a conversation while a person answers there, for those who look on: its owner, and staff.

All streams of a process look together: one query every ``INTERVAL`` asks for the versions of their conversations, and
only what has a new version is read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection
from typing import Any, NamedTuple

from chatmemory_django.chat.answers.stored import named
from chatmemory_django.chat.answers.ui_stream import DONE, encode
from chatmemory_django.chat.approvals.waiting import shown_approvals
from chatmemory_django.chat.people.answering import state_of
from chatmemory_django.chat.runs.answer import PING, PING_AFTER
from chatmemory_django.chat.ui_messages import to_ui_messages
from chatmemory_django.db.batches import in_parts
from chatmemory_django.db.contexts import ThreadContext, current
from chatmemory_django.db.threads import in_background, in_thread
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation

INTERVAL = 1.0
"""Seconds between two looks at the conversations that people have, or that wait for one."""

IDLE_INTERVAL = 5.0
"""The same of those in which the assistant answers."""

MAX_SECONDS = 30.0
"""How long a stream is open at most: a server that ends waits for it, and the next one asks again who may read."""

MAX_NEW = 100
"""How many new messages one look reads."""

Chunk = dict[str, Any]


def handover(conversation: Conversation) -> Chunk:
    """Return the part of a stream with who answers in *conversation*."""
    return {"type": "data-handover", "data": state_of(conversation), "transient": True}


def stored(conversation: Conversation) -> str:
    """Return the stream in place of an answer, where a question was only stored: it has no message."""
    chunks: list[Chunk] = [{"type": "start"}, handover(conversation), {"type": "finish"}]
    return "".join(map(encode, chunks)) + DONE


class Look(NamedTuple):
    """What is new since the last look."""

    chunks: list[Chunk]
    is_last: bool
    interval: float = INTERVAL
    """In how many seconds the next one is due."""


class Watching:
    """
    Looks at the conversation *key* in the database *using*, behind the message *after*, an id of a page or None.

    Of the messages, only those of *types* are shown, as a ``UIMessage`` each; before that, *note* is called. The last
    look is when the assistant answers, unless this *stays*.
    """

    def __init__(
        self,
        using: str,
        key: int,
        types: Collection[MessageType],
        after: str | None,
        note: Callable[[], object] = lambda: None,
        *,
        stays: bool = False,
    ) -> None:
        self.using = using
        self.key = key
        self.version = 0
        """That of the conversation of which all is known."""
        self._types = {MessageType.USER, MessageType.AI}.intersection(types)
        self._after = after
        self._note = note
        self._stays = stays
        self._last: int | None = None
        self._state: tuple[str, str] | None = None

    def look(self) -> Look:
        """Return what is new: who answers, if that has changed, and messages."""
        conversation = Conversation.objects.using(self.using).filter(pk=self.key).first()
        if conversation is None:
            return Look([], is_last=True)
        if self._last is None:
            self._last = self._begin(conversation)
        chunks: list[Chunk] = []
        if conversation.version != self.version:
            chunks = self._messages(conversation)
        if (state := (conversation.state, conversation.person)) != self._state:
            self._state = state
            chunks.append(handover(conversation))
        is_idle = conversation.state == Conversation.State.ASSISTANT
        return Look(chunks, is_idle and not self._stays, IDLE_INTERVAL if is_idle else INTERVAL)

    def _begin(self, conversation: Conversation) -> int:
        """Return the sequence of the message that the page has seen last; without one, the newest."""
        if self._after is not None:
            found = named(conversation.history(all_branches=True).only("sequence"), self._after)
            if found is not None:
                return found.sequence
        return conversation.next_sequence - 1

    def _messages(self, conversation: Conversation) -> list[Chunk]:
        history = conversation.history().filter(sequence__gt=self._last, type__in=self._types).defer("verbatim")
        rows = list(history.order_by("sequence")[:MAX_NEW])
        if len(rows) < MAX_NEW:
            self.version = conversation.version
        if rows:
            self._last = rows[-1].sequence
            self._note()
        shown = to_ui_messages(rows, shown_approvals(conversation, rows, lambda _: False))
        return [{"type": "data-message", "data": message, "transient": True} for message in shown]


class _Asking(NamedTuple):
    """Whose versions one query asks for."""

    loop: asyncio.AbstractEventLoop
    context: ThreadContext | None
    using: str
    interval: float


_asked: dict[_Asking, tuple[set[int], asyncio.Task[dict[int, int]]]] = {}
"""The queries that are due, with the keys of conversations that are added until then."""


async def watched(watching: Watching) -> AsyncGenerator[str, None]:
    """Yield the events of what each look of *watching* finds, until the last one, with comments during silence."""
    context, silent_since, ends = current.get(), time.monotonic(), time.monotonic() + MAX_SECONDS
    while True:
        with in_background(context):  # not around the events: who reads them has a context of their own
            found = await in_thread(watching.look)
        if found.chunks:
            silent_since = time.monotonic()
            yield "".join(map(encode, found.chunks))
        version: int | None = watching.version
        while not found.is_last and version == watching.version and time.monotonic() < ends:
            if time.monotonic() - silent_since >= PING_AFTER:
                silent_since = time.monotonic()
                yield PING
            version = await _next_version(watching, context, found.interval)
        if found.is_last or time.monotonic() >= ends:
            yield DONE
            return


async def _next_version(watching: Watching, context: ThreadContext | None, interval: float) -> int | None:
    """Return the version of the conversation in so many seconds or earlier, asked together with those of others."""
    asking = _Asking(asyncio.get_running_loop(), context, watching.using, interval)
    if asking not in _asked:
        _asked[asking] = set(), asyncio.create_task(_ask(asking))
    keys, query = _asked[asking]
    keys.add(watching.key)
    return (await asyncio.shield(query)).get(watching.key)  # others wait for it, too


async def _ask(asking: _Asking) -> dict[int, int]:
    try:
        await asyncio.sleep(asking.interval)
    finally:
        keys, _ = _asked.pop(asking)
    with in_background(asking.context):
        return await in_thread(_versions, asking.using, list(keys))


def _versions(using: str, keys: list[int]) -> dict[int, int]:
    rows = Conversation.objects.using(using)
    return dict(pair for part in in_parts(keys, 500) for pair in rows.filter(pk__in=part).values_list("pk", "version"))
