"""Error responses in the format of OpenAI's API."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from rest_framework.response import Response

from chatmemory_django.core.problems import PREFIX
from chatmemory_django.rest.problems import handle_exception

CODES = {
    "authentication_failed": "invalid_api_key",
    "not_authenticated": "invalid_api_key",
    "throttled": "rate_limit_exceeded",
}
"""The codes for which OpenAI has its own."""


def handle_openai_exception(exc: Exception, context: dict[str, Any]) -> Response | None:
    """Return the response to *exc*: the first error of ``handle_exception``'s response, in OpenAI's format."""
    response = handle_exception(exc, context)
    if response is None or response.data is None:
        return response
    problem = response.data
    error = {"path": None, "detail": problem["detail"], **next(iter(problem["errors"]), {})}
    code = problem["type"].removeprefix(PREFIX)
    response.data = {
        "error": {
            "message": error["detail"],
            "type": "server_error" if response.status_code >= 500 else "invalid_request_error",
            "param": None if error["path"] is None else error["path"].removeprefix("$").lstrip(".?") or None,
            "code": CODES.get(code, code),
        }
    }
    response.content_type = "application/json"
    if response.status_code == HTTPStatus.CONFLICT:
        response["x-should-retry"] = "false"  # OpenAI's clients would: theirs is about another request at the time
    return response
