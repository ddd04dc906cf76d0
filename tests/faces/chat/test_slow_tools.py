"""Slow tools do not delay anything else."""

import asyncio
import threading

import pytest

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.db.threads import background, in_background, in_thread
from tests.asgi import run
from tests.faces.chat.scripted import ScriptedModel, calling

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE = 30
"""Seconds after which a test gives up waiting."""


class SlowTool:
    """A tool that returns once the test lets it."""

    def __init__(self, calls: int) -> None:
        self.is_called, self.may_return = threading.Barrier(calls + 1), threading.Event()

    def look(self) -> str:
        """Look around."""
        self.is_called.wait(PATIENCE)
        assert self.may_return.wait(PATIENCE)
        return "a tree"


async def answered(tool: SlowTool, memory_id: str) -> str:
    with in_background():
        return await Assistant(ScriptedModel(calling(("1", "look", "{}")), "A tree."), tools=[tool.look]).achat(
            memory_id, "What is there?"
        )


def test_slow_tools_of_many_answers_do_not_delay_storing_another_answer():
    async def talk() -> list[str]:
        tool = SlowTool(background().threads)
        talking = [asyncio.create_task(answered(tool, str(number))) for number in range(background().threads)]
        await asyncio.to_thread(tool.is_called.wait, PATIENCE)
        try:
            with in_background():
                return [await asyncio.wait_for(in_thread(str, "stored"), PATIENCE)]
        finally:
            tool.may_return.set()
            await asyncio.gather(*talking)

    assert run(talk()) == ["stored"]


def test_an_answer_can_be_cancelled_during_a_slow_tool():
    async def talk() -> None:
        tool = SlowTool(1)
        talking = asyncio.create_task(answered(tool, "c"))
        await asyncio.to_thread(tool.is_called.wait, PATIENCE)
        talking.cancel()
        ended, _ = await asyncio.wait([talking], timeout=PATIENCE)
        tool.may_return.set()
        assert ended == {talking}

    run(talk())
