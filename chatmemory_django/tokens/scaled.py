"""Token counting for models whose tokenizer is not public: another estimator's counts, times a factor."""

from __future__ import annotations

import math
from collections.abc import Iterable

from chatmemory_django.messages import ChatMessage
from chatmemory_django.tokens.openai import OpenAiTokenCountEstimator


class ScaledTokenCountEstimator:
    """
    Counts like ``OpenAiTokenCountEstimator(model_name)``, times *factor*, rounded up.

    The factor is fixed, and part of the estimator's ``name``: counts are stored with the messages, and one that
    adjusted itself would make all of them stale.

    Raises:
        TypeError: *model_name* is not a str, or *factor* not a number.
        ValueError: No encoding is known for *model_name*, or *factor* is not above 0.

    """

    def __init__(self, model_name: str, factor: float) -> None:
        if isinstance(factor, bool) or not isinstance(factor, int | float):
            raise TypeError(f"factor must be a number, such as 1.15, not {factor!r}.")
        if not (math.isfinite(factor) and factor > 0):
            raise ValueError(f"factor must be above 0, such as 1.15, not {factor!r}.")
        self.factor = factor
        self._estimator = OpenAiTokenCountEstimator(model_name)
        self.name = f"{self._estimator.name}*{factor!r}"
        self.tokens_per_list = self._scaled(self._estimator.tokens_per_list)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._estimator.model_name!r}, {self.factor!r})"

    def estimate_token_count_in_text(self, text: str) -> int:
        """Return the number of tokens in *text*."""
        return self._scaled(self._estimator.estimate_token_count_in_text(text))

    def estimate_token_count_in_message(self, message: ChatMessage) -> int:
        """Return the number of tokens in *message*."""
        return self._scaled(self._estimator.estimate_token_count_in_message(message))

    def estimate_token_count_in_messages(self, messages: Iterable[ChatMessage]) -> int:
        """Return the number of tokens in *messages*: ``tokens_per_list`` and the sum of their tokens."""
        return self.tokens_per_list + sum(map(self.estimate_token_count_in_message, messages))

    def _scaled(self, count: int) -> int:
        return math.ceil(count * self.factor)
