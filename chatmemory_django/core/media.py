"""
Files in messages: images, audio, video and documents.

A file's type is detected from its first bytes, never taken from the message. Remote files are never downloaded.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import is_
from typing import NamedTuple, TypeAlias, TypeVar
from urllib.parse import unquote_to_bytes, urlsplit
from xml.sax.saxutils import quoteattr

import msgspec

from chatmemory_django.messages import (
    CUT,
    NO_ATTRIBUTES,
    Audio,
    AudioContent,
    ChatMessage,
    Content,
    CustomMessage,
    Image,
    ImageContent,
    PdfFile,
    PdfFileContent,
    ToolExecutionResultMessage,
    UserMessage,
    Video,
    VideoContent,
    strings_in,
)

_Message = TypeVar("_Message", bound=ChatMessage)

Source: TypeAlias = Image | Audio | Video | PdfFile
"""The objects that hold a file or its URL."""

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
"""The signatures of the known types. SVG is not among them: it can contain scripts."""

DATA_URL = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),(.*)", re.IGNORECASE | re.DOTALL)
_SOURCES: dict[type, str] = {
    ImageContent: "image",
    AudioContent: "audio",
    VideoContent: "video",
    PdfFileContent: "pdf_file",
}
_NAMES = {**_SOURCES, PdfFileContent: "pdfFile"}
"""The fields of ``_SOURCES`` as they are in JSON."""

MAX_ADDRESS = 8192
"""The maximum length of the address of a file on another server: web servers accept no longer ones by default."""

MARK = re.compile(f"{CUT}(-?)([0-9a-f]{{64}}):([0-9]{{1,18}}){CUT}")
"""
What stands in place of the Base64 of a file that is elsewhere in other JSON, attributes and what other frameworks gave:
its SHA-256 and size, behind "-" if the Base64 had the alphabet for URLs.
"""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}(?=:)")
_REMOTE = re.compile(r"(?i:https?)://[^\x00-\x20\x7f<>\"\\^`{|}]+")
_HOST = re.compile(r"[\w.:-]+")
_DATA = re.compile(r"data:([\w.+-]+/[\w.+-]+)(;[\w.+-]+=[\w.+,-]+){0,5};base64,", re.ASCII | re.IGNORECASE)
_SVG = "image/svg+xml"
_KINDS = {"image": "an image", "audio": "audio", "video": "a video", "pdf": "a PDF document"}
"""What files can be, by the first part of their media types, and how that is called."""
_ADDRESSES = frozenset({"image_url", "file_url"})
_FILE_KINDS = re.compile("image|audio|video|file|document|media")


class AddressError(ValueError):
    """The error for a file, or its address, that users may not send. *where* is its location in the message."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(reason)
        self.where = where


class File(NamedTuple):
    """The content of a file, and its type as detected from its first bytes; empty if it is unknown."""

    content: bytes
    type: str

    @property
    def is_image(self) -> bool:
        """Whether a browser may show it as an image."""
        return self.type.startswith("image/")

    @property
    def is_sound(self) -> bool:
        """Whether a browser may play it as audio."""
        return self.type.startswith("audio/")

    @property
    def is_film(self) -> bool:
        """Whether a browser may play it as video."""
        return self.type.startswith("video/")

    @property
    def is_preview(self) -> bool:
        """Whether a browser may show it inline; if not, it is a download."""
        return self.is_image or self.is_sound or self.is_film

    @property
    def media_type(self) -> str:
        """The media type with which it is served."""
        return self.type or "application/octet-stream"

    @property
    def extension(self) -> str:
        """The extension of its file name."""
        return {"image/jpeg": "jpg", "audio/mpeg": "mp3", "": "bin"}.get(self.type, self.type.rpartition("/")[2])

    def headers(self, name: str) -> dict[str, str]:
        """Return the headers with which it is served as *name*, which has no extension yet."""
        served = served_as(f"{name}.{self.extension}", is_inline=self.is_preview)
        return {"Content-Type": self.media_type, **served}


def served_as(name: str, *, is_inline: bool = False) -> dict[str, str]:
    """Return headers that keep browsers from treating the file *name* as a page of the site, whatever its content."""
    return {
        "Content-Disposition": f'{"inline" if is_inline else "attachment"}; filename="{name}"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
    }


def file_type(content: bytes) -> str:
    """Return the type detected from the first bytes of *content*; empty if it is unknown."""
    return next((name for name, signature in _SIGNATURES.items() if signature.match(content)), "")


def source_of(content: Content | None) -> Source | None:
    """Return the file of *content*; None if it is text."""
    name = _SOURCES.get(type(content))
    source: Source | None = None if name is None else getattr(content, name)
    return source


def holds_file(source: Source) -> bool:
    """Return whether *source* contains a file, even a broken one, rather than only its URL."""
    if (
        source.file is not None
        or source.base64_data is not None
        or (isinstance(source, Audio) and source.binary_data is not None)
    ):
        return True
    return source.url is not None and source.url[:5].lower() == "data:"


def has_reference(message: ChatMessage) -> bool:
    """Return whether *message* has, in place of a file, a reference to it or a mark."""
    sources = map(source_of, contents_in(message))
    if any(source is not None and source.file is not None for source in sources):
        return True
    attributes = getattr(message, "attributes", NO_ATTRIBUTES)
    return bool(attributes) and any(map(is_marked, strings_in(attributes)))


def is_marked(text: str | None) -> bool:
    """Return whether *text* has a mark in place of a file."""
    return text is not None and CUT in text and MARK.search(text) is not None


def without_files(message: _Message, url_of: Callable[[int], str]) -> _Message:
    """
    Return *message* with each file in its contents replaced by the URL that *url_of* returns for the index of that.

    It is the same object if it has no files. Nothing is decoded, so broken files are replaced, too.
    """
    contents = contents_in(message)
    elsewhere = [_without_file(content, index, url_of) for index, content in enumerate(contents)]
    if all(map(is_, contents, elsewhere)):
        return message
    return msgspec.structs.replace(message, contents=tuple(elsewhere))


def file_of(source: Source) -> File | None:
    """Return the file in *source*; None if there is none, or if it cannot be decoded."""
    if isinstance(source, Audio) and source.binary_data is not None:
        return _file(source.binary_data)
    if source.base64_data is not None:
        return _decoded(source.base64_data)
    match = DATA_URL.fullmatch(source.url or "")
    if match is None:
        return None
    return _decoded(match[3]) if match[2].lower().endswith(";base64") else _file(unquote_to_bytes(match[3]))


def replaced(content: Content, source: Source) -> Content:
    """Return *content* with *source* in place of its file."""
    changed: Content = msgspec.structs.replace(content, **{_SOURCES[type(content)]: source})
    return changed


def source_at(message: ChatMessage, index: int) -> Source | None:
    """Return what the content of *message* at *index* holds of a file: None for text, and where there is none."""
    contents = contents_in(message)
    return source_of(contents[index]) if index < len(contents) else None


def is_remote(url: str) -> bool:
    """Return whether *url* is a complete http or https URL."""
    if len(url) > MAX_ADDRESS or _REMOTE.fullmatch(url) is None:  # first, because urlsplit() keeps what it was given
        return False
    try:
        parts = urlsplit(url)
        port = parts.port  # raises ValueError for an invalid port
    except ValueError:
        return False
    return port != 0 and _HOST.fullmatch(parts.hostname or "") is not None


def check_address(url: str, *, remote: bool = True, kind: str | None = None) -> None:
    """
    Raise ``ValueError`` unless users may send *url* as the address of a file, which models and browsers then load.

    It may be a data URL, of what ``check_content`` accepts, and, if *remote*, an http or https URL.
    """
    if url[:5].lower() == "data:":
        match = _DATA.match(url)
        if match is None:
            raise ValueError("a data URL must have the form data:TYPE;base64,DATA.")
        check_content(url[match.end() :], match[1].lower(), kind)
        return
    if remote and is_remote(url):
        return
    if is_remote(url):
        raise ValueError("it must be a data URL: this site does not accept the addresses of files on other servers.")
    scheme = _SCHEME.match(url)
    seen = f"has the scheme {scheme[0]!r}" if scheme else "has no scheme"
    if scheme and scheme[0].lower() in {"http", "https"}:
        seen = f"has no host, characters that no URL may contain, or more than {MAX_ADDRESS}"
    raise ValueError(f"it must be an http or https URL, or a data URL; this one {seen}.")


def check_content(given: str | bytes, stated: str | None = None, kind: str | None = None) -> None:
    """
    Raise ``ValueError`` unless users may send *given*, Base64 or bytes, as a file.

    The Base64 is what computers write of it, so that all of it counts: what decoders accept besides, such as spaces, is
    no file to who measures it. Its media type, if it is *stated*, and the *kind* of the content that has it are those
    of the file, as far as that is seen. What has sound may also have pictures.
    """
    content = given if isinstance(given, bytes) else exactly_decoded(given)
    if content is None:
        raise ValueError("it must be Base64 of the standard alphabet, on one line, with its padding.")
    if not content:
        raise ValueError("the file is empty.")
    stated = stated and stated.partition(";")[0].strip().lower()  # without its parameters
    if stated == _SVG:
        raise ValueError("SVG is not accepted, since it can contain scripts; send a PNG, for example.")
    claimed = None if not stated or stated == "application/octet-stream" else _kind(stated)
    if kind and claimed and claimed != kind:
        raise ValueError(f"its media type is {stated!r:.100}, but it is sent as {_KINDS[kind]}.")
    found = _kind(file_type(content))
    wanted = kind or claimed
    if found and wanted and found != wanted and {found, wanted} != {"audio", "video"}:
        raise ValueError(f"it is {_KINDS[found]}, but it is sent as {_KINDS.get(wanted, repr(stated))}.")


def _kind(media_type: str) -> str:
    return "pdf" if media_type == "application/pdf" else media_type.partition("/")[0]


def exactly_decoded(encoded: str) -> bytes | None:
    """Return the content of *encoded*, Base64; None if encoding it again gives something else."""
    try:
        decoded = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None
    # The last group alone can be written in several ways; everything before it was checked.
    return decoded if base64.b64encode(decoded[-(len(decoded) % 3 or 3) :]).decode() == encoded[-4:] else None


def check_files(message: ChatMessage, *, remote: bool = True) -> None:
    """
    Raise ``AddressError`` unless users may send all files in *message*, see ``check_content``, and their addresses.

    Those in the attributes of a ``CustomMessage``, another framework's JSON, are checked, too.
    """
    for index, content in enumerate(contents_in(message)):
        source = source_of(content)
        if source is not None:
            where = f"contents[{index}].{_NAMES[type(content)]}"
            _check_source(where, source, _kind_of(content), remote=remote)
    if isinstance(message, CustomMessage):
        check_json_files(message.attributes, remote=remote, where="attributes")


def check_json_files(value: object, *, remote: bool = True, where: str = "") -> None:
    """Raise ``AddressError`` unless users may send the addresses of all files in *value*, the JSON of a framework."""
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            check_json_files(item, remote=remote, where=f"{where}[{index}]")
    elif isinstance(value, Mapping):
        kinds = f"{value.get('type')} {value.get('kind')} {where.rpartition('.')[2]}"  # {"image_url": {"url": ...}}
        is_file = _FILE_KINDS.search(kinds) is not None
        for key, item in value.items():
            path = f"{where}.{key}".removeprefix(".")
            if not isinstance(item, str):
                check_json_files(item, remote=remote, where=path)
            elif key in _ADDRESSES or (key == "url" and is_file) or (key == "file_data" and ":" in item):
                with _at(path):
                    check_address(item, remote=remote, kind="image" if "image_url" in {key, where[-9:]} else None)
            elif key == "file_data":
                with _at(path):
                    check_content(item)


def _kind_of(content: Content | None) -> str:
    return _SOURCES[type(content)].removesuffix("_file")


def _check_source(where: str, source: Source, kind: str, *, remote: bool) -> None:
    binary = source.binary_data if isinstance(source, Audio) else None
    is_data = source.url is not None and source.url[:5].lower() == "data:"
    if sum((is_data, source.base64_data is not None, binary is not None)) > 1:
        raise AddressError(where, "it has several files; send one in each content.")
    if source.url is not None:
        with _at(f"{where}.url"):
            check_address(source.url, remote=remote, kind=kind)
    if source.base64_data is not None:
        with _at(f"{where}.base64Data"):
            check_content(source.base64_data, source.mime_type, kind)
    if binary is not None:
        with _at(f"{where}.binaryData"):
            check_content(binary, source.mime_type, kind)


@contextmanager
def _at(where: str) -> Iterator[None]:
    try:
        yield
    except ValueError as exc:
        raise AddressError(where, str(exc)) from None


def as_text(name: object, text: str) -> str:
    """Return what models are sent of the text file *name*, a string unless it has none, with this *text*."""
    return f"{_opening(name)}{text}{_CLOSING}"


def as_file(name: object, sent: str) -> str:
    """Return the text of the file of which ``as_text`` has made what models are *sent*."""
    return sent.removeprefix(_opening(name)).removesuffix(_CLOSING)


def is_file(text: str) -> bool:
    """Return whether *text* looks like what ``as_text`` returns."""
    return text.startswith("<file") and text.endswith(_CLOSING)


_CLOSING = "\n</file>"


def _opening(name: object) -> str:
    return f"<file name={quoteattr(name)}>\n" if isinstance(name, str) and name else "<file>\n"


def contents_in(message: ChatMessage) -> tuple[Content | None, ...]:
    """Return the contents of *message*; none for a message of another kind."""
    return message.contents if isinstance(message, (UserMessage, ToolExecutionResultMessage)) else ()


def emptied(source: Source, url: str) -> Source:
    """Return *source* with *url* alone in place of its file."""
    nothing = {"base64_data": None, "binary_data": None} if isinstance(source, Audio) else {"base64_data": None}
    return msgspec.structs.replace(source, url=url, file=None, **nothing)


def _without_file(content: Content | None, index: int, url_of: Callable[[int], str]) -> Content | None:
    source = source_of(content)
    if content is None or source is None or not holds_file(source):
        return content
    return replaced(content, emptied(source, url=url_of(index)))


def _file(content: bytes) -> File:
    return File(content, file_type(content))


def _decoded(text: str) -> File | None:
    try:
        return _file(base64.b64decode("".join(text.split()), validate=True))
    except (binascii.Error, ValueError):
        return None
