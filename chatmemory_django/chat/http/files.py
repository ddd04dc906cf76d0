"""
The files in a conversation: where the chat serves them, and which one an address means.

Pages get addresses in place of data URLs, which would make the list of messages as large as all files together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from operator import is_
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from django.http import HttpRequest
from django.urls import Resolver404, get_script_prefix, resolve

from chatmemory_django.chat.ui_messages.files import to_content, to_part
from chatmemory_django.core.limits import MAX_INTEGER
from chatmemory_django.core.media import MAX_ADDRESS, contents_in, source_of, without_files
from chatmemory_django.db.row_codec import address_of
from chatmemory_django.formats.files import media_type_of
from chatmemory_django.messages import ChatMessage, Content, DetailLevel, MessageType, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.models.message_codec import complete, without_marks

_NUMBER = re.compile("[0-9]{1,10}")


class FileAddresses(NamedTuple):
    """The addresses of the files in the conversation *memory_id*, which is the chat *chat_id* below *root*."""

    origin: str
    root: str
    chat_id: str
    memory_id: str

    @classmethod
    def of(cls, request: HttpRequest, root: str, chat_id: str, memory_id: str) -> FileAddresses:
        """Return those for the site as *request* names it."""
        return cls(request.build_absolute_uri("/").rstrip("/"), root.rstrip("/"), chat_id, memory_id)

    def address(self, sequence: int, index: int) -> str:
        """Return the address of the file in message *sequence* at *index* of its contents."""
        return f"{self.origin}{quote(f'{self.root}/{self.chat_id}/files/{sequence}/{index}')}"

    def place(self, url: str) -> tuple[int, int] | None:
        """
        Return the sequence and the index in *url*; None if it is not the address, or the path, of a file of this site.

        The REST API's addresses of files are known as well. Raises ``ValueError`` for files of other conversations.
        """
        named = self._named(url)
        if named is None:
            return None
        if named.get("chat_id") != self.chat_id and named.get("memory_id") != self.memory_id:
            raise ValueError("this file is in another chat; send the file itself.")
        return int(named["sequence"]), int(named["index"])

    def _named(self, url: str) -> Mapping[str, str] | None:
        """Return what the URL pattern of a file finds in *url*."""
        try:
            parts = urlsplit(url) if len(url) <= MAX_ADDRESS else None
        except ValueError:
            return None
        is_here = parts is not None and parts.netloc in {"", urlsplit(self.origin).netloc}
        if parts is None or not is_here or parts.scheme not in {"", "http", "https"}:
            return None
        try:
            found = resolve(f"/{unquote(parts.path).removeprefix(get_script_prefix())}").kwargs
        except Resolver404:
            return None
        numbers = [found.get(name, "") for name in ("sequence", "index")]
        is_file = all(_NUMBER.fullmatch(str(number)) for number in numbers) and found.keys() & {"chat_id", "memory_id"}
        return found if is_file else None


def question_at(conversation: Conversation, sequence: int) -> UserMessage | None:
    """Return the user's message *sequence* of the history, on any branch; None if there is none."""
    if sequence > MAX_INTEGER:
        return None
    rows = conversation.history(all_branches=True).filter(sequence=sequence, type=MessageType.USER)
    row = rows.defer("verbatim").first()
    message = None if row is None else row.chat_message
    return message if isinstance(message, UserMessage) else None


def stored_file(conversation: Conversation | None, files: FileAddresses, url: str) -> Content | None:
    """Return the file at *url*; None if that is not of this site, ``ValueError`` if there is no such file."""
    place = files.place(url)
    if place is None:
        return None
    sequence, index = place
    message = None if conversation is None else question_at(conversation, sequence)
    content = message.contents[index] if message is not None and index < len(message.contents) else None
    if _type_by_address(content) is None:
        raise ValueError("there is no such file in this chat.")
    if conversation is None or message is None:
        return content
    [completed] = complete([message], [sequence], address_of(conversation))
    return contents_in(completed)[index]


def with_addresses(message: ChatMessage, sequence: int, files: FileAddresses) -> ChatMessage:
    """Return message *sequence* with addresses in place of the files in it; the same object if it has none."""
    if not isinstance(message, UserMessage):
        # A page is shown only the texts of results.
        return without_marks(without_files(message, lambda index: ""), lambda index: "")
    contents = [_with_address(each, files.address(sequence, index)) for index, each in enumerate(message.contents)]
    if not all(map(is_, contents, message.contents)):
        message = UserMessage(contents, message.name, attributes=message.attributes)
    return without_marks(message, partial(files.address, sequence))


def _with_address(content: Content | None, address: str) -> Content | None:
    media_type = _type_by_address(content)
    if media_type is None:
        return content
    return to_content(media_type, address, "$", DetailLevel.AUTO)  # pages are not shown the level


def _type_by_address(content: Content | None) -> str | None:
    """Return the media type of the file that *content* holds, if a page can show it by an address; otherwise None."""
    source = source_of(content)
    if source is not None and source.file is not None:
        return media_type_of(source, "", source.file.type)
    part = to_part(content) or {}
    media_type: str | None = part["mediaType"] if (part.get("url") or "").startswith("data:") else None
    return media_type
