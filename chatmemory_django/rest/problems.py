"""Error responses: problem details of RFC 9457, with all errors of a request."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.core.signals import got_request_exception
from django.db.models import ProtectedError, RestrictedError
from django.http import Http404, HttpRequest
from django.utils.log import log_response
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.views import set_rollback

from chatmemory_django.core.problems import MEDIA_TYPE, problem
from chatmemory_django.db.row_codec import EncryptedError
from chatmemory_django.models.message_codec import StorageError
from chatmemory_django.security import report_refusal


class Problem(exceptions.APIException):
    """
    An error response with *status* and a machine-readable *code*; *detail* explains what is wrong at *path*.

    With a *reason*, that is the explanation at *path*, and *detail* only sums it up.
    """

    def __init__(
        self, status: HTTPStatus, code: str, detail: str, path: str | None = None, reason: str | None = None
    ) -> None:
        super().__init__(detail, code)
        self.status_code = status
        self.path = path
        self.reason = detail if reason is None else reason


class FieldName(str):
    """
    The name of a field or a parameter that has errors.

    This distinguishes it from the key of errors of a whole object, for which a site may have chosen the same name.
    """

    __slots__ = ()


class InvalidQuery(exceptions.ValidationError):
    """Invalid query parameters; the detail is a dict of errors by name."""


class NotModified(exceptions.APIException):
    """The client's copy is current: its ETag still matches."""

    status_code = HTTPStatus.NOT_MODIFIED


def invalid(path: str, detail: str, code: str = "invalid") -> Problem:
    """Return a 400 for an error at *path*, such as ``$.title``, ``?type``, ``line 3`` or ``If-Match``."""
    return Problem(HTTPStatus.BAD_REQUEST, code, detail, path)


def protected() -> Problem:
    """Return a 409 for what must not be erased."""
    detail = "Other objects of the site protect this: nothing of it can be erased."
    return Problem(HTTPStatus.CONFLICT, "protected", detail)


def handle_exception(exc: Exception, context: dict[str, Any]) -> Response | None:
    """Return the response to *exc*; see DRF's ``EXCEPTION_HANDLER``. Unexpected errors are logged as Django does."""
    if isinstance(exc, NotModified):
        return Response(status=exc.status_code)
    if isinstance(exc, Http404):
        exc = exceptions.NotFound()
    elif isinstance(exc, PermissionDenied):
        exc = exceptions.PermissionDenied()
    elif isinstance(exc, ProtectedError | RestrictedError):
        exc = protected()
    elif isinstance(exc, EncryptedError):
        exc = Problem(HTTPStatus.BAD_REQUEST, "encrypted", str(exc), "?")
    elif isinstance(exc, StorageError):
        detail = "The files of messages cannot be read or stored now; nothing was changed. Try again later."
        exc = Problem(HTTPStatus.SERVICE_UNAVAILABLE, "storage", detail)
    elif not isinstance(exc, exceptions.APIException):
        if settings.DEBUG:
            return None
        return _unexpected(exc, context["request"]._request)
    set_rollback()
    report_refusal(context["request"]._request, exc.status_code, str(exc.detail))
    return _response(exc)


def errors(detail: Any, path: str = "$") -> Iterator[dict[str, str]]:
    """Yield the errors in the *detail* of a ``ValidationError``, each with its path."""
    if isinstance(detail, dict):
        for key, each in detail.items():
            yield from errors(each, _joined(path, key))
    elif isinstance(detail, (list, tuple)):
        # Either several errors of one value, or the errors of each item of a list.
        for index, each in enumerate(detail):
            yield from errors(each, f"{path}[{index}]" if isinstance(each, (dict, list)) else path)
    else:
        yield {"path": path, "code": getattr(detail, "code", "invalid"), "detail": str(detail)}


def _joined(path: str, key: str | int) -> str:
    """Return the path of *key* below *path*; a key may be a path itself, from the root or relative to *path*."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if key == api_settings.NON_FIELD_ERRORS_KEY and not isinstance(key, FieldName):
        return path
    if key.startswith("$"):
        return key
    return f"{path}{key}" if path == "?" or key.startswith("[") else f"{path}.{key}"


def _response(exc: exceptions.APIException) -> Response:
    return Response(_described(exc), exc.status_code, headers=_headers(exc), content_type=MEDIA_TYPE, exception=True)


def _unexpected(exc: Exception, request: HttpRequest) -> Response:
    set_rollback()
    response = _response(exceptions.APIException("An unexpected error occurred on the server."))
    # As Django does for exceptions in views: the test client and error trackers receive this signal.
    got_request_exception.send(sender=None, request=request)
    log_response("Internal Server Error: %s", request.path, response=response, request=request, exception=exc)
    return response


def _described(exc: exceptions.APIException) -> dict[str, Any]:
    if isinstance(exc, exceptions.ValidationError):
        found = list(errors(exc.detail, "?" if isinstance(exc, InvalidQuery) else "$"))
        code, detail = "invalid", "The request is invalid; see errors."
    else:
        code, detail = str(exc.get_codes()), str(exc.detail)
        path = getattr(exc, "path", None)
        found = [] if path is None else [{"path": path, "code": code, "detail": getattr(exc, "reason", detail)}]
    example = getattr(exc, "example", None)
    return problem(exc.status_code, code, detail, found) | ({} if example is None else {"example": example})


def _headers(exc: exceptions.APIException) -> dict[str, str]:
    headers = {}
    if auth_header := getattr(exc, "auth_header", None):
        headers["WWW-Authenticate"] = auth_header
    if wait := getattr(exc, "wait", None):
        headers["Retry-After"] = str(int(wait))
    return headers
