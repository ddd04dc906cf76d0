"""The list of conversations: what may be asked of it, whose its rows are, and where they lead."""

from __future__ import annotations

import datetime
from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import BadRequest
from django.db.models import Model, prefetch_related_objects
from django.http import HttpRequest
from django.utils import timezone
from django.utils.http import urlencode

from chatmemory_django.models import Conversation
from chatmemory_django.time_zones import knows_time_zone

MAX_QUERY_STRING = 8_192
"""How long the query string of the list may be: about as long as servers allow the first line of a request to be."""

DATE_PARTS = ("year", "month", "day")
"""What the date hierarchy asks for, each only with those before it."""


def check_request(request: HttpRequest) -> None:
    """Raise ``BadRequest`` for what no page of this admin asks of the list."""
    if len(request.META.get("QUERY_STRING", "")) > MAX_QUERY_STRING:
        raise BadRequest(f"The query string must have at most {MAX_QUERY_STRING:,} characters.")
    if not all(_is_key(value) for value in request.POST.getlist(ACTION_CHECKBOX_NAME)):
        raise BadRequest("The selected conversations must be given by their primary keys.")


def _is_key(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= 18


class ConversationList(ChangeList):
    """The list, with the owners of its rows read at once and without a join: they may be in another database."""

    def get_filters(self, request: HttpRequest) -> Any:
        self._check_date()
        return super().get_filters(request)

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list: list[Conversation] = list(self.result_list)
        prefetch_related_objects(self.result_list, "owner")
        if not knows_time_zone(self.queryset.db, timezone.get_current_timezone_name()):
            self.date_hierarchy = None  # that database cannot say which days there are

    def url_for_result(self, result: Model) -> str:
        url = super().url_for_result(result)
        # Found in what was said: the page of the conversation then searches for the same.
        return f"{url}?{urlencode({'q': self.query})}" if getattr(result, "is_found_in_text", False) else url

    def _check_date(self) -> None:
        """Refuse what is no date, and years at whose ends Python or a database fails to convert time zones."""
        parts = [self.params.get(f"{self.date_hierarchy}__{part}") for part in DATE_PARTS]
        given = [part for part in parts if part is not None]
        try:
            is_date = not given or 1000 < datetime.date(*map(int, [*given, 1, 1][:3])).year < datetime.MAXYEAR
        except (ValueError, OverflowError):
            is_date = False
        if not is_date or given != parts[: len(given)]:
            raise IncorrectLookupParameters
