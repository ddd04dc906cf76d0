"""The notes about the user by REST: each user has their own, and staff no others."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from django.db import router, transaction
from drf_spectacular.utils import extend_schema
from rest_framework import exceptions, serializers
from rest_framework.mixins import ListModelMixin
from rest_framework.response import Response
from rest_framework.viewsets import ViewSetMixin

from chatmemory_django.contrib.notes.conf import notes
from chatmemory_django.contrib.notes.keeping import (
    NotesFullError,
    NotesOffError,
    change,
    checked,
    drop,
    is_on,
    keep,
    switch,
)
from chatmemory_django.contrib.notes.models import Note
from chatmemory_django.core.limits import MAX_INTEGER
from chatmemory_django.db.row_codec import UNREADABLE, unreadable_as
from chatmemory_django.db.transactions import tried_again
from chatmemory_django.models import Conversation
from chatmemory_django.rest.fields import BooleanField, MomentField, Strict, TextField
from chatmemory_django.rest.pagination import BoundedCursorPagination
from chatmemory_django.rest.problems import Problem, invalid
from chatmemory_django.rest.views import ChatMemoryView

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from rest_framework.request import Request


class NoteTextSerializer(Strict, serializers.Serializer[Any]):
    """The text of a note."""

    text = TextField(help_text="It is kept on one line.")

    def validate_text(self, text: str) -> str:
        """Return *text* as it is kept."""
        try:
            return checked(text)
        except ValueError as exc:
            raise serializers.ValidationError(str(exc)) from None


class NoteSerializer(serializers.ModelSerializer[Note]):
    """Something that assistants keep in mind about the user."""

    created_at, updated_at = MomentField(), MomentField()

    class Meta:
        model = Note
        fields = ("number", "text", "created_at", "updated_at")
        read_only_fields = fields


class NotebookSerializer(Strict, serializers.Serializer[Any]):
    """Whether notes about the user are kept and sent, and how many there may be."""

    is_on = BooleanField()
    max_notes = serializers.IntegerField(read_only=True)
    max_length = serializers.IntegerField(read_only=True, help_text="How many characters a note has at most.")


class NoteViewSet(ViewSetMixin, ListModelMixin, ChatMemoryView):
    """The notes about the user."""

    tag = "notes"
    serializer_class: Any = NoteSerializer
    pagination_class = BoundedCursorPagination
    ordering = ("number",)
    ordering_fields = ("number",)
    lookup_field = "number"
    request_serializers = {"create": NoteTextSerializer, "partial_update": NoteTextSerializer}  # noqa: RUF012

    def get_queryset(self) -> Any:
        return Note.objects.owned_by(self.request.user)

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the notes about the user, in the order in which they were written."""
        with unreadable_as(str(UNREADABLE)):
            return super().list(request, *args, **kwargs)

    @extend_schema(responses={201: NoteSerializer})
    def create(self, request: Request) -> Response:
        """Add a note. It is 409 if there are as many as are kept, or if the user has switched them off."""
        text, user = self.body["text"], _user(request)
        using = router.db_for_write(Note, owner_key=str(user.pk))

        def store() -> Note:
            with transaction.atomic(using=using):
                self.check_quota(Conversation(owner_id=user.pk), size=len(text))
                return keep(user, text)

        try:
            note = tried_again(using, store)
        except (NotesFullError, NotesOffError) as exc:
            code = "full" if isinstance(exc, NotesFullError) else "off"
            raise Problem(HTTPStatus.CONFLICT, code, str(exc), "$") from None
        return Response(self.get_serializer(note).data, HTTPStatus.CREATED)

    @extend_schema(responses=NoteSerializer)
    def partial_update(self, request: Request, number: str) -> Response:
        """Change the text of a note."""
        text = self.body.get("text")
        if text is None:
            raise invalid("$.text", "This field is required.", "required")
        try:
            return Response(self.get_serializer(change(_user(request), _number(number), text)).data)
        except Note.DoesNotExist:
            raise exceptions.NotFound from None

    @extend_schema(responses={204: None})
    def destroy(self, request: Request, number: str) -> Response:
        """Delete a note."""
        if not drop(_user(request), _number(number)):
            raise exceptions.NotFound
        return Response(status=HTTPStatus.NO_CONTENT)

    @extend_schema("notes_bulk_destroy", responses={204: None})
    def bulk_destroy(self, request: Request) -> Response:
        """Delete all notes about the user."""
        drop(_user(request))
        return Response(status=HTTPStatus.NO_CONTENT)


class NotebookViewSet(ViewSetMixin, ChatMemoryView):
    """Whether notes about the user are kept."""

    tag = "notes"
    serializer_class = NotebookSerializer
    request_serializers = {"partial_update": NotebookSerializer}  # noqa: RUF012

    @extend_schema(responses=NotebookSerializer)
    def retrieve(self, request: Request) -> Response:
        """Return whether notes are kept and sent, and how many there may be."""
        kept = {"is_on": is_on(_user(request)), "max_notes": notes().MAX_NOTES, "max_length": notes().MAX_LENGTH}
        return Response(self.get_serializer(kept).data)

    @extend_schema(request=NotebookSerializer, responses=NotebookSerializer)
    def partial_update(self, request: Request) -> Response:
        """Keep and send notes from now on, or none. Those that are there stay until they are deleted."""
        wanted = self.body
        if "is_on" in wanted:
            switch(_user(request), on=wanted["is_on"])
        return self.retrieve(request)


def _user(request: Request) -> AbstractBaseUser:
    """Return the user; 401 if the site's policy allows requests of nobody."""
    if not request.user.is_authenticated:
        raise exceptions.NotAuthenticated
    return request.user


def _number(text: str) -> int:
    """Return the number in a path; 404 if no note can have it."""
    # Checked here and not in the URL pattern, whose 404 would be the site's HTML page.
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= MAX_INTEGER):
        raise exceptions.NotFound
    return int(text)
