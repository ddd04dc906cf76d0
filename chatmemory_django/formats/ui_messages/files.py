"""Images, sounds, films and documents, and the file parts that they are in a ``UIMessage``."""

from __future__ import annotations

import base64
import re
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from chatmemory_django.media import file_type, source_of
from chatmemory_django.messages import (
    Audio,
    AudioContent,
    Content,
    DetailLevel,
    Image,
    ImageContent,
    PdfFile,
    PdfFileContent,
    TextContent,
    Video,
    VideoContent,
)

PDF = "application/pdf"
KINDS = {ImageContent: "image", AudioContent: "audio", VideoContent: "video", PdfFileContent: PDF}
"""What the media type of each content begins with."""

_MEDIA_TYPE = re.compile(
    r"((image|audio|video)(/[\w.+*-]{1,100})?|application/pdf)(; ?[\w.+-]{1,50}=[\w.+,-]{1,50}){0,5}", re.ASCII
)
_BASE64 = ";base64,"
_ADDRESS = re.compile(r"https?://[^\x00-\x20\x7f<>\"\\^`{|}]{1,8192}")
_HOST = re.compile(r"[\w.:-]+")
_HEAD = 64
"""How many characters of Base64 have enough bytes to tell a file's type."""


class _FileUrl(NamedTuple):
    """What a URL holds, in Base64, and of which type; a type alone where the file is elsewhere."""

    media_type: str | None
    data: str | None = None


def to_part(content: Content | None) -> dict[str, Any] | None:
    """Return the part that shows *content*; None if nothing does: no content, or a file without a usable URL."""
    if isinstance(content, TextContent):
        return {"type": "text", "text": content.text}
    source = source_of(content)
    if content is None or source is None:
        return None
    kind = KINDS[type(content)]
    media_type = source.mime_type if _kind(source.mime_type) == kind else None
    data = source.base64_data
    if data is None and isinstance(source, Audio) and source.binary_data is not None:
        data = base64.b64encode(source.binary_data).decode()
    if data is not None:
        media_type = media_type or _told_type(data, kind) or _any(kind)
        return {"type": "file", "mediaType": media_type, "url": f"data:{media_type}{_BASE64}{data}"}
    try:
        there = _read_url(source.url or "")
    except ValueError:
        return None
    if there.media_type is not None and _kind(there.media_type) != kind:
        return None
    return {"type": "file", "mediaType": media_type or there.media_type or _any(kind), "url": source.url}


def to_content(media_type: str, url: str, where: str, image_detail: DetailLevel) -> Content:
    """
    Return the file that is at *url*, or in it: an image, a sound, a film or a PDF document.

    A page does not say how closely a model should look at an image, so *image_detail* does.

    Text files are refused as all others are: as a text content, one could not be told from what the user wrote, and no
    other content holds text. A page can read such a file itself, and send its text.
    """
    kind = _kind(media_type)
    if kind is None:
        raise ValueError(f"{where}.mediaType: it must be that of an image, audio, video or {PDF}.")
    try:
        there = _read_url(url)
    except ValueError as exc:
        raise ValueError(f"{where}.url: {exc}") from None
    if there.media_type is not None and _kind(there.media_type) != kind:
        raise ValueError(f"{where}.url: the media type in it must agree with mediaType.")
    told = there.media_type or media_type
    mime_type = None if "/" not in told or "*" in told else told  # "image" and "image/*" say no more than the class
    held = (url if there.data is None else None, there.data, mime_type)
    match kind:
        case "image":
            return ImageContent(Image(*held), image_detail)
        case "audio":
            return AudioContent(Audio(*held))
        case "video":
            return VideoContent(Video(*held))
        case _:
            return PdfFileContent(PdfFile(*held))


def _kind(media_type: str | None) -> str | None:
    """Return which of ``KINDS`` *media_type* is of, if any."""
    match = _MEDIA_TYPE.fullmatch(media_type or "")
    return None if match is None else match[2] or PDF


def _any(kind: str) -> str:
    return kind if "/" in kind else f"{kind}/*"


def _told_type(data: str, kind: str) -> str | None:
    """Return the media type that the first bytes of *data* tell, if it is of *kind*."""
    try:
        told = file_type(base64.b64decode(data[:_HEAD]))
    except ValueError:
        return None
    return told if _kind(told) == kind else None


def _read_url(url: str) -> _FileUrl:
    """Return what *url* says; ``ValueError`` saying why if it is none that a page or a model may be given."""
    if url.startswith("data:"):
        media_type, found, data = url.removeprefix("data:").partition(_BASE64)
        if not found or _kind(media_type) is None:
            raise ValueError("a data URL must be data:TYPE;base64,DATA, of a type that is accepted.")
        try:
            is_empty = not base64.b64decode(data, validate=True)
        except ValueError:
            raise ValueError("what it has behind ';base64,' is not Base64.") from None
        if is_empty:
            raise ValueError("the file is empty.")
        return _FileUrl(media_type, data)
    if not _is_address(url):
        raise ValueError("it must be an address with http or https, or a data URL.")
    return _FileUrl(None)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port  # raises where it is none
    except ValueError:
        return False
    return _ADDRESS.fullmatch(url) is not None and port != 0 and _HOST.fullmatch(parts.hostname or "") is not None
