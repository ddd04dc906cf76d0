"""The app's configuration."""

from typing import Any

from django.apps import AppConfig, apps
from django.core.checks import Tags, register
from django.db.models import DO_NOTHING
from django.db.models.signals import pre_delete
from django.utils.translation import gettext_lazy as _


class ChatMemoryConfig(AppConfig):
    """Configuration of the app. Its label, ``chatmemory``, prefixes the tables, the permissions and the check ids."""

    name = "chatmemory_django"
    label = "chatmemory"
    verbose_name = _("Chat memory")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks and the signal handlers that erase data; let the settings control network access."""
        # Models are not loaded before this point.
        from django.contrib.auth import get_user_model

        from chatmemory_django import checks, conf, deployment
        from chatmemory_django.models import Conversation
        from chatmemory_django.models.erasing import erase_messages, forget_owner
        from chatmemory_django.signals import conversations_read
        from chatmemory_django.tokens import encodings

        owner: Any = Conversation._meta.get_field("owner")
        if not owner.db_constraint:
            owner.remote_field.on_delete = DO_NOTHING
            for model in apps.get_models():
                if issubclass(model, get_user_model()):  # each proxy model sends signals of its own
                    pre_delete.connect(forget_owner, sender=model, dispatch_uid="chatmemory")
        pre_delete.connect(erase_messages, sender=Conversation, dispatch_uid="chatmemory")
        conversations_read.connect(_log_read, dispatch_uid="chatmemory")
        register(checks.check_settings)
        register(checks.check_databases)
        register(checks.check_engines, Tags.database)
        register(checks.check_mariadb, Tags.database)
        register(checks.check_tables, Tags.database)
        register(deployment.check_deployment, Tags.security, deploy=True)
        encodings.network_allowed = lambda: conf.general().ALLOW_NETWORK


def _log_read(**kwargs: Any) -> None:
    from chatmemory_django.operations.admin_log import log_read  # loaded by the first read, since it is large

    log_read(**kwargs)
