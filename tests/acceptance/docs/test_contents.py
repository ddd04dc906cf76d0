"""The documentation is complete: what can be set, called, requested or granted is on a page, near the contents page."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
from django.apps import apps
from django.contrib.auth.management import _get_all_permissions
from django.urls import URLPattern

import chatmemory_django
from chatmemory_django import conf
from chatmemory_django.chat import urls as chat_urls
from chatmemory_django.chat.answers.ui_steps import RESTARTED
from chatmemory_django.chat.conf import Chat
from chatmemory_django.chat.costs.conf import Costs
from chatmemory_django.chat.models import ModelCall
from chatmemory_django.chat.page.conf import Page
from chatmemory_django.contrib.encryption.conf import Encryption
from chatmemory_django.contrib.files.conf import StorageOfFiles
from chatmemory_django.contrib.notes.conf import Notes
from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, SummarizingChatMemory, TokenWindowChatMemory
from chatmemory_django.memory.turns import Turn
from chatmemory_django.models import Conversation, ConversationQuerySet, Message, MessageQuerySet
from chatmemory_django.provider import known_window
from chatmemory_django.rest import urls as rest_urls
from tests.acceptance.docs.pages import DOCS, block_of, blocks_of, execute

SOURCES = Path(chatmemory_django.__file__).parent
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
# What the reference takes from docstrings does not explain anything.
EXPLAINED = "\n".join(text for name, text in PAGES.items() if not name.startswith("reference/"))


def missing(names, text=EXPLAINED):
    """Return which of *names* do not stand in *text* as whole words."""
    return [name for name in sorted(names) if not re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", text)]


# Settings


def defaults_shown(name, page="settings.md"):
    """Return the first dict in the settings page that has *name*, as Python reads it."""
    for block in blocks_of(page):
        if f'CHATMEMORY = {{\n    "{name}": ' in block:
            return execute(block)["CHATMEMORY"]
    pytest.fail(f"docs/{page} shows no CHATMEMORY with {name}.")


SECTIONS = [conf.Rest, Chat]
ELSEWHERE = {Page: "chat-page.md", Encryption: "encryption.md", Notes: "notes.md"}
"""The sections that have a page of their own."""
WITHOUT_SECTION = {**conf.General.defaults(), **Costs.defaults(), **StorageOfFiles.defaults()}


def test_the_defaults_in_the_settings_page_are_the_defaults():
    assert defaults_shown("MEMORY") == {**WITHOUT_SECTION, **{section.key: {} for section in [*SECTIONS, *ELSEWHERE]}}


@pytest.mark.parametrize("section", SECTIONS)
def test_the_defaults_of_a_section_in_the_settings_page_are_the_defaults(section):
    assert defaults_shown(section.key) == {section.key: section.defaults()}


@pytest.mark.parametrize(("section", "page"), ELSEWHERE.items())
def test_a_section_with_a_page_of_its_own_is_there_with_its_defaults_and_a_table(section, page):
    cells = "\n".join(re.findall(r"^\| (`[A-Z].*?) \|", PAGES[page], re.MULTILINE))

    assert defaults_shown(section.key, page) == {section.key: section.defaults()}
    assert missing(section.defaults(), cells) == []


def test_every_setting_is_explained_in_a_table_of_the_settings_page():
    names = {name for section in SECTIONS for name in [section.key, *section.defaults()]} | {*WITHOUT_SECTION}
    names |= {section.key for section in ELSEWHERE}
    cells = "\n".join(re.findall(r"^\| (`[A-Z].*?) \|", PAGES["settings.md"], re.MULTILINE))

    assert missing(names, cells) == [], "docs/settings.md does not explain these settings."


def test_the_memory_that_the_settings_page_makes_a_function_of_its_id_is_one(settings):
    settings.CHATMEMORY = execute(block_of("settings.md", "def "))["CHATMEMORY"]

    assert (known_window("support-1").limit, known_window("c").limit) == (100, 20)


# Checks, permissions, commands


def test_every_check_is_on_the_page_of_checks():
    sources = "\n".join(path.read_text() for path in SOURCES.rglob("*.py"))
    ids = set(re.findall(r'"(chatmemory\.[EW]\d{3})"', sources))

    assert len(ids) > 25
    assert missing(ids, PAGES["checks.md"]) == [], "docs/checks.md does not explain these checks."
    assert set(re.findall(r"`(chatmemory\.[EW]\d{3})` \|", PAGES["checks.md"])) == ids, "Some of them do not exist."


def test_every_permission_is_explained():
    names = {name for model in apps.get_app_config("chatmemory").get_models() for name, _ in permissions_of(model)}
    used = set(re.findall(r"chatmemory\.([a-z]+_[a-z_]+)`", EXPLAINED))

    assert {"view_message_text", "import_conversation", "view_conversation"} <= names
    assert missing(names) == [], "No page of docs/ explains these permissions."
    assert {name for name in used if re.match("(view|add|change|delete|clear|export|recount|set)_", name)} <= names


def permissions_of(model):
    return _get_all_permissions(model._meta) if model in {Conversation, Message, ModelCall} else ()


def test_every_management_command_is_explained():
    commands = {path.stem for path in (SOURCES / "management" / "commands").glob("[a-z]*.py")}

    assert "prune_chatmemory" in commands
    assert missing(commands) == [], "No page of docs/ explains these commands."


# HTTP


def addresses():
    """Yield every address of the REST API and of the chat with its verbs, as the pages write them."""
    for pattern in rest_urls.urlpatterns:
        route = re.sub(r"\(\?P<(\w+)>(?:[^()]|\([^()]*\))*\)", r"{\1}", pattern.pattern._regex)
        route = route.removeprefix("^").removesuffix("$").replace("/?", "/").removesuffix("\\Z")
        verbs = getattr(pattern.callback, "actions", None) or {
            verb: "" for verb in ("get", "post") if hasattr(pattern.callback.cls, verb)
        }
        yield route or "/", {verb.upper() for verb in verbs if verb not in {"head", "options"}}


def rows_with(address):
    """Return the rows of tables with *address* as code: whole, or what follows the conversation's own address."""
    ways = {address, address.removeprefix("conversations/{memory_id}/")} - {""}
    return [line for line in EXPLAINED.splitlines() if line.startswith("|") and ways & set(addresses_in(line))]


def addresses_in(line):
    """Yield the addresses that stand as code in *line*, without verbs and parameters."""
    for code in re.findall(r"`([^`]+)`", line):
        address = re.sub(r"^([A-Z]+ )?(…/)?", "", code).partition("?")[0]
        yield f"{address.rstrip('/')}/"


@pytest.mark.parametrize(("address", "verbs"), list(addresses()))
def test_every_address_of_the_rest_api_is_explained_with_its_verbs(address, verbs):
    rows = "\n".join(rows_with(address))

    assert rows, f"No table of docs/ has a row for `{address}`."
    assert missing(verbs, rows) == [], f"The rows for `{address}` do not have these verbs."


def test_every_address_of_the_chat_is_explained():
    ends = {
        str(each.pattern).rstrip("$").rpartition(")")[2]
        for each in chat_urls.urlpatterns
        if isinstance(each, URLPattern)
    }

    assert ends == {"", "/stream", "/stop", "/rating", "/messages"}
    assert [end for end in sorted(ends) if f"{{id}}{end}" not in EXPLAINED and end] == [], "The chat has these, too."


def test_every_event_of_the_chat_is_in_the_table_of_events():
    sources = [(SOURCES / "chat" / "answers" / name).read_text() for name in ("ui_stream.py", "ui_steps.py")]
    found = [*re.findall(r'"type": f?"([a-z{}-]+)"', "".join(sources)), RESTARTED]
    types = {each.replace("{kind}", kind) for each in found for kind in ("text", "reasoning")}

    assert {"text-delta", "reasoning-start", "finish", "tool-output-denied"} <= types
    assert missing(types, PAGES["chat-protocol.md"]) == [], "docs/chat-protocol.md does not list these events."


# Methods


def public_methods(cls):
    """Return the names of the methods and properties that *cls*, or a base of it in this package, declares."""
    return {
        name
        for base in cls.__mro__
        if base.__module__.startswith("chatmemory_django")
        for name, value in vars(base).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    }


@pytest.mark.parametrize(
    "cls",
    [
        ChatMemory,
        MessageWindowChatMemory,
        TokenWindowChatMemory,
        SummarizingChatMemory,
        Turn,
        Conversation,
        ConversationQuerySet,
        Message,
        MessageQuerySet,
    ],
)
def test_every_public_method_is_explained(cls):
    # As code, since many of the names are words as well: `name`, `name(…)`, or something.name.
    absent = [name for name in sorted(public_methods(cls)) if not re.search(rf"[.`]{name}\b", EXPLAINED)]

    assert absent == [], f"No page of docs/ explains these methods of {cls.__name__}."


# Pages


def linked(name):
    """Return which pages the page *name* links to, in its text or in its table of contents."""
    text = PAGES[name]
    targets = re.findall(r"\]\(([^)#\s:]+\.md)", text)
    for block in re.findall(r"```\{toctree\}\n(.*?)```", text, re.DOTALL):
        targets += [f"{line}.md" for line in block.splitlines() if line and not line.startswith(":")]
    folder = (DOCS / name).parent
    paths = [(folder / target).resolve() for target in targets]
    return {path.relative_to(DOCS).as_posix() for path in paths if path.is_relative_to(DOCS)}


def test_every_page_is_two_clicks_from_the_contents_page():
    near = linked("index.md") & set(PAGES)
    reached = {"index.md", *near}.union(*(linked(name) for name in near))

    assert sorted(set(PAGES) - reached) == [], "Link these pages from docs/index.md, or from a page that it links to."
    assert sorted(near.union(*map(linked, near)) - set(PAGES)) == [], "These pages are linked to, but do not exist."


def test_no_page_is_longer_than_200_lines():
    assert [name for name, text in PAGES.items() if len(text.splitlines()) > 200] == []


def imported():
    """Yield each name that a block of the pages imports from this package, whole, and the page."""
    for page, text in PAGES.items():
        for module, names in re.findall(r"from (chatmemory_django[\w.]*) import (\([^)]*\)|[^(\n#]+)", text):
            for name in re.findall(r"[A-Za-z_]\w*", names):
                if inspect.ismodule(getattr(import_module(module), name, None)) or find_submodule(module, name):
                    continue  # recall.tools() is in the reference, recall is a module
                yield page, module, name


def find_submodule(module, name):
    return (SOURCES.parent / module.replace(".", "/") / f"{name}.py").exists()


def referred():
    """Return the names that the reference documents, without their modules."""
    text = "\n".join(text for name, text in PAGES.items() if name.startswith("reference/"))
    return set(re.findall(r"^\.\. auto(?:class|exception|function|data):: (\w+)", text, re.MULTILINE))


def test_every_name_that_a_page_imports_is_in_the_reference():
    absent = sorted({f"{module}.{name} ({page})" for page, module, name in imported() if name not in referred()})

    assert absent == [], "Pages have people import these names, which docs/reference does not have."
