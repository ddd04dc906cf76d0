"""
Whether anything is left of a user who was erased.

Tables are not listed here: whatever table of this package names an owner or a conversation is looked at, and what other
apps keep elsewhere, they tell by ``models.copies``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from django.apps import apps
from django.contrib.auth import get_user_model
from django.db.models import Exists, Field, Model, OuterRef, QuerySet

from chatmemory_django.db.tables import has_table
from chatmemory_django.models import Conversation
from chatmemory_django.models.copies import Remnant, remnant_finders
from chatmemory_django.models.fields import WhoField

_PACKAGE = __name__.partition(".")[0]


class User(NamedTuple):
    """Of whom something may be left; the user may be deleted."""

    key: Any
    """The primary key."""
    name: str | None = None
    """The name; None if it is not known any more, and what was stored by it is not found."""


def left_of(user: User, using: str) -> Iterator[Remnant]:
    """
    Yield what is left in the database *using*, or beside it, of *user*.

    That is what names the user, and what is of conversations that are gone: nobody knows any more whose they were. All
    rows of conversations are looked at for this. What is being written or erased now may be found as well.
    """
    for model in apps.get_models(include_auto_created=True):
        is_ours = model._meta.app_config is not None and model._meta.app_config.name.partition(".")[0] == _PACKAGE
        if not is_ours or model._meta.proxy or not has_table(model, using):
            continue
        for field in model._meta.concrete_fields:
            for words, rows in _found(model, field, user, using):
                if count := rows.count():
                    yield Remnant(f"{model._meta.db_table}: {words}", count)
    for find in remnant_finders:
        yield from find(using)


def _found(model: type[Model], field: Field[Any, Any], user: User, using: str) -> Iterator[tuple[str, QuerySet[Any]]]:
    rows = model._base_manager.using(using).order_by()
    there = Conversation.objects.using(using).order_by()
    if field.name == "owner" or field.related_model is get_user_model():
        yield "rows of the user", rows.filter(**{field.name: str(user.key)})
    elif isinstance(field, WhoField):
        who = str(user.key) if field.by == "key" else user.name
        if who:
            yield f"rows that name the user in {field.name}", rows.filter(**{field.name: who})
    elif field.related_model is Conversation:
        named = rows.filter(**{f"{field.attname}__isnull": False})
        yield "rows of conversations that are gone", named.exclude(Exists(there.filter(pk=OuterRef(field.attname))))
    elif field.name == "memory_id" and model is not Conversation:
        named = there.filter(memory_id=OuterRef("memory_id"))
        yield "rows of conversations that are gone", rows.exclude(Exists(named))
