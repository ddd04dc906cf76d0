"""Throttling of requests."""

from __future__ import annotations

from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from chatmemory_django import conf
from chatmemory_django.access import seconds_to_wait


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
        return self._allows(scope, ident)

    def wait(self) -> int:
        """See ``BaseThrottle.wait``."""
        return self._wait

    def get_ident(self, request: Request) -> str:
        """
        Return the IP address of the client, behind ``NUM_PROXIES`` proxies that append to ``X-Forwarded-For``.

        By default, DRF trusts the whole header, so clients could evade throttling by sending a different one each time.
        """
        proxies: int = conf.rest()["NUM_PROXIES"]
        addresses = [each.strip() for each in request.META.get("HTTP_X_FORWARDED_FOR", "").split(",") if each.strip()]
        remote: str = request.META.get("REMOTE_ADDR", "")
        return addresses[-min(proxies, len(addresses))] if proxies and addresses else remote

    def _allows(self, scope: str, ident: object, *, counts: bool = True) -> bool:
        self._wait = seconds_to_wait(f"rest_{scope}_{ident}", conf.rest()["THROTTLE_RATES"].get(scope), counts=counts)
        return not self._wait


class SignInThrottle(ScopedThrottle):
    """A limit on failed sign-in attempts of each IP address, in the scope ``sign_in``; successes do not count."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Return whether an attempt is left, without counting one."""
        return self._allows("sign_in", self.get_ident(request), counts=False)

    def note_failure(self, request: Request) -> None:
        """Count a failed attempt."""
        self._allows("sign_in", self.get_ident(request))
