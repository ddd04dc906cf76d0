"""A model's server, and the four ways to call a model."""

import asyncio
from collections.abc import Iterable, Iterator
from itertools import cycle
from typing import Any

import pytest

from chatmemory_django.chat.model import ChatEvent, ChatModel, ChatRequest, ChatResponse
from chatmemory_django.messages import ChatMessage
from tests.faces.chat.server import ModelServer, serving


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serving() as server:
        yield server


class Way:
    """One of the four ways to call a model: whole or streamed, sync or async."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_stream = name.endswith("stream")

    def ask(self, model: ChatModel, asked: ChatRequest | Iterable[ChatMessage]) -> ChatResponse:
        """Return the answer of *model*."""
        response = self.events(model, asked)[-1]
        assert isinstance(response, ChatResponse)
        return response

    def events(self, model: ChatModel, asked: ChatRequest | Iterable[ChatMessage]) -> list[ChatEvent]:
        """Return the events of *model*'s stream; without a stream, only its answer."""
        match self.name:
            case "chat":
                return [model.chat(asked)]
            case "achat":
                return [asyncio.run(model.achat(asked))]
            case "stream":
                return list(model.stream(asked))
            case _:
                return asyncio.run(self._collected(model, asked))

    @staticmethod
    async def _collected(model: ChatModel, asked: ChatRequest | Iterable[ChatMessage]) -> list[ChatEvent]:
        return [event async for event in model.astream(asked)]


WAYS = ("chat", "achat", "stream", "astream")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return Way(request.param)


@pytest.fixture(params=["stream", "astream"])
def stream(request: pytest.FixtureRequest) -> Way:
    return Way(request.param)


whole_and_streamed = pytest.mark.parametrize("way", ["chat", "astream"], indirect=True)
"""Two of the four ways, of which one is async and one streams: enough where no way has code of its own."""


def by_turns(names: str, cases: Iterable[tuple[Any, ...]], **options: Any) -> pytest.MarkDecorator:
    """Return the mark of a test that gets each of *cases* as *names*, by one of the four ways: each in its turn."""
    turns = [(way, *case) for way, case in zip(cycle(WAYS), cases, strict=False)]
    return pytest.mark.parametrize(("way", *names.split(", ")), turns, indirect=["way"], **options)
