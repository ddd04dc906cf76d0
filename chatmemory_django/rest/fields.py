"""Fields of requests and responses: stricter than DRF's own, and one for whole messages, in either format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, cast

import msgspec
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail

from chatmemory_django import conf
from chatmemory_django.codec import MAX_REASON
from chatmemory_django.core.limits import (
    MAX_INTEGER,
    MAX_MEMORY_ID_LENGTH,
    MAX_WHERE,
    check_text_length,
    is_uuid,
    memory_key,
)
from chatmemory_django.core.media import AddressError, check_files
from chatmemory_django.db.moments import aware
from chatmemory_django.formats.openai_chat import INVALID, message_from_openai, message_to_openai
from chatmemory_django.messages import ChatMessage
from chatmemory_django.models.columns import to_columns, to_metadata
from chatmemory_django.operations.one_by_one import as_kept
from chatmemory_django.rest.filters import moment
from chatmemory_django.rest.problems import FieldName, InvalidQuery

_LOCATED = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)


class Strict:
    """A mixin for serializers that rejects unknown and read-only fields."""

    is_strict = True

    def to_internal_value(self, data: Any) -> Any:
        found: dict[str, Any] = {}
        if isinstance(data, Mapping):
            for name in sorted(data.keys() - {field.field_name for field in self._writable_fields}):  # type: ignore[attr-defined]
                known = name in self.fields  # type: ignore[attr-defined]
                detail = "This field is read-only." if known else "Unknown field."
                found[FieldName(name[:MAX_WHERE])] = [ErrorDetail(detail, "read_only" if known else "unknown")]
        try:
            value = super().to_internal_value(data)  # type: ignore[misc]
        except serializers.ValidationError as exc:
            is_of_fields = isinstance(data, Mapping)
            for name, each in cast("dict[str, Any]", exc.detail).items():
                found.setdefault(FieldName(name) if is_of_fields else name, each)
            raise serializers.ValidationError(found) from None
        if found:
            raise serializers.ValidationError(found)
        return value


class TextField(serializers.CharField):
    """A string, unchanged. DRF's own field also accepts numbers, and strips whitespace."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(trim_whitespace=False, **kwargs)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return data


class BooleanField(serializers.BooleanField):
    """True or false. DRF's own field also accepts strings and numbers."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid", input=type(data).__name__)
        return data


class MomentField(serializers.DateTimeField):
    """A date and time with a time zone, even if ``USE_TZ`` is off."""

    def to_internal_value(self, value: Any) -> datetime:
        try:
            return moment(str(value))
        except ValueError as exc:
            raise serializers.ValidationError(str(exc)) from None

    def to_representation(self, value: datetime) -> datetime:  # type: ignore[override]  # the renderer writes it
        return aware(value)


@extend_schema_field({"type": "object", "additionalProperties": {}})
class MetadataField(serializers.JSONField):
    """A JSON object of at most ``MAX_METADATA_BYTES``."""

    def to_internal_value(self, data: Any) -> Any:
        try:
            metadata = to_metadata(data)
        except (TypeError, ValueError) as exc:
            raise serializers.ValidationError(str(exc)) from None
        most = conf.rest().MAX_METADATA_BYTES
        if (size := len(msgspec.json.encode(metadata))) > most:
            raise serializers.ValidationError(f"It must have at most {most} bytes, not {size}.", "too_large")
        return metadata


class MessageField(serializers.Field):
    """A message: LangChain4j's have a ``type``, OpenAI's a ``role``."""

    def to_internal_value(self, data: Any) -> ChatMessage:
        try:
            if isinstance(data, dict) and "role" in data:
                # Results have no tool names; these come from the calls in earlier messages.
                message = message_from_openai(data, self._tool_names())
            else:
                message = msgspec.convert(data, ChatMessage)
                if unknown := dict(_unknown(data, message, "")):
                    raise serializers.ValidationError(unknown)
            to_columns(as_kept(message))
            check_text_length(message, conf.rest().MAX_TEXT_LENGTH)
            view = self.context["view"]
            check_files(message, remote=view.policy.may_link_files(view.request))
        except AddressError as exc:
            # In OpenAI's format, a part has its address elsewhere.
            where = exc.where if "role" not in data else exc.where.replace("contents", "content", 1).partition(".")[0]
            raise serializers.ValidationError({where: [sentence(exc)]}) from None
        except INVALID as exc:
            raise serializers.ValidationError(_located(str(exc))) from None
        return message

    def _tool_names(self) -> dict[str, str | None]:
        names: dict[str, str | None] = self.root.__dict__.setdefault("tool_names", {})
        return names

    def to_representation(self, value: ChatMessage) -> Any:
        """See ``Field``. The format is ``as`` in the context."""
        return in_format(value, self.context)


class SequenceField(serializers.IntegerField):
    """The sequence of a message, or 0 for the start. DRF's own field also accepts strings."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(min_value=0, max_value=MAX_INTEGER, **kwargs)

    def to_internal_value(self, data: Any) -> int:
        if type(data) is not int and not (isinstance(data, float) and data.is_integer()):  # as in JSON Schema
            self.fail("invalid")
        return int(data)


class NewMemoryIdField(TextField):
    """The memory id of a new conversation. Only staff may choose others than UUIDs, which the site itself may use."""

    def __init__(self, **kwargs: Any) -> None:
        about = "A UUID; staff may use any other id."
        super().__init__(**{"min_length": 1, "max_length": MAX_MEMORY_ID_LENGTH, "help_text": about, **kwargs})

    def run_validators(self, value: Any) -> None:
        super().run_validators(value)
        view = self.context["view"]
        if not is_uuid(value) and not view.policy.may_name(view.request):
            raise serializers.ValidationError("It must be a UUID, such as 0192f5a0-7c1e-7b39-9d3c-2f6d1c0b7a11.")
        try:
            memory_key(value)
        except ValueError as exc:
            raise serializers.ValidationError(str(exc)) from None


def in_format(message: ChatMessage, context: Mapping[str, Any]) -> Any:
    """
    Return *message* as JSON in the format ``as`` of *context*, by default in its ``site_format``.

    OpenAI's format cannot represent every message: 400 if the client asked for it, else LangChain4j's is used.
    """
    form = context.get("as")
    if (form or context["site_format"]) != "openai":
        return msgspec.to_builtins(message)
    try:
        return message_to_openai(message)
    except ValueError as exc:
        if form is None:
            return msgspec.to_builtins(message)
        raise InvalidQuery({"as": f"OpenAI's format cannot represent a message: {exc}"}) from None


def sentence(error: ValueError) -> str:
    """Return the reason of *error* as a sentence of its own, without the location before it."""
    reason = str(error)
    return reason[:1].upper() + reason[1:]


def _unknown(given: Any, made: Any, where: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the paths in *given* for which *made* has no field, with their errors."""
    if isinstance(made, msgspec.Struct):
        names = dict(zip(made.__struct_encode_fields__, made.__struct_fields__, strict=True))
        for key, item in given.items():
            path = f"{where}.{key[:MAX_WHERE]}".removeprefix(".")
            if key in names:
                yield from _unknown(item, getattr(made, names[key]), path)
            elif key != made.__struct_config__.tag_field:
                yield path, [ErrorDetail("Unknown field.", "unknown")]
    elif isinstance(made, (list, tuple)):
        for index, (item, its) in enumerate(zip(given, made, strict=False)):
            yield from _unknown(item, its, f"{where}[{index}]")


def _located(reason: str) -> Any:
    """Return the error in *reason*, under the path that msgspec put in it, if any."""
    match = _LOCATED.fullmatch(reason)
    what, path = match.groups() if match else (reason, "")
    what = f"{what[:MAX_REASON].removesuffix('.')}."
    return {path: [what]} if path else [what]
