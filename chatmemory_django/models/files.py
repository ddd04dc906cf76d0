"""
The files of messages that are in a storage: which there are, and which messages have them.

A file belongs to one owner, and is stored once for all of the owner's messages. A message has a row in
``MediaReference`` for each of its files; a file without such a row is deleted in the same transaction, and from the
storage after the commit. A row in ``MediaFile`` is locked by who adds or removes a reference to it, so no reference is
ever added to a file that is being deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections, models, router, transaction
from django.db.models import F, OuterRef, Q, QuerySet, Subquery, Sum, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from chatmemory_django import conf, storages
from chatmemory_django.codec import message_to_json
from chatmemory_django.core.media import File, Source, contents_in, file_of, file_type, source_at, source_of
from chatmemory_django.core.stored_files import (
    marked,
    marked_in,
    put_back,
    references,
    restored,
    with_content,
    with_url,
    without_file,
)
from chatmemory_django.db import row_codec
from chatmemory_django.db.batches import in_parts
from chatmemory_django.db.isolation import as_now
from chatmemory_django.db.row_codec import Address, Coder
from chatmemory_django.messages import CUT, ChatMessage, Content, FileReference, Image
from chatmemory_django.models.columns import to_message
from chatmemory_django.models.fields import ExactCharField
from chatmemory_django.models.messages import Message, MessageQuerySet

_Row = TypeVar("_Row", bound=Any)

MAY_HAVE_FILES = Q(payload__isnull=False) | Q(verbatim__isnull=False)
"""Which messages may have files: more than a text, and not removed."""

_logger = logging.getLogger("chatmemory_django")

BATCH = 200
"""How many rows one statement names at most."""


class MediaFile(models.Model):
    """A file in the storage."""

    created_at = models.DateTimeField(_("created at"), default=timezone.now, editable=False)
    size = models.PositiveBigIntegerField(_("size"))
    # The primary key of a user as text; empty for the files of conversations without an owner.
    owner = ExactCharField(_("owner"), max_length=255, blank=True, default="")
    sha256 = models.CharField("SHA-256", max_length=64)
    # Where it is in the storage; never used again for another content.
    name = models.CharField(_("name"), max_length=128, unique=True)
    # What it is encrypted with; empty if it is not.
    key_id = models.CharField(_("key"), max_length=64, blank=True, default="")

    class Meta:
        verbose_name = _("file")
        verbose_name_plural = _("files")
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["owner", "sha256"], name="chatmemory_file_of_owner"),)

    def __str__(self) -> str:
        return self.name


class MediaReference(models.Model):
    """That a message has a file."""

    pk = models.CompositePrimaryKey("conversation_id", "sequence", "file_id")
    # Removed by ``release_files`` in the transaction that removes the message.
    conversation = models.ForeignKey(
        "Conversation", on_delete=models.DO_NOTHING, related_name="+", db_index=False, db_constraint=False
    )
    file = models.ForeignKey(MediaFile, on_delete=models.DO_NOTHING, related_name="references")
    sequence = models.PositiveIntegerField(_("sequence"))

    class Meta:
        verbose_name = _("reference to a file")
        verbose_name_plural = _("references to files")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.conversation_id}/{self.sequence}"


def stored_bytes(owner: Any, using: str | None = None) -> int:
    """
    Return how many bytes the files in the conversations of *owner*, the primary key of a user, have in total.

    Each file counts once, and for who has its conversations now.
    """
    using = using or router.db_for_write(MediaFile)
    own = MediaReference.objects.using(using).filter(conversation__owner=owner)
    files = MediaFile.objects.using(using).filter(pk__in=own.order_by().values("file_id"))
    return files.aggregate(total=Sum("size"))["total"] or 0


def lock_files_of(owner: Any, using: str | None = None) -> None:
    """
    Let others who lock the files of *owner*, the primary key of a user, wait until the end of the transaction, if any.

    The first of the owner's conversations is locked: call this before another one is, as who locks several does it in
    their order.
    """
    using = using or router.db_for_write(MediaFile)
    if connections[using].in_atomic_block:
        conversations: Any = Message._meta.get_field("conversation").related_model  # its file is loaded after this one
        first = conversations.objects.using(using).filter(owner=owner).order_by("pk").select_for_update()
        list(first.values_list("pk")[:1])


def coder_at(address: Address) -> Coder | None:
    """Return what encodes and decodes files at *address*; None if they are stored as they are."""
    return None if row_codec.installed is None else row_codec.installed.at(address)


def decoded(coder: Coder | None, stored: bytes, key_id: str, sha256: str) -> bytes:
    """Return the content of a file that is *stored* with the key *key_id*, if any."""
    if not key_id:
        return stored
    if coder is None:
        raise storages.StorageError(f"The file is stored with the key {key_id!r}, but no app that has it is installed.")
    return coder.decode_file(stored, key_id, sha256)


def files_of(conversation: Any, sha256s: Iterable[str] | None, using: str) -> dict[str, tuple[str, str]]:
    """Return name and key of the files of *conversation*, its primary key, by SHA-256; all if *sha256s* is None."""
    rows = MediaReference.objects.using(using).filter(conversation_id=conversation)
    values = rows.values_list("file__sha256", "file__name", "file__key_id")
    parts = (
        [values]
        if sha256s is None
        else [values.filter(file__sha256__in=part) for part in in_parts(list(dict.fromkeys(sha256s)), BATCH)]
    )
    return {sha256: (name, key_id) for part in parts for sha256, name, key_id in part}


def contents_of(conversation: Any, sha256s: Iterable[str], using: str) -> dict[str, bytes]:
    """Return the contents of these files of *conversation* by SHA-256, without those that are lost."""
    found = files_of(conversation, sha256s, using)
    stored = storages.read(name for name, _ in found.values()) if found else {}
    return _contents(found, stored, Address(using, conversation))


def _contents(files: Mapping[str, tuple[str, str]], stored: Mapping[str, bytes], address: Address) -> dict[str, bytes]:
    """Return the contents of *files*, see ``files_of``, without those that are not *stored*."""
    coder = coder_at(address)
    there = {sha256: file for sha256, file in files.items() if file[0] in stored}
    return {sha256: decoded(coder, stored[name], key_id, sha256) for sha256, (name, key_id) in there.items()}


def locked(files: QuerySet[MediaFile]) -> QuerySet[MediaFile]:
    """Return *files*, to be read as they are now, locked until the end of the transaction."""
    return files.order_by("pk").select_for_update()


def keep_files(keys: Collection[int], using: str) -> None:
    """
    Let others know that messages will refer to the files *keys*, which are locked, and were there before.

    On PostgreSQL at REPEATABLE READ, who has just removed the last other message with one of them waits for the lock,
    but does not see the reference. That the row has changed is an error there, which is tried again.
    """
    if keys and connections[using].vendor == "postgresql":
        MediaFile.objects.using(using).filter(pk__in=list(keys)).update(size=F("size"))


def release_files(conversations: Collection[int], using: str) -> None:
    """
    Delete the references of messages of *conversations* that are gone or emptied, and files without any.

    Called in the transaction that removes them.
    """
    if conf.general().MEDIA_STORAGE is None:
        return
    for part in in_parts(list(conversations), BATCH):
        rows = as_now(MediaReference.objects.using(using).filter(conversation_id__in=part).order_by())
        referred = list(rows.values_list("conversation_id", "sequence", "file_id"))
        sequences: dict[int, set[int]] = {}
        for conversation, sequence, _file in referred:
            sequences.setdefault(conversation, set()).add(sequence)
        # Not a subquery: on MySQL, it would see the messages as the transaction has seen them before.
        there = {
            (conversation, sequence)
            for conversation, several in sequences.items()
            for some in in_parts(sorted(several), BATCH)
            for sequence in as_now(
                Message.objects.using(using)
                .filter(MAY_HAVE_FILES, conversation_id=conversation, sequence__in=some)
                .order_by()
            ).values_list("sequence", flat=True)
        }
        for gone in in_parts([each for each in referred if each[:2] not in there], BATCH):
            _drop(gone, using)


def release_cut(messages: MessageQuerySet, using: str) -> None:
    """Delete the references of *messages* to files that only their originals had, which were deleted."""
    if conf.general().MEDIA_STORAGE is None:
        return
    for conversation, sequence, *columns in messages.values_list("conversation_id", "sequence", *_MESSAGE):
        kept = {each.sha256 for each in references(to_message(*columns))}
        own = MediaReference.objects.using(using).filter(conversation_id=conversation, sequence=sequence)
        release(own.exclude(file__sha256__in=kept), using)


_MESSAGE = ("type", "text", "payload")
"""The columns of a message."""


def release(references: QuerySet[MediaReference], using: str) -> None:
    """Delete *references*, and files without any; called in a transaction."""
    gone = list(as_now(references.order_by()).values_list("conversation_id", "sequence", "file_id"))
    for part in in_parts(gone, BATCH):
        _drop(part, using)


def _drop(gone: Sequence[tuple[int, int, int]], using: str) -> None:
    """Delete the references *gone*: conversation, sequence and file, all files of these messages."""
    keys = sorted({file for *_, file in gone})
    names = dict(locked(MediaFile.objects.using(using).filter(pk__in=keys)).values_list("pk", "name"))
    rows = MediaReference.objects.using(using)
    sequences: dict[int, list[int]] = {}
    for conversation, sequence, _file in gone:
        sequences.setdefault(conversation, []).append(sequence)
    for conversation, several in sequences.items():
        rows.filter(conversation_id=conversation, sequence__in=several, file_id__in=keys).delete()
    # The lock keeps others from adding a reference; those that were committed before it count.
    used = set(as_now(rows.filter(file_id__in=keys).order_by()).values_list("file_id", flat=True))
    unused = [key for key in names if key not in used]
    delete_files(unused, [names[key] for key in unused], using)


def delete_files(keys: Collection[int], names: Collection[str], using: str) -> None:
    """Delete the files *keys*, which no message has, and after the commit *names* from the storage."""
    if keys:
        MediaFile.objects.using(using).filter(pk__in=list(keys)).delete()
        transaction.on_commit(partial(storages.delete, list(names)), using=using, robust=True)


def forget_files(using: str, conversations: Mapping[int, str], *, erased: bool) -> None:
    """See ``models.copies.Forget``; those of erased conversations are released with their messages."""
    if not erased:
        release_files(conversations, using)


class ConversationKey(NamedTuple):
    """Where messages are: in the conversation *pk* with this *memory_id*."""

    pk: Any
    memory_id: str
    using: str

    @classmethod
    def of(cls, conversation: Any) -> ConversationKey:
        """Return the place of the messages of *conversation*."""
        return cls(conversation.pk, conversation.memory_id, conversation._state.db or DEFAULT_DB_ALIAS)


def whole(
    messages: Sequence[ChatMessage],
    sequences: Sequence[int],
    place: ConversationKey,
    *,
    max_bytes: int | None = None,
    gives_urls: bool = False,
    known: Mapping[str, tuple[str, str]] | None = None,
) -> list[ChatMessage]:
    """
    Return *messages*, which have *sequences* in their conversation, with their files from the storage.

    They are read at once, each one only once. With *max_bytes*, the newest files are read as long as they do not have
    more in total, and the others are replaced by a text. With *gives_urls*, images are replaced by signed addresses if
    the setting ``MEDIA_URLS`` has them. *known* is what ``files_of`` has returned for them.

    Raises:
        MissingFileError: A file is lost, unless the setting ``MEDIA_MISSING`` is ``"placeholder"``.
        StorageError: The storage does not answer, or the settings name none.

    """
    with_files = {index: found for index, message in enumerate(messages) if (found := references(message))}
    if not with_files:
        return list(messages)
    storages.require(place.memory_id, sequences[next(iter(with_files))])
    read: dict[str, int] = {}
    total = 0
    for index in reversed(with_files):
        for reference in reversed(with_files[index]):
            if reference.sha256 not in read and (max_bytes is None or total + reference.size <= max_bytes):
                read[reference.sha256] = reference.size
                total += reference.size
    if known is None:
        known = files_of(place.pk, {each.sha256 for found in with_files.values() for each in found}, place.using)
    seconds: int = conf.general().MEDIA_URLS or 0 if gives_urls else 0
    as_urls = _as_urls(with_files, messages, known) if seconds else set()
    urls = storages.signed_urls((known[sha256][0] for sha256 in as_urls), seconds) if as_urls else {}
    names = {known[sha256][0] for sha256 in read if sha256 in known and sha256 not in as_urls}
    stored = storages.read(names) if names else {}
    contents = _contents(known, stored, Address(place.using, place.pk, place.memory_id))
    left_out = sum(each.sha256 not in read for found in with_files.values() for each in found)
    if left_out:
        _logger.warning(
            "%d files in the memory %r are not sent: together they have more than the %s bytes of MEDIA_MAX_BYTES.",
            left_out,
            place.memory_id,
            max_bytes,
        )

    def content(sequence: int, index: int | None, reference: FileReference) -> bytes | None:
        """Return the content of a file; None if a text takes its place."""
        found = contents.get(reference.sha256)
        if found is None and reference.sha256 in read:
            raise_if_missing(place, sequence, index)
        return found

    def content_of(sequence: int, index: int, source: Source, reference: FileReference) -> Source | Content:
        if reference.sha256 in as_urls and isinstance(source, Image):
            return with_url(source, urls[known[reference.sha256][0]])
        found = content(sequence, index, reference)
        return without_file(reference) if found is None else with_content(source, found)

    def attribute_of(sequence: int, reference: FileReference) -> bytes | str:
        found = content(sequence, None, reference)
        return without_file(reference).text if found is None else found

    result = list(messages)
    for index in with_files:
        of = sequences[index]
        result[index] = restored(messages[index], partial(content_of, of), partial(attribute_of, of))
    return result


def raise_if_missing(place: ConversationKey, sequence: int, index: int | None) -> None:
    """Raise ``MissingFileError`` for a file that is lost, unless the setting ``MEDIA_MISSING`` is ``"placeholder"``."""
    if conf.general().MEDIA_MISSING != "placeholder":
        raise storages.MissingFileError(place.memory_id, sequence, index)


def keeps_references(payload: str | None, verbatim: str | None = None) -> bool:
    """Return whether a message with *payload* and *verbatim* may have files in the storage; others' texts may, too."""
    is_cut = verbatim is not None and CUT in verbatim
    return is_cut or (payload is not None and any(mark in payload for mark in _MARKS))


_MARKS = ('"file":{"sha256":', f"\\u{ord(CUT):04x}")
"""What payloads have that have references, or marks."""


def references_of(message: ChatMessage, verbatim: str | None) -> dict[str, FileReference]:
    """Return the files that are in the storage of *message* and of what another framework gave for it, by SHA-256."""
    return {each.sha256: each for each in (*marked(verbatim), *references(message))}


def whole_rows(rows: Iterable[_Row], place: ConversationKey) -> list[_Row]:
    """
    Return *rows* of one conversation with their files in their payload and in what other frameworks gave.

    They are named tuples with type, text, payload, verbatim and sequence. Raises the same errors as ``whole``.
    """
    return [_whole_row(row, place) if keeps_references(row.payload, row.verbatim) else row for row in rows]


def _whole_row(row: Any, place: ConversationKey) -> Any:
    message = to_message(row.type, row.text, row.payload)
    [restored_message] = whole([message], [row.sequence], place)
    payload = None if row.payload is None else message_to_json(restored_message)
    return row._replace(payload=payload, verbatim=whole_verbatim(row.verbatim, row.sequence, place))


def whole_verbatim(verbatim: str | None, sequence: int, place: ConversationKey) -> str | None:
    """Return *verbatim*, what another framework gave for message *sequence*, with the files that were cut out of it."""
    names = {each.sha256 for each in marked(verbatim)}
    if verbatim is None or not names:
        return verbatim
    storages.require(place.memory_id, sequence)
    contents = contents_of(place.pk, names, place.using)

    def content_of(reference: FileReference) -> bytes:
        if reference.sha256 not in contents:
            raise_if_missing(place, sequence, None)
        return contents.get(reference.sha256, b"")

    return put_back(verbatim, content_of=content_of)


def with_file_sizes(size: Combinable) -> Combinable:
    """Return *size*, of messages in characters, and the characters that their files in the storage take in Base64."""
    if conf.general().MEDIA_STORAGE is None:
        return size
    rows = MediaReference.objects.filter(conversation_id=OuterRef("conversation_id"), sequence=OuterRef("sequence"))
    total = rows.order_by().values("conversation_id").annotate(total=Sum("file__size")).values("total")
    return size + Coalesce(Subquery(total), Value(0)) * Value(4) / Value(3)


def _as_urls(
    with_files: Mapping[int, Any], messages: Sequence[ChatMessage], known: Mapping[str, tuple[str, str]]
) -> set[str]:
    """Return the SHA-256 of files that are images, and not encrypted: others can be read with their key alone."""
    found = {
        source.file.sha256
        for index in with_files
        for content in contents_in(messages[index])
        if isinstance(source := source_of(content), Image) and source.file is not None
    }
    others = {
        source.file.sha256
        for index in with_files
        for content in contents_in(messages[index])
        if (source := source_of(content)) is not None and not isinstance(source, Image) and source.file is not None
    }
    in_attributes = {each.sha256 for index in with_files for each in marked_in(messages[index])}
    return {sha256 for sha256 in found - others - in_attributes if sha256 in known and not known[sha256][1]}


def file_in(place: ConversationKey, message: ChatMessage, index: int) -> File | None:
    """
    Return the file in the content of *message* at *index*, or behind them in its attributes, from the storage if there.

    None for texts, for files on other servers, and for a file that is lost; ``StorageError`` if the storage fails.
    """
    source = source_at(message, index)
    behind = index - len(contents_in(message))
    reference = None if source is None else source.file
    if behind >= 0:
        reference = next(islice(marked_in(message), behind, None), None)
    if reference is None:
        return None if source is None else file_of(source)
    content = contents_of(place.pk, [reference.sha256], place.using).get(reference.sha256)
    return None if content is None else File(content, file_type(content))
