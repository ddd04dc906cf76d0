"""The rows of the table that concern PydanticAiChatModel alone."""

import pytest
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from chatmemory_django.chat.model import ChatRequest
from chatmemory_django.chat.openai import OpenAiChatModel
from chatmemory_django.chat.outgoing import (
    ANTHROPIC,
    GEMINI,
    MISTRAL,
    OPEN_MODEL,
    OPENAI,
    STRICTEST,
    WITHOUT_TOOLS,
    for_vendor,
)
from chatmemory_django.chat.pydantic_ai import PydanticAiChatModel
from chatmemory_django.chat.pydantic_ai.requests import to_arguments, to_messages
from chatmemory_django.chat.pydantic_ai.vendors import expressible, rules_for
from chatmemory_django.core.shown import VENDOR_ATTRIBUTE
from chatmemory_django.messages import (
    AiMessage,
    Audio,
    AudioContent,
    TextContent,
    UserMessage,
    Video,
    VideoContent,
)
from tests.faces.chat.outgoing.test_rules import NOW, A, Q, call, calling, result
from tests.faces.chat.server import ModelServer

CLAUDE = AnthropicModel("claude-sonnet-4-6", provider=AnthropicProvider(api_key="key"))
SEARCHED = {
    "kind": "response",
    "provider_name": "anthropic",
    "canonical_system": "anthropic",
    "parts": [
        {
            "part_kind": kind,
            "tool_name": "web_search",
            "tool_call_id": "srvtoolu_1",
            "provider_name": "anthropic",
            **rest,
        }
        for kind, rest in [
            ("builtin-tool-call", {"args": '{"query": "noon"}'}),
            ("builtin-tool-return", {"content": []}),
        ]
    ],
}
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
    "content",
    [
        VideoContent(Video(base64_data="AAAA", mime_type="video/mp4")),
        VideoContent(Video(url="https://example.com/a.mp4")),
        AudioContent(Audio(base64_data="T2dnUw==", mime_type="audio/ogg")),
        AudioContent(Audio(url="https://example.com/a.ogg")),
        AudioContent(Audio(url="https://example.com/a")),
    ],
)
@pytest.mark.parametrize("rules", [OPENAI, GEMINI, STRICTEST])
def test_files_that_chat_completions_cannot_express_are_notes(server: ModelServer, rules, content):
    server.answer({"content": "2."})
    model = OpenAIChatModel("any", provider=OpenAIProvider(api_key="key", base_url=server.url))
    chat_model = PydanticAiChatModel(model, rules=rules, max_retries=0)
    history = [(1, UserMessage([TextContent("Look!"), content])), (2, A), (3, NOW)]

    chat_model.chat(*for_vendor(history, chat_model.rules).messages)

    assert str(server.requests[-1].body["messages"]).count(" left out]") == 1


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        ("groq:llama-3.3-70b-versatile", {"image"}),
        ("cohere:command-a", set()),
        ("ollama:qwen3:8b", {"image", "audio", "pdf"}),
        ("openrouter:google/gemini-3-pro", {"image", "audio", "pdf", "video"}),
        ("google:gemini-3-pro", {"image", "audio", "pdf", "video"}),
        (FunctionModel(print), {"image", "audio", "pdf", "video"}),
    ],
)
def test_kinds_of_files_are_those_that_its_client_can_send(model, kinds):
    assert rules_for(model).files == kinds


@pytest.mark.parametrize(
    ("name", "rules"),
    [("ollama:qwen3:8b", OPEN_MODEL), ("ollama:phi4", OPEN_MODEL), ("ollama:gemma3:27b", WITHOUT_TOOLS)],
)
def test_ollama_has_open_models(name, rules):
    assert rules_for(name) == expressible(rules, name)


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


def test_calls_of_the_vendors_own_tools_are_sent_to_it_alone():
    searched = AiMessage(None, None, (), {VENDOR_ATTRIBUTE: SEARCHED})

    def sent(model: PydanticAiChatModel | OpenAiChatModel) -> list:
        history = [(1, Q), (2, searched), (3, NOW)]
        return to_messages(for_vendor(history, model.rules).messages, CLAUDE, model.rules)

    for same in (PydanticAiChatModel(CLAUDE), PydanticAiChatModel("anthropic:claude-sonnet-4-6")):
        _, own, _ = sent(same)
        assert [part.part_kind for part in own.parts] == ["builtin-tool-call", "builtin-tool-return"]
    for other in (
        PydanticAiChatModel(FunctionModel(print)),
        PydanticAiChatModel("google:gemini-3-pro"),
        OpenAiChatModel("gpt-5"),
    ):
        assert [each.kind for each in sent(other)] == ["request"]


def test_templates_of_open_models_are_given_no_null(server: ModelServer):
    server.answer({"content": "2."})
    model = OpenAIChatModel("openai/gpt-oss-120b", provider=OpenAIProvider(api_key="key", base_url=server.url))
    parts = [
        {"part_kind": "thinking", "content": "Hm."},
        {"part_kind": "tool-call", "tool_name": "add", "args": "{}", "tool_call_id": "abcdefghi"},
    ]
    kept = {**SEARCHED, "provider_name": "openai", "canonical_system": "openai", "parts": parts}
    own = AiMessage(None, "Hm.", [call()], {VENDOR_ATTRIBUTE: kept})

    PydanticAiChatModel(model, max_retries=0).chat(Q, calling(call()), result(), own, result())

    first, second = (each["content"] for each in server.requests[-1].body["messages"] if each["role"] == "assistant")
    assert first == ""
    assert second is not None
