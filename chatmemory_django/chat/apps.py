"""The app as Django sees it."""

from django.apps import AppConfig
from django.core.checks import register
from django.utils.translation import gettext_lazy as _


class ChatConfig(AppConfig):
    """A chat over HTTP. Its tables keep answers while they are made."""

    name = "chatmemory_django.chat"
    label = "chatmemory_chat"
    verbose_name = _("Chat")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks."""
        from chatmemory_django.chat import checks  # only now are models loaded

        register(checks.check_chat)
