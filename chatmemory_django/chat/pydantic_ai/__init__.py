"""
A chat model for any vendor that pydantic-ai supports: Anthropic, Google, Mistral, Amazon Bedrock, Ollama and others.

It requires the extra ``pydantic-ai``, and the vendor's own package, which is an extra of ``pydantic-ai-slim``.
"""

try:
    import pydantic_ai  # noqa: F401
except ImportError as exc:
    raise ImportError(
        "PydanticAiChatModel requires pydantic-ai and the package of a vendor: "
        "pip install 'chatmemory_django[pydantic-ai]' 'pydantic-ai-slim[anthropic]', for example."
    ) from exc

from chatmemory_django.chat.pydantic_ai.model import PydanticAiChatModel

__all__ = ["PydanticAiChatModel"]
