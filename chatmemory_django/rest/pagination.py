"""Pagination with limits on rows and characters."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any
from urllib.parse import parse_qs, urlencode

from django.core.exceptions import ValidationError
from django.db.models import Case, Q, QuerySet, Value, When
from django.db.models.functions import Length
from drf_spectacular.plumbing import append_meta
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory_django import conf
from chatmemory_django.db.moments import EARLIEST, LATEST, aware, to_moment
from chatmemory_django.models.conversations import by_hour, hour_of
from chatmemory_django.models.finding import RANKED
from chatmemory_django.models.messages import MESSAGE_SIZE
from chatmemory_django.rest.problems import InvalidQuery


class BoundedCursorPagination(CursorPagination):
    """
    Cursor pagination with at most ``MAX_PAGE_SIZE`` rows and ``MAX_PAGE_CHARACTERS`` on a page.

    A page has at least one row, even if that is larger. Querysets need a method ``with_size()``: rows are measured
    before they are read.
    """

    key = "pk"
    """A field whose values are unique."""
    page_size_query_param = "page_size"
    invalid_cursor_message = "The cursor is invalid; use one from next or previous."

    @property
    def max_page_size(self) -> int:  # type: ignore[override]
        return conf.rest().MAX_PAGE_SIZE

    def get_page_size(self, request: Request) -> int:
        """Return the requested size, by default that in the settings; 400 if it is invalid or too large."""
        asked = request.query_params.get(self.page_size_query_param)
        if asked is None:
            return min(conf.rest().PAGE_SIZE, self.max_page_size)
        if not (asked.isascii() and asked.isdigit() and len(asked) < 10 and 1 <= int(asked) <= self.max_page_size):
            detail = f"It must be a whole number from 1 to {self.max_page_size}."
            raise InvalidQuery({self.page_size_query_param: detail})
        return int(asked)

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        """
        See ``CursorPagination``. This takes one query for the sizes and one for the rows.

        DRF's cursors hold one field, and may skip or repeat rows with equal values; these hold all fields.
        """
        self.base_url = request.build_absolute_uri()
        self.page_size = self.get_page_size(request)
        self.ordering = self.get_ordering(request, queryset, view)
        self.fields = [each.lstrip("-") for each in self.ordering]
        is_reverse, position = self._cursor(queryset, request)
        ordering = _turned(self.ordering) if is_reverse else self.ordering
        sized = self.with_size(queryset.order_by(*by_hour(ordering))).filter(_after(ordering, position))
        key = self.key
        found = list(sized.values_list(key, "size", *self.fields)[: self.page_size + 1])
        most = conf.rest().MAX_PAGE_CHARACTERS
        fitting = sum(total <= most for total in accumulate(size for _, size, *_ in found[: self.page_size])) or 1
        page, is_cut = found[:fitting], len(found) > fitting
        came = bool(position) or is_reverse
        self.has_previous, self.has_next = (is_cut, came) if is_reverse else (came, is_cut)
        if is_reverse:
            page.reverse()
        self.positions = [position for _, _, *position in page]
        keys = [each for each, *_ in page]
        # Ordered by the key, a page is a range, which is faster to plan than a list of keys.
        where = {f"{key}__range": (min(keys), max(keys))} if keys and self.fields[0] == key else {f"{key}__in": keys}
        rows = {getattr(row, key): row for row in queryset.filter(**where)} if keys else {}
        # Rows may have been deleted since the first query.
        return [rows[each] for each in keys if each in rows]

    def with_size(self, rows: Any) -> Any:
        """Annotate *rows* with the ``size`` of what is shown of them."""
        return rows.with_size()

    def get_paginated_response(self, data: Any) -> Response:
        """See ``CursorPagination``. The links are also in the ``Link`` header."""
        response = super().get_paginated_response(data)
        links = [(name, response.data[name]) for name in ("next", "previous")]
        if link := ", ".join(f'<{url}>; rel="{"prev" if name == "previous" else name}"' for name, url in links if url):
            response["Link"] = link
        return response

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """See ``CursorPagination``. The schema follows the OpenAPI version in the site's settings."""
        example = "https://example.com/api/conversations/?cursor=cD0y"
        link = append_meta({"type": "string", "format": "uri"}, {"nullable": True, "example": example})
        properties = {"next": link, "previous": link, "results": schema}
        return {"type": "object", "required": list(properties), "properties": properties}

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        parameters = super().get_schema_operation_parameters(view)
        parameters[-1]["schema"] |= {"minimum": 1, "maximum": self.max_page_size}
        return parameters

    def get_next_link(self) -> str | None:
        return self._link(self.positions[-1:], is_reverse=False) if self.has_next else None

    def get_previous_link(self) -> str | None:
        return self._link(self.positions[:1], is_reverse=True) if self.has_previous else None

    def _link(self, positions: list[list[Any]], *, is_reverse: bool) -> str:
        """Return the URL of the page after or before a row; without a row, of the first or the last page."""
        position = [str(value) for position in positions for value in position]
        return self.encode_cursor(Cursor(0, is_reverse, position))  # type: ignore[arg-type]  # the position is only encoded

    def _cursor(self, queryset: QuerySet[Any], request: Request) -> tuple[bool, list[Any]]:
        """Return whether to go backwards, and from which position; 400 if the cursor is invalid."""
        cursor = request.query_params.get(self.cursor_query_param)
        if not cursor:
            return False, []
        try:
            tokens = parse_qs(b64decode(cursor, validate=True).decode("ascii"), strict_parsing=True, max_num_fields=9)
            given = zip(self.fields, tokens["p"], strict=True) if "p" in tokens else ()
            return "r" in tokens, [_cleaned(queryset, *each) for each in given]
        except (ValueError, ValidationError):
            raise InvalidQuery({self.cursor_query_param: self.invalid_cursor_message}) from None


class ConversationPagination(BoundedCursorPagination):
    """Pages of conversations, the most recently active first."""

    ordering = ("-updated_at", "-memory_id")  # not the key, which is in cursors: it counts the site's conversations


class MessagePagination(BoundedCursorPagination):
    """Pages of messages, the newest first."""

    key = "sequence"
    ordering = "-sequence"

    def with_size(self, rows: Any) -> Any:
        """See ``BoundedCursorPagination``. A message that is nothing but its text is shown with it twice."""
        again = Case(When(payload=None, then=Length("text")), default=Value(0))
        return rows.annotate(size=MESSAGE_SIZE + again)


class RankedPagination(BoundedCursorPagination):
    """Pages of what a search ranks, best first. No column has the rank, so a cursor is how many hits precede a page."""

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        """Return a page of what *queryset* finds, which is a function of ``start`` and ``stop``."""
        self.base_url = request.build_absolute_uri()
        self.size, self.start = self.get_page_size(request), self._start(request)
        found: list[Any] = queryset(start=self.start, stop=self.start + self.size + 1)
        self.has_next, self.has_previous = len(found) > self.size, self.start > 0
        return found[: self.size]

    def get_next_link(self) -> str | None:
        return self._from(self.start + self.size) if self.has_next else None

    def get_previous_link(self) -> str | None:
        return self._from(max(0, self.start - self.size)) if self.has_previous else None

    def _from(self, start: int) -> str:
        return self.encode_cursor(Cursor(0, False, start))

    def _start(self, request: Request) -> int:
        cursor = request.query_params.get(self.cursor_query_param)
        if not cursor:
            return 0
        try:
            (position,) = parse_qs(b64decode(cursor, validate=True).decode("ascii"), max_num_fields=9).get("p", [""])
            start = int(position) if len(position) < 5 else -1
        except ValueError:
            start = -1
        if not 0 <= start <= RANKED:
            raise InvalidQuery({self.cursor_query_param: self.invalid_cursor_message})
        return start


def linked(request: Request, **parameters: Any) -> str:
    """Return the URL of *request* with these query parameters in place of those that it has."""
    query = urlencode({**request.query_params.dict(), **parameters})
    return f"{request.build_absolute_uri(request.path)}?{query}"


def _turned(ordering: Sequence[str]) -> list[str]:
    return [each[1:] if each.startswith("-") else f"-{each}" for each in ordering]


def _after(ordering: Sequence[str], position: Sequence[Any]) -> Q:
    """Return a filter for the rows after *position* in the *ordering*; without a position, for all."""
    after, same = Q(), Q()
    for each, value in zip(ordering, position, strict=False):
        field = each.lstrip("-")
        after |= same & Q(**{f"{field}__{'lt' if each.startswith('-') else 'gt'}": value})
        same &= Q(**{field: value})
    if position and ordering[0].lstrip("-") == "updated_at":
        after &= Q(**{f"active_hour__{'lte' if ordering[0].startswith('-') else 'gte'}": hour_of(position[0])})
    return after


def _cleaned(queryset: QuerySet[Any], name: str, text: str) -> Any:
    """Return the value of the field *name* in a cursor; raise ``ValidationError`` if it is invalid for the field."""
    options = queryset.model._meta
    value = (options.pk if name == "pk" else options.get_field(name)).clean(text, None)
    if isinstance(value, datetime):
        if not EARLIEST <= aware(value) <= LATEST:
            raise ValueError
        return to_moment(aware(value))
    return value
