"""A user and a person of the staff in two browsers at once, on a server that streams."""

import pytest

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
        "take": "Take it",
        "send": "Send the answer",
        "back": "Give it back to the assistant",
        "who": " answers here.",
        "bad": "Bad answer",
        "rate": "Send the rating",
    },
    "de-DE": {
        "take": "Übernehmen",
        "send": "Antwort senden",
        "back": "An den Assistenten zurückgeben",
        "who": " antwortet hier.",
        "bad": "Schlechte Antwort",
        "rate": "Bewertung senden",
    },
}


@pytest.mark.parametrize("language", WORDS)
def test_a_person_takes_over_answers_and_gives_back(chat, open_page, folder, axe, language):
    words = WORDS[language]
    customer = chat(user="visitor", language=language)
    customer.say("What is 2 + 3?")
    chat_id = customer.page.url.partition("?chat=")[2]
    key = manage(folder, "shell", "-v", "0", "-c", FIND.format(chat_id)).strip()
    staff = open_page(f"/admin/chatmemory_chat/queue/{key}/", user="staff", language=language)

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
    assert customer.questions == ["What is 2 + 3?", "Is anybody there?", "Thanks"]
    assert len(customer.answers) == 2

    staff.get_by_role("button", name=words["back"]).click()
    customer.page.wait_for_selector("#who", state="hidden")
    customer.say("What is 4 + 4?")

    assert "8" in customer.answers[-1]


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
