"""Filters and ordering of lists."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django import forms
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db.models import QuerySet
from django_filters import rest_framework as filters
from rest_framework import exceptions
from rest_framework.filters import OrderingFilter
from rest_framework.request import Request
from rest_framework.views import APIView

from chatmemory_django.core.limits import MAX_ASSISTANT_LENGTH, MAX_INTEGER
from chatmemory_django.db.moments import EARLIEST, LATEST
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, Message
from chatmemory_django.rest.problems import FieldName, InvalidQuery

EVERYBODY = "*"
"""The value of ``?owner=`` that includes all owners, and conversations without one."""


class BooleanFormField(forms.Field):
    """A field that accepts true, false, 1 and 0, case-insensitively, and nothing else."""

    def to_python(self, value: Any) -> bool | None:
        if not value:
            return None
        if value.lower() not in {"true", "false", "1", "0"}:
            raise ValidationError("It must be true or false.", "invalid")
        return value.lower() in {"true", "1"}


class BooleanFilter(filters.BooleanFilter):
    """A filter by ``true`` or ``false``."""

    field_class: Any = BooleanFormField

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, widget=forms.TextInput, **kwargs)


class IntegerFilter(filters.NumberFilter):
    """A filter by a whole number."""

    field_class: Any = forms.IntegerField


class MomentFormField(forms.Field):
    """A date and time in ISO 8601 with a time zone."""

    def to_python(self, value: Any) -> datetime | None:
        if value is None:
            return None
        try:
            return moment(value)
        except ValueError as exc:
            raise ValidationError(str(exc), "invalid") from None


class MomentFilter(filters.IsoDateTimeFilter):
    """A filter by a date and time."""

    field_class: Any = MomentFormField


class StrictFilterBackend(filters.DjangoFilterBackend):
    """A backend that filters with the view's ``filterset_class``, and responds 400 to invalid values."""

    def get_filterset(self, request: Any, queryset: QuerySet[Any], view: APIView) -> Any:
        """Return the filters; None if the request has no parameter of ``MessageFilter``, which is slow to build."""
        filterset_class: Any = self.get_filterset_class(view, queryset)
        if filterset_class is MessageFilter and not request.query_params.keys() & MessageFilter.base_filters.keys():
            return None
        return super().get_filterset(request, queryset, view)

    def filter_queryset(self, request: Any, queryset: QuerySet[Any], view: APIView) -> QuerySet[Any]:
        try:
            filtered: QuerySet[Any] = super().filter_queryset(request, queryset, view)
        except exceptions.ValidationError as exc:
            detail: Any = exc.detail
            raise InvalidQuery({FieldName(name): each for name, each in detail.items()}) from None
        return filtered


class StrictOrderingFilter(OrderingFilter):
    """A backend that orders by the view's ``ordering_fields``, and responds 400 to others."""

    ordering_param = "ordering"  # DRF's own class takes it from the site's settings

    def get_ordering(self, request: Request, queryset: QuerySet[Any], view: APIView) -> tuple[str, ...]:
        """Return the requested ordering followed by the view's own, which together order any two rows."""
        chosen = tuple(super().get_ordering(request, queryset, view) or ())
        names = {each.lstrip("-") for each in chosen}
        own = self.get_default_ordering(view) or ()
        return (*chosen, *(each for each in own if each.lstrip("-") not in names))

    def remove_invalid_fields(self, queryset: QuerySet[Any], fields: Any, view: APIView, request: Request) -> list[str]:
        valid: list[str] = super().remove_invalid_fields(queryset, fields, view, request)
        if len(valid) < len(list(fields)):
            names = ", ".join(view.ordering_fields)  # type: ignore[attr-defined]
            raise InvalidQuery({self.ordering_param: f"It may contain {names}, each with or without a leading minus."})
        return valid


class ConversationFilter(filters.FilterSet):
    """Filters of the list of conversations."""

    owner = filters.CharFilter(
        method="filter_owner", max_length=255, label="Owned by the user with this key, or `*` for all. Staff only."
    )
    memory_id = filters.CharFilter(max_length=255, label="With this memory id: one conversation, or none.")
    title = filters.CharFilter(
        method="filter_title",
        max_length=255,
        label="With this text in a title that the user may read, case-insensitively.",
    )
    metadata = filters.CharFilter(
        method="filter_metadata",
        label="With this text as the value of this top-level key of the metadata, as `key:text`.",
        validators=[RegexValidator(r"^[^:\0]{1,64}:[^\0]{0,255}\Z", "It must have the form key:text.")],
    )
    active_since = MomentFilter(method="filter_moment", label="With activity at this time or later.")
    idle_since = MomentFilter(method="filter_moment", label="Without activity since this time.")
    assistant = filters.CharFilter(
        method="filter_assistant",
        max_length=MAX_ASSISTANT_LENGTH,
        label="Of the assistant with this name, one of those that the site has by name.",
    )
    is_pinned = BooleanFilter(label="Whether it is pinned.")
    is_archived = BooleanFilter(label="Whether it is archived.")
    search = filters.CharFilter(
        method="filter_search",
        max_length=255,
        label="With this text in the memory id, or in a title or a message that the user may read. The whole memory id "
        "of a conversation, if it is a UUID, finds it alone.",
    )

    class Meta:
        model = Conversation
        fields: tuple[str, ...] = ()

    def filter_queryset(self, queryset: Any) -> Any:
        """Restrict the queryset to the user's own conversations, unless ``?owner=`` is given."""
        # First of all, since a search depends on how many conversations there are.
        return super().filter_queryset(owned(_view(self), queryset, self.form.cleaned_data.get("owner")))

    def filter_owner(self, queryset: Any, name: str, value: str) -> Any:
        """Return *queryset*: ``filter_queryset`` applies this filter, since it also applies without a value."""
        return queryset

    def filter_title(self, queryset: Any, name: str, value: str) -> Any:
        """Filter by a text in the title."""
        return queryset.filter(title__icontains=value) if _view(self).listed_types else queryset.none()

    def filter_metadata(self, queryset: Any, name: str, value: str) -> Any:
        """Filter by a text in the metadata."""
        key, _, text = value.partition(":")
        return queryset.with_metadata(key, text)

    def filter_assistant(self, queryset: Any, name: str, value: str) -> Any:
        """Filter by the assistant to which a conversation belongs."""
        return queryset.begun_with(value)

    def filter_moment(self, queryset: Any, name: str, value: datetime) -> Any:
        """Filter by the time of the last activity."""
        return getattr(queryset, name)(value)

    def filter_search(self, queryset: Any, name: str, value: str) -> Any:
        """Filter by a search, which includes only messages that the user may read."""
        return queryset.search(value, types=_view(self).listed_types, match=_view(self).query.get("match", "all"))


class MessageFilter(filters.FilterSet):
    """Filters of the list of messages."""

    after = IntegerFilter("sequence", "gt", min_value=0, max_value=MAX_INTEGER, label="After this sequence.")
    before = IntegerFilter("sequence", "lt", min_value=0, max_value=MAX_INTEGER, label="Before this sequence.")
    type = filters.ChoiceFilter(choices=[(each.value, each.value) for each in MessageType], label="Of this type.")
    in_memory = BooleanFilter(method="filter_in_memory", label="Whether it is in the memory.")
    is_complete = BooleanFilter(label="Whether its turn has ended.")
    search = filters.CharFilter(
        method="filter_search",
        max_length=255,
        label="With all of these words or parts of words in a text that the user may read; see `snippet`.",
    )

    class Meta:
        model = Message
        fields: tuple[str, ...] = ()

    def filter_in_memory(self, queryset: Any, name: str, value: bool) -> Any:
        """Filter by whether messages are in the memory."""
        return queryset.in_memory() if value else queryset.evicted(all_branches=self._all_branches)

    def filter_search(self, queryset: Any, name: str, value: str) -> Any:
        """Filter by a search."""
        found = queryset.look_through(value, all_branches=self._all_branches)
        return found.filter(type__in=_view(self).readable_types)

    @property
    def _all_branches(self) -> bool:
        return bool(_view(self).query.get("all_branches"))


def owned(view: Any, queryset: Any, owner: str | None) -> Any:
    """Return those of *queryset* that belong to *owner*, by default to the user, even if staff could view others."""
    if owner == EVERYBODY:
        return queryset
    if owner:
        return owned_by_key(queryset, owner)
    return queryset.owned_by(view.request.user) if view.policy.sees_everybody(view.request, "view") else queryset


def owned_by_key(queryset: Any, owner: str) -> Any:
    """Return those of *queryset* that belong to the user with the primary key *owner*; none if it can be no key."""
    try:
        return queryset.filter(owner=get_user_model()._meta.pk.clean(owner, None))
    except ValidationError:
        return queryset.none()


def _view(filterset: filters.FilterSet) -> Any:
    request: Any = filterset.request
    return request.parser_context["view"]


def moment(text: str) -> datetime:
    """Return the date and time *text* in ISO 8601, limited to what databases support; ``ValueError`` if invalid."""
    try:
        named = datetime.fromisoformat(text)
        bounded = min(max(named.astimezone(UTC), EARLIEST), LATEST)
    except (ValueError, OverflowError):
        named = None
    if named is None or named.tzinfo is None or "T" not in text.upper():
        raise ValueError("It must be a date and time with a time zone, such as 2026-11-21T09:30:00Z.")
    return bounded
