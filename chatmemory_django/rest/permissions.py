"""Who may send a request to DRF's views: its permission class for the access policy, and tokens as ``Bearer``."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

from rest_framework.authentication import TokenAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from chatmemory_django.access import AccessPolicy


class IsAllowed(BasePermission):
    """DRF's permission class for ``AccessPolicy.is_allowed``."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        policy: AccessPolicy = view.policy  # type: ignore[attr-defined]
        return policy.is_allowed(request)


def with_bearer(authenticators: Sequence[Any]) -> list[Any]:
    """Return *authenticators* and, for each that accepts ``Authorization: Token``, one that accepts ``Bearer``."""
    bearers = [copy(each) for each in authenticators if isinstance(each, TokenAuthentication)]
    for each in bearers:
        each.keyword = "Bearer"
    return [*authenticators, *bearers]  # last: a site's own class for Bearer, as for JWT, comes first
