"""
The OpenAPI schema, made from the types that the API works with, so that neither can say what the other does not.

drf-spectacular finds the views and puts their operations together; each says with ``describe`` what it takes and gives.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ComponentRegistry, ResolvedComponent
from drf_spectacular.settings import spectacular_settings

from chatmemory_django.rest.components import components, parameters
from chatmemory_django.rest.examples import EXAMPLES
from chatmemory_django.rest.json_schema import reference
from chatmemory_django.rest.problems import MEDIA_TYPE, Problem

_F = TypeVar("_F", bound=Callable[..., Any])

LINES_TYPE = "application/jsonl"

FAULTS = {
    HTTPStatus.BAD_REQUEST: "Something in the request is wrong; `errors` says where.",
    HTTPStatus.UNAUTHORIZED: "Nobody is signed in.",
    HTTPStatus.FORBIDDEN: "Who is signed in may not do this, or a form token is missing.",
    HTTPStatus.NOT_FOUND: "There is no such thing within reach.",
    HTTPStatus.CONFLICT: "There is another conversation with this memory id.",
    HTTPStatus.PRECONDITION_FAILED: "It has changed since the ETag in `If-Match` was given.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too large.",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "The body is of another type.",
    HTTPStatus.UNPROCESSABLE_ENTITY: "The client message id or the `Idempotency-Key` was used for another message.",
    HTTPStatus.TOO_MANY_REQUESTS: "There were too many requests; `Retry-After` says when to try again.",
}

ETAG = {"description": "Names the state that the conversation is in.", "schema": {"type": "string"}}
LOCATION = {"description": "Where it is.", "schema": {"type": "string", "format": "uri-reference"}}


class Operation(msgspec.Struct, frozen=True):
    """What a method of a view takes and gives."""

    id: str
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    answer: type | None = None
    status: HTTPStatus = HTTPStatus.OK
    etag: bool = False
    """Whether the answer has an ETag."""
    match: bool = False
    """Whether it goes by ``If-Match``."""
    retry: bool = False
    """Whether it goes by an ``Idempotency-Key``."""
    lines: bool = False
    """Whether it takes JSON lines or, where it has no other answer, gives them."""


def describe(operation_id: str, **options: Any) -> Callable[[_F], _F]:
    """Say of a method of a view what it takes and gives: the fields of an ``Operation``."""

    def decorate(method: _F) -> _F:
        method.operation = Operation(operation_id, **options)  # type: ignore[attr-defined]
        return method

    return decorate


class Schema(AutoSchema):
    """How drf-spectacular learns of the operations."""

    def get_operation(
        self, path: str, path_regex: str, path_prefix: str, method: str, registry: ComponentRegistry
    ) -> dict[str, Any]:
        """See ``AutoSchema.get_operation``."""
        self.path, self.path_regex, self.path_prefix = path, path_regex, path_prefix
        self.method, self.registry = method.upper(), registry
        handler = getattr(self.view, method.lower())
        operation: Operation = handler.operation
        written: dict[str, Any] = {
            "operationId": operation.id,
            "summary": inspect.cleandoc(handler.__doc__),
            "tags": ["chat memory"],
            "parameters": [*_path_parameters(path), *self._query(operation), *_headers(operation)],
            "responses": self._responses(operation),
        }
        if taken := self._taken(operation):
            written["requestBody"] = taken
        if security := self.get_auth():
            written["security"] = security
        return written

    def _query(self, operation: Operation) -> list[dict[str, Any]]:
        if operation.query is None:
            return []
        return [_in_version(parameter) for parameter in parameters(operation.query)]

    def _taken(self, operation: Operation) -> dict[str, Any] | None:
        if operation.body is not None:
            is_required = any(field.required for field in msgspec.structs.fields(operation.body))
            return {"content": {"application/json": self._content(operation.body)}, "required": is_required}
        if operation.lines and operation.answer is not None:
            return {"content": {LINES_TYPE: {"schema": {"type": "string"}}}, "required": True}
        return None

    def _responses(self, operation: Operation) -> dict[str, Any]:
        answer: dict[str, Any] = {"description": operation.status.phrase}
        if operation.answer is not None:
            answer["content"] = {"application/json": self._content(operation.answer)}
        elif operation.lines:
            answer["content"] = {LINES_TYPE: {"schema": {"type": "string"}}}
        headers = {**({"ETag": ETAG} if operation.etag else {})}
        if operation.id == "create_conversation":
            headers = {"ETag": ETAG, "Location": LOCATION}
        if headers:
            answer["headers"] = headers
        self._content(Problem)
        problem = {"schema": reference(Problem.__name__)}
        faults = {
            str(int(status)): {"description": FAULTS[status], "content": {MEDIA_TYPE: problem}}
            for status in sorted(_faults(operation, has_id="{memory_id}" in self.path))
        }
        return {str(int(operation.status)): answer, **faults}

    def _content(self, kind: type) -> dict[str, Any]:
        for name, schema in components(kind).items():
            component = ResolvedComponent(name, ResolvedComponent.SCHEMA, _in_version(schema), object=name)  # type: ignore[no-untyped-call]
            self.registry.register_on_missing(component)
        content: dict[str, Any] = {"schema": reference(kind.__name__)}
        if kind in EXAMPLES:
            content["examples"] = {name: {"value": value} for name, value in EXAMPLES[kind].items()}
        return content


def _faults(operation: Operation, *, has_id: bool) -> set[HTTPStatus]:
    faults = {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.TOO_MANY_REQUESTS,
    }
    if has_id:
        faults.add(HTTPStatus.NOT_FOUND)
    if operation.match or operation.retry:
        faults.add(HTTPStatus.PRECONDITION_FAILED)
    if operation.retry:
        faults.add(HTTPStatus.UNPROCESSABLE_ENTITY)
    if operation.body is not None or (operation.lines and operation.answer is not None):
        faults |= {HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNSUPPORTED_MEDIA_TYPE}
    if operation.status == HTTPStatus.CREATED and not has_id:
        faults.add(HTTPStatus.CONFLICT)
    return faults


def _path_parameters(path: str) -> list[dict[str, Any]]:
    known = {
        "memory_id": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[^/]+$"},
        "sequence": {"type": "integer", "minimum": 0},
    }
    return [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name, schema in known.items()
        if f"{{{name}}}" in path
    ]


def _headers(operation: Operation) -> list[dict[str, Any]]:
    headers = []
    if operation.match or operation.retry:
        headers.append(_header("If-Match", "Do it only if the conversation is still in the state of this ETag."))
    if operation.retry:
        headers.append(
            _header("Idempotency-Key", "A name for this request: sent again with it, nothing is stored twice.", 255)
        )
    return headers


def _header(name: str, description: str, longest: int | None = None) -> dict[str, Any]:
    schema = {"type": "string", **({} if longest is None else {"minLength": 1, "maxLength": longest})}
    return {"name": name, "in": "header", "description": description, "schema": schema}


def _in_version(schema: Any) -> Any:
    """*schema*, which is JSON Schema, in the words of the OpenAPI version that the site asked for."""
    if isinstance(schema, list):
        return [_in_version(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    is_older = spectacular_settings.OAS_VERSION.startswith("3.0")
    if is_older and "contentEncoding" in schema:
        return {"type": "string", "format": "byte"}
    if is_older and {"type": "null"} in schema.get("anyOf", ()):
        rest = [_in_version(item) for item in schema["anyOf"] if item != {"type": "null"}]
        others = {name: value for name, value in schema.items() if name != "anyOf"}
        return {**others, "nullable": True, **({"allOf": rest} if len(rest) == 1 else {"anyOf": rest})}
    return {name: _in_version(value) for name, value in schema.items()}
