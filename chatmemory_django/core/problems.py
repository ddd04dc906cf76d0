"""Errors as problem details (RFC 9457), in the one form that all faces have."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

MEDIA_TYPE = "application/problem+json"

PREFIX = "urn:chatmemory:"
"""The prefix of the ``type`` of a problem; a machine-readable code follows."""


def problem(status: int, code: str, detail: str, errors: Sequence[dict[str, str]] = ()) -> dict[str, Any]:
    """Return the problem details of an error; each of *errors* has a ``path``, a ``code`` and a ``detail``."""
    title = HTTPStatus(status).phrase
    return {"type": f"{PREFIX}{code}", "title": title, "status": int(status), "detail": detail, "errors": [*errors]}
