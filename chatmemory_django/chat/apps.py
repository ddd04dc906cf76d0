"""The app's configuration."""

from typing import Any

from django.apps import AppConfig, apps
from django.core.checks import Tags, register
from django.db.models import DO_NOTHING
from django.db.models.signals import pre_delete
from django.utils.translation import gettext_lazy as _


class ChatConfig(AppConfig):
    """The chat over HTTP. Its tables hold answers while they are being generated."""

    name = "chatmemory_django.chat"
    label = "chatmemory_chat"
    verbose_name = _("Chat")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks, and what is deleted with conversations and by pruning."""
        from django.contrib.auth import get_user_model

        from chatmemory_django.chat import checks  # models can be imported only now
        from chatmemory_django.chat.approvals.tables import forget_approvals, forget_left_approvals
        from chatmemory_django.chat.costs import moving
        from chatmemory_django.chat.costs.calls import PRUNINGS
        from chatmemory_django.chat.costs.tables import CallSum, ModelCall, forget_payer
        from chatmemory_django.chat.runs.streams import delete_rest, forget_streams, left
        from chatmemory_django.models.copies import (
            OfOwners,
            Pruning,
            exports,
            finds_remnants,
            keeps_copies,
            outlives,
            prunes,
        )

        owners: list[Any] = [each._meta.get_field("owner") for each in (ModelCall, CallSum)]
        if not owners[0].db_constraint:
            for owner in owners:
                owner.remote_field.on_delete = DO_NOTHING
            for model in apps.get_models():
                if issubclass(model, get_user_model()):  # each proxy model sends signals of its own
                    pre_delete.connect(forget_payer, sender=model, dispatch_uid="chatmemory_chat")
        outlives(ModelCall)
        exports(
            OfOwners(
                ModelCall, moving.exported_call, moving.restore_call, related={"memory_id": "conversation__memory_id"}
            ),
            OfOwners(CallSum, moving.exported_sum, moving.restore_sum),
        )
        prunes(Pruning(forget_left_approvals), Pruning(delete_rest), *PRUNINGS)
        keeps_copies(forget_approvals, of_rows=True)
        register(checks.check_chat)
        register(checks.check_assistant)
        register(checks.check_waiting, Tags.database)
        register(checks.check_chat_deployment, Tags.security, deploy=True)
        keeps_copies(forget_streams)
        finds_remnants(left)
