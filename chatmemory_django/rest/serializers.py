"""Serializers of request bodies, and of responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import msgspec
from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from chatmemory_django import conf
from chatmemory_django.codec import message_to_json
from chatmemory_django.core.excerpts import snippet
from chatmemory_django.core.limits import (
    MAX_CLIENT_MESSAGE_ID_LENGTH,
    MAX_TITLE_LENGTH,
)
from chatmemory_django.core.media import without_files
from chatmemory_django.core.reasons import Reason
from chatmemory_django.core.shown import shown_message
from chatmemory_django.db.moments import aware
from chatmemory_django.messages import ChatMessage, MessageType
from chatmemory_django.models import MessageQuerySet
from chatmemory_django.models.alternatives import Place
from chatmemory_django.models.columns import SHOWN, ShownRow, text_of
from chatmemory_django.models.conversations import PREVIEW
from chatmemory_django.models.message_codec import complete, without_marks
from chatmemory_django.rest import examples
from chatmemory_django.rest.fields import (
    BooleanField,
    MessageField,
    MetadataField,
    MomentField,
    NewMemoryIdField,
    SequenceField,
    Strict,
    TextField,
    in_format,
)

# Requests


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


@extend_schema_serializer(examples=examples.shown(examples.CHANGE, request=True))
class ConversationChangeSerializer(Strict, serializers.Serializer[Any]):
    """Changes to a conversation. Metadata is replaced as a whole; omitted fields are kept."""

    title = TextField(required=False, allow_blank=True, max_length=MAX_TITLE_LENGTH)
    metadata = MetadataField(required=False, help_text="Any JSON object.")
    is_pinned = BooleanField(required=False)
    is_archived = BooleanField(required=False)


@extend_schema_serializer(examples=examples.shown(examples.NEW_CONVERSATION, request=True))
class NewConversationSerializer(ConversationChangeSerializer):
    """A new conversation. With a memory id chosen by the client, the request can be repeated safely."""

    memory_id = NewMemoryIdField(required=False)
    temporary = BooleanField(
        required=False,
        source="is_temporary",
        help_text="Whether it is erased after a period that the site sets, whatever is written to it.",
    )

    def validate_temporary(self, temporary: bool) -> bool:
        """Refuse a promise that nothing keeps: without the setting, no conversation is erased."""
        if temporary and (conf.retention() or {}).get("TEMPORARY") is None:
            raise serializers.ValidationError("This site has no temporary conversations; leave it out.")
        return temporary


@extend_schema_serializer(examples=examples.shown(examples.FORK, request=True))
class ForkSerializer(Strict, serializers.Serializer[Any]):
    """What to copy, and the memory id of the copy."""

    memory_id = NewMemoryIdField(required=False)
    through = SequenceField(
        required=False, help_text="The last message to copy, on any branch; by default the newest on the path."
    )


# Responses


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

    # Rows have ``sent`` if another message is shown instead. The context has the readable ``types``, the format ``as``,
    # ``media``, ``media_url`` (a function from sequence and index to a URL), the ``search`` term, and functions of the
    # conversation: ``remembers`` (whether a row is in the memory), and ``places`` (from rows to their places).

    sequence = serializers.IntegerField()
    created_at = MomentField()
    in_memory = serializers.BooleanField()
    on_path = serializers.BooleanField(help_text="False if it is on a branch other than the current one.")
    place = PlaceSerializer(allow_null=True, help_text="Null if the message has no alternatives.")
    token_count = serializers.IntegerField(allow_null=True)
    client_message_id = serializers.CharField(allow_null=True)
    metadata = serializers.DictField(allow_null=True)
    is_complete = serializers.BooleanField(help_text="False while the turn of the message has not ended.")
    is_pinned = serializers.BooleanField(help_text="True if it stays in the memory while it is on the path.")
    text = serializers.CharField(
        allow_null=True, help_text="What a person would read of the message. Null if the user may not read it."
    )
    message = MessageField(allow_null=True, help_text="Null if the user may not read it.")
    snippet = SnippetPartSerializer(
        many=True, required=False, help_text="Only in searches: the text around the hits, in pieces."
    )

    def to_representation(self, row: Any) -> dict[str, Any]:
        """See ``Serializer``. The fields of this class are read directly instead of one by one, for speed."""
        context = self._shown_in
        is_readable = row.type in context["types"]
        message: ChatMessage | None = (getattr(row, "sent", None) or row.chat_message) if is_readable else None
        shown = {
            "sequence": row.sequence,
            "created_at": aware(row.created_at),
            "in_memory": context["remembers"](row),
            "on_path": row.on_path,
            "place": self._place(row),
            "token_count": row.token_count,
            "client_message_id": row.client_message_id,
            "metadata": row.metadata if is_readable else None,
            "is_complete": row.is_complete,
            "is_pinned": row.is_pinned,
            "text": None if message is None else text_of(message),
            "message": None if message is None else _shown(row, message, context),
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


@extend_schema_serializer(examples=examples.shown(examples.HIT))
class HitSerializer(serializers.Serializer[Any]):
    """A message that a search found."""

    memory_id = serializers.CharField()
    title = serializers.CharField(help_text="The title of its conversation.")
    sequence = serializers.IntegerField()
    type = serializers.ChoiceField(choices=[each.value for each in MessageType])
    created_at = MomentField()
    snippet = SnippetPartSerializer(many=True, help_text="The text around the hits, in pieces.")

    def to_representation(self, hit: Any) -> dict[str, Any]:
        parts = [{"text": text, "is_hit": is_hit} for text, is_hit in hit.snippet.parts]
        return {**hit._asdict(), "created_at": aware(hit.created_at), "snippet": parts}


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
    left_out = serializers.ListField(
        child=serializers.IntegerField(),
        help_text="The sequences of older messages that are sent, too, but are too much for one response.",
    )
    limit = serializers.IntegerField()
    evict_to = serializers.IntegerField(
        allow_null=True, help_text="What is left once the limit was exceeded; null: as much as fits."
    )
    unit = serializers.ChoiceField(choices=["messages", "tokens"])
    explanation = ExplainedSerializer(many=True, required=False)


class ConversationSerializer(serializers.Serializer[Any]):
    """A conversation."""

    memory_id = serializers.CharField()
    owner = serializers.CharField(source="owner_id", allow_null=True, help_text="The primary key of the user.")
    title = serializers.CharField(allow_null=True, help_text="Null if the user may not read it.")
    metadata = MetadataField()
    assistant = serializers.CharField(
        help_text="The name of the assistant to which it belongs; empty for the one without a name."
    )
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
    temporary = serializers.BooleanField(source="is_temporary")
    kept_until = MomentField(
        allow_null=True, help_text="From when on it is erased, if nothing is added before; null: it is kept."
    )

    def to_representation(self, conversation: Any) -> dict[str, Any]:
        """See ``Serializer``. A title may quote messages, so users who may read none do not read it."""
        shown: dict[str, Any] = super().to_representation(conversation)
        view = self.context.get("view")  # without one, a site's own code asks
        if "title" in shown and view is not None and not view.types_in(conversation):
            shown["title"] = None
        if shown.get("preview"):
            shown["preview"] = shown["preview"][:PREVIEW]  # where texts are encrypted, the database does not cut them
        return shown


class RootSerializer(serializers.Serializer[Any]):
    """The addresses of the API."""

    conversations = serializers.URLField()
    messages = serializers.URLField()
    storage = serializers.URLField()
    usage = serializers.URLField(required=False, help_text="Only if the chat's app is installed.")
    chat = serializers.URLField(required=False, help_text="Only if the site has the chat.")

    def get_fields(self) -> dict[str, Any]:
        """See ``Serializer``. The name of the import is a keyword of Python."""
        return {**super().get_fields(), "import": serializers.URLField()}

    def to_representation(self, found: Any) -> dict[str, Any]:
        return dict(found)


class StorageSerializer(serializers.Serializer[Any]):
    """What the user's conversations take."""

    stored = serializers.IntegerField(help_text="The characters of texts and metadata, and the bytes of files.")
    limit = serializers.IntegerField(allow_null=True, help_text="How much it may be; null for no limit.")

    def to_representation(self, found: Any) -> dict[str, Any]:
        return dict(found)


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


class PinnedSerializer(serializers.Serializer[Any]):
    """The messages that were pinned, or no longer are."""

    messages = serializers.ListField(
        child=serializers.IntegerField(), help_text="The sequences of the message and of what belongs to it."
    )


class FilesLeftSerializer(serializers.Serializer[Any]):
    """What is left of an erased conversation, for a time."""

    files_to_delete = serializers.IntegerField(help_text="Files that the storage has still to delete.")


class ErasedSerializer(serializers.Serializer[Any]):
    """The result of erasing several conversations."""

    erased = serializers.IntegerField()
    protected = serializers.ListField(
        child=serializers.CharField(), help_text="Memory ids of conversations that other objects of the site protect."
    )
    files_to_delete = serializers.IntegerField(help_text="Files of the others that the storage has still to delete.")


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
    example = serializers.DictField(required=False, help_text="A right body, if the one of the request was wrong.")


def _many(serializer_class: Any) -> Any:
    return serializer_class(many=True, max_length=conf.rest().MAX_MESSAGES)


def shown_rows(
    messages: MessageQuerySet, serializer_class: type[Any], read: Callable[[Any], Any] = list
) -> list[Any] | None:
    """
    Return the rows of *messages* that *serializer_class* shows, as *read* returns them.

    Only a site's own serializer may need more of a message than a ``ShownRow`` has: it gets models.
    """
    if serializer_class is not MessageSerializer:
        models: list[Any] | None = read(messages)
        return models
    rows = read(messages.values_list(*SHOWN, named=True))
    return None if rows is None else [ShownRow(*row) for row in rows]


def json_size(metadata: Any) -> int:
    """Return how many bytes *metadata* has as JSON; 0 for none."""
    return len(msgspec.json.encode(metadata)) if metadata else 0


def size_of(row: Any, message: ChatMessage, *, inline: bool) -> int:
    """Return about how many characters are shown of *row* and its *message*, with files *inline* or without."""
    size = len(row.text) + json_size(row.metadata)
    if row.payload is None:
        return size + len(row.text)
    return size + len(row.payload if inline else message_to_json(without_files(message, str)))


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same as JSON. In Python, 1 and True are equal."""
    return msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")


def _shown(row: Any, message: ChatMessage, context: Mapping[str, Any]) -> Any:
    if row.payload is not None:  # otherwise it is only a text
        message = shown_message(message)
        if context.get("media") == "inline":
            [message] = complete([message], [row.sequence], context["at"])
        else:
            url_of = partial(context["media_url"], row.sequence)
            message = without_marks(without_files(message, url_of), url_of)
    return in_format(message, context)
