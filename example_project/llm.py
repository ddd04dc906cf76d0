"""The model of the example site: a real one where the environment names a server or a key, else a parrot."""

import os

from chatmemory_django.chat.model import ChatModel
from chatmemory_django.tokens import OpenAiTokenCountEstimator
from example_project import smollm
from example_project.parrot import Parrot

COUNTED_AS = "gpt-4o"
"""The model whose tokens are counted. In low detail an image takes 85 of them, however large it is."""

IS_REAL = bool(os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY"))

NAME = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")

IS_TINY = IS_REAL and NAME == smollm.NAME
"""Whether the model is too small for tools and for more than a few words of instructions."""


def chat_model() -> ChatModel:
    """Return what the environment names: ``OPENAI_BASE_URL``, ``OPENAI_API_KEY``, ``OPENAI_MODEL``; else a parrot."""
    if not IS_REAL:
        return Parrot(OpenAiTokenCountEstimator(COUNTED_AS))
    from chatmemory_django.chat.openai import OpenAiChatModel  # a parrot needs no client

    # Servers that need no key take any, but the client insists on one.
    key = os.environ.get("OPENAI_API_KEY", "none")
    if IS_TINY:  # at another temperature, and without an end, it rambles
        return OpenAiChatModel(NAME, api_key=key, temperature=0, max_output_tokens=100)
    return OpenAiChatModel(NAME, api_key=key)


model = chat_model()
