"""Runs every view that the documentation shows with a model that writes markup: no browser may run it."""

import ast
import json
import re
import sys
import textwrap
import uuid
from types import ModuleType
from typing import NamedTuple

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.core.cache import cache
from django.http.response import HttpResponseBase
from django.test import AsyncClient
from django.urls import path
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.provider import get_chat_memory
from tests.acceptance.docs.pages import DOCS
from tests.asgi import run
from tests.faces.chat.scripted import ScriptedModel

MARKUP = "<img src=x onerror=alert(1)>"
PAGES = sorted([DOCS.parent / "README.md", *DOCS.rglob("*.md")])
BLOCK = re.compile(
    r"^(?:<!-- (?:file|append): (\S+) -->\n)?( *)```(python|html)\n(.*?)^\2```", re.DOTALL | re.MULTILINE
)
METHODS = {"get", "post", "put", "patch", "delete", "dispatch"}

WITHOUT_A_MODEL = {("docs/recipes/anonymous-visitors.md", "chat")}
"""Views in which a sentence of the page stands for the model's answer."""

OTHER_BODIES = {
    ("docs/pydantic-ai.md", "chat"): {
        "trigger": "submit-message",
        "id": "c",
        "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": MARKUP}]}],
    }
}
"""What is posted to the views that do not take a form."""


class Block(NamedTuple):
    file: str
    """The file that the page gives it, or ""."""
    language: str
    code: str

    def views(self) -> dict[str, list[str]]:
        """Return the views in it with their arguments, the request left out."""
        if self.language != "python" or "request" not in self.code:
            return {}
        found = {}
        for node in ast.parse(self.code).body:
            if isinstance(node, ast.ClassDef):  # a view of a kind that this module does not run
                assert not METHODS & {each.name for each in node.body if isinstance(each, ast.FunctionDef)}, node.name
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            arguments = [each.arg for each in node.args.args]
            if arguments[:1] == ["request"] and (node.returns is None or "Response" in ast.unparse(node.returns)):
                found[node.name] = arguments[1:]
        return found


def page_of(text: str) -> list[Block]:
    found = BLOCK.findall(text)
    return [Block(file, language, textwrap.dedent(code)) for file, _indent, language, code in found]


SHOWN = {each.relative_to(DOCS.parent).as_posix(): page_of(each.read_text()) for each in PAGES}
VIEWS = {
    page: {name: each for block in blocks for name, each in block.views().items()} for page, blocks in SHOWN.items()
}


def test_these_are_the_views_of_the_documentation():
    assert {(page, name) for page, views in VIEWS.items() for name in views} == {
        ("README.md", "chat"),
        ("docs/chat.md", "chat"),
        ("docs/messages.md", "ask"),
        ("docs/privacy.md", "download"),
        ("docs/pydantic-ai.md", "chat"),
        ("docs/recipes/anonymous-visitors.md", "chat"),
        ("docs/recipes/async.md", "chat"),
        ("docs/recipes/htmx.md", "page"),
        ("docs/recipes/htmx.md", "send"),
        ("docs/recipes/plain-javascript.md", "page"),
        ("docs/recipes/plain-javascript.md", "send"),
        ("docs/your-own-view.md", "chat"),
    }


@pytest.fixture
def a_model_that_writes_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        """OpenAI's client."""

        def __init__(self) -> None:
            self.chat = self.completions = self.message = self
            self.choices, self.content = [self], MARKUP

        def create(self, **options: object) -> "Client":
            return self

    monkeypatch.setattr("chatmemory_django.chat.openai.OpenAiChatModel", lambda name: ScriptedModel(MARKUP))
    monkeypatch.setattr("openai.OpenAI", Client)


def run_page(page: str, monkeypatch: pytest.MonkeyPatch) -> tuple[dict, dict[str, str]]:
    """Return the names that *page* defines until its last view, and its templates."""
    blocks = SHOWN[page]
    last = max(index for index, block in enumerate(blocks) if block.views())
    names: dict = {"__name__": "shown"}
    for block in blocks[: last + 1]:
        if block.language != "python" or block.file.endswith("settings.py"):
            continue
        if block.file:
            names = {"__name__": block.file.removesuffix(".py").replace("/", ".")}
        exec(block.code, names)
        if block.file:
            module = ModuleType(names["__name__"])
            module.__dict__.update(names)
            monkeypatch.setitem(sys.modules, module.__name__, module)
    for value in list(names.values()):
        if isinstance(value, Assistant):
            value.model = ScriptedModel(MARKUP)
        if isinstance(value, Agent):
            value.model = TestModel(custom_output_text=MARKUP, call_tools=[])
    html = [block for block in blocks if block.language == "html"]
    return names, dict(zip(["chat.html", "messages.html"], [block.code for block in html], strict=False))


async def body_of(response: HttpResponseBase) -> str:
    if not response.streaming:
        return response.content.decode()
    if response.is_async:
        return b"".join([piece async for piece in response]).decode()
    return (await sync_to_async(b"".join)(response)).decode()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("page", [page for page, views in VIEWS.items() if views])
def test_no_view_lets_a_browser_run_what_a_model_writes(page, a_model_that_writes_markup, monkeypatch, settings):
    cache.clear()
    names, templates = run_page(page, monkeypatch)
    urls = ModuleType("shown_urls")
    urls.urlpatterns = [
        path("".join([f"{name}/", *(f"<uuid:{each}>/" for each in arguments)]), names[name], name=name)
        for name, arguments in VIEWS[page].items()
    ]
    monkeypatch.setitem(sys.modules, "shown_urls", urls)
    settings.ROOT_URLCONF = "shown_urls"
    settings.TEMPLATES = [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "OPTIONS": {
                "loaders": [("django.template.loaders.locmem.Loader", templates)],
                "context_processors": ["django.template.context_processors.request"],
            },
        }
    ]
    ann = User.objects.create_user("ann")
    get_chat_memory("earlier", owner=ann).add(UserMessage(MARKUP), AiMessage(MARKUP))

    async def ask() -> dict[str, tuple[HttpResponseBase, str]]:
        client = AsyncClient()
        await client.aforce_login(ann)
        answered = {}
        for name, arguments in [*VIEWS[page].items()] * 2:  # the second time, pages show what was answered
            address = "/".join(["", name, *(str(uuid.uuid4()) for _ in arguments), ""])
            if (page, name) in OTHER_BODIES:
                response = await client.post(address, json.dumps(OTHER_BODIES[page, name]), "application/json")
            else:
                response = await client.post(address, dict.fromkeys(("message", "question"), MARKUP))
            answered[name] = response, await body_of(response)
        return answered

    answered = run(ask())

    assert answered.keys() == VIEWS[page].keys()
    for name, (response, body) in answered.items():
        assert response.status_code == 200, (name, body)
        assert ((page, name) in WITHOUT_A_MODEL) == ("onerror=alert(1)" not in body), (name, body)
        assert MARKUP not in body or not response["Content-Type"].startswith("text/html"), name
