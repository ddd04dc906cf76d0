"""Token counting: how many tokens of a model's context a message takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from chatmemory_django.messages import ChatMessage
from chatmemory_django.tokens.openai import OpenAiTokenCountEstimator
from chatmemory_django.tokens.scaled import ScaledTokenCountEstimator

__all__ = [
    "AdditiveTokenCountEstimator",
    "OpenAiTokenCountEstimator",
    "ScaledTokenCountEstimator",
    "TokenCountEstimator",
]


class TokenCountEstimator(Protocol):
    """An object that counts tokens for a token window. Any object with these three methods is one."""

    def estimate_token_count_in_text(self, text: str) -> int:
        """Return the number of tokens in a plain text."""

    def estimate_token_count_in_message(self, message: ChatMessage) -> int:
        """Return the number of tokens in a message, including what a model needs around it."""

    def estimate_token_count_in_messages(self, messages: Iterable[ChatMessage]) -> int:
        """Return the number of tokens in a list of messages, which is not always the sum of its messages."""


@runtime_checkable
class AdditiveTokenCountEstimator(TokenCountEstimator, Protocol):
    """
    An estimator whose count of a list is ``tokens_per_list`` plus the counts of its messages, which never change.

    Its counts can be stored with the messages and added up later, so that reading a memory counts nothing again.
    """

    @property
    def name(self) -> str:
        """
        The name that is stored with each count: equal names guarantee equal counts. At most 64 characters; keep it
        short.
        """

    @property
    def tokens_per_list(self) -> int:
        """The number of tokens that a list takes in addition to its messages."""
