"""Files in a storage: shared with forks, encoded with another key, and moved there and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from django.db.models import Exists, OuterRef, QuerySet

from chatmemory_django.contrib.files import storage
from chatmemory_django.contrib.files.conf import files
from chatmemory_django.contrib.files.deleting import delete_files, delete_later
from chatmemory_django.contrib.files.marks import marked, references
from chatmemory_django.contrib.files.models import (
    MAY_HAVE_FILES,
    MediaDeletion,
    MediaFile,
    MediaReference,
    keep_files,
    locked,
)
from chatmemory_django.contrib.files.reading import complete, complete_verbatim, contents_of, decoded
from chatmemory_django.contrib.files.releasing import delete_references
from chatmemory_django.contrib.files.uploads import StorageUploads, take_out
from chatmemory_django.db import row_codec
from chatmemory_django.db.batches import in_batches, in_parts
from chatmemory_django.db.row_codec import Address, Coder, address_of, owner_of
from chatmemory_django.db.transactions import as_now
from chatmemory_django.messages import ChatMessage, FileReference
from chatmemory_django.models import Conversation, Message
from chatmemory_django.models.columns import to_columns, to_message
from chatmemory_django.models.fields import as_stored
from chatmemory_django.models.message_codec import Extracted, StorageError, may_refer, writing
from chatmemory_django.models.messages import MESSAGE_SIZE, TEXTS, decoded_texts, encoded_texts
from chatmemory_django.operations.one_by_one import (
    PAGE_CHARACTERS,
    Refused,
    for_writing,
    going_on,
    in_lock,
    keys,
    messages_of,
    ranges,
    write,
)

ROWS = 100
"""How many messages are moved while a conversation is locked, fewer if they are large."""


def share(source: Conversation, forked: Conversation) -> None:
    """Let *forked*, whose messages were copied from *source*, refer to its files; another owner gets copies of them."""
    using: Any = forked._state.db
    copies = Message.objects.using(using).filter(conversation_id=forked.pk, sequence=OuterRef("sequence"))
    there = copies.filter(MAY_HAVE_FILES)
    rows = MediaReference.objects.using(using).filter(conversation_id=source.pk).filter(Exists(there)).order_by()
    found = list(as_now(rows).values_list("sequence", "file_id", "file__sha256"))  # as the messages were copied
    if not found:
        return
    owner = owner_of(forked)
    if owner_of(source) == owner:
        # Who removes the last message of the source waits for this, and then does not delete its files.
        present = MediaFile.objects.using(using).filter(pk__in={file for _, file, _ in found})
        keep_files(locked(present).values_list("pk", flat=True), using)
        MediaReference.objects.using(using).bulk_create(
            MediaReference(conversation_id=forked.pk, sequence=sequence, file_id=file) for sequence, file, _ in found
        )
        return
    uploads = StorageUploads(using)
    with writing(uploads):
        for part in in_parts(found, 8):
            contents = contents_of(Address(using, source.pk), {sha256 for _, _, sha256 in part})
            for sequence, _, sha256 in part:
                if sha256 in contents:  # a lost file is lost in the fork as well
                    file = uploads.file(sha256, contents[sha256])
                    uploads.store(owner, forked.pk, [file])
                    uploads.refer(owner, forked.pk, [(sequence, [file])])


def encode_again(conversation: Conversation, coder: Coder, current: str) -> int:
    """
    Store the files of *conversation*, which is locked, as *coder* encodes them with the key *current*, if they are not.

    What it shares with a previous owner, whose key may be deleted, is stored again for the present one. Returns how
    many files were renewed.
    """
    if files().MEDIA_STORAGE is None:
        return 0
    using: Any = conversation._state.db
    owner = owner_of(conversation)
    rows = MediaReference.objects.using(using).filter(conversation_id=conversation.pk)
    rows = rows.exclude(file__key_id=current, file__owner=owner or "")
    pks = sorted(set(rows.order_by().values_list("file_id", flat=True)))
    for pk in pks:
        file = locked(MediaFile.objects.using(using).filter(pk=pk)).get()
        found = storage.read([file.name])
        if file.name not in found:
            continue  # check_chatmemory reports it
        content = decoded(coder, found[file.name], file.key_id, file.owner, file.sha256)
        if content is None:
            continue  # so does it, with --files, and another key must not make it good
        if file.owner != (owner or ""):
            _take_over(conversation, file, content)
            continue
        stored, key_id = coder.encode_file(content, file.owner, file.sha256)
        name = storage.new_name(file.sha256)
        storage.save({name: stored})
        MediaFile.objects.using(using).filter(pk=pk).update(name=name, key_id=key_id)
        delete_later([MediaDeletion(name=file.name, owner=file.owner)], using)
    return len(pks)


def _take_over(conversation: Conversation, file: MediaFile, content: bytes) -> None:
    """Replace *file*, which is locked, by one of the owner of *conversation*."""
    using: Any = conversation._state.db
    all_of_it = MediaReference.objects.using(using).filter(file_id=file.pk).order_by()
    rows = all_of_it.filter(conversation_id=conversation.pk)
    sequences = list(rows.values_list("sequence", flat=True))
    own = [StorageUploads.file(file.sha256, content)]
    owner = owner_of(conversation)
    uploads = StorageUploads(using)
    with writing(uploads):
        uploads.store(owner, conversation.pk, own)
        uploads.refer(owner, conversation.pk, [(sequence, own) for sequence in sequences])
        rows.delete()
        if not as_now(all_of_it).values_list("pk"):
            delete_files({file.pk: MediaDeletion(name=file.name, owner=file.owner)}, using)


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
    refused: Refused | None = None,
) -> MovedFiles:
    """
    Move the files of *conversations* from the rows of their messages to the storage, or back *to_rows*.

    It goes beside writers, who wait for a hundred messages at most, and goes on where it was interrupted. *each*
    receives each conversation, and what was moved of it; nothing is moved in a *dry_run*. *refused* receives those with
    a value that cannot be decrypted; without it, that is raised.

    Raises:
        StorageError: The storage fails, or a file is lost. What was moved before stays moved.

    """
    if files().MEDIA_STORAGE is None:
        raise StorageError("CHATMEMORY['MEDIA_STORAGE'] names no storage; name the one of the files.")
    conversations = for_writing(conversations)
    total = MovedFiles(0, 0)
    for key in keys(conversations):
        count = size = 0
        with going_on(conversations, key, refused):
            conversation = conversations.filter(pk=key).first()
            if conversation is None:
                continue
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
    at = address_of(conversation)
    owner, coder = owner_of(conversation), row_codec.at(at)
    uploads = StorageUploads(at.using)
    with writing(uploads):
        for sequence, kind, *texts in rows.values_list("sequence", "type", *map(as_stored, TEXTS)):
            if coder is not None:
                texts = list(decoded_texts(coder, sequence, kind, texts).values())
            text, payload, verbatim, _ = texts
            message = to_message(kind, text, payload)
            there = _references_of(message, verbatim) if may_refer(payload, verbatim) else {}
            if to_rows != bool(there):
                continue
            extracted: Sequence[Extracted] = ()
            changed: dict[str, str | None] = {}
            if to_rows:
                moved = sum(each.size for each in there.values())
                if not dry_run:
                    [whole] = complete([message], [sequence], at)
                    verbatim = complete_verbatim(verbatim, sequence, at)
                    changed = {"payload": to_columns(whole).payload, "verbatim": verbatim}
            else:
                left, verbatim, extracted = take_out(message, verbatim, "")
                moved = sum(each.reference.size for each in extracted)
                changed = {"payload": to_columns(left).payload, "verbatim": verbatim}
            if not moved:
                continue
            count, size = count + 1, size + moved
            if dry_run:
                continue
            if coder is not None:
                changed |= encoded_texts(coder, sequence, kind, changed)
            rows.filter(sequence=sequence).update(**changed)
            if to_rows:
                own = MediaReference.objects.using(at.using).filter(conversation_id=conversation.pk, sequence=sequence)
                delete_references(own, at.using)
            else:
                uploads.store(owner, conversation.pk, extracted)
                uploads.refer(owner, conversation.pk, [(sequence, extracted)])
        if count and not dry_run:
            write(conversation)
    return MovedFiles(count, size)


def _references_of(message: ChatMessage, verbatim: str | None) -> dict[str, FileReference]:
    """Return the files that are in the storage of *message* and of what another framework gave for it, by SHA-256."""
    return {each.sha256: each for each in (*marked(verbatim), *references(message))}
