"""Additions to the OpenAPI schema that drf-spectacular cannot infer: messages, problems and headers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from http import HTTPStatus
from typing import Any, Literal

import msgspec
from drf_spectacular.drainage import get_override
from drf_spectacular.extensions import OpenApiSerializerFieldExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent, get_doc
from drf_spectacular.settings import spectacular_settings
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from rest_framework.serializers import Serializer

from chatmemory_django.core.problems import MEDIA_TYPE, problem
from chatmemory_django.formats.openai_chat import OpenAiMessage
from chatmemory_django.messages import ChatMessage
from chatmemory_django.rest.examples import in_site_format
from chatmemory_django.rest.parsers import LinesParser

BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
NOT_BLANK = r"[^\u0000-\u0020]"

PROBLEMS = {
    HTTPStatus.BAD_REQUEST: ("invalid", "The request is invalid; see `errors`."),
    HTTPStatus.UNAUTHORIZED: ("not_authenticated", "Authentication credentials are missing or invalid."),
    HTTPStatus.FORBIDDEN: ("permission_denied", "The user lacks permission, or the CSRF token is missing."),
    HTTPStatus.NOT_FOUND: ("not_found", "There is no such resource that the user may view."),
    HTTPStatus.CONFLICT: ("exists", "The memory id is taken, or the conversation is protected."),
    HTTPStatus.LENGTH_REQUIRED: ("length_required", "The server requires a `Content-Length`."),
    HTTPStatus.PRECONDITION_FAILED: (
        "precondition_failed",
        "The conversation has changed since the ETag in `If-Match`.",
    ),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ("too_large", "The body is too large."),
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: ("unsupported_media_type", "The media type of the body is not supported."),
    HTTPStatus.UNPROCESSABLE_ENTITY: ("key_reused", "The `Idempotency-Key` or an id was used for other messages."),
    HTTPStatus.TOO_MANY_REQUESTS: ("throttled", "Too many requests; `Retry-After` has the seconds to wait."),
    HTTPStatus.INTERNAL_SERVER_ERROR: ("error", "An unexpected error occurred on the server."),
}
PATH_PARAMETERS: dict[str, dict[str, Any]] = {
    "memory_id": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[^/]+$"},
    "sequence": {"type": "integer", "minimum": 1},
    "index": {"type": "integer", "minimum": 0},
    "number": {"type": "integer", "minimum": 1},
}
MOVES = frozenset({"/memory/rewind/", "/memory/switch/", "/memory/pop/"})
"""The paths after the memory id of operations on branches."""
WHERE = {
    HTTPStatus.BAD_REQUEST: ("$.title", "Not a valid string."),
    HTTPStatus.CONFLICT: ("$.memory_id", "This memory id is taken; choose another."),
    HTTPStatus.PRECONDITION_FAILED: ("If-Match", "The conversation has changed; retrieve it again."),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ("$", "The body has more than 5242880 bytes."),
    HTTPStatus.UNPROCESSABLE_ENTITY: ("$.messages[0]", "The Idempotency-Key was used before; use a new one."),
}


class MessageExtension(OpenApiSerializerFieldExtension):
    """The union of messages: LangChain4j's with a ``type`` as discriminator, and OpenAI's with a ``role``."""

    target_class = "chatmemory_django.rest.fields.MessageField"

    def map_serializer_field(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        is_older = spectacular_settings.OAS_VERSION.startswith("3.0")
        for name, schema in message_components().items():
            written = _in_3_0(schema) if is_older else schema
            component = ResolvedComponent(name, ResolvedComponent.SCHEMA, written, object=name)  # type: ignore[no-untyped-call]
            auto_schema.registry.register_on_missing(component)
        return {"oneOf": [_reference("ChatMessage"), _reference("OpenAiMessage")]}


@cache
def message_components() -> dict[str, Any]:
    """Return the schemas of the messages of both formats, and of all schemas that they refer to, by name."""
    template = "#/components/schemas/{name}"
    unions, found = msgspec.json.schema_components((ChatMessage, OpenAiMessage), ref_template=template)
    for name, union in zip(("ChatMessage", "OpenAiMessage"), unions, strict=True):
        found[name] = {"oneOf": union["anyOf"], "discriminator": union["discriminator"]}
    return {name: _checked(name, _tagged(schema)) for name, schema in found.items()}


class Schema(AutoSchema):
    """The schema generator of the views, with the problems, query parameters and headers of the API."""

    def get_tags(self) -> list[str]:
        view: Any = self.view
        return ["memory"] if self._below.startswith("/memory/") else [view.tag]

    def get_description(self) -> str:  # type: ignore[override]  # as drf-spectacular declares it
        view: Any = self.view
        # Views without actions have an empty one, for which drf-spectacular would describe the class.
        return get_doc(getattr(view, view.action or self.method.lower()))

    def get_summary(self) -> str:
        return summary_of(self.get_description())

    def get_override_parameters(self) -> list[Any]:
        view: Any = self.view
        query = view.query_serializers.get(view.action or self.method.lower())
        in_path: list[Any] = [
            OpenApiParameter(name, schema, "path")
            for name, schema in PATH_PARAMETERS.items()
            if f"{{{name}}}" in self.path
        ]
        return [*([] if query is None else [query]), *in_path, *self._headers()]

    def get_request_serializer(self) -> Any:
        view: Any = self.view
        return view.request_serializers.get(view.action)

    def _headers(self) -> Iterator[OpenApiParameter]:
        header: Literal["header"] = "header"
        if "{memory_id}" not in self.path:
            return
        if self.method != "DELETE":
            etag = "Identifies the current state of the conversation."
            yield OpenApiParameter("ETag", OpenApiTypes.STR, header, description=etag, response=[200, 201])
        if self.method == "GET":
            unless = "Respond 304 if the conversation is still in the state of this ETag."
            yield OpenApiParameter("If-None-Match", OpenApiTypes.STR, header, description=unless)
        else:
            match = "Respond 412 if the conversation is no longer in the state of this ETag."
            yield OpenApiParameter("If-Match", OpenApiTypes.STR, header, description=match)
        if self._is_idempotent:
            key = "A unique key for this request. Repeating the request with the same key stores nothing twice."
            schema = {"type": "string", "minLength": 1, "maxLength": 255}
            yield OpenApiParameter("Idempotency-Key", schema, header, description=key)

    @property
    def _is_idempotent(self) -> bool:
        return self.method == "POST" and self._below == "/messages/"

    @property
    def _below(self) -> str:
        """The part of the path after the memory id."""
        return str(self.path).partition("{memory_id}")[2]

    def _get_request_body(self, direction: Any = "request") -> Any:
        body = super()._get_request_body(direction)  # type: ignore[no-untyped-call]
        if body and LinesParser.media_type in body["content"]:
            body["required"] = True
        return body

    def _postprocess_serializer_schema(self, schema: Any, serializer: Any, direction: Any) -> Any:
        schema = super()._postprocess_serializer_schema(schema, serializer, direction)  # type: ignore[no-untyped-call]
        return {**schema, "additionalProperties": False} if getattr(serializer, "is_strict", False) else schema

    def _get_examples(self, serializer: Any, direction: Any, *args: Any, **options: Any) -> Any:
        found = super()._get_examples(serializer, direction, *args, **options)  # type: ignore[no-untyped-call]
        return found if direction == "request" else in_site_format(found)

    def _get_response_bodies(self, direction: Any = "response") -> dict[str, Any]:
        bodies: dict[str, Any] = super()._get_response_bodies(direction)
        if self.method == "GET" and "{memory_id}" in self.path:
            bodies["304"] = {"description": "The conversation has not changed."}
        for status in sorted(self._problems()):
            bodies[str(int(status))] = self._problem(status)
        return dict(sorted(bodies.items()))

    def _problems(self) -> Iterator[HTTPStatus]:
        yield from (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        yield from (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.INTERNAL_SERVER_ERROR)
        if "{" in self.path:
            yield HTTPStatus.NOT_FOUND
        if "{memory_id}" in self.path and self.method != "GET":
            yield HTTPStatus.PRECONDITION_FAILED
        if self.method in {"POST", "PUT", "PATCH"}:
            yield from (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
            yield HTTPStatus.LENGTH_REQUIRED
        if self._is_idempotent:
            yield HTTPStatus.UNPROCESSABLE_ENTITY
        elif self.method in {"POST", "DELETE"} and self._below not in {"/messages/{sequence}/", *MOVES}:
            yield HTTPStatus.CONFLICT

    def _problem(self, status: HTTPStatus) -> dict[str, Any]:
        from chatmemory_django.rest.serializers import ProblemSerializer  # avoids a circular import

        code, description = PROBLEMS[status]
        where = [{"path": WHERE[status][0], "code": code, "detail": WHERE[status][1]}] if status in WHERE else []
        example = problem(status, code, WHERE[status][1] if status in WHERE else description, where)
        body: dict[str, Any] = {
            "description": description,
            "content": {
                MEDIA_TYPE: {"schema": self.resolve_serializer(ProblemSerializer, "response").ref, "example": example}
            },
        }
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            wait = {"description": "Seconds to wait before the next request.", "schema": {"type": "integer"}}
            body["headers"] = {"Retry-After": wait}
        return body


def summary_of(description: str) -> str:
    """Return the first sentence of *description*, without the period."""
    return " ".join(description.split("\n\n")[0].split()).partition(". ")[0].removesuffix(".")


def example_of(serializer_class: type[Serializer[Any]]) -> Any:
    """Return the first example of a request that *serializer_class* is documented with; None if it has none."""
    examples: list[OpenApiExample] = get_override(serializer_class, "examples", [])
    return next((each.value for each in examples if not each.response_only), None)


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _tagged(schema: Any) -> Any:
    """Return *schema* as client generators understand it: ``const`` instead of an enum of one value, no defaults."""
    if isinstance(schema, list):
        return [_tagged(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    # To openapi-typescript, a property with a default is not optional.
    written = {name: _tagged(value) for name, value in schema.items() if name != "default"}
    if written.get("type") == "object" and "properties" not in written:
        written["additionalProperties"] = {}
    if "enum" in written:
        written["type"] = "string"
        if len(written["enum"]) == 1:
            written["const"] = written.pop("enum")[0]
    if written.get("required") == []:
        del written["required"]  # OpenAPI 3.0 does not allow an empty list
    if "prefixItems" in written:  # a tuple of one
        (written["items"],) = written.pop("prefixItems")
    return written


def _checked(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return *schema* with the constraints that messages check when they are created."""
    properties = schema.get("properties", {})
    if properties:
        schema["additionalProperties"] = False
    if "contents" in properties:
        properties["contents"]["minItems"] = 1
        schema["required"] = sorted({*schema["required"], "contents"})
    if name == "Audio":
        properties["binaryData"]["anyOf"][0]["pattern"] = BASE64
    if name == "SystemMessage":
        properties["text"]["pattern"] = NOT_BLANK
    return schema


def _in_3_0(schema: Any) -> Any:
    """Return the JSON Schema *schema* in the dialect of OpenAPI 3.0."""
    if isinstance(schema, list):
        return [_in_3_0(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "contentEncoding" in schema:
        return {"type": "string", "format": "byte"}
    if "const" in schema:
        # Wrapped in allOf; otherwise drf-spectacular would create a component for each.
        return {"allOf": [{"type": "string", "enum": [schema["const"]]}]}
    if {"type": "null"} in schema.get("anyOf", ()):
        rest = [_in_3_0(item) for item in schema["anyOf"] if item != {"type": "null"}]
        others = {name: value for name, value in schema.items() if name != "anyOf"}
        return {**others, "nullable": True, **({"allOf": rest} if len(rest) == 1 else {"anyOf": rest})}
    return {name: _in_3_0(value) for name, value in schema.items()}
