"""
Safe display of images, audio, videos and documents in messages.

Files inside of messages are served by the site itself, with a media type detected from their first bytes and never
the one that the message declares. Files elsewhere are links: loading them would reveal to their sender when and from
where the message is read.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from django.utils.translation import gettext as _

from chatmemory_django.core.media import File, Source, file_of, holds_file
from chatmemory_django.core.shown import visible
from chatmemory_django.messages import (
    AudioContent,
    Content,
    ImageContent,
    PdfFileContent,
    TextContent,
    VideoContent,
)

MAX_URL = 2_000
"""Maximum number of characters of a link; longer addresses are cut and shown as text."""

_LINKABLE = re.compile(r"https?://[\w!#$%&'()*+,./:;=?@\[\]~-]+", re.IGNORECASE)


class Media(NamedTuple):
    """A file in a message, as a page describes it."""

    kind: str
    """Its kind: "image", "audio", "video" or "pdf"."""
    label: str
    """A description in words, with its type and size if known."""
    file: File | None = None
    """The file itself, if the message contains it; without its content if that is in a storage."""
    url: str = ""
    """Its URL, if it can be a link."""
    address: str = ""
    """Its address, as a text to display."""


def media_of(content: Content | None) -> Media | None:
    """Return the file that *content* refers to; None for texts and empty contents."""
    given: Source | None
    match content:
        case None | TextContent():
            return None
        case ImageContent(image=given):
            kind, name = "image", _("Image")
        case AudioContent(audio=given):
            kind, name = "audio", _("Audio")
        case VideoContent(video=given):
            kind, name = "video", _("Video")
        case PdfFileContent(pdf_file=given):
            kind, name = "pdf", _("PDF document")
    if given is None:
        return Media(kind, _("%(kind)s (not included)") % {"kind": name})
    if not holds_file(given):
        return _elsewhere(kind, name, given.url or "")
    if given.file is not None:  # only its description: the page links to it
        return Media(kind, _labelled(name, given.file.type, given.file.size), File(b"", given.file.type))
    file = file_of(given)
    if file is not None:
        return Media(kind, _labelled(name, file.type, len(file.content)), file)
    if given.base64_data is None:
        return Media(kind, _("%(kind)s with an invalid data: URL") % {"kind": name})
    return Media(kind, _("%(kind)s with invalid Base64 data") % {"kind": name})


def _labelled(name: str, file_type: str, length: int) -> str:
    size = max(1, round(length / 1024))
    if file_type:
        return _("%(kind)s (%(type)s, %(size)d KiB)") % {"kind": name, "type": file_type, "size": size}
    return _("%(kind)s of an unknown type (%(size)d KiB)") % {"kind": name, "size": size}


def _elsewhere(kind: str, name: str, url: str) -> Media:
    address = visible(url[:MAX_URL])
    if not is_link(url):
        return Media(kind, _("%(kind)s at an address that cannot be a link") % {"kind": name}, address=address)
    return Media(kind, _("%(kind)s (external)") % {"kind": name}, url=url, address=address)


def is_link(url: str) -> bool:
    """Return whether *url* is a plain http(s) address that is safe as a link."""
    if len(url) > MAX_URL or not _LINKABLE.fullmatch(url) or visible(url) != url:
        return False
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return bool(parts.hostname) and "@" not in parts.netloc  # "https://bank.example@evil.example/" is evil.example
