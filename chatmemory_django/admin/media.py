"""
Images, sounds, films and documents in messages: what can be shown of them without trusting them.

What is in a message is served by the site itself, as what its first bytes say it is, never as what the message says.
What is elsewhere is a link, since to fetch it would tell whoever sent it that, when and from where it is read.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from django.utils.translation import gettext as _

from chatmemory_django.admin.wording import visible
from chatmemory_django.media import File, Source, file_of, holds_file
from chatmemory_django.messages import (
    AudioContent,
    Content,
    ImageContent,
    PdfFileContent,
    TextContent,
    VideoContent,
)

MAX_URL = 2_000
"""Longer addresses are shown, but are no links."""

_LINKABLE = re.compile(r"https?://[\w!#$%&'()*+,./:;=?@\[\]~-]+", re.IGNORECASE)


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
    given: Source | None
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
    if not holds_file(given):
        return _elsewhere(kind, name, given.url or "")
    file = file_of(given)
    if file is not None:
        return Media(kind, _labelled(name, file), file)
    if given.base64_data is None:
        return Media(kind, _("%(kind)s, whose data: address is broken") % {"kind": name})
    return Media(kind, _("%(kind)s, whose Base64 is broken") % {"kind": name})


def _labelled(name: str, file: File) -> str:
    size = max(1, round(len(file.content) / 1024))
    if file.type:
        return _("%(kind)s (%(type)s, %(size)d KiB)") % {"kind": name, "type": file.type, "size": size}
    return _("%(kind)s of an unknown type (%(size)d KiB)") % {"kind": name, "size": size}


def _elsewhere(kind: str, name: str, url: str) -> Media:
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
