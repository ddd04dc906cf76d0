"""Requests to values and values to answers: JSON by msgspec, bounded, and strict about what it does not know."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import IO, Any, TypeVar

import msgspec
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from chatmemory_django import conf
from chatmemory_django.rest.problems import Refusal, bad_request

_T = TypeVar("_T")

MAX_REASON = 300
"""How many characters of a reason are told: it may name the client's own keys and tags."""

FILES = frozenset({"base64Data", "binaryData", "data", "file_data", "url"})
"""Fields that may hold a whole file; only the size of the body bounds them."""

_PLACED = re.compile(r"(.*) - at `\$(.*)`", re.DOTALL)


class JSONParser(BaseParser):
    """JSON, no larger, deeper or longer than the settings allow, and without NUL characters."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """See ``BaseParser.parse``."""
        limits = conf.rest()
        body = read(stream, limits["MAX_BODY_BYTES"])
        try:
            value = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
            reason = str(exc) if isinstance(exc, msgspec.MsgspecError) else "It is nested too deeply, or not UTF-8."
            raise bad_request("$", f"The body is no JSON: {reason}") from None
        _check(value, "$", limits["MAX_JSON_DEPTH"], limits["MAX_TEXT_LENGTH"])
        return value


class LinesParser(BaseParser):
    """JSON lines: the bytes are left where they are."""

    media_type = "application/jsonl"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """See ``BaseParser.parse``."""
        return stream


class JSONRenderer(BaseRenderer):
    """Values as JSON."""

    media_type = "application/json"
    format = "json"
    charset = None

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        """See ``BaseRenderer.render``."""
        return b"" if data is None else msgspec.json.encode(data)


class OneKind(BaseContentNegotiation):
    """There is one kind of answer, whatever the client would rather have."""

    def select_parser(self, request: Request, parsers: Iterable[BaseParser]) -> BaseParser | None:
        """See ``BaseContentNegotiation.select_parser``."""
        media_type = (request.content_type or "").partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == media_type), None)

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        """See ``BaseContentNegotiation.select_renderer``."""
        renderer = next(iter(renderers))
        return renderer, renderer.media_type or ""


def read(stream: IO[Any], limit: int) -> bytes:
    """All of *stream*; 413 if it has more than *limit* bytes."""
    body: bytes = stream.read(limit + 1)
    if len(body) > limit:
        raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The body has more than {limit} bytes.", "$")
    return body


def body(request: Request, kind: type[_T]) -> _T:
    """The body of *request* as a *kind*; 400 with the path of what is wrong."""
    value: _T = converted(request.data, kind)
    return value


def query(request: Request, kind: type[_T]) -> _T:
    """The query parameters of *request* as a *kind*; 400 with the name of the one that is wrong."""
    given = request.query_params.dict()
    for name, value in given.items():
        if "\0" in name or "\0" in value:
            raise bad_request(f"?{name}", "It holds a NUL character; leave it out.")
    try:
        asked = msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as exc:
        what, where = placed(exc)
        raise bad_request(f"?{where.removeprefix('.')}", what) from None
    for name, text in given.items():
        value = getattr(asked, name, name)
        # In a query, msgspec also takes "null" for None, and numbers for moments.
        if value is None or (isinstance(value, datetime) and ":" not in text):
            raise bad_request(f"?{name}", "It is of another type.")
    return asked


def converted(value: Any, kind: Any, where: str = "$") -> Any:
    """*value* as a *kind*, with no field that *kind* does not have; 400 with the path, from *where* on."""
    try:
        made = msgspec.convert(value, kind)
    except msgspec.ValidationError as exc:
        what, path = placed(exc)
        raise bad_request(f"{where}{path}", what) from None
    for path in _unknown(value, made, where):
        raise bad_request(path, "There is no such field.")
    return made


def placed(error: Exception) -> tuple[str, str]:
    """What was wrong, as a sentence, and where, without the ``$``."""
    found = _PLACED.fullmatch(str(error))
    what, where = (found[1], found[2]) if found else (str(error), "")
    return f"{what[:MAX_REASON].removesuffix('.')}.", where


def _unknown(given: Any, made: Any, where: str) -> Iterator[str]:
    """The paths of what *given* says and *made* has no field for."""
    if isinstance(made, msgspec.Struct):
        names = dict(zip(made.__struct_encode_fields__, made.__struct_fields__, strict=True))
        for key, item in given.items():
            if key in names:
                yield from _unknown(item, getattr(made, names[key]), f"{where}.{key}")
            elif key != made.__struct_config__.tag_field:
                yield f"{where}.{key[:MAX_REASON]}"
    elif isinstance(made, (list, tuple)):
        for index, (item, its) in enumerate(zip(given, made, strict=False)):
            yield from _unknown(item, its, f"{where}[{index}]")


def _check(value: Any, where: str, depth: int, length: int) -> None:
    """Refuse what is nested deeper than *depth*, texts longer than *length*, and NUL characters."""
    if isinstance(value, str):
        if "\0" in value:
            raise bad_request(where, "It holds a NUL character; leave it out.")
        if len(value) > length:
            raise bad_request(where, f"It has {len(value)} characters, but may have {length}.")
    elif isinstance(value, (dict, list)):
        if depth == 0:
            raise bad_request(where[:MAX_REASON], "It is nested too deeply; flatten it.")
        if isinstance(value, list):
            for index, item in enumerate(value):
                _check(item, f"{where}[{index}]", depth - 1, length)
            return
        for key, item in value.items():
            _check(key, where, depth, length)
            _check(item, f"{where}.{key[:MAX_REASON]}", depth - 1, sys.maxsize if key in FILES else length)
