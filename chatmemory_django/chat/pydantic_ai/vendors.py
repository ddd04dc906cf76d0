"""The rules of the vendors that pydantic-ai knows."""

from __future__ import annotations

from pydantic_ai.models import Model, parse_model_id

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
    rules_of,
)

VENDORS = {
    "anthropic": ANTHROPIC,
    "azure": OPENAI,
    "azure-responses": OPENAI_RESPONSES,
    "bedrock": BEDROCK,
    "cohere": OPEN_MODEL,
    "deepseek": DEEPSEEK,
    "google": GEMINI,
    "google-cloud": GEMINI,
    "google-gla": GEMINI,
    "google-vertex": GEMINI,
    "mistral": MISTRAL,
    "moonshotai": MOONSHOT,
    "ollama": OPEN_MODEL,
    "openai": OPENAI_RESPONSES,
    "openai-chat": OPENAI,
    "openai-responses": OPENAI_RESPONSES,
    "vllm": OPEN_MODEL,
}
"""The profiles, by the name before the colon. pydantic-ai asks ``openai:`` for responses."""


def rules_for(model: str | Model) -> Rules:
    """Return the profile of *model*, or of its name."""
    if isinstance(model, Model):
        has_chat = model.system == "openai" and "Responses" not in type(model).__name__
        return _of("openai-chat" if has_chat else model.system, model.model_name, model.base_url)
    vendor, name = parse_model_id(model)
    return _of(vendor or "", name, None)


def _of(vendor: str, name: str, base_url: str | None) -> Rules:
    if vendor.startswith("fallback:"):  # whichever answers has to accept it
        return STRICTEST
    if vendor == "openai-chat" and base_url is not None:  # a server that has OpenAI's API
        return rules_of(name, base_url)
    return VENDORS.get(vendor) or rules_of(name, base_url)
