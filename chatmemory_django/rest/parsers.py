"""Parsers and renderers: strict JSON with size limits, by msgspec, and JSON Lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import IO, Any, BinaryIO, cast

import msgspec
from django.core.handlers.asgi import ASGIRequest
from rest_framework import exceptions
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from chatmemory_django import conf
from chatmemory_django.core.limits import BoundsError, check_bounds, check_values
from chatmemory_django.rest.problems import Problem, invalid


class ChunkedRequest(Request):
    """A request whose body may be chunked, and therefore without a ``Content-Length``."""

    def _load_stream(self) -> None:
        request = self._request
        if request.META.get("CONTENT_LENGTH") or "chunked" not in request.META.get("HTTP_TRANSFER_ENCODING", ""):
            super()._load_stream()  # type: ignore[misc]
        elif isinstance(request, ASGIRequest):
            self._stream = cast(BinaryIO, request)
        elif request.META.get("wsgi.input_terminated"):
            self._stream = request.META["wsgi.input"]  # Django's own stream would end at the missing length, 0
        else:
            raise Problem(
                HTTPStatus.LENGTH_REQUIRED, "length_required", "This server requires a Content-Length header."
            )


class JSONParser(BaseParser):
    """A parser of JSON within the limits of size, depth and text length in the settings."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        limits = conf.rest()
        body = b"".join(bounded(stream, limits.MAX_BODY_BYTES))
        try:
            check_values(body)
        except ValueError as exc:
            raise invalid("$", str(exc)) from None
        try:
            value = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
            reason = f"{exc}." if isinstance(exc, msgspec.MsgspecError) else "It is nested too deeply, or not UTF-8."
            detail = "The body is not valid JSON; see errors."
            raise Problem(HTTPStatus.BAD_REQUEST, "parse_error", detail, "$", reason) from None
        try:
            check_bounds(value, limits.MAX_JSON_DEPTH, limits.MAX_TEXT_LENGTH)
        except BoundsError as exc:
            raise exceptions.ValidationError({exc.where: [exc.reason]}) from None
        return value


class LinesParser(BaseParser):
    """A parser of JSON Lines that returns the unread stream."""

    media_type = "application/jsonl"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        return stream


class JSONRenderer(BaseRenderer):
    """A renderer of JSON."""

    media_type = "application/json"
    format = "json"
    charset = None

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        return b"" if data is None else msgspec.json.encode(data, enc_hook=str)


class OneKind(BaseContentNegotiation):
    """Content negotiation that ignores ``Accept``: there is only one format of responses."""

    def select_parser(self, request: Request, parsers: Iterable[BaseParser]) -> BaseParser | None:
        media_type = (request.content_type or "").partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == media_type), None)

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        renderer = next(iter(renderers))
        return renderer, renderer.media_type or ""


def bounded(stream: IO[bytes], limit: int) -> Iterator[bytes]:
    """Yield *stream* in chunks; 413 if it has more than *limit* bytes."""
    size = 0
    while chunk := stream.read(64 * 1024):
        size += len(chunk)
        if size > limit:
            detail = f"The body has more than {limit} bytes."
            raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", detail, "$")
        yield chunk
