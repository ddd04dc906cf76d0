"""What is sent to a model, made fit for its vendor: ``rules`` are what vendors accept, ``fitting`` applies them."""

from chatmemory_django.chat.outgoing.fitting import Change, Changed, Outgoing, as_object, for_vendor, reasoning_of
from chatmemory_django.chat.outgoing.rules import (
    ANTHROPIC,
    BEDROCK,
    DEEPSEEK,
    GEMINI,
    MISTRAL,
    MOONSHOT,
    OPEN_MODEL,
    OPENAI,
    OPENAI_RESPONSES,
    STRICTEST,
    Rules,
    System,
    Words,
    rules_of,
)

__all__ = [
    "ANTHROPIC",
    "BEDROCK",
    "DEEPSEEK",
    "GEMINI",
    "MISTRAL",
    "MOONSHOT",
    "OPENAI",
    "OPENAI_RESPONSES",
    "OPEN_MODEL",
    "STRICTEST",
    "Change",
    "Changed",
    "Outgoing",
    "Rules",
    "System",
    "Words",
    "as_object",
    "for_vendor",
    "reasoning_of",
    "rules_of",
]
