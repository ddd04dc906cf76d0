"""The views that need no conversation: at the root, what there is, by name; and the search in all messages."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.apps import apps
from django.urls import NoReverseMatch, reverse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory_django.models import stored_size
from chatmemory_django.operations.searching import find_messages
from chatmemory_django.rest.pagination import RankedPagination
from chatmemory_django.rest.problems import InvalidQuery
from chatmemory_django.rest.queries import SearchQuery
from chatmemory_django.rest.serializers import HitSerializer, RootSerializer, StorageSerializer
from chatmemory_django.rest.views import ChatMemoryView

LISTED = ("conversations", "messages", "storage", "import")
"""The paths below the root that need no memory id."""


class RootView(ChatMemoryView):
    """The addresses of the API."""

    tag = "addresses"
    serializer_class: Any = RootSerializer

    @extend_schema("root_retrieve")
    def get(self, request: Request) -> Response:
        """List what there is. The address of the chat is there if the site has one."""
        root = request.path.rstrip("/")
        found = {name: f"{root}/{name}/" for name in LISTED}
        if apps.is_installed("chatmemory_django.chat"):
            found["usage"] = f"{root}/usage/"
        if (chat := chat_path()) is not None:
            found["chat"] = chat
        return Response({name: request.build_absolute_uri(path) for name, path in found.items()})


class StorageView(ChatMemoryView):
    """What the user stores."""

    tag = "usage"
    serializer_class: Any = StorageSerializer

    @extend_schema("storage_retrieve")
    def get(self, request: Request) -> Response:
        """Return how much the user stores, texts and files together, and may store."""
        return Response(
            {"stored": stored_size(request.user.pk), "limit": self.policy.max_stored(request, request.user)}
        )


class SearchView(ChatMemoryView):
    """The search in all messages of the user."""

    tag = "messages"
    serializer_class: Any = HitSerializer
    query_serializers = {"get": SearchQuery}  # noqa: RUF012
    pagination_class = RankedPagination
    filter_backends = ()
    list_actions = frozenset({""})

    @extend_schema("messages_list", responses=HitSerializer(many=True))
    def get(self, request: Request) -> Response:
        """
        Search the user's messages, the best matches first.

        Only messages that the user may read are found, on the current path of the user's own conversations. The newest
        500 matches are ranked. If nothing has all words, ask again with `match=any`.
        """
        if "search" not in self.query:
            raise InvalidQuery({"search": "It is required: the words to search for."})
        find = partial(
            find_messages,
            self.get_conversations("view"),
            self.query["search"],
            owner=request.user,
            types=self.policy.readable_types(request, own=True),
            match=self.query.get("match", "all"),
        )
        page = self.paginate_queryset(find)  # type: ignore[arg-type]  # this paginator takes a function
        return self.get_paginated_response(self.get_serializer(page, many=True).data)


def chat_path() -> str | None:
    """Return the path of ``chatmemory_django.chat.urls``; None if the site does not include them."""
    try:
        return reverse("chatmemory_chat:chat")
    except NoReverseMatch:
        return None
