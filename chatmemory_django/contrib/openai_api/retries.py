"""How a client lets the site know that it may have sent a request before."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from django.http import HttpRequest
from django.utils.crypto import salted_hmac

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from rest_framework.request import Request

RETRY_COUNT = "X-Stainless-Retry-Count"
"""The header in which OpenAI's clients count how often they have sent a request before."""

KEY = "Idempotency-Key"
"""The header by which a caller names a request: one with the same key is the same one."""

RETRY_SECONDS = 1800.0
"""How long after a question the same one is taken for a retry: OpenAI's clients wait for ten minutes, three times."""


def is_retry(request: HttpRequest | Request) -> bool:
    """Return whether the client of *request* has sent it before."""
    return request.headers.get(RETRY_COUNT, "0") != "0"


def key_of(request: HttpRequest, user: AbstractBaseUser) -> UUID | None:
    """Return what stands for the key of *request*: nobody but *user* can have the same one. None without a key."""
    key = request.headers.get(KEY)
    return UUID(salted_hmac(__name__, f"{user.pk}:{key}", algorithm="sha256").hexdigest()[:32]) if key else None
