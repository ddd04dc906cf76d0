"""
A chat model over OpenAI's chat completions, which OpenAI, Azure, OpenRouter, vLLM, llama.cpp, Ollama and others serve.

It needs the extra ``openai``.
"""

try:
    import openai  # noqa: F401
except ImportError as exc:
    raise ImportError(
        "OpenAiChatModel needs the package openai, which the extra brings: pip install 'chatmemory_django[openai]'."
    ) from exc

from chatmemory_django.chat.openai.model import OpenAiChatModel

__all__ = ["OpenAiChatModel"]
