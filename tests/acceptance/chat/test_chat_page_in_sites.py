"""The chat page in a site of somebody else: its own frame and styles, a manifest, a strict policy, two languages."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.browser import LAPTOP, PATIENCE, PHONE, chromium, needs_browser, overflow, shoot
from tests.acceptance.chat.live_site import DEADLINE, ROOT, wait_for
from tests.ports import free_port

__all__ = ["chromium"]  # a fixture

pytestmark = [needs_browser, pytest.mark.slow]

SHOP = Path(__file__).parent / "shop"
USERS = (
    "from django.contrib.auth.models import User\nfor name in {names!r}: User.objects.create_user(name, password='x')"
)
FORMS = [(name, language) for name in ("laptop", "phone") for language in ("en", "de")]
STORY = pytest.mark.parametrize(("size", "language"), FORMS, ids=["-".join(form) for form in FORMS])
STYLES = """names => names.map(name => {
    const of = getComputedStyle(document.querySelector(name));
    return [...of].map(each => `${each}: ${of.getPropertyValue(each)}`).join("; ");
})"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Yield the address of a project as ``startproject`` makes it, with what SHOP has, in a process of its own."""
    folder = tmp_path_factory.mktemp("shop")
    kept = {name: value for name, value in os.environ.items() if name not in {"DJANGO_SETTINGS_MODULE", "DATABASE_URL"}}
    environment = {**kept, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "shop.settings"}

    def run(*command):
        done = subprocess.run(
            [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE
        )
        assert done.returncode == 0, done.stdout + done.stderr

    run("-c", "from django.core.management import call_command as call; call('startproject', 'shop', '.')")
    for name in ("templates", "static"):
        shutil.copytree(SHOP / name, folder / name)
    with (folder / "shop/settings.py").open("a") as file:
        file.write((SHOP / "settings.txt").read_text())
    pages = (SHOP / "pages.txt").read_text()
    (folder / "shop/pages.py").write_text(pages)
    (folder / "shop/urls.py").write_text("from shop.pages import urlpatterns\n")
    run("manage.py", "check", "--fail-level", "WARNING")
    run("manage.py", "migrate", "-v", "0")
    run("manage.py", "collectstatic", "--noinput", "-v", "0")
    names = [f"{kind}-{form}" for kind in ("page", "widget") for form in map("-".join, FORMS)]
    run("manage.py", "shell", "-v", "0", "-c", USERS.format(names=[*names, "paper", "night", "styles", "choice"]))
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "shop.asgi:application", "--port", str(port), "--lifespan", "off"]
    with (
        (folder / "server.log").open("w") as log,
        subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log) as server,
    ):
        try:
            wait_for(port, server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(DEADLINE)


@pytest.fixture
def visit(chromium, shop):
    """Return a function that signs a user in, and opens a page; the test fails on errors and refused requests."""
    contexts, complaints = [], []

    def visit(address, user, *, size="laptop", language="en"):
        viewport = PHONE if size == "phone" else LAPTOP
        context = chromium.new_context(base_url=shop, viewport=viewport, locale=language)
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        opened = context.new_page()
        opened.on("console", lambda message: complaints.append(message.text))
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        opened.on("response", lambda got: complaints.append(f"{got.status} {got.url}") if got.status >= 400 else None)
        opened.goto(f"/members/sign-in/?next={address}")
        opened.fill("[name=username]", user)
        opened.fill("[name=password]", "x")
        opened.click("#enter")
        opened.wait_for_url(f"**{address}")
        opened.wait_for_selector("#welcome:not([hidden])")
        return opened

    yield visit
    for context in contexts:
        context.close()
    assert [each for each in complaints if "/favicon.ico" not in each and "404 (Not Found)" not in each] == []


@pytest.fixture
def axe():
    base = pytest.importorskip("axe_playwright_python.base", reason="axe: pip install axe-playwright-python")

    def axe(opened):
        """Return what axe finds in the chat."""
        opened.evaluate(base.AXE_SCRIPT)
        run = "axe.run('chat-memory', {resultTypes: ['violations'], preload: false})"
        return [(rule["id"], node["html"]) for rule in opened.evaluate(run)["violations"] for node in rule["nodes"]]

    return axe


def ask(opened, words):
    opened.fill("#say", words)
    opened.press("#say", "Enter")
    opened.wait_for_selector(f".message.assistant:not(.live) strong >> text={words}")
    opened.wait_for_selector("#messages[aria-busy=false]")


@STORY
def test_the_page_is_the_sites_and_keeps_what_was_written(visit, axe, size, language):
    opened = visit("/help/talk/", f"page-{size}-{language}", size=size, language=language)
    texts = {"en": ("What can I help you with?", "Conversations"), "de": ("Wobei kann ich helfen?", "Gespräche")}
    heading, conversations = texts[language]

    assert opened.locator("header a").first.inner_text().lower() == "shop"
    assert opened.locator("#welcome h3").inner_text() == heading
    assert axe(opened) == []
    ask(opened, "Pears")
    assert re.search(r"/help/talk/\?chat=[0-9a-f-]{36}$", opened.url)
    opened.reload()
    opened.wait_for_selector(".message.assistant strong >> text=Pears")
    if size == "phone":
        assert opened.locator("#chat").bounding_box()["width"] == PHONE["width"]
        opened.locator("#tabs").get_by_role("button", name=conversations).click()
    opened.wait_for_selector("#conversations li >> text=Pears")
    box = opened.locator("chat-memory").bounding_box()
    assert box["y"] + box["height"] == pytest.approx(opened.viewport_size["height"], abs=1)
    assert opened.locator("#memory").count() == 0
    assert overflow(opened) <= 0
    assert axe(opened) == []
    shoot(opened, f"shop-page-{size}-{language}")


@STORY
def test_a_chat_in_a_page_stays_open_from_page_to_page(visit, axe, size, language):
    opened = visit("/", f"widget-{size}-{language}", size=size, language=language)
    new = {"en": "New chat", "de": "Neues Gespräch"}[language]

    ask(opened, "Plums")
    assert opened.title() == "Shop"
    assert opened.url.endswith("/")
    assert opened.locator("#conversations").count() == 0
    opened.goto("/about/")
    opened.goto("/")
    opened.wait_for_selector(".message.assistant strong >> text=Plums")
    chat, field = (opened.locator(name).bounding_box() for name in ("chat-memory", "#composer"))
    assert field["y"] + field["height"] == pytest.approx(chat["y"] + chat["height"], abs=20)
    assert overflow(opened) <= 0
    assert axe(opened) == []
    shoot(opened, f"shop-widget-{size}-{language}")
    opened.get_by_role("button", name=new).click()
    opened.wait_for_selector("#welcome:not([hidden])")
    opened.reload()
    opened.wait_for_selector("#welcome:not([hidden])")
    assert opened.locator(".message").first.is_hidden() or opened.locator("chat-memory .message").count() == 0


def test_people_choose_an_assistant_for_a_conversation_and_a_model_for_each_question(visit):
    opened = visit("/help/talk/", "choice")
    assistant, model = opened.get_by_label("Assistant"), opened.get_by_label("Model")
    assert (assistant.input_value(), model.input_value()) == ("", "slow")

    assistant.select_option("sales")
    model.select_option("fast")
    ask(opened, "Dates")
    assert "Fast sales read: Dates" in opened.locator(".message.assistant").inner_text()
    assert assistant.is_disabled()
    model.select_option("slow")
    ask(opened, "Nuts")
    assert "Slow sales read: Nuts" in opened.locator(".message.assistant").last.inner_text()

    opened.reload()
    opened.wait_for_selector("#assistant:disabled")
    assert assistant.input_value() == "sales"
    opened.get_by_role("button", name="New chat").click()
    opened.wait_for_selector("#welcome:not([hidden])")
    assert assistant.is_enabled()
    assistant.select_option("")
    ask(opened, "Kiwis")
    assert "Slow read: Kiwis" in opened.locator(".message.assistant").inner_text()


def test_neither_the_site_nor_the_chat_changes_how_the_other_looks(visit):
    opened = visit("/", "styles")
    ask(opened, "Figs")
    own = ["main > section", "#buy", ".note", "ol", "li", "h1", "header a"]
    with_chat = opened.evaluate(STYLES, own)
    in_chat = {
        "#composer [data-part=send]": {"borderTopStyle": "solid", "fontSize": "14px", "display": "flex"},
        ".message.user .text": {"textTransform": "none", "letterSpacing": "normal", "wordSpacing": "0px"},
        ".message.assistant": {"display": "flex", "transform": "none", "fontWeight": "400"},
        ".bubble": {"fontFamily": "Georgia, serif", "lineHeight": "24.8px"},
        "#heading": {"marginTop": "0px", "textAlign": "start"},
        "#composer .icon": {"width": "18px"},
    }
    for name, expected in in_chat.items():
        found = opened.locator(f"chat-memory {name}").first.evaluate(
            "(each, names) => Object.fromEntries(names.map(name => [name, getComputedStyle(each)[name]]))", [*expected]
        )
        assert found == expected, name

    opened.goto("/about/")

    assert opened.evaluate(STYLES, own) == with_chat


@pytest.mark.parametrize(
    ("design", "accent", "paper", "font"),
    [
        ("paper", "rgb(139, 30, 30)", "rgb(253, 246, 227)", "Georgia, serif"),
        ("night", "rgb(102, 255, 102)", "rgb(0, 0, 0)", "monospace"),
    ],
)
def test_variables_give_it_another_design(visit, axe, design, accent, paper, font):
    opened = visit(f"/{design}/", design)
    ask(opened, "Quinces")

    def style(name, what):
        return opened.locator(name).first.evaluate("(each, what) => getComputedStyle(each)[what]", what)

    opened.mouse.move(0, 0)
    assert style("[data-part=send]", "backgroundColor") == accent
    assert style(".frame", "backgroundColor") == paper
    assert style(".bubble", "fontFamily") == font
    assert opened.locator("#memory tbody tr").count() == 2
    assert opened.locator("[data-part=used]").inner_text() == "2 of 20 messages"
    assert axe(opened) == []
    shoot(opened, f"shop-{design}")


def test_styles_have_hashes_and_scripts_are_below_one_of_all(visit):
    opened = visit("/help/talk/", "styles")

    styles = opened.locator("chat-memory link[rel=stylesheet]").evaluate_all("each => each.map(link => link.href)")
    scripts = opened.evaluate("performance.getEntriesByType('resource').map(each => each.name)")

    assert [bool(re.search(r"/static/chatmemory_page/\w+\.[0-9a-f]{12}\.css$", each)) for each in styles] == [
        True,
        True,
    ]
    folders = {each.rpartition("/")[0] for each in scripts if each.endswith(".js")}
    assert len(folders) == 1
    assert re.search(r"/help/talk/modules/[0-9a-f]{16}$", folders.pop())
