"""
The admin in a real browser, under a strict Content-Security-Policy: Debian's Chromium, driven by Playwright.

With ``SCREENSHOTS=folder`` in the environment, pictures of the pages are left there: look at them.
"""

import io
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import call_command
from django.test import override_settings
from pytest_django.live_server_helper import LiveServer

from chatmemory_django.messages import AiMessage, Image, ImageContent, ToolExecutionRequest, UserMessage
from chatmemory_django.models import Conversation
from tests.admin_site import EVERYTHING, conversation, page, staff

playwright = pytest.importorskip(
    "playwright.sync_api", reason="The tests in a browser need Playwright: pip install playwright"
)
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        CHROMIUM is None,
        reason="The tests in a browser need Chromium: apt-get install chromium, or set CHROMIUM to its path",
    ),
]

FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync"
)
PHONE = {"width": 390, "height": 844}

CONTRAST = """element => {
    // The least contrast between the element's colour and what lies behind it, by WCAG's formula.
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const layers = [];
    for (let each = element; each; each = each.parentElement) layers.unshift(getComputedStyle(each).backgroundColor);
    canvas.fillStyle = getComputedStyle(document.documentElement).colorScheme === "dark" ? "black" : "white";
    canvas.fillRect(0, 0, 1, 1);
    for (const layer of layers) { canvas.fillStyle = layer; canvas.fillRect(0, 0, 1, 1); }
    const behind = canvas.getImageData(0, 0, 1, 1).data;
    canvas.fillStyle = getComputedStyle(element).color;
    canvas.fillRect(0, 0, 1, 1);
    const before = canvas.getImageData(0, 0, 1, 1).data;
    const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
        .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const [low, high] = [light(behind), light(before)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
}"""


class Remote:
    """
    Something of Playwright's, used from another thread.

    Playwright keeps an event loop in its thread, and where one runs, Django has other connections to the database.
    """

    def __init__(self, thread: ThreadPoolExecutor, target: object) -> None:
        self._thread, self._target = thread, target

    def __getattr__(self, name: str):
        value = self._thread.submit(getattr, self._target, name).result()
        return self._called(value) if callable(value) else self._wrapped(value)

    def _called(self, method):
        return lambda *args, **options: self._wrapped(self._thread.submit(method, *args, **options).result())

    def _wrapped(self, value):
        if isinstance(value, list):
            return [self._wrapped(each) for each in value]
        return Remote(self._thread, value) if type(value).__module__.startswith("playwright.") else value


@pytest.fixture(scope="module")
def chromium():
    with ThreadPoolExecutor(max_workers=1) as thread:
        running = Remote(thread, thread.submit(lambda: playwright.sync_playwright().start()).result())
        browser = running.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield browser
        browser.close()
        running.stop()


@pytest.fixture(scope="module")
def site(django_db_setup, django_db_blocker):
    """The example site under the strict policy, and its address."""
    middleware = ["tests.strict_policy.strict_policy", *settings.MIDDLEWARE]
    with django_db_blocker.unblock(), override_settings(MIDDLEWARE=middleware):
        server = LiveServer("localhost")
        yield server.url
        server.stop()


@pytest.fixture
def complaints():
    """What pages had to complain about: violations of the policy, errors, dialogs, requests to elsewhere."""
    return []


@pytest.fixture
def open_page(chromium, client, site, complaints):
    """A function that opens a page as staff with every permission, and fails the test if the page misbehaved."""
    client.force_login(staff(*EVERYTHING))
    contexts = []

    def open_page(address, theme="light", viewport=None):
        context = chromium.new_context(
            color_scheme=theme, viewport=viewport or {"width": 1280, "height": 900}, base_url=site
        )
        contexts.append(context)
        cookie = client.cookies[settings.SESSION_COOKIE_NAME].value
        context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": cookie, "url": site}])
        opened = context.new_page()
        opened.set_default_timeout(10_000)
        opened.on("console", lambda message: complaints.append(message.text))
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        opened.on("dialog", lambda dialog: complaints.append(dialog.message))
        opened.on("request", lambda request: complaints.append(request.url) if is_elsewhere(request.url) else None)
        opened.goto(address)
        return opened

    def is_elsewhere(url):
        return not url.startswith((site, "about:"))

    yield open_page
    for context in contexts:
        context.close()
    assert [each for each in complaints if "favicon" not in each and "404" not in each] == []


@pytest.fixture
def demo(transactional_db):
    call_command("demo", stdout=io.StringIO())
    return {each.memory_id: each for each in Conversation.objects.all()}


def shoot(opened, name: str, *, full_page: bool = False) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        opened.screenshot(path=Path(folder) / f"{name}.png", full_page=full_page)


def overflow(opened) -> int:
    """How many pixels of the page are beyond the right edge."""
    return opened.evaluate("document.documentElement.scrollWidth - window.innerWidth")


class TestList:
    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_it_shows_the_conversations_with_bars_as_long_as_their_memories_are_full(self, open_page, demo, theme):
        opened = open_page(page("changelist"), theme)

        shoot(opened, f"list-{theme}")
        assert opened.locator("#result_list tbody tr").count() == 5
        for row in opened.locator("#result_list tbody tr").all():
            talk = demo[row.locator(".cm-id").inner_text()]
            limit = row.locator(".cm-bar-limit").bounding_box()["width"]
            used = row.locator(".cm-bar-used").bounding_box()["width"]
            assert used / limit == pytest.approx(talk.memory_tokens / 4000, abs=0.02)

    def test_a_search_and_a_filter_by_owner_go_together(self, open_page, demo):
        opened = open_page(page("changelist"))

        opened.fill("#searchbar", "umbrella")
        opened.press("#searchbar", "Enter")
        opened.wait_for_url("**q=umbrella**")
        opened.fill(".cm-owner input[name=owner]", "demo")
        opened.click(".cm-owner button")
        opened.wait_for_url("**owner=demo**")

        assert "q=umbrella" in opened.url
        assert "owner=demo" in opened.url
        assert [each.inner_text() for each in opened.locator("#result_list .cm-id").all()] == ["demo-night-train"]

    def test_on_a_phone_the_page_does_not_overflow(self, open_page, demo):
        opened = open_page(page("changelist"), viewport=PHONE)

        shoot(opened, "list-phone")
        assert overflow(opened) <= 0


class TestTranscript:
    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_everything_that_is_written_can_be_read_in_both_themes(self, open_page, demo, theme):
        opened = open_page(page("change", demo["demo-night-train"].pk), theme)

        shoot(opened, f"transcript-{theme}")
        for selector in (
            ".cm-text",
            ".cm-meta",
            ".cm-kind",
            ".cm-badge",
            ".cm-facts dt",
            ".cm-fold > summary",
            ".cm-note",
        ):
            for element in opened.locator(selector).all():
                assert element.evaluate(CONTRAST) >= 4.5, selector
        background = opened.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(255, 255, 255)" if theme == "light" else "rgb(18, 18, 18)")

    def test_older_pages_can_be_reached_and_what_was_evicted_looks_different(self, open_page, demo):
        opened = open_page(page("change", demo["demo-bread"].pk))
        assert opened.locator(".cm-message").count() == 50
        assert opened.locator(".cm-forgotten").count() == 0

        opened.locator(".cm-pages a", has_text="Older messages").first.click()
        shoot(opened, "transcript-evicted")

        forgotten = opened.locator(".cm-forgotten").first
        assert forgotten.evaluate("each => getComputedStyle(each).borderTopStyle") == "dashed"
        remembered = opened.locator(".cm-remembered").first
        assert remembered.evaluate("each => getComputedStyle(each).borderTopStyle") == "solid"
        assert opened.locator(".cm-border").inner_text() == "The memory begins here"

    def test_arguments_are_folded_and_the_keyboard_unfolds_them(self, open_page, demo):
        opened = open_page(page("change", demo["demo-night-train"].pk))
        fold = opened.locator(".cm-call details").first
        assert not fold.locator("pre").is_visible()

        fold.locator("summary").focus()
        opened.keyboard.press("Enter")

        assert fold.locator("pre").is_visible()
        assert '"city": "Vienna"' in fold.locator("pre").inner_text()

    def test_an_image_is_really_drawn(self, open_page, demo):
        opened = open_page(page("change", demo["demo-basil"].pk), "dark")

        image = opened.locator(".cm-media img")
        image.scroll_into_view_if_needed()
        opened.wait_for_function("document.querySelector('.cm-media img').complete")
        shoot(opened, "transcript-image-dark")
        assert image.evaluate("each => each.naturalWidth") > 0

    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_on_a_phone_nothing_overflows(self, open_page, demo, theme):
        for memory_id in ("demo-night-train", "demo-kyoto"):
            opened = open_page(page("change", demo[memory_id].pk), theme, PHONE)
            shoot(opened, f"{memory_id}-phone-{theme}", full_page=True)
            assert overflow(opened) <= 0

    def test_a_message_alone_shows_its_json(self, open_page, demo):
        opened = open_page(page("change", demo["demo-kyoto"].pk))

        opened.locator(".cm-meta a").first.click()

        assert '"type": "SYSTEM"' in opened.locator(".cm-json").inner_text()
        opened.locator("a", has_text="Back to the conversation").click()
        opened.wait_for_url("**#m-1")
        assert opened.locator("#m-1").is_visible()


class TestGauge:
    def test_its_pieces_are_as_wide_as_the_messages_are_large(self, open_page, demo):
        talk = demo["demo-bread"]
        opened = open_page(page("change", talk.pk))

        whole = opened.locator(".cm-gauge-all").bounding_box()["width"]
        pieces = opened.locator(".cm-gauge > svg rect[class^=cm-fill]").all()

        rows = list(talk.memory())
        assert len(pieces) == len(rows) == talk.memory_messages
        widths = opened.locator(".cm-gauge > svg rect[class^=cm-fill]").evaluate_all(
            "each => each.map(rect => rect.getBoundingClientRect().width)"
        )
        for width, row in zip(widths, rows, strict=True):
            assert width / whole == pytest.approx(row.token_count / 4000, abs=0.005)
        assert re.sub(r"\s+", " ", opened.locator(".cm-gauge figcaption").inner_text()).endswith("99 %")

    def test_it_has_a_name_for_those_who_do_not_see_it(self, open_page, demo):
        opened = open_page(page("change", demo["demo-bread"].pk))

        for image in opened.locator(".cm svg:not([aria-hidden])").all():
            assert image.get_attribute("role") == "img"
            assert image.get_attribute("aria-label")
        assert opened.get_by_role("row", name="AI 42").count() == 1


class TestClear:
    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_it_is_asked_confirmed_and_done(self, open_page, demo, theme):
        talk = demo["demo-bread"]
        opened = open_page(page("change", talk.pk), theme)

        opened.get_by_role("link", name="Clear memory").click()
        shoot(opened, f"clear-{theme}")
        assert "85 messages leave the memory" in opened.locator(".cm-consequences").inner_text()
        assert opened.locator("button.cm-danger").evaluate(CONTRAST) >= 4.5
        opened.get_by_role("button", name="Yes, clear").click()

        shoot(opened, f"cleared-{theme}")
        assert "Cleared the memory of 1 conversation." in opened.locator(".messagelist").inner_text()
        assert "0 of 4,000 tokens" in opened.locator(".cm-gauge").inner_text()
        assert opened.locator(".cm-remembered").count() == 0
        talk.refresh_from_db()
        assert (talk.memory_messages, talk.total_messages) == (0, 169)

    def test_it_can_be_called_off(self, open_page, demo):
        talk = demo["demo-bread"]
        opened = open_page(page("clear", talk.pk))

        opened.get_by_role("link", name="No, take me back").click()

        opened.wait_for_url(f"**{page('change', talk.pk)}")
        talk.refresh_from_db()
        assert talk.memory_messages == 85

    def test_from_the_list_those_selected_are_cleared(self, open_page, demo):
        opened = open_page(page("changelist"))

        for memory_id in ("demo-parcel", "demo-kyoto"):
            opened.locator("#result_list tr", has_text=memory_id).locator("input.action-select").check()
        opened.select_option("select[name=action]", "clear_memory")
        opened.locator(".actions button").click()
        opened.wait_for_selector(".cm-scroll")
        assert opened.locator(".cm-scroll tbody tr").count() == 2
        opened.get_by_role("button", name="Yes, clear").click()
        opened.wait_for_selector(".messagelist")

        cleared = Conversation.objects.filter(memory_messages=0).order_by("memory_id")
        assert [each.memory_id for each in cleared] == ["demo-kyoto", "demo-parcel"]


class TestPolicy:
    def test_hostile_messages_do_nothing(self, open_page):
        evil = "<script>alert(1)</script><img src=x onerror=alert(2)><style>*{display:none}</style>"
        talk = conversation(
            UserMessage([ImageContent(Image(url="https://tracker.example/pixel.png")), ImageContent(Image(url=evil))]),
            AiMessage(evil, evil, [ToolExecutionRequest(evil, evil, evil)]),
            UserMessage("\u202e" + "x" * 100_000),
            memory_id=evil[:200],
            title=evil[:200],
        )

        opened = open_page(page("change", talk.pk), viewport=PHONE)

        assert "<script>alert(1)</script>" in opened.locator("#m-2 > .cm-text").inner_text()
        assert overflow(opened) <= 0
        assert opened.locator("#m-3 > .cm-text").inner_text().startswith("⟦U+202E⟧xxx")

    def test_the_policy_is_in_force(self, open_page, complaints):
        opened = open_page(page("changelist"))

        opened.evaluate("""() => {
            window.refused = [];
            const hear = event => window.refused.push(event.effectiveDirective);
            document.addEventListener("securitypolicyviolation", hear);
            const script = document.createElement("script");
            script.textContent = "window.ran = true";
            document.body.append(script);
        }""")
        opened.wait_for_function("window.refused.length > 0", timeout=5_000)

        assert opened.evaluate("window.refused") == ["script-src-elem"]
        assert opened.evaluate("window.ran") is None
        complaints.clear()
