"""The view in the README, and the limits of that page."""

import re
import tomllib
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import AsyncClient, Client, override_settings
from django.urls import Resolver404, path, resolve

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.models import Conversation, Message
from tests.asgi import run
from tests.faces.chat.scripted import ScriptedModel

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
UUID = "c2c1a8f4-5f0c-4d0e-9c3b-6f1f5f0e7a11"


urlpatterns: list = []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("page", "first"), [("README.md", "```python"), ("docs/chat.md", "```python\nfrom django.views")]
)
class TestTheView:
    """The view that the README opens with, and the one of the guide to assistants."""

    @pytest.fixture
    def model(self, page, first, monkeypatch) -> ScriptedModel:
        text = (ROOT / page).read_text()
        block = text[text.index(first) + len("```python") :]
        model = ScriptedModel("On its way.", "Tomorrow.")
        view: dict = {
            "__name__": "mysite.views",
            "assistant": Assistant(model, system_message="You help with orders. Be brief."),
        }
        exec(block[: block.index("```")], view)
        view["assistant"].model = model
        [address] = re.findall(r'`path\("(\S+)", chat\)`', text)
        monkeypatch.setattr(f"{__name__}.urlpatterns", [path(address, view["chat"])])
        return model

    def ask(self, text: str, user: User | None, **options: Any) -> tuple[int, str]:
        client = AsyncClient(**options)

        async def ask() -> tuple[int, str]:
            if user is not None:
                await client.aforce_login(user)
            response = await client.post(f"/chat/{UUID}/", {"message": text})
            if not response.streaming:
                return response.status_code, response.content.decode()
            pieces = [piece async for piece in response] if response.is_async else list(response)
            return response.status_code, b"".join(pieces).decode()

        with override_settings(ROOT_URLCONF=__name__, LOGIN_URL="/sign-in/"):
            return run(ask())

    def test_streams_and_remembers(self, model):
        ann = User.objects.create_user("ann")

        assert self.ask("Where is my parcel?", ann) == (200, "On its way. ")
        assert self.ask("And when?", ann) == (200, "Tomorrow. ")
        assert [message.type for message in model.sent[1]] == ["SYSTEM", "USER", "AI", "USER"]
        assert Conversation.objects.get().memory_id == UUID

    def test_streams_with_atomic_requests_under_wsgi_too(self, model, monkeypatch):
        monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
        ann = User.objects.create_user("ann")

        assert self.ask("Where is my parcel?", ann) == (200, "On its way. ")
        with override_settings(ROOT_URLCONF=__name__):
            client = Client()
            client.force_login(ann)
            response = client.post(f"/chat/{UUID}/", {"message": "And when?"})

            assert (response.streaming, response.getvalue()) == (True, b"Tomorrow. ")
        assert Message.objects.count() == 5

    def test_refuses_others_before_the_model_is_called(self, model):
        ann, bob = (User.objects.create_user(name) for name in ("ann", "bob"))
        self.ask("Where is my parcel?", ann)

        assert self.ask("Where is hers?", bob) == (404, "There is no such chat.")
        assert self.ask("Where is it?", None) == (401, "Sign in to chat.")
        assert self.ask("Where is it?", ann, enforce_csrf_checks=True)[0] == 403
        with override_settings(ROOT_URLCONF=__name__):
            client = Client()
            client.force_login(ann)
            assert client.get(f"/chat/{UUID}/", {"message": "planted"}).status_code == 405
        assert len(model.requests) == 1

    def test_takes_no_id_that_the_site_may_use_itself(self, model):
        with override_settings(ROOT_URLCONF=__name__):
            assert resolve(f"/chat/{UUID}/").kwargs == {"memory_id": uuid.UUID(UUID)}
            with pytest.raises(Resolver404):
                resolve("/chat/support-4711/")


def test_the_view_has_seven_lines_of_code():
    block = README[README.index("```python") + len("```python") :]

    assert len([line for line in block[: block.index("```")].splitlines() if line.strip()]) == 7


def test_it_has_at_most_two_hundred_lines():
    assert len(README.splitlines()) <= 200


@pytest.mark.parametrize("target", sorted({*re.findall(r"\]\(([^)#:]+)[^):]*\)", README)}))
def test_its_links_lead_to_files(target: str):
    assert (ROOT / target).is_file()


def test_one_placeholder_stands_for_the_address_of_the_repository():
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    contributing = (ROOT / "CONTRIBUTING.md").read_text()

    assert {"Homepage", "Documentation", "Issues", "Changelog"} == set(urls)
    assert all(each.startswith(urls["Homepage"]) for each in urls.values())
    if ".invalid/" in urls["Homepage"]:  # before a release
        assert f"sed -i 's#{urls['Homepage']}#" in contributing
