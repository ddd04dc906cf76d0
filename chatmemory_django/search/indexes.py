"""The index implementation of each database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db import connections

from chatmemory_django.search import mysql, postgresql, sqlite

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from chatmemory_django.search.ranking import IsAmong

INDEXES: dict[str, Any] = {"mysql": mysql, "postgresql": postgresql, "sqlite": sqlite}
"""The modules with ``create``, ``drop`` and ``candidates``, by Django's name of the database vendor."""


def candidates(scope: QuerySet[Any], terms: Sequence[str]) -> IsAmong:
    """Return the condition for the messages of *scope* with all of *terms* that are to be ranked."""
    found: IsAmong = INDEXES[connections[scope.db].vendor].candidates(scope, terms)
    return found
