"""The responses to requests that the chat refuses: problem details for clients that ask for JSON, else a short text."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse

from chatmemory_django.access import NotAllowedError
from chatmemory_django.core.problems import MEDIA_TYPE, problem

CODES = {
    400: "invalid",
    401: "not_authenticated",
    403: "permission_denied",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "too_large",
    415: "unsupported_media_type",
    422: "rejected",
    429: "throttled",
    500: "error",
    502: "model_failed",
    503: "unavailable",
    504: "timeout",
}
"""The codes of problems by their status; those of the REST API, where it has such a problem."""


def asks_for_json(request: HttpRequest) -> bool:
    """Return whether the client of *request* names JSON, or problem details, in its ``Accept``."""
    accepted = request.headers.get("Accept", "")
    return "application/json" in accepted or MEDIA_TYPE in accepted


def refusal(request: HttpRequest, refused: NotAllowedError, **more: Any) -> HttpResponse:
    """Return the response to *request*, which is *refused*; problem details have *more* as well."""
    if not asks_for_json(request):
        return refused.response()
    text = str(refused)
    code = CODES.get(refused.status, "error")
    path, found, reason = text.partition(": ")
    is_in_body = bool(found) and path.startswith("$") and " " not in path
    errors = [{"path": path, "code": code, "detail": reason}] if is_in_body else []
    described = problem(refused.status, code, text, errors)
    return JsonResponse(described | more, status=refused.status, headers=refused.headers, content_type=MEDIA_TYPE)
