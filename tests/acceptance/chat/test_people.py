"""A user and a person of the staff in two browsers at once, on a server that streams."""

from pathlib import Path

import pytest
from django.contrib.staticfiles import finders

from tests.acceptance.browser import chromium, needs_browser
from tests.acceptance.chat.live_site import manage
from tests.acceptance.chat.test_page import axe, chat, folder, open_page, session_of, sessions, site

__all__ = ["axe", "chat", "chromium", "folder", "open_page", "session_of", "sessions", "site"]  # fixtures

pytestmark = [needs_browser, pytest.mark.slow]

FIND = """
from chatmemory_django.models import Conversation
print(Conversation.objects.get(memory_id="{}").pk)
"""
WORDS = {
    "en-GB": {
        "call": "Call this chat Fjords",
        "approve": "Approve",
        "take": "Take it",
        "send": "Send the answer",
        "back": "Give it back to the assistant",
        "who": " answers here.",
        "bad": "Bad answer",
        "rate": "Send the rating",
    },
    "de-DE": {
        "call": "Call this chat Fjords",
        "approve": "Genehmigen",
        "take": "Übernehmen",
        "send": "Antwort senden",
        "back": "An den Assistenten zurückgeben",
        "who": " antwortet hier.",
        "bad": "Schlechte Antwort",
        "rate": "Bewertung senden",
    },
}


DESK = """
<div id="cm-live" data-stream="/stream"><input name="reason"><input name="reason"></div>
<script>
    const sources = [], waiting = [], fetched = [];
    window.setTimeout = then => waiting.push(then);
    window.EventSource = class { constructor() { sources.push(this); } close() { this.isClosed = true; } };
    window.fetch = async address => { fetched.push(address); return {ok: false, status: 403, redirected: false}; };
</script>
"""
"""A desk whose site refuses it, and does nothing by itself."""


def key_of(customer, folder) -> str:
    """Return the key of the conversation that is open on the page of *customer*."""
    chat_id = customer.page.url.partition("?chat=")[2]
    return manage(folder, "shell", "-v", "0", "-c", FIND.format(chat_id)).strip()


@pytest.fixture
def desk(chromium):
    page = chromium.new_page()
    script = Path(finders.find("chatmemory_chat/desk.js")).read_text()
    page.set_content(f"{DESK}<script>{script}</script>")
    yield page
    page.close()


def test_a_desk_that_is_refused_asks_once(desk):
    desk.evaluate("async () => { sources[0].onerror(); while (waiting.length) await waiting.shift()(); }")
    desk.evaluate("async () => { while (waiting.length) await waiting.shift()(); }")

    assert desk.evaluate("[sources.length, fetched.length]") == [1, 1]


def test_a_hidden_desk_has_no_stream(desk):
    show = """async isHidden => {
        Object.defineProperty(document, "hidden", {value: isHidden, configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
        await new Promise(requestAnimationFrame);
        return sources.map(source => Boolean(source.isClosed));
    }"""
    desk.evaluate("void (window.fetch = async () => ({ok: false, status: 503, redirected: false}))")

    assert desk.evaluate(show, True) == [True]
    assert desk.evaluate(show, False) == [True, False]


def test_a_desk_keeps_each_reason_that_is_typed(desk):
    desk.evaluate("document.querySelectorAll('input')[1].value = 'Too much.'")

    desk.evaluate("sources[0].onmessage({data: '{}'})")

    assert desk.evaluate("fetched") == []


def test_an_answer_that_is_being_typed_stays_while_another_form_is_sent(chat, open_page, folder):
    customer = chat(user="visitor")
    customer.say("Hello")
    staff = open_page(f"/admin/chatmemory_chat/queue/{key_of(customer, folder)}/", user="staff")
    staff.fill("#cm-text", "Good morning,\nhow")

    staff.get_by_role("button", name="Take it").click()
    staff.wait_for_selector("button:has-text('Give it back')")

    assert staff.input_value("#cm-text") == "Good morning,\nhow"
    staff.reload()
    assert staff.input_value("#cm-text") == ""
    staff.get_by_role("button", name="Give it back").click()
    staff.wait_for_selector("button:has-text('Take it')")


@pytest.mark.parametrize("language", WORDS)
def test_a_person_finds_approves_takes_over_answers_and_gives_back(chat, open_page, folder, axe, language):
    words = WORDS[language]
    customer = chat(user="visitor", language=language)
    customer.say("What is 2 + 3?", words["call"])
    staff = open_page("/admin/chatmemory_chat/queue/", user="staff", language=language)
    assert axe(staff) == []

    staff.locator(f"a[href$='/queue/{key_of(customer, folder)}/']").click()
    staff.get_by_role("button", name=words["approve"], exact=True).click()
    customer.page.wait_for_selector(".call[data-state=done]")  # without a reload
    customer.page.wait_for_selector(".message.assistant .text >> text=This conversation is now called")
    customer.wait()  # until then, no other question is sent
    assert len(customer.questions) == 2

    staff.get_by_role("button", name=words["take"]).click()
    staff.wait_for_selector(f"button:has-text({words['back']!r})")
    customer.say("Is anybody there?")

    customer.page.wait_for_selector(f"#who:has-text({words['who']!r})")
    staff.wait_for_selector(".cm-message:has-text('Is anybody there?')")  # without a reload
    assert axe(staff) == []

    staff.fill("#cm-text", "Yes, I am here.")
    staff.get_by_role("button", name=words["send"]).click()

    customer.page.wait_for_selector(".message.assistant:has-text('Yes, I am here.') .author")  # without a reload
    customer.say("Thanks")
    staff.wait_for_selector(".cm-message:has-text('Thanks')")
    assert customer.questions == ["What is 2 + 3?", words["call"], "Is anybody there?", "Thanks"]
    assert "Yes, I am here." in customer.answers[-1]

    staff.get_by_role("button", name=words["back"]).click()
    customer.page.wait_for_selector("#who", state="hidden")
    customer.say("What is 4 + 4?")

    assert "8" in customer.answers[-1]


def test_a_user_who_has_asked_nothing_hears_of_a_person_who_writes(chat, open_page, folder):
    customer = chat(user="visitor")
    customer.say("What is 2 + 3?")
    staff = open_page(f"/admin/chatmemory_chat/queue/{key_of(customer, folder)}/", user="staff")

    staff.fill("#cm-text", "Your parcel is here.")
    staff.get_by_role("button", name="Send the answer").click()

    customer.page.wait_for_selector(".message.assistant:has-text('Your parcel is here.') .author")  # without a reload
    customer.page.wait_for_selector("#who:has-text(' answers here.')")
    customer.page.reload()
    customer.page.wait_for_selector(".message.assistant:has-text('Your parcel is here.') .author")


def test_a_bad_answer_is_rated_with_a_reason(chat, folder):
    customer = chat(user="visitor")
    customer.say("What is 2 + 3?")

    customer.press(customer.page.locator(".message.assistant").last, "Bad answer")
    customer.page.fill("#reason", "I wanted words.")
    customer.page.get_by_role("button", name="Send the rating").click()
    customer.page.wait_for_selector(".message.assistant button[aria-pressed=true]")

    chat_id = customer.page.url.partition("?chat=")[2]
    shown = manage(folder, "export_chatmemory", "--memory-id", chat_id, "--format", "ratings")
    assert '"rating":1,"reason":"I wanted words."' in shown
