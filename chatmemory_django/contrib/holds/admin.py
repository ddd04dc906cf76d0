"""The admin of legal holds: they are placed and ended, and not changed."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from chatmemory_django.admin.changelist import KeyedList
from chatmemory_django.contrib.holds.models import LegalHold


@admin.register(LegalHold)
class LegalHoldAdmin(admin.ModelAdmin):
    """Who placed which hold, why, and until when."""

    list_display = ("reason", "conversation", "owner", "placed_by", "created_at", "until", "is_in_force", "ended_by")
    list_select_related = ("conversation", "owner")
    list_filter = ("until",)
    search_fields = ("reason", "conversation__memory_id")
    raw_id_fields = ("conversation", "owner")
    fields = ("conversation", "owner", "reason", "until")
    actions = ("end_holds",)

    def has_delete_permission(self, request: HttpRequest, obj: LegalHold | None = None) -> bool:
        """Return whether the page deletes what it was on: it goes with that, once it has ended, and not by itself."""
        match = request.resolver_match
        return match is not None and "legalhold" not in (match.url_name or "")

    @admin.display(description=_("active"), boolean=True)
    def is_in_force(self, hold: LegalHold) -> bool:
        """Return whether it forbids to erase now."""
        return hold.is_active

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return KeyedList

    def get_fields(self, request: HttpRequest, obj: LegalHold | None = None) -> tuple[str, ...]:
        return self.fields if obj is None else (*self.fields, "placed_by", "created_at", "ended_by")

    def get_readonly_fields(self, request: HttpRequest, obj: LegalHold | None = None) -> tuple[str, ...]:
        return () if obj is None else self.get_fields(request, obj)

    def save_model(self, request: HttpRequest, obj: LegalHold, form: Any, change: bool) -> None:
        """Note who has placed it."""
        if not change:
            obj.placed_by = request.user.get_username()
            super().save_model(request, obj, form, change)

    @admin.action(description=_("End the selected holds now"), permissions=["change"])
    def end_holds(self, request: HttpRequest, holds: QuerySet[LegalHold]) -> None:
        """End *holds*; each is in the admin's log."""
        for hold in holds:
            hold.end(request.user)  # type: ignore[arg-type]  # staff
            self.log_change(request, hold, _("Ended."))
