"""The representation of files in both OpenAI's chat completions and items."""

from __future__ import annotations

import re

from chatmemory_django.formats.files import base64_of, media_type_of
from chatmemory_django.messages import Audio, Image, PdfFile, Video

PDF_NAME = "document.pdf"
"""OpenAI requires a name for every file; a ``PdfFile`` has none, so names are not kept either."""

AUDIO_TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg"}
AUDIO_FORMATS = {mime_type: name for name, mime_type in AUDIO_TYPES.items()}

DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.DOTALL)
"""Matches a data URL: its media type, and its content in Base64."""


def to_image(url: str) -> Image:
    """Return the image that *url*, which may be a data URL, refers to."""
    if data := DATA_URL.fullmatch(url):
        return Image(base64_data=data[2], mime_type=data[1])
    return Image(url=url)


def to_url(image: Image) -> str | None:
    """Return the data URL or the URL of *image*, or None if it has neither content nor URL."""
    return to_data_url(image) or image.url


def to_data_url(file: Image | Audio | Video | PdfFile) -> str | None:
    """Return the content of *file* as a data URL, or None if it has no content."""
    data = base64_of(file)
    return None if data is None else f"data:{media_type_of(file, data)};base64,{data}"
