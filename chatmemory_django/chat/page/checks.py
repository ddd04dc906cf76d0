"""System checks of the chat page."""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Warning  # noqa: A004  # Django's name for it

from chatmemory_django.chat.page.conf import Page
from chatmemory_django.chat.page.given import missing_urls


def check_page(**kwargs: Any) -> list[CheckMessage]:
    """Check ``CHATMEMORY["PAGE"]``."""
    return Page.check()


def check_urls(**kwargs: Any) -> list[CheckMessage]:
    """Warn if the URLs of the site lack what the page needs."""
    missing = missing_urls() if hasattr(settings, "ROOT_URLCONF") else []
    if not missing:
        return []
    return [
        Warning(
            f"The chat page is in INSTALLED_APPS, and the URLs of the site lack {' and '.join(missing)}.",
            hint=(
                'path("chat/", include("chatmemory_django.chat.page.urls")) is the whole chat; with namespaces around '
                "it, its names are not found."
            ),
            id="chatmemory.W092",
        )
    ]
