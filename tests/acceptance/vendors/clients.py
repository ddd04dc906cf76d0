"""The models of a site that ask the vendors, each by the vendor's own client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.bedrock import BedrockConverseModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.mistral import MistralModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.bedrock import BedrockProvider
from pydantic_ai.providers.deepseek import DeepSeekProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.mistral import MistralProvider
from pydantic_ai.providers.moonshotai import MoonshotAIProvider
from pydantic_ai.providers.openai import OpenAIProvider

from chatmemory_django.chat.model import ChatModel
from chatmemory_django.chat.openai import OpenAiChatModel
from chatmemory_django.chat.outgoing import rules_of
from chatmemory_django.chat.pydantic_ai import PydanticAiChatModel
from tests.acceptance.vendors.rules import VENDORS
from tests.acceptance.vendors.server import Vendors

KEY = "key-of-the-site"

THINKING = {"type": "enabled", "budget_tokens": 1024}
"""The mode of Claude in which a loop of tools has to begin with what was thought."""

OPEN = {
    "qwen3": "Qwen/Qwen3-32B",
    "qwen3.6": "Qwen/Qwen3.6-35B-A3B",
    "qwen3.8": "Qwen/Qwen3.8-27B",
    "gemma3": "google/gemma-3-27b-it",
    "gemma4": "google/gemma-4-31B-it",
    "llama3.1": "meta-llama/Llama-3.1-8B-Instruct",
    "gpt-oss": "openai/gpt-oss-120b",
    "glm4": "zai-org/GLM-4.5",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "cohere": "CohereLabs/aya-expanse-32b",
}
"""The names of open models, as vLLM and SGLang know them."""

BY_OPENAI = {
    "openai": "gpt-5.2",
    "mistral": "mistral-large-latest",
    "deepseek": "deepseek-reasoner",
    "moonshot": "kimi-k2-thinking",
    **OPEN,
}
"""The names of models that ``OpenAiChatModel`` asks."""


def by_openai(vendor: str, vendors: Vendors) -> ChatModel:
    """Return the site's model of *vendor* that uses OpenAI's client; the site knows the files of an open model."""
    name, url = BY_OPENAI[vendor], vendors.url(vendor, "/v1")
    rules = replace(rules_of(name), files=VENDORS[vendor].files) if vendor in OPEN else None
    return OpenAiChatModel(name, base_url=url, api_key=KEY, max_retries=0, rules=rules)


def by_pydantic_ai(vendor: str, vendors: Vendors) -> ChatModel:
    """Return the site's model of *vendor* that uses the vendor's client, through pydantic-ai."""
    once: dict[str, Any] = {} if vendor.startswith("bedrock") else {"max_retries": 0}  # its own client has it
    settings: dict[str, Any] = {
        "anthropic": {"anthropic_thinking": THINKING, "max_tokens": 2048},
        "bedrock-claude": {"bedrock_additional_model_requests_fields": {"thinking": THINKING}},
        "responses": {"openai_reasoning_effort": "low", "openai_store": False},
    }
    if vendor in OPEN:
        rules = replace(rules_of(OPEN[vendor]), files=VENDORS[vendor].files)
        provider = OpenAIProvider(api_key=KEY, base_url=vendors.url(vendor, "/v1"))
        return PydanticAiChatModel(OpenAIChatModel(OPEN[vendor], provider=provider), rules=rules, max_retries=0)
    model = BY_PYDANTIC_AI[vendor](vendors.url(vendor))
    return PydanticAiChatModel(model, **once, **settings.get(vendor, {}))


def _anthropic(url: str) -> Model:
    return AnthropicModel("claude-sonnet-4-6", provider=AnthropicProvider(api_key=KEY, base_url=url))


def _gemini(url: str) -> Model:
    return GoogleModel("gemini-3.8-flash", provider=GoogleProvider(api_key=KEY, base_url=url))


def _mistral(url: str) -> Model:
    return MistralModel("mistral-large-latest", provider=MistralProvider(api_key=KEY, base_url=url))


def _openai(url: str) -> Model:
    return OpenAIChatModel("gpt-5.2", provider=OpenAIProvider(api_key=KEY, base_url=f"{url}/v1"))


def _responses(url: str) -> Model:
    return OpenAIResponsesModel("gpt-5.2", provider=OpenAIProvider(api_key=KEY, base_url=f"{url}/v1"))


def _deepseek(url: str) -> Model:
    provider = DeepSeekProvider(api_key=KEY)  # it has one address alone
    provider.client.base_url = f"{url}/v1"
    return OpenAIChatModel("deepseek-reasoner", provider=provider)


def _moonshot(url: str) -> Model:
    provider = MoonshotAIProvider(api_key=KEY, base_url=f"{url}/v1")
    return OpenAIChatModel("kimi-k2-thinking", provider=provider)


def _bedrock(name: str) -> Callable[[str], Model]:
    def make(url: str) -> Model:
        provider = BedrockProvider(
            base_url=url, region_name="us-east-1", aws_access_key_id=KEY, aws_secret_access_key=KEY
        )
        return BedrockConverseModel(name, provider=provider)

    return make


BY_PYDANTIC_AI: dict[str, Callable[[str], Model]] = {
    "openai": _openai,
    "responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "bedrock-claude": _bedrock("us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
    "bedrock-nova": _bedrock("us.amazon.nova-pro-v1:0"),
    "mistral": _mistral,
    "deepseek": _deepseek,
    "moonshot": _moonshot,
}

MODELS = [
    *((vendor, by_openai) for vendor in BY_OPENAI),
    *((vendor, by_pydantic_ai) for vendor in [*BY_PYDANTIC_AI, *OPEN]),
]
"""Each vendor with each way to ask it."""
