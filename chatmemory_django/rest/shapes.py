"""What goes over the wire: query parameters, bodies and answers. The OpenAPI schema is made from these, too."""

from __future__ import annotations

import types
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from django.utils import timezone
from msgspec import UNSET, Meta, UnsetType, field

from chatmemory_django.explain import Reason
from chatmemory_django.ids import MAX_CLIENT_MESSAGE_ID_LENGTH
from chatmemory_django.messages import MESSAGE_CLASSES, ChatMessage, MessageType
from chatmemory_django.models import Conversation, Message

MAX_SEQUENCE = 2_147_483_647

Moment: TypeAlias = Annotated[datetime, Meta(tz=True)]
ClientMessageId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_CLIENT_MESSAGE_ID_LENGTH)]
Title: TypeAlias = Annotated[str, Meta(max_length=255)]
Format: TypeAlias = Literal["langchain4j", "openai"]


class _Strict(msgspec.Struct, forbid_unknown_fields=True):
    """What comes in: what it does not know is wrong."""


class NoQuery(_Strict):
    """No query parameters."""


class ConversationsQuery(_Strict):
    """Which conversations to list. They come with the latest activity first."""

    title: Annotated[str, Meta(max_length=255, description="Have this in their title, in whatever case.")] | None = None
    metadata: (
        Annotated[
            str,
            Meta(
                pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}:[^\u0000]{0,255}$",
                description="Have this text at this key of their metadata, written as `key:text`.",
            ),
        ]
        | None
    ) = None
    active_since: Annotated[datetime, Meta(tz=True, description="Were written to then or later.")] | None = None
    idle_since: Annotated[datetime, Meta(tz=True, description="Were not written to since.")] | None = None
    search: (
        Annotated[str, Meta(min_length=1, max_length=255, description="Have this in their title or in what was said.")]
        | None
    ) = None
    cursor: (
        Annotated[str, Meta(pattern=r"^[0-9]{1,16}-[0-9]{1,18}$", description="Where the page before this ended.")]
        | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=MAX_SEQUENCE, description="How many to a page.")] | None = None


class MessagesQuery(_Strict):
    """
    Which messages to list: the last ones, or those after or before a sequence, in order either way.

    With a filter, a page may hold fewer than `limit`, even none, and still have a `next` or a `previous`.
    """

    after: Annotated[int, Meta(ge=0, le=MAX_SEQUENCE, description="Come after this sequence.")] | None = None
    before: Annotated[int, Meta(ge=0, le=MAX_SEQUENCE, description="Come before this sequence.")] | None = None
    type: Annotated[MessageType, Meta(description="Are of this type.")] | None = None
    in_memory: Annotated[bool, Meta(description="Are in the memory, or are not.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_SEQUENCE, description="How many to a page.")] | None = None
    format: Annotated[Format, Meta(description="How the messages are told.")] = field(name="as", default="langchain4j")


class FormatQuery(_Strict):
    """In which format messages are told."""

    format: Annotated[Format, Meta(description="How the messages are told.")] = field(name="as", default="langchain4j")


class MemoryQuery(_Strict):
    """Through which window to read the memory; by default through its own."""

    max_messages: Annotated[int, Meta(ge=1, le=MAX_SEQUENCE, description="At most so many messages.")] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_SEQUENCE, description="At most so many tokens.")] | None = None
    explain: Annotated[bool, Meta(description="Say of every recent message whether it is sent, and why.")] = False
    format: Annotated[Format, Meta(description="How the messages are told.")] = field(name="as", default="langchain4j")


class UsageQuery(_Strict):
    """What to count."""

    by: Annotated[Literal["day", "conversation", "model"], Meta(description="What to add up by.")] = "day"
    since: Annotated[datetime, Meta(tz=True, description="From then on; by default, 30 days ago.")] | None = None
    until: Annotated[datetime, Meta(tz=True, description="Until before then; by default, now.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_SEQUENCE, description="How many rows.")] | None = None


class NewConversation(_Strict):
    """A conversation to be begun. With a memory id of the client's, the request can be sent again."""

    memory_id: UUID | None = None
    title: Title = ""
    metadata: dict[str, Any] = {}


class ConversationChange(_Strict):
    """What to change of a conversation: what is left out stays, metadata are replaced as a whole."""

    title: Title | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


class NewMessages(_Strict):
    """
    Messages to be added at the end, all or none, in the format of LangChain4j or that of OpenAI.

    With `client_message_ids`, one for each, or an `Idempotency-Key`, the request can be sent again. `metadata`, the
    model and its usage for example, are kept with each of the messages.
    """

    messages: list[dict[str, Any]]
    client_message_ids: list[ClientMessageId | None] | None = None
    metadata: dict[str, Any] | None = None


class NewMemory(_Strict):
    """Messages that are to be the whole memory, a summary for example, in the format of LangChain4j or of OpenAI."""

    messages: list[dict[str, Any]]


class ConversationView(msgspec.Struct):
    """A conversation."""

    memory_id: str
    owner: str | None
    title: str
    metadata: dict[str, Any]
    messages: int
    """How many were ever said."""
    memory_messages: int
    created_at: Moment
    updated_at: Moment

    @classmethod
    def of(cls, conversation: Conversation) -> ConversationView:
        """The view of *conversation*."""
        return cls(
            conversation.memory_id,
            None if conversation.owner_id is None else str(conversation.owner_id),
            conversation.title,
            conversation.metadata,
            conversation.total_messages,
            conversation.memory_messages,
            aware(conversation.created_at),
            aware(conversation.updated_at),
        )


class ConversationPage(msgspec.Struct):
    """Conversations, and where to go on."""

    results: list[ConversationView]
    next: str | None


class MessagePage(msgspec.Struct):
    """Messages in order, and where to go on in either direction."""

    results: list[dict[str, Any]]
    next: str | None
    previous: str | None


class Added(msgspec.Struct):
    """The sequences of messages that were added, or had been when the same request came before."""

    sequences: list[int]


class Explained(msgspec.Struct):
    """Whether a message is sent to the LLM, and why."""

    sequence: int
    type: MessageType
    sent: bool
    reason: Reason
    token_count: int | None


class MemoryView(msgspec.Struct, omit_defaults=True):
    """What the LLM would be sent now."""

    messages: list[dict[str, Any]]
    limit: int
    unit: Literal["messages", "tokens"]
    explanation: list[Explained] | None = None


class UsageRow(msgspec.Struct):
    """What was said on a day, in a conversation or by a model: null where no model was noted."""

    key: str | None
    messages: int
    tokens: int


class UsageView(msgspec.Struct):
    """What was said."""

    by: Literal["day", "conversation", "model"]
    since: Moment
    until: Moment
    results: list[UsageRow]


class ImportedConversation(msgspec.Struct):
    """A conversation that was imported."""

    memory_id: str
    messages: int


class Imported(msgspec.Struct):
    """What was imported."""

    conversations: list[ImportedConversation]


def _stored_class(cls: type[ChatMessage], fields: list[tuple[str, Any, Any]]) -> type[msgspec.Struct]:
    # Not msgspec.defstruct: it takes no class that has a metaclass of its own, as a tool's result has.
    body: dict[str, Any] = {name: default for name, _, default in fields}
    body["__annotations__"] = {name: hint for name, hint, _ in fields}
    body["__doc__"] = f"A {cls.__name__} with its place in the history."
    options = {"kw_only": True, "tag_field": "type", "tag": cls.type.value}
    return types.new_class(f"Stored{cls.__name__}", (cls,), options, lambda namespace: namespace.update(body))


STORED_CLASSES = tuple(
    _stored_class(
        cls,
        [
            ("sequence", int, field(name="sequence")),
            ("created_at", Moment, field(name="created_at")),
            ("in_memory", bool, field(name="in_memory")),
            ("is_complete", bool, field(name="is_complete")),
            ("token_count", int | None, field(name="token_count")),
        ],
    )
    for cls in MESSAGE_CLASSES
)
"""The answers' messages as types: what ``stored`` makes, in words that the OpenAPI schema understands."""


class ToldMessage:
    """A message in either format: one of the ``STORED_CLASSES``, or one of OpenAI's."""


def stored(row: Message, message: ChatMessage, *, in_memory: bool, token_count: int | None) -> dict[str, Any]:
    """*message*, which *row* holds, as the API tells it."""
    said: dict[str, Any] = msgspec.to_builtins(message)
    said["sequence"] = row.sequence
    said["created_at"] = aware(row.created_at)
    said["in_memory"] = in_memory
    said["is_complete"] = row.is_complete
    said["token_count"] = token_count
    return said


def aware(moment: datetime) -> datetime:
    """*moment* as the API tells it: with its time zone, which columns do not have where ``USE_TZ`` is off."""
    return timezone.make_aware(moment) if timezone.is_naive(moment) else moment
