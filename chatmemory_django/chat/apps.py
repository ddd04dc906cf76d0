"""The app's configuration."""

from django.apps import AppConfig
from django.core.checks import register
from django.utils.translation import gettext_lazy as _


class ChatConfig(AppConfig):
    """The chat over HTTP. Its tables hold answers while they are being generated."""

    name = "chatmemory_django.chat"
    label = "chatmemory_chat"
    verbose_name = _("Chat")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks, and what is deleted when conversations are erased."""
        from chatmemory_django.chat import checks  # models can be imported only now
        from chatmemory_django.chat.runs import erasing
        from chatmemory_django.models.copies import keeps_copies

        register(checks.check_chat)
        register(checks.check_assistant)
        keeps_copies(erasing.forget_streams)
