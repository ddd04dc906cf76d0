"""The app's configuration."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class ChatPageConfig(AppConfig):
    """The chat page. It has no tables: it is made of the chat over HTTP and the REST API."""

    name = "chatmemory_django.chat.page"
    label = "chatmemory_page"
    verbose_name = _("Chat page")
