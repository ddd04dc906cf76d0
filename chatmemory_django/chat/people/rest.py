"""What waits for people, who has it, and what they answer, by REST."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema, extend_schema_serializer
from rest_framework import exceptions, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory_django import conf
from chatmemory_django.chat.approvals.approving import NotPendingError, by_policy
from chatmemory_django.chat.approvals.desk import assign
from chatmemory_django.chat.people.answering import answer_as
from chatmemory_django.chat.people.queue import KINDS, MAX_WAITING, Queued, queue
from chatmemory_django.core.limits import MAX_CLIENT_MESSAGE_ID_LENGTH
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation
from chatmemory_django.operations import OtherPersonError, admin_log, give_back, hand_over
from chatmemory_django.operations.reading import note_read
from chatmemory_django.rest import examples
from chatmemory_django.rest.conversations import ConversationViewSet
from chatmemory_django.rest.fields import BooleanField, Strict, TextField, sentence
from chatmemory_django.rest.pagination import linked
from chatmemory_django.rest.problems import Problem, invalid
from chatmemory_django.rest.views import ChatMemoryView

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

NOBODY, ME = "nobody", "me"
"""What ``?person=`` may be besides the key of a user."""

WAITING = {
    "results": [
        {
            "kind": "approval",
            "memory_id": "5f0c6b1e-8f43-4d0e-9a6e-0f6d3a0b9a11",
            "owner": "7",
            "since": examples.MOMENT,
            "until": examples.MOMENT,
            "person": None,
            "approval": {
                "id": "0b6cf6a4-6d2c-4f0e-9d0b-0a4a3f5f6f10",
                "sequence": 2,
                "approve_by": "shop.approve_refund",
                "tool": "refund",
                "arguments": '{"order": 4711}',
                "asks": "refund the order 4711",
            },
        }
    ],
    "next": None,
}


class QueueQuery(serializers.Serializer[Any]):
    """What to list."""

    kind = serializers.ChoiceField(KINDS, required=False, help_text="Only handovers, or only approvals.")
    person = serializers.CharField(
        required=False, max_length=255, help_text="Who has it: `me`, `nobody`, or the key of a user."
    )
    tool = serializers.CharField(required=False, max_length=255, help_text="Only calls of this tool.")
    page_size = serializers.IntegerField(
        required=False, min_value=1, max_value=MAX_WAITING, help_text="How many at most."
    )
    offset = serializers.IntegerField(
        required=False, min_value=0, max_value=2 * MAX_WAITING, help_text="How many to skip; `next` has it."
    )


class WaitingCallSerializer(serializers.Serializer[Any]):
    """A tool call that waits for a decision."""

    id = serializers.UUIDField(help_text="The id of the approval.")
    sequence = serializers.IntegerField(help_text="The sequence of the message with the call.")
    approve_by = serializers.CharField(help_text="Who decides: `owner`, or the permission that a user needs.")
    tool = serializers.CharField(allow_null=True, help_text="The name of the tool; null if you may not read texts.")
    arguments = serializers.CharField(
        allow_null=True, help_text="The arguments, as the model wrote them; null if you may not read texts."
    )
    asks = serializers.CharField(
        allow_null=True,
        help_text="What the assistant wants to do, in words of the tool; may be empty; null if you may not read texts.",
    )


class WaitingSerializer(serializers.Serializer[Any]):
    """What waits for a person: that somebody answers, or decides on a call."""

    kind = serializers.ChoiceField(KINDS)
    memory_id = serializers.CharField(help_text="The conversation.")
    owner = serializers.CharField(allow_null=True, help_text="The key of its owner.")
    since = serializers.DateTimeField()
    until = serializers.DateTimeField(allow_null=True, help_text="When it is too late; null for never.")
    person = serializers.CharField(allow_null=True, help_text="The key of the user who has it; null for nobody.")
    approval = WaitingCallSerializer(allow_null=True)


@extend_schema_serializer(examples=examples.shown(WAITING))
class QueueSerializer(serializers.Serializer[Any]):
    """What waits, the longest first."""

    results = WaitingSerializer(many=True)
    next = serializers.URLField(allow_null=True, help_text="The URL of the next page; null if this is the last.")


@extend_schema_serializer(examples=examples.shown({"takes_over": False}, request=True))
class TakingSerializer(Strict, serializers.Serializer[Any]):
    """How to take what waits."""

    takes_over = BooleanField(required=False, help_text="Whether to take it even if another person has it.")


@extend_schema_serializer(examples=examples.shown({"text": "I have looked into it: you get it back."}, request=True))
class NewAnswerSerializer(Strict, serializers.Serializer[Any]):
    """What a person answers instead of the assistant."""

    text = TextField(help_text="It is shown as yours.")
    client_message_id = TextField(
        required=False,
        min_length=1,
        max_length=MAX_CLIENT_MESSAGE_ID_LENGTH,
        help_text="With the same id once more, nothing is stored.",
    )
    takes_over = BooleanField(required=False, help_text="Whether to answer even if another person has it.")


class AnswerStoredSerializer(serializers.Serializer[Any]):
    """The stored answer."""

    sequence = serializers.IntegerField()


class PersonSerializer(serializers.Serializer[Any]):
    """Who answers in a conversation."""

    state = serializers.ChoiceField(Conversation.State.choices)
    person = serializers.CharField(allow_null=True, help_text="The key of the user who has it.")
    since = serializers.DateTimeField(allow_null=True)


class QueueView(ChatMemoryView):
    """What waits for people."""

    tag = "queue"
    query_serializers = {"get": QueueQuery}  # noqa: RUF012

    @extend_schema(responses=QueueSerializer)
    def get(self, request: Request) -> Response:
        """List what waits for people in the conversations of others."""
        if not (self.policy.sees_everybody(request, "answer") or self.policy.sees_everybody(request, "view")):
            raise exceptions.PermissionDenied
        asked = dict(self.query)
        limit, offset = asked.pop("page_size", min(conf.rest().PAGE_SIZE, MAX_WAITING)), asked.pop("offset", 0)
        person = asked.pop("person", None)
        if person is not None:
            asked["person"] = {ME: str(request.user.pk), NOBODY: ""}.get(person, person)
        waiting = queue(
            self.get_conversations("answer"),
            self.get_conversations("view"),
            lambda conversation, approve_by: by_policy(self.policy, request._request, conversation)(approve_by),
            **asked,
        )
        found = list(islice(waiting, offset, offset + limit + 1))
        shown = [_shown(each, reads=MessageType.AI in self.types_in(each.conversation)) for each in found[:limit]]
        note_read(request.user, [each.conversation for each in found[:limit]], "listed", self._is_own)
        following = linked(request, page_size=limit, offset=offset + limit) if len(found) > limit else None
        body = {"results": shown, "next": following}
        return Response(QueueSerializer(body).data)

    def _is_own(self, conversation: Conversation) -> bool:
        return self.policy.is_own(self.request, conversation)


class PeopleViewSet(ConversationViewSet):
    """Who answers in a conversation."""

    request_serializers = {  # noqa: RUF012
        "take": TakingSerializer,
        "answer": NewAnswerSerializer,
        "assign": TakingSerializer,
    }

    @extend_schema(responses=PersonSerializer)
    def take(self, request: Request, memory_id: str) -> Response:
        """Answer in the conversation from now on, instead of the assistant. Repeating the request changes nothing."""
        with self.changing("answer", check=False) as conversation:
            before = conversation.person
            self._unless_others(partial(hand_over, conversation, self._user, takes_over=self._takes_over))
            conversation.refresh_from_db()
            if before != conversation.person:
                self.log(conversation, str(admin_log.HANDED_OVER))
            return _person(conversation)

    @extend_schema(request=None, responses={200: PersonSerializer})
    def give_back(self, request: Request, memory_id: str) -> Response:
        """Let the assistant answer again. Repeating the request changes nothing."""
        with self.changing("answer", check=False) as conversation:
            before = conversation.state
            give_back(conversation)
            conversation.refresh_from_db()
            if before != conversation.state:
                self.log(conversation, str(admin_log.GIVEN_BACK))
            return _person(conversation)

    @extend_schema(responses={201: AnswerStoredSerializer})
    def answer(self, request: Request, memory_id: str) -> Response:
        """Answer in the conversation, which is yours from then on. The same client_message_id answers once."""
        wanted = self.body
        with self.changing("answer", check=False) as conversation:
            newest = conversation.next_sequence
            try:
                sequence = self._unless_others(
                    partial(answer_as, conversation, self._user, wanted.pop("text"), **wanted)
                )
            except ValueError as exc:
                raise invalid("$.text", sentence(exc)) from None
            if sequence >= newest:
                self.log(conversation, admin_log.ANSWERED % {"number": sequence})
            conversation.refresh_from_db()
        return Response({"sequence": sequence}, HTTPStatus.CREATED)

    @extend_schema(responses={204: None})
    def assign(self, request: Request, memory_id: str, approval: str) -> Response:
        """Note that you look at a call that waits for a decision, so that no two do."""
        return self._assign(request.user, approval)

    @extend_schema(request=None, responses={204: None})
    def unassign(self, request: Request, memory_id: str, approval: str) -> Response:
        """Note that nobody looks at a call that waits for a decision."""
        return self._assign(None, approval)

    def _assign(self, to: Any, approval: str) -> Response:
        with self.changing("view", check=False) as conversation:
            waiting = {str(each.pk): each for each in conversation.tool_approvals.all()}
            found = waiting.get(approval.lower())
            may = by_policy(self.policy, self.request._request, conversation)
            if found is None or not may(found.approve_by):
                raise exceptions.NotFound if found is None else exceptions.PermissionDenied
            takes_over = to is not None and self._takes_over
            try:
                self._unless_others(partial(assign, conversation, UUID(approval), to, takes_over=takes_over))
            except NotPendingError as exc:
                raise Problem(HTTPStatus.CONFLICT, "not_pending", str(exc)) from None
        return Response(status=HTTPStatus.NO_CONTENT)

    @property
    def _user(self) -> AbstractBaseUser:
        return self.request.user  # type: ignore[return-value]  # staff

    @property
    def _takes_over(self) -> bool:
        return bool(self.body.get("takes_over", False))

    def _unless_others(self, do: Callable[[], Any]) -> Any:
        """Return what *do* returns; 409 if another person has it."""
        try:
            return do()
        except OtherPersonError as exc:
            detail = _("Another person has this: %(person)s. Send takes_over to take it over.") % {"person": exc.person}
            raise Problem(HTTPStatus.CONFLICT, "other_person", detail) from None


def _person(conversation: Conversation) -> Response:
    shown = {"state": conversation.state, "person": conversation.person or None, "since": conversation.state_since}
    return Response(PersonSerializer(shown).data)


def _shown(waiting: Queued, *, reads: bool) -> dict[str, Any]:
    conversation, approval, call = waiting.conversation, waiting.approval, waiting.call
    shown: dict[str, Any] = {
        "kind": waiting.kind,
        "memory_id": conversation.memory_id,
        "owner": None if conversation.owner_id is None else str(conversation.owner_id),
        "since": waiting.since,
        "until": waiting.until,
        "person": waiting.person or None,
        "approval": None,
    }
    if approval is not None and call is not None:
        texts = {"tool": call.name, "arguments": call.arguments, "asks": approval.asks}
        columns = {name: getattr(approval, name) for name in ("id", "sequence", "approve_by")}
        shown["approval"] = columns | (texts if reads else dict.fromkeys(texts))
    return shown
