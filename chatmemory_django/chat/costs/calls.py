"""
Records the calls of models: who called which model for what, how many tokens it used, and what that cost.

A call is recorded once it has ended. That never makes an answer fail: if it is not possible, this is logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from django.db import IntegrityError, connections, router, transaction
from django.db.models import Subquery
from django.utils import timezone

from chatmemory_django.chat.costs.conf import costs, to_cost
from chatmemory_django.chat.costs.estimates import NOTHING, Estimate, Part, is_refusal
from chatmemory_django.chat.costs.given import given
from chatmemory_django.chat.costs.labels import checked_labels
from chatmemory_django.chat.costs.summing import midnight, sum_calls
from chatmemory_django.chat.costs.tables import MAX_NAME_LENGTH, ModelCall, Outcome, Purpose
from chatmemory_django.chat.model import (
    ChatEvent,
    ChatResponse,
    PartialText,
    PartialThinking,
    PartialToolCall,
    TokenUsage,
)
from chatmemory_django.conf import imported
from chatmemory_django.core.limits import memory_key
from chatmemory_django.core.serving import served
from chatmemory_django.db.moments import to_moment
from chatmemory_django.db.threads import from_callback, in_thread, to_its_end
from chatmemory_django.messages import AiMessage
from chatmemory_django.models import Conversation
from chatmemory_django.models.copies import Pruning
from chatmemory_django.stores.base import OtherRow
from chatmemory_django.stores.django import DjangoChatMemoryStore

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

logger = logging.getLogger(__name__)

PRUNED_AT_ONCE = 5_000
"""How many calls one transaction deletes."""

_MOST = 2**31 - 1
"""The largest count that every database can store."""


@dataclass
class Call:
    """A call of a model: *model* is its name, *usage* what the model reported; known once it has ended."""

    purpose: str
    model: str = ""
    usage: TokenUsage = NOTHING
    outcome: str = Outcome.CANCELLED
    error: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The site's own: see ``costs.labels``."""
    service_tier: str | None = None
    """The vendor's name for the kind of service, which may have a price of its own, if the model reported it."""
    began_at: datetime = field(default_factory=timezone.now)
    seconds: float | None = None
    """How long it took, until the model had answered or an error ended it; None if neither is known."""
    estimate: Estimate = field(default_factory=Estimate, repr=False)
    """What it used, in case that the model does not report that."""
    is_estimate: bool = False
    """Whether ``counted`` is that, once it was asked for."""
    _begin: float = field(default_factory=time.monotonic, repr=False)
    _counted: TokenUsage | None = None
    _cost: tuple[Decimal | None] | None = None

    def note(self, event: ChatEvent) -> None:
        """Note an *event* of a ``ChatModel``: a piece of the answer or, at its end, what the call used."""
        match event:
            case ChatResponse(metadata=metadata):
                if not self.estimate.is_answered:
                    self.estimate.arrived(_written(event.ai_message))
                tier = metadata.attributes.get("service_tier")
                tier = tier if isinstance(tier, str) else None
                self.used(metadata.token_usage, metadata.model_name, service_tier=tier)
            case PartialToolCall():
                self.estimate.arrived((event.name or "") + event.arguments)
            case PartialText() | PartialThinking():
                self.estimate.arrived(event.text)

    def used(self, usage: TokenUsage | None, model: str | None = None, *, service_tier: str | None = None) -> None:
        """Note what the call used, at which *service_tier*, and the *model* that answered, if it is another one."""
        self.service_tier = service_tier
        self.usage = usage or NOTHING
        self._counted = None if self.usage == NOTHING else usage
        self.model = model or self.model
        self.outcome = Outcome.COMPLETED
        self.seconds = time.monotonic() - self._begin

    def fail(self, error: BaseException) -> None:
        """
        Note that *error* ended the call, unless the model has answered before.

        One that is not an ``Exception`` cancelled it. A call that was refused used nothing.
        """
        if self.outcome == Outcome.COMPLETED:
            return
        self.outcome = Outcome.FAILED if isinstance(error, Exception) else Outcome.CANCELLED
        self.error = type(error).__name__ if isinstance(error, Exception) else ""
        self.seconds = time.monotonic() - self._begin
        if is_refusal(error) and not self.estimate.is_answered:
            self._counted = NOTHING

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self.fail(error)

    @property
    def counted(self) -> TokenUsage:
        """What the model reported or, if it reported nothing, the estimate."""
        if self._counted is None:
            try:
                self._counted = self.estimate.usage()
            except Exception:
                logger.exception("What a call of a model used could not be estimated.")
                self._counted = NOTHING
            self.is_estimate = self._counted != NOTHING
        return self._counted

    @property
    def cost(self) -> Decimal | None:
        """What it costs by the function in the settings; None if that is not known, fails, or is not set."""
        if self._cost is None:
            self._cost = (self.cost_of(self.counted),)
        return self._cost[0]

    def cost_of(self, usage: TokenUsage) -> Decimal | None:
        """Return what it would cost if it used that; None as for ``cost``."""
        if usage == NOTHING:
            return None
        known = {"purpose": self.purpose, "labels": dict(self.labels), "service_tier": self.service_tier}
        try:
            function = cast("Callable[..., Any] | None", imported(costs().COST))
            cost = None if function is None else function(self.model, usage, **given(function, known))
            return None if cost is None else to_cost(cost)
        except Exception:
            logger.exception("What a call of the model %r costs could not be determined.", self.model)
            return None


def payer(memory: Any, owner: AbstractBaseUser | None = None) -> AbstractBaseUser | None:
    """Return for whom calls in *memory* are made: *owner* or, without one, the owner of its store."""
    return getattr(getattr(memory, "store", None), "owner", None) if owner is None else owner


@dataclass(frozen=True)
class Account:
    """For whom calls are made: the key of the user, the memory id, and in which database that is."""

    owner: Any = None
    memory_id: str | None = None
    using: str | None = None

    @classmethod
    def of(cls, memory: Any, owner: AbstractBaseUser | None = None) -> Self:
        """Return the account of the ``payer`` for calls in *memory*."""
        store, user = getattr(memory, "store", None), payer(memory, owner)
        key = None if user is None else user.pk
        return cls(key, memory_key(memory.id), store.using) if isinstance(store, DjangoChatMemoryStore) else cls(key)

    @property
    def database(self) -> str:
        """The database in which its calls are recorded."""
        return self.using or router.db_for_write(ModelCall)

    def records(self, calls: Sequence[Call]) -> list[OtherRow]:
        """Return the records of *calls*, for a store that can write them with the answer."""
        return [OtherRow(ModelCall, {"owner": self.owner, **_values(call)}) for call in calls]

    def write(self, calls: Sequence[Call], changes: Sequence[OtherRow] = ()) -> bool:
        """Record *calls*, and write *changes* with them; return whether that is done. If it fails, it is logged."""
        if not calls:
            return True
        try:
            try:
                self._write(calls, changes, self.owner)
            except IntegrityError:  # the owner has been erased in the meantime
                self._write(calls, changes, None)
        except Exception:
            logger.exception("%d calls of models could not be recorded.", len(calls))
            return False
        return True

    def _write(self, calls: Sequence[Call], changes: Sequence[OtherRow], owner: Any) -> None:
        using = self.database
        found = Conversation.objects.using(using).filter(memory_id=self.memory_id)
        conversation = None if self.memory_id is None else Subquery(found.values("pk")[:1])
        # A failure must not end the caller's transaction. One statement needs none, which would be two more.
        needs_none = len(calls) + len(changes) == 1 and not connections[using].in_atomic_block
        with nullcontext() if needs_none else transaction.atomic(using=using):
            for call in calls:
                record = ModelCall(owner_id=owner, conversation_id=conversation, **_values(call))
                record.save(using=using, force_insert=True)
            for row in changes:
                row.model._base_manager.using(using).filter(**row.where).update(**row.values)


def _values(call: Call) -> dict[str, Any]:
    """Return the values of the record of *call*, without its owner and its conversation."""
    usage = call.counted
    return {
        "purpose": call.purpose,
        "model": call.model[:MAX_NAME_LENGTH],
        "input_tokens": _count(usage.input),
        "cached_input_tokens": _count(usage.cached_input),
        "cache_write_tokens": _count(usage.cache_write),
        "cache_write_1h_tokens": _count(usage.cache_write_1h),
        "output_tokens": _count(usage.output),
        "reasoning_tokens": _count(usage.reasoning),
        "cost": call.cost,
        "is_estimate": call.is_estimate,
        "outcome": call.outcome,
        "error": call.error[:MAX_NAME_LENGTH],
        "labels": dict(call.labels),
        "created_at": call.began_at,
        "seconds": None if call.seconds is None else round(call.seconds, 3),
    }


@dataclass
class CallRecorder(Call):
    """Records the call of a model in its block, ``with`` or ``async with``; ``record_call`` returns it."""

    account: Account = Account()
    _is_stopped: bool = False

    def sends(self, parts: str | Iterable[Part]) -> None:
        """
        Note what is sent, a text, or messages and texts: if no usage is reported, the call counts by an estimate.

        The *parts* are iterated over only then, and only their length is recorded.
        """
        self.estimate.sends(parts)

    def arrived(self, text: str) -> None:
        """Note a piece of the answer, for the same estimate."""
        self.estimate.arrived(text)

    def stop(self) -> None:
        """Note that the call is cancelled, although no exception ends it."""
        self._is_stopped = True

    def end(self, error: BaseException | None = None) -> None:
        """Record the call, which *error* may have ended, without a block: in a callback, in any thread."""
        self._end(error)
        from_callback(partial(self.account.write, [self]))

    def _end(self, error: BaseException | None) -> None:
        if error is not None or self._is_stopped:
            self.fail(error or GeneratorExit())
        elif self.outcome != Outcome.COMPLETED:
            self.used(None)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end(error)
        self.account.write([self])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._end(error)
        await to_its_end(in_thread(self.account.write, [self]))  # a cancelled call is recorded, too


def record_call(
    purpose: str,
    model: str = "",
    *,
    owner: AbstractBaseUser | None = None,
    memory_id: object = None,
    labels: Mapping[str, str] | None = None,
) -> CallRecorder:
    """
    Return a context manager, for ``with`` and ``async with``, that records the call of a model which its block makes.

    *purpose* is one of ``Purpose``, *model* the name of the model. Inside of the functions that summarize or entitle a
    conversation, *owner* and *memory_id* are those of that conversation by default, and *labels* are added to those of
    the answer. The block passes what the call used to ``used``. Without that, the counts are an estimate by what was
    passed to ``sends`` and ``arrived``, unless the vendor refused the call. An exception is recorded by the name of its
    class.
    """
    if purpose not in Purpose.values:
        raise ValueError(f"purpose must be one of {', '.join(Purpose.values)}, not {purpose!r}.")
    memory = served()
    account = Account(None if owner is None else owner.pk) if memory is None else Account.of(memory, owner)
    if memory_id is not None:
        account = Account(account.owner, memory_key(memory_id), account.using)
    own = checked_labels({**getattr(memory, "labels", {}), **(labels or {})})
    return CallRecorder(purpose, model, labels=own, account=account)


def prune_calls(older_than: timedelta, *, using: str | None = None, dry_run: bool = False) -> int:
    """
    Delete the records of calls that began more than *older_than* ago, and return their number.

    What they used stays known: they are added to the sums before. Those of today, which are read themselves, are kept.
    """
    now = datetime.now(UTC)
    before = min(to_moment(now - older_than), midnight(now))
    old = ModelCall.objects.using(using or router.db_for_write(ModelCall)).filter(created_at__lt=before)
    if dry_run:
        return old.count()
    sum_calls(using=old.db)
    old = old.exclude(summed=None)
    count = 0
    while keys := list(old.order_by("created_at").values_list("pk", flat=True)[:PRUNED_AT_ONCE]):
        count += old.filter(pk__in=keys).delete()[0]
    return count


def _sum(using: str, asked: bool, dry_run: bool) -> Iterator[str]:
    if not dry_run:
        count = sum_calls(using=using)
        if asked:
            yield f"Summed up {count:,} calls."


def _prune(using: str, asked: timedelta | None, dry_run: bool) -> Iterator[str]:
    if asked is not None:
        count = prune_calls(asked, using=using, dry_run=dry_run)
        yield f"{'Would have deleted' if dry_run else 'Deleted'} the records of {count:,} calls."


_OLD = "Delete the records of what models used in calls more than this many days ago."
_SUMS = (
    "Sum up the calls of past days, so that what months used is read quickly. This is always done; with this option "
    "alone, nothing else is."
)
PRUNINGS = (Pruning(_sum, "--sum-calls", _SUMS), Pruning(_prune, "--calls-older-than", _OLD, takes_days=True))


def _written(message: AiMessage) -> str:
    calls = (f"{call.name}{call.arguments}" for call in message.tool_execution_requests)
    return f"{message.text or ''}{message.thinking or ''}{''.join(calls)}"


def _count(tokens: int | None) -> int | None:
    return None if tokens is None else min(max(tokens, 0), _MOST)
