"""The files of a write: stored before the rows that refer to them, and referred to in the write's own transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from django.db import DatabaseError, OperationalError, connections, transaction

from chatmemory_django.contrib.files import storage
from chatmemory_django.contrib.files.conf import files
from chatmemory_django.contrib.files.deleting import delete_spare
from chatmemory_django.contrib.files.marks import cut_out, extracted
from chatmemory_django.contrib.files.models import MediaDeletion, MediaFile, MediaReference, keep_files, locked
from chatmemory_django.db import row_codec
from chatmemory_django.db.row_codec import Address
from chatmemory_django.messages import ChatMessage, FileReference
from chatmemory_django.models.message_codec import Extracted, TakenOut

TRIES = 3
"""How often a file is stored again that others have deleted in the meantime, before the write is given up."""


def take_out(message: ChatMessage, verbatim: str | None, where: str) -> TakenOut:
    """See ``message_codec.take_out``; ``ValueError`` for files with more than ``MEDIA_MAX_BYTES``."""
    if files().MEDIA_STORAGE is None:
        return message, verbatim, ()
    min_bytes = files().MEDIA_MIN_BYTES
    message, found = extracted(message, min_bytes)
    if verbatim is not None:
        verbatim = cut_out(verbatim, min_bytes=min_bytes, found=found)
    several = list({file.reference.sha256: file for file in found}.values())
    size = sum(file.reference.size for file in several)
    if size > (limit := files().MEDIA_MAX_BYTES):
        raise ValueError(
            f"{where}{type(message).__name__} has files with {size} bytes, "
            f"but CHATMEMORY['MEDIA_MAX_BYTES'] is {limit}."
        )
    return message, verbatim, several


class StorageUploads:
    """See ``message_codec.Uploads``; *using* is the database of the write."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._new: dict[tuple[str, str], tuple[str, str]] = {}
        """Name and key of the files that are stored but not referred to, by owner and SHA-256."""
        self._seen: set[tuple[str, str]] = set()
        """Those that were stored already."""
        self._referred: set[tuple[str, str]] = set()
        self._used: set[str] = set()
        """The names of files in the storage that messages of this write have."""

    @staticmethod
    def file(sha256: str, content: bytes) -> Extracted:
        """Return a file with that *content* for ``store`` and ``refer``."""
        return Extracted(FileReference(sha256, len(content)), content)

    def store(self, owner: str | None, conversation: int, files: Iterable[Extracted]) -> None:
        wanted = {(owner or "", each.reference.sha256): each.content for each in files}
        wanted = {key: content for key, content in wanted.items() if key not in self._new and key not in self._seen}
        if not wanted:
            return  # without a statement
        there = self._files(owner, [sha256 for _, sha256 in wanted]).values_list("sha256", flat=True)
        self._seen |= {(owner or "", sha256) for sha256 in there}
        self._save(owner, conversation, {key: each for key, each in wanted.items() if key not in self._seen})

    def refer(self, owner: str | None, conversation: int, rows: Iterable[tuple[int, Sequence[Extracted]]]) -> None:
        of = {sequence: {each.reference.sha256: each for each in files} for sequence, files in rows if files}
        files = {sha256: each for several in of.values() for sha256, each in several.items()}
        there: dict[str, tuple[int, str]] = {}
        for _ in range(TRIES):
            new = {sha256: name for (_, sha256), name in self._new_of(owner).items() if sha256 in files}
            MediaFile.objects.using(self._using).bulk_create(
                [
                    MediaFile(
                        owner=owner or "", sha256=sha256, size=files[sha256].reference.size, name=name, key_id=key_id
                    )
                    for sha256, (name, key_id) in sorted(new.items())
                ],
                ignore_conflicts=True,
            )
            there = {sha256: (key, name) for key, sha256, name in self._locked(owner, files)} if files else {}
            if len(there) == len(files):
                break
            # Someone else has removed the last message with it since it was looked for.
            missing = {(owner or "", sha256): files[sha256].content for sha256 in files.keys() - there.keys()}
            self._save(owner, conversation, {key: missing[key] for key in missing.keys() - self._new.keys()})
        else:
            raise OperationalError("Others delete the files of this message as often as they are stored; try again.")
        keep_files([key for key, name in there.values() if name not in {each for each, _ in new.values()}], self._using)
        MediaReference.objects.using(self._using).bulk_create(
            MediaReference(conversation_id=conversation, sequence=sequence, file_id=there[sha256][0])
            for sequence, several in of.items()
            for sha256 in several
        )
        used = {name for _, name in there.values()}
        self._used = {name for name in self._used if name not in {each for each, _ in new.values()}} | used
        self._referred |= {(owner or "", sha256) for sha256 in files}

    def end(self, error: BaseException | None = None) -> None:
        if error is not None:
            self._discard(error)
        elif self._new:
            # The block is needed with autocommit off: then Django accepts callbacks only inside a block.
            with transaction.atomic(using=self._using, savepoint=False):
                transaction.on_commit(self._delete_spare, using=self._using, robust=True)

    def _delete_spare(self) -> None:
        """Delete what was stored but is not referred to after the commit of the write: others were faster, perhaps."""
        self._delete(self._used)

    def _discard(self, error: BaseException) -> None:
        """Delete what was stored for a write that failed, unless it may have been committed."""
        if not self._new or isinstance(error, DatabaseError):
            return
        kept = {name for key, (name, _) in self._new.items() if key in self._referred}
        if kept and not connections[self._using].needs_rollback:  # then what a row names can be asked
            rows = MediaFile.objects.using(self._using).filter(name__in=kept)
            kept = set(rows.values_list("name", flat=True))
        self._delete(kept)

    def _delete(self, kept: Collection[str]) -> None:
        """Delete what was stored for this write, except for *kept*."""
        unused = [(owner, name) for (owner, _), (name, _) in self._new.items() if name not in kept]
        if unused:
            delete_spare([MediaDeletion(name=name, owner=owner) for owner, name in unused], self._using)
            self._new = {key: new for key, new in self._new.items() if new[0] in kept}

    def _save(self, owner: str | None, conversation: int, wanted: dict[tuple[str, str], bytes]) -> None:
        contents: dict[str, bytes] = {}
        names: dict[tuple[str, str], tuple[str, str]] = {}
        coder = row_codec.at(Address(self._using, conversation, owner=owner))
        for key, content in wanted.items():
            name = storage.new_name(key[1])
            contents[name], key_id = (content, "") if coder is None else coder.encode_file(content, *key)
            names[key] = name, key_id
        storage.save(contents)
        self._new |= names

    def _files(self, owner: str | None, sha256s: Iterable[str]) -> Any:
        return MediaFile.objects.using(self._using).filter(owner=owner or "", sha256__in=list(sha256s))

    def _locked(self, owner: str | None, sha256s: Iterable[str]) -> list[tuple[int, str, str]]:
        return list(locked(self._files(owner, sha256s)).values_list("pk", "sha256", "name"))

    def _new_of(self, owner: str | None) -> dict[tuple[str, str], tuple[str, str]]:
        return {key: name for key, name in self._new.items() if key[0] == (owner or "")}
