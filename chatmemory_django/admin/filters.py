"""What the list of conversations can be narrowed to."""

from __future__ import annotations

import datetime
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

MAX_PEOPLE = 1_000
"""How many users a search for owners finds; who needs more of them searches for more."""


MAX_FOUND = 1_000
"""How many conversations a question that reads messages finds; who needs more of them asks for fewer."""


def newest_keys(found: Any) -> set[int]:
    """The keys of the newest conversations of *found*: read once, though a page asks for number, dates and rows."""
    return set(found.order_by("-pk").values_list("pk", flat=True)[: MAX_FOUND + 1])


def at_most(keys: set[int], request: HttpRequest) -> list[int]:
    """The newest ``MAX_FOUND`` of *keys*. If there are more, the page says so."""
    if len(keys) > MAX_FOUND and request.method == "GET":
        told = gettext("More than %(count)d conversations were found; these are the newest.") % {"count": MAX_FOUND}
        messages.warning(request, told)
    return sorted(keys, reverse=True)[:MAX_FOUND]


def people_named(name: str, lookup: str) -> list[Any]:
    """The keys of at most ``MAX_PEOPLE`` users of *name*: looked up apart, as they may be in another database."""
    users = get_user_model()
    found = users._default_manager.filter(**{f"{users.USERNAME_FIELD}__{lookup}": name})
    return list(found.values_list("pk", flat=True)[:MAX_PEOPLE])


class OwnerFilter(admin.SimpleListFilter):
    """One person's conversations, or nobody's. The person is typed in: a list of all users helps no one."""

    title = _("owner")
    parameter_name = "owner"
    template = "admin/chatmemory/conversation/owner_filter.html"
    NOBODY = "/"  # no name that Django accepts

    def __init__(self, request: HttpRequest, params: dict[str, Any], *args: Any) -> None:
        super().__init__(request, params, *args)
        # What else the page was asked for, so that the form can ask for it, too.
        self.others = [(name, value) for name in request.GET for value in request.GET.getlist(name)]

    def has_output(self) -> bool:
        return True

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, Any]]:
        return [(self.NOBODY, _("Nobody"))]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        name = self.value()
        if not name:
            return queryset
        if name == self.NOBODY:
            return queryset.filter(owner=None)
        if "\0" in name:
            return queryset.none()  # PostgreSQL has no such text
        return queryset.filter(owner__in=people_named(name, "exact"))

    @property
    def name(self) -> str:
        """The name that was asked for, if one was."""
        return "" if self.value() in {None, self.NOBODY} else str(self.value())

    @property
    def hidden(self) -> list[tuple[str, str]]:
        """The other parameters of the page, but for the page's number."""
        return [(name, value) for name, value in self.others if name not in {self.parameter_name, "p", "e"}]


class ActiveFilter(admin.SimpleListFilter):
    """Those written to within some days."""

    title = _("active since")
    parameter_name = "active"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, Any]]:
        return [
            ("1", _("Past 24 hours")),
            ("7", _("Past 7 days")),
            ("30", _("Past 30 days")),
            ("365", _("Past 365 days")),
        ]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        days = self.value()
        if days not in dict(self.lookup_choices):
            return queryset
        return queryset.active_since(timezone.now() - datetime.timedelta(days=int(days or 0)))


class EvictionsFilter(admin.SimpleListFilter):
    """Those of which something is no longer in the memory."""

    title = _("evictions")
    parameter_name = "evictions"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, Any]]:
        return [("yes", _("Has evictions")), ("no", _("All in memory"))]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        match self.value():
            case "yes":
                return queryset.with_evictions()
            case "no":
                return queryset.without_evictions()
        return queryset


class EmptyFilter(admin.SimpleListFilter):
    """Those with nothing in the memory, or nothing at all."""

    title = _("memory")
    parameter_name = "memory"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, Any]]:
        return [("used", _("In use")), ("empty", _("Empty")), ("unused", _("Nothing ever said"))]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        match self.value():
            case "used":
                return queryset.filter(memory_messages__gt=0)
            case "empty":
                return queryset.filter(memory_messages=0)
            case "unused":
                return queryset.filter(total_messages=0, memory_messages=0)
        return queryset


class FlagFilter(admin.SimpleListFilter):
    """Those that somebody has pinned, or put away."""

    title = _("flag")
    parameter_name = "flag"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, Any]]:
        return [("pinned", _("Pinned")), ("archived", _("Archived")), ("unarchived", _("Not archived"))]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        match self.value():
            case "pinned":
                return queryset.filter(is_pinned=True)
            case "archived":
                return queryset.filter(is_archived=True)
            case "unarchived":
                return queryset.filter(is_archived=False)
        return queryset


class ProblemFilter(admin.SimpleListFilter):
    """Those in which something went wrong. That it did is a fact, like a count, and nothing of what was said."""

    title = _("problem")
    parameter_name = "problem"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, Any]]:
        return [("turn", _("Turn not ended")), ("tool", _("Failed tool"))]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        match self.value():
            case "turn":
                found = queryset.with_incomplete_turns()
            case "tool":
                found = queryset.with_failed_tools()
            case _:
                return queryset
        return queryset.filter(pk__in=at_most(newest_keys(found), request))


def asks_for(list_filter: Any, lookup: str) -> bool:
    """Return whether *list_filter*, an item of ``ModelAdmin.list_filter``, is one that asks for *lookup*."""
    if isinstance(list_filter, type):
        return lookup == getattr(list_filter, "parameter_name", None)
    path = list_filter if isinstance(list_filter, str) else list_filter[0]
    return lookup == path or lookup.startswith(f"{path}__")
