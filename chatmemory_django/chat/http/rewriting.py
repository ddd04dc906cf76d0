"""A stream of the AI SDK in another protocol."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from chatmemory_django.chat.answers.ui_steps import Chunk
from chatmemory_django.chat.answers.ui_stream import decoded, encode
from chatmemory_django.chat.runs.answer import PING


async def rewritten(
    pieces: AsyncGenerator[str, None],
    events_of: Callable[[Chunk], Sequence[Mapping[str, Any]]],
    encoded: Callable[[Any], str] = encode,
) -> AsyncGenerator[str, None]:
    """Yield *pieces* of the AI SDK's stream as another protocol has them: the *events_of* each chunk, *encoded*."""
    async with aclosing(pieces):
        async for piece in pieces:
            if piece == PING:
                yield piece
            elif events := [event for chunk in decoded(piece) for event in events_of(chunk)]:
                yield "".join(map(encoded, events))
