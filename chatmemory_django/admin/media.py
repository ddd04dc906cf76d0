"""
Images, sounds, films and documents in messages: what can be shown of them without trusting them.

What is in a message is served by the site itself, as what its first bytes say it is, never as what the message says.
What is elsewhere is a link, since to fetch it would tell whoever sent it that, when and from where it is read.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

from django.utils.translation import gettext as _

from chatmemory_django.admin.wording import visible
from chatmemory_django.messages import (
    Audio,
    AudioContent,
    Content,
    Image,
    ImageContent,
    PdfFile,
    PdfFileContent,
    TextContent,
    Video,
    VideoContent,
)

MAX_URL = 2_000
"""Longer addresses are shown, but are no links."""

_SIGNATURES = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
    "audio/wav": re.compile(rb"RIFF.{4}WAVE", re.DOTALL),
    "audio/mpeg": re.compile(rb"ID3|\xff[\xfb\xf3\xf2]"),
    "audio/flac": re.compile(rb"fLaC"),
    "audio/ogg": re.compile(rb"OggS"),
    "audio/mp4": re.compile(rb".{4}ftypM4A", re.DOTALL),
    "video/webm": re.compile(rb"\x1aE\xdf\xa3"),
    "video/mp4": re.compile(rb".{4}ftyp", re.DOTALL),
    "application/pdf": re.compile(rb"%PDF-"),
}
"""What a file of a type begins with. Of SVG there is none: it is a program."""

_LINKABLE = re.compile(r"https?://[\w!#$%&'()*+,./:;=?@\[\]~-]+", re.IGNORECASE)
_DATA_URL = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),(.*)", re.IGNORECASE | re.DOTALL)


class File(NamedTuple):
    """The content of a file, and its type as its first bytes tell; empty if they tell none that is known."""

    content: bytes
    type: str

    @property
    def is_image(self) -> bool:
        """Whether a browser may show it as a picture."""
        return self.type.startswith("image/")

    @property
    def is_sound(self) -> bool:
        """Whether a browser may play it."""
        return self.type.startswith("audio/")

    @property
    def is_film(self) -> bool:
        """Whether a browser may play it with its pictures."""
        return self.type.startswith("video/")

    @property
    def is_preview(self) -> bool:
        """Whether a browser may show it in place; if not, it is a download."""
        return self.is_image or self.is_sound or self.is_film

    @property
    def extension(self) -> str:
        """How the name of such a file ends."""
        return {"image/jpeg": "jpg", "audio/mpeg": "mp3", "": "bin"}.get(self.type, self.type.rpartition("/")[2])


class Media(NamedTuple):
    """A file in a message, as a page tells of it."""

    kind: str
    """What it is: "image", "audio", "video" or "pdf" ..."""
    label: str
    """... and that in words, with what else is known of it."""
    file: File | None = None
    """What it holds, if the message does."""
    url: str = ""
    """Where it is, if that can be a link."""
    address: str = ""
    """Where it is, to be read."""


def media_of(content: Content | None) -> Media | None:
    """What *content* refers to; None if it is a text or nothing."""
    given: Image | Audio | Video | PdfFile | None
    match content:
        case None | TextContent():
            return None
        case ImageContent(image=given):
            kind, name = "image", _("Image")
        case AudioContent(audio=given):
            kind, name = "audio", _("Sound")
        case VideoContent(video=given):
            kind, name = "video", _("Film")
        case PdfFileContent(pdf_file=given):
            kind, name = "pdf", _("PDF document")
    if given is None:
        return Media(kind, _("%(kind)s, left out") % {"kind": name})
    binary = given.binary_data if isinstance(given, Audio) else None
    if binary is None and given.base64_data is None:
        return _by_url(kind, name, given.url or "")
    file = File(binary, file_type(binary)) if binary is not None else _decoded(given.base64_data or "")
    if file is None:
        return Media(kind, _("%(kind)s, whose Base64 is broken") % {"kind": name})
    return Media(kind, _labelled(name, file), file)


def file_type(content: bytes) -> str:
    """The type that the first bytes of *content* tell; empty if it is none that is known."""
    return next((name for name, signature in _SIGNATURES.items() if signature.match(content)), "")


def _labelled(name: str, file: File) -> str:
    size = max(1, round(len(file.content) / 1024))
    if file.type:
        return _("%(kind)s (%(type)s, %(size)d KiB)") % {"kind": name, "type": file.type, "size": size}
    return _("%(kind)s of an unknown type (%(size)d KiB)") % {"kind": name, "size": size}


def _by_url(kind: str, name: str, url: str) -> Media:
    if url[:5].lower() == "data:":
        match = _DATA_URL.fullmatch(url)
        if match is None:
            return Media(kind, _("%(kind)s, whose data: address is broken") % {"kind": name})
        is_base64 = match[2].lower().endswith(";base64")
        file = _decoded(match[3]) if is_base64 else File(data := unquote_to_bytes(match[3]), file_type(data))
        if file is None:
            return Media(kind, _("%(kind)s, whose Base64 is broken") % {"kind": name})
        return Media(kind, _labelled(name, file), file)
    address = visible(url[:MAX_URL])
    if not is_link(url):
        return Media(kind, _("%(kind)s at an address that is no link") % {"kind": name}, address=address)
    return Media(kind, _("%(kind)s elsewhere") % {"kind": name}, url=url, address=address)


def is_link(url: str) -> bool:
    """Whether *url* is plainly an address on the web, fit to be a link."""
    if len(url) > MAX_URL or not _LINKABLE.fullmatch(url) or visible(url) != url:
        return False
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return bool(parts.hostname) and "@" not in parts.netloc  # "https://bank.example@evil.example/" is at evil.example


def _decoded(text: str) -> File | None:
    try:
        content = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return None
    return File(content, file_type(content))
