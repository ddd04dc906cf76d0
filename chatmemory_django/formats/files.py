"""The content of the files in messages, as all formats write it: in Base64, with a media type."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import TypeVar

from chatmemory_django.core.media import file_type
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

_Part = TypeVar("_Part")

PDF = "application/pdf"

ASSUMED = {Image: "image/png", Audio: "audio/wav", Video: "video/mp4", PdfFile: PDF}
"""The media types of contents whose type is neither stated nor detected."""

_HEAD = 64
"""The number of Base64 characters with enough bytes to detect a file's type."""


def content_of(data: str, media_type: str) -> Content | None:
    """Return the content for a file with *data* in Base64; None if messages have none for its *media_type*."""
    match media_type.partition("/")[0]:
        case "image":
            return ImageContent(Image(base64_data=data, mime_type=media_type), DetailLevel.AUTO)
        case "audio":
            return AudioContent(Audio(base64_data=data, mime_type=media_type))
        case "video":
            return VideoContent(Video(base64_data=data, mime_type=media_type))
        case _ if media_type == PDF:
            return PdfFileContent(PdfFile(base64_data=data, mime_type=PDF))
        case _:
            return None


def base64_of(file: Image | Audio | Video | PdfFile) -> str | None:
    """Return the content of *file* in Base64; None if it only has a URL, or nothing."""
    if file.base64_data is None and isinstance(file, Audio) and file.binary_data is not None:
        return base64.b64encode(file.binary_data).decode()
    return file.base64_data


def written(contents: Sequence[Content | None], write: Callable[[Content | None], _Part | None]) -> str | list[_Part]:
    """Return *contents* as most formats have them: a str if it is a single text, otherwise the parts by *write*."""
    if len(contents) == 1 and isinstance(contents[0], TextContent):
        return contents[0].text
    return [part for content in contents if (part := write(content)) is not None]


def media_type_of(file: Image | Audio | Video | PdfFile, data: str, detected: str = "") -> str:
    """Return the media type of *file*, whose content is *data*: the stated one, else the *detected* one."""
    return file.mime_type or detected or detected_type(data) or ASSUMED[type(file)]


def detected_type(data: str) -> str:
    """Return the media type that the first bytes of *data*, in Base64, indicate; empty if it is unknown."""
    try:
        return file_type(base64.b64decode(data[:_HEAD]))
    except ValueError:
        return ""
