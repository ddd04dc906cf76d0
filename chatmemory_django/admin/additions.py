"""
What apps add to the list of conversations and to their pages, without any name of theirs here.

An app registers its functions when its own admin is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from django.contrib import admin
from django.http import HttpRequest
from django.utils.functional import Promise

from chatmemory_django.admin.reasons import ReasonWords
from chatmemory_django.models import Conversation


class Fact(NamedTuple):
    """A fact about a conversation: what it is called, what it is, and the address of a page with more of it."""

    label: str | Promise
    text: str
    url: str = ""


Facts: TypeAlias = Callable[[HttpRequest, Conversation], Iterable[Fact]]
"""Returns facts about a conversation that the user of a request may know."""

Waits: TypeAlias = Callable[[Conversation, Collection[int]], Mapping[tuple[int, int], ReasonWords]]
"""Returns why calls of tools have no result yet, by the sequence of their message and their place in it."""

_facts: list[Facts] = []
_waits: list[Waits] = []
_filters: list[type[admin.SimpleListFilter]] = []


def shows_facts(facts: Facts) -> None:
    """Register *facts*: what it returns is shown on the page of a conversation."""
    _facts.append(facts)


def shows_waits(waits: Waits) -> None:
    """Register *waits*: what it returns is shown with the calls, in place of that they have no result."""
    _waits.append(waits)


def offers_filter(list_filter: type[admin.SimpleListFilter]) -> None:
    """Register *list_filter*, which the list of conversations then has, too."""
    _filters.append(list_filter)


def facts_about(request: HttpRequest, conversation: Conversation) -> list[Fact]:
    """Return all facts about *conversation*."""
    return [fact for facts in _facts for fact in facts(request, conversation)]


def waits_in(conversation: Conversation, sequences: Collection[int]) -> dict[tuple[int, int], ReasonWords]:
    """Return why calls in the messages *sequences* of *conversation* have no result yet; see ``Waits``."""
    if not sequences:
        return {}
    return {place: words for waits in _waits for place, words in waits(conversation, sequences).items()}


def offered_filters() -> list[type[admin.SimpleListFilter]]:
    """Return the filters that apps have registered."""
    return [*_filters]
