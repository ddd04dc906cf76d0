"""Files read from the storage: messages and rows with their files, and single ones."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from chatmemory_django.codec import message_to_json
from chatmemory_django.contrib.files import storage
from chatmemory_django.contrib.files.conf import files
from chatmemory_django.contrib.files.marks import (
    marked,
    marked_in,
    put_back,
    references,
    restored,
    with_content,
    with_url,
    without_file,
)
from chatmemory_django.contrib.files.models import BATCH, MediaReference
from chatmemory_django.core.media import File, Source, contents_in, file_of, file_type, source_at, source_of
from chatmemory_django.db import row_codec
from chatmemory_django.db.batches import in_parts
from chatmemory_django.db.row_codec import Address, Coder, UnknownKeyError, UnreadableError
from chatmemory_django.messages import ChatMessage, Content, FileReference, Image
from chatmemory_django.models.columns import to_message
from chatmemory_django.models.message_codec import MissingFileError, StorageError
from chatmemory_django.security import SecurityEvent, report

_logger = logging.getLogger("chatmemory_django")


def complete(
    messages: Sequence[ChatMessage],
    sequences: Sequence[int],
    at: Address,
    *,
    max_bytes: int | None = None,
    for_model: bool = False,
) -> list[ChatMessage]:
    """
    See ``message_codec.complete``. All files are read at once, each one only once.

    *for_model*, those with ``MEDIA_MAX_BYTES`` are, and images are replaced by signed addresses if the setting
    ``MEDIA_URLS`` has them. A lost file is no error if ``MEDIA_MISSING`` is ``"placeholder"``.
    """
    with_files = {index: found for index, message in enumerate(messages) if (found := references(message))}
    if not with_files:
        return list(messages)
    storage.require(at, sequences[next(iter(with_files))])
    if for_model:
        max_bytes = files().MEDIA_MAX_BYTES
    read: dict[str, int] = {}
    total = 0
    for index in reversed(with_files):
        for reference in reversed(with_files[index]):
            if reference.sha256 not in read and (max_bytes is None or total + reference.size <= max_bytes):
                read[reference.sha256] = reference.size
                total += reference.size
    known = files_of(at, {each.sha256 for found in with_files.values() for each in found})
    seconds: int = files().MEDIA_URLS or 0 if for_model else 0
    as_urls = _as_urls(with_files, messages, known) if seconds else set()
    urls = storage.signed_urls((known[sha256][0] for sha256 in as_urls), seconds) if as_urls else {}
    names = {known[sha256][0] for sha256 in read if sha256 in known and sha256 not in as_urls}
    stored = storage.read(names) if names else {}
    contents = _contents(known, stored, at)
    left_out = sum(each.sha256 not in read for found in with_files.values() for each in found)
    if left_out:
        _logger.warning(
            "%d files in the memory %r are not sent: together they have more than the %s bytes of MEDIA_MAX_BYTES.",
            left_out,
            at.memory_id,
            max_bytes,
        )

    def content(sequence: int, index: int | None, reference: FileReference) -> bytes | None:
        """Return the content of a file; None if a text takes its place."""
        found = contents.get(reference.sha256)
        if found is None and reference.sha256 in read:
            _raise_if_missing(at, sequence, index)
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


def complete_row(row: Any, at: Address) -> Any:
    """Return *row* with its files in its payload and in what another framework gave for it."""
    [message] = complete([to_message(row.type, row.text, row.payload)], [row.sequence], at)
    payload = None if row.payload is None else message_to_json(message)
    return row._replace(payload=payload, verbatim=complete_verbatim(row.verbatim, row.sequence, at))


def complete_verbatim(verbatim: str | None, sequence: int, at: Address) -> str | None:
    """Return *verbatim*, what another framework gave for message *sequence*, with the files that were cut out of it."""
    names = {each.sha256 for each in marked(verbatim)}
    if verbatim is None or not names:
        return verbatim
    storage.require(at, sequence)
    contents = contents_of(at, names)

    def content_of(reference: FileReference) -> bytes:
        if reference.sha256 not in contents:
            _raise_if_missing(at, sequence, None)
        return contents.get(reference.sha256, b"")

    return put_back(verbatim, content_of=content_of)


def file_in(message: ChatMessage, index: int, at: Address) -> File | None:
    """See ``message_codec.file_in``."""
    source = source_at(message, index)
    behind = index - len(contents_in(message))
    reference = None if source is None else source.file
    if behind >= 0:
        reference = next(islice(marked_in(message), behind, None), None)
    if reference is None:
        return None if source is None else file_of(source)
    content = contents_of(at, [reference.sha256]).get(reference.sha256)
    return None if content is None else File(content, file_type(content))


def files_of(at: Address, sha256s: Iterable[str]) -> dict[str, tuple[str, str, str]]:
    """Return name, key and owner of these files of the conversation *at*, by SHA-256."""
    conversation: Any = at.conversation
    rows = MediaReference.objects.using(at.using).filter(conversation_id=conversation)
    values = rows.values_list("file__sha256", "file__name", "file__key_id", "file__owner")
    parts = [values.filter(file__sha256__in=part) for part in in_parts(list(dict.fromkeys(sha256s)), BATCH)]
    return {sha256: (name, key_id, owner) for part in parts for sha256, name, key_id, owner in part}


def contents_of(at: Address, sha256s: Iterable[str]) -> dict[str, bytes]:
    """Return the contents of these files of the conversation *at* by SHA-256, without those that are lost."""
    found = files_of(at, sha256s)
    stored = storage.read(name for name, _, _ in found.values()) if found else {}
    return _contents(found, stored, at)


def _contents(found: Mapping[str, tuple[str, str, str]], stored: Mapping[str, bytes], at: Address) -> dict[str, bytes]:
    """Return the contents of *found*, see ``files_of``, without those that are not *stored* as they were."""
    coder = row_codec.at(at)
    there = {sha256: file for sha256, file in found.items() if file[0] in stored}
    read = {sha256: decoded(coder, stored[name], key, owner, sha256) for sha256, (name, key, owner) in there.items()}
    if None in read.values():
        report(SecurityEvent.ALTERED, user=None if at.owner is ... else at.owner, memory_id=at.memory_id)
    return {sha256: content for sha256, content in read.items() if content is not None}


def _raise_if_missing(at: Address, sequence: int, index: int | None) -> None:
    """Raise ``MissingFileError`` for a file that is lost, unless the setting ``MEDIA_MISSING`` is ``"placeholder"``."""
    if files().MEDIA_MISSING != "placeholder":
        raise MissingFileError(str(at.memory_id), sequence, index)


def decoded(coder: Coder | None, stored: bytes, key_id: str, owner: str, sha256: str) -> bytes | None:
    """
    Return the content of a file of *owner* that is *stored* with the key *key_id*, if any; None if it is not that with
    *sha256*.

    It may have been cut off, or replaced by another one. Then it is as lost as if it were not there.
    """
    if key_id and coder is None:
        raise StorageError(f"The file is stored with the key {key_id!r}, but no app that has it is installed.")
    try:
        content = stored if coder is None or not key_id else coder.decode_file(stored, key_id, owner, sha256)
    except UnknownKeyError:
        raise
    except UnreadableError:
        return None
    return content if hashlib.sha256(content).hexdigest() == sha256 else None


def _as_urls(
    with_files: Mapping[int, Any], messages: Sequence[ChatMessage], known: Mapping[str, tuple[str, str, str]]
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
