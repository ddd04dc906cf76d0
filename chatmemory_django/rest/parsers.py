"""Bodies in and out: JSON by msgspec, bounded and strict, and JSON lines."""

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
from chatmemory_django.bounds import BoundsError, check_bounds
from chatmemory_django.rest.problems import Problem, invalid


class ChunkedRequest(Request):
    """A request whose body may come in chunks, and so without a ``Content-Length``."""

    def _load_stream(self) -> None:
        request = self._request
        if request.META.get("CONTENT_LENGTH") or "chunked" not in request.META.get("HTTP_TRANSFER_ENCODING", ""):
            super()._load_stream()  # type: ignore[misc]
        elif isinstance(request, ASGIRequest):
            self._stream = cast(BinaryIO, request)
        elif request.META.get("wsgi.input_terminated"):
            self._stream = request.META["wsgi.input"]  # Django's own stream ends where the length says, at 0
        else:
            raise Problem(
                HTTPStatus.LENGTH_REQUIRED, "length_required", "This server needs the Content-Length of a body."
            )


class JSONParser(BaseParser):
    """JSON, no larger, deeper or longer than the settings allow."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """See ``BaseParser.parse``."""
        limits = conf.rest()
        body = b"".join(bounded(stream, limits["MAX_BODY_BYTES"]))
        try:
            value = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
            reason = str(exc) if isinstance(exc, msgspec.MsgspecError) else "It is nested too deeply, or not UTF-8."
            raise invalid("$", f"The body is not JSON: {reason}", "parse_error") from None
        try:
            check_bounds(value, limits["MAX_JSON_DEPTH"], limits["MAX_TEXT_LENGTH"])
        except BoundsError as exc:
            raise exceptions.ValidationError({exc.where: [exc.reason]}) from None
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
        return b"" if data is None else msgspec.json.encode(data, enc_hook=str)


class OneKind(BaseContentNegotiation):
    """There is one kind of response, whatever the client would rather have."""

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


def bounded(stream: IO[bytes], limit: int) -> Iterator[bytes]:
    """Yield *stream* piece by piece; 413 if it has more than *limit* bytes."""
    size = 0
    while chunk := stream.read(64 * 1024):
        size += len(chunk)
        if size > limit:
            detail = f"The body has more than {limit} bytes."
            raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", detail, "$")
        yield chunk
