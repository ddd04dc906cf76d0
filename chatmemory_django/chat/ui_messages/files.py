"""Conversion of images, audio, videos and documents from and to the file parts of a ``UIMessage``."""

from __future__ import annotations

import base64
import re
from typing import Any, NamedTuple

from chatmemory_django.core.media import check_address, source_of
from chatmemory_django.formats.files import PDF, base64_of, detected_type
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

KINDS = {ImageContent: "image", AudioContent: "audio", VideoContent: "video", PdfFileContent: PDF}
"""The prefix of the media types of each content."""

_MEDIA_TYPE = re.compile(
    r"((image|audio|video)(/[\w.+*-]{1,100})?|application/pdf)(; ?[\w.+-]{1,50}=[\w.+,-]{1,50}){0,5}", re.ASCII
)
_BASE64 = ";base64,"


class _FileUrl(NamedTuple):
    """The Base64 content and the media type of a data URL; only a media type if the file is elsewhere."""

    media_type: str | None
    data: str | None = None


def to_part(content: Content | None) -> dict[str, Any] | None:
    """Return the part that shows *content*; None for an empty content, or a file without a usable URL."""
    if isinstance(content, TextContent):
        return {"type": "text", "text": content.text}
    source = source_of(content)
    if content is None or source is None:
        return None
    kind = KINDS[type(content)]
    media_type = source.mime_type if _kind(source.mime_type) == kind else None
    data = base64_of(source)
    if data is not None:
        if media_type is None:
            detected = detected_type(data)
            media_type = detected if _kind(detected) == kind else _any(kind)
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
    Return the file at *url*, which may be a data URL: an image, audio, a video or a PDF document.

    A page does not choose the detail level of an image, so it is given as *image_detail*.

    Text files are rejected like all other types: as a text content, a file could not be distinguished from the user's
    own text, and no other content holds text. A page can read such a file itself, and send its text.
    """
    kind = _kind(media_type)
    if kind is None:
        raise ValueError(f"{where}.mediaType: it must be a type of image, audio or video, or {PDF}.")
    try:
        there = _read_url(url)
    except ValueError as exc:
        raise ValueError(f"{where}.url: {exc}") from None
    if there.media_type is not None and _kind(there.media_type) != kind:
        raise ValueError(f"{where}.url: its media type must match mediaType.")
    stated = there.media_type or media_type
    mime_type = None if "/" not in stated or "*" in stated else stated  # "image" and "image/*" only name the class
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
    """Return the one of ``KINDS`` that *media_type* belongs to, or None."""
    match = _MEDIA_TYPE.fullmatch(media_type or "")
    return None if match is None else match[2] or PDF


def _any(kind: str) -> str:
    return kind if "/" in kind else f"{kind}/*"


def _read_url(url: str) -> _FileUrl:
    """Parse *url*; raise ``ValueError`` if it is not safe for a page or a model."""
    if url[:5].lower() == "data:":
        if not url.isascii():  # before it is copied: a character beyond ASCII makes all others larger
            raise ValueError("the data after ';base64,' is not Base64.")
        media_type, found, data = url[5:].partition(_BASE64)
        if not found or _kind(media_type) is None:
            raise ValueError("a data URL must have the form data:TYPE;base64,DATA and an accepted type.")
        try:
            is_empty = not base64.b64decode(data, validate=True)
        except ValueError:
            raise ValueError("the data after ';base64,' is not Base64.") from None
        if is_empty:
            raise ValueError("the file is empty.")
        return _FileUrl(media_type, data)
    check_address(url)
    return _FileUrl(None)
