"""
The backend: Django's, with another name, as those of CockroachDB, Aurora DSQL and YugabyteDB extend it.

Like these, it gives Django's own functions its SQL; it knows nothing of anybody else's.
"""

from typing import Any

from django.db import models
from django.db.backends.postgresql import base
from django.db.models import functions
from django.db.models.fields import json


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection to it."""

    vendor = "elsewhere"
    display_name = "Elsewhere"


def _register() -> None:
    """Let Django's functions and lookups be in PostgreSQL's SQL here: Django chooses it by the name of the backend."""
    for module in (functions, json, models.expressions, models.lookups, models.aggregates):
        for each in list(vars(module).values()):
            if isinstance(each, type) and each.__module__.startswith("django.db.models") and _is_own(each):
                each.as_elsewhere = each.as_postgresql  # type: ignore[attr-defined]


def _is_own(each: Any) -> bool:
    return "as_postgresql" in vars(each)


_register()
