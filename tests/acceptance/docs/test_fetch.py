"""The request that the page on the REST API sends from a browser passes Django's check of the CSRF token."""

import pytest
from django.contrib.auth.models import User

from chatmemory_django.models import Conversation
from tests.acceptance.browser import chromium, needs_browser
from tests.acceptance.docs.pages import block_of

__all__ = ["chromium"]  # a fixture

pytestmark = [needs_browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def test_a_page_of_the_site_creates_a_conversation(chromium, live_server, client):
    anna = User.objects.create_user("anna")
    client.force_login(anna)
    opened = chromium.new_page()
    opened.context.add_cookies(
        [{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_server.url}]
    )
    opened.goto(f"{live_server.url}/")  # the page sets the cookie with the token

    opened.evaluate(f"async () => {{ {block_of('rest.md', 'csrfToken', 'js')} }}")

    assert Conversation.objects.get().owner == anna
    opened.close()
