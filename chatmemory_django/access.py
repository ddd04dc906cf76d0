"""Access control: which users may do what."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from django.apps import apps
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.module_loading import import_string

from chatmemory_django import conf
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from rest_framework.authentication import BaseAuthentication  # a site may chat without DRF

Verb: TypeAlias = Literal["view", "change", "delete"]
"""What a user wants to do with a conversation, named like Django's model permissions."""

ALL = frozenset(MessageType)
SPOKEN = frozenset({MessageType.USER, MessageType.AI, MessageType.TOOL_EXECUTION_RESULT})
"""Messages of users, models and tools. All others are between the site and the model."""

FEEDBACK = "feedback"
"""The key in the metadata of a message that holds the user's rating of it."""


class AccessPolicy:
    """
    The default policy: owners read their conversations and add user messages; permissions allow more.

    Subclass it for other rules, for example those of a site with tenants, and set the subclass in
    ``CHATMEMORY["REST"]["ACCESS_POLICY"]`` or as the ``policy_class`` of a view.
    """

    authentication_classes: Sequence[type[BaseAuthentication]] | None = None
    """Authentication classes; None for the site's own, DRF's ``DEFAULT_AUTHENTICATION_CLASSES``."""

    def is_allowed(self, request: HttpRequest) -> bool:
        """Return whether the user may use the API at all; if not, the response is 401 or 403."""
        return bool(request.user and request.user.is_authenticated)

    def sees_everybody(self, request: HttpRequest, verb: Verb) -> bool:
        """Return whether the user may do *verb* to all conversations: staff with this and the view permission."""
        return all(self._is_staff_with(request, f"{each}_conversation") for each in {"view", verb})

    def conversations(self, request: HttpRequest, verb: Verb) -> QuerySet[Conversation]:
        """Return the conversations to which the user may do *verb*. Those that the user may not view are 404."""
        if self.sees_everybody(request, verb):
            return Conversation.objects.all()
        return Conversation.objects.owned_by(request.user)

    def is_own(self, request: HttpRequest, conversation: Conversation) -> bool:
        """Return whether *conversation*, which the user may view, counts as the user's own."""
        return conversation.owner_id == request.user.pk or not self.sees_everybody(request, "view")

    def owner_of_new(self, request: HttpRequest) -> AbstractBaseUser | None:
        """Return the owner of a new conversation."""
        return request.user  # type: ignore[return-value]  # is_allowed() has checked

    def readable_types(self, request: HttpRequest, *, own: bool) -> Collection[MessageType]:
        """Return the types of messages that the user may read, with metadata, in *own* or others' conversations."""
        if self._is_staff_with(request, "view_message_text"):
            return ALL
        return SPOKEN if own else frozenset()

    def writable_types(self, request: HttpRequest) -> Collection[MessageType]:
        """Return the types of messages that the user may add."""
        return ALL if request.user.has_perm("chatmemory.add_message") else {MessageType.USER}

    def removable_types(self, request: HttpRequest) -> Collection[MessageType]:
        """
        Return the types of messages that the user may remove from a history: none without a permission.

        A user who removes a question makes its answer look like the answer to another one. To correct a question,
        users edit it, which keeps the original on another branch.
        """
        return ALL if request.user.has_perm("chatmemory.delete_message") else frozenset()

    def writable_metadata(self, request: HttpRequest, type: MessageType) -> Collection[str] | None:
        """Return the keys that the user may change in the metadata of messages of *type*; None for all."""
        return None if type in self.writable_types(request) else {FEEDBACK}

    def is_server(self, request: HttpRequest) -> bool:
        """
        Return whether the user is a server of the site, which has full access to its own conversations.

        OpenAI's Conversations API lets such users read all types of messages, and does not throttle them. By default,
        these are users who may add messages of every type: they wrote the prompts that others must not read.
        """
        return ALL.issubset(self.writable_types(request))

    def may_set_memory(self, request: HttpRequest) -> bool:
        """Return whether the user may replace memories."""
        return request.user.has_perm("chatmemory.set_conversation")

    def may_import(self, request: HttpRequest) -> bool:
        """Return whether the user may import conversations."""
        return request.user.has_perm("chatmemory.import_conversation")

    def may_export(self, request: HttpRequest, *, own: bool) -> bool:
        """Return whether the user may export the messages of the readable types."""
        return own or self._is_staff_with(request, "export_conversation")

    def may_name(self, request: HttpRequest) -> bool:
        """Return whether the user may choose memory ids that are not UUIDs, which could clash with the site's own."""
        return bool(getattr(request.user, "is_staff", False))

    def _is_staff_with(self, request: HttpRequest, permission: str) -> bool:
        user = request.user
        return bool(getattr(user, "is_staff", False)) and user.has_perm(f"chatmemory.{permission}")


def access_policy() -> AccessPolicy:
    """Return an instance of the policy in the settings."""
    policy: AccessPolicy = import_string(conf.rest()["ACCESS_POLICY"])()
    return policy


def user_of_token(key: str) -> AbstractBaseUser | None:
    """Return the active user of a token of ``rest_framework.authtoken``, or None for an invalid token."""
    if not apps.is_installed("rest_framework.authtoken"):
        return None
    tokens = apps.get_model("authtoken", "Token").objects.select_related("user")
    token = tokens.filter(key=key).first() if key.isascii() and key.isprintable() else None
    return token.user if token is not None and token.user.is_active else None
