"""Approvals of tool calls, by REST."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema, extend_schema_serializer
from rest_framework import exceptions, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory_django.chat.approvals.approving import Decision, NotPendingError, by_policy, decide
from chatmemory_django.chat.approvals.continuing import go_on
from chatmemory_django.chat.approvals.tables import MAX_REASON_LENGTH
from chatmemory_django.chat.approvals.waiting import pending_calls
from chatmemory_django.chat.model import OWNER
from chatmemory_django.messages import MessageType
from chatmemory_django.rest import examples
from chatmemory_django.rest.conversations import ConversationViewSet
from chatmemory_django.rest.fields import BooleanField, Strict, TextField
from chatmemory_django.rest.problems import Problem
from chatmemory_django.rest.views import row_of

DECISION = {"id": "0b6cf6a4-6d2c-4f0e-9d0b-0a4a3f5f6f10", "approved": False, "reason": "I want another one instead."}
APPROVALS = {
    "results": [
        {
            "id": DECISION["id"],
            "sequence": 2,
            "call_id": "call_1",
            "tool": "refund",
            "arguments": '{"order": 4711}',
            "asks": "refund the order 4711",
            "approve_by": "owner",
            "requested_at": examples.MOMENT,
            "expires_at": examples.MOMENT,
        }
    ]
}


class UuidField(serializers.UUIDField):
    """A UUID as text. DRF's own field also accepts numbers, and false for zero."""

    def to_internal_value(self, data: Any) -> UUID:
        if not isinstance(data, str):
            self.fail("invalid", value=type(data).__name__)
        return super().to_internal_value(data)


@extend_schema_serializer(examples=examples.shown(DECISION, request=True))
class DecisionSerializer(Strict, serializers.Serializer[Any]):
    """Whether a tool call may run."""

    id = UuidField(help_text="The id of the approval.")
    approved = BooleanField()
    reason = TextField(
        required=False,
        allow_blank=True,
        max_length=MAX_REASON_LENGTH,
        help_text="The model reads why a call is denied.",
    )


class ApprovalSerializer(serializers.Serializer[Any]):
    """A tool call that waits for a decision."""

    id = serializers.UUIDField(help_text="The id of the approval.")
    sequence = serializers.IntegerField(help_text="The sequence of the message with the call.")
    call_id = serializers.CharField(allow_null=True, help_text="The id of the call in that message.")
    tool = serializers.CharField(allow_null=True, help_text="The name of the tool.")
    arguments = serializers.CharField(
        allow_null=True, help_text="The arguments, as the model wrote them: JSON as text."
    )
    asks = serializers.CharField(help_text="What the assistant wants to do, in words of the tool; may be empty.")
    approve_by = serializers.CharField(help_text="Who decides: `owner`, or the permission that a user needs.")
    requested_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(help_text="When the call can no longer be approved.")


@extend_schema_serializer(examples=examples.shown(APPROVALS))
class ApprovalsSerializer(serializers.Serializer[Any]):
    """The tool calls that wait for a decision, in their order."""

    results = ApprovalSerializer(many=True)


class ApprovalViewSet(ConversationViewSet):
    """The tool calls of a conversation that wait for a decision."""

    request_serializers = {"decide": DecisionSerializer}  # noqa: RUF012

    @extend_schema(responses=ApprovalsSerializer)
    def approvals(self, request: Request, memory_id: str) -> Response:
        """List the tool calls that wait for a decision of the user."""
        conversation = self.find()
        may = by_policy(self.policy, request, conversation)
        waiting = [(each, call) for each, call in pending_calls(conversation) if may(each.approve_by)]
        if MessageType.AI not in self.readable_types or not (waiting or may(OWNER)):
            raise exceptions.PermissionDenied
        shown = (
            {
                name: getattr(each, name)
                for name in ("id", "sequence", "asks", "approve_by", "requested_at", "expires_at")
            }
            | {"call_id": call.id, "tool": call.name, "arguments": call.arguments}
            for each, call in waiting
        )
        return Response(ApprovalsSerializer({"results": list(shown)}).data)

    @extend_schema(responses={204: None})
    def decide(self, request: Request, memory_id: str) -> Response:
        """
        Approve or deny a tool call that waits for a decision. Repeating the request changes nothing.

        If the site has one assistant for its chat, the call runs then, and the answer goes on. This does not wait for
        it.
        """
        decision = Decision(**self.body)
        with self.changing("view") as conversation:
            may = by_policy(self.policy, request, conversation)
            try:
                [approval] = decide(row_of(conversation), conversation.memory_id, [decision], request.user, may)
            except NotPendingError as exc:
                if not may(OWNER):
                    raise exceptions.PermissionDenied from None
                raise Problem(HTTPStatus.CONFLICT, "not_pending", str(exc), "$.id") from None
            words = (
                _("Approved a tool call of message #%(number)d.")
                if decision.approved
                else _("Denied a tool call of message #%(number)d.")
            )
            self.log(conversation, words % {"number": approval.sequence})
            transaction.on_commit(partial(go_on, conversation, request._request), using=conversation._state.db)
        return Response(status=HTTPStatus.NO_CONTENT)
