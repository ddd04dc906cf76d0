"""Who may send a request to DRF's views: its permission class for the access policy, and tokens as ``Bearer``."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext_lazy as _
from rest_framework import exceptions
from rest_framework.authentication import TokenAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from chatmemory_django.access import AccessPolicy

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser


class IsAllowed(BasePermission):
    """DRF's permission class for ``AccessPolicy.is_allowed``."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        policy: AccessPolicy = view.policy  # type: ignore[attr-defined]
        return policy.is_allowed(request)


class PolicyTokenAuthentication(TokenAuthentication):
    """DRF's ``TokenAuthentication``, for the tokens of the access policy: ``AccessPolicy.user_of_token``."""

    def __init__(self, policy: AccessPolicy) -> None:
        self.policy = policy

    def authenticate_credentials(self, key: str) -> tuple[AbstractBaseUser, None]:
        user = self.policy.user_of_token(key)
        if user is None:
            raise exceptions.AuthenticationFailed(_("Invalid token."))
        return user, None


def with_bearer(authenticators: Sequence[Any], policy: AccessPolicy) -> list[Any]:
    """
    Return *authenticators* and, for each that accepts ``Authorization: Token``, one that accepts ``Bearer``.

    DRF's own class becomes one that asks *policy*; a subclass of it decides for itself.
    """
    asking = [
        PolicyTokenAuthentication(policy) if type(each) is TokenAuthentication else each for each in authenticators
    ]
    bearers = [copy(each) for each in asking if isinstance(each, TokenAuthentication)]
    for each in bearers:
        each.keyword = "Bearer"
    return [*asking, *bearers]  # last: a site's own class for Bearer, as for JWT, comes first
