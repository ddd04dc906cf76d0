"""Who may do what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from django.db.models import QuerySet
from django.utils.module_loading import import_string
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from chatmemory_django import conf
from chatmemory_django.models import Conversation

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

Verb: TypeAlias = Literal["view", "change", "delete"]
"""What somebody wants to do with a conversation, in the words of Django's model permissions."""


class AccessPolicy:
    """
    Everybody who is signed in may do everything with their own conversations.

    Staff with the model permission to view, change or delete conversations may do so with everybody's. Extend this and
    name it in ``CHATMEMORY["REST"]["ACCESS_POLICY"]`` for other rules, those of a site with tenants for example.
    """

    authentication_classes: Sequence[type[BaseAuthentication]] | None = None
    """How it is known who asks; None for the site's own way, DRF's ``DEFAULT_AUTHENTICATION_CLASSES``."""

    def is_allowed(self, request: Request) -> bool:
        """Whether who asks may use the API at all; if not, the answer is 401 or 403."""
        return bool(request.user and request.user.is_authenticated)

    def conversations(self, request: Request, verb: Verb) -> QuerySet[Conversation]:
        """The conversations to which who asks may do *verb*. What nobody may view is 404 to them."""
        user = request.user
        if getattr(user, "is_staff", False) and user.has_perm(f"chatmemory.{verb}_conversation"):
            return Conversation.objects.all()
        return Conversation.objects.owned_by(user)

    def owner_of_new(self, request: Request) -> AbstractBaseUser | None:
        """Whose a new conversation will be."""
        return request.user  # type: ignore[return-value]  # is_allowed() has seen to it


def access_policy() -> AccessPolicy:
    """The policy that the settings name."""
    policy: AccessPolicy = import_string(conf.rest()["ACCESS_POLICY"])()
    return policy
