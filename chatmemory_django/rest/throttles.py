"""Throttling of requests."""

from __future__ import annotations

from typing import Any

from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView

from chatmemory_django import conf


class ScopedThrottle(SimpleRateThrottle):
    """
    A limit on the rate of requests of each user, or of each IP address, in the view's ``throttle_scope``.

    The default scope is ``read`` or ``write``. The rates are in ``CHATMEMORY["REST"]["THROTTLE_RATES"]``.
    """

    cache_format = "throttle_chatmemory_%(scope)s_%(ident)s"

    def __init__(self) -> None:
        # The scope depends on the request.
        pass

    def allow_request(self, request: Request, view: APIView) -> bool:
        """See ``BaseThrottle.allow_request``."""
        scope: str | None = view.throttle_scope  # type: ignore[attr-defined]
        self._set_scope(scope or ("read" if request.method in SAFE_METHODS else "write"))
        return super().allow_request(request, view)

    def get_cache_key(self, request: Request, view: APIView) -> str:
        """See ``SimpleRateThrottle.get_cache_key``."""
        user = request.user
        ident = user.pk if user and user.is_authenticated else self.get_ident(request)
        return self.cache_format % {"scope": self.scope, "ident": ident}

    def get_ident(self, request: Request) -> str:
        """
        Return the IP address of the client, behind ``NUM_PROXIES`` proxies that append to ``X-Forwarded-For``.

        By default, DRF trusts the whole header, so clients could evade throttling by sending a different one each time.
        """
        proxies: int = conf.rest()["NUM_PROXIES"]
        addresses = [each.strip() for each in request.META.get("HTTP_X_FORWARDED_FOR", "").split(",") if each.strip()]
        remote: str = request.META.get("REMOTE_ADDR", "")
        return addresses[-min(proxies, len(addresses))] if proxies and addresses else remote

    def _set_scope(self, scope: str) -> None:
        self.scope = scope
        self.rate = conf.rest()["THROTTLE_RATES"].get(scope)
        self.num_requests, self.duration = self.parse_rate(self.rate)


class SignInThrottle(ScopedThrottle):
    """A limit on failed sign-in attempts of each IP address, in the scope ``sign_in``; successes do not count."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Return whether an attempt is left, without counting one."""
        self._set_scope("sign_in")
        self.key = self.cache_format % {"scope": self.scope, "ident": self.get_ident(request)}
        if self.rate is None:
            return True
        self.now = self.timer()
        self.history: list[Any] = [
            each for each in self.cache.get(self.key, []) if each > self.now - (self.duration or 0)
        ]
        return len(self.history) < (self.num_requests or 0)

    def note_failure(self) -> None:
        """Count a failed attempt."""
        if self.rate is not None:
            self.throttle_success()  # the base class's name for counting a request
