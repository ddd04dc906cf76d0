"""Links between a process and its servers that can be cut, refused and held up."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Link:
    """A port on 127.0.0.1 that leads to *host* and *port*."""

    def __init__(self, host: str, port: int) -> None:
        self._to = host, port
        self._flows = asyncio.Event()
        self._flows.set()
        self._transports: set[asyncio.WriteTransport] = set()
        self._is_refusing = False
        self.port = 0

    async def open(self) -> None:
        """Listen, until the event loop ends."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """End all connections, in the middle of what they send."""
        for each in self._transports:
            each.abort()

    def refuse(self) -> None:
        """End all connections, and refuse others until ``heal``."""
        self._is_refusing = True
        self.cut()

    def hold(self) -> None:
        """Let nothing through until ``heal``, as a network that loses all packets."""
        self._flows.clear()

    def heal(self) -> None:
        """Let everything through again."""
        self._is_refusing = False
        self._flows.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_refusing:
            writer.transport.abort()
            return
        try:
            there, thither = await asyncio.open_connection(*self._to)
        except OSError:
            writer.transport.abort()
            return
        both = {writer.transport, thither.transport}
        self._transports |= both
        try:
            await asyncio.gather(self._pump(reader, thither), self._pump(there, writer))
        finally:
            self._transports -= both
            for each in both:
                each.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
