"""The app's configuration."""

from typing import Any

from django.apps import AppConfig
from django.db.models import DO_NOTHING
from django.utils.translation import gettext_lazy as _


class HoldsConfig(AppConfig):
    """Legal holds. The table is in the same database as the conversations."""

    name = "chatmemory_django.contrib.holds"
    label = "chatmemory_holds"
    verbose_name = _("Legal holds")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register what forbids to erase, and leave holds of users in another database alone."""
        from chatmemory_django.contrib.holds.models import LegalHold, holds_on  # models are not loaded before
        from chatmemory_django.models.copies import holds_back

        owner: Any = LegalHold._meta.get_field("owner")
        if not owner.db_constraint:
            owner.remote_field.on_delete = DO_NOTHING
        holds_back(holds_on)
