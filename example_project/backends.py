"""How people sign in."""

from typing import Any

from django.conf import settings
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.http import HttpRequest

DEMO = "demo"
"""The user name of the demo user, and the password, which everybody knows."""


class DemoOnlyBackend(ModelBackend):
    """Django's, but that without DEBUG nobody signs in with the password of the demo."""

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **kwargs: Any
    ) -> User | None:
        """See ``ModelBackend.authenticate``."""
        if not settings.DEBUG and password == DEMO:
            return None
        found: Any = super().authenticate(request, username, password, **kwargs)
        return found  # type: ignore[no-any-return]
