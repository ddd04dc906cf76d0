"""
The models. The history is the table of messages; a memory is a window on it.

Every message is a row, written once. A conversation's memory begins at ``window_start``; a protected system message may
be pinned in front of it. Evicting moves the start of the window, so it costs the same at any length of history.
``memory_parts`` defines which rows are in a memory; everything else that needs this is built on it.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Collection, Iterable, Sequence
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Self

from django.apps import apps
from django.conf import settings
from django.db import connections, models, router, transaction
from django.db.models import Case, Exists, F, OuterRef, Q, Subquery, Sum, TextField, Value, When
from django.db.models.functions import Cast, Coalesce, Left, Length
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from chatmemory_django.branches import Tree
from chatmemory_django.deadlocks import tried_again
from chatmemory_django.ids import MAX_CLIENT_MESSAGE_ID_LENGTH, MAX_MEMORY_ID_LENGTH
from chatmemory_django.messages import ChatMessage, MessageType
from chatmemory_django.metadata import MetadataEntry
from chatmemory_django.places import Place, places_of
from chatmemory_django.ranking import NEWEST_FIRST, IsAmong, has, is_among_newest, rank_of
from chatmemory_django.rows import in_parts, is_storable, to_message, to_moment
from chatmemory_django.snippets import Snippet, snippet
from chatmemory_django.terms import terms_of

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.expressions import Combinable

ERASE_BATCH = 100
"""How many conversations one transaction erases: few enough for a short lock, enough to make the commit cheap."""

ERASE_MESSAGES = 10_000
"""How many messages these conversations may have together; a larger conversation is erased alone."""


MAX_PARTS = 100
"""How many parts of a path one query reads at most: SQLite limits the depth of an expression to 1,000."""

PREVIEW = 200
"""How many characters of a message are shown as the preview of its conversation."""


def new_memory_id() -> str:
    """Return a memory id that cannot be guessed."""
    return str(uuid.uuid4())


class MemoryStatus(models.TextChoices):
    """Whether a message is in the memory of its conversation, and if not, why."""

    IN_MEMORY = "in_memory", _("in memory")
    PINNED = "pinned", _("in memory, pinned in front")
    EVICTED = "evicted", _("evicted")
    SUPERSEDED = "superseded", _("superseded")
    OFF_PATH = "off_path", _("on another branch")

    @property
    def is_in_memory(self) -> bool:
        """Whether the message is in the memory."""
        return self in {MemoryStatus.IN_MEMORY, MemoryStatus.PINNED}


def memory_parts(
    window_start: Combinable | int, pinned_sequence: Combinable | int | None, summary_sequence: Combinable | int | None
) -> tuple[Q, Q, Q]:
    """
    Return the parts of a memory, in its order: the pinned row, the summary's row, then the window.

    The pinned row may be in the window as well; the summary's row is not, since it is superseded from the start. Each
    part is a range of the primary key. If *window_start* is a subquery, PostgreSQL reads the whole conversation for
    parts joined by OR; query each part separately then.
    """
    window = Q(sequence__gte=window_start, superseded=False)
    return Q(sequence=pinned_sequence), Q(sequence=summary_sequence), window


def in_memory(
    window_start: Combinable | int, pinned_sequence: Combinable | int | None, summary_sequence: Combinable | int | None
) -> Q:
    """Return all parts of a memory as one condition, for numbers, and for rows of several conversations."""
    pinned, summary, window = memory_parts(window_start, pinned_sequence, summary_sequence)
    # For "or is NULL", SQLite would read the whole conversation.
    front = Q() if pinned_sequence is None else pinned
    return (front if summary_sequence is None else front | summary) | window


def is_in_memory(
    sequence: int, window_start: int, pinned_sequence: int | None, summary_sequence: int | None, *, superseded: bool
) -> bool:
    """Return whether a message that is not stored yet will be in a memory."""
    return sequence in {pinned_sequence, summary_sequence} or (sequence >= window_start and not superseded)


class SparseIndex(models.Index):
    """
    An index of the rows that meet *rows*, or of all rows if the database does not support partial indexes.

    Django does the same with an index that has a condition, but warns at each migration.
    """

    def __init__(self, *, rows: Q, **options: Any) -> None:
        super().__init__(**options)
        self.rows = rows

    def create_sql(self, model: Any, schema_editor: Any, using: str = "", **options: Any) -> Any:
        """See ``Index.create_sql``."""
        is_partial = schema_editor.connection.features.supports_partial_indexes
        index = models.Index(fields=self.fields, name=self.name, condition=self.rows if is_partial else None)
        return index.create_sql(model, schema_editor, using, **options)

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        """See ``Index.deconstruct``."""
        path, args, options = super().deconstruct()
        return path, args, {**options, "rows": self.rows}


class ExactCharField(models.CharField):
    """A string that is compared exactly on every database: by default, MySQL considers "a" and "A" equal."""

    def db_parameters(self, connection: BaseDatabaseWrapper) -> dict[str, Any]:
        """See ``Field.db_parameters``."""
        parameters = super().db_parameters(connection)
        if connection.vendor == "mysql":
            # Binary, and without the padding that makes "a" and "a " equal.
            is_mariadb = connection.mysql_is_mariadb  # type: ignore[attr-defined]
            parameters["collation"] = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
        return parameters


class OwnerField(models.ForeignKey):
    """
    A foreign key to a user, with a constraint and a cascade.

    If a site has its users in another database, neither is possible: then ``erase_conversations`` takes their place.
    """

    @property
    def db_constraint(self) -> bool:
        """Whether the users are in the same database as the conversations."""
        if not hasattr(self, "model"):
            return True
        return router.db_for_write(self.model) == router.db_for_write(self.remote_field.model)

    @db_constraint.setter
    def db_constraint(self, value: bool) -> None:
        """Ignore *value*: the router decides."""

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        """See ``Field.deconstruct``. The migration is the same for all sites."""
        name, path, args, options = super().deconstruct()
        options.pop("db_constraint", None)
        return name, path, args, {**options, "on_delete": models.CASCADE}


# A window that begins at 2 may have been preceded only by the message that is pinned in front of it.
_HAS_EVICTIONS = Q(total_messages__gt=F("memory_messages")) | (
    Q(window_start__gt=1) & ~Q(window_start=2, pinned_sequence=1)
)


class ConversationQuerySet(models.QuerySet["Conversation"]):
    """Queries on conversations."""

    def owned_by(self, user: AbstractBaseUser | AnonymousUser) -> Self:
        """Return the conversations of *user*; none for an anonymous user."""
        return self.filter(owner=user.pk) if user.is_authenticated else self.none()

    def idle_since(self, cutoff: datetime.datetime) -> Self:
        """Return conversations that were last written to before *cutoff*, an aware datetime."""
        return self.filter(updated_at__lt=to_moment(cutoff))

    def active_since(self, cutoff: datetime.datetime) -> Self:
        """Return conversations that were written to at *cutoff*, an aware datetime, or later."""
        return self.filter(updated_at__gte=to_moment(cutoff))

    def with_evictions(self) -> Self:
        """Return conversations with messages that are no longer in the memory. Reads no messages."""
        return self.filter(_HAS_EVICTIONS)

    def without_evictions(self) -> Self:
        """Return conversations whose messages are all in the memory. Reads no messages."""
        return self.exclude(_HAS_EVICTIONS)

    def search(self, text: str, *, types: Collection[MessageType] | None = None) -> Self:
        """
        Return conversations with *text* in their memory id or title, or with a message that ``containing`` finds.

        Only messages of *types* are searched: users without permission to read other messages must not find
        conversations by them. None searches all types.
        """
        return self.filter(
            Q(memory_id__icontains=text) | Q(title__icontains=text) | _has_message_containing(text, types)
        )

    def with_messages_containing(self, text: str) -> Self:
        """Return conversations with a message that ``containing`` finds."""
        return self.filter(_has_message_containing(text, None))

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

        The preview is the whole text if a site uses a field class of its own, which may store the text encrypted.
        """
        is_plain = type(Message._meta.get_field("text")) is TextField
        newest = Message.objects.history().filter(conversation=OuterRef("pk"), type__in=types).exclude(text="")
        preview = Left("text", PREVIEW) if is_plain else F("text")
        return self.annotate(preview=Subquery(newest.order_by("-sequence").values_list(preview)[:1]))

    def with_size(self) -> Self:
        """Annotate each with its ``size``: the number of characters of its stored metadata."""
        return self.annotate(size=Length(Cast("metadata", TextField())))

    def lock(self, keys: Iterable[int]) -> Self:
        """
        Lock the conversations *keys* in a transaction, waiting for other writers.

        Returns those of them that still are among these conversations then, whatever the transaction has read before.
        """
        vendor = connections[self.db].vendor
        rows = Conversation.objects.using(self.db).filter(pk__in=keys)
        if vendor == "sqlite":
            rows.update(version=F("version"))  # a DEFERRED transaction acquires its lock by this
        list(rows.order_by("pk").select_for_update().values_list("pk"))
        found = self.filter(pk__in=keys)
        return found.select_for_update() if vendor == "mysql" else found

    def delete(self) -> tuple[int, dict[str, int]]:
        """
        Erase these conversations with their history, in batches of one transaction each.

        The conditions are evaluated again after a batch is locked, so a conversation that was written to in the
        meantime is erased only if it still matches. No messages are loaded. Returns what ``QuerySet.delete`` does.
        """
        deleted: dict[str, int] = {}
        last = 0
        alias = self.select_for_update().db  # the database for writes, even if the router reads from another one
        matching = self.using(alias).order_by("pk")
        while keys := _erase_batch(matching.filter(pk__gt=last)):
            last = keys[-1]
            for label, count in tried_again(alias, partial(_erase, matching, keys)):
                deleted[label] = deleted.get(label, 0) + count
        return sum(deleted.values()), deleted

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]

    def with_incomplete_turns(self) -> Self:
        """Return conversations with a turn that has not ended, or never will."""
        return self.filter(Exists(Message.objects.incomplete().filter(conversation=OuterRef("pk"))))

    def with_failed_tools(self) -> Self:
        """Return conversations with a tool call whose result is an error."""
        return self.filter(Exists(Message.objects.failed_tools().filter(conversation=OuterRef("pk"))))


def _has_message_containing(text: str, types: Collection[MessageType] | None) -> Exists:
    messages = Message.objects.containing(text).filter(conversation=OuterRef("pk"))
    return Exists(messages if types is None else messages.filter(type__in=types))


def _candidates(scope: MessageQuerySet, terms: Sequence[str]) -> IsAmong:
    """Return the condition for the messages of *scope* with all of *terms* that are to be ranked."""
    if not apps.is_installed("chatmemory_django.search"):
        return is_among_newest(scope.filter(has(terms)))
    from chatmemory_django.search.indexes import candidates  # usable only if the app has created the index

    return candidates(scope, terms)


def _erase_batch(conversations: ConversationQuerySet) -> list[int]:
    """Return the keys of as many of *conversations* as one transaction erases."""
    keys: list[int] = []
    messages = 0
    for key, next_sequence in conversations.values_list("pk", "next_sequence")[:ERASE_BATCH]:
        messages += next_sequence
        if keys and messages > ERASE_MESSAGES:
            break
        keys.append(key)
    return keys


def _erase(matching: ConversationQuerySet, keys: list[int]) -> list[tuple[str, int]]:
    """
    Erase those of the conversations *keys* that still are *matching*, in one transaction; return the deleted rows per
    model.
    """
    alias = matching.db
    with transaction.atomic(using=alias):
        still = list(matching.lock(keys).values_list("pk", flat=True))
        _, messages = Message.objects.using(alias).filter(conversation__in=still).delete()
        _, others = models.QuerySet.delete(Conversation.objects.using(alias).filter(pk__in=still))
    return [*messages.items(), *others.items()]


class Conversation(models.Model):
    """One conversation: its owner, and where the memory begins in its messages."""

    memory_id = ExactCharField(_("memory id"), max_length=MAX_MEMORY_ID_LENGTH, unique=True, default=new_memory_id)
    owner = OwnerField(
        settings.AUTH_USER_MODEL,
        verbose_name=_("owner"),
        on_delete=models.CASCADE,
        related_name="chat_conversations",
        null=True,
        blank=True,
    )
    title = models.CharField(_("title"), max_length=255, blank=True, default="")
    metadata = models.JSONField(_("metadata"), default=dict, blank=True)
    is_pinned = models.BooleanField(_("pinned"), default=False)
    is_archived = models.BooleanField(_("archived"), default=False)
    # Incremented by every write, so that a reader can detect whether another writer has changed the conversation since.
    version = models.PositiveBigIntegerField(_("version"), default=1, editable=False)
    next_sequence = models.PositiveIntegerField(_("next sequence"), default=1, editable=False)
    window_start = models.PositiveIntegerField(_("start of the window"), default=1, editable=False)
    pinned_sequence = models.PositiveIntegerField(_("pinned message"), null=True, editable=False)
    summary_sequence = models.PositiveIntegerField(_("summary"), null=True, editable=False)
    # Which message the next one follows; null is the newest of the history, 0 none at all.
    parent_sequence = models.PositiveIntegerField(_("continues from"), null=True, editable=False)
    # Everything up to this message was cleared, or replaced by another memory: no summary covers it, and no rewind to a
    # later message brings it back.
    forgotten_through = models.PositiveIntegerField(_("cleared through"), default=0, editable=False)
    # How many messages the history has had: those it still has, and those that were not kept.
    total_messages = models.PositiveIntegerField(_("total messages"), default=0, editable=False)
    # Counters, so that an add can tell whether anything must be evicted without reading the window.
    memory_messages = models.PositiveIntegerField(_("messages in memory"), default=0, editable=False)
    memory_tokens = models.PositiveIntegerField(_("tokens in memory"), default=0, editable=False)
    # The name of what counted memory_tokens; empty unless the same estimator counted every message in the memory.
    counted_by = models.CharField(_("counted by"), max_length=64, blank=True, default="", editable=False)
    created_at = models.DateTimeField(_("created at"), default=timezone.now, editable=False)
    # No index on any column that an add changes: PostgreSQL then updates the row without touching an index.
    updated_at = models.DateTimeField(_("last activity"), default=timezone.now, editable=False)

    objects = ConversationQuerySet.as_manager()

    class Meta:
        verbose_name = _("conversation")
        verbose_name_plural = _("conversations")
        # Erasing is deleting, so Django's own "delete" permission covers it.
        permissions = (
            ("clear_conversation", "Can clear the memory of a conversation"),
            ("export_conversation", "Can export a conversation"),
            ("import_conversation", "Can import conversations"),
            ("recount_conversation", "Can recount the tokens of a conversation"),
            ("set_conversation", "Can replace the memory of a conversation"),
        )

    def __str__(self) -> str:
        return self.title or self.memory_id

    def __repr__(self) -> str:
        return f"<Conversation {self.pk} {self.memory_id!r}>"  # never the title: it may quote messages

    def save(self, *, update_fields: Iterable[str] | None = None, **options: Any) -> None:
        """
        Save the conversation.

        For an existing conversation, only the fields that belong to the site are written (``SITE_FIELDS``), unless
        *update_fields* names others: since this object was read, another writer may have added messages and changed the
        counters.
        """
        if self._state.adding:
            super().save(update_fields=update_fields, **options)
            return
        fields = set(SITE_FIELDS if update_fields is None else update_fields) - self.get_deferred_fields()
        if not fields:
            return
        self.version = F("version") + 1
        try:
            super().save(update_fields=fields | {"version"}, **options)
        finally:
            self.__dict__.pop("version", None)  # read again when it is accessed

    def memory(self) -> MessageQuerySet:
        """Return the rows in the memory, in its order, as of when this object was read."""
        places = self.window_start, self.pinned_sequence, self.summary_sequence
        pinned, summary, window = memory_parts(*places)
        if self.pinned_sequence is None and self.summary_sequence is None:
            # For "this row or the window", SQLite reads the whole conversation.
            return self.messages.filter(window).order_by("sequence")
        place = Case(When(pinned, then=Value(0)), When(summary, then=Value(1)), default=Value(2))
        return self.messages.filter(in_memory(*places)).order_by(place, "sequence")

    def history(self, *, all_branches: bool = False) -> MessageQuerySet:
        """Return the rows of the history, in order: those on the current path or on *all_branches*."""
        return self.messages.history(all_branches=all_branches)

    def alternatives(self, sequence: int) -> MessageQuerySet:
        """
        Return the rows of the alternatives to message *sequence*, which follow the same parent on other branches, in
        order.

        Empty if the history has no such message.
        """
        history = self.messages.history(all_branches=True).order_by("sequence")
        parent = self.parent_of(sequence)
        if parent is None:
            return history.none()
        following = history.filter(sequence__gt=parent).values_list("sequence", "parent_sequence").first()
        # Two queries: with OR in a single one, MariaDB and SQLite read the whole conversation.
        siblings = set(history.order_by().filter(parent_sequence=parent).values_list("sequence", flat=True))
        if following is not None and following[1] is None:
            siblings.add(following[0])
        return history.filter(sequence__in=siblings - {sequence})

    def parent_of(self, sequence: int) -> int | None:
        """Return the parent of message *sequence* of the history; 0 if it is the first, None if it does not exist."""
        history = self.messages.history(all_branches=True).order_by("sequence")
        row = history.filter(sequence=sequence).values_list("parent_sequence").first()
        if row is None or row[0] is not None:
            return None if row is None else row[0]
        return history.filter(sequence__lt=sequence).values_list("sequence", flat=True).last() or 0

    def places(self, rows: Iterable[Message], *, types: Collection[MessageType] | None = None) -> dict[int, Place]:
        """
        Return the place of each of the messages *rows* among its alternatives, by sequence; without those that have
        none.

        Only messages of *types* count; None stands for all types. A thousand *rows* take as many queries as one does,
        and at most two rows are read for each, however many alternatives there are.
        """
        return places_of(self.messages.history(all_branches=True).order_by(), rows, types)

    def evicted(self) -> MessageQuerySet:
        """Return the rows of the history that are no longer in the memory."""
        return self.messages.evicted()


SITE_FIELDS = ("memory_id", "owner", "title", "metadata", "is_pinned", "is_archived")
"""The fields of a conversation that the site may change; the others are maintained by the store."""


class MessageQuerySet(models.QuerySet["Message"]):
    """Queries on the messages of any number of conversations."""

    def history(self, *, all_branches: bool = False) -> Self:
        """Return the messages of the history, those on the current path or on *all_branches*."""
        # Every message on the path is in the history; the second condition lets the database use an index on the
        # history.
        messages = self.filter(in_history=True)
        return messages if all_branches else messages.filter(on_path=True)

    def path_to(self, sequence: int) -> list[Self]:
        """
        Return the path to message *sequence* among the messages of one conversation, on any branch.

        The path comes as querysets, newest messages first: several if it passes through many branches.
        """
        history = self.history(all_branches=True).order_by("-sequence")
        named = history.filter(parent_sequence__isnull=False, sequence__lte=sequence)
        pairs = named.values_list("sequence", "parent_sequence")
        parts = Tree(((first, parent or 0) for first, parent in pairs), sequence + 1).path_to(sequence)[::-1]
        return [
            history.filter(reduce(or_, (Q(sequence__range=part) for part in some)))
            for some in in_parts(parts, MAX_PARTS)
        ]

    def containing(self, text: str, *, all_branches: bool = False) -> Self:
        """
        Return the messages of the history, or of *all_branches*, that contain all terms of *text*, case-insensitively.

        Terms are words or parts of words; a phrase in quotation marks must match exactly, spaces included. A blank
        *text* finds nothing.
        """
        terms = terms_of(text)
        if not terms or not is_storable(text):
            return self.none()
        return self.history(all_branches=all_branches).filter(has(terms))

    def search(
        self,
        text: str,
        *,
        owner: AbstractBaseUser | AnonymousUser | None = None,
        types: Collection[MessageType] | None = None,
    ) -> Self:
        """
        Return the messages that match *text* best, each with its ``rank``, best first; equal ranks newest first.

        They are those that ``containing`` finds, limited to the newest 500. With *owner*, only conversations of that
        user are searched, none for an anonymous user; with *types*, only messages of those types: users without
        permission to read other messages must not find them. The app ``chatmemory_django.search`` makes this fast.
        """
        terms = terms_of(text)
        if not terms or not is_storable(text) or (owner is not None and not owner.is_authenticated):
            return self.none()
        scope = self.history()
        if owner is not None:
            scope = scope.filter(conversation__owner=owner.pk)
        if types is not None:
            scope = scope.filter(type__in=types)
        best = scope.filter(_candidates(scope, terms)).annotate(rank=rank_of(text, terms))
        return best.order_by("-rank", *NEWEST_FIRST)

    def incomplete(self) -> Self:
        """Return the messages of turns that have not ended, or never will."""
        return self.filter(is_complete=False)

    def in_memory(self) -> Self:
        """Return the messages that are in a memory now."""
        return self.filter(in_memory(*_CURRENT))

    def evicted(self, *, all_branches: bool = False) -> Self:
        """Return the messages of the history, or of *all_branches*, that are no longer in a memory."""
        return self.history(all_branches=all_branches).exclude(in_memory(*_CURRENT))

    def with_status(self) -> Self:
        """Annotate each message with its current ``status``, a ``MemoryStatus``."""
        pinned, summary, window = memory_parts(*_CURRENT)
        return self.annotate(
            status=Case(
                When(pinned, then=Value(MemoryStatus.PINNED.value)),
                When(summary | window, then=Value(MemoryStatus.IN_MEMORY.value)),
                When(in_history=True, on_path=False, then=Value(MemoryStatus.OFF_PATH.value)),
                When(superseded=True, then=Value(MemoryStatus.SUPERSEDED.value)),
                default=Value(MemoryStatus.EVICTED.value),
            )
        )

    def with_size(self) -> Self:
        """Annotate each with its ``size``: the number of characters of its stored texts, payload and metadata."""
        return self.annotate(size=MESSAGE_SIZE)

    def total_size(self) -> int:
        """Return the total size of the messages in one query, see ``with_size``."""
        return self.aggregate(total=Sum(MESSAGE_SIZE))["total"] or 0

    def failed_tools(self) -> Self:
        """Return the results of failed tools: those whose payload has ``isError``."""
        # As the codec writes it, after the contents. Inside a text, each quotation mark would be escaped with a
        # backslash.
        failed = Q(payload__endswith='],"isError":true}') | Q(payload__contains='],"isError":true,"attributes":{')
        return self.filter(failed, type=MessageType.TOOL_EXECUTION_RESULT.value)


MESSAGE_SIZE = (
    Length("text")
    + Coalesce(Length("payload"), Value(0))
    + Coalesce(Length("verbatim"), Value(0))
    + Coalesce(Length(Cast("metadata", TextField())), Value(0))
)  # fmt: skip

# Where the memory of a message's conversation is. NULL is neither equal to a sequence nor different from it; 0 is
# different.
_CURRENT = (
    F("conversation__window_start"),
    Coalesce(F("conversation__pinned_sequence"), Value(0)),
    Coalesce(F("conversation__summary_sequence"), Value(0)),
)


class Message(models.Model):
    """One message. Its content never changes after it is written."""

    pk = models.CompositePrimaryKey("conversation_id", "sequence")
    # Columns of fixed width come first: otherwise PostgreSQL pads them.
    conversation = models.ForeignKey(
        Conversation,
        verbose_name=_("conversation"),
        # Deleted by SQL just before their conversation, see ``erase_messages``: a cascade would load or list them.
        on_delete=models.DO_NOTHING,
        related_name="messages",
        db_index=False,  # the primary key starts with it
    )
    created_at = models.DateTimeField(_("created at"), default=timezone.now, editable=False)
    # Not a timestamp: clocks repeat and run backwards.
    sequence = models.PositiveIntegerField(_("sequence"))
    token_count = models.PositiveIntegerField(_("tokens"), null=True)
    # True if the message left the memory while inside the window.
    superseded = models.BooleanField(_("superseded"), default=False)
    # False for messages that were only ever part of a memory, for example summaries.
    in_history = models.BooleanField(_("in history"), default=True)
    # False while its turn has not ended.
    is_complete = models.BooleanField(_("complete"), default=True)
    # False on branches that are not in use, and for messages that are not part of the history.
    on_path = models.BooleanField(_("on the path"), default=True)
    # Which message it follows; null is the one before it in the history, 0 none at all. For a summary, the last message
    # that it covers.
    parent_sequence = models.PositiveIntegerField(_("parent message"), null=True)
    type = models.CharField(_("type"), max_length=21, choices=[(k.value, k.value) for k in MessageType])
    counted_by = models.CharField(_("counted by"), max_length=64, blank=True, default="")
    text = models.TextField(_("text"), blank=True)
    # JSON exactly as written, in a text column: jsonb would return 1e308 as an integer of 309 digits.
    payload = models.TextField(_("payload"), null=True)  # noqa: DJ001  # null means "only a text", and takes no space
    client_message_id = ExactCharField(  # null means "none", and is not unique
        _("client message id"), max_length=MAX_CLIENT_MESSAGE_ID_LENGTH, null=True
    )
    # What another framework passed, if the message alone cannot restore it exactly: JSON as text, like payload.
    verbatim = models.TextField(_("original"), null=True)  # noqa: DJ001  # null means "restored from the message"
    metadata = models.JSONField(_("metadata"), null=True)

    objects = MessageQuerySet.as_manager()

    class Meta:
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        permissions = (("view_message_text", "Can read message texts"),)
        ordering = ("sequence",)
        constraints = (
            # In this order: if it started with the conversation, PostgreSQL would sometimes use it to read a window,
            # and so read the whole conversation.
            models.UniqueConstraint(fields=["client_message_id", "conversation"], name="chatmemory_client_message_id"),
        )
        indexes = (
            # Few messages name their parent: only the first one of each branch, and summaries.
            SparseIndex(
                fields=["conversation", "parent_sequence"],
                name="chatmemory_parent",
                rows=Q(parent_sequence__isnull=False),
            ),
        )

    def __str__(self) -> str:
        return f"{self.type} {self.sequence}"  # never the text: this appears in logs

    @property
    def chat_message(self) -> ChatMessage:
        """The message as a value."""
        return to_message(self.type, self.text, self.payload)

    def snippet(self, text: str) -> Snippet:
        """Return an excerpt in which the matches of a search for *text* are marked."""
        return snippet(self.text, text)


def erase_messages(
    sender: type[Conversation], instance: Conversation, using: str, origin: object = None, **kwargs: Any
) -> None:
    """Delete the messages of *instance*, which is about to be deleted, after locking it against other writers."""
    if isinstance(origin, ConversationQuerySet):
        return  # its ``delete`` has done so for the whole batch
    list(Conversation.objects.using(using).filter(pk=instance.pk).select_for_update().values_list("pk"))
    Message.objects.using(using).filter(conversation=instance.pk).delete()


def erase_conversations(sender: type[models.Model], instance: models.Model, **kwargs: Any) -> None:
    """Erase the conversations of the user *instance*, which is about to be deleted from another database."""
    Conversation.objects.using(router.db_for_write(Conversation)).filter(owner=instance.pk).delete()
