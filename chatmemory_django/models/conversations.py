"""Conversations: whose they are, where their memory begins, and the queries on them."""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import nullcontext
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Self

from django.conf import settings
from django.core.validators import MaxLengthValidator
from django.db import connections, models, router, transaction
from django.db.models import (
    Case,
    DateTimeField,
    Exists,
    F,
    IntegerField,
    OuterRef,
    Q,
    Subquery,
    Sum,
    TextField,
    Value,
    When,
)
from django.db.models.functions import Cast, Coalesce, Length
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from chatmemory_django import conf
from chatmemory_django.core.excerpts import terms_of
from chatmemory_django.core.limits import (
    MAX_ASSISTANT_LENGTH,
    MAX_COUNTER_LENGTH,
    MAX_MEMORY_ID_LENGTH,
    MAX_TITLE_LENGTH,
    is_storable,
)
from chatmemory_django.core.reasons import Reader, Remembered
from chatmemory_django.db import row_codec
from chatmemory_django.db.engines import queues
from chatmemory_django.db.moments import aware, to_moment
from chatmemory_django.db.transactions import as_now, note_lock, tried_again
from chatmemory_django.messages import MessageType
from chatmemory_django.models import finding, message_codec
from chatmemory_django.models.alternatives import Place, children_of, places_of
from chatmemory_django.models.copies import forget_copies, of_owners
from chatmemory_django.models.fields import (
    EncryptedTextField,
    ExactCharField,
    Hour,
    OwnerField,
    PlacedQuerySet,
    SparseIndex,
    WhoField,
    as_stored,
    cascade_without_texts,
    names_of_texts,
    with_default,
)
from chatmemory_django.models.lookups import MetadataEntry
from chatmemory_django.models.messages import Match, Message, MessageQuerySet, before_memory, beginning_of_text
from chatmemory_django.models.remains import Counted, delete_rows, is_long, leave_rows, note_own
from chatmemory_django.models.windows import Bounds, in_memory, is_in_memory, memory_parts

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser


ERASE_BATCH = 100
"""How many conversations one transaction erases: few enough for a short lock, enough to make the commit cheap."""

ERASE_MESSAGES = 4_000
"""How many messages these conversations may have together; a long conversation is erased alone."""

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

MAX_MEASURE_LENGTH = 8
"""The longest ``Window.measure`` has this many characters."""

PREVIEW = 200
"""How many characters of a message are shown as the preview of its conversation."""


def new_memory_id() -> str:
    """Return a memory id that cannot be guessed."""
    return str(uuid.uuid4())


def new_expiry() -> datetime.datetime:
    """Return the ``expires_at`` of a temporary conversation that begins now; ``ValueError`` if the site has none."""
    period = (conf.retention() or {}).get("TEMPORARY")
    if period is None:
        raise ValueError("This site has no temporary conversations: CHATMEMORY['RETENTION'] does not set TEMPORARY.")
    return to_moment(datetime.datetime.now(datetime.UTC) + period)


def unexpired(moment: datetime.datetime) -> Q:
    """Return the condition for conversations that are not temporary, or whose time has not passed at *moment*."""
    return Q(expires_at=None) | Q(expires_at__gt=to_moment(moment))


# A window that begins at 2 may have been preceded only by the message that is pinned in front of it.
_HAS_EVICTIONS = Q(total_messages__gt=F("memory_messages")) | (
    Q(window_start__gt=1, pinned_count=0) & ~Q(window_start=2, pinned_sequence=1)
)


def hour_of(moment: datetime.datetime) -> Hour:
    """Return the ``active_hour`` of a conversation that was last written to at *moment*."""
    return Hour(Value(moment, DateTimeField()))


def by_hour(ordering: Iterable[str]) -> list[str]:
    """Return *ordering* with the hour in front of the last activity: the same order, for which there are indexes."""
    return [
        name
        for each in ordering
        for name in ((each.replace("updated_at", "active_hour"), each) if each.lstrip("-") == "updated_at" else (each,))
    ]


class ConversationQuerySet(PlacedQuerySet["Conversation"]):
    """Queries on conversations."""

    def owned_by(self, user: AbstractBaseUser | AnonymousUser) -> Self:
        """Return the conversations of *user*; none for an anonymous user."""
        return self.filter(owner=user.pk) if user.is_authenticated else self.none()

    def begun_with(self, assistant: str) -> Self:
        """Return the conversations that belong to the assistant with this name, see ``CHAT["ASSISTANTS"]``."""
        own = self.filter(assistant=assistant)
        return own.exclude(assistant="") if assistant else own  # SQLite uses the index only with its condition

    def idle_since(self, cutoff: datetime.datetime) -> Self:
        """Return conversations that were last written to before *cutoff*, an aware datetime."""
        moment = to_moment(cutoff)
        return self.filter(updated_at__lt=moment, active_hour__lte=hour_of(moment))

    def active_since(self, cutoff: datetime.datetime) -> Self:
        """Return conversations that were written to at *cutoff*, an aware datetime, or later."""
        moment = to_moment(cutoff)
        return self.filter(updated_at__gte=moment, active_hour__gte=hour_of(moment))

    def expired_at(self, moment: datetime.datetime) -> Self:
        """Return temporary conversations whose time has passed at *moment*, an aware datetime."""
        return self.filter(expires_at__lte=to_moment(moment))

    def unexpired_at(self, moment: datetime.datetime) -> Self:
        """Return conversations that are not temporary, or whose time has not passed at *moment*, an aware datetime."""
        return self.filter(unexpired(moment))

    def with_evictions(self) -> Self:
        """Return conversations with messages that are no longer in the memory. Reads no messages."""
        return self.filter(_HAS_EVICTIONS)

    def without_evictions(self) -> Self:
        """Return conversations whose messages are all in the memory. Reads no messages."""
        return self.exclude(_HAS_EVICTIONS)

    def known_as(self, text: str) -> Self | None:
        """Return the conversation whose memory id is *text*, None if there is none or *text* is not a UUID."""
        name = text.strip()
        if not _UUID.fullmatch(name):
            return None
        known = self.filter(memory_id__in={name, name.lower()})
        return known if known.exists() else None

    def search(self, text: str, *, types: Collection[MessageType] | None = None, match: Match = "all") -> Self:
        """
        Return conversations with *text* in their memory id or title, or with a message that ``containing`` finds.

        Only messages of *types* are searched: users without permission to read other messages must not find
        conversations by them. None searches all types; without any, only memory ids are searched. If *text* is the
        memory id of one of these conversations, and a UUID, only that is returned. With *match* "any", they are those
        of the messages that ``MessageQuerySet.search`` finds with any of the words, which are looked for at once.

        This takes a query for a UUID, and two if ``chatmemory_django.contrib.search`` is installed on PostgreSQL:
        whether there are many conversations, and the word is rare, decides whether the index is used.
        """
        known = self.known_as(text)
        if known is not None:
            return known
        if match == "any":
            messages = Message.objects.using(self.db).filter(conversation__in=self.order_by().values("pk"))
            found = messages.search(text, types=types, match=match).values_list("conversation", flat=True)
            return self.filter(pk__in={*found})
        named = Q(memory_id__icontains=text)
        if types is not None and not types:
            return self.filter(named)
        return self._found(text, types, named, Q(title__icontains=text))

    def with_messages_containing(self, text: str) -> Self:
        """Return conversations with a message that ``containing`` finds. It may take two queries, see ``search``."""
        return self._found(text, None)

    def _found(self, text: str, types: Collection[MessageType] | None, *names: Q) -> Self:
        each = reduce(or_, names, Q(has_message_containing(text, types)))
        if finding.index is None or not finding.index.looks_up(self, terms_of(text), each):
            return self.filter(each)
        messages = _messages_containing(text, types).order_by().values("conversation")
        return self.filter(pk__in=messages.union(*(Conversation.objects.filter(name).values("pk") for name in names)))

    def with_metadata(self, key: str, text: str) -> Self:
        """
        Return conversations whose metadata have at the top level a *key* whose value, as text, is *text*.

        A string is its own text, a Boolean is ``true`` or ``false``, a number is compared by value. Null, lists and
        objects never match.
        """
        return self.filter(MetadataEntry("metadata", key, text)) if is_storable(key + text) else self.none()

    def with_preview(self, types: Collection[MessageType]) -> Self:
        """
        Annotate each with its ``preview``: the beginning of the newest message of *types* that has a text, or None.

        The preview is the whole text, or None, where the database cannot cut it, see ``beginning_of_text``.
        """
        newest = Message.objects.history().filter(conversation=OuterRef("pk"), type__in=types).exclude(text="")
        preview = newest.order_by("-sequence").values_list(beginning_of_text(PREVIEW))[:1]
        return self.annotate(preview=Subquery(preview))

    def with_size(self) -> Self:
        """Annotate each with its ``size``: the number of characters of its stored title and metadata."""
        return self.annotate(size=Length("title") + Length(Cast("metadata", TextField())))

    def lock(self, keys: Iterable[int]) -> Self:
        """
        Lock the conversations *keys* in a transaction, waiting for other writers.

        Returns those of them that still are among these conversations then, whatever the transaction has read before.
        """
        rows = Conversation.objects.using(self.db).filter(pk__in=keys)
        if not queues(connections[self.db]):
            rows.update(version=F("version"))  # a DEFERRED transaction acquires its lock by this
        list(rows.order_by("pk").select_for_update().values_list("pk"))
        return as_now(self.filter(pk__in=keys))

    def delete(self) -> tuple[int, dict[str, int]]:
        """
        Erase these conversations with their history, in batches of one transaction each.

        The conditions are evaluated again after a batch is locked, so a conversation that was written to in the
        meantime is erased only if it still matches. No messages are loaded. Those of a long conversation are deleted
        after the commit, see ``models.remains``. Returns what ``QuerySet.delete`` does.
        """
        deleted: dict[str, int] = {}
        last = 0
        alias = self.select_for_update().db  # the database for writes, even if the router reads from another one
        matching = self.using(alias).order_by("pk")
        while rows := _erase_batch(matching.filter(pk__gt=last)):
            last, next_sequence, is_left = rows[-1]
            counted = Counted.of(last, next_sequence, alias) if is_left else None
            for label, count in tried_again(alias, partial(_erase, matching, [row[0] for row in rows], counted)):
                deleted[label] = deleted.get(label, 0) + count
        return sum(deleted.values()), deleted

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]

    def with_incomplete_turns(self) -> Self:
        """Return conversations with a turn that has not ended, or never will."""
        return self.filter(Exists(Message.objects.incomplete().filter(conversation=OuterRef("pk"))))

    def with_ratings(self, lowest: int, highest: int) -> Self:
        """Return conversations with an answer that a user has rated between *lowest* and *highest*, see ``rate``."""
        rated = Message.objects.filter(
            conversation=OuterRef("pk"),
            type=MessageType.AI.value,
            metadata__feedback__rating__gte=lowest,
            metadata__feedback__rating__lte=highest,
        )
        return self.filter(Exists(rated))

    def with_failed_tools(self) -> Self:
        """Return conversations with a tool call whose result is an error."""
        return self.filter(Exists(Message.objects.failed_tools().filter(conversation=OuterRef("pk"))))


def create_once(using: str, memory_id: str, owner: Any, assistant: str = "") -> None:
    """
    Create the conversation *memory_id* of the user with the key *owner*, unless another writer was faster; inside a
    transaction, no one else can write to it then. It belongs to the *assistant* with this name.
    """
    # An update that changes nothing, instead of ON CONFLICT DO NOTHING: after that, InnoDB has the row locked for
    # everyone who tried, each waiting for the others before it can write.
    can_name_target = connections[using].features.supports_update_conflicts_with_target
    Conversation.objects.using(using).bulk_create(
        [Conversation(memory_id=memory_id, owner_id=owner, assistant=assistant)],
        update_conflicts=True,
        update_fields=["memory_id"],
        unique_fields=["memory_id"] if can_name_target else None,
    )


def stored_size(owner: Any, using: str | None = None) -> int:
    """
    Return how much is stored of the user with the key *owner*: the characters of texts, titles and metadata, and the
    bytes of files.

    In a transaction, others who ask this for the user wait until it ends. It reads the sizes of all of their messages.
    """
    using = using or router.db_for_write(Conversation)
    own = Conversation.objects.using(using).filter(owner=owner)
    lock_first(own)
    rows = Message.objects.using(using).filter(conversation__in=own.order_by().values("pk"))
    size = rows.total_size() + (own.with_size().aggregate(total=Sum("size"))["total"] or 0)
    for each in of_owners:
        lengths = [Coalesce(Length(as_stored(name)), 0) for name in names_of_texts(each.model)]
        own_rows = each.model._default_manager.using(using).filter(owner=owner)
        size += sum(own_rows.aggregate(total=Sum(length))["total"] or 0 for length in lengths)
    codec = message_codec.installed
    return size + (0 if codec is None else codec.stored_bytes(owner, using))


def lock_first(conversations: ConversationQuerySet) -> None:
    """
    In a transaction, let others who lock the first of *conversations*, those of one owner, wait until it ends.

    Call this before another conversation is locked, as who locks several does it in their order.
    """
    if connections[conversations.db].in_atomic_block:
        list(conversations.order_by("pk").select_for_update().values_list("pk")[:1])


def has_message_containing(text: str, types: Collection[MessageType] | None = None) -> Exists:
    """Return the condition that a conversation has a message, of one of *types*, that ``containing`` finds."""
    messages = _messages_containing(text, types).filter(conversation=OuterRef("pk"))
    # The second condition, always true, keeps PostgreSQL from looking up the messages of all conversations first.
    return Exists(messages.filter(conversation_id__lte=OuterRef("pk")))


def newest_message_containing(text: str) -> Subquery:
    """Return the sequence of the newest message of a conversation that ``containing`` finds; null if there is none."""
    messages = _messages_containing(text, None).filter(conversation=OuterRef("pk"))
    return Subquery(messages.order_by("-sequence").values("sequence")[:1])


def _messages_containing(text: str, types: Collection[MessageType] | None) -> MessageQuerySet:
    messages = Message.objects.containing(text)
    return messages if types is None else messages.filter(type__in=types)


def _erase_batch(conversations: ConversationQuerySet) -> list[tuple[int, int, bool]]:
    """Return key, next sequence and ``is_long`` of as many of *conversations* as one transaction erases."""
    batch: list[tuple[int, int, bool]] = []
    messages = 0
    for row in conversations.values_list("pk", "next_sequence", is_long())[:ERASE_BATCH]:
        messages += row[1]
        if batch and (row[2] or messages > ERASE_MESSAGES):
            break
        batch.append(row)
        if row[2]:
            break
    return batch


def _erase(matching: ConversationQuerySet, keys: list[int], counted: Counted | None) -> list[tuple[str, int]]:
    """
    Erase those of the conversations *keys* that still are *matching*, in one transaction; return the deleted rows per
    model. *counted* are the messages of a long one, which is alone.
    """
    alias = matching.db
    is_own = not connections[alias].in_atomic_block
    with transaction.atomic(using=alias):
        still = dict(matching.lock(keys).values_list("pk", "memory_id"))
        if counted is None or not still or not is_own:
            _, messages = delete_rows(alias, still)
        else:
            left = Message.objects.using(alias).filter(conversation=keys[0])
            messages = {Message._meta.label: counted.up_to_now(left)}
            leave_rows(alias, keys[0])
        rows = Conversation.objects.using(alias).filter(pk__in=list(still))
        _, others = models.QuerySet.delete(rows.defer("title"))  # to read it takes a key, which may be missing
        forget_copies(alias, still, erased=True)
    return [*messages.items(), *others.items()]


class Conversation(models.Model):
    """One conversation: its owner, and where the memory begins in its messages."""

    class State(models.TextChoices):
        """Who answers; unless it is the assistant, a question begins no answer."""

        ASSISTANT = "assistant", _("the assistant")
        WAITING = "waiting", _("waits for a person")
        """It was handed over, and nobody has it yet."""
        PERSON = "person", _("a person")

    memory_id = ExactCharField(_("memory id"), max_length=MAX_MEMORY_ID_LENGTH, unique=True, default=new_memory_id)
    owner = OwnerField(
        settings.AUTH_USER_MODEL,
        verbose_name=_("owner"),
        on_delete=cascade_without_texts,
        related_name="chat_conversations",
        null=True,
        blank=True,
        db_index=False,  # an index below starts with it
    )
    title = EncryptedTextField(
        _("title"),
        max_length=MAX_TITLE_LENGTH,
        blank=True,
        default="",
        validators=[MaxLengthValidator(MAX_TITLE_LENGTH)],
    )
    metadata = with_default(models.JSONField(_("metadata"), default=dict, blank=True))
    # The name in CHAT["ASSISTANTS"] of the one that was asked first; empty for ASSISTANT, and until one is asked.
    assistant = with_default(
        ExactCharField(_("assistant"), max_length=MAX_ASSISTANT_LENGTH, blank=True, default="", editable=False)
    )
    state = with_default(
        models.CharField(_("who answers"), max_length=9, choices=State.choices, default=State.ASSISTANT, editable=False)
    )
    # Who has it while a person answers, and since when the state is what it is.
    person = with_default(WhoField(_("person"), blank=True, default="", editable=False))
    state_since = models.DateTimeField(_("since"), null=True, editable=False)
    is_pinned = with_default(models.BooleanField(_("pinned"), default=False))
    is_archived = with_default(models.BooleanField(_("archived"), default=False))
    # Incremented by every write, so that a reader can detect whether another writer has changed the conversation since.
    version = with_default(models.PositiveBigIntegerField(_("version"), default=1, editable=False))
    # Incremented by each answer that takes the conversation; a write of an answer that has lost it writes nothing.
    fence = with_default(models.PositiveBigIntegerField(default=0, editable=False))
    next_sequence = with_default(models.PositiveIntegerField(_("next sequence"), default=1, editable=False))
    window_start = with_default(models.PositiveIntegerField(_("start of the window"), default=1, editable=False))
    pinned_sequence = models.PositiveIntegerField(_("pinned message"), null=True, editable=False)
    summary_sequence = models.PositiveIntegerField(_("summary"), null=True, editable=False)
    # What core.pending.Failure describes: the summary that was to come next has failed, and waits.
    summary_failure = models.JSONField(null=True, editable=False)
    # Which message the next one follows; null is the newest of the history, 0 none at all.
    parent_sequence = models.PositiveIntegerField(_("continues from"), null=True, editable=False)
    # The last message of the path after which the memory was cleared, or replaced by another one: no summary covers
    # what is up to it, and no rewind to a later message brings it back. 0 if there is none.
    forgotten_through = with_default(models.PositiveIntegerField(_("cleared through"), default=0, editable=False))
    # The limit that evicted last, and what it is a number of: a window with a larger one may bring messages back ...
    evicted_limit = models.PositiveIntegerField(_("evicted down to"), null=True, editable=False)
    evicted_by = with_default(
        models.CharField(_("evicted by"), max_length=MAX_MEASURE_LENGTH, blank=True, default="", editable=False)
    )
    # ... but nothing up to this one, which was evicted by ``evict``, or was not among the messages that were set.
    kept_out_through = with_default(models.PositiveIntegerField(_("kept out through"), default=0, editable=False))
    # Whether a system message has left the memory, and no other one has replaced it: a rewind has to search for the one
    # of that time even if the memory has none.
    has_lost_system = with_default(models.BooleanField(_("without its system message"), default=False, editable=False))
    # How many messages the history has had: those it still has, and those that were not kept.
    total_messages = with_default(models.PositiveIntegerField(_("total messages"), default=0, editable=False))
    # Counters, so that an add can tell whether anything must be evicted without reading the window.
    memory_messages = with_default(models.PositiveIntegerField(_("messages in memory"), default=0, editable=False))
    memory_tokens = with_default(models.PositiveIntegerField(_("tokens in memory"), default=0, editable=False))
    # The name of what counted memory_tokens; empty unless the same estimator counted every message in the memory.
    counted_by = with_default(
        models.CharField(_("counted by"), max_length=MAX_COUNTER_LENGTH, blank=True, default="", editable=False)
    )
    # How many messages are pinned, on all branches; while it is 0, no read of the memory looks for them.
    pinned_count = with_default(models.PositiveIntegerField(_("pinned messages"), default=0, editable=False))
    created_at = with_default(models.DateTimeField(_("created at"), default=timezone.now, editable=False))
    # No index on a column that every add changes: PostgreSQL then updates the row without touching an index.
    updated_at = with_default(models.DateTimeField(_("last activity"), default=timezone.now, editable=False))
    # It rarely changes, so it can be indexed: ordered by it, only the conversations of the same hour need sorting.
    active_hour = models.GeneratedField(expression=Hour("updated_at"), output_field=IntegerField(), db_persist=True)

    # Of temporary conversations alone. No add changes it, so its index costs none of them anything.
    expires_at = models.DateTimeField(_("expires at"), null=True, editable=False)

    objects = ConversationQuerySet.as_manager()

    class Meta:
        verbose_name = _("conversation")
        verbose_name_plural = _("conversations")
        indexes = (
            models.Index(fields=["owner", "active_hour"], name="chatmemory_of_owner"),
            models.Index(fields=["active_hour"], name="chatmemory_by_activity"),
            SparseIndex(fields=["assistant", "active_hour"], name="chatmemory_by_assistant", rows=~Q(assistant="")),
            SparseIndex(fields=["state", "state_since"], name="chatmemory_by_state", rows=~Q(state="assistant")),
            SparseIndex(fields=["expires_at"], name="chatmemory_by_expiry", rows=Q(expires_at__isnull=False)),
        )
        # Erasing is deleting, so Django's own "delete" permission covers it.
        permissions = (
            ("answer_conversation", "Can answer in a conversation instead of the assistant"),
            ("approve_conversation", "Can approve the tool calls in a conversation"),
            ("clear_conversation", "Can clear the memory of a conversation"),
            ("export_conversation", "Can export a conversation"),
            ("import_conversation", "Can import conversations"),
            ("recount_conversation", "Can recount the tokens of a conversation"),
            ("set_conversation", "Can replace the memory of a conversation"),
        )

    def __str__(self) -> str:
        return self.memory_id  # never the title, which may quote messages: Django's own pages show this to all staff

    def __repr__(self) -> str:
        return f"<Conversation {self.pk} {self.memory_id!r}>"

    def save(self, *, update_fields: Iterable[str] | None = None, **options: Any) -> None:
        """
        Save the conversation.

        For an existing conversation, only the fields that belong to the site are written (``SITE_FIELDS``), unless
        *update_fields* names others: since this object was read, another writer may have added messages and changed the
        counters.
        """
        using = options.get("using") or router.db_for_write(Conversation, instance=self)
        if self._state.adding:
            codec = row_codec.installed
            # In the transaction in which the owner's key is locked.
            is_atomic = codec is not None and codec.has_owner_keys
            with transaction.atomic(using=using, savepoint=False) if is_atomic else nullcontext():
                super().save(update_fields=update_fields, **options)
            return
        fields = set(SITE_FIELDS if update_fields is None else update_fields) - self.get_deferred_fields()
        if not fields:
            return
        codec = row_codec.installed
        self.version = F("version") + 1
        try:
            with nullcontext() if codec is None else codec.saving(self, fields, using):
                super().save(update_fields=fields | {"version"}, **options)
            note_lock(connections[using], self.memory_id)
        finally:
            self.__dict__.pop("version", None)  # read again when it is accessed

    def delete(self, using: str | None = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        """Erase the conversation with its history; the messages of a long one after the commit."""
        using = using or router.db_for_write(Conversation, instance=self)
        is_own = not connections[using].in_atomic_block
        with transaction.atomic(using=using, savepoint=False):
            if is_own:
                note_own(using)
            return super().delete(using=using, keep_parents=keep_parents)

    delete.alters_data = True  # type: ignore[attr-defined]

    @property
    def is_temporary(self) -> bool:
        """Whether the conversation is erased at a time that was set when it began, whatever is written to it."""
        return self.expires_at is not None

    @property
    def has_expired(self) -> bool:
        """Whether its time has passed: it is erased with the next prune, and nobody is shown it until then."""
        return self.expires_at is not None and aware(self.expires_at) <= timezone.now()

    @property
    def kept_until(self) -> datetime.datetime | None:
        """
        Return from when on ``apply_retention`` erases the conversation, if nobody writes to it before; None for never.

        Like ``expires_at``, it does not shorten the life of single messages, see ``HISTORY_OLDER_THAN``.
        """
        idle = (conf.retention() or {}).get("IDLE")
        ends = [] if self.expires_at is None else [aware(self.expires_at)]
        return min([*ends, *([] if idle is None else [aware(self.updated_at) + idle])], default=None)

    def memory(self) -> MessageQuerySet:
        """Return the rows in the memory, in its order, as of when this object was read."""
        pinned, summary, _pins, window = memory_parts(Bounds.of(self))
        if self.pinned_sequence is None and self.summary_sequence is None and not self.pinned_count:
            # For "this row or the window", SQLite reads the whole conversation.
            return self._rows.filter(window).order_by("sequence")
        part = Case(When(pinned, then=Value(0)), When(summary, then=Value(1)), default=Value(2))
        return self._rows.filter(in_memory(Bounds.of(self))).order_by(part, "sequence")

    def remembers(self, row: Message) -> bool:
        """Return whether *row* is in the memory, as of when this object was read."""
        return is_in_memory(row.sequence, Bounds.of(self), superseded=row.superseded, is_pinned=row.is_pinned)

    @property
    def _rows(self) -> MessageQuerySet:
        """The rows of its messages, in the database that it was read from, whichever a router names."""
        return self.messages.db_manager(self._state.db).all()

    def read(self, reader: Reader, shown: Callable[[MessageQuerySet], Iterable[Any]] = list) -> Remembered[Any]:
        """
        Return what is sent to the LLM now if *reader*, a memory, reads this conversation.

        Its rows are what *shown* returns for those of ``memory()``, by default models. Takes one query, and one more if
        the limit has grown and the memory is filled again.
        """
        return Remembered(
            shown(self.memory()),
            reader,
            pinned=self.pinned_sequence,
            summary=self.summary_sequence,
            window_start=self.window_start,
            forgotten_through=self.forgotten_through,
            evicted=self,
            pause=timezone.now() - self.updated_at,
            before=partial(self._before_memory, shown),
        )

    def _before_memory(
        self, shown: Callable[[MessageQuerySet], Iterable[Any]], covered: int, size: int
    ) -> Iterator[Any]:
        """Yield what may come back to the memory, newest first, read *size* at a time; nothing that is *covered*."""
        before = self.window_start
        while True:
            rows = before_memory(self._rows, before, self.forgotten_through, self.kept_out_through, covered)
            rows = rows.filter(on_path=True).exclude(type=MessageType.SYSTEM.value)
            if self.pinned_count:
                rows = rows.filter(is_pinned=False)  # these have not left it
            found = list(shown(rows[:size]))
            yield from found
            if len(found) < size:
                return
            before = found[-1].sequence

    def recent(self, count: int) -> list[Message]:
        """Return the last *count* messages of the history, on all branches, in order."""
        return list(self.history(all_branches=True).order_by("-sequence")[:count])[::-1]

    def history(self, *, all_branches: bool = False) -> MessageQuerySet:
        """Return the rows of the history, in order: those on the current path or on *all_branches*."""
        return self._rows.history(all_branches=all_branches)

    def alternatives(self, sequence: int) -> MessageQuerySet:
        """
        Return the rows of the alternatives to message *sequence*, which follow the same parent on other branches, in
        order.

        Empty if the history has no such message.
        """
        history = self._rows.history(all_branches=True).order_by("sequence")
        parent = self.parent_of(sequence)
        if parent is None:
            return history.none()
        return history.filter(sequence__in=children_of(history, parent) - {sequence})

    def parent_of(self, sequence: int) -> int | None:
        """
        Return the parent of message *sequence* of the history; 0 if it is the first, None if it does not exist.

        Where no history is kept, the parent may be deleted; then it is what is left before that.
        """
        history = self._rows.history(all_branches=True).order_by("sequence")
        row = history.filter(sequence=sequence).values_list("parent_sequence").first()
        if row is None:
            return None
        last = sequence - 1 if row[0] is None else row[0]
        return history.filter(sequence__lte=last).values_list("sequence", flat=True).last() or 0

    def places(self, rows: Iterable[Message], *, types: Collection[MessageType] | None = None) -> dict[int, Place]:
        """
        Return the place of each of the messages *rows* among its alternatives, by sequence; without those that have
        none.

        Only messages of *types* count; None stands for all types. A thousand *rows* take as many queries as one does,
        and at most two rows are read for each, however many alternatives there are. Without branches, the newest
        messages take no query.
        """
        return places_of(self, rows, types)

    def evicted(self) -> MessageQuerySet:
        """Return the rows of the history that are no longer in the memory."""
        return self._rows.evicted()


SITE_FIELDS = ("memory_id", "owner", "title", "metadata", "is_pinned", "is_archived", "expires_at")
"""The fields of a conversation that the site may change; the others are maintained by the store."""
