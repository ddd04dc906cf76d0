"""
A chat model for OpenAI's chat completions API, which Azure, OpenRouter, vLLM, llama.cpp, Ollama and others serve, too.

It requires the extra ``openai``.
"""

try:
    import openai  # noqa: F401
except ImportError as exc:
    raise ImportError("OpenAiChatModel requires openai: pip install 'chatmemory_django[openai]'.") from exc

from chatmemory_django.chat.openai.model import OpenAiChatModel

__all__ = ["OpenAiChatModel"]
