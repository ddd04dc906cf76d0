"""The admin in a real browser, under a strict Content-Security-Policy: Debian's Chromium, driven by Playwright.

Set ``SCREENSHOTS=folder`` in the environment to store screenshots of the pages there for inspection.
"""

import io
import json
import re
import uuid

import django
import pytest
from django.conf import settings
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import User
from django.core.management import call_command
from pytest_django.live_server_helper import LiveServer

from chatmemory_django.admin import ConversationAdmin
from chatmemory_django.formats.openai_chat import to_openai
from chatmemory_django.messages import (
    AiMessage,
    CustomMessage,
    Image,
    ImageContent,
    NewMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from example_project import memories
from tests.acceptance.browser import CONTRAST, FORMS, LAPTOP, PATIENCE, PHONE, chromium, needs_browser, overflow, shoot
from tests.faces.admin.admin_site import EVERYTHING, conversation, page, staff

__all__ = ["chromium"]  # a fixture

pytestmark = [needs_browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

DJANGO_S = {("label-title-only", "#searchbar")}
"""Findings of axe that Django's own admin pages have as well: rules, and where they are violated."""


@pytest.fixture(scope="module")
def site(django_db_setup, django_db_blocker):
    """Return the URL of the example site, whose policy is strict."""
    with django_db_blocker.unblock():
        server = LiveServer("localhost")
        yield server.url
        server.stop()


@pytest.fixture
def complaints():
    """Collect problems of pages: policy violations, errors, dialogs, requests to other hosts."""
    return []


@pytest.fixture
def open_page(chromium, client, site, complaints):
    """Return a function that opens a page as staff with every permission, and fails the test if the page misbehaves."""
    client.force_login(staff(*EVERYTHING))
    contexts = []

    def open_page(address, theme="light", viewport=None):
        context = chromium.new_context(
            color_scheme=theme,
            viewport=viewport or {"width": 1280, "height": 900},
            locale=settings.LANGUAGE_CODE,
            base_url=site,
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        cookie = client.cookies[settings.SESSION_COOKIE_NAME].value
        context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": cookie, "url": site}])
        opened = context.new_page()
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
def axe():
    """Return a function that returns axe's findings on a page, without those that Django's own pages have."""
    if django.VERSION < (6, 1):
        pytest.skip("earlier versions of Django have other findings")
    base = pytest.importorskip("axe_playwright_python.base", reason="axe: pip install axe-playwright-python")

    def axe(opened, but=DJANGO_S):
        opened.evaluate(base.AXE_SCRIPT)  # Through the debugger protocol, to which no policy applies.
        found = opened.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        places = [(rule["id"], " ".join(node["target"]), node["html"]) for rule in found for node in rule["nodes"]]
        return [place for place in places if place[:2] not in but]

    return axe


@pytest.fixture
def demo(transactional_db, settings):
    settings.CHATMEMORY = {"MEMORY": memories.SHIPPED}  # The same limit for all, which the list shows.
    call_command("demo", stdout=io.StringIO())
    return {each.memory_id: each for each in Conversation.objects.all()}


BROKEN_WORDS = """element => {
    // The words of the element that a line break or a hyphen divides: those whose letters are not on one line.
    const range = document.createRange();
    const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    const broken = [];
    while (walker.nextNode()) {
        for (const word of walker.currentNode.data.matchAll(/[\\p{L}\\p{N}]+/gu)) {
            range.setStart(walker.currentNode, word.index);
            range.setEnd(walker.currentNode, word.index + word[0].length);
            if (new Set([...range.getClientRects()].map(each => each.top)).size > 1) broken.push(word[0]);
        }
    }
    return broken;
}"""


class TestAxe:
    def test_excluded_findings_also_exist_in_django_s_user_list(self, open_page, axe, monkeypatch):
        User.objects.update(is_superuser=True)
        monkeypatch.setattr(UserAdmin, "search_help_text", "A name", raising=False)

        opened = open_page("/admin/auth/user/")

        assert {found[:2] for found in axe(opened, but=())} == DJANGO_S

    def test_axe_finds_problems(self, open_page, axe):
        opened = open_page(page("changelist"))

        opened.evaluate("document.querySelector('#searchbar').insertAdjacentHTML('afterend', '<input id=nameless>')")

        assert [found[:2] for found in axe(opened)] == [("label", "#nameless")]


class TestList:
    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_bars_are_as_long_as_memories_are_full(self, open_page, demo, theme):
        opened = open_page(page("changelist"), theme)

        shoot(opened, f"list-{theme}")
        assert opened.locator("#result_list tbody tr").count() == 5
        for row in opened.locator("#result_list tbody tr").all():
            talk = demo[row.locator(".cm-id").inner_text()]
            limit = row.locator(".cm-bar-limit").bounding_box()["width"]
            used = row.locator(".cm-bar-used").bounding_box()["width"]
            assert used / limit == pytest.approx(talk.memory_tokens / 4000, abs=0.02)

    def test_search_and_owner_filter_can_be_combined(self, open_page, demo):
        opened = open_page(page("changelist"))

        opened.fill("#searchbar", "umbrella")
        opened.press("#searchbar", "Enter")
        opened.wait_for_url("**q=umbrella**")
        opened.fill(".cm-typed input[name=owner]", "demo")
        opened.click(".cm-typed button")
        opened.wait_for_url("**owner=demo**")

        assert "q=umbrella" in opened.url
        assert "owner=demo" in opened.url
        assert [each.inner_text() for each in opened.locator("#result_list .cm-id").all()] == ["demo-night-train"]

    @pytest.mark.parametrize("theme", ["light", "dark"])
    @pytest.mark.parametrize("language", ["en", "de"])
    def test_long_values_cut_no_column_on_a_laptop(self, open_page, demo, settings, language, theme):
        settings.LANGUAGE_CODE = language
        owner = User.objects.create_user("a.user.with.a.long.name@example.com")
        uuid = "0192f5a0-7d3e-7c21-9b1a-5d2f4e0b7a11"
        conversation(UserMessage("Hi"), memory_id=uuid, title="A question about parcels that never came " * 6)
        large = conversation(UserMessage("Hi"), memory_id="support:" + "x" * 247, title="y" * 255, owner=owner)
        numbers = {"total_messages": 9_999_999, "memory_messages": 999_999, "memory_tokens": 9_999_999}
        Conversation.objects.filter(pk=large.pk).update(**numbers, counted_by="words")

        opened = open_page(page("changelist"), theme, LAPTOP)

        shoot(opened, f"list-laptop-{language}-{theme}")
        assert opened.locator(".results").evaluate("each => each.scrollWidth - each.clientWidth") <= 0
        for cell in opened.locator("#result_list tbody :is(th, td)").all():
            assert cell.evaluate("each => each.scrollWidth - each.clientWidth") <= 0, cell.inner_text()
        for header in opened.locator("#result_list thead .text").all():
            assert header.evaluate(BROKEN_WORDS) == []
        assert opened.locator("#result_list td:first-child + th").first.bounding_box()["width"] >= 200
        for name in opened.locator("#result_list .cm-id, #result_list .cm-person").all():
            assert name.evaluate("each => each.getClientRects().length") == 1
        shortened = opened.locator(f'#result_list .cm-id[title="{uuid}"]')
        assert shortened.locator("[aria-hidden]").inner_text() == "0192f5…0b7a11"
        assert shortened.evaluate("each => each.scrollWidth - each.clientWidth") <= 0

    def test_custom_columns_are_as_wide_as_their_content(self, open_page, demo, monkeypatch):
        conversation(UserMessage("Hi"), memory_id="x" * 255, title="y" * 255)
        shown = (*ConversationAdmin.list_display, "created_at", "version", "next_sequence")
        monkeypatch.setattr(ConversationAdmin, "list_display", shown)

        opened = open_page(page("changelist"), viewport=LAPTOP)

        shoot(opened, "list-more-columns")
        for cell in opened.locator("#result_list tbody :is(th, td)").all():
            assert cell.evaluate("each => each.scrollWidth - each.clientWidth") <= 0, cell.inner_text()
        for column in (".field-title", ".field-memory_id"):
            assert 90 < opened.locator(column).first.bounding_box()["width"] < 300
        assert overflow(opened) <= 0

    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_the_list_does_not_overflow_on_a_phone(self, open_page, demo, theme):
        opened = open_page(page("changelist"), theme, PHONE)

        shoot(opened, f"list-phone-{theme}")
        assert overflow(opened) <= 0

    @FORMS
    def test_the_list_is_accessible_and_legible(self, open_page, demo, axe, theme, viewport):
        Conversation.objects.filter(memory_id="demo-bread").update(memory_id="0192f5a0-7d3e-7c21-9b1a-5d2f4e0b7a11")

        for query in ("", "?q=umbrella&problem=tool", "?owner=demo&active=7&flag=unarchived&o=-2"):
            opened = open_page(page("changelist") + query, theme, viewport)

            assert axe(opened) == []
            for selector in (".cm-id", ".cm-title", ".cm-person", ".cm-figure", ".cm-moment", ".cm-typed button"):
                for element in opened.locator(selector).all():
                    assert element.evaluate(CONTRAST) >= 4.5, selector


class TestTranscript:
    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_all_text_is_legible_in_both_themes(self, open_page, demo, theme):
        opened = open_page(page("change", demo["demo-night-train"].pk), theme)

        shoot(opened, f"transcript-{theme}")
        for selector in (
            ".cm-text",
            ".cm-meta",
            ".cm-meta a",
            ".cm-kind",
            ".cm-badge",
            ".cm-facts dt",
            ".cm-field label",
            ".cm-fold > summary",
            ".cm-note",
        ):
            for element in opened.locator(selector).all():
                assert element.evaluate(CONTRAST) >= 4.5, selector
        background = opened.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(255, 255, 255)" if theme == "light" else "rgb(18, 18, 18)")

    @pytest.mark.parametrize("viewport", [LAPTOP, PHONE], ids=["laptop", "phone"])
    @pytest.mark.parametrize("language", ["en", "de"])
    def test_little_precedes_the_messages(self, open_page, demo, settings, language, viewport):
        settings.LANGUAGE_CODE = language
        opened = open_page(page("change", demo["demo-bread"].pk), viewport=viewport)

        top = opened.locator(".cm").bounding_box()["y"]
        first = opened.locator(".cm-message").first.bounding_box()["y"]

        shoot(opened, f"top-{language}-{viewport['width']}")
        assert first - top <= viewport["height"] / 3

    @FORMS
    def test_a_conversation_opens_at_its_newest_message_and_the_first_is_one_click_away(
        self, open_page, demo, theme, viewport
    ):
        opened = open_page(page("changelist"), theme, viewport)

        opened.get_by_role("link", name="Twelve weeks of bread").click()
        opened.wait_for_url("**#newest")

        seen = "each => { const {top} = each.getBoundingClientRect(); return 0 <= top && top < innerHeight; }"
        assert opened.locator("#m-169").evaluate(seen)
        opened.get_by_role("link", name="First message").first.click()
        opened.wait_for_url("**#first")
        assert opened.locator("#m-1").evaluate(seen)
        opened.get_by_role("link", name="Newest message").first.click()
        opened.wait_for_url("**#newest")
        assert opened.locator("#m-169").evaluate(seen)

    def test_the_plot_has_an_axis_and_its_count_is_that_of_the_page(self, open_page, demo, axe):
        opened = open_page(page("change", demo["demo-bread"].pk))
        assert opened.locator(".cm-plot").is_hidden()

        opened.locator(".cm-about > summary").press("Enter")

        assert opened.locator(".cm-of-messages").inner_text().split() == ["169", "0"]
        assert opened.locator(".cm-keys li").first.inner_text().strip() == "169 messages in the history (left)"
        opened.locator(".cm-menu > summary").press("Enter")
        assert axe(opened) == []

    def test_older_pages_are_reachable_and_evicted_messages_look_different(self, open_page, demo):
        opened = open_page(page("change", demo["demo-bread"].pk))
        assert opened.locator(".cm-message").count() == 50
        assert opened.locator(".cm-unsent").count() == 0

        opened.locator(".cm-pages a", has_text="Older messages").first.click()
        shoot(opened, "transcript-evicted")

        evicted = opened.locator(".cm-unsent").first
        assert evicted.evaluate("each => getComputedStyle(each).borderTopStyle") == "dashed"
        remembered = opened.locator(".cm-sent").first
        assert remembered.evaluate("each => getComputedStyle(each).borderTopStyle") == "solid"
        assert opened.locator(".cm-border").inner_text() == "The memory begins here"

    def test_arguments_are_collapsed_and_open_by_keyboard(self, open_page, demo):
        opened = open_page(page("change", demo["demo-night-train"].pk))
        fold = opened.locator(".cm-call details").first
        assert not fold.locator("pre").is_visible()

        fold.locator("summary").focus()
        opened.keyboard.press("Enter")

        assert fold.locator("pre").is_visible()
        assert '"city": "Vienna"' in fold.locator("pre").inner_text()

    def test_images_are_rendered(self, open_page, demo):
        opened = open_page(page("change", demo["demo-basil"].pk), "dark")

        image = opened.locator(".cm-media img")
        image.scroll_into_view_if_needed()
        # A function: an expression would be evaluated by eval() at each attempt, which the page forbids.
        opened.wait_for_function("() => document.querySelector('.cm-media img').complete")
        shoot(opened, "transcript-image-dark")
        assert image.evaluate("each => each.naturalWidth") > 0

    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_the_transcript_does_not_overflow_on_a_phone(self, open_page, demo, theme):
        for memory_id in ("demo-night-train", "demo-kyoto"):
            opened = open_page(page("change", demo[memory_id].pk), theme, PHONE)
            shoot(opened, f"{memory_id}-phone-{theme}", full_page=True)
            assert overflow(opened) <= 0

    def test_the_page_of_a_message_shows_its_json(self, open_page, demo):
        opened = open_page(page("change", demo["demo-kyoto"].pk))

        opened.locator(".cm-meta a").first.click()

        assert '"type": "SYSTEM"' in opened.locator(".cm-json").inner_text()
        opened.locator("a", has_text="Show in conversation").click()
        opened.wait_for_url("**#m-1")
        assert opened.locator("#m-1").is_visible()


MARKDOWN = """# Your week

Here are **three** options, see https://example.com/a and [the docs](https://docs.example.org):

1. One, with `code`
2. Two, ~~gone~~
   - nested

> A quote
>> in a quote

| day | sky | a rather long column heading | another one | and more | still more |
|---|---|---|---|---|---|
| Mon | rain | 1 | 2 | 3 | 4 |

```python
def f(x):
    return x  # a comment that is longer than a phone is wide
```

---
![A picture](https://tracker.example/pixel.png)"""


@pytest.fixture
def everything(transactional_db):
    """Create a conversation with everything that a page can show of one."""
    calls = [ToolExecutionRequest(str(number), "forecast", '{"city": "Bergen"}') for number in (1, 2)]
    messages = (
        SystemMessage("Be brief."),
        UserMessage("Will it rain?", name="Ann"),
        AiMessage(MARKDOWN, "a thought", attributes={"key": "value"}),
        AiMessage(tool_execution_requests=calls),
        ToolExecutionResultMessage("1", "forecast", "rain", is_error=True),
        UserMessage("And then?"),
    )
    get_chat_memory("everything").add(*(NewMessage(message, {"model": "gpt-4o"}) for message in messages))
    talk = Conversation.objects.get()
    talk.messages.filter(sequence=6).update(is_complete=False)
    Conversation.objects.update(metadata={"topic": "weather"})
    return talk


@FORMS
class TestEveryPageOfAConversation:
    def pages(self, talk) -> dict[str, str]:
        here = page("change", talk.pk)
        return {"everything": here, "hits": f"{here}?q=rain", "none": f"{here}?q=zebra", "day": f"{here}?on=x"}

    def test_the_page_fits_and_is_accessible(self, open_page, everything, axe, theme, viewport):
        addresses = self.pages(everything)
        for sequence in (1, 3, 5):
            addresses[f"message-{sequence}"] = page("message", everything.pk, sequence)

        for name, address in addresses.items():
            opened = open_page(address, theme, viewport)
            opened.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
            shoot(opened, f"{name}-{viewport['width']}-{theme}", full_page=True)
            assert overflow(opened) <= 0, name
            assert axe(opened) == [], name

    def test_the_page_is_legible(self, open_page, everything, theme, viewport):
        opened = open_page(page("change", everything.pk), theme, viewport)
        selectors = (
            *(".cm-markdown :is(p, li, a, td, th, code, s)", ".cm-meta a", ".cm-badge", ".cm-facts a", ".cm-note"),
            *(".cm-heading", ".cm-fold pre"),
        )

        opened.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")

        for selector in selectors:
            found = opened.locator(selector).all()
            assert found != [], selector
            for element in found:
                assert element.evaluate(CONTRAST) >= 4.5, selector
        opened = open_page(self.pages(everything)["hits"], theme, viewport)
        for selector in ("mark", ".cm-hits a", ".cm-hits time"):
            for element in opened.locator(selector).all():
                assert element.evaluate(CONTRAST) >= 4.5, selector

    def test_search_hits_and_jumps_work_by_clicking(self, open_page, demo, theme, viewport):
        talk = demo["demo-bread"]
        opened = open_page(page("change", talk.pk), theme, viewport)

        opened.fill("#cm-q", "starter")
        opened.press("#cm-q", "Enter")
        opened.wait_for_url("**q=starter**")
        hit = opened.locator(".cm-hits li").last
        assert hit.locator("mark").first.inner_text().lower() == "starter"
        number = hit.locator("a").inner_text().rpartition("#")[2]
        hit.click()

        opened.wait_for_url(f"**#m-{number}")
        assert "starter" in opened.locator(f"#m-{number}").inner_text().lower()
        assert opened.locator(f"#m-{number}").evaluate("each => getComputedStyle(each).outlineStyle") == "solid"
        opened.locator(".cm-pages a", has_text="Where the memory begins").first.click()
        opened.wait_for_url("**#memory")
        assert opened.locator("#memory").inner_text() == "The memory begins here"
        date = talk.messages.get(sequence=1).created_at.date().isoformat()
        opened.fill("#cm-on", date)
        opened.get_by_role("button", name="Go to date").click()
        opened.wait_for_url("**#m-1")
        assert opened.locator("#m-1").is_visible()


class TestCopy:
    @pytest.fixture
    def copied(self):
        def copied(opened) -> str:
            button = opened.get_by_role("button", name="Copy OpenAI JSON")
            opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
            opened.evaluate("void (window.setTimeout = () => 0)")  # else the button has its name again after a while
            button.click()
            opened.get_by_role("button", name="Copied").wait_for()
            return opened.evaluate("navigator.clipboard.readText()")

        return copied

    def test_the_memory_is_copied_as_openai_messages(self, open_page, everything, copied):
        opened = open_page(page("change", everything.pk))

        messages = json.loads(copied(opened))

        assert messages == to_openai(get_chat_memory("everything").messages())

    def test_a_message_is_copied_as_openai_message(self, open_page, everything, copied):
        opened = open_page(page("message", everything.pk, 2))

        assert json.loads(copied(opened)) == {"role": "user", "content": "Will it rain?", "name": "Ann"}

    def test_a_conversion_error_is_explained(self, open_page, everything):
        get_chat_memory("everything").add(CustomMessage({"no": "place"}))
        opened = open_page(page("change", everything.pk))
        opened.context.grant_permissions(["clipboard-read", "clipboard-write"])

        opened.get_by_role("button", name="Copy OpenAI JSON").click()

        opened.locator(".messagelist .error").wait_for()
        assert "Message #7 cannot be shown in OpenAI's format" in opened.locator(".messagelist").inner_text()

    def test_without_javascript_only_the_link_is_shown(self, chromium, client, site, everything):
        client.force_login(staff(*EVERYTHING))
        context = chromium.new_context(java_script_enabled=False, base_url=site)
        cookie = client.cookies[settings.SESSION_COOKIE_NAME].value
        context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": cookie, "url": site}])
        opened = context.new_page()

        opened.goto(page("change", everything.pk))

        assert opened.locator("button[data-copy]").is_hidden()
        opened.locator(".cm-menu > summary").press("Enter")
        assert opened.get_by_role("link", name="OpenAI JSON").is_visible()
        context.close()


class TestGauge:
    def test_segments_are_as_wide_as_their_messages_are_large(self, open_page, demo):
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
        assert re.sub(r"\s+", " ", opened.locator(".cm-gauge figcaption").inner_text()).endswith("99%")

    def test_the_gauge_has_an_accessible_name(self, open_page, demo):
        opened = open_page(page("change", demo["demo-bread"].pk))

        for image in opened.locator(".cm svg:not([aria-hidden])").all():
            assert image.get_attribute("role") == "img"
            assert image.get_attribute("aria-label")
        opened.locator(".cm-about > summary").press("Enter")
        assert opened.get_by_role("row", name="AI 42").count() == 1


class TestClear:
    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_clear_asks_for_confirmation_and_clears(self, open_page, demo, theme):
        talk = demo["demo-bread"]
        opened = open_page(page("change", talk.pk), theme)

        opened.locator(".cm-menu > summary").press("Enter")
        opened.get_by_role("link", name="Clear memory").click()
        shoot(opened, f"clear-{theme}")
        assert "85 messages will leave the memory" in opened.locator(".cm-consequences").inner_text()
        assert opened.locator("button.cm-danger").evaluate(CONTRAST) >= 4.5
        opened.get_by_role("button", name="Yes, clear").click()

        shoot(opened, f"cleared-{theme}")
        assert "Cleared the memory of 1 conversation." in opened.locator(".messagelist").inner_text()
        assert "0 of 4,000 tokens" in opened.locator(".cm-gauge").inner_text()
        assert opened.locator(".cm-sent").count() == 0
        talk.refresh_from_db()
        assert (talk.memory_messages, talk.total_messages) == (0, 169)

    @FORMS
    def test_branches_can_be_viewed_and_switched(self, open_page, transactional_db, axe, theme, viewport):
        memory = get_chat_memory("branches")
        call = ToolExecutionRequest(id="1", name="look", arguments="{}")
        memory.add(
            UserMessage("Where is my parcel?"), AiMessage("In Hamburg.", None, [call]), UserMessage("Thank you!")
        )
        for answer in ("In Bremen, as far as is known.", "I do not know."):
            memory.rewind(1)
            memory.add(AiMessage(answer))
        talk = Conversation.objects.get()
        opened = open_page(page("change", talk.pk), theme, viewport)
        name = f"{theme}-{'phone' if viewport == PHONE else 'laptop'}"

        def check(page_name):
            shoot(opened, f"branches-{page_name}-{name}", full_page=True)
            assert overflow(opened) <= 0
            assert axe(opened) == []
            for selector in (".cm-place", ".cm-place a", ".cm-operations > summary", ".cm-operations a", ".cm-choice"):
                for element in opened.locator(selector).all():
                    assert element.evaluate(CONTRAST) >= 4.5, selector

        assert "3 of 3" in opened.locator(".cm-place").inner_text()
        opened.locator("#m-4, #m-5").last.locator(".cm-operations > summary").press("Enter")
        check("path")
        opened.get_by_role("link", name="Show all branches").click()
        opened.wait_for_url("**branches=all")
        assert opened.locator(".cm-message").count() == 5
        check("all")
        opened.locator("#m-4").get_by_label("Previous alternative: #2").click()
        opened.wait_for_url("**/messages/2/switch/")
        check("switch")
        assert "In Hamburg." in opened.locator(".cm-message .cm-text").inner_text()
        opened.get_by_role("button", name="Yes, switch").click()
        opened.wait_for_url("**#m-2")

        texts = [each.inner_text() for each in opened.locator(".cm-message .cm-text").all()]
        assert texts == ["Where is my parcel?", "In Hamburg.", "Thank you!"]
        opened.goto(page("remove", talk.pk, 2))
        opened.get_by_label("Include what belongs to it").check()
        check("remove")

    def test_clear_can_be_cancelled(self, open_page, demo):
        talk = demo["demo-bread"]
        opened = open_page(page("clear", talk.pk))

        opened.get_by_role("link", name="No, take me back").click()

        opened.wait_for_url(f"**{page('change', talk.pk)}")
        talk.refresh_from_db()
        assert talk.memory_messages == 85

    def test_selected_conversations_are_cleared_from_the_list(self, open_page, demo):
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


class TestSupport:
    @FORMS
    def test_support_finds_the_conversation_that_a_customer_means_and_hands_it_out(
        self, open_page, transactional_db, axe, tmp_path, theme, viewport
    ):
        """Among 4,000 conversations without titles, of which the customer has three, and only a word is known."""
        ann = User.objects.create_user("ann@example.com", first_name="Ann")
        new = [Conversation(memory_id=f"{uuid.uuid4()}:orders", next_sequence=2, total_messages=1) for _ in range(4000)]
        Conversation.objects.bulk_create(new, batch_size=500)
        texts = (f"Where is the parcel of order {number}?" for number in range(4000))
        rows = [
            Message(conversation=each, sequence=1, type="USER", text=text)
            for each, text in zip(Conversation.objects.order_by("pk"), texts, strict=True)
        ]
        Message.objects.bulk_create(rows, batch_size=500)
        for name, question in (("a", "Hello"), ("b", "The <b>samovar</b> leaks since Sunday."), ("c", "Thanks")):
            get_chat_memory(f"{ann.pk}:{name}", owner=ann).add(UserMessage(question), AiMessage("We send a new one."))

        opened = open_page(page("changelist"), theme, viewport)
        opened.fill("#searchbar", "samovar")
        opened.press("#searchbar", "Enter")
        opened.wait_for_url("**q=samovar**")
        shoot(opened, f"support-{theme}-search")
        (row,) = opened.locator("#result_list tbody tr").all()
        assert row.locator(".cm-hit mark").inner_text() == "samovar"
        assert row.locator(".cm-person").inner_text() == "ann@example.com"
        row.locator("th a").press("Enter")
        opened.locator(".cm-hits a").first.press("Enter")
        opened.wait_for_url("**#m-1")
        assert "leaks since Sunday" in opened.locator("#m-1").inner_text()

        opened.get_by_role("link", name="Export").press("Enter")
        assert opened.get_by_label("A page to read or print (HTML)").is_checked()
        assert axe(opened) == []
        shoot(opened, f"support-{theme}-export")
        downloads = []
        opened.on("download", lambda download: downloads.append(download))
        opened.get_by_role("button", name="Yes, export").press("Enter")
        while not downloads:
            opened.wait_for_timeout(50)
        file = opened._wrapped(downloads[0])
        assert file.suggested_filename.endswith(".html")
        file.save_as(tmp_path / "talk.html")
        document = opened.context.new_page()
        document.goto((tmp_path / "talk.html").as_uri())

        assert overflow(document) <= 0
        shoot(document, f"support-{theme}-document")
        assert document.locator("article p").all_inner_texts() == [
            "The <b>samovar</b> leaks since Sunday.",
            "We send a new one.",
        ]
        assert "ann@example.com" in document.locator("article h2").first.inner_text()


class TestPolicy:
    def test_hostile_messages_have_no_effect(self, open_page):
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

    def test_the_policy_is_in_effect(self, open_page, complaints):
        opened = open_page(page("changelist"))

        opened.evaluate("""() => {
            window.refused = [];
            const hear = event => window.refused.push(event.effectiveDirective);
            document.addEventListener("securitypolicyviolation", hear);
            const script = document.createElement("script");
            script.textContent = "window.ran = true";
            document.body.append(script);
        }""")
        opened.wait_for_function("() => window.refused.length > 0")

        assert opened.evaluate("window.refused") == ["script-src-elem"]
        assert opened.evaluate("window.ran") is None
        complaints.clear()
