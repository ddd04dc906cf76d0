"""Legal holds by REST, for staff with the permissions of the admin."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import IntegrityError
from drf_spectacular.utils import extend_schema
from rest_framework import exceptions, serializers
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSetMixin

from chatmemory_django.contrib.holds.models import MAX_REASON_LENGTH, LegalHold
from chatmemory_django.rest.fields import MomentField, Strict, TextField
from chatmemory_django.rest.pagination import BoundedCursorPagination
from chatmemory_django.rest.problems import Problem
from chatmemory_django.rest.views import ChatMemoryView


class NewHoldSerializer(Strict, serializers.Serializer[Any]):
    """What is held, and why: a conversation, or all conversations of an owner."""

    memory_id = TextField(required=False, help_text="The conversation.")
    owner = TextField(required=False, max_length=255, help_text="The key of the owner.")
    reason = TextField(max_length=MAX_REASON_LENGTH, help_text="It is stored as it is: quote no message.")
    until = MomentField(required=False, help_text="Without it, until somebody ends the hold.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse what names both or nothing."""
        if ("memory_id" in attrs) == ("owner" in attrs):
            raise serializers.ValidationError("Send either memory_id or owner.")
        return attrs


class HoldSerializer(serializers.ModelSerializer[LegalHold]):
    """A legal hold."""

    memory_id = serializers.CharField(source="conversation.memory_id", allow_null=True, default=None)
    owner = serializers.SerializerMethodField()
    is_active = serializers.BooleanField()

    class Meta:
        model = LegalHold
        fields = ("id", "memory_id", "owner", "reason", "placed_by", "created_at", "until", "is_active", "ended_by")
        read_only_fields = fields

    def get_owner(self, hold: LegalHold) -> str | None:
        """Return the key of the owner who is held."""
        return None if hold.owner_id is None else str(hold.owner_id)


class HoldViewSet(ViewSetMixin, ListModelMixin, ChatMemoryView):
    """The legal holds of the site."""

    tag = "holds"
    serializer_class: Any = HoldSerializer
    pagination_class = BoundedCursorPagination
    ordering = ("-pk",)
    request_serializers = {"create": NewHoldSerializer}  # noqa: RUF012

    def get_queryset(self) -> Any:
        return self._allowed("view").select_related("conversation")

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List all holds, the newest first, with those that have ended."""
        return super().list(request, *args, **kwargs)

    @extend_schema(responses={201: HoldSerializer})
    def create(self, request: Request) -> Response:
        """Place a hold. Nothing of what it is on is erased until it ends."""
        self._allowed("add")
        wanted = self.body
        memory_id, owner = wanted.pop("memory_id", None), wanted.pop("owner", None)
        if memory_id is not None:
            self.kwargs["memory_id"] = memory_id
            conversation = self.find()
            hold, using = LegalHold(conversation=conversation, **wanted), conversation._state.db
        else:
            hold, using = LegalHold(owner_id=self._user(owner), **wanted), None
        hold.placed_by = request.user.get_username()
        try:
            hold.save(using=using)
        except IntegrityError:  # it was erased in the meantime
            raise exceptions.NotFound from None
        return Response(self.get_serializer(hold).data, HTTPStatus.CREATED)

    @extend_schema(request=None, responses=HoldSerializer)
    @action(detail=True, methods=["post"])
    def end(self, request: Request, pk: int) -> Response:
        """End a hold now. Repeating the request changes nothing."""
        hold = self._allowed("change").filter(pk=pk).first()
        if hold is None:
            raise exceptions.NotFound
        hold.end(request.user)
        return Response(self.get_serializer(hold).data)

    def _allowed(self, verb: str) -> Any:
        """Return all holds; 403 if the user is not staff with the permission to do *verb* to them."""
        user: Any = self.request.user
        if not (user.is_staff and user.has_perm(f"chatmemory_holds.{verb}_legalhold")):
            raise exceptions.PermissionDenied
        return LegalHold.objects.all()

    def _user(self, key: str) -> Any:
        users = get_user_model()
        try:
            found = users._default_manager.filter(pk=users._meta.pk.clean(key, None)).first()
        except ValidationError:
            found = None
        if found is None:
            raise Problem(HTTPStatus.BAD_REQUEST, "invalid", "There is no user with this key.", "$.owner")
        return found.pk
