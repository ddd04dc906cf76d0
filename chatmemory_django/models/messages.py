"""Messages: the rows of the history, and the queries on them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, get_args

from django.apps import apps
from django.db import models
from django.db.models import Case, F, Q, Sum, TextField, Value, When
from django.db.models.functions import Cast, Coalesce, Left, Length, Substr
from django.db.models.lookups import LessThanOrEqual
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from chatmemory_django.core.branches import Tree
from chatmemory_django.core.excerpts import MAX_EXCERPTED, Snippet, snippet, terms_of
from chatmemory_django.core.limits import MAX_CLIENT_MESSAGE_ID_LENGTH, MAX_COUNTER_LENGTH, is_storable
from chatmemory_django.db import row_codec
from chatmemory_django.db.batches import in_parts
from chatmemory_django.db.row_codec import Coder, EncryptedError, Stored
from chatmemory_django.messages import ChatMessage, CustomMessage, MessageType
from chatmemory_django.models import finding
from chatmemory_django.models.columns import to_message
from chatmemory_django.models.fields import (
    EncryptedTextField,
    ExactCharField,
    PlacedQuerySet,
    SparseIndex,
    WithPlace,
    as_stored,
    with_default,
)
from chatmemory_django.models.finding import NEWEST_FIRST, has, is_among_newest, place_of, rank_of
from chatmemory_django.models.windows import Bounds, MemoryStatus, in_memory, memory_parts

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser
    from django.db.models import QuerySet
    from django.db.models.expressions import Combinable


Match: TypeAlias = Literal["all", "any"]
"""Whether a search finds messages with all of its words, or with any."""

MATCHES = get_args(Match)

MAX_PARTS = 100
"""How many parts of a path one query reads at most: SQLite limits the depth of an expression to 1,000."""


MAX_DECRYPTED = 1_000
"""How many messages a search decrypts where texts are encrypted: of a conversation, or of an owner."""


class MessageQuerySet(PlacedQuerySet["Message"]):
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

    def look_through(self, text: str, *, all_branches: bool = False) -> Self:
        """
        Return what ``containing`` finds in these messages, which are of one conversation.

        Where texts are encrypted, the newest ``MAX_DECRYPTED`` messages are decrypted to find it.
        """
        if row_codec.installed is None:
            return self.containing(text, all_branches=all_branches)
        terms = [term.casefold() for term in terms_of(text)]
        newest = self.history(all_branches=all_branches).order_by("-sequence").values_list("sequence", "text")
        rows = newest[:MAX_DECRYPTED].iterator(chunk_size=100) if terms else ()
        found = [sequence for sequence, whole in rows if all(term in whole.casefold() for term in terms)]
        return self.filter(sequence__in=found)

    def with_keys(self, keys: Iterable[tuple[int, int]]) -> Self:
        """Return the messages with these primary keys, by the index: for ``pk__in``, SQLite reads the whole table."""
        sequences: dict[int, list[int]] = {}
        for conversation, sequence in keys:
            sequences.setdefault(conversation, []).append(sequence)
        named = (Q(conversation=each, sequence__in=sequences[each]) for each in sequences)
        return self.filter(reduce(or_, named)) if sequences else self.none()

    def search(
        self,
        text: str,
        *,
        owner: AbstractBaseUser | AnonymousUser | None = None,
        types: Collection[MessageType] | None = None,
        match: Match = "all",
        conversations: QuerySet[Any] | None = None,
    ) -> Self:
        """
        Return the messages that match *text* best, each with its ``rank``, best first; equal ranks newest first.

        They are those that ``containing`` finds, limited to the newest 500. With *match* "any", they are the best 100
        that answer *text* with any of its words, see ``core.weighing``; they are looked for at once, in a few queries,
        among the newest 10,000, and beyond them for rare words that an index finds. Where texts are encrypted, only
        that is possible, and only with *owner*: the newest 1,000 are decrypted. With *owner*, only conversations of
        that user are searched, none for an anonymous user; with *conversations*, only those; with *types*, only
        messages of those types: users without permission to read other messages must not find them. The app
        ``chatmemory_django.contrib.search`` makes this fast.
        """
        if match not in MATCHES:
            raise ValueError(f"match must be one of {', '.join(MATCHES)}, not {match!r}.")
        terms = terms_of(text)
        if not terms or not is_storable(text) or (owner is not None and not owner.is_authenticated):
            return self.none()
        scope = self.history()
        named = None if conversations is None else conversations.order_by().values("pk")
        scope = scope if named is None else scope.filter(conversation__in=named)
        if types is not None:
            scope = scope.filter(type__in=types)
        is_plain = row_codec.installed is None
        if not is_plain and (match != "any" or owner is None):
            raise EncryptedError("The texts of messages are encrypted, so the database cannot search them.")
        if match == "any":
            most = finding.WEIGHED if is_plain else MAX_DECRYPTED
            beginning = beginning_of_text(finding.WEIGHED_LENGTH)
            if owner is None:
                weights = finding.weigh(scope, text, beginning, most)
            else:
                every = apps.get_model("chatmemory", "Conversation")._default_manager.using(scope.db)
                owned = every.filter(Q() if named is None else Q(pk__in=named), owner=owner.pk)
                weights = finding.weigh(scope, text, beginning, most, owner=owner.pk, owned=owned)
                scope = scope.filter(finding.is_of(owner.pk))
            answering = scope.with_keys(weights).annotate(rank=finding.WeightOf(weights))
            return answering.order_by("-rank", *NEWEST_FIRST)
        scope = scope if owner is None else scope.filter(conversation__owner=owner.pk)
        index = finding.index
        found = is_among_newest(scope.filter(has(terms))) if index is None else index.candidates(scope, terms)
        best = scope.filter(found).annotate(rank=rank_of(text, terms))
        return best.order_by("-rank", *NEWEST_FIRST)

    def snippets(self, text: str) -> dict[tuple[int, int], Snippet]:
        """
        Return an excerpt of each message by its primary key, see ``Message.snippet``, in two queries.

        At most ``MAX_EXCERPTED`` characters of each text are read: of a longer text, those around the first match of
        *text* or, if it does not occur as a whole, of its first term. If the database does not find them there (SQLite
        ignores case for ASCII letters only), they are the first ones. Where texts are encrypted, they are read as a
        whole.
        """
        if row_codec.installed is not None:
            return {key: snippet(whole, text) for key, whole in self.order_by().values_list("pk", "text")}
        rows = self.order_by().annotate(_length=Length("text"))
        places = rows.filter(_length__gt=MAX_EXCERPTED).annotate(_place=place_of(text if is_storable(text) else ""))
        before = MAX_EXCERPTED // 2
        starts = {key: place - before for key, place in places.values_list("pk", "_place") if place > before + 1}
        start = Case(*(When(pk=key, then=Value(each)) for key, each in starts.items()), default=Value(1))
        parts = rows.annotate(_part=Substr("text", start, MAX_EXCERPTED)).values_list("pk", "_part", "_length")
        return {
            key: snippet(
                part,
                text,
                is_cut_before=key in starts,
                is_cut_behind=starts.get(key, 1) + len(part) <= length,
            )
            for key, part, length in parts
        }

    def incomplete(self) -> Self:
        """Return the messages of turns that have not ended, or never will."""
        return self.filter(is_complete=False)

    def in_memory(self) -> Self:
        """Return the messages that are in a memory now."""
        return self.filter(in_memory(_CURRENT))

    def evicted(self, *, all_branches: bool = False) -> Self:
        """Return the messages of the history, or of *all_branches*, that are no longer in a memory."""
        return self.history(all_branches=all_branches).exclude(in_memory(_CURRENT))

    def with_status(self) -> Self:
        """Annotate each message with its current ``status``, a ``MemoryStatus``."""
        system, summary, pins, window = memory_parts(_CURRENT)
        pinned = system | pins | (window & Q(is_pinned=True))
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


def before_memory(messages: MessageQuerySet, window_start: int, *behind: Combinable | int) -> MessageQuerySet:
    """
    Return those of *messages*, of one conversation, newest first, that were in its memory when it began earlier.

    They come before *window_start*, and after each of *behind*. Some have left it since for other reasons: those that
    are not on the path, and system messages.
    """
    rows = messages.filter(sequence__lt=window_start, superseded=False).order_by("-sequence")
    for each in behind:
        rows = rows.filter(sequence__gt=each)
    return rows


TEXTS = {column: f"chatmemory.message.{column}" for column in ("text", "payload", "verbatim", "rating_reason")}
"""The columns of a message that are encoded, and their names for a ``Coder``."""


def encoded_texts(coder: Coder, sequence: int, type: str, values: Mapping[str, Any]) -> dict[str, Stored]:
    """Return the texts among *values*, columns of message *sequence*, as *coder* encodes them."""
    given = {column: text for column in TEXTS if (text := values.get(column))}
    return {column: Stored(coder.encode(text, TEXTS[column], (sequence, type))) for column, text in given.items()}


def decoded_texts(coder: Coder, sequence: int, type: str, stored: Sequence[str | None]) -> dict[str, str | None]:
    """Return the *stored* values of ``TEXTS`` of message *sequence* by column, as *coder* decodes them."""
    named = zip(TEXTS, stored, strict=True)
    return {column: text and coder.decode(text, TEXTS[column], (sequence, type)) for column, text in named}


def texts_as_stored(columns: Iterable[str]) -> list[Any]:
    """Return *columns*, of ``TEXTS`` as they are stored: for a statement whose rows are decoded by a ``Coder``."""
    return [as_stored(column) if column in TEXTS else column for column in columns]


def beginning_of_text(length: int) -> Combinable:
    """
    Return an expression for the first *length* characters of a message's text.

    If the database cannot cut it, see ``EncryptedTextField.is_plain``, it is the whole text, and None if that is stored
    in more than ``MAX_EXCERPTED`` characters.
    """
    text: Any = Message._meta.get_field("text")
    return Left("text", length, output_field=text) if text.is_plain else if_short("text", MAX_EXCERPTED)


def if_short(column: str, length: int) -> Combinable:
    """Return an expression for *column*, one of ``TEXTS``, or None if it has more than *length* characters."""
    return Case(When(LessThanOrEqual(Length(column), length), then=WithPlace(column)))


MESSAGE_SIZE = (
    Length("text")
    + Coalesce(Length("payload"), Value(0))
    + Coalesce(Length("verbatim"), Value(0))
    + Coalesce(Length("rating_reason"), Value(0))
    + Coalesce(Length(Cast("metadata", TextField())), Value(0))
)  # fmt: skip

REMOVED = Q(in_history=False, superseded=True, text="", payload=None, parent_sequence=None)
"""What is left of removed messages, and of summaries that covered them."""

# Where the memory of a message's conversation is. NULL is neither equal to a sequence nor different from it; 0 is
# different.
_CURRENT = Bounds(
    F("conversation__window_start"),
    Coalesce(F("conversation__pinned_sequence"), Value(0)),
    Coalesce(F("conversation__summary_sequence"), Value(0)),
    pinned_count=1,  # of any conversation
)


class Message(models.Model):
    """One message. Its content never changes after it is written, except that it is emptied when it is removed."""

    pk = models.CompositePrimaryKey("conversation_id", "sequence")
    # Columns of fixed width come first: otherwise PostgreSQL pads them.
    conversation = models.ForeignKey(
        "Conversation",
        verbose_name=_("conversation"),
        # Deleted by SQL with their conversation, or soon after it if they are many, see ``models.remains``: a cascade
        # would load or list them.
        on_delete=models.DO_NOTHING,
        related_name="messages",
        db_index=False,  # the primary key starts with it
        db_constraint=False,
    )
    created_at = with_default(models.DateTimeField(_("created at"), default=timezone.now, editable=False))
    # Not a timestamp: clocks repeat and run backwards.
    sequence = models.PositiveIntegerField(_("sequence"))
    token_count = models.PositiveIntegerField(_("tokens"), null=True)
    # True if the message left the memory while inside the window.
    superseded = with_default(models.BooleanField(_("superseded"), default=False))
    # False for messages that were only ever part of a memory, for example summaries.
    in_history = with_default(models.BooleanField(_("in history"), default=True))
    # False while its turn has not ended.
    is_complete = with_default(models.BooleanField(_("complete"), default=True))
    # False on branches that are not in use, and for messages that are not part of the history.
    on_path = with_default(models.BooleanField(_("on the path"), default=True))
    # True for a result of a tool in whose place the memory has a marker; its tokens are then those of the marker.
    is_cleared = with_default(models.BooleanField(_("cleared"), default=False))
    # True if the message stays in the memory while it is on the path, see docs/pins.
    is_pinned = with_default(models.BooleanField(_("pinned"), default=False))
    # Which message it follows; null is the one before it in the history, 0 none at all. For a summary, the last message
    # that it covers.
    parent_sequence = models.PositiveIntegerField(_("parent message"), null=True)
    # Set if the memory was cleared, or replaced by another one, when this was the newest message of the path: which
    # sequence came next then. What follows this message and has that sequence or a later one begins with an empty
    # memory. Such a message names its parent, and so does the first one that follows it then.
    cleared_before = models.PositiveIntegerField(_("cleared before"), null=True)
    type = models.CharField(_("type"), max_length=21, choices=[(k.value, k.value) for k in MessageType])
    counted_by = with_default(models.CharField(_("counted by"), max_length=MAX_COUNTER_LENGTH, blank=True, default=""))
    text = EncryptedTextField(_("text"), blank=True)
    # JSON exactly as written, in a text column: jsonb would return 1e308 as an integer of 309 digits.
    payload = EncryptedTextField(_("payload"), null=True, is_json=True)  # null means "only a text", and takes no space
    client_message_id = ExactCharField(  # null means "none", and is not unique
        _("client message id"), max_length=MAX_CLIENT_MESSAGE_ID_LENGTH, null=True
    )
    # What another framework passed, if the message alone cannot restore it exactly: JSON as text, like payload.
    verbatim = EncryptedTextField(_("original"), null=True, is_json=True)  # null means "restored from the message"
    metadata = models.JSONField(_("metadata"), null=True)
    # Why a user has rated it as the metadata have it: a text of people, which metadata are not for.
    rating_reason = EncryptedTextField(_("reason"), null=True)

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
            SparseIndex(
                fields=["conversation"], name="chatmemory_incomplete", rows=Q(is_complete=False), must_be_partial=True
            ),
            SparseIndex(fields=["conversation"], name="chatmemory_pin", rows=Q(is_pinned=True), must_be_partial=True),
            SparseIndex(
                fields=["conversation"],
                name="chatmemory_tool_result",
                rows=Q(type=MessageType.TOOL_EXECUTION_RESULT.value),
                must_be_partial=True,
            ),
        )

    def __str__(self) -> str:
        return f"{self.type} {self.sequence}"  # never the text: this appears in logs

    def save(self, *, update_fields: Iterable[str] | None = None, **options: Any) -> None:
        """See ``Model.save``. Texts that are encoded for their type are written with it, or ``EncryptedError``."""
        if row_codec.installed is not None and not self._state.adding:
            named = {each.name for each in self._meta.concrete_fields} if update_fields is None else set(update_fields)
            fields = named - self.get_deferred_fields()
            if "type" in fields and not fields >= TEXTS.keys():
                raise EncryptedError(
                    "Texts are encrypted for their type: save() both, or name others in update_fields."
                )
        super().save(update_fields=update_fields, **options)

    @property
    def chat_message(self) -> ChatMessage:
        """The message as a value; what is left of a removed one is a ``CustomMessage`` without attributes."""
        return CustomMessage({}) if self._is_removed() else to_message(self.type, self.text, self.payload)

    def _is_removed(self) -> bool:
        """Return whether this is one of the ``REMOVED``; columns that may be deferred come last."""
        is_empty = not self.text and self.payload is None
        return is_empty and not self.in_history and self.superseded and self.parent_sequence is None

    def snippet(self, text: str) -> Snippet:
        """Return an excerpt in which the matches of a search for *text* are marked."""
        return snippet(self.text, text)
