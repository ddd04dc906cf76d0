"""Estimators that count words, as in the recorded runs."""

import re
from collections.abc import Iterable

from chatmemory_django.codec import message_to_json
from chatmemory_django.core.media import without_files
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    CustomMessage,
    SystemMessage,
    TextContent,
)


def words(text: str | None) -> int:
    return len(re.findall(r"[^ \t\n\r\f]+", text or ""))


class Words:
    """A plain estimator: three methods, without a promise about how the counts of a list add up."""

    def estimate_token_count_in_text(self, text: str) -> int:
        return words(text)

    def estimate_token_count_in_message(self, message: ChatMessage) -> int:
        if isinstance(message, CustomMessage):
            return 3
        if isinstance(message, SystemMessage):
            return 3 + words(message.text)
        if isinstance(message, AiMessage):
            calls = message.tool_execution_requests
            return 3 + words(message.text) + sum(words(call.name) + words(call.arguments) + 2 for call in calls)
        return 3 + sum(words(content.text) for content in message.contents if isinstance(content, TextContent))

    def estimate_token_count_in_messages(self, messages: Iterable[ChatMessage]) -> int:
        return 3 + sum(map(self.estimate_token_count_in_message, messages))


class AdditiveWords(Words):
    """An estimator whose counts can be stored and added up."""

    name = "words"
    tokens_per_list = 3


class Joint(Words):
    """An estimator that counts a list as more than the sum of its messages."""

    def estimate_token_count_in_messages(self, messages: Iterable[ChatMessage]) -> int:
        messages = list(messages)
        return super().estimate_token_count_in_messages(messages) + 2 * max(len(messages) - 1, 0)


class AdditiveLetters(Words):
    """Another estimator whose counts can be stored, under a different name."""

    name = "letters"
    tokens_per_list = 1

    def estimate_token_count_in_message(self, message: ChatMessage) -> int:
        # Files count nothing, as they are not there when the messages of a row are recounted.
        if isinstance(message, CustomMessage):
            return 4 + len(message.text) // 10
        return len(message_to_json(without_files(message, lambda _: ""))) // 10

    def estimate_token_count_in_messages(self, messages: Iterable[ChatMessage]) -> int:
        return 1 + sum(map(self.estimate_token_count_in_message, messages))


WORDS = Words()
ADDITIVE_WORDS = AdditiveWords()
ADDITIVE_LETTERS = AdditiveLetters()
JOINT = Joint()
