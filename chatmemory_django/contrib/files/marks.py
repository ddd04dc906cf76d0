"""
Files of messages that are in a storage: taken out of the messages, and put back.

A content keeps a reference to its file. Other JSON, attributes and what other frameworks gave, keeps a mark in place of
the Base64 of a file: any text that a decoder accepts and gives back exactly, since nothing there shows what it is.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import starmap
from typing import Any, TypeVar

import msgspec

from chatmemory_django.core.media import (
    DATA_URL,
    MARK,
    Source,
    contents_in,
    emptied,
    exactly_decoded,
    file_type,
    replaced,
    source_of,
)
from chatmemory_django.messages import (
    CUT,
    MAX_WORD,
    NO_ATTRIBUTES,
    Attributes,
    Audio,
    ChatMessage,
    Content,
    FileReference,
    Image,
    TextContent,
    strings_in,
)
from chatmemory_django.models.message_codec import Extracted
from chatmemory_django.tokens.images import image_size

_Message = TypeVar("_Message", bound=ChatMessage)

_URL_SAFE = str.maketrans("+/", "-_")
_STANDARD = str.maketrans("-_", "+/")


def references(message: ChatMessage) -> list[FileReference]:
    """Return the files of *message* that are in a storage: those of its contents in their order, then the others."""
    sources = map(source_of, contents_in(message))
    return [*(source.file for source in sources if source is not None and source.file is not None), *marked_in(message)]


def marked_in(message: ChatMessage) -> Iterator[FileReference]:
    """Yield the files that were cut out of the attributes of *message*."""
    for text in strings_in(getattr(message, "attributes", NO_ATTRIBUTES)):
        yield from marked(text)


def marked(text: str | None) -> Iterator[FileReference]:
    """Yield the files that were cut out of *text*."""
    if text is not None and CUT in text:
        yield from map(_reference, MARK.finditer(text))


def extracted(message: _Message, min_bytes: int) -> tuple[_Message, list[Extracted]]:
    """
    Return *message* with a reference in place of each file of at least *min_bytes*, and these files.

    What is not Base64 as computers write it, on one line with its padding, stays as it is: it could not be restored.
    """
    found: list[Extracted] = []
    contents = tuple(_extracted(content, min_bytes, found) for content in contents_in(message))
    if found:
        message = msgspec.structs.replace(message, contents=contents)
    of_contents = len(found)
    attributes = _changed(message, partial(cut_out, min_bytes=min_bytes, found=found))
    return (attributes if len(found) > of_contents else message), found


def restored(
    message: _Message,
    content_of: Callable[[int, Source, FileReference], Source | Content],
    attribute_of: Callable[[FileReference], bytes | str],
) -> _Message:
    """
    Return *message* with its files in place of what it keeps of them.

    *content_of* is called with the index of a content, and returns the source with its file, see ``with_content``, or
    another content; *attribute_of* returns the content of a file in the attributes, or a text instead.
    """

    def whole(index: int, content: Content | None) -> Content | None:
        source = source_of(content)
        if content is None or source is None or source.file is None:
            return content
        found = content_of(index, source, source.file)
        return replaced(content, found) if isinstance(found, Source) else found

    if contents := contents_in(message):
        message = msgspec.structs.replace(message, contents=tuple(starmap(whole, enumerate(contents))))
    return _changed(message, partial(put_back, content_of=attribute_of))


def without_marks(message: _Message, url_of: Callable[[int], str]) -> _Message:
    """
    Return *message* with the URL that *url_of* returns in place of each string in its attributes with a mark.

    Their indexes are behind those of all contents. It is the same object if it has no marks.
    """
    first = count = len(contents_in(message))

    def url(text: str) -> str:
        nonlocal count
        files = len(list(marked(text)))
        count += files
        return url_of(count - files) if files else text

    changed = _changed(message, url)
    return changed if count > first else message


def with_content(source: Source, content: bytes) -> Source:
    """Return *source* as it was before its file, with that *content*, was extracted."""
    if isinstance(source, Audio) and source.binary_data is not None:
        return msgspec.structs.replace(source, file=None, binary_data=content)
    encoded = base64.b64encode(content).decode()
    if source.url is not None and source.url[:5].lower() == "data:":
        return msgspec.structs.replace(source, file=None, url=source.url + encoded)
    return msgspec.structs.replace(source, file=None, base64_data=encoded)


def with_url(source: Source, url: str) -> Source:
    """Return *source* with *url* in place of its file."""
    return emptied(source, url)


def without_file(content: FileReference) -> TextContent:
    """Return what takes the place of a file that cannot be sent."""
    return TextContent(f"[A file of type {content.type or 'unknown'} with {content.size} bytes is not available.]")


def cut_out(text: str, *, min_bytes: int, found: list[Extracted]) -> str:
    """Return *text* with a mark in place of each Base64 of at least *min_bytes*, and add these files to *found*."""
    size = max(MAX_WORD, min_bytes * 4 // 3)  # shorter ones may be words
    if len(text) < size:
        return text

    def mark(match: re.Match[str]) -> str:
        encoded = match[0]
        is_url_safe = "-" in encoded or "_" in encoded
        if is_url_safe and ("+" in encoded or "/" in encoded):
            return encoded
        decoded = exactly_decoded(encoded.translate(_STANDARD) if is_url_safe else encoded)
        if decoded is None or len(decoded) < min_bytes:
            return encoded
        found.append(_of(decoded))
        return f"{CUT}{'-' if is_url_safe else ''}{found[-1].reference.sha256}:{len(decoded)}{CUT}"

    # It begins where no letter precedes it, so that each letter is looked at once.
    return re.sub(rf"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{{{size - 2},}}={{0,2}}", mark, text)


def put_back(text: str, *, content_of: Callable[[FileReference], bytes | str]) -> str:
    """Return *text* with the Base64 of what *content_of* returns in place of each mark, or the text that it returns."""

    def encoded(match: re.Match[str]) -> str:
        content = content_of(_reference(match))
        if isinstance(content, str):
            return content
        data = base64.b64encode(content).decode()
        return data.translate(_URL_SAFE) if match[1] else data

    return MARK.sub(encoded, text) if CUT in text else text


def _reference(match: re.Match[str]) -> FileReference:
    return FileReference(match[2], int(match[3]))


def _changed(message: _Message, change: Callable[[str], str]) -> _Message:
    """Return *message* with what *change* returns in place of each string in its attributes."""
    attributes = getattr(message, "attributes", NO_ATTRIBUTES)
    return (
        msgspec.structs.replace(message, attributes=Attributes(_mapped(attributes, change))) if attributes else message
    )


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, change) for key, item in value.items()}
    return [_mapped(item, change) for item in value] if isinstance(value, list) else value


def _extracted(content: Content | None, min_bytes: int, found: list[Extracted]) -> Content | None:
    source = source_of(content)
    if content is None or source is None or source.file is not None:
        return content
    left: dict[str, Any]
    encoded, decoded = "", None
    if source.base64_data is not None:
        encoded, left = source.base64_data, {"base64_data": None}
        if source.url is not None and source.url[:5].lower() == "data:":
            return content  # two files
    elif isinstance(source, Audio) and source.binary_data is not None:
        if len(source.binary_data) < min_bytes:
            return content
        decoded, left = source.binary_data, {"binary_data": b""}
    else:
        match = DATA_URL.fullmatch(source.url) if source.url is not None and len(source.url) > min_bytes else None
        if match is None or not match[2].lower().endswith(";base64"):
            return content
        encoded, left = match[3], {"url": match[0][: match.start(3)]}
    if decoded is None:
        if len(encoded) * 3 // 4 < min_bytes:
            return content
        decoded = exactly_decoded(encoded)
        if decoded is None:
            return content
    size = image_size(source) if isinstance(source, Image) else None
    found.append(_of(decoded, *(size or (None, None))))
    return replaced(content, msgspec.structs.replace(source, file=found[-1].reference, **left))


def _of(content: bytes, width: int | None = None, height: int | None = None) -> Extracted:
    sha256 = hashlib.sha256(content).hexdigest()
    return Extracted(FileReference(sha256, len(content), file_type(content), width, height), content)
