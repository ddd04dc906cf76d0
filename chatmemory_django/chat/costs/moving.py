"""
Records of calls, and their sums by day, in exports and imports.

Imported twice, they are there once: a call is known by its moment and by what it used, a sum by its run.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
from django.db import transaction

from chatmemory_django.chat.conf import COST_DIGITS, COST_PLACES
from chatmemory_django.chat.costs.labels import checked_labels
from chatmemory_django.chat.costs.summing import add_sum
from chatmemory_django.chat.costs.tables import MAX_NAME_LENGTH, CallSum, ModelCall, Outcome, Purpose, Span
from chatmemory_django.core.limits import MAX_INTEGER, is_storable
from chatmemory_django.db.moments import aware
from chatmemory_django.models import Conversation
from chatmemory_django.models.columns import checked_moment

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)] | None
_Sum: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Run: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
_Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_NAME_LENGTH)]


class _Call(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ``ModelCall``, with the memory id of its conversation."""

    conversation: str | None = None
    purpose: Purpose
    model: _Name = ""
    input_tokens: _Count = None
    cached_input_tokens: _Count = None
    cache_write_tokens: _Count = None
    cache_write_1h_tokens: _Count = None
    output_tokens: _Count = None
    reasoning_tokens: _Count = None
    is_estimate: bool = False
    cost: Decimal | None = None
    outcome: Outcome
    error: _Name = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    created_at: Annotated[datetime, msgspec.Meta(tz=True)]
    seconds: Annotated[float, msgspec.Meta(ge=0, le=MAX_INTEGER)] | None = None
    summed: _Run | None = None


class _Day(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ``CallSum`` of a day and an owner: those of all owners, and of months, are the sums of these."""

    begin: date
    purpose: Purpose
    model: _Name = ""
    outcome: Outcome
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    calls: _Sum
    failed: _Sum
    uncounted: _Sum
    unpriced: _Sum
    input: _Sum
    cached_input: _Sum
    cache_write: _Sum
    cache_write_1h: _Sum
    output: _Sum
    reasoning: _Sum
    cost: Decimal | None = None
    run: _Run


def exported_call(call: Any) -> dict[str, Any]:
    """See ``copies.OfOwners``; *call*, a ``ModelCall``, has the ``memory_id`` of its conversation."""
    columns = {name: getattr(call, name) for name in _Call.__struct_fields__ if name != "conversation"}
    return {"conversation": call.memory_id, **columns, "created_at": aware(call.created_at).astimezone(UTC)}


def restore_call(owner: AbstractBaseUser | None, given: Mapping[str, Any], using: str) -> None:
    """See ``copies.OfOwners``. A conversation that is not there is not named."""
    columns = _columns(given, _Call, COST_DIGITS)
    columns["created_at"] = checked_moment(columns["created_at"])
    memory_id = columns.pop("conversation")
    known = ("purpose", "model", "outcome", "created_at", "input_tokens", "output_tokens", "cost")
    owner_id = None if owner is None else owner.pk
    calls = ModelCall.objects.using(using)
    if not calls.filter(owner=owner_id, **{name: columns[name] for name in known}).exists():
        found = Conversation.objects.using(using).filter(memory_id=memory_id) if memory_id else None
        conversation = None if found is None else found.values_list("pk", flat=True).first()
        calls.create(owner_id=owner_id, conversation_id=conversation, **columns)


def exported_sum(row: CallSum) -> dict[str, Any] | None:
    """See ``copies.OfOwners``."""
    return {name: getattr(row, name) for name in _Day.__struct_fields__} if row.span == Span.DAY else None


def restore_sum(owner: AbstractBaseUser | None, given: Mapping[str, Any], using: str) -> None:
    """See ``copies.OfOwners``: add the sum to those of its day and month."""
    columns = _columns(given, _Day, COST_DIGITS + 10)
    columns["owner"] = None if owner is None else owner.pk
    known = ("owner", "begin", "purpose", "model", "outcome", "calls", "run")
    days = CallSum.objects.using(using).filter(span=Span.DAY, **{name: columns[name] for name in known})
    with transaction.atomic(using=using):
        if not any(each.labels == columns["labels"] for each in days):
            for span in Span:
                add_sum(span, columns, using)


def _columns(given: Mapping[str, Any], to: type[Any], digits: int) -> dict[str, Any]:
    """Return the columns in what was *given*, of which *to* has the types; costs may have that many *digits*."""
    content = msgspec.convert(given, to, strict=True, builtin_types=())
    columns: dict[str, Any] = msgspec.structs.asdict(content)
    columns["labels"] = checked_labels(columns["labels"])
    cost = columns["cost"]
    if cost is not None and not (cost.is_finite() and 0 <= cost < 10 ** (digits - COST_PLACES) - 1):
        raise ValueError(f"cost is {cost}, but must be at least 0, and below 10 to the power of {digits - COST_PLACES}")
    for name in ("model", "error"):
        if not is_storable(columns.get(name, "")):
            raise ValueError(f"{name} has characters that cannot be stored")
    return columns | {name: columns[name].value for name in ("purpose", "outcome")}
