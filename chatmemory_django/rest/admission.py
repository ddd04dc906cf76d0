"""Who may send a request to DRF's views, and how often."""

from __future__ import annotations

from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from chatmemory_django import conf
from chatmemory_django.access import AccessPolicy, client_address, seconds_to_wait


class IsAllowed(BasePermission):
    """DRF's permission class for ``AccessPolicy.is_allowed``."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        policy: AccessPolicy = view.policy  # type: ignore[attr-defined]
        return policy.is_allowed(request)


class ScopedThrottle(BaseThrottle):
    """
    A limit on the rate of requests of each user, or of each IP address, in the view's ``throttle_scope``.

    The default scope is ``read`` or ``write``. The rates are in ``CHATMEMORY["REST"]["THROTTLE_RATES"]``.
    """

    _wait = 0

    def allow_request(self, request: Request, view: APIView) -> bool:
        """See ``BaseThrottle.allow_request``."""
        scope: str = view.throttle_scope or ("read" if request.method in SAFE_METHODS else "write")  # type: ignore[attr-defined]
        user = request.user
        ident = user.pk if user and user.is_authenticated else self.get_ident(request)
        self._wait = seconds_to_wait(f"rest_{scope}_{ident}", conf.rest().THROTTLE_RATES.get(scope))
        return not self._wait

    def wait(self) -> int:
        """See ``BaseThrottle.wait``."""
        return self._wait

    def get_ident(self, request: Request) -> str:
        """See ``client_address``. By default, DRF trusts all of ``X-Forwarded-For``."""
        return client_address(request._request)
