"""The app as Django sees it."""

from django.apps import AppConfig
from django.core.checks import register
from django.utils.translation import gettext_lazy as _


class ChatMemoryConfig(AppConfig):
    """Chat memory. Its label, ``chatmemory``, names the tables, the permissions and the check ids."""

    name = "chatmemory_django"
    label = "chatmemory"
    verbose_name = _("Chat memory")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks, and have the settings say whether encodings may be fetched."""
        # Models are loaded only now.
        from chatmemory_django import checks, conf, encodings

        register(checks.check_settings)
        register(checks.check_databases)
        encodings.network_allowed = conf.allow_network
