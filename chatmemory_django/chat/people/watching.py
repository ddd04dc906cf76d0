"""What is written in a conversation while a person answers there, for those who look on: its owner, and staff."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection
from typing import Any, NamedTuple

from chatmemory_django.chat.answers.ui_stream import DONE, encode
from chatmemory_django.chat.approvals.waiting import shown_approvals
from chatmemory_django.chat.people.answering import state_of
from chatmemory_django.chat.runs.answer import PING, PING_AFTER
from chatmemory_django.chat.ui_messages import message_sequence, to_ui_messages
from chatmemory_django.db.contexts import current
from chatmemory_django.db.threads import in_background, in_thread
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation

INTERVAL = 1.0
"""Seconds between two looks at the conversation."""

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


class Watching:
    """
    Looks at the conversation *key* in the database *using*, behind the message *after*, an id of a page or None.

    Of the messages, only those of *types* are shown, with ``shown`` as a ``UIMessage`` each.
    """

    def __init__(self, using: str, key: int, types: Collection[MessageType], after: str | None) -> None:
        self._rows = Conversation.objects.using(using).filter(pk=key)
        self._types = {MessageType.USER, MessageType.AI}.intersection(types)
        self._after = after
        self._last: int | None = None
        self._version = 0
        self._state: tuple[str, str] | None = None

    def look(self) -> Look:
        """Return what is new: who answers, if that has changed, and messages. The last one is when no person does."""
        conversation = self._rows.first()
        if conversation is None:
            return Look([], is_last=True)
        if self._last is None:
            self._last = self._begin(conversation)
        chunks: list[Chunk] = []
        if conversation.version != self._version:
            chunks = self._messages(conversation)
        if (state := (conversation.state, conversation.person)) != self._state:
            self._state = state
            chunks.append(handover(conversation))
        return Look(chunks, conversation.state == Conversation.State.ASSISTANT)

    def _begin(self, conversation: Conversation) -> int:
        """Return the sequence of the message that the page has seen last; without one, the newest."""
        if self._after is not None:
            number = message_sequence(self._after)
            known = {"client_message_id": self._after} if number is None else {"sequence": number}
            found = conversation.history(all_branches=True).filter(**known).values_list("sequence", flat=True).first()
            if found is not None:
                return found
        return conversation.next_sequence - 1

    def _messages(self, conversation: Conversation) -> list[Chunk]:
        history = conversation.history().filter(sequence__gt=self._last, type__in=self._types).defer("verbatim")
        rows = list(history.order_by("sequence")[:MAX_NEW])
        if len(rows) < MAX_NEW:
            self._version = conversation.version
        if rows:
            self._last = rows[-1].sequence
        shown = to_ui_messages(rows, shown_approvals(conversation, rows, lambda _: False))
        return [{"type": "data-message", "data": message, "transient": True} for message in shown]


async def watched(look: Callable[[], Look]) -> AsyncGenerator[str, None]:
    """Yield the events of what each *look* finds, until the last one, with comments during silence."""
    context, silent_since = current.get(), time.monotonic()
    while True:
        with in_background(context):  # not around the events: who reads them has a context of their own
            found = await in_thread(look)
        if found.chunks:
            silent_since = time.monotonic()
            yield "".join(map(encode, found.chunks))
        elif time.monotonic() - silent_since >= PING_AFTER:
            silent_since = time.monotonic()
            yield PING
        if found.is_last:
            yield DONE
            return
        await asyncio.sleep(INTERVAL)
