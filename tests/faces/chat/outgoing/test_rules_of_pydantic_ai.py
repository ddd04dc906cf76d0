"""The rows of the table that concern PydanticAiChatModel alone."""

import pytest
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from chatmemory_django.chat.model import ChatRequest
from chatmemory_django.chat.openai import OpenAiChatModel
from chatmemory_django.chat.outgoing import ANTHROPIC, MISTRAL, OPEN_MODEL, WITHOUT_TOOLS
from chatmemory_django.chat.pydantic_ai import PydanticAiChatModel
from chatmemory_django.chat.pydantic_ai.requests import to_arguments
from chatmemory_django.chat.pydantic_ai.vendors import expressible, rules_for
from chatmemory_django.core.shown import VENDOR_ATTRIBUTE
from chatmemory_django.messages import AiMessage
from tests.faces.chat.outgoing.test_rules import NOW, A, Q, call, calling, result

CLAUDE = AnthropicModel("claude-sonnet-4-6", provider=AnthropicProvider(api_key="key"))
THINKING = {"type": "enabled", "budget_tokens": 1024}


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        ("mistral:mistral-large-latest", set()),
        ("bedrock:us.amazon.nova-pro-v1:0", {"image"}),
        ("bedrock:us.anthropic.claude-sonnet-5-5", {"image", "pdf"}),
    ],
)
def test_files_of_results_by_the_vendors_own_client(model, kinds):
    assert rules_for(model).result_files == kinds


def test_files_of_results_are_notes_for_rules_of_a_site_too():
    assert PydanticAiChatModel("test", rules=MISTRAL).rules.result_files == set()
    assert OpenAiChatModel("any", rules=MISTRAL).rules.result_files == MISTRAL.result_files


@pytest.mark.parametrize(
    ("name", "rules"),
    [("ollama:qwen3:8b", OPEN_MODEL), ("ollama:phi4", OPEN_MODEL), ("ollama:gemma3:27b", WITHOUT_TOOLS)],
)
def test_ollama_has_open_models(name, rules):
    assert rules_for(name) == expressible(rules)


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        ({"anthropic_thinking": THINKING, "max_tokens": 9}, {"max_tokens": 9}),
        ({"thinking": "low"}, {"thinking": False}),
        (
            {"bedrock_additional_model_requests_fields": {"thinking": THINKING, "top_k": 1}},
            {"bedrock_additional_model_requests_fields": {"top_k": 1}},
        ),
        ({"max_tokens": 9}, {"max_tokens": 9}),
    ],
)
def test_claude_does_not_think_behind_the_calls_of_another(settings, sent):
    def settings_for(*messages, model=CLAUDE):
        arguments = to_arguments(ChatRequest(messages=messages), model, settings, ANTHROPIC)
        return {name: value for name, value in arguments["model_settings"].items() if "_cache_" not in name}

    kept = {
        "kind": "response",
        "provider_name": "anthropic",
        "canonical_system": "anthropic",
        "parts": [
            {"part_kind": "thinking", "content": "Hm.", "signature": "c2ln", "provider_name": "anthropic"},
            {"part_kind": "tool-call", "tool_name": "add", "args": "{}", "tool_call_id": "abcdefghi"},
        ],
    }
    own = AiMessage(None, "Hm.", [call()], {VENDOR_ATTRIBUTE: kept})

    assert settings_for(Q, calling(call()), result()) == sent
    assert settings_for(Q, A, own, result(), NOW) == sent
    assert settings_for(Q, own, result()) == settings
    assert settings_for(Q, calling(call()), result(), A, NOW) == settings
    assert settings_for(Q, calling(call()), result(), model=FunctionModel(print)) == settings
