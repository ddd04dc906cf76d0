"""
The tables. History is the table of messages; a memory is a window on it.

Every message is a row, written once. A conversation's memory begins at ``window_start``; a protected system message
may be pinned in front of it. Eviction moves the start, so it costs the same at any length of history.
"""

from __future__ import annotations

import datetime
import uuid
from typing import TYPE_CHECKING, Any, Self

from django.conf import settings
from django.db import models
from django.db.models import Case, Exists, F, OuterRef, Q, Value, When
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from chatmemory_django.messages import ChatMessage, MessageType
from chatmemory_django.rows import to_message
from chatmemory_django.stores.base import MAX_MEMORY_ID_LENGTH

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser
    from django.db.backends.base.base import BaseDatabaseWrapper


def new_memory_id() -> str:
    """A memory id that nobody can guess."""
    return str(uuid.uuid4())


class Standing(models.TextChoices):
    """How a message stands to the memory of its conversation."""

    IN_MEMORY = "in_memory", _("in memory")
    PINNED = "pinned", _("in memory, pinned in front")
    EVICTED = "evicted", _("evicted")
    SUPERSEDED = "superseded", _("superseded")

    @property
    def is_in_memory(self) -> bool:
        """Whether the message is in the memory."""
        return self in {Standing.IN_MEMORY, Standing.PINNED}


class MemoryIdField(models.CharField):
    """Text that is equal only to itself, on every database: MySQL's own idea of equal makes "A" of "a"."""

    def db_parameters(self, connection: BaseDatabaseWrapper) -> dict[str, Any]:
        """See ``Field.db_parameters``."""
        parameters = super().db_parameters(connection)
        if connection.vendor == "mysql":
            # Binary, and without the padding that makes "a" of "a ".
            is_mariadb = connection.mysql_is_mariadb  # type: ignore[attr-defined]
            parameters["collation"] = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
        return parameters


# A window that begins at 2 may have left behind nothing but what is pinned in front of it.
_HAS_EVICTIONS = Q(said_messages__gt=F("memory_messages")) | (
    Q(window_start__gt=1) & ~Q(window_start=2, pinned_sequence=1)
)


class ConversationQuerySet(models.QuerySet["Conversation"]):
    """What can be asked of conversations."""

    def owned_by(self, user: AbstractBaseUser | AnonymousUser) -> Self:
        """The conversations of *user*; none of an anonymous one."""
        return self.filter(owner=user.pk) if user.is_authenticated else self.none()

    def idle_since(self, cutoff: datetime.datetime) -> Self:
        """Conversations whose last write is older than *cutoff* (aware)."""
        return self.filter(updated_at__lt=cutoff)

    def active_since(self, cutoff: datetime.datetime) -> Self:
        """Conversations written to at *cutoff* (aware) or later."""
        return self.filter(updated_at__gte=cutoff)

    def with_evictions(self) -> Self:
        """Conversations of which something that was said is no longer in the memory. Reads no message."""
        return self.filter(_HAS_EVICTIONS)

    def without_evictions(self) -> Self:
        """Conversations of which all that was said is in the memory. Reads no message."""
        return self.exclude(_HAS_EVICTIONS)

    def search(self, text: str, *, said: bool = True) -> Self:
        """
        Conversations that have *text* in their memory id, in their title or, in whatever case, in what was said.

        Whoever may not read what was said must not find it either: for them, *said* is False.
        """
        found = Q(memory_id__icontains=text) | Q(title__icontains=text)
        if said:
            messages = Message.objects.history().filter(conversation=OuterRef("pk"), text__icontains=text)
            found |= Q(Exists(messages))
        return self.filter(found)


class Conversation(models.Model):
    """One conversation: whose it is, and where in its messages the memory begins."""

    memory_id = MemoryIdField(_("memory id"), max_length=MAX_MEMORY_ID_LENGTH, unique=True, default=new_memory_id)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        verbose_name=_("owner"),
        on_delete=models.CASCADE,
        related_name="chat_conversations",
        null=True,
        blank=True,
    )
    title = models.CharField(_("title"), max_length=255, blank=True, default="")
    metadata = models.JSONField(_("metadata"), default=dict, blank=True)
    next_sequence = models.PositiveIntegerField(_("next sequence"), default=1, editable=False)
    window_start = models.PositiveIntegerField(_("start of the window"), default=1, editable=False)
    pinned_sequence = models.PositiveIntegerField(_("pinned message"), null=True, editable=False)
    # How many messages were ever said: what is in the history, and what history did not keep.
    said_messages = models.PositiveIntegerField(_("messages said"), default=0, editable=False)
    # Counters, so that an add need not read the window to know whether something must leave it.
    memory_messages = models.PositiveIntegerField(_("messages in memory"), default=0, editable=False)
    memory_tokens = models.PositiveIntegerField(_("tokens in memory"), default=0, editable=False)
    # What counted memory_tokens; empty where not every message in the memory was counted by the same.
    token_counter = models.CharField(_("token counter"), max_length=64, blank=True, default="", editable=False)
    # What the next messages to leave the memory cost; empty where that is not known. Only ``front`` reads it.
    front = models.TextField(blank=True, default="", editable=False)
    created_at = models.DateTimeField(_("created at"), default=timezone.now, editable=False)
    # No index on anything that an add changes: PostgreSQL then writes the row without touching any index.
    updated_at = models.DateTimeField(_("last activity"), default=timezone.now, editable=False)

    objects = ConversationQuerySet.as_manager()

    class Meta:
        verbose_name = _("conversation")
        verbose_name_plural = _("conversations")
        # To erase one is to delete it, so Django's own permission says who may.
        permissions = (
            ("clear_conversation", "Can clear the memory of a conversation"),
            ("export_conversation", "Can export a conversation"),
            ("recount_conversation", "Can recount the tokens of a conversation"),
        )

    def __str__(self) -> str:
        return self.title or self.memory_id

    def memory(self) -> MessageQuerySet:
        """The rows in the memory, in its order, as of when this object was read."""
        rows = self.messages.filter(self.is_remembered())
        if self.pinned_sequence is None:
            return rows.order_by("sequence")
        return rows.order_by(Case(When(sequence=self.pinned_sequence, then=Value(0)), default=Value(1)), "sequence")

    def is_remembered(self) -> Q:
        """What is true of the rows in the memory, and of no others, as of when this object was read."""
        window = Q(sequence__gte=self.window_start, superseded=False)
        return window if self.pinned_sequence is None else window | Q(sequence=self.pinned_sequence)

    def history(self) -> MessageQuerySet:
        """The rows of all that was said, in order."""
        return self.messages.history()

    def standing_of(self, row: Message) -> Standing:
        """How *row*, one of this conversation's, stands to the memory, as of when this object was read."""
        if row.sequence == self.pinned_sequence:
            return Standing.PINNED
        if row.superseded:
            return Standing.SUPERSEDED
        return Standing.IN_MEMORY if row.sequence >= self.window_start else Standing.EVICTED

    def evicted(self) -> MessageQuerySet:
        """The rows of what was said and is no longer in the memory, as of when this object was read."""
        rows = self.history().filter(Q(sequence__lt=self.window_start) | Q(superseded=True))
        return rows if self.pinned_sequence is None else rows.exclude(sequence=self.pinned_sequence)


INCOMPLETE = {"incomplete": True}
"""The metadata of a message that belongs to a turn that has not ended, or never will."""


class MessageQuerySet(models.QuerySet["Message"]):
    """What can be asked of the messages of any conversations. For a single one, its own methods are faster."""

    def history(self) -> Self:
        """What was said, without what only a memory was made of."""
        return self.filter(in_history=True)

    def incomplete(self) -> Self:
        """What belongs to a turn that has not ended, or never will."""
        return self.filter(metadata__incomplete=True)

    def in_memory(self) -> Self:
        """What is in a memory now."""
        return self.filter(
            Q(sequence__gte=F("conversation__window_start"), superseded=False)
            | Q(sequence=F("conversation__pinned_sequence"))
        )

    def evicted(self) -> Self:
        """What was said and is in no memory any more."""
        is_out = Q(sequence__lt=F("conversation__window_start")) | Q(superseded=True)
        is_pinned = Q(conversation__pinned_sequence__isnull=False, sequence=F("conversation__pinned_sequence"))
        return self.history().filter(is_out).exclude(is_pinned)


class Message(models.Model):
    """One message, never changed once written."""

    pk = models.CompositePrimaryKey("conversation_id", "sequence")
    # Columns of a fixed width come first: PostgreSQL pads them otherwise.
    conversation = models.ForeignKey(
        Conversation,
        verbose_name=_("conversation"),
        on_delete=models.CASCADE,
        related_name="messages",
        db_index=False,  # the primary key begins with it
    )
    created_at = models.DateTimeField(_("created at"), default=timezone.now, editable=False)
    # Not a timestamp: clocks repeat and step back.
    sequence = models.PositiveIntegerField(_("sequence"))
    token_count = models.PositiveIntegerField(_("tokens"), null=True)
    # Left the memory while inside the window.
    superseded = models.BooleanField(_("superseded"), default=False)
    # False for what only a memory was made of, a summary for example.
    in_history = models.BooleanField(_("in history"), default=True)
    type = models.CharField(_("type"), max_length=21, choices=[(k.value, k.value) for k in MessageType])
    token_counter = models.CharField(_("token counter"), max_length=64, blank=True, default="")
    text = models.TextField(_("text"), blank=True)
    # JSON as it was written, in a text column: jsonb would give 1e308 back as an integer of 309 digits.
    payload = models.TextField(_("payload"), null=True)  # noqa: DJ001  # null is "nothing but its text", and free
    client_id = models.UUIDField(_("client id"), null=True)
    metadata = models.JSONField(_("metadata"), null=True)

    objects = MessageQuerySet.as_manager()

    class Meta:
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        permissions = (("view_message_text", "Can read what was said"),)
        ordering = ("sequence",)
        constraints = (
            # In this order: if it began with the conversation, PostgreSQL would sometimes take it for reading a window,
            # and so read the whole conversation.
            models.UniqueConstraint(fields=["client_id", "conversation"], name="chatmemory_client_id"),
        )

    def __str__(self) -> str:
        return f"{self.type} {self.sequence}"  # never the text: this ends up in logs

    @property
    def chat_message(self) -> ChatMessage:
        """What was said, as a value."""
        return to_message(self.type, self.text, self.payload)
