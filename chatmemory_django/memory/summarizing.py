"""A memory that summarizes the messages that leave it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, Unpack

from chatmemory_django import observing
from chatmemory_django.core.pending import Pending
from chatmemory_django.core.serving import serving
from chatmemory_django.core.windows import Window
from chatmemory_django.memory.base import Limit, MemoryOptions
from chatmemory_django.memory.windows import TokenWindowChatMemory
from chatmemory_django.messages import BLANK, ChatMessage, SystemMessage
from chatmemory_django.tokens import TokenCountEstimator

logger = logging.getLogger(__package__)

FAILURE = "The messages that left memory %r could not be summarized; the next summary will cover them."

Summarize: TypeAlias = (
    Callable[[str | None, list[ChatMessage]], str] | Callable[[str | None, list[ChatMessage]], Awaitable[str]]
)
"""
A function that takes the current summary, or None, and the messages that it does not cover, and returns a new summary.
"""


class SummarizingChatMemory(TokenWindowChatMemory):
    """
    A token window with a summary of the messages that have left it, after the system message.

    Messages leave as in any token window. Once those not covered by a summary have *after_tokens* tokens, *summarize*
    is called with them and the current summary, and returns the new one: it may have at most *summary_tokens*, counts
    towards *max_tokens* and is not part of the history. *summarize* is called without holding a lock, after an ``add``
    or a turn has evicted messages and, inside a transaction, after the commit; its errors are then logged. With
    ``summarize_after_add=False``, only the method ``summarize`` calls it.

    One call covers at most 256 messages, and no more tokens than *max_tokens* or *after_tokens*, whichever is larger;
    the next call covers the next ones. A message, or a call with its results, that is larger is shortened. System
    messages are not summarized. The store must keep the history.

    After the second failure in a row, *summarize* is called again only after a pause of 4 more messages, then of 8, and
    so on up to 256, and gets half of the tokens, then a quarter, then an eighth. After the fifth, the first messages
    are left out. The method ``summarize`` need not wait.
    """

    def __init__(
        self,
        *,
        max_tokens: Limit,
        token_count_estimator: TokenCountEstimator,
        summarize: Summarize,
        summary_tokens: Limit,
        after_tokens: Limit,
        summarize_after_add: bool = True,
        **options: Unpack[MemoryOptions],
    ) -> None:
        if not callable(summarize):
            raise TypeError(f"summarize must be a function, not {type(summarize).__name__}.")
        super().__init__(max_tokens=max_tokens, token_count_estimator=token_count_estimator, **options)
        self.summarizer = summarize
        self.summary_tokens = summary_tokens
        self.after_tokens = after_tokens
        self.summarize_after_add = summarize_after_add
        if not self.store.keep_history:
            raise ValueError(
                "store must keep the history, as DjangoChatMemoryStore(keep_history=True) does, or there is nothing to "
                f"summarize; {self.store!r} does not."
            )
        self._summary_limit(self.window())
        self._limit("after_tokens", after_tokens)

    def summarize(self, *, waits: bool = False) -> bool:
        """
        Summarize the messages that have left the memory, if they have enough tokens; return whether there is a new
        summary.

        There is none if there is too little to summarize, or if in the meantime another summary was stored, or the
        messages that this one covers were cleared, removed from the history or rewound past; nor, if it *waits*, during
        the pause after failures. Call it outside of transactions, so that no one waits for *summarize*, and failures
        are counted.

        Raises:
            TypeError: *summarize* is asynchronous, or does not return a str.
            ValueError: The summary is blank, too large, or cannot be stored.

        """
        if self._is_asynchronous:
            raise TypeError("summarize is asynchronous; use asummarize(), aadd() and asynchronous turns instead.")
        pending = self._pending(waits=waits)
        if pending is None:
            return False
        try:
            with serving(self), observing.Operation("summarize"):
                answer = self.summarizer(pending.previous, pending.messages)
            is_stored = self._put(pending, answer)
        except Exception:
            self.store.put_failure(self.id, pending)
            raise
        if not is_stored:
            self.store.put_failure(self.id, pending)
        return is_stored

    async def asummarize(self, *, waits: bool = False) -> bool:
        """See ``summarize``. The function may be asynchronous here; a synchronous one is called in another thread."""
        pending = await self.store.run(self._pending, waits=waits)
        if pending is None:
            return False
        answer: Any
        try:
            with serving(self), observing.Operation("summarize"):
                if self._is_asynchronous:
                    answer = await self.summarizer(pending.previous, pending.messages)  # type: ignore[misc]
                else:
                    answer = await self.store.run_slow(self.summarizer, pending.previous, pending.messages)
            is_stored = await self.store.run(self._put, pending, answer)
        except Exception:
            await self.store.run(self.store.put_failure, self.id, pending)
            raise
        if not is_stored:
            await self.store.run(self.store.put_failure, self.id, pending)
        return is_stored

    @property
    def _is_asynchronous(self) -> bool:
        function: Any = self.summarizer
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

    def _pending(self, *, waits: bool) -> Pending | None:
        """Return what to summarize now; None if there is too little, or if it *waits* after failures."""
        window, after = self.window(), self._limit("after_tokens", self.after_tokens)
        pending = self.store.read_pending(self.id, window, max(window.limit, after), waits=waits)
        if pending is None or not (pending.has_more or pending.tokens >= after):
            return None
        return pending

    def _put(self, pending: Pending, answer: object) -> bool:
        """Store *answer* as the summary, if it is valid."""
        if not isinstance(answer, str):
            raise TypeError(f"summarize must return a str, not {type(answer).__name__}.")
        if not answer.strip(BLANK):
            raise ValueError("summarize returned a blank text; it must return a summary of the messages.")
        window, summary = self.window(), SystemMessage(answer)
        size, limit = window.cost(summary), self._summary_limit(window)
        if size > limit:
            raise ValueError(f"summarize returned {size} tokens, but summary_tokens is {limit}.")
        return self.store.put_summary(self.id, pending, summary, window)

    def _summary_limit(self, window: Window) -> int:
        limit = self._limit("summary_tokens", self.summary_tokens)
        name, most = ("max_tokens", window.limit) if window.evict_to is None else ("evict_to", window.evict_to)
        if limit >= most:
            raise ValueError(f"summary_tokens must be less than {name}, which is {most}, not {limit}.")
        return limit

    def _after_eviction(self) -> None:
        if self.summarize_after_add:
            self.store.after_commit(self._try_to_summarize)

    async def _aafter_eviction(self) -> None:
        if self.summarize_after_add:
            try:
                await self.asummarize(waits=True)
            except Exception:
                logger.exception(FAILURE, self.id)

    def _try_to_summarize(self) -> None:
        try:
            self.summarize(waits=True)
        except Exception:
            logger.exception(FAILURE, self.id)
