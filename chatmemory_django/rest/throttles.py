"""How often somebody may read, write and export."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView

from chatmemory_django import conf


class ScopeThrottle(SimpleRateThrottle):
    """So many requests a time of each person, or each address, for what a view says is the scope of the request."""

    def __init__(self) -> None:
        # The rate depends on the request, so there is none to be read yet.
        pass

    def allow_request(self, request: Request, view: APIView) -> bool:
        """See ``BaseThrottle.allow_request``."""
        self.scope = view.scope_of(request)  # type: ignore[attr-defined]
        self.rate = conf.rest()["THROTTLE_RATES"].get(self.scope)
        if self.rate is None:
            return True
        self.num_requests, self.duration = self.parse_rate(self.rate)
        return super().allow_request(request, view)

    def get_cache_key(self, request: Request, view: APIView) -> str:
        """See ``SimpleRateThrottle.get_cache_key``."""
        user = request.user
        ident = user.pk if user and user.is_authenticated else self.get_ident(request)
        return self.cache_format % {"scope": f"chatmemory-{self.scope}", "ident": ident}
