"""Who may do what."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from django.db.models import QuerySet
from django.utils.module_loading import import_string
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from chatmemory_django import conf
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

Verb: TypeAlias = Literal["view", "change", "delete"]
"""What somebody wants to do with a conversation, in the words of Django's model permissions."""

ALL = frozenset(MessageType)
SPOKEN = frozenset({MessageType.USER, MessageType.AI, MessageType.TOOL_EXECUTION_RESULT})
"""What people, models and tools say. Everything else is between the site and the model."""

FEEDBACK = "feedback"
"""The key in the metadata of a message under which people rate it."""


class AccessPolicy:
    """
    Owners read what was said in their conversations and add what a user says; permissions allow for more.

    Extend this for other rules, those of a site with tenants for example, and name it in
    ``CHATMEMORY["REST"]["ACCESS_POLICY"]`` or in the ``policy_class`` of a view.
    """

    authentication_classes: Sequence[type[BaseAuthentication]] | None = None
    """How users are authenticated; None for the site's own way, DRF's ``DEFAULT_AUTHENTICATION_CLASSES``."""

    def is_allowed(self, request: Request) -> bool:
        """Whether the user may use the API at all; if not, the answer is 401 or 403."""
        return bool(request.user and request.user.is_authenticated)

    def sees_everybody(self, request: Request, verb: Verb) -> bool:
        """Whether the user may do *verb* to everybody's conversations: staff who may view, and do so."""
        return all(self._is_staff_with(request, f"{each}_conversation") for each in {"view", verb})

    def conversations(self, request: Request, verb: Verb) -> QuerySet[Conversation]:
        """The conversations to which the user may do *verb*. Those that the user may not view are 404."""
        if self.sees_everybody(request, verb):
            return Conversation.objects.all()
        return Conversation.objects.owned_by(request.user)

    def is_own(self, request: Request, conversation: Conversation) -> bool:
        """Whether *conversation*, which the user may view, is the user's own, and not only seen as staff."""
        return conversation.owner_id == request.user.pk or not self.sees_everybody(request, "view")

    def owner_of_new(self, request: Request) -> AbstractBaseUser | None:
        """The owner of a new conversation."""
        return request.user  # type: ignore[return-value]  # is_allowed() has checked

    def readable_types(self, request: Request, *, own: bool) -> Collection[MessageType]:
        """The types of message whose content and metadata the user may read, in the user's *own* or in others'."""
        if self._is_staff_with(request, "view_message_text"):
            return ALL
        return SPOKEN if own else frozenset()

    def writable_types(self, request: Request) -> Collection[MessageType]:
        """The types of message that the user may add."""
        return ALL if request.user.has_perm("chatmemory.add_message") else {MessageType.USER}

    def removable_types(self, request: Request) -> Collection[MessageType]:
        """
        The types of message that the user may take out of a history: none without a permission.

        Whoever takes out a question makes the answer one to another. A branch that one has left stays to be read.
        """
        return ALL if request.user.has_perm("chatmemory.delete_message") else frozenset()

    def writable_metadata(self, request: Request, type: MessageType) -> Collection[str] | None:
        """The keys that the user may change in the metadata of a message of *type*; None for all."""
        return None if type in self.writable_types(request) else {FEEDBACK}

    def is_server(self, request: Request) -> bool:
        """
        Whether the user is a program of the site's: by OpenAI's API, it reads all of its own, and is not throttled.

        That is who may add messages of every type, and so has written the prompt that others must not read.
        """
        return ALL.issubset(self.writable_types(request))

    def may_set_memory(self, request: Request) -> bool:
        """Whether the user may replace memories."""
        return request.user.has_perm("chatmemory.set_conversation")

    def may_import(self, request: Request) -> bool:
        """Whether the user may import conversations."""
        return request.user.has_perm("chatmemory.import_conversation")

    def may_export(self, request: Request, *, own: bool) -> bool:
        """Whether the user may export the messages of the readable types."""
        return own or self._is_staff_with(request, "export_conversation")

    def may_name(self, request: Request) -> bool:
        """Whether the user may choose memory ids that are not UUIDs, and so meet the site's own."""
        return bool(getattr(request.user, "is_staff", False))

    def _is_staff_with(self, request: Request, permission: str) -> bool:
        user = request.user
        return bool(getattr(user, "is_staff", False)) and user.has_perm(f"chatmemory.{permission}")


class IsAllowed(BasePermission):
    """Allows what ``AccessPolicy.is_allowed`` does."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        """See ``BasePermission.has_permission``."""
        policy: AccessPolicy = view.policy  # type: ignore[attr-defined]
        return policy.is_allowed(request)


def access_policy() -> AccessPolicy:
    """The policy that the settings name."""
    policy: AccessPolicy = import_string(conf.rest()["ACCESS_POLICY"])()
    return policy
