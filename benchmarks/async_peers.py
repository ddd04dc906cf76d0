"""The peers that run in an event loop."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

from agents import SQLiteSession
from agents.extensions.memory import SQLAlchemySession
from agents.memory import SessionSettings
from django.db import connections
from llama_index.core.llms import ChatMessage as LlamaMessage
from llama_index.core.memory import Memory
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.histories import COST, PLACE, Sql
from benchmarks.peers import Peer

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Coroutine

    from benchmarks.histories import Bound

ITEMS_LIMIT = 100
"""The number of newest items that a session of openai-agents returns: enough to fill the window."""


class AsyncPeer(Peer):
    """A peer that runs in an event loop, which lasts for the whole run."""

    def __init__(self, server: str, bound: Bound) -> None:
        super().__init__(server, bound)
        self.loop = asyncio.new_event_loop()
        url, on_connect = self.engine_options()
        self.engine = create_async_engine(url % ("+aiosqlite" if server == "sqlite" else "+asyncpg"))
        if on_connect:
            event.listen(self.engine.sync_engine, "connect", on_connect)

    def add(self, key: str, text: str, is_user: bool) -> None:
        self.run(self.aadd(key, text, is_user))

    def read(self, key: str) -> Any:
        return self.run(self.aread(key))

    def turn(self, key: str, user: str, reply: str) -> None:
        self.run(self.aturn(key, user, reply))

    async def aadd(self, key: str, text: str, is_user: bool) -> None:
        raise NotImplementedError

    async def aread(self, key: str) -> Any:
        raise NotImplementedError

    async def aturn(self, key: str, user: str, reply: str) -> None:
        await self.aadd(key, user, True)
        await self.aread(key)
        await self.aadd(key, reply, False)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def close(self) -> None:
        self.run(self.engine.dispose())
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()


class OpenAiAgents(AsyncPeer):
    """openai-agents, whose sessions can limit items but not tokens."""

    name = format = "openai_agents"
    label = "openai-agents: `SQLAlchemySession`, own trim"
    tables = ("bench_agents_sessions", "bench_agents_messages")

    def open(self, key: str) -> Any:
        sessions, messages = self.tables
        return SQLAlchemySession(
            key,
            engine=self.engine,
            create_tables=True,
            sessions_table=sessions,
            messages_table=messages,
            session_settings=SessionSettings(limit=ITEMS_LIMIT),
        )

    def load(self, key: str, count: int) -> None:
        sessions, messages = self.tables
        self.read(key)  # creates the tables
        with connections[self.server].cursor() as cursor:
            cursor.execute(f"INSERT INTO {sessions} (session_id) VALUES (%s)", [key])
        ago = f"({count} - {PLACE})"  # each a second after the previous one
        moment = f"LOCALTIMESTAMP - {ago} * INTERVAL '1 second'"
        if self.server == "sqlite":
            moment = f"datetime('now', '-' || {ago} || ' seconds')"
        self.load_rows(
            messages, {"session_id": key, "message_data": Sql("texts.body"), "created_at": Sql(moment)}, count
        )

    async def aadd(self, key: str, text: str, is_user: bool) -> None:
        await self.conversation(key).add_items([self._item(text, is_user)])

    async def aread(self, key: str) -> list[Any]:
        left = self.bound.limit - 3
        kept: list[Any] = []
        for item in reversed(await self.conversation(key).get_items()):
            left -= 4 + len(self.encode(item["content"]))
            if left < 0:
                break
            kept.append(item)
        return kept[::-1]

    def written(self, text: str, is_user: bool) -> str:
        return json.dumps(self._item(text, is_user), separators=(",", ":"))

    def _item(self, text: str, is_user: bool) -> dict[str, str]:
        return {"role": "user" if is_user else "assistant", "content": text}


class _Session(SQLiteSession):
    """A session that syncs as Django's connection does; there is no option for it."""

    @staticmethod
    def _configure_connection(conn: sqlite3.Connection) -> None:
        SQLiteSession._configure_connection(conn)
        conn.execute("PRAGMA synchronous=NORMAL")


class OpenAiAgentsSqlite(OpenAiAgents):
    """openai-agents' own session for SQLite."""

    name = format = "openai_agents_sqlite"
    label = "openai-agents: `SQLiteSession`, own trim"
    tables = ("bench_sqlite_sessions", "bench_sqlite_messages")

    def open(self, key: str) -> Any:
        return _Session(key, self.path, *self.tables, session_settings=SessionSettings(limit=ITEMS_LIMIT))


class LlamaIndex(AsyncPeer):
    """llama-index's Memory, which by default keeps at most 0.7 of its limit and archives 3,000 tokens at once."""

    name = format = "llama_index"
    label = "llama-index: `Memory` in its SQL store"

    def open(self, key: str) -> Any:
        return Memory.from_defaults(
            session_id=key,
            token_limit=self.bound.limit,
            tokenizer_fn=self.encode,
            table_name="bench_llama",
            async_engine=self.engine,
        )

    def load(self, key: str, count: int) -> None:
        self.read(key)  # creates the table
        active = int(0.7 * self.bound.limit) // COST
        columns = {
            "key": key,
            "timestamp": Sql(f"{time.time_ns() - count} + {PLACE}"),
            "role": Sql("CASE texts.type WHEN 'USER' THEN 'user' ELSE 'assistant' END"),
            "status": Sql(f"CASE WHEN {PLACE} < {count - active} THEN 'archived' ELSE 'active' END"),
            "data": Sql("CAST(texts.body AS json)" if self.server == "postgresql" else "texts.body"),
        }
        self.load_rows("bench_llama", columns, count)

    async def aadd(self, key: str, text: str, is_user: bool) -> None:
        await self.conversation(key).aput(self._message(text, is_user))

    async def aread(self, key: str) -> list[LlamaMessage]:
        return await self.conversation(key).aget()

    def written(self, text: str, is_user: bool) -> str:
        return json.dumps(self._message(text, is_user).model_dump(mode="json"))

    def _message(self, text: str, is_user: bool) -> LlamaMessage:
        return LlamaMessage(role="user" if is_user else "assistant", content=text)


def async_peers(server: str) -> list[type[Peer]]:
    """Return the asynchronous peers that support *server*."""
    return [OpenAiAgents, LlamaIndex, *([OpenAiAgentsSqlite] if server == "sqlite" else [])]
