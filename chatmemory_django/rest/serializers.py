"""Serializers of the REST API. One field reads and writes whole messages, in either format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cached_property, partial
from typing import Any

import msgspec
from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail

from chatmemory_django import conf
from chatmemory_django.core.limits import (
    MAX_CLIENT_MESSAGE_ID_LENGTH,
    MAX_INTEGER,
    MAX_MEMORY_ID_LENGTH,
    MAX_WHERE,
    is_uuid,
    memory_key,
)
from chatmemory_django.core.media import without_files
from chatmemory_django.core.reasons import Reason
from chatmemory_django.db.moments import aware
from chatmemory_django.formats.openai_chat import INVALID, message_from_openai, message_to_openai
from chatmemory_django.messages import ChatMessage, MessageType
from chatmemory_django.models import MemoryStatus
from chatmemory_django.models.alternatives import Place
from chatmemory_django.models.columns import to_columns, to_metadata
from chatmemory_django.rest import examples
from chatmemory_django.rest.filters import moment
from chatmemory_django.rest.problems import InvalidQuery
from chatmemory_django.search.excerpts import snippet

MAX_REASON = 300
"""Maximum number of characters of an error detail, which may repeat keys that the client sent."""

FORMATS = ("langchain4j", "openai")

IN_MEMORY = frozenset(each.value for each in MemoryStatus if each.is_in_memory)

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
                found[name[:MAX_WHERE]] = [ErrorDetail(detail, "read_only" if known else "unknown")]
        try:
            value = super().to_internal_value(data)  # type: ignore[misc]
        except serializers.ValidationError as exc:
            raise serializers.ValidationError({**exc.detail, **found}) from None  # type: ignore[dict-item]
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
        most: int = conf.rest()["MAX_METADATA_BYTES"]
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
            to_columns(message)
        except INVALID as exc:
            raise serializers.ValidationError(_located(str(exc))) from None
        return message

    def _tool_names(self) -> dict[str, str | None]:
        names: dict[str, str | None] = self.root.__dict__.setdefault("tool_names", {})
        return names

    def to_representation(self, value: ChatMessage) -> Any:
        """See ``Field``. The format is ``as`` in the context."""
        return in_format(value, self.context.get("as"))


class NewMemoryMessageSerializer(Strict, serializers.Serializer[Any]):
    """A message of a new memory."""

    message = MessageField()


@extend_schema_serializer(examples=examples.shown(examples.NEW_MEMORY, request=True))
class NewMemorySerializer(Strict, serializers.Serializer[Any]):
    """Messages that replace the memory, for example a summary."""

    def get_fields(self) -> dict[str, Any]:
        """See ``Serializer``. The maximum number of messages is in the settings, which are read each time."""
        return {"messages": _many(NewMemoryMessageSerializer)}


class NewMessageSerializer(NewMemoryMessageSerializer):
    """A message to add."""

    client_message_id = TextField(
        required=False, allow_null=True, min_length=1, max_length=MAX_CLIENT_MESSAGE_ID_LENGTH,
        help_text="The client's own id of the message. A message sent again with the same id is not stored again.",
    )  # fmt: skip
    metadata = MetadataField(required=False, allow_null=True, help_text="Any JSON object.")


class SequenceField(serializers.IntegerField):
    """The sequence of a message, or 0 for the start. DRF's own field also accepts strings."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(min_value=0, max_value=MAX_INTEGER, **kwargs)

    def to_internal_value(self, data: Any) -> int:
        if type(data) is not int and not (isinstance(data, float) and data.is_integer()):  # as in JSON Schema
            self.fail("invalid")
        return int(data)


@extend_schema_serializer(examples=examples.shown(examples.NEW_MESSAGES, request=True))
class NewMessagesSerializer(Strict, serializers.Serializer[Any]):
    """Messages to add at the end or, as a branch, after another message: all or none."""

    after = SequenceField(
        required=False,
        help_text="Continue from this message. To edit a message, use the one before it; 0 is the start.",
    )

    def get_fields(self) -> dict[str, Any]:
        """See ``Serializer``. The maximum number of messages is in the settings, which are read each time."""
        return {"messages": _many(NewMessageSerializer), **super().get_fields()}


@extend_schema_serializer(examples=examples.shown(examples.FROM, request=True))
class FromSerializer(Strict, serializers.Serializer[Any]):
    """The message from which a conversation continues."""

    to = SequenceField(help_text="The sequence of a message on any branch; 0 for the start.")


@extend_schema_serializer(examples=examples.shown(examples.FEEDBACK, request=True))
class MetadataChangeSerializer(Strict, serializers.Serializer[Any]):
    """Changes to the metadata of a message: other keys are kept, and null removes a key."""

    metadata = MetadataField()


class PlaceSerializer(serializers.Serializer[Any]):
    """The position of a message among its alternatives on all branches, such as 2 of 3."""

    number = serializers.IntegerField()
    of = serializers.IntegerField()
    previous = serializers.IntegerField(
        allow_null=True, help_text="The sequence of the previous alternative, to switch to."
    )
    next = serializers.IntegerField(allow_null=True, help_text="The sequence of the next alternative.")


class SnippetPartSerializer(serializers.Serializer[Any]):
    """A piece of the text around a search hit."""

    text = serializers.CharField()
    is_hit = serializers.BooleanField()


@extend_schema_serializer(examples=examples.shown(examples.STORED))
class MessageSerializer(serializers.Serializer[Any]):
    """A message and its place in the conversation."""

    # Rows have a ``status``, and ``sent`` if another message is shown instead. The context has the readable ``types``,
    # the format ``as``, ``media``, ``media_url`` (a function from sequence and index to a URL), the ``search`` term,
    # and ``places`` (a function from rows to their places).

    sequence = serializers.IntegerField()
    created_at = MomentField()
    in_memory = serializers.BooleanField()
    on_path = serializers.BooleanField(help_text="False if it is on a branch other than the current one.")
    place = PlaceSerializer(allow_null=True, help_text="Null if the message has no alternatives.")
    token_count = serializers.IntegerField(allow_null=True)
    client_message_id = serializers.CharField(allow_null=True)
    metadata = serializers.DictField(allow_null=True)
    is_complete = serializers.BooleanField(help_text="False while the turn of the message has not ended.")
    message = MessageField(allow_null=True, help_text="Null if the user may not read it.")
    snippet = SnippetPartSerializer(
        many=True, required=False, help_text="Only in searches: the text around the hits, in pieces."
    )

    def to_representation(self, row: Any) -> dict[str, Any]:
        """See ``Serializer``. The fields of this class are read directly instead of one by one, for speed."""
        context = self._shown_in
        is_readable = row.type in context["types"]
        shown = {
            "sequence": row.sequence,
            "created_at": aware(row.created_at),
            "in_memory": row.status in IN_MEMORY,
            "on_path": row.on_path,
            "place": self._place(row),
            "token_count": row.token_count,
            "client_message_id": row.client_message_id,
            "metadata": row.metadata if is_readable else None,
            "is_complete": row.is_complete,
            "message": _shown(row, context) if is_readable else None,
        }
        if context.get("search"):
            parts = snippet(row.text, context["search"]).parts
            shown["snippet"] = [{"text": text, "is_hit": is_hit} for text, is_hit in parts]
        for name, field in self._own:
            if field is None:
                shown.pop(name, None)
            else:
                shown[name] = field.to_representation(field.get_attribute(row))
        return shown

    @cached_property
    def _shown_in(self) -> Mapping[str, Any]:
        """The context, looked up once instead of for each row."""
        return self.context

    def _place(self, row: Any) -> dict[str, Any] | None:
        """Return the place of *row*; the places of all rows of a page are read at once."""
        if row.sequence not in self._places and "place" in type(self)._declared_fields:
            page = self.parent.instance if isinstance(self.parent, serializers.ListSerializer) else None
            rows = [row] if page is None else page
            places: Mapping[int, Place] = self._shown_in["places"](rows)
            self._places.update({each.sequence: places.get(each.sequence) for each in rows})
        place = self._places.get(row.sequence)
        return None if place is None else place._asdict()

    @cached_property
    def _places(self) -> dict[int, Place | None]:
        """The places that were read, by sequence."""
        return {}

    @cached_property
    def _own(self) -> list[tuple[str, Any]]:
        """The fields that a subclass added or replaced, and None for those that it removed."""
        ours, theirs = MessageSerializer._declared_fields, type(self)._declared_fields
        changed = [(name, self.fields[name]) for name, field in theirs.items() if ours.get(name) is not field]
        return changed + [(name, None) for name in ours.keys() - theirs.keys()]


@extend_schema_serializer(examples=examples.shown(examples.STORED_MESSAGES))
class StoredMessagesSerializer(serializers.Serializer[Any]):
    """Messages as they are stored."""

    messages = MessageSerializer(many=True)


class ExplainedSerializer(serializers.Serializer[Any]):
    """Whether a message is sent to the model, and why."""

    sequence = serializers.IntegerField()
    type = serializers.ChoiceField(choices=[each.value for each in MessageType])
    is_sent = serializers.BooleanField()
    reason = serializers.ChoiceField(choices=[each.value for each in Reason])
    token_count = serializers.IntegerField(allow_null=True)


@extend_schema_serializer(examples=examples.shown(examples.MEMORY))
class MemorySerializer(serializers.Serializer[Any]):
    """What the model would be sent now, and why."""

    messages = MessageSerializer(many=True)
    limit = serializers.IntegerField()
    unit = serializers.ChoiceField(choices=["messages", "tokens"])
    explanation = ExplainedSerializer(many=True, required=False)


class NewMemoryIdField(TextField):
    """The memory id of a new conversation. Only staff may choose others than UUIDs, which the site itself may use."""

    def __init__(self, **kwargs: Any) -> None:
        about = "A UUID; staff may use any other id."
        super().__init__(**{"max_length": MAX_MEMORY_ID_LENGTH, "help_text": about, **kwargs})

    def run_validators(self, value: Any) -> None:
        super().run_validators(value)
        view = self.context["view"]
        if not is_uuid(value) and not view.policy.may_name(view.request):
            raise serializers.ValidationError("It must be a UUID, such as 0192f5a0-7c1e-7b39-9d3c-2f6d1c0b7a11.")
        try:
            memory_key(value)
        except ValueError as exc:
            raise serializers.ValidationError(str(exc)) from None


class ConversationChangeSerializer(Strict, serializers.Serializer[Any]):
    """Changes to a conversation. Metadata is replaced as a whole; omitted fields are kept."""

    title = TextField(required=False, allow_blank=True, max_length=255)
    metadata = MetadataField(required=False, help_text="Any JSON object.")
    is_pinned = BooleanField(required=False)
    is_archived = BooleanField(required=False)


@extend_schema_serializer(examples=examples.shown(examples.NEW_CONVERSATION, request=True))
class NewConversationSerializer(ConversationChangeSerializer):
    """A new conversation. With a memory id chosen by the client, the request can be repeated safely."""

    memory_id = NewMemoryIdField(required=False)


@extend_schema_serializer(examples=examples.shown(examples.FORK, request=True))
class ForkSerializer(Strict, serializers.Serializer[Any]):
    """What to copy, and the memory id of the copy."""

    memory_id = NewMemoryIdField(required=False)
    through = SequenceField(
        required=False, help_text="The last message to copy, on any branch; by default the newest on the path."
    )


class ConversationSerializer(serializers.Serializer[Any]):
    """A conversation."""

    memory_id = serializers.CharField()
    owner = serializers.CharField(source="owner_id", allow_null=True, help_text="The primary key of the user.")
    title = serializers.CharField()
    metadata = MetadataField()
    is_pinned = serializers.BooleanField()
    is_archived = serializers.BooleanField()
    preview = serializers.CharField(
        allow_null=True, help_text="The beginning of the last message that the user may read."
    )
    total_messages = serializers.IntegerField(help_text="The number of messages ever added.")
    memory_messages = serializers.IntegerField()
    memory_tokens = serializers.IntegerField(help_text="0 if they are not counted.")
    created_at = MomentField()
    updated_at = MomentField(help_text="When the last message was added.")


class UsageRowSerializer(serializers.Serializer[Any]):
    """Numbers of a day, a conversation or a model; the key is null if no model was recorded."""

    key = serializers.CharField(allow_null=True)
    messages = serializers.IntegerField()
    tokens = serializers.IntegerField()


class UsageSerializer(serializers.Serializer[Any]):
    """Numbers of messages and tokens in a period."""

    by = serializers.ChoiceField(choices=["day", "conversation", "model"])
    since = MomentField()
    until = MomentField()
    results = UsageRowSerializer(many=True)


class ImportedSerializer(serializers.Serializer[Any]):
    """An imported conversation."""

    memory_id = serializers.CharField()
    original_memory_id = serializers.CharField(help_text="The memory id in the file; with `?rename=1`, it differs.")
    total_messages = serializers.IntegerField()


class ImportsSerializer(serializers.Serializer[Any]):
    """The imported conversations."""

    conversations = ImportedSerializer(many=True)


@extend_schema_serializer(examples=examples.shown(examples.FROM))
class HeadSerializer(serializers.Serializer[Any]):
    """The message from which the conversation continues now."""

    to = serializers.IntegerField(help_text="The sequence of the newest message on the path; 0 for the start.")


@extend_schema_serializer(examples=examples.shown(examples.REMOVED))
class RemovedSerializer(serializers.Serializer[Any]):
    """The messages that were removed."""

    removed = serializers.ListField(child=serializers.IntegerField(), help_text="Their sequences.")


class ErasedSerializer(serializers.Serializer[Any]):
    """The result of erasing several conversations."""

    erased = serializers.IntegerField()
    protected = serializers.ListField(
        child=serializers.CharField(), help_text="Memory ids of conversations that other objects of the site protect."
    )


class ErrorSerializer(serializers.Serializer[Any]):
    """An error in a request, and where it is."""

    path = serializers.CharField(help_text="For example `$.messages[0].message.text`, `?page_size`, `line 3`.")
    code = serializers.CharField(help_text="A machine-readable code.")
    detail = serializers.CharField(help_text="An explanation for people.")


class ProblemSerializer(serializers.Serializer[Any]):
    """An error response: problem details of RFC 9457."""

    type = serializers.CharField(help_text="`urn:chatmemory:` and a machine-readable code.")
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    errors = ErrorSerializer(many=True)  # type: ignore[assignment]  # it becomes a field


class ShownQuery(serializers.Serializer[Any]):
    """The representation of messages."""

    media = serializers.ChoiceField(
        choices=["url", "inline"],
        required=False,
        help_text="Represent files as URLs, or as Base64 inside of messages.",
    )

    def get_fields(self) -> dict[str, Any]:
        """See ``Serializer``. The parameter's name is a keyword of Python."""
        form = serializers.ChoiceField(choices=FORMATS, required=False, help_text="The format of `message`.")
        return {"as": form, **super().get_fields()}


class MessagesQuery(ShownQuery):
    """The representation of messages, and which to list."""

    all_branches = serializers.BooleanField(required=False, help_text="Include messages on other branches.")


class RemovalQuery(serializers.Serializer[Any]):
    """What to remove."""

    with_results = serializers.BooleanField(
        required=False, help_text="Also remove the results of its tool calls, or the call that it answers."
    )


class MemoryQuery(ShownQuery):
    """The window through which to read a memory; by default its own."""

    max_messages = serializers.IntegerField(required=False, min_value=1, max_value=MAX_INTEGER)
    max_tokens = serializers.IntegerField(required=False, min_value=1, max_value=MAX_INTEGER)
    explain = serializers.BooleanField(
        required=False, help_text="Explain for each recent message whether and why it is sent."
    )


class UsageQuery(serializers.Serializer[Any]):
    """What to count."""

    by = serializers.ChoiceField(
        choices=["day", "conversation", "model"], required=False, help_text="What to group by; by default, the day."
    )
    since = MomentField(required=False, help_text="Start of the period, inclusive; by default, 30 days before its end.")
    until = MomentField(required=False, help_text="End of the period, exclusive; by default, now.")
    limit = serializers.IntegerField(
        required=False, min_value=1, max_value=MAX_INTEGER, help_text="Maximum number of rows."
    )
    owner = serializers.CharField(
        required=False, max_length=255, help_text="Owned by the user with this key, or `*` for all. Staff only."
    )


class ImportQuery(serializers.Serializer[Any]):
    """Options of an import."""

    rename = serializers.BooleanField(required=False, help_text="Give every conversation a new memory id.")


def _many(serializer_class: Any) -> Any:
    return serializer_class(many=True, max_length=conf.rest()["MAX_MESSAGES"])


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same as JSON. In Python, 1 and True are equal."""
    return msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")


def in_format(message: ChatMessage, form: str | None) -> Any:
    """Return *message* as JSON in the format *form*; 400 if OpenAI's format cannot represent it."""
    if form != "openai":
        return msgspec.to_builtins(message)
    try:
        return message_to_openai(message)
    except ValueError as exc:
        raise InvalidQuery({"as": f"OpenAI's format cannot represent a message: {exc}"}) from None


def _shown(row: Any, context: Mapping[str, Any]) -> Any:
    message: ChatMessage = getattr(row, "sent", None) or row.chat_message
    if row.payload is not None and context.get("media") != "inline":  # otherwise it is only a text
        message = without_files(message, partial(context["media_url"], row.sequence))
    return in_format(message, context.get("as"))


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
