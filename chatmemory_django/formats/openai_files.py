"""The representation of files in both OpenAI's chat completions and items."""

from __future__ import annotations

import re

from chatmemory_django.messages import Image

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
    """Return the URL or the data URL of *image*, or None if it has neither."""
    if image.base64_data is not None and image.mime_type is not None:
        return f"data:{image.mime_type};base64,{image.base64_data}"
    return image.url
