"""Conversion of images, audio, videos, documents and text files from and to the file parts of a ``UIMessage``."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from chatmemory_django.core.media import as_file, as_text, check_address, source_of
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

TEXT = "text"
TEXT_TYPES = ("text/plain", "text/csv", "text/markdown", "application/json")
"""The media types of files that models are sent as text."""

_MEDIA_TYPE = re.compile(
    rf"((image|audio|video)(/[\w.+*-]{{1,100}})?|{PDF}|({'|'.join(TEXT_TYPES)}))"
    r"(; ?[\w.+-]{1,50}=[\w.+,-]{1,50}){0,5}",
    re.ASCII,
)
_BASE64 = ";base64,"
_NOT_BASE64 = "the data after ';base64,' is not Base64."


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

    A page does not choose the detail level of an image, so it is given as *image_detail*. Text files are read by
    ``text_in``.
    """
    kind = _kind(media_type)
    if kind in {None, TEXT}:
        others = f"{', '.join(TEXT_TYPES[:-1])} or {TEXT_TYPES[-1]}"
        raise ValueError(f"{where}.mediaType: it must be a type of image, audio or video, or {PDF}, {others}.")
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


def is_text(media_type: object) -> bool:
    """Return whether a file of *media_type* is sent to models as text."""
    return isinstance(media_type, str) and _kind(media_type) == TEXT


def text_in(url: str, name: object, where: str) -> tuple[TextContent, str]:
    """
    Return what models are sent of the text file *name* in the data URL *url*, and the part of it before the data.

    ``text_part`` shows it again. Raises ``ValueError`` if it is not UTF-8.
    """
    try:
        there = _read_url(url)
        if there.data is None:
            raise ValueError("a text file must be a data URL.")  # noqa: TRY301
        if _kind(there.media_type) != TEXT:
            raise ValueError("its media type must match mediaType.")  # noqa: TRY301
        content = base64.b64decode(there.data)
        if base64.b64encode(content).decode() != there.data:  # of several encodings, one is shown again
            raise ValueError(_NOT_BASE64)  # noqa: TRY301
        text = content.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{where}.url: a text file must be encoded in UTF-8.") from None
    except ValueError as exc:
        raise ValueError(f"{where}.url: {exc}") from None
    return TextContent(as_text(name, text)), url[: -len(there.data)]


def text_part(part: Mapping[str, Any], sent: str) -> dict[str, Any]:
    """
    Return the *part* of a text file, whose URL lacks the data, with those in the text that models are *sent*.

    What others have stored as such a part may have any URL: then it is the part of a text.
    """
    url = part.get("url")
    if not isinstance(url, str) or url[:5].lower() != "data:" or not is_text(url[5:].removesuffix(_BASE64)):
        return {"type": "text", "text": sent}
    text = as_file(part.get("filename"), sent)
    return {**part, "url": f"{url}{base64.b64encode(text.encode()).decode()}"}


def _kind(media_type: str | None) -> str | None:
    """Return the one of ``KINDS`` that *media_type* belongs to, ``TEXT``, or None."""
    match = _MEDIA_TYPE.fullmatch(media_type or "")
    return None if match is None else match[2] or (PDF if match[4] is None else TEXT)


def _any(kind: str) -> str:
    return kind if "/" in kind else f"{kind}/*"


def _read_url(url: str) -> _FileUrl:
    """Parse *url*; raise ``ValueError`` if it is not safe for a page or a model."""
    if url[:5].lower() == "data:":
        if not url.isascii():  # before it is copied: a character beyond ASCII makes all others larger
            raise ValueError(_NOT_BASE64)
        media_type, found, data = url[5:].partition(_BASE64)
        if not found or _kind(media_type) is None:
            raise ValueError("a data URL must have the form data:TYPE;base64,DATA and an accepted type.")
        try:
            is_empty = not base64.b64decode(data, validate=True)
        except ValueError:
            raise ValueError(_NOT_BASE64) from None
        if is_empty:
            raise ValueError("the file is empty.")
        return _FileUrl(media_type, data)
    check_address(url)
    return _FileUrl(None)
