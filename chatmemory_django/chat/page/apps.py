"""The app's configuration."""

from django.apps import AppConfig
from django.core.checks import register
from django.utils.translation import gettext_lazy as _


class ChatPageConfig(AppConfig):
    """The chat page. It has no tables: it is made of the chat over HTTP and the REST API."""

    name = "chatmemory_django.chat.page"
    label = "chatmemory_page"
    verbose_name = _("Chat page")

    def ready(self) -> None:
        """Register the system checks."""
        from chatmemory_django.chat.page import checks  # models can be imported only now

        register(checks.check_page)
        register(checks.check_urls)
