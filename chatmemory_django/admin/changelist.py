"""The list of conversations: validation of requests, its pages, owners of the rows, and links to them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import BadRequest
from django.core.paginator import Page, Paginator
from django.db.models import Model, prefetch_related_objects
from django.http import HttpRequest
from django.utils.http import urlencode

from chatmemory_django.admin.columns import Listed, beginnings_of
from chatmemory_django.admin.navigation import NEWEST
from chatmemory_django.core.excerpts import Snippet
from chatmemory_django.core.windows import Window
from chatmemory_django.db.row_codec import UNREADABLE, unreadable_as
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, Message
from chatmemory_django.models.conversations import PREVIEW, by_hour
from chatmemory_django.provider import known_window

MAX_QUERY_STRING = 8_192
"""Maximum length of the list's query string: about what web servers allow for the first line of a request."""

MAX_LISTED = 2_000
"""Maximum number of conversations, or calls of models, that a list has: the newest of those that match."""

PREVIEWED = (MessageType.USER, MessageType.AI)
"""The types of messages that stand for a conversation without a title: questions and answers."""

NEWEST_FIRST = (*by_hour(("-updated_at", "-pk")),)

MATCH = "match"
"""The name of what the list's query string may have: "any", to search for any of the words."""


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


class KeyedList(ChangeList):
    """A list that its address may filter by the keys of other objects; SQLite fails on a key that is too large."""

    def get_results(self, request: HttpRequest) -> None:
        try:
            super().get_results(request)
        except OverflowError as exc:
            raise IncorrectLookupParameters(exc) from exc


class BoundedPaginator(Paginator):
    """Pages of the first of what matches. Counting does not read all of it."""

    object_list: Any

    @cached_property
    def count(self) -> int:
        return min(self._found, MAX_LISTED)

    @property
    def has_more(self) -> bool:
        """Whether more match than the pages have."""
        return self._found > MAX_LISTED

    @cached_property
    def _found(self) -> int:
        found: int = self.object_list.order_by().values("pk")[: MAX_LISTED + 1].count()
        return found


class NewestPaginator(BoundedPaginator):
    """Pages of the newest conversations, in any order, which does not read all that match either."""

    def page(self, number: int | str) -> Page[Any]:
        if self.has_more and self.object_list.query.order_by != NEWEST_FIRST:
            self.object_list = listed(self.object_list)
        return super().page(number)


class ConversationList(ChangeList):
    """The list. Its owners are read in one query without a join, since they may be in another database."""

    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[Any]:
        names = [*dict.fromkeys(super().get_ordering(request, queryset))]
        return [*NEWEST_FIRST] if names == ["-updated_at", "-pk"] else names

    def get_filters_params(self, params: Any = None) -> dict[str, Any]:
        """See ``ChangeList``: how words are searched is no filter."""
        return {name: value for name, value in super().get_filters_params(params).items() if name != MATCH}

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        queryset = super().get_queryset(request, exclude_parameters)
        return queryset if request.POST.get("select_across", "0") == "0" else listed(queryset)

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        is_readable = self.model_admin.has_text_permission(request)  # type: ignore[attr-defined]  # a ConversationAdmin
        with unreadable_as(str(UNREADABLE)):
            self.result_list: list[Conversation] = list(self.result_list)
            previews = _previews(self.result_list) if is_readable else {}
            hits = _hits(self.result_list, self.query)
        prefetch_related_objects(self.result_list, "owner")
        beginnings = beginnings_of(self.result_list)
        for each in self.result_list:
            each.listed = Listed(  # type: ignore[attr-defined]  # what the columns show
                wanted=self.query,
                preview=previews.get(each.pk, ""),
                hit=hits.get(each.pk),
                window=_window(each),
                beginnings=beginnings,
            )

    def url_for_result(self, result: Model) -> str:
        url = super().url_for_result(result)
        # The search matched a message: the page of the conversation searches for the same term.
        if getattr(result, "found_in", None) is not None:
            return f"{url}?{urlencode({'q': self.query})}"
        return f"{url}#{NEWEST}"


def _window(conversation: Conversation) -> Window | None:
    try:
        return known_window(conversation.memory_id)
    except Exception:  # noqa: BLE001  # of a function of the site: the list does not depend on it
        return None


def _previews(conversations: list[Conversation]) -> dict[int, str]:
    """Return what the last messages of those of *conversations* that have no title begin with, by key, in one query."""
    untitled = [each for each in conversations if not each.title]
    if not untitled:
        return {}
    rows = Conversation.objects.using(untitled[0]._state.db).filter(pk__in=[each.pk for each in untitled])
    found: Any = rows.with_preview(PREVIEWED).only("pk")
    return {each.pk: (each.preview or "")[:PREVIEW] for each in found}


def _hits(conversations: list[Conversation], wanted: str) -> dict[int, Snippet]:
    """Return excerpts of the messages in which *conversations* were found, by the keys of these, in two queries."""
    found = [(each.pk, sequence) for each in conversations if (sequence := getattr(each, "found_in", None))]
    if not found:
        return {}
    rows = Message.objects.using(conversations[0]._state.db).with_keys(found)
    return {key: excerpt for (key, _sequence), excerpt in rows.snippets(wanted).items()}
