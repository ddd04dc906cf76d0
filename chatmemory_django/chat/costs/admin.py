"""The admin of calls of models: a list of them, and a page of what they used and cost."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any, NamedTuple

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Count, Prefetch, Q, Sum, prefetch_related_objects
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.dateparse import parse_date
from django.utils.formats import date_format, number_format
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from chatmemory_django.admin.additions import Fact, offers_filter, shows_facts
from chatmemory_django.admin.changelist import BoundedPaginator, KeyedList
from chatmemory_django.admin.filters import FormFilter, OwnerFilter, at_most, newest_keys
from chatmemory_django.admin.wording import moment
from chatmemory_django.chat.costs.conf import costs
from chatmemory_django.chat.costs.labels import MAX_LABELS
from chatmemory_django.chat.costs.spending import read_spending
from chatmemory_django.chat.costs.tables import ModelCall, ModelCallQuerySet, Outcome, Purpose
from chatmemory_django.chat.costs.usage import By, Usage, usage
from chatmemory_django.core.limits import is_storable
from chatmemory_django.core.shown import visible
from chatmemory_django.models import Conversation

PERIODS = (1, 7, 30, 90, 365)
"""The periods that the page offers, in days."""

SHOWN = 20
"""How many models, conversations and owners are shown: those with the most tokens."""

SHOWN_DAYS = 31
"""How many days have a row: the newest."""

MAX_CONVERSATION_DAYS = 30
"""For at most so many days, conversations of all owners have a table: each call of these days is read for that."""

FAILED_DAYS = 30
"""The filter finds conversations in which an answer has failed in as many past days."""

NEWEST = 200
"""Of how many of the newest calls the labels are shown."""


def priced(cost: Decimal | None) -> str:
    """Return *cost* as pages show it, with the currency if the site names one; a dash for None."""
    if cost is None:
        return "\N{EN DASH}"
    return f"{number_format(cost, decimal_pos=4, force_grouping=True)} {costs().CURRENCY}".strip()


class UsageRow(NamedTuple):
    """A row of a table: what it is about, the address of what is about that alone, and the numbers."""

    name: str | Promise
    url: str
    usage: Usage

    @property
    def error_rate(self) -> str:
        """How many percent of the calls have failed."""
        return number_format(100 * self.usage.failed / max(self.usage.calls, 1), decimal_pos=1)


class TypedFilter(FormFilter):
    """Calls with exactly the typed value in the column ``parameter_name``."""

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        value = self.value()
        if not value:
            return queryset
        return queryset.filter(**{str(self.parameter_name): value}) if is_storable(value) else queryset.none()


class ModelFilter(TypedFilter):
    """Calls of one model."""

    title = label = gettext_lazy("model")
    parameter_name = "model"


class ErrorFilter(TypedFilter):
    """Calls that one kind of error has ended."""

    title = label = gettext_lazy("error")
    parameter_name = "error"
    placeholder = "RateLimitError"


class SinceFilter(admin.SimpleListFilter):
    """Calls of the past days."""

    title = gettext_lazy("time")
    parameter_name = "days"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, str]]:
        return [
            (str(days), _("Past %(days)d days") % {"days": days} if days > 1 else _("Past 24 hours"))
            for days in PERIODS
        ]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        days = self.value()
        if days not in dict(self.lookup_choices):
            return queryset
        now = timezone.now()
        return queryset.between(now - datetime.timedelta(days=int(days or 0)), now)


class CallList(KeyedList):
    """The list of calls. Owners and conversations are read without a join: users may be in another database."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list: list[ModelCall] = list(self.result_list)
        # Without titles, which need a key where they are encrypted.
        conversations = Prefetch("conversation", Conversation.objects.only("memory_id"))
        prefetch_related_objects(self.result_list, "owner", conversations)


@admin.register(ModelCall)
class ModelCallAdmin(admin.ModelAdmin):
    """The list of calls of models, and the page of what they used and cost. Nothing of it can be changed."""

    list_display = (
        "time",
        "purpose",
        "model",
        "end",
        "duration",
        "input",
        "output",
        "price",
        "of_conversation",
        "payer",
    )
    list_display_links = None
    list_filter = (SinceFilter, "outcome", "purpose", ModelFilter, ErrorFilter, OwnerFilter)
    list_per_page = 50
    ordering = ("-created_at",)
    sortable_by = ()  # other orders would read all calls
    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER

    class Media:
        css = {"all": ("chatmemory/admin.css",)}  # noqa: RUF012  # as Django documents it

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: ModelCall | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: ModelCall | None = None) -> bool:
        return False

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return CallList

    def get_urls(self) -> list[URLPattern]:
        usage_page = path("usage/", self.admin_site.admin_view(self.usage_view), name=f"{_prefix(self)}_usage")
        return [usage_page, *super().get_urls()]

    @admin.display(description=gettext_lazy("time"))
    def time(self, call: ModelCall) -> SafeString:
        """Return when the call began."""
        return format_html(
            '<time class="cm-moment" datetime="{}">{}</time>', call.created_at.isoformat(), moment(call.created_at)
        )

    @admin.display(description=gettext_lazy("outcome"))
    def end(self, call: ModelCall) -> SafeString:
        """Return how the call ended, and with which error."""
        style = "cm-bad" if call.outcome == Outcome.FAILED else ""
        return format_html('<span class="cm-outcome {}">{}</span> {}', style, call.get_outcome_display(), call.error)

    @admin.display(description=gettext_lazy("seconds"))
    def duration(self, call: ModelCall) -> str:
        """Return how long it took."""
        return "" if call.seconds is None else number_format(call.seconds, decimal_pos=2, force_grouping=True)

    @admin.display(description=gettext_lazy("input tokens"))
    def input(self, call: ModelCall) -> str:
        """Return what the model read."""
        return _tokens(call, call.input_tokens)

    @admin.display(description=gettext_lazy("output tokens"))
    def output(self, call: ModelCall) -> str:
        """Return what the model wrote."""
        return _tokens(call, call.output_tokens)

    @admin.display(description=gettext_lazy("cost"))
    def price(self, call: ModelCall) -> str:
        """Return what it cost."""
        return priced(call.cost)

    @admin.display(description=gettext_lazy("conversation"))
    def of_conversation(self, call: ModelCall) -> SafeString | None:
        """Return the memory id of its conversation, as a link to the page of that."""
        if call.conversation is None:
            return None
        url = reverse("admin:chatmemory_conversation_change", args=[call.conversation.pk])
        return format_html('<a href="{}"><bdi class="cm-id">{}</bdi></a>', url, visible(call.conversation.memory_id))

    @admin.display(description=gettext_lazy("owner"))
    def payer(self, call: ModelCall) -> SafeString | None:
        """Return for whom it was made, as a link to all calls for that user."""
        if call.owner is None:
            return None
        query, shown = urlencode({"owner": call.owner.get_username()}), visible(str(call.owner))
        return format_html('<a href="?{}"><bdi class="cm-person">{}</bdi></a>', query, shown)

    def usage_view(self, request: HttpRequest) -> HttpResponse:
        """Show what calls used and cost, for the ``?days=`` until now, and for the ``?owner=`` with that key or all."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        asked = request.GET.get("days", "30")
        days = int(asked) if asked in map(str, PERIODS) else 30
        until = datetime.datetime.now(datetime.UTC)
        # Whole days, so that the first one in the plot is not too low.
        since = (until - datetime.timedelta(days=days - 1)).replace(hour=0, minute=0, second=0, microsecond=0)
        owner = request.GET.get("owner", "")
        calls: Any = self.get_queryset(request)
        if owner:
            calls = calls.filter(owner__in=_pks(owner))
        known = _names_of([owner]).get(owner) if owner else None  # the page does not repeat what is in its address

        def rows(by: By, limit: int = SHOWN) -> list[Usage]:
            return list(usage(calls, by, since=since, until=until, limit=limit))

        models = rows("model")
        purposes = dict(Purpose.choices)
        tables = [
            (_("By day"), _("Day"), [UsageRow(_day(row.key), "", row) for row in rows("day", SHOWN_DAYS)]),
            (_("By model"), _("Model"), [UsageRow(row.key or _("Unknown"), "", row) for row in models]),
            (_("By purpose"), _("Purpose"), [UsageRow(purposes[row.key or ""], "", row) for row in rows("purpose")]),
        ]
        if not owner:
            found = rows("user")
            names = _names_of(row.key for row in found)
            owners = [
                UsageRow(names.get(row.key, row.key) or _("Nobody"), _address(days, row.key), row) for row in found
            ]
            tables.append((_("By owner"), _("Owner"), owners))
        if owner or days <= MAX_CONVERSATION_DAYS:
            found = rows("conversation")
            conversations = [UsageRow(row.key or _("None, or erased"), self._searched(row.key), row) for row in found]
            tables.append((_("By conversation"), _("Conversation"), conversations))
        for name in _labels_in(calls):
            labelled = [UsageRow(row.key or _("Without this label"), "", row) for row in rows(f"label:{name}")]
            tables.append((_("By label: %(name)s") % {"name": name}, name, labelled))
        title = _("Usage")
        context = {
            **self.admin_site.each_context(request),
            "title": title,
            "original": title,
            "subtitle": (known or _("Unknown")) if owner else None,
            "opts": self.opts,
            "media": self.media,
            "has_view_permission": True,
            "days": days,
            "periods": PERIODS,
            "owner": owner if known else "",
            "currency": costs().CURRENCY,
            "spending": read_spending(calls, [row.key for row in models], since, until) if models else None,
            "tables": tables,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/chatmemory_chat/modelcall/page.html", context)

    def _searched(self, memory_id: str | None) -> str:
        """Return the address of the list of conversations that has the one *memory_id* alone."""
        url = reverse("admin:chatmemory_conversation_changelist", current_app=self.admin_site.name)
        return f"{url}?{urlencode({'q': memory_id})}" if memory_id else ""

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        raise Http404

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        raise Http404


class FailedFilter(admin.SimpleListFilter):
    """Conversations in which an answer has failed lately."""

    title = gettext_lazy("answer")
    parameter_name = "answer"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, Any]]:
        return [("failed", _("Failed in the past %(days)d days") % {"days": FAILED_DAYS})]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if self.value() != "failed":
            return queryset
        now = timezone.now()
        calls = ModelCall.objects.using(queryset.db).between(now - datetime.timedelta(days=FAILED_DAYS), now)
        failed = calls.filter(outcome=Outcome.FAILED, purpose=Purpose.ANSWER, conversation__isnull=False)
        found = queryset.filter(pk__in=failed.values("conversation"))
        return queryset.filter(pk__in=at_most(newest_keys(found), request))


def calls_of(request: HttpRequest, conversation: Conversation) -> Iterator[Fact]:
    """Yield what the calls of models in *conversation* were and cost, for who may view calls; see ``Facts``."""
    if not request.user.has_perm("chatmemory_chat.view_modelcall"):
        return
    rows = ModelCall.objects.using(conversation._state.db).filter(conversation=conversation.pk)
    sums = rows.aggregate(calls=Count("pk"), failed=Count("pk", filter=Q(outcome=Outcome.FAILED)), cost=Sum("cost"))
    if not sums["calls"]:
        return
    text = ngettext("%(number)s call", "%(number)s calls", sums["calls"]) % {"number": _number(sums["calls"])}
    if sums["failed"]:
        text = _("%(calls)s, %(failed)s failed") % {"calls": text, "failed": _number(sums["failed"])}
    url = f"{reverse('admin:chatmemory_chat_modelcall_changelist')}?conversation={conversation.pk}"
    yield Fact(_("Model calls"), text, url)
    if sums["cost"] is not None:
        yield Fact(_("Cost"), priced(sums["cost"]))


def _number(number: int) -> str:
    return str(number_format(number, force_grouping=True))


def _prefix(model_admin: admin.ModelAdmin) -> str:
    return f"{model_admin.opts.app_label}_{model_admin.opts.model_name}"


def _tokens(call: ModelCall, tokens: int | None) -> str:
    if tokens is None:
        return ""
    return f"{'~' if call.is_estimate else ''}{number_format(tokens, force_grouping=True)}"


def _day(key: str | None) -> str:
    day = parse_date(str(key))
    return str(key) if day is None else date_format(day)


def _address(days: int, owner: str | None) -> str:
    return "" if owner is None else f"?{urlencode({'days': str(days), 'owner': owner})}"


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


shows_facts(calls_of)
offers_filter(FailedFilter)
