"""Files in a storage: shared with forks, renewed for another key, and moved there and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from chatmemory_django import conf, storages
from chatmemory_django.core.stored_files import Extracted
from chatmemory_django.db.batches import in_batches, in_parts
from chatmemory_django.db.isolation import as_now
from chatmemory_django.db.row_codec import Coder, address_of
from chatmemory_django.messages import ChatMessage, NewMessage
from chatmemory_django.models import Conversation, MediaFile, MediaReference, Message
from chatmemory_django.models.columns import to_columns, to_message
from chatmemory_django.models.fields import as_stored
from chatmemory_django.models.files import (
    MAY_HAVE_FILES,
    ConversationKey,
    coder_at,
    contents_of,
    decoded,
    delete_files,
    keep_files,
    keeps_references,
    locked,
    references_of,
    release,
    whole,
    whole_verbatim,
)
from chatmemory_django.models.messages import MESSAGE_SIZE, TEXTS, decoded_texts, encoded_texts
from chatmemory_django.operations.whole import (
    PAGE_CHARACTERS,
    for_writing,
    in_lock,
    keys,
    messages_of,
    ranges,
    write,
)
from chatmemory_django.stores.django.files import Uploads, owner_key
from chatmemory_django.stores.django.rows import new_row

ROWS = 100
"""How many messages are moved while a conversation is locked, fewer if they are large."""


def share_files(source: Conversation, forked: Conversation) -> None:
    """Let *forked*, whose messages were copied from *source*, refer to its files; another owner gets copies of them."""
    using: Any = forked._state.db
    copies = Message.objects.using(using).filter(conversation_id=forked.pk, sequence=OuterRef("sequence"))
    there = copies.filter(MAY_HAVE_FILES)
    rows = MediaReference.objects.using(using).filter(conversation_id=source.pk).filter(Exists(there)).order_by()
    found = list(as_now(rows).values_list("sequence", "file_id", "file__sha256"))  # as the messages were copied
    if not found:
        return
    if owner_key(source) == owner_key(forked):
        # Who removes the last message of the source waits for this, and then does not delete its files.
        present = MediaFile.objects.using(using).filter(pk__in={file for _, file, _ in found})
        keep_files(locked(present).values_list("pk", flat=True), using)
        MediaReference.objects.using(using).bulk_create(
            MediaReference(conversation_id=forked.pk, sequence=sequence, file_id=file) for sequence, file, _ in found
        )
        return
    uploads = Uploads(using)
    with uploads.for_a_write():
        for part in in_parts(found, 8):
            contents = contents_of(source.pk, {sha256 for _, _, sha256 in part}, using)
            for sequence, _, sha256 in part:
                if sha256 in contents:  # a lost file is lost in the fork as well
                    file = uploads.file(sha256, contents[sha256])
                    uploads.store(owner_key(forked), forked.pk, [file])
                    uploads.refer(owner_key(forked), forked.pk, [(sequence, [file])])


def renew_files(conversation: Conversation, coder: Coder, current: str) -> int:
    """
    Store the files of *conversation*, which is locked, as *coder* encodes them with the key *current*, if they are not.

    What it shares with a previous owner, whose key may be deleted, is stored again for the present one. Returns how
    many files were renewed.
    """
    using: Any = conversation._state.db
    owner = owner_key(conversation)
    rows = MediaReference.objects.using(using).filter(conversation_id=conversation.pk)
    rows = rows.exclude(file__key_id=current, file__owner=owner or "")
    pks = sorted(set(rows.order_by().values_list("file_id", flat=True)))
    for pk in pks:
        file = locked(MediaFile.objects.using(using).filter(pk=pk)).get()
        found = storages.read([file.name])
        if file.name not in found:
            continue  # check_chatmemory reports it
        content = decoded(coder, found[file.name], file.key_id, file.sha256)
        if file.owner != (owner or ""):
            _take_over(conversation, file, content)
            continue
        stored, key_id = coder.encode_file(content, file.sha256)
        name = storages.new_name(file.sha256)
        storages.save({name: stored})
        MediaFile.objects.using(using).filter(pk=pk).update(name=name, key_id=key_id)
        transaction.on_commit(partial(storages.delete, [file.name]), using=using, robust=True)
    return len(pks)


def _take_over(conversation: Conversation, file: MediaFile, content: bytes) -> None:
    """Replace *file*, which is locked, by one of the owner of *conversation*."""
    using: Any = conversation._state.db
    all_of_it = MediaReference.objects.using(using).filter(file_id=file.pk).order_by()
    rows = all_of_it.filter(conversation_id=conversation.pk)
    sequences = list(rows.values_list("sequence", flat=True))
    own = [Uploads.file(file.sha256, content)]
    uploads = Uploads(using)
    with uploads.for_a_write():
        uploads.store(owner_key(conversation), conversation.pk, own)
        uploads.refer(owner_key(conversation), conversation.pk, [(sequence, own) for sequence in sequences])
        rows.delete()
        if not as_now(all_of_it).values_list("pk"):
            delete_files([file.pk], [file.name], using)


class MovedFiles(NamedTuple):
    """How many messages were moved, and the bytes of their files."""

    messages: int
    size: int


def move_files(
    conversations: QuerySet[Conversation],
    *,
    to_rows: bool = False,
    dry_run: bool = False,
    each: Callable[[Conversation, MovedFiles], object] | None = None,
) -> MovedFiles:
    """
    Move the files of *conversations* from the rows of their messages to the storage, or back *to_rows*.

    It goes beside writers, who wait for a hundred messages at most, and goes on where it was interrupted. *each*
    receives each conversation, and what was moved of it; nothing is moved in a *dry_run*.

    Raises:
        StorageError: The storage fails, or a file is lost. What was moved before stays moved.

    """
    if conf.general().MEDIA_STORAGE is None:
        raise storages.StorageError("CHATMEMORY['MEDIA_STORAGE'] names no storage; name the one of the files.")
    conversations = for_writing(conversations)
    total = MovedFiles(0, 0)
    for key in keys(conversations):
        conversation = conversations.filter(pk=key).first()
        if conversation is None:
            continue
        count = size = 0
        for around in _ranges(conversation, to_rows=to_rows):
            do = partial(_move, around, to_rows=to_rows, dry_run=dry_run)
            found = in_lock(conversations, key, do) or MovedFiles(0, 0)
            count, size = count + found.messages, size + found.size
        if each is not None:
            each(conversation, MovedFiles(count, size))
        total = MovedFiles(total.messages + count, total.size + size)
    return total


def _ranges(conversation: Conversation, *, to_rows: bool) -> Iterator[tuple[int, int]]:
    """Yield ranges of the sequences of messages that may have files there, each for one transaction."""
    rows = messages_of(conversation).filter(MAY_HAVE_FILES)
    if to_rows:
        there = MediaReference.objects.filter(conversation_id=conversation.pk, sequence=OuterRef("sequence"))
        rows = rows.filter(Exists(there))
    for around in ranges(rows):
        sizes = list(rows.filter(sequence__range=around).values_list("sequence", MESSAGE_SIZE))
        for batch in in_batches(sizes, itemgetter(1), PAGE_CHARACTERS, ROWS):
            yield batch[0][0], batch[-1][0]


def _move(around: tuple[int, int], conversation: Conversation, *, to_rows: bool, dry_run: bool) -> MovedFiles:
    rows = messages_of(conversation).filter(MAY_HAVE_FILES, sequence__range=around)
    count = size = 0
    place, uploads = ConversationKey.of(conversation), Uploads(conversation._state.db or "default")
    coder = coder_at(address_of(conversation))
    with uploads.for_a_write():
        for sequence, kind, *texts in rows.values_list("sequence", "type", *map(as_stored, TEXTS)):
            if coder is not None:
                texts = list(decoded_texts(coder, sequence, kind, texts).values())
            text, payload, verbatim = texts
            message = to_message(kind, text, payload)
            there = references_of(message, verbatim) if keeps_references(payload, verbatim) else {}
            if to_rows != bool(there):
                continue
            files: list[Extracted] = []
            if to_rows:
                moved = sum(each.size for each in there.values())
                changed = {} if dry_run else _back(message, sequence, verbatim, place)
            else:
                new = new_row(NewMessage(message, verbatim=verbatim))
                files = list(new.files)
                moved = sum(each.reference.size for each in files)
                changed = {"payload": new.payload, "verbatim": new.verbatim}
            if not moved:
                continue
            count, size = count + 1, size + moved
            if dry_run:
                continue
            if coder is not None:
                changed |= encoded_texts(coder, sequence, kind, changed)
            rows.filter(sequence=sequence).update(**changed)
            if to_rows:
                own = MediaReference.objects.using(place.using).filter(conversation_id=place.pk, sequence=sequence)
                release(own, place.using)
            else:
                uploads.store(owner_key(conversation), conversation.pk, files)
                uploads.refer(owner_key(conversation), conversation.pk, [(sequence, files)])
        if count and not dry_run:
            write(conversation)
    return MovedFiles(count, size)


def _back(message: ChatMessage, sequence: int, verbatim: str | None, place: ConversationKey) -> dict[str, str | None]:
    """Return payload and original of *message* with its files."""
    verbatim = whole_verbatim(verbatim, sequence, place)
    [complete] = whole([message], [sequence], place)
    return {"payload": to_columns(complete).payload, "verbatim": verbatim}
