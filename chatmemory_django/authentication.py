"""DRF's authentication classes, with the tokens of the access policy. Import it only where DRF is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, QueryDict
from django.utils.translation import gettext_lazy as _
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication, SessionAuthentication, TokenAuthentication
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.settings import api_settings

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

_POLICY_S = (TokenAuthentication, SessionAuthentication)
"""The classes for what the access policy looks for by itself. Their subclasses have rules of their own."""


class PolicyTokenAuthentication(TokenAuthentication):
    """DRF's ``TokenAuthentication``, for the tokens of the access policy: ``AccessPolicy.user_of_token``."""

    def __init__(self, user_of_token: Callable[[str], AbstractBaseUser | None]) -> None:
        self.user_of_token = user_of_token

    def authenticate_credentials(self, key: str) -> tuple[AbstractBaseUser, None]:
        user = self.user_of_token(key)
        if user is None:
            raise exceptions.AuthenticationFailed(_("Invalid token."))
        return user, None


def with_bearer(
    authenticators: Iterable[Any], user_of_token: Callable[[str], AbstractBaseUser | None]
) -> list[BaseAuthentication]:
    """
    Return *authenticators* and, for each that accepts ``Authorization: Token``, one that accepts ``Bearer``.

    DRF's own class becomes one that asks *user_of_token*; a subclass of it decides for itself.
    """
    asking = [
        PolicyTokenAuthentication(user_of_token) if type(each) is TokenAuthentication else each
        for each in authenticators
    ]
    bearers = [copy(each) for each in asking if isinstance(each, TokenAuthentication)]
    for each in bearers:
        each.keyword = "Bearer"
    return [*asking, *bearers]  # last: a site's own class for Bearer, as for JWT, comes first


class SignIn:
    """How users of a Django view sign in by DRF's *classes*, None for ``DEFAULT_AUTHENTICATION_CLASSES``."""

    def __init__(self, request: HttpRequest, classes: Sequence[type[BaseAuthentication]] | None) -> None:
        found: Any = api_settings.DEFAULT_AUTHENTICATION_CLASSES if classes is None else classes
        self._authenticators = with_bearer((each() for each in found if each not in _POLICY_S), _nobody)
        self._request = Request(request, parsers=[_NoBody()], authenticators=self._authenticators)

    def user_and_auth(self) -> tuple[AbstractBaseUser, object] | None:
        """Return who sent the request, and DRF's ``request.auth``; None if it has no credentials for a class."""
        for each in self._request.authenticators or ():  # a test's force_authenticate() replaces them
            found: Any = each.authenticate(self._request)
            if found is not None and found[0].is_authenticated:
                return found  # type: ignore[no-any-return]
        return None

    def challenge(self) -> str | None:
        """Return the ``WWW-Authenticate`` of a 401. It is never that of passwords, for which browsers would ask."""
        headers = (each.authenticate_header(self._request) for each in self._authenticators)
        return next((each for each in headers if each and not each.startswith("Basic")), None)


class _NoBody(BaseParser):
    """Leaves the body to the view: checks of a CSRF token look for one in forms."""

    media_type = "*/*"

    def parse(self, stream: object, media_type: object = None, parser_context: object = None) -> QueryDict:
        return QueryDict()


def _nobody(key: str) -> None:
    """Find no user: the policy has looked for the token before."""
