"""Error responses in the format of OpenAI's API."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any
from uuid import uuid4

from django.http import HttpRequest, JsonResponse
from rest_framework.response import Response

from chatmemory_django.access import NotAllowedError
from chatmemory_django.core.problems import PREFIX
from chatmemory_django.rest.problems import handle_exception

CODES = {
    "authentication_failed": "invalid_api_key",
    "not_authenticated": "invalid_api_key",
    "throttled": "rate_limit_exceeded",
}
"""The codes for which OpenAI has its own."""

STATUS_CODES = {
    401: "invalid_api_key",
    403: "permission_denied",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "request_too_large",
    415: "unsupported_file",
    422: "content_filter",
    429: "rate_limit_exceeded",
    503: "overloaded",
}
"""The codes of what the chat refuses, by status."""

_PARAM = re.compile(r"\$\.([^:\s]{1,300})(?::| )")


class RefusedRequestError(NotAllowedError):
    """A refused request; *param* is the path of the invalid value, *code* OpenAI's name of the error."""

    def __init__(
        self, status: int, text: str, *, param: str | None = None, code: str | None = None, **headers: str
    ) -> None:
        super().__init__(status, text, **headers)
        self.param = param
        self.code = code


def shown_error(refused: NotAllowedError) -> dict[str, Any]:
    """Return what is *refused* as OpenAI's clients read errors."""
    param, code = (refused.param, refused.code) if isinstance(refused, RefusedRequestError) else (None, None)
    text = str(refused)
    if param is None and (found := _PARAM.match(text)):
        param = found[1]
    kind = "server_error" if refused.status >= 500 else "invalid"
    return _error(refused.status, text, param, code or STATUS_CODES.get(refused.status, kind))


def _error(status: int, text: str, param: str | None, code: str) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"message": text, "type": kind, "param": param, "code": code}


def in_openai_format(request: HttpRequest, refused: NotAllowedError) -> JsonResponse:
    """Return the response to *request*, which is *refused*; what another answer in progress refuses is tried again."""
    response = JsonResponse({"error": shown_error(refused)}, status=refused.status, headers=refused.headers)
    response["x-request-id"] = new_request_id()
    if refused.status == HTTPStatus.CONFLICT and "Retry-After" not in refused.headers:
        response["x-should-retry"] = "false"
    return response


def new_request_id() -> str:
    """Return an id that OpenAI's clients show."""
    return f"req_{uuid4().hex}"


def handle_openai_exception(exc: Exception, context: dict[str, Any]) -> Response | None:
    """Return the response to *exc*: the first error of ``handle_exception``'s response, in OpenAI's format."""
    response = handle_exception(exc, context)
    if response is None or response.data is None:
        return response
    problem = response.data
    error = {"path": None, "detail": problem["detail"], **next(iter(problem["errors"]), {})}
    code = problem["type"].removeprefix(PREFIX)
    param = None if error["path"] is None else error["path"].removeprefix("$").lstrip(".?") or None
    response.data = {"error": _error(response.status_code, error["detail"], param, CODES.get(code, code))}
    response.content_type = "application/json"
    if response.status_code == HTTPStatus.CONFLICT:
        response["x-should-retry"] = "false"  # OpenAI's clients would: theirs is about another request at the time
    return response
