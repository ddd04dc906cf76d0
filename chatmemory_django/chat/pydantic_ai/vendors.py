"""The rules of the vendors that pydantic-ai knows."""

from __future__ import annotations

from dataclasses import replace

from pydantic_ai.models import Model, parse_model_id

from chatmemory_django.chat.outgoing.rules import (
    ANTHROPIC,
    BEDROCK,
    DEEPSEEK,
    GEMINI,
    KINDS,
    MISTRAL,
    MOONSHOT,
    OPEN_MODEL,
    OPENAI,
    OPENAI_RESPONSES,
    STRICTEST,
    Rules,
    rules_of,
)
from chatmemory_django.formats.openai_files import AUDIO_TYPES

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
    "openai": OPENAI_RESPONSES,
    "openai-chat": OPENAI,
    "openai-responses": OPENAI_RESPONSES,
}
"""The profiles, by the name before the colon. pydantic-ai asks ``openai:`` for responses."""


FILES = {
    "cohere": frozenset[str](),
    "groq": frozenset({"image"}),
    "huggingface": frozenset({"image"}),
    "xai": frozenset({"image", "pdf"}),
    "openrouter": KINDS,
}
"""The kinds of files that pydantic-ai can send to a vendor, where they are not ``CHAT_FILES``."""

CHAT_FILES = KINDS - {"video"}
"""The kinds of files that pydantic-ai can send by OpenAI's chat completions."""


def rules_for(model: str | Model) -> Rules:
    """Return the profile of *model*, or of its name, as ``expressible``."""
    return expressible(_rules_for(model), model)


def expressible(rules: Rules, model: str | Model) -> Rules:
    """
    Return *rules* with the vendor of *model*, and without what pydantic-ai cannot express: it puts files of results
    into a user's message behind, and raises an error for files that a vendor's API has no words for.
    """
    vendor = (model.system if isinstance(model, Model) else parse_model_id(model)[0]) or ""
    rules = replace(rules, vendor=rules.vendor or vendor)
    if vendor in FILES or _has_chat_completions(model, vendor):
        rules = replace(
            rules,
            files=rules.files & FILES.get(vendor, CHAT_FILES),
            linked=rules.linked - {"audio"},  # it is downloaded, and may then be of any type
            audio_types=frozenset(AUDIO_TYPES.values()),
        )
    return rules if rules.user_after_result else replace(rules, result_files=frozenset())


def _has_chat_completions(model: str | Model, vendor: str) -> bool:
    """Return whether *model* is, or may be, one of OpenAI's chat completions; a site's own class is not."""
    if not isinstance(model, Model):
        return bool(vendor) and not vendor.startswith("google")
    made = getattr(model, "wrapped", model)
    return vendor.startswith("fallback:") or any(each.__name__ == "OpenAIChatModel" for each in type(made).__mro__)


def _rules_for(model: str | Model) -> Rules:
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
    if vendor in {"ollama", "vllm"}:  # with it in front, each name is at least an open model's
        return rules_of(f"{vendor}/{name}")
    if vendor == "bedrock" and "claude" in name:
        return replace(BEDROCK, result_files=BEDROCK.files)
    return VENDORS.get(vendor) or rules_of(name, base_url)
