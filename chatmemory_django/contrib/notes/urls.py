"""The notes about the user by REST: ``path("api/", include("chatmemory_django.contrib.notes.urls"))``."""

from typing import Any

from django.urls import re_path

from chatmemory_django.contrib.notes.rest import NotebookViewSet, NoteViewSet

app_name = "chatmemory_notes"

ALL: dict[str, Any] = {"get": "list", "post": "create", "delete": "bulk_destroy"}
ONE: dict[str, Any] = {"patch": "partial_update", "delete": "destroy"}
BOOK: dict[str, Any] = {"get": "retrieve", "patch": "partial_update"}

urlpatterns = [
    re_path(r"^notes/?$", NoteViewSet.as_view(ALL), name="notes"),
    re_path(r"^notes/(?P<number>[^/]+)/?$", NoteViewSet.as_view(ONE), name="note"),
    re_path(r"^notebook/?$", NotebookViewSet.as_view(BOOK), name="notebook"),
]
