"""The list of conversations: validation of requests, owners of the rows, and links to them."""

from __future__ import annotations

import datetime
from contextlib import suppress
from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import BadRequest
from django.db.models import Model, prefetch_related_objects
from django.http import HttpRequest
from django.utils import timezone
from django.utils.http import urlencode

from chatmemory_django.db.moments import knows_time_zone
from chatmemory_django.models import Conversation
from chatmemory_django.provider import common_window

MAX_QUERY_STRING = 8_192
"""Maximum length of the list's query string: about what web servers allow for the first line of a request."""

DATE_PARTS = ("year", "month", "day")
"""Lookups of the date hierarchy; each is only valid with those before it."""


def check_request(request: HttpRequest) -> None:
    """Raise ``BadRequest`` for requests that no page of this admin sends."""
    if len(request.META.get("QUERY_STRING", "")) > MAX_QUERY_STRING:
        raise BadRequest(f"The query string must have at most {MAX_QUERY_STRING:,} characters.")
    if not all(_is_key(value) for value in request.POST.getlist(ACTION_CHECKBOX_NAME)):
        raise BadRequest("The selected conversations must be given by their primary keys.")


def _is_key(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= 18


class ConversationList(ChangeList):
    """The list. Its owners are read in one query without a join, since they may be in another database."""

    def get_filters(self, request: HttpRequest) -> Any:
        self._check_date()
        return super().get_filters(request)

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list: list[Conversation] = list(self.result_list)
        prefetch_related_objects(self.result_list, "owner")
        window = None
        with suppress(ImportError, TypeError, ValueError):  # the system checks report what is wrong
            window = common_window()
        for conversation in self.result_list:
            conversation.common_window = window  # type: ignore[attr-defined]  # the columns show its limit
        if not knows_time_zone(self.queryset.db, timezone.get_current_timezone_name()):
            self.date_hierarchy = None  # this database cannot list the days in that time zone

    def url_for_result(self, result: Model) -> str:
        url = super().url_for_result(result)
        # The search matched a message: the page of the conversation searches for the same term.
        return f"{url}?{urlencode({'q': self.query})}" if getattr(result, "is_found_in_text", False) else url

    def _check_date(self) -> None:
        """Reject invalid dates, and years for which Python or a database cannot convert time zones."""
        parts = [self.params.get(f"{self.date_hierarchy}__{part}") for part in DATE_PARTS]
        given = [part for part in parts if part is not None]
        try:
            is_date = not given or 1000 < datetime.date(*map(int, [*given, 1, 1][:3])).year < datetime.MAXYEAR
        except (ValueError, OverflowError):
            is_date = False
        if not is_date or given != parts[: len(given)]:
            raise IncorrectLookupParameters
