"""A memory that summarizes what leaves it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, Unpack

from chatmemory_django.memory import Limit, MemoryOptions, TokenWindowChatMemory
from chatmemory_django.messages import BLANK, ChatMessage, SystemMessage
from chatmemory_django.pending import Pending
from chatmemory_django.stores.in_process import SingleSlotChatMemoryStore
from chatmemory_django.tokens import TokenCountEstimator
from chatmemory_django.windows import Window

logger = logging.getLogger(__name__)

FAILURE = "What has left memory %r could not be summarized; it is taken up again the next time."

Summarize: TypeAlias = (
    Callable[[str | None, list[ChatMessage]], str] | Callable[[str | None, list[ChatMessage]], Awaitable[str]]
)
"""A function from the summary until now, if there is one, and the messages that it does not cover, to the next one."""


class SummarizingChatMemory(TokenWindowChatMemory):
    """
    A token window in which a summary of what has left it stands behind the system message.

    Messages leave as they do in any token window. Once those that no summary covers have *after_tokens* tokens,
    *summarize* is given them and the summary until now, and its answer becomes the new one: of *summary_tokens* at
    most, counted towards *max_tokens*, no part of the history. It is called with no lock held, after an ``add`` or a
    turn has evicted messages and, within a transaction, once that is committed; then an error of it is logged. Without
    *summarize_after_add*, it is called by ``summarize`` alone.

    One call takes up at most 256 messages, and no more tokens than *max_tokens* or *after_tokens*, whichever is larger;
    the next call takes up the next ones. System messages are not summarized. The store must keep the history.
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
        if options.get("store") is None:
            options["store"] = SingleSlotChatMemoryStore(options.get("id", "default"), keep_history=True)
        super().__init__(max_tokens=max_tokens, token_count_estimator=token_count_estimator, **options)
        self.summarizer = summarize
        self.summary_tokens = summary_tokens
        self.after_tokens = after_tokens
        self.summarize_after_add = summarize_after_add
        if not self.store.keep_history:
            raise ValueError(
                f"store keeps no messages that have left the memory, being {self.store!r}, so there is nothing to "
                "summarize; give one that keeps the history."
            )
        self._summary_limit(self.window())
        self._limit("after_tokens", after_tokens)

    def summarize(self) -> bool:
        """
        Summarize what has left the memory, if it has enough tokens; returns whether a new summary stands.

        It does not if there is too little to summarize, or if meanwhile another summary was put there, or what this one
        covers was cleared, taken out of the history or rewound to. Call it outside of transactions, where nobody has to
        wait for what *summarize* takes.

        Raises:
            TypeError: *summarize* is asynchronous, or returns no str.
            ValueError: The summary is blank, too large, or nothing that can be stored.

        """
        if self._is_asynchronous:
            raise TypeError("summarize is asynchronous; use asummarize(), aadd() and asynchronous turns.")
        pending = self._pending()
        return pending is not None and self._put(pending, self.summarizer(pending.previous, pending.messages))

    async def asummarize(self) -> bool:
        """See ``summarize``. The function may be asynchronous here; another is called in a thread of its own."""
        pending = await self.store.run(self._pending)
        if pending is None:
            return False
        answer: Any
        if self._is_asynchronous:
            answer = await self.summarizer(pending.previous, pending.messages)  # type: ignore[misc]
        else:
            answer = await asyncio.to_thread(self.summarizer, pending.previous, pending.messages)
        return await self.store.run(self._put, pending, answer)

    @property
    def _is_asynchronous(self) -> bool:
        function: Any = self.summarizer
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

    def _pending(self) -> Pending | None:
        """What is worth to be summarized now."""
        window, after = self.window(), self._limit("after_tokens", self.after_tokens)
        pending = self.store.read_pending(self.id, window, max(window.limit, after))
        if pending is None or not (pending.has_more or pending.tokens >= after):
            return None
        return pending

    def _put(self, pending: Pending, answer: object) -> bool:
        """Make *answer* the summary, if it is one."""
        if not isinstance(answer, str):
            raise TypeError(f"summarize must return a str, not {type(answer).__name__}.")
        if not answer.strip(BLANK):
            raise ValueError("summarize returned a blank text; return what is to stand for the messages.")
        window, summary = self.window(), SystemMessage(answer)
        size, limit = window.cost(summary), self._summary_limit(window)
        if size > limit:
            raise ValueError(f"summarize returned {size} tokens, but summary_tokens allows for {limit}.")
        return self.store.put_summary(self.id, pending, summary, window)

    def _summary_limit(self, window: Window) -> int:
        limit = self._limit("summary_tokens", self.summary_tokens)
        if limit >= window.limit:
            raise ValueError(f"summary_tokens must be below max_tokens, which is {window.limit}, not {limit}.")
        return limit

    def _after_eviction(self) -> None:
        if self.summarize_after_add:
            self.store.after_commit(self._try_to_summarize)

    async def _aafter_eviction(self) -> None:
        if self.summarize_after_add:
            try:
                await self.asummarize()
            except Exception:
                logger.exception(FAILURE, self.id)

    def _try_to_summarize(self) -> None:
        try:
            self.summarize()
        except Exception:
            logger.exception(FAILURE, self.id)
