"""The view in the README, and the limits of that page."""

import asyncio
import re
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from tests.asgi import run
from tests.faces.chat.scripted import ScriptedModel

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


@pytest.mark.django_db(transaction=True)
def test_the_view_that_it_opens_with_streams_and_remembers(rf):
    view: dict = {}
    block = README[README.index("```python") + len("```python") :]
    exec(block[: block.index("```")], view)
    model = view["assistant"].model = ScriptedModel("On its way.", "Tomorrow.")
    ann = User.objects.create_user("ann")

    async def ask(text: str) -> list[str]:
        request = rf.get("/", {"message": text})
        request.auser = lambda: asyncio.sleep(0, ann)
        response = await view["chat"](request, "orders")
        return [piece.decode() async for piece in response]

    assert run(ask("Where is my parcel?")) == ["On ", "its ", "way. "]
    assert run(ask("And when?")) == ["Tomorrow. "]
    assert [message.type for message in model.sent[1]] == ["SYSTEM", "USER", "AI", "USER"]


def test_the_view_has_eight_lines_of_code():
    block = README[README.index("```python") + len("```python") :]

    assert len([line for line in block[: block.index("```")].splitlines() if line.strip()]) == 8


def test_it_has_at_most_two_hundred_lines():
    assert len(README.splitlines()) <= 200


@pytest.mark.parametrize("target", sorted({*re.findall(r"\]\(([^)#:]+)[^):]*\)", README)}))
def test_its_links_lead_to_files(target: str):
    assert (ROOT / target).is_file()
