"""
OpenAI's Conversations API. OpenAI's clients work unchanged, except for their ``base_url`` and API key.

The site's access policy decides what users may do. Adding and reading messages of models and of the site itself
requires permissions, which a site grants to the users of its servers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from django.db import router, transaction
from django.http import Http404
from msgspec import structs
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle

from chatmemory_django.access import AccessPolicy, token_in
from chatmemory_django.contrib.openai_api.conversations import CONVERSATION_ITEMS
from chatmemory_django.contrib.openai_api.errors import handle_openai_exception, new_request_id
from chatmemory_django.contrib.openai_api.items import ConversationItems, Item, ItemNotFoundError
from chatmemory_django.contrib.openai_api.retries import is_retry
from chatmemory_django.contrib.openai_api.serializers import (
    IncludeQuery,
    ItemsQuery,
    NewItem,
    NewItemsSerializer,
    NewMetadataSerializer,
    NewOpenAIConversationSerializer,
)
from chatmemory_django.db.moments import aware
from chatmemory_django.formats.verbatim import to_new_message
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation
from chatmemory_django.operations import admin_log
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.rest.messages import refuse_types
from chatmemory_django.rest.problems import InvalidQuery, invalid, protected
from chatmemory_django.rest.serializers import json_size
from chatmemory_django.rest.views import ChatMemoryView, row_of

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser


class BearerAuthentication(BaseAuthentication):
    """Authentication by ``Authorization: Bearer`` or ``Token`` with a token of *policy*."""

    def __init__(self, policy: AccessPolicy) -> None:
        self.policy = policy

    def authenticate(self, request: Request) -> tuple[AbstractBaseUser, None] | None:
        if not request.headers.get("Authorization"):
            return None
        key = token_in(request._request)
        user = None if key is None else self.policy.user_of_token(key)
        if user is None:
            raise exceptions.AuthenticationFailed("The key is invalid; send a valid token as Authorization: Bearer.")
        return user, None

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class OpenAIView(ChatMemoryView):
    """A view of the Conversations API. It is not in the site's OpenAPI schema, since OpenAI documents it."""

    schema: Any = None
    filter_backends: Any = ()
    query_serializers = dict.fromkeys(("get", "post", "delete"), IncludeQuery)

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        return handle_openai_exception

    def get_authenticators(self) -> list[BaseAuthentication]:
        """See ``APIView.get_authenticators``. Only tokens are accepted, never a session."""
        return [BearerAuthentication(self.policy)]

    def get_throttles(self) -> list[BaseThrottle]:
        """See ``APIView.get_throttles``. Servers send the requests of all their users, so they are not throttled."""
        return [] if self.policy.is_server(self.request) else super().get_throttles()

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """See ``APIView.finalize_response``. OpenAI's clients expose the id of the request."""
        response = super().finalize_response(request, response, *args, **kwargs)
        response["x-request-id"] = new_request_id()
        return response

    def shown(self, conversation: Conversation) -> dict[str, Any]:
        """Return *conversation* in OpenAI's format. Clients keep titles in the metadata, so it is read like texts."""
        return {
            "id": conversation.memory_id,
            "object": "conversation",
            "created_at": int(aware(conversation.created_at).timestamp()),
            "metadata": _pairs(conversation) if self.types_in(conversation) else {},
        }

    def readable_items(self, conversation: Conversation) -> ConversationItems:
        """Return the items of *conversation* that the user may read."""
        reads_all = self.policy.is_server(self.request) and self.policy.is_own(self.request, conversation)
        return ConversationItems(conversation, MessageType if reads_all else self.readable_types)

    def add(self, conversation: Conversation, new: Sequence[NewItem]) -> list[dict[str, Any]]:
        """Add items to the locked *conversation* and return them as they are shown; 400 or 403 if they are refused."""
        if not new:
            return []
        messages = [each.new.message for each in new]
        refuse_types(messages, self.policy.writable_types(self.request), "$.items[{}]")
        items = ConversationItems(conversation, MessageType)
        if is_retry(self.request):
            # The clients send no idempotency key, so a retry is recognized by the items at the end.
            there = items.ends_with([each.item for each in new])
            if there is not None:
                return items.of(there)
        originals = (each.new.verbatim for each in new)
        self.check_quota(conversation, messages, sum(len(each) for each in originals if each is not None))
        ids = [each.item.get("id") for each in new]
        for index, item_id in enumerate(ids):
            if item_id is not None and items.has(item_id):
                raise invalid(f"$.items[{index}].id", "The conversation already has an item with this id.")
        given = [each for each in ids if each is not None]
        # Ids of items that were deleted, or that are on another branch.
        taken = set(
            conversation.messages.filter(client_message_id__in=given).values_list("client_message_id", flat=True)
        )
        named = (
            structs.replace(each.new, client_message_id=None if item_id in taken else item_id)
            for each, item_id in zip(new, ids, strict=True)
        )
        try:
            sequences = get_chat_memory(conversation.memory_id).add(*named, repeats=True)
        except ValueError as exc:
            raise invalid("$.items", str(exc)) from None
        self.log(conversation, admin_log.added(sequences))
        conversation.refresh_from_db()
        return items.of(sequences)


class ConversationsView(OpenAIView):
    """The collection of conversations."""

    request_serializers = {"": NewOpenAIConversationSerializer}  # noqa: RUF012

    def post(self, request: Request) -> Response:
        """Create a conversation, optionally with items."""
        wanted, owner = self.body, self.policy.owner_of_new(request)
        using = router.db_for_write(Conversation)
        items = wanted.get("items") or []
        with transaction.atomic(using=using):
            metadata = wanted.get("metadata") or {}
            owner_id = None if owner is None else owner.pk
            conversation = Conversation(memory_id=f"conv_{token_hex(24)}", owner_id=owner_id, metadata=metadata)
            self.check_quota(conversation, size=json_size(metadata))
            conversation.save(using=using, force_insert=True)
            self.add(conversation, items)
        return Response(self.shown(conversation))


class ConversationView(OpenAIView):
    """A conversation."""

    request_serializers = {"": NewMetadataSerializer}  # noqa: RUF012

    def get(self, request: Request, memory_id: str) -> Response:
        """Retrieve a conversation."""
        return Response(self.shown(self.find()))

    def post(self, request: Request, memory_id: str) -> Response:
        """Replace the metadata of a conversation, as far as this API shows it."""
        metadata = self.body["metadata"] or {}
        with self.changing("change", grows=True) as conversation:
            shown = _pairs(conversation)
            self.check_quota(conversation, size=max(json_size(metadata) - json_size(shown), 0))
            hidden = {key: value for key, value in conversation.metadata.items() if key not in shown}
            conversation.metadata = {**hidden, **metadata}
            conversation.save(update_fields=["metadata"])
            self.log(conversation, admin_log.changed(["metadata"]))
            return Response(self.shown(conversation))

    def delete(self, request: Request, memory_id: str) -> Response:
        """Erase a conversation."""
        with self.changing("delete") as conversation:
            _receipt, held = self.erase(row_of(conversation))
            if held:
                raise protected()
        self.conversation = None
        return Response({"id": memory_id, "object": "conversation.deleted", "deleted": True})


class ItemsView(OpenAIView):
    """The items of a conversation."""

    request_serializers = {"": NewItemsSerializer}  # noqa: RUF012
    query_serializers = {**OpenAIView.query_serializers, "get": ItemsQuery}  # noqa: RUF012

    def get(self, request: Request, memory_id: str) -> Response:
        """List the items, by default the newest first."""
        query = self.query or ItemsQuery().run_validation({})
        items = self.readable_items(self.find())
        try:
            page = items.page(query.get("after"), query["limit"], is_descending=query["order"] == "desc")
        except ItemNotFoundError:
            raise InvalidQuery({"after": "The conversation has no item with this id."}) from None
        return Response(_listed(page.items, has_more=page.has_more))

    def post(self, request: Request, memory_id: str) -> Response:
        """Add items at the end, all or none."""
        new = self.body["items"]
        with self.changing("write", grows=True) as conversation:
            return Response(_listed(self.add(conversation, new), has_more=False))


class ItemView(OpenAIView):
    """An item of a conversation."""

    def get(self, request: Request, memory_id: str, item_id: str) -> Response:
        """Retrieve an item."""
        return Response(self._find(self.find(), item_id).shown)

    def delete(self, request: Request, memory_id: str, item_id: str) -> Response:
        """Remove an item from the conversation, and return the conversation."""
        with self.changing("remove") as conversation:
            item = self._find(conversation, item_id)
            rest = [] if item.of == 1 else self._rest(conversation, item)
            self.remove(conversation, item.sequence)
            if rest:
                messages = (to_new_message(each, CONVERSATION_ITEMS, "It").message for each in rest)
                get_chat_memory(conversation.memory_id).add(*messages)
                conversation.refresh_from_db()
            return Response(self.shown(conversation))

    def _rest(self, conversation: Conversation, item: Item) -> list[dict[str, Any]]:
        """Return the other items of the message of *item*; 400 if they could not be added again in its place."""
        if item.sequence != conversation.history().order_by("sequence").values_list("sequence", flat=True).last():
            detail = f"The item is one of {item.of} in a message; such items can only be deleted from the last one."
            raise invalid("item_id", detail)
        shown = self.readable_items(conversation).of([item.sequence])
        return shown[: item.position] + shown[item.position + 1 :]

    def _find(self, conversation: Conversation, item_id: str) -> Item:
        try:
            return self.readable_items(conversation).find(item_id)
        except ItemNotFoundError:
            raise Http404 from None


class NotFoundView(OpenAIView):
    """All paths that the API does not have."""

    permission_classes: Any = ()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        raise Http404


def _pairs(conversation: Conversation) -> dict[str, str]:
    """Return the part of the metadata that this API can show."""
    return {key: value for key, value in conversation.metadata.items() if isinstance(value, str)}


def _listed(items: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    return {"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": has_more}
