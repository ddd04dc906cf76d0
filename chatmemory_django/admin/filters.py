"""Filters of the list of conversations."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.auth import get_user_model
from django.http import HttpRequest
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from chatmemory_django import conf
from chatmemory_django.db import row_codec
from chatmemory_django.models import Conversation

MAX_PEOPLE = 1_000
"""Maximum number of users that a search for owners finds; a longer search term narrows it down."""


MAX_FOUND = 1_000
"""Maximum number of conversations that a filter or search which reads messages finds."""


def newest_keys(found: Any) -> set[int]:
    """Return the keys of the newest conversations of *found*, read once for the count, the dates and the rows."""
    return set(found.order_by("-pk").values_list("pk", flat=True)[: MAX_FOUND + 1])


def at_most(keys: set[int], request: HttpRequest) -> list[int]:
    """Return the newest ``MAX_FOUND`` of *keys*, and warn the user if there are more."""
    if len(keys) > MAX_FOUND and request.method == "GET":
        warning = gettext("More than %(count)d conversations match; only the newest are shown.")
        messages.warning(request, warning % {"count": MAX_FOUND})
    return sorted(keys, reverse=True)[:MAX_FOUND]


def people_named(name: str, lookup: str) -> list[Any]:
    """Return the keys of at most ``MAX_PEOPLE`` users with *name*, without a join: they may be in another database."""
    users = get_user_model()
    found = users._default_manager.filter(**{f"{users.USERNAME_FIELD}__{lookup}": name})
    return list(found.values_list("pk", flat=True)[:MAX_PEOPLE])


class FormFilter(admin.SimpleListFilter):
    """A filter by what the user types into a form."""

    template = "admin/chatmemory/conversation/form_filter.html"
    input_type = "search"
    label: Any
    placeholder: Any = ""

    def __init__(self, request: HttpRequest, params: dict[str, Any], *args: Any) -> None:
        super().__init__(request, params, *args)
        # The other parameters of the page, which the form sends along.
        self.others = [(name, value) for name in request.GET for value in request.GET.getlist(name)]

    def has_output(self) -> bool:
        return True

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, Any]]:
        return []

    @property
    def typed(self) -> str:
        """What the form shows."""
        return "" if self.value() in {None, *dict(self.lookup_choices)} else str(self.value())

    @property
    def hidden(self) -> list[tuple[str, str]]:
        """The other parameters of the page, except the page number."""
        return [(name, value) for name, value in self.others if name not in {self.parameter_name, "p", "e"}]


class OwnerFilter(FormFilter):
    """Conversations of one owner, or without an owner. A text field, since a list of all users could be too long."""

    title = _("owner")
    parameter_name = "owner"
    NO_OWNER = "/"  # Django does not accept this as a username

    @property
    def placeholder(self) -> str:
        """What the site's users are named by: a username, or an email address."""
        users = get_user_model()
        name: Any = users._meta.get_field(users.USERNAME_FIELD)
        return str(capfirst(name.verbose_name))

    @property
    def label(self) -> str:
        """The accessible name of the form's field."""
        return gettext("%(name)s of the owner") % {"name": self.placeholder}

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, Any]]:
        return [(self.NO_OWNER, _("No owner"))]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        name = self.value()
        if not name:
            return queryset
        if name == self.NO_OWNER:
            return queryset.filter(owner=None)
        if "\0" in name:
            return queryset.none()  # PostgreSQL rejects NUL characters
        return queryset.filter(owner__in=people_named(name, "exact"))


class ActiveFilter(admin.SimpleListFilter):
    """Conversations with activity in the past days."""

    title = _("activity")
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


class UntilFilter(FormFilter):
    """Conversations without activity after a day: the way to those that are too old for the list."""

    title = _("last activity until")
    parameter_name = "until"
    input_type = "date"
    label = _("Last day")

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if not self.value():
            return queryset
        try:
            day = datetime.date.fromisoformat(str(self.value()))
        except ValueError as exc:
            raise IncorrectLookupParameters(exc) from exc
        if not 1000 < day.year < datetime.MAXYEAR:  # databases and time zones support these
            raise IncorrectLookupParameters(day)
        end = datetime.datetime.combine(day + datetime.timedelta(days=1), datetime.time.min)
        return queryset.idle_since(timezone.make_aware(end) if settings.USE_TZ else end)


class _Kinds(admin.SimpleListFilter):
    """A filter by one of *kinds*: the value in the URL, its name, and the verb that returns those conversations."""

    kinds: Sequence[tuple[str, Any, Callable[[Any], Any]]]

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, Any]]:
        return [(value, name) for value, name, _verb in self.kinds]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return next((verb(queryset) for value, _name, verb in self.kinds if value == self.value()), queryset)


class EvictionsFilter(_Kinds):
    """Conversations with or without messages that are no longer in the memory."""

    title = _("evicted messages")
    parameter_name = "evictions"
    kinds = (
        ("yes", _("Has evicted messages"), methodcaller("with_evictions")),
        ("no", _("All messages in memory"), methodcaller("without_evictions")),
    )


class EmptyFilter(_Kinds):
    """Conversations by whether their memory is empty, or whether they ever had a message."""

    title = _("memory")
    parameter_name = "memory"
    kinds = (
        ("used", _("Not empty"), methodcaller("filter", memory_messages__gt=0)),
        ("empty", _("Empty"), methodcaller("filter", memory_messages=0)),
        ("unused", _("Never used"), methodcaller("filter", total_messages=0, memory_messages=0)),
    )


class FlagFilter(_Kinds):
    """Conversations that are pinned or archived."""

    title = _("flag")
    parameter_name = "flag"
    kinds = (
        ("pinned", _("Pinned"), methodcaller("filter", is_pinned=True)),
        ("archived", _("Archived"), methodcaller("filter", is_archived=True)),
        ("unarchived", _("Not archived"), methodcaller("filter", is_archived=False)),
    )


class AssistantFilter(admin.SimpleListFilter):
    """Conversations of one of the assistants with a name in the settings, or of the one without; hidden without any."""

    title = _("assistant")
    parameter_name = "assistant"
    NO_NAME = "/"  # which no name has

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, Any]]:
        names = [(name, name) for name in conf.threads().ASSISTANTS]
        return [*names, (self.NO_NAME, _("No name"))] if names else []

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        name = self.value()
        if name not in dict(self.lookup_choices):
            return queryset
        return queryset.begun_with("" if name == self.NO_NAME else name)


class ProblemFilter(admin.SimpleListFilter):
    """Conversations in which something went wrong; like a count, this reveals no message text."""

    title = _("problem")
    parameter_name = "problem"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = [("turn", _("Incomplete turn"))]
        return found if row_codec.installed is not None else [*found, ("tool", _("Failed tool call"))]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        match self.value():
            case "turn":
                found = queryset.with_incomplete_turns()
            case "tool" if row_codec.installed is None:
                found = queryset.with_failed_tools()
            case _:
                return queryset
        return queryset.filter(pk__in=at_most(newest_keys(found), request))


class RatingFilter(_Kinds):
    """Conversations with answers that users have rated, see ``operations.rate``."""

    title = _("rating")
    parameter_name = "rating"
    kinds = (
        ("bad", _("Bad (1 or 2)"), methodcaller("with_ratings", 1, 2)),
        ("good", _("Good (4 or 5)"), methodcaller("with_ratings", 4, 5)),
    )

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        found = super().queryset(request, queryset)
        return found if found is queryset else queryset.filter(pk__in=at_most(newest_keys(found), request))


class StateFilter(_Kinds):
    """Conversations by who answers in them."""

    title = _("who answers")
    parameter_name = "state"
    kinds = tuple((value, name, methodcaller("filter", state=value)) for value, name in Conversation.State.choices)


def asks_for(list_filter: Any, lookup: str) -> bool:
    """Return whether *list_filter*, an item of ``ModelAdmin.list_filter``, uses *lookup*."""
    if isinstance(list_filter, type):
        return lookup == getattr(list_filter, "parameter_name", None)
    path = list_filter if isinstance(list_filter, str) else list_filter[0]
    return lookup == path or lookup.startswith(f"{path}__")
