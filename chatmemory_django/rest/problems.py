"""What an error looks like, whichever it is: the problem details of RFC 9457."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from django.core.exceptions import PermissionDenied
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

MEDIA_TYPE = "application/problem+json"


class Fault(msgspec.Struct):
    """Something wrong with a request, and where in it: ``$.messages[0].text``, ``?limit``, ``line 3``."""

    path: str
    detail: str


class Problem(msgspec.Struct, omit_defaults=True):
    """What went wrong. *type* is always about:blank: the status says it."""

    title: str
    status: int
    detail: str
    errors: list[Fault] = []
    type: str = msgspec.field(default_factory=lambda: "about:blank")


class Refusal(exceptions.APIException):
    """A request that cannot be done, with the status *status*, because of *detail* at *path*."""

    def __init__(self, status: HTTPStatus, detail: str, path: str | None = None) -> None:
        super().__init__(detail)
        self.status_code = status
        self.faults = [] if path is None else [Fault(path, detail)]


def bad_request(path: str, detail: str) -> Refusal:
    """A refusal of something that is wrong at *path*."""
    return Refusal(HTTPStatus.BAD_REQUEST, detail, path)


def handle_exception(exc: Exception, context: dict[str, Any]) -> Response | None:
    """The answer to *exc*, or None if that is no fault of the request. See DRF's ``EXCEPTION_HANDLER``."""
    if isinstance(exc, Http404):
        exc = exceptions.NotFound()
    elif isinstance(exc, PermissionDenied):
        exc = exceptions.PermissionDenied()
    if not isinstance(exc, exceptions.APIException):
        return None
    headers = {}
    if auth_header := getattr(exc, "auth_header", None):
        headers["WWW-Authenticate"] = auth_header
    if wait := getattr(exc, "wait", None):
        headers["Retry-After"] = str(int(wait))
    set_rollback()
    problem = Problem(
        title=HTTPStatus(exc.status_code).phrase,
        status=int(exc.status_code),
        detail=str(exc.detail),
        errors=getattr(exc, "faults", []),
    )
    return Response(problem, status=problem.status, headers=headers, content_type=MEDIA_TYPE)
