"""The view at the root of the API: what there is, by name."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.urls import NoReverseMatch, reverse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory_django.rest.serializers import RootSerializer
from chatmemory_django.rest.views import ChatMemoryView

LISTED = ("conversations", "messages", "import")
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


def chat_path() -> str | None:
    """Return the path of ``chatmemory_django.chat.urls``; None if the site does not include them."""
    try:
        return reverse("chatmemory_chat:chat")
    except NoReverseMatch:
        return None
