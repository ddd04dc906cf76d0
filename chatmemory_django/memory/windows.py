"""The memories of a window: the last messages, or those that have the last tokens."""

from __future__ import annotations

from typing import Unpack

from chatmemory_django.core.windows import Window
from chatmemory_django.memory.base import ChatMemory, Limit, MemoryOptions
from chatmemory_django.tokens import TokenCountEstimator


class MessageWindowChatMemory(ChatMemory):
    """The last *max_messages* messages, including the system message in front of them."""

    def __init__(
        self,
        *,
        max_messages: Limit,
        **options: Unpack[MemoryOptions],
    ) -> None:
        self.max_messages = max_messages
        super().__init__(**options)

    def window(self) -> Window:
        return self._window("max_messages", self.max_messages)


class TokenWindowChatMemory(ChatMemory):
    """
    The last messages that together have at most *max_tokens* tokens, as counted by *token_count_estimator*.

    Messages are kept whole: one that is larger than the limit is evicted at once, unless it is the system message.
    """

    def __init__(
        self,
        *,
        max_tokens: Limit,
        token_count_estimator: TokenCountEstimator,
        **options: Unpack[MemoryOptions],
    ) -> None:
        for method in ("in_text", "in_message", "in_messages"):
            if not callable(getattr(token_count_estimator, f"estimate_token_count_{method}", None)):
                given = type(token_count_estimator).__name__
                cure = (
                    " Settings take a model's name; here, write OpenAiTokenCountEstimator(…)." if given == "str" else ""
                )
                raise TypeError(
                    f"token_count_estimator, of type {given}, has no estimate_token_count_{method}().{cure}"
                )
        self.max_tokens = max_tokens
        self.token_count_estimator = token_count_estimator
        super().__init__(**options)

    def window(self) -> Window:
        return self._window("max_tokens", self.max_tokens, self.token_count_estimator)
