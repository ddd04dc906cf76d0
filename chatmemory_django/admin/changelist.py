"""The list of conversations: validation of requests, its pages, owners of the rows, and links to them."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import BadRequest
from django.core.paginator import Page, Paginator
from django.db.models import Model, prefetch_related_objects
from django.http import HttpRequest
from django.utils.http import urlencode

from chatmemory_django.models import Conversation
from chatmemory_django.models.conversations import by_hour
from chatmemory_django.provider import common_window

MAX_QUERY_STRING = 8_192
"""Maximum length of the list's query string: about what web servers allow for the first line of a request."""

MAX_LISTED = 2_000
"""Maximum number of conversations that the list has: the newest of those that match."""

NEWEST_FIRST = (*by_hour(("-updated_at", "-pk")),)


def check_request(request: HttpRequest) -> None:
    """Raise ``BadRequest`` for requests that no page of this admin sends."""
    if len(request.META.get("QUERY_STRING", "")) > MAX_QUERY_STRING:
        raise BadRequest(f"The query string must have at most {MAX_QUERY_STRING:,} characters.")
    if not all(_is_key(value) for value in request.POST.getlist(ACTION_CHECKBOX_NAME)):
        raise BadRequest("The selected conversations must be given by their primary keys.")


def _is_key(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= 18


def listed(queryset: Any) -> Any:
    """Return those conversations of *queryset* that the list has."""
    # By their keys: once an action has erased some of the newest, others would take their place.
    keys = list(queryset.order_by(*NEWEST_FIRST).values_list("pk", flat=True)[: MAX_LISTED + 1])
    return queryset.filter(pk__in=keys[:MAX_LISTED]) if len(keys) > MAX_LISTED else queryset


class NewestPaginator(Paginator):
    """Pages of the newest conversations, in any order. Neither counting nor ordering them reads all that match."""

    object_list: Any

    @cached_property
    def count(self) -> int:
        return min(self._found, MAX_LISTED)

    @property
    def has_more(self) -> bool:
        """Whether more conversations match than the pages have."""
        return self._found > MAX_LISTED

    def page(self, number: int | str) -> Page[Any]:
        if self.has_more and self.object_list.query.order_by != NEWEST_FIRST:
            self.object_list = listed(self.object_list)
        return super().page(number)

    @cached_property
    def _found(self) -> int:
        found: int = self.object_list.order_by().values("pk")[: MAX_LISTED + 1].count()
        return found


class ConversationList(ChangeList):
    """The list. Its owners are read in one query without a join, since they may be in another database."""

    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[Any]:
        names = [*dict.fromkeys(super().get_ordering(request, queryset))]
        return [*NEWEST_FIRST] if names == ["-updated_at", "-pk"] else names

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        queryset = super().get_queryset(request, exclude_parameters)
        return queryset if request.POST.get("select_across", "0") == "0" else listed(queryset)

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list: list[Conversation] = list(self.result_list)
        prefetch_related_objects(self.result_list, "owner")
        window = None
        with suppress(ImportError, TypeError, ValueError):  # the system checks report what is wrong
            window = common_window()
        for conversation in self.result_list:
            conversation.common_window = window  # type: ignore[attr-defined]  # the columns show its limit

    def url_for_result(self, result: Model) -> str:
        url = super().url_for_result(result)
        # The search matched a message: the page of the conversation searches for the same term.
        return f"{url}?{urlencode({'q': self.query})}" if getattr(result, "is_found_in_text", False) else url
