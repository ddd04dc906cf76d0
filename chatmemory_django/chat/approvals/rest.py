"""Approvals of tool calls, by REST."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_serializer
from rest_framework import exceptions, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory_django.chat.approvals.approving import Decision, NotPendingError, decide, pending_calls
from chatmemory_django.chat.approvals.tables import MAX_REASON_LENGTH
from chatmemory_django.messages import MessageType
from chatmemory_django.operations import admin_log
from chatmemory_django.rest import examples
from chatmemory_django.rest.conversations import ConversationViewSet
from chatmemory_django.rest.fields import BooleanField, Strict, TextField, UuidField
from chatmemory_django.rest.problems import Problem
from chatmemory_django.rest.views import row_of


@extend_schema_serializer(examples=examples.shown(examples.DECISION, request=True))
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
    requested_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(help_text="When the call can no longer be approved.")


@extend_schema_serializer(examples=examples.shown(examples.APPROVALS))
class ApprovalsSerializer(serializers.Serializer[Any]):
    """The tool calls that wait for a decision, in their order."""

    approvals = ApprovalSerializer(many=True)


class ApprovalViewSet(ConversationViewSet):
    """The tool calls of a conversation that wait for a decision."""

    request_serializers = {"decide": DecisionSerializer}  # noqa: RUF012

    @extend_schema(responses=ApprovalsSerializer)
    def approvals(self, request: Request, memory_id: str) -> Response:
        """List the tool calls that wait for a decision."""
        conversation = self.find("approve")
        if MessageType.AI not in self.readable_types:
            raise exceptions.PermissionDenied
        waiting = (
            {"id": each.id, "sequence": each.sequence, "requested_at": each.requested_at, "expires_at": each.expires_at}
            | {"call_id": call.id, "tool": call.name, "arguments": call.arguments}
            for each, call in pending_calls(conversation)
        )
        return Response(ApprovalsSerializer({"approvals": list(waiting)}).data)

    @extend_schema(responses={204: None})
    def decide(self, request: Request, memory_id: str) -> Response:
        """
        Approve or deny a tool call that waits for a decision. Repeating the request changes nothing.

        The call runs when the site resumes the answer: as soon as the chat is sent the same decision, for example.
        """
        decision = Decision(**self.body)
        with self.changing("approve") as conversation:
            try:
                [approval] = decide(row_of(conversation), conversation.memory_id, [decision], request.user.pk)
            except NotPendingError as exc:
                raise Problem(HTTPStatus.CONFLICT, "not_pending", str(exc), "$.id") from None
            self.log(conversation, admin_log.decided(approval.sequence, approved=decision.approved))
        return Response(status=HTTPStatus.NO_CONTENT)
