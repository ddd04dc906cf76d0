"""What the README shows, but cannot run."""

import asyncio
import inspect
import re
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from chatmemory_django import checks, conf
from chatmemory_django.chat import checks as chat_checks
from example_project.models import Feedback
from tests.asgi import run
from tests.chat.scripted import ScriptedModel

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_model_it_shows_is_that_of_the_example_site():
    source = inspect.getsource(Feedback)

    assert source[: source.index("\n    def __str__")].strip() in README


def test_it_lists_every_check_and_every_setting():
    ids = re.findall(r'"chatmemory\.(.\d+)"', inspect.getsource(checks) + inspect.getsource(chat_checks))

    assert [check for check in ids if check not in README] == []
    assert all(f'"{name}":' in README for name in conf.NAMES)


def test_the_default_settings_it_shows_are_the_defaults():
    shown: dict = {}

    block = README[README.index('CHATMEMORY = {\n    "MEMORY"') :]
    exec(block[: block.index("```")], shown)

    assert shown["CHATMEMORY"] == {
        "MEMORY": conf.DEFAULT_MEMORY,
        "KEEP_HISTORY": conf.keep_history(),
        "MAX_MESSAGE_BYTES": conf.DEFAULT_MAX_MESSAGE_BYTES,
        "ALLOW_NETWORK": conf.allow_network(),
        "REMOTE_MEDIA": conf.remote_media(),
        "REST": {},
        "CHAT": {},
    }


def test_the_default_settings_of_the_rest_api_it_shows_are_the_defaults():
    shown: dict = {}

    block = README[README.index('CHATMEMORY = {\n    "REST"') :]
    exec(block[: block.index("```")], shown)

    assert shown["CHATMEMORY"]["REST"] == conf.DEFAULT_REST


def test_the_default_settings_of_the_chat_it_shows_are_the_defaults():
    shown: dict = {}

    block = README[README.index('CHATMEMORY = {\n    "CHAT"') :]
    exec(block[: block.index("```")], shown)

    assert shown["CHATMEMORY"]["CHAT"] == conf.DEFAULT_CHAT


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


def test_that_view_has_eight_lines_of_code():
    block = README[README.index("```python") + len("```python") :]

    assert len([line for line in block[: block.index("```")].splitlines() if line.strip()]) == 8
