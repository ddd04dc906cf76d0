"""Who may send a request to DRF's views: its permission class for the access policy."""

from __future__ import annotations

from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from chatmemory_django.access import AccessPolicy


class IsAllowed(BasePermission):
    """DRF's permission class for ``AccessPolicy.is_allowed``."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        policy: AccessPolicy = view.policy  # type: ignore[attr-defined]
        return policy.is_allowed(request)
