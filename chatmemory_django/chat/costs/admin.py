"""The admin of calls of models: what they used and cost, as a page with a plot. The calls themselves are not listed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.functional import Promise
from django.utils.translation import gettext as _

from chatmemory_django.chat.costs.labels import MAX_LABELS
from chatmemory_django.chat.costs.spending import read_spending
from chatmemory_django.chat.costs.tables import ModelCall, ModelCallQuerySet, Purpose
from chatmemory_django.chat.costs.usage import By, Usage, usage

PERIODS = (1, 7, 30, 90, 365)
"""The periods that the page offers, in days."""

SHOWN = 20
"""How many models and owners are shown: those with the most tokens."""


NEWEST = 200
"""Of how many of the newest calls the labels are shown."""


class UsageRow(NamedTuple):
    """A row of a table: what it is about, the key of its owner if it is about one, and the numbers."""

    name: str | Promise
    owner: str | None
    usage: Usage


@admin.register(ModelCall)
class ModelCallAdmin(admin.ModelAdmin):
    """The page of what calls of models used and cost, by day, model, purpose, owner and label, or for one owner."""

    class Media:
        css = {"all": ("chatmemory/admin.css",)}  # noqa: RUF012  # as Django documents it

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: ModelCall | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: ModelCall | None = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the page, for the ``?days=`` until now, and for the ``?owner=`` with that key, by default for all."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        asked = request.GET.get("days", "30")
        days = int(asked) if asked in map(str, PERIODS) else 30
        until = datetime.now(UTC)
        # Whole days, so that the first one in the plot is not too low.
        since = (until - timedelta(days=days - 1)).replace(hour=0, minute=0, second=0, microsecond=0)
        owner = request.GET.get("owner", "")
        calls: Any = self.get_queryset(request)
        if owner:
            calls = calls.filter(owner__in=_pks(owner))

        def rows(by: By) -> list[Usage]:
            return list(usage(calls, by, since=since, until=until, limit=SHOWN))

        models = rows("model")
        purposes = dict(Purpose.choices)
        tables = [
            (_("By model"), _("Model"), [UsageRow(row.key or _("Unknown"), None, row) for row in models]),
            (
                _("By purpose"),
                _("Purpose"),
                [UsageRow(purposes[row.key or ""], None, row) for row in rows("purpose")],
            ),
        ]
        if not owner:
            found = rows("user")
            names = _names_of(row.key for row in found)
            owners = [UsageRow(names.get(row.key, row.key) or _("Nobody"), row.key, row) for row in found]
            tables.append((_("By owner"), _("Owner"), owners))
        for name in _labels_in(calls):
            labelled = [UsageRow(row.key or _("Without this label"), None, row) for row in rows(f"label:{name}")]
            tables.append((_("By label: %(name)s") % {"name": name}, name, labelled))
        context = {
            **self.admin_site.each_context(request),
            "title": _("Usage"),
            "subtitle": _names_of([owner]).get(owner, owner) if owner else None,
            "opts": self.opts,
            "media": self.media,
            "days": days,
            "periods": PERIODS,
            "owner": owner,
            "spending": read_spending(calls, [row.key for row in models], since, until) if models else None,
            "tables": tables,
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/chatmemory_chat/modelcall/page.html", context)

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        raise Http404

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        raise Http404


def _labels_in(calls: ModelCallQuerySet) -> list[str]:
    """Return the names of the labels that the newest of *calls* have."""
    newest = calls.order_by("-created_at").values_list("labels", flat=True)[:NEWEST]
    return sorted({name for labels in newest for name in labels})[:MAX_LABELS]


def _names_of(keys: Iterable[str | None]) -> dict[str | None, str]:
    """Return the names of the users with these *keys*, by key."""
    users = get_user_model()._default_manager.filter(pk__in=[pk for key in keys for pk in _pks(key)])
    return {str(user.pk): user.get_username() for user in users}


def _pks(key: str | None) -> list[Any]:
    """Return the primary key that *key* is the text of; none if it cannot be one."""
    try:
        return [] if key is None else [get_user_model()._meta.pk.clean(key, None)]
    except ValidationError:
        return []
