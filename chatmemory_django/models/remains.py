"""
What is left of erased conversations: the rows of messages, and what refers to them.

Of most conversations, they are deleted in the transaction that erases the conversation. A long one is deleted alone, in
a short transaction: nobody finds its messages then. They are deleted after the commit, in transactions that are short,
too; until the last one, the conversation is listed here. What is left if the process ends before, ``prune`` deletes.
Inside a transaction of the caller, all is deleted at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from django.db import connections, models, transaction
from django.db.models import Case, Exists, Func, OuterRef, Value, When
from django.db.models.functions import Coalesce
from django.utils.translation import gettext_lazy as _

from chatmemory_django.db import row_codec
from chatmemory_django.db.batches import in_batches, taking_turns
from chatmemory_django.db.engines import Dialect, dialect
from chatmemory_django.db.transactions import is_noted, note, tried_again
from chatmemory_django.models import message_codec
from chatmemory_django.models.copies import outliving, refuse_held
from chatmemory_django.models.messages import Message, MessageQuerySet

if TYPE_CHECKING:
    from django.db.models.expressions import Combinable

SHORT = 200
"""How many messages a conversation has at most that is erased with them in one transaction."""

LARGE = 64 * 1024
"""How many bytes each of them has at most."""

BATCH = 500
"""How many rows one transaction deletes at most of a long conversation."""

BATCH_BYTES = 4 * 1024 * 1024
"""How many bytes these rows have at most in total; a larger row is deleted alone."""


class ErasedConversation(models.Model):
    """A long conversation that is erased, and of which there may be rows left."""

    id = models.BigIntegerField(primary_key=True)  # that of the conversation

    objects: models.Manager[ErasedConversation] = models.Manager()

    class Meta:
        verbose_name = _("erased conversation")
        verbose_name_plural = _("erased conversations")
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.pk)


class _Bytes(Func):
    """
    How many bytes a text takes; its characters, where SQL may not have that. PostgreSQL does not read a long text for
    it.
    """

    function = "OCTET_LENGTH"
    output_field = models.BigIntegerField()

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **context: Any) -> Any:  # as Django's
        has_it = dialect(connection) in {Dialect.POSTGRESQL, Dialect.MYSQL}
        return super().as_sql(compiler, connection, function=None if has_it else "LENGTH")


BYTES = _Bytes("text") + Coalesce(_Bytes("payload"), 0) + Coalesce(_Bytes("verbatim"), 0)
"""How many bytes a message takes, except its metadata, which are rarely large."""


def is_long() -> Combinable:
    """Return the condition that a conversation's messages are so many, or so large, that they are deleted after it."""
    relations: Any = Message._meta.get_fields(include_hidden=True)
    if any(getattr(each, "on_delete", None) in {models.PROTECT, models.RESTRICT} for each in relations):
        return Value(False)  # objects of the site may refuse that they are deleted
    large = Message.objects.annotate(_bytes=BYTES).filter(conversation=OuterRef("pk"), _bytes__gt=LARGE)
    return Case(When(next_sequence__gt=SHORT + 1, then=Value(True)), default=Exists(large))


class Counted(NamedTuple):
    """How many messages a conversation had before it was locked: to count many takes long."""

    messages: int
    next_sequence: int
    """The sequence that came next then."""

    @classmethod
    def of(cls, key: int, next_sequence: int, using: str) -> Self:
        """Count the messages of the conversation *key*."""
        rows = Message.objects.using(using).filter(conversation=key, sequence__lt=next_sequence)
        return cls(rows.count(), next_sequence)

    def up_to_now(self, rows: MessageQuerySet) -> int:
        """Return how many *rows*, of the conversation, which is locked, there are now."""
        return self.messages + rows.filter(sequence__gte=self.next_sequence).count()


NOTHING_COUNTED = Counted(0, 0)


def delete_rows(using: str, keys: Collection[int]) -> tuple[int, dict[str, int]]:
    """
    Delete the rows of the conversations *keys* in their transaction; return what ``QuerySet.delete`` does.

    Raises ``ProtectedError`` if one of them is held, see ``copies.Hold``.
    """
    refuse_held(using, keys)
    deleted = Message.objects.using(using).filter(conversation__in=list(keys)).delete()
    if (codec := message_codec.installed) is not None:
        codec.release(using, keys)
    for model in outliving:
        model._default_manager.using(using).filter(conversation__in=list(keys)).update(conversation=None)
    return deleted


def note_own(using: str) -> None:
    """Note that the transaction was begun to erase conversations, not by the caller: it may leave rows."""
    note(connections[using], note_own)


def can_leave(using: str) -> bool:
    """Return whether the transaction may leave rows, see ``note_own``."""
    return is_noted(connections[using], note_own)


def leave_rows(using: str, key: int) -> None:
    """Do what ``delete_rows`` does after the commit of the transaction, which deletes the conversation *key*."""
    refuse_held(using, [key])
    ErasedConversation.objects.using(using).create(pk=key)
    files = message_codec.installed
    if files is not None and (codec := row_codec.installed) is not None and codec.has_owner_keys:
        # Files as well, since the owner's key may go now: a new message with the same file must not be given this one.
        files.release(using, [key], is_erased=True)
    transaction.on_commit(partial(delete_left, using, [key]), using=using)


def delete_left(using: str, keys: Iterable[int] | None = None) -> None:
    """
    Delete the rows that are left of the erased conversations *keys*, or of all of them, and then what else is left in a
    storage; it may run twice at once.
    """
    listed = ErasedConversation.objects.using(using)
    for key in listed.values_list("pk", flat=True) if keys is None else keys:
        for around in runs(Message.objects.using(using).filter(conversation=key)):
            _in_turn(using, partial(_delete_run, using, key, around))
        for model in outliving:
            rest = model._default_manager.using(using).filter(conversation=key)
            while some := list(rest.values_list("pk", flat=True)[:BATCH]):
                _in_turn(using, partial(rest.filter(pk__in=some).update, conversation=None))
        _in_turn(using, listed.filter(pk=key).delete)
    if keys is None and (codec := message_codec.installed) is not None:
        codec.delete_left(using)


def runs(rows: MessageQuerySet) -> Iterator[tuple[int, int]]:
    """
    Yield the first and last sequences of runs that together cover *rows*, each small enough for one transaction.

    The rows are of one conversation. A run is read by its index, see ``operations.one_by_one.ranges``.
    """
    start = 0
    rows = rows.order_by("sequence")
    while (first := rows.filter(sequence__gte=start).values_list("sequence", flat=True).first()) is not None:
        start = first + BATCH
        sizes = rows.filter(sequence__range=(first, start - 1)).values_list("sequence", BYTES)
        for run in in_batches(list(sizes), itemgetter(1), BATCH_BYTES, BATCH):
            yield run[0][0], run[-1][0]


def _in_turn(using: str, do: Callable[[], object]) -> None:
    with taking_turns(using):
        tried_again(using, do)


def _delete_run(using: str, key: int, around: tuple[int, int]) -> None:
    with transaction.atomic(using=using):
        Message.objects.using(using).filter(conversation=key, sequence__range=around).delete()
        if (codec := message_codec.installed) is not None:
            codec.release(using, [key], around)
