"""The memories of the example site's conversations."""

from collections.abc import Mapping
from typing import Any

from chatmemory_django.core.limits import is_uuid
from chatmemory_django.messages import ChatMessage, SystemMessage, UserMessage
from example_project import facts
from example_project.llm import IS_REAL, estimator, model

SHIPPED: Mapping[str, Any] = {
    "CLASS": "chatmemory_django.memory.TokenWindowChatMemory",
    "OPTIONS": {"max_tokens": 4000, "token_count_estimator": "gpt-4o-mini"},
}

# Parrot's answers are short: it evicts after about ten messages, and summarizes a few later. Real models write more.
SIZES = (
    {"max_tokens": 4000, "evict_to": 3000, "summary_tokens": 400, "after_tokens": 1000}
    if IS_REAL
    else {"max_tokens": 240, "summary_tokens": 60, "after_tokens": 80}
)
CHAT: Mapping[str, Any] = {
    "CLASS": "chatmemory_django.memory.SummarizingChatMemory",
    "OPTIONS": {
        **SIZES,
        "summarize": "example_project.memories.summarize",
        "token_count_estimator": estimator,
        "always_keep_system_message_first": True,
        "repair_tools": True,
    },
}


def memory_of(memory_id: object) -> Mapping[str, Any]:
    """Return the settings of a memory: a small window for chats, to show evictions, and a larger one for the demo."""
    return CHAT if is_uuid(str(memory_id)) else SHIPPED


def summarize(previous: str | None, messages: list[ChatMessage]) -> str:
    """Return the facts in *previous* and *messages*; with a real model, return its summary."""
    if IS_REAL:
        from chatmemory_django.chat.costs.recording import RecordedChatModel  # not before models are loaded

        asked = SystemMessage(
            "Summarize the conversation in at most 150 words, for an assistant that will continue it: who the "
            "user is, what the user wants, and the results so far. The summary until now is: " + (previous or "(none)")
        )
        transcript = "\n".join(f"{message.type}: {facts.text_of(message)}" for message in messages)
        recorded = RecordedChatModel(model, "summary")
        return recorded.chat(asked, UserMessage(transcript)).ai_message.text or ""
    summary = facts.summarize(previous, messages)
    while (
        summary.facts
        and estimator.estimate_token_count_in_message(SystemMessage(summary.text)) > SIZES["summary_tokens"]
    ):
        del summary.facts[next(iter(summary.facts))]  # the oldest fact
    return summary.text
