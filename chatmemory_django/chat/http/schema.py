"""
The chat's endpoints in the OpenAPI schema: ``with_chat``, a hook of drf-spectacular.

The chat's views are plain Django views, since the chat does not need DRF. These here only describe them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.urls import get_script_prefix
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
    extend_schema_field,
    inline_serializer,
)
from rest_framework import serializers
from rest_framework.parsers import JSONParser
from rest_framework.request import Request
from rest_framework.views import APIView

from chatmemory_django.chat.http.refusals import CODES
from chatmemory_django.core.limits import MAX_RATING_REASON
from chatmemory_django.core.problems import MEDIA_TYPE, problem
from chatmemory_django.operations.rating import RATINGS
from chatmemory_django.rest.admission import IsAllowed
from chatmemory_django.rest.root import chat_path
from chatmemory_django.rest.schema import summary_of
from chatmemory_django.rest.serializers import ProblemSerializer

Endpoint = tuple[str, str, str, Callable[..., Any]]
"""A path, its regular expression, a method and a view."""

STREAM = "text/event-stream"
EVENTS = (200, STREAM)

REFUSALS = {
    "400": "The request is invalid.",
    "401": "No one is signed in, or the token is invalid.",
    "403": "The user may not chat, or the CSRF token is missing.",
    "404": "There is no such chat, message or file of the user, or no such assistant.",
    "409": "Another answer is being generated, or the conversation has changed.",
    "413": "The body or the message is too large.",
    "415": "The model does not take a file of the message.",
    "422": "The model's server does not accept the message.",
    "429": "Too many requests, answers or streams; `Retry-After` has the seconds to wait.",
    "500": "The answer failed.",
    "502": "The model failed.",
    "503": "The model is overloaded, or the chat cannot be used now.",
    "504": "The model took too long.",
}
"""What the statuses of errors mean, whose body is a short text or, for a client that asks for JSON, a problem."""

ALWAYS = ("400", "401", "403", "429")
OF_ANSWERS = ("404", "409", "413", "415", "422", "500", "502", "503", "504")

QUESTION = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Where is my parcel?"}]}
ANSWER = {
    "id": "c5288ee9ca43492b8bf03c7894f11e46",
    "role": "assistant",
    "parts": [{"type": "text", "text": "Hamburg."}],
}
ASKED = {"id": "orders", "messages": [QUESTION]}

_PART = {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}, "text": {"type": "string"}}}


@extend_schema_field({**_PART, "additionalProperties": {}})
class PartField(serializers.DictField):
    """A part of a ``UIMessage``: a text, a file, a call of a tool and others, see the AI SDK."""


class UiMessageSerializer(serializers.Serializer[Any]):
    """A `UIMessage` of the AI SDK. A user's parts are texts and files."""

    id = serializers.CharField()
    role = serializers.ChoiceField(choices=["system", "user", "assistant"])
    parts = serializers.ListField(child=PartField())
    metadata = serializers.DictField(required=False)  # only of answers


class ConflictSerializer(ProblemSerializer):
    """A problem. If the question before this one is not stored, it has that one's id, and the newest that are."""

    unknown = serializers.CharField(required=False, help_text="The id of the message that is not stored.")
    messages = serializers.ListField(
        child=serializers.CharField(), required=False, help_text="The ids of the newest messages that are."
    )


class ChatSchema(AutoSchema):
    """The schema generator of the chat's views, whose errors are short texts, or problems."""

    def get_tags(self) -> list[str]:
        return ["chat"]

    def get_summary(self) -> str:
        return summary_of(self.get_description())

    def _get_response_bodies(self, direction: Any = "response") -> dict[str, Any]:
        view: Any = self.view
        bodies: dict[str, Any] = super()._get_response_bodies(direction)
        for status in (*ALWAYS, *view.refusals):
            serializer = ConflictSerializer if status == "409" else ProblemSerializer
            described = {
                "schema": self.resolve_serializer(serializer, "response").ref,
                "example": problem(int(status), CODES[int(status)], REFUSALS[status]),
            }
            content = {"text/plain": {"schema": {"type": "string"}}, MEDIA_TYPE: described}
            bodies[status] = {"description": REFUSALS[status], "content": content}
            if status in {"429", "503"}:
                wait = {"description": "Seconds to wait before the next request.", "schema": {"type": "integer"}}
                bodies[status]["headers"] = {"Retry-After": wait}
        return dict(sorted(bodies.items()))


class _View(APIView):
    permission_classes: Any = (IsAllowed,)
    parser_classes = (JSONParser,)
    schema = ChatSchema()
    refusals: tuple[str, ...] = ()


_CHAT_ID = OpenApiParameter(
    "chat_id", {"type": "string", "minLength": 1, "maxLength": 200}, "path", description="The id that the client chose."
)


class _Chat(_View):
    refusals = OF_ANSWERS

    @extend_schema(
        "chat_create",
        request=inline_serializer(
            "Question",
            {
                "id": serializers.CharField(help_text="The chat's id: a UUID, a memory id of the user, or any other."),
                "messages": UiMessageSerializer(
                    many=True,
                    required=False,
                    help_text="The chat: its last message is the question, and of those before it, the ids count.",
                ),
                "message": UiMessageSerializer(
                    required=False, help_text="The question alone, in place of `messages`; one of them is required."
                ),
                "trigger": serializers.ChoiceField(
                    ["submit-message", "regenerate-message"],
                    required=False,
                    help_text="Whether to answer once more. With it, the question follows what stands before it.",
                ),
                "assistant": serializers.CharField(
                    required=False,
                    allow_null=True,
                    help_text="The assistant, of those that the site has by name; later questions need none.",
                ),
                "messageId": serializers.CharField(
                    required=False, allow_null=True, help_text="The message to regenerate; by default, the last."
                ),
            },
        ),
        responses={
            EVENTS: OpenApiResponse(OpenApiTypes.STR, "The answer in the AI SDK's UI message stream."),
            (200, "application/json"): inline_serializer("Answer", {"message": UiMessageSerializer()}),
            (202, "application/json"): inline_serializer(
                "LeftForPerson",
                {
                    "message": serializers.JSONField(allow_null=True, help_text="Null: a person answers later."),
                    "handover": serializers.JSONField(help_text="Who answers: `state`, and perhaps `since`, `name`."),
                },
            ),
        },
        examples=[
            OpenApiExample("A question", ASKED, request_only=True),
            OpenApiExample("An answer", {"message": ANSWER}, response_only=True, media_type="application/json"),
        ],
    )
    def post(self, request: Request) -> None:
        """
        Ask, and get the answer.

        It is streamed as server-sent events, in the protocol of `useChat` of the AI SDK.

        With `Accept: application/json`, the whole answer is returned as one message. The body is JSON. Errors have a
        short text or, where `Accept` names `application/json` or `application/problem+json`, are problem details.
        """


class _Stream(_View):
    refusals = ("503",)

    @extend_schema(
        "chat_stream_retrieve",
        parameters=[_CHAT_ID],
        responses={
            EVENTS: OpenApiResponse(OpenApiTypes.STR, "The answer in the AI SDK's UI message stream."),
            204: OpenApiResponse(description="No answer is being generated."),
        },
    )
    def get(self, request: Request, chat_id: str) -> None:
        """Stream the answer in progress from its beginning. A page that was loaded again shows it so."""


class _Stop(_View):
    refusals = ("503",)

    @extend_schema(
        "chat_stop_create",
        parameters=[_CHAT_ID],
        request=None,
        responses=inline_serializer("Stopped", {"stopped": serializers.BooleanField()}),
        examples=[OpenApiExample("An example", {"stopped": True}, response_only=True)],
    )
    def post(self, request: Request, chat_id: str) -> None:
        """Stop the answer in progress. What was generated of it is stored as the answer."""


class _Rating(_View):
    refusals = ("404",)

    @extend_schema(
        "chat_rating_create",
        parameters=[_CHAT_ID],
        request=inline_serializer(
            "Rating",
            {
                "messageId": serializers.CharField(help_text="The id of the answer."),
                "rating": serializers.IntegerField(
                    min_value=RATINGS[0], max_value=RATINGS[-1], allow_null=True, help_text="Null takes it back."
                ),
                "reason": serializers.CharField(required=False, allow_blank=True, max_length=MAX_RATING_REASON),
            },
        ),
        responses={204: None},
        examples=[
            OpenApiExample("A rating", {"messageId": "a1", "rating": 1, "reason": "There are four."}, request_only=True)
        ],
    )
    def post(self, request: Request, chat_id: str) -> None:
        """Store what the user thinks of an answer, and why."""


class _Messages(_View):
    @extend_schema("chat_messages_list", parameters=[_CHAT_ID], responses=UiMessageSerializer(many=True))
    def get(self, request: Request, chat_id: str) -> None:
        """List the newest messages of a chat. A page shows them when it is opened; an unknown chat has none."""


_INDEX = {"type": "integer", "minimum": 0, "maximum": 999_999_999}


class _File(_View):
    refusals = ("404",)

    @extend_schema(
        "chat_files_retrieve",
        parameters=[
            _CHAT_ID,
            OpenApiParameter("sequence", {**_INDEX, "minimum": 1}, "path"),
            OpenApiParameter("index", _INDEX, "path"),
        ],
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY},
    )
    def get(self, request: Request, chat_id: str, sequence: str, index: str) -> None:
        """Download a file in a question. Its media type is detected from its first bytes."""


_DESCRIBED: tuple[tuple[str, str, type[_View]], ...] = (
    ("", "POST", _Chat),
    ("/{chat_id}/messages", "GET", _Messages),
    ("/{chat_id}/stream", "GET", _Stream),
    ("/{chat_id}/stop", "POST", _Stop),
    ("/{chat_id}/rating", "POST", _Rating),
    ("/{chat_id}/files/{sequence}/{index}", "GET", _File),
)


def with_chat(endpoints: list[Endpoint]) -> list[Endpoint]:
    """Return *endpoints* and those of the chat, if the site's URLs have it: one of drf-spectacular's hooks."""
    path = chat_path()
    if path is None:
        return endpoints
    root = f"/{path.removeprefix(get_script_prefix())}".rstrip("/")
    return [*endpoints, *((root + below, root + below, method, view.as_view()) for below, method, view in _DESCRIBED)]
