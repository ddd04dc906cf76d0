"""The titles of conversations, which their first answers give them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from asgiref.sync import async_to_sync

from chatmemory_django import operations
from chatmemory_django.chat.threads import araisable
from chatmemory_django.core.limits import MAX_TITLE_LENGTH
from chatmemory_django.core.serving import serving
from chatmemory_django.core.shortening import title_of
from chatmemory_django.db.threads import in_slow_thread, in_thread
from chatmemory_django.memory import ChatMemory
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.private import to_log
from chatmemory_django.stores.django import DjangoChatMemoryStore

logger = logging.getLogger(__name__)

TitleFunction: TypeAlias = Callable[[UserMessage, AiMessage], str | Awaitable[str | None] | None]
"""Returns the title for a question and its answer; a blank one, or None, gives none."""


def first_words(question: UserMessage, answer: AiMessage) -> str:
    """Return the first words of *question* or, if it has only files, of *answer*."""
    return title_of(question) or title_of(answer)


def entitle(memory: ChatMemory, question: UserMessage, answer: AiMessage, function: TitleFunction) -> None:
    """Give the conversation of *memory* the title that *function* returns, unless it has one. Failures are logged."""
    try:
        with serving(memory):
            title = function(question, answer)
            title = async_to_sync(araisable)(title) if inspect.isawaitable(title) else title
        _put(memory, title)
    except Exception as exc:
        logger.exception(FAILURE, memory.id, exc_info=to_log(exc))


async def aentitle(memory: ChatMemory, question: UserMessage, answer: AiMessage, function: TitleFunction) -> None:
    """See ``entitle``. A synchronous *function* is called in another thread."""
    try:
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
        with serving(memory):
            title = function(question, answer) if is_async else await in_slow_thread(function, question, answer)
            title = await araisable(title) if inspect.isawaitable(title) else title
        await in_thread(_put, memory, title)
    except Exception as exc:
        logger.exception(FAILURE, memory.id, exc_info=to_log(exc))


FAILURE = "The conversation %r got no title."


def _put(memory: ChatMemory, title: object) -> None:
    if not isinstance(title, str | None):
        raise TypeError(f"A title must be a str or None, not {type(title).__name__}.")
    title = (title or "").strip()[:MAX_TITLE_LENGTH]
    if title and isinstance(memory.store, DjangoChatMemoryStore):
        operations.entitle(memory.store.conversations(), str(memory.id), title)
