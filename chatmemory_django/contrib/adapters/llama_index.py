"""A chat store of LlamaIndex in the site's database, and the records of what calls of models used."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from django.contrib.auth import get_user_model
from django.db import router
from django.db.models import Exists, OuterRef, Q

from chatmemory_django.chat.model import TokenUsage
from chatmemory_django.db.batches import in_parts
from chatmemory_django.db.threads import to_its_end
from chatmemory_django.formats.llama_index import LLAMA_INDEX, item_to_message
from chatmemory_django.formats.verbatim import items_of, to_new_message
from chatmemory_django.messages import ChatMessage as NativeMessage
from chatmemory_django.messages import NewMessage
from chatmemory_django.models import Conversation, Message, MessageQuerySet
from chatmemory_django.models.columns import HistoryRow
from chatmemory_django.provider import MemoryConfiguration
from chatmemory_django.stores.django import DjangoChatMemoryStore

try:
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.bridge.pydantic import Field, PrivateAttr, field_serializer, field_validator
    from llama_index.core.callbacks import CBEventType, EventPayload
    from llama_index.core.callbacks.base_handler import BaseCallbackHandler
    from llama_index.core.callbacks.token_counting import get_tokens_from_response
    from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus
except ModuleNotFoundError as exc:
    raise ImportError(
        "DjangoChatStore requires llama-index-core: pip install 'chatmemory_django[llama-index]'."
    ) from exc

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

    from chatmemory_django.chat.costs.calls import CallRecorder

Item: TypeAlias = dict[str, Any]
"""The JSON of a message."""

ACTIVE, ARCHIVED = MessageStatus.ACTIVE, MessageStatus.ARCHIVED

BATCH = 500
"""The maximum number of messages in one statement."""


class DjangoChatStore(AsyncDBChatStore):
    """
    The site's conversations, for ``Memory.from_defaults(session_id=…, chat_store=…)``.

    A key is the memory id of a conversation. Active messages are those in its memory, and archived messages are the
    rest of its history. Messages are returned as they were given, in order, and each is also a message of the
    conversation. LlamaIndex decides when messages are archived: until then, its messages stay in the memory, whatever
    the setting ``MEMORY`` is. Only messages that the site itself adds evict others.

    With an *owner*, new conversations belong to that user, and conversations of other users are inaccessible: writing
    raises ``PermissionDenied``, reading returns no messages. Always pass an owner if keys come from requests. Creating
    a store reads nothing.
    """

    owner: Any = Field(default=None, description="The user whose conversations these are; None for those of all.")

    _store: DjangoChatMemoryStore = PrivateAttr()

    def __init__(self, *, owner: AbstractBaseUser | None = None) -> None:
        super().__init__(owner=owner)  # type: ignore[call-arg]  # of the fields
        # LlamaIndex archives what it has read, so reads must not come from a replica.
        self._store = DjangoChatMemoryStore(router.db_for_write(Conversation), owner=self.owner)

    @field_serializer("owner")
    def _to_key(self, owner: AbstractBaseUser | None) -> Any:
        return None if owner is None else owner.pk

    @field_validator("owner")
    @classmethod
    def _of_key(cls, owner: Any) -> Any:
        """Accept a user's key from serialized data."""
        users = get_user_model()
        return users(pk=users._meta.pk.to_python(owner)) if isinstance(owner, (int, str, uuid.UUID)) else owner

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the class."""
        return "DjangoChatStore"

    async def get_messages(
        self,
        key: str,
        status: MessageStatus | None = ACTIVE,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[ChatMessage]:
        """Return messages with *status*, or all for None, oldest first: all, or *limit* of them from *offset* on."""
        return _messages(await self._store.run(self._queue(key).read, status, limit, offset or 0))

    async def count_messages(self, key: str, status: MessageStatus | None = ACTIVE) -> int:
        """Return the number of messages with *status*, or of all for None, including other frameworks' own messages."""
        return await self._store.run(self._queue(key).count, status)

    async def add_message(self, key: str, message: ChatMessage, status: MessageStatus = ACTIVE) -> None:
        """Add *message* at the end; raise ``TypeError`` or ``ValueError`` if it cannot be stored."""
        await self.add_messages(key, [message], status)

    async def add_messages(self, key: str, messages: Sequence[ChatMessage], status: MessageStatus = ACTIVE) -> None:
        """Add *messages* at the end, all or none; raise ``TypeError`` or ``ValueError`` if one cannot be stored."""
        await to_its_end(self._store.run(self._queue(key).add, messages, status))

    async def set_messages(self, key: str, messages: Sequence[ChatMessage], status: MessageStatus = ACTIVE) -> None:
        """Start again with *messages*, which replace all others, including archived ones."""
        await to_its_end(self._store.run(self._queue(key).set, messages, status))

    async def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Remove the message whose sequence is *idx*, and return it; None if there is no such message."""
        found = _messages(await to_its_end(self._store.run(self._queue(key).take, idx)))
        return found[0] if found else None

    async def delete_messages(self, key: str, status: MessageStatus | None = None) -> None:
        """Remove the messages with *status*; for None, start again without messages."""
        await to_its_end(self._store.run(self._queue(key).delete, status))

    async def delete_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Remove the oldest *n* active messages, and return them."""
        return _messages(await to_its_end(self._store.run(self._queue(key).delete_oldest, n)))

    async def archive_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Archive the oldest *n* active messages, and return them."""
        return _messages(await to_its_end(self._store.run(self._queue(key).archive_oldest, n)))

    async def get_keys(self) -> list[str]:
        """Return the keys of all conversations with messages."""
        return await self._store.run(self._keys)

    def _queue(self, key: str) -> _Queue:
        return _Queue(key, self._store)

    def _keys(self) -> list[str]:
        messages = Message.objects.history().filter(conversation=OuterRef("pk"))
        found = self._store.conversations().filter(Exists(messages) | Q(memory_messages__gt=0))
        return list(found.order_by("pk").values_list("memory_id", flat=True))


class _Queue:
    """The active and the archived messages of the conversation *key* in *store*."""

    def __init__(self, key: str, store: DjangoChatMemoryStore) -> None:
        self._key = key
        self._store = store

    def read(self, status: MessageStatus | None, limit: int | None, offset: int) -> list[Item]:
        end = None if limit is None else offset + limit
        if status == ACTIVE:
            return _items(self._store.read_remembered(self._key))[offset:end]
        rows = self._rows(status)
        found: list[Item] = []
        behind = 0
        while end is None or len(found) < end:
            page = _read_rows(rows.filter(sequence__gt=behind)[:end])
            found += _items(page)
            if end is None or len(page) < end:
                break
            behind = page[-1].sequence
        return found[offset:end]

    def count(self, status: MessageStatus | None) -> int:
        if status != ACTIVE:
            return self._rows(status).count()
        return self._store.named(self._key).values_list("memory_messages", flat=True).first() or 0

    def add(self, messages: Sequence[ChatMessage], status: MessageStatus) -> None:
        self._append(messages, status)

    def set(self, messages: Sequence[ChatMessage], status: MessageStatus) -> None:
        if messages:
            self._append(messages, status, after=0)
        else:
            self.delete(None)

    def take(self, sequence: int) -> list[Item]:
        with self._locked() as conversation:
            if conversation is None:
                return []
            found = _items(_read_rows(_all(conversation).filter(sequence=sequence).select_for_update()))
            if found:
                self._store.remove(self._key, sequence)
            return found

    def delete(self, status: MessageStatus | None) -> None:
        if status is None:
            self._store.rewind(self._key, 0, MemoryConfiguration.of(self._key).window())
            return
        with self._locked() as conversation:
            if conversation is not None:
                rows = conversation.memory() if status == ACTIVE else conversation.evicted()
                self._remove(list(rows.select_for_update().values_list("sequence", flat=True)))

    def delete_oldest(self, n: int) -> list[Item]:
        return self._take_oldest(n, self._remove)

    def archive_oldest(self, n: int) -> list[Item]:
        return self._take_oldest(n, lambda oldest: self._store.evict(self._key, len(oldest)))

    def _rows(self, status: MessageStatus | None) -> MessageQuerySet:
        """Return the rows of archived messages, or of all messages, in order."""
        conversation = self._store.named(self._key).first()
        if conversation is None:
            return Message.objects.none()
        return _all(conversation) if status is None else conversation.evicted()

    def _append(self, messages: Sequence[ChatMessage], status: MessageStatus, after: int | None = None) -> None:
        new = [_new_message(message, index) for index, message in enumerate(messages)]
        if new:
            window, archived = MemoryConfiguration.of(self._key).window().unbounded(), status == ARCHIVED
            self._store.append_messages(self._key, new, window, after=after, repeats=True, archived=archived)

    def _take_oldest(self, n: int, take: Callable[[Sequence[int]], object]) -> list[Item]:
        """Remove the oldest *n* messages that LlamaIndex can read, and any between them, and return them."""
        oldest: list[int] = []
        found: list[Item] = []
        with self._locked() as conversation:
            for row in [] if conversation is None else _read_rows(conversation.memory().select_for_update()):
                if len(found) >= n:
                    break
                oldest.append(row.sequence)
                found += _items([row])
            if found:
                take(oldest)
        return found

    def _remove(self, sequences: Sequence[int]) -> None:
        for some in in_parts(sequences, BATCH):
            self._store.remove(self._key, *some)

    @contextmanager
    def _locked(self) -> Iterator[Conversation | None]:
        """Lock the conversation against other writers, and yield it; None if the owner has no such conversation."""
        if not self._store.named(self._key).exists():  # otherwise it would be created
            yield None
            return
        with self._store.exclusive(self._key):
            # A locking read sees the latest rows, even if the caller's transaction has an older snapshot.
            yield self._store.named(self._key).select_for_update().first()


def _all(conversation: Conversation) -> MessageQuerySet:
    """Return all messages, including those that the site added only to the memory."""
    return conversation.history() | conversation.messages.in_memory()


def _read_rows(rows: MessageQuerySet) -> list[HistoryRow]:
    return list(map(HistoryRow._make, rows.values_list(*HistoryRow._fields)))


def _items(rows: Iterable[HistoryRow]) -> list[Item]:
    return [item for row in rows for item in items_of(row, LLAMA_INDEX)]


def _messages(items: Iterable[Item]) -> list[ChatMessage]:
    return list(map(ChatMessage.model_validate, items))


def _new_message(message: object, index: int) -> NewMessage:
    if not isinstance(message, ChatMessage):
        raise TypeError(f"messages[{index}] must be a ChatMessage, not {type(message).__name__}.")
    return to_new_message(message.model_dump(mode="json"), LLAMA_INDEX, f"messages[{index}]")


class LlamaIndexCalls(BaseCallbackHandler):
    """
    Records each call of a model as by ``record_call``, as one of the handlers of ``llm.callback_manager``.

    An event loop waits for the database: LlamaIndex's callbacks cannot be awaited.
    """

    def __init__(
        self,
        purpose: str = "answer",
        *,
        owner: AbstractBaseUser | None = None,
        memory_id: object = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(event_starts_to_ignore=[], event_ends_to_ignore=[])
        from chatmemory_django.chat.costs.calls import record_call  # its tables are the chat's

        self._recorder = partial(record_call, purpose, owner=owner, memory_id=memory_id, labels=labels)
        self._recorder()  # an invalid purpose is an error at once
        self._open: dict[str, tuple[CallRecorder, Any]] = {}
        self._last: ContextVar[str] = ContextVar("_last", default="")

    def on_event_start(
        self, event_type: CBEventType, payload: dict[str, Any] | None = None, event_id: str = "", parent_id: str = "",
        **kwargs: Any,
    ) -> str:  # fmt: skip
        """Note that a call of a model begins; one of the same model inside, as of a ``CustomLLM``, is the same call."""
        model = (payload or {}).get(EventPayload.SERIALIZED) or {}
        if event_type == CBEventType.LLM and self._open.get(self._last.get(), (None, None))[1] != model:
            call = self._recorder(str(model.get("model") or model.get("model_name") or ""))
            call.sends(_parts(payload or {}))
            self._open[event_id] = call, model
            self._last.set(event_id)
        return event_id

    def on_event_end(
        self, event_type: CBEventType, payload: dict[str, Any] | None = None, event_id: str = "", **kwargs: Any
    ) -> None:
        """Record a call that has ended, has failed, or was cancelled."""
        call, _ = self._open.pop(event_id, (None, None))
        found = payload or {}
        if call is None:
            return
        response = found.get(EventPayload.RESPONSE) or found.get(EventPayload.COMPLETION)
        if response is not None:
            tokens = get_tokens_from_response(response)
            call.used(TokenUsage(*tokens) if any(tokens) else TokenUsage())
        call.end(found.get(EventPayload.EXCEPTION))

    def start_trace(self, trace_id: str | None = None) -> None:
        """Do nothing: calls are recorded one by one."""

    def end_trace(self, trace_id: str | None = None, trace_map: dict[str, list[str]] | None = None) -> None:
        """Do nothing, too."""


def _parts(payload: dict[str, Any]) -> Iterator[NativeMessage | str]:
    """Yield what is sent."""
    for message in payload.get(EventPayload.MESSAGES) or ():
        yield item_to_message(message.model_dump(mode="json"))
    yield str(payload.get(EventPayload.PROMPT) or "")
