"""A turn of an agent through a session: ours and the Agents SDK's own, in the same database, in one run.

A turn is what ``Runner.run`` does: it reads the session, adds the user's message, and adds the new items.
"""

from __future__ import annotations

from typing import Any

from agents import SQLiteSession
from agents.extensions.memory import SQLAlchemySession
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.agents import Measured, connection, main
from chatmemory_django.contrib.adapters.openai_agents import DjangoSession

LIMIT = 100
"""The number of items that a session returns, so that no turn reads a whole history."""

TURN = [
    [{"role": "user", "content": "Where is my parcel? " * 12}],
    [
        {"type": "function_call", "call_id": "call_1", "name": "track", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "call_1", "output": "It left Hamburg this morning."},
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "It left Hamburg. " * 12, "annotations": []}],
        },
    ],
]


def sessions(size: int, engine: AsyncEngine) -> dict[str, Any]:
    """Return a session of each kind for a history of *size*."""
    options: Any = {"session_settings": {"limit": LIMIT}}
    made = {
        "DjangoSession": DjangoSession(f"of-{size}", **options),
        "SQLAlchemySession": SQLAlchemySession(f"of-{size}", engine=engine, create_tables=True, **options),
    }
    if connection.vendor == "sqlite":
        path = f"{connection.settings_dict['NAME']}.own"
        made["SQLiteSession"] = SQLiteSession(f"of-{size}", path, **options)
    return made


async def fill(session: Any, size: int) -> None:
    """Fill *session* with this many items."""
    items = [item for part in TURN for item in part]
    for first in range(0, size, 1_000):
        await session.add_items((items * 250)[: min(1_000, size - first)])


async def turn(session: Any) -> None:
    """Take a turn."""
    await session.get_items()
    for items in TURN:
        await session.add_items(items)


if __name__ == "__main__":
    main(__doc__, sessions=Measured(sessions, fill, turn, ("openai-agents", "sqlalchemy")))
