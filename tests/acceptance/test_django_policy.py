"""The pages under Django's own middleware for a Content-Security-Policy, which it has since 6.0."""

import django
import pytest
from django.conf import settings as site_settings
from pytest_django.live_server_helper import LiveServer

from chatmemory_django.messages import AiMessage, Image, ImageContent, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory
from example_project.policy import POLICY
from tests.acceptance.browser import chromium, needs_browser
from tests.faces.admin.admin_site import EVERYTHING, page, staff

__all__ = ["chromium"]  # a fixture

pytestmark = [
    pytest.mark.skipif(django.VERSION < (6, 0), reason="Django has it since 6.0"),
    pytest.mark.django_db(transaction=True),
]

OWN, DJANGOS = (
    "example_project.policy.ContentSecurityPolicyMiddleware",
    "django.middleware.csp.ContentSecurityPolicyMiddleware",
)
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture
def talk(settings) -> Conversation:
    """Set Django's middleware with the example site's policy, and return a conversation."""
    settings.MIDDLEWARE = [DJANGOS if each == OWN else each for each in settings.MIDDLEWARE]
    settings.SECURE_CSP = {
        name: values.split() for name, _, values in (each.strip().partition(" ") for each in POLICY.split(";"))
    }
    assert DJANGOS in settings.MIDDLEWARE
    user = staff(*EVERYTHING)
    picture = UserMessage([ImageContent(Image(base64_data=PNG, mime_type="image/png"))])
    get_chat_memory("c", owner=user).add(picture, AiMessage("**Grey**, with `code`."))
    return Conversation.objects.get(memory_id="c")


def test_it_sends_the_policy_of_the_example_site(talk, client):
    client.force_login(talk.owner)
    sent = client.get(page("changelist")).headers["Content-Security-Policy"]

    assert {each.strip() for each in sent.split(";")} == {each.strip() for each in POLICY.split(";")}


def test_it_leaves_the_stricter_policy_of_files_alone(talk, client):
    client.force_login(talk.owner)

    for address in ("/api/conversations/c/messages/1/media/0/", "/api/chat/c/files/1/0"):
        response = client.get(address)
        assert (response.status_code, response["Content-Type"]) == (200, "image/png")
        assert response.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"


@needs_browser
@pytest.mark.slow
def test_the_chat_and_the_admin_work_under_it(talk, client, chromium):
    client.force_login(talk.owner)
    server = LiveServer("localhost")
    complaints: list[str] = []
    context = chromium.new_context(base_url=server.url)
    try:
        cookie = client.cookies[site_settings.SESSION_COOKIE_NAME].value
        context.add_cookies([{"name": site_settings.SESSION_COOKIE_NAME, "value": cookie, "url": server.url}])
        opened = context.new_page()
        opened.on("console", lambda message: complaints.append(message.text))
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        for address, shown in (
            (page("changelist"), "#result_list tbody tr"),
            (page("change", talk.pk), ".cm-bubble img, .cm-message img, img"),
            ("/?chat=c", "strong"),
        ):
            opened.goto(address)
            opened.wait_for_selector(shown)
        opened.evaluate(
            "document.head.append(Object.assign(document.createElement('script'), {textContent: 'var x = 1'}))"
        )
    finally:
        context.close()
        server.stop()

    about_policy = [each for each in complaints if "Content Security Policy" in each]
    assert len(about_policy) == 1, about_policy  # of the script that the test adds, so that they would be seen
    assert [
        each for each in complaints if each not in about_policy and "favicon" not in each and "404" not in each
    ] == []
