"""Export of conversations, for programs and for people."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from functools import partial
from typing import Literal

from asgiref.sync import sync_to_async
from django.db.models import QuerySet

from chatmemory_django.db.batches import in_batches
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation
from chatmemory_django.operations.jsonl import export_lines
from chatmemory_django.operations.one_by_one import Refused
from chatmemory_django.operations.rating import export_ratings
from chatmemory_django.operations.readable import HTML, TEXT, Form, export_pieces

CHUNK_CHARACTERS = 64 * 1024
"""How many characters of an export are yielded at a time; a longer line is yielded alone."""


FORMS: Mapping[str, Form] = {"text": TEXT, "html": HTML}
"""The forms of an export for people, by name."""


def export(
    conversations: QuerySet[Conversation],
    *,
    types: Collection[MessageType] | None = None,
    form: Literal["jsonl", "text", "html", "ratings"] = "jsonl",
    refused: Refused | None = None,
    owner: object = None,
    names: bool = False,
) -> Iterator[str]:
    """
    Yield *conversations*, with all of their messages or those of *types*, in chunks worth sending; then what belongs to
    *owner*, the primary key of a user, and to no conversation. Lines take *names* and ``EVERYBODY``, too.

    The *form* is the lines of ``export_lines``, which can be imported again, those of ``export_ratings``, or a document
    for people: plain text, or a page of HTML, in the active language and time zone. *refused* receives the
    conversations that cannot be exported, see ``export_lines``, and why, and the others go on; without it, the first
    one raises that.
    """
    if form == "ratings":
        return _in_chunks(export_ratings(conversations, refused=refused))
    if form == "jsonl":
        return _in_chunks(export_lines(conversations, types=types, refused=refused, owner=owner, names=names))
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; it must be one of jsonl, {', '.join(FORMS)}.")
    return _in_chunks(export_pieces(conversations, FORMS[form], types=types, refused=refused, owner=owner))


def _in_chunks(pieces: Iterator[str]) -> Iterator[str]:
    return map("".join, in_batches(filter(None, pieces), len, CHUNK_CHARACTERS, CHUNK_CHARACTERS))


async def asynchronous(chunks: Iterator[str]) -> AsyncIterator[str]:
    """Yield *chunks* without blocking the event loop; Django would collect them all before it sends the first."""
    following = sync_to_async(partial(next, chunks, ""))
    while chunk := await following():
        yield chunk
