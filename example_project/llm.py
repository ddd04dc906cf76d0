"""The model of the example site: a real one if the environment has a server or a key, otherwise Parrot."""

import os

from chatmemory_django.chat.model import ChatModel
from chatmemory_django.tokens import OpenAiTokenCountEstimator
from example_project import smollm
from example_project.parrot import Parrot, ParrotsEstimator

COUNTED_AS = "gpt-4o"
"""The model for counting tokens. It counts 85 tokens for an image in low detail, whatever its size."""

MODEL = os.environ.get("MODEL")
"""The model of another vendor, as pydantic-ai names it: ``anthropic:claude-sonnet-5-5``, for example."""

IS_REAL = bool(MODEL or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY"))

NAME = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")

IS_TINY = IS_REAL and not MODEL and NAME == smollm.NAME
"""Whether the model is too small for tools and for long instructions."""

estimator = OpenAiTokenCountEstimator(COUNTED_AS) if IS_REAL else ParrotsEstimator(COUNTED_AS)


def chat_model() -> ChatModel:
    """Return ``MODEL``, or OpenAI's of ``OPENAI_BASE_URL``, ``OPENAI_API_KEY`` and ``OPENAI_MODEL``, or Parrot."""
    if not IS_REAL:
        return Parrot(estimator)
    if MODEL:
        from chatmemory_django.chat.pydantic_ai import PydanticAiChatModel

        return PydanticAiChatModel(MODEL)
    from chatmemory_django.chat.openai import OpenAiChatModel  # Parrot does not need the client

    # Servers without keys accept any value, but the client requires one.
    key = os.environ.get("OPENAI_API_KEY", "none")
    if IS_TINY:  # other temperatures and no limit make it ramble
        return OpenAiChatModel(NAME, api_key=key, temperature=0, max_output_tokens=100)
    return OpenAiChatModel(NAME, api_key=key)


model = chat_model()
