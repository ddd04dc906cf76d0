"""The subjects: ways to store a conversation, with one interface. This module has those made of this package."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

from benchmarks.histories import COST, Bound, estimator, load_conversation
from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.models.columns import to_columns, to_message
from chatmemory_django.stores.django import DjangoChatMemoryStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chatmemory_django.messages import ChatMessage


class Subject(ABC):
    """A way to store conversations in the database of *server*, with a memory of *bound*."""

    name: str
    label: str
    largest = 100_000
    """The longest history that it is measured with."""

    def __init__(self, server: str, bound: Bound) -> None:
        self.server = server
        self.using = f"{server}_{self.name}"
        """Its own alias, if it uses Django's connections."""
        self.bound = bound

    @abstractmethod
    def load(self, key: str, count: int) -> None:
        """Create the conversation *key*, with *count* messages in its history."""

    @abstractmethod
    def add(self, key: str, text: str, is_user: bool) -> None:
        """Add a message to the conversation *key*."""

    @abstractmethod
    def read(self, key: str) -> Sequence[Any]:
        """Return the memory of the conversation *key*."""

    def turn(self, key: str, user: str, reply: str) -> None:
        """Do what a site does for each exchange."""
        self.add(key, user, is_user=True)
        self.read(key)
        self.add(key, reply, is_user=False)

    def tell(self, statement: str) -> None:
        """Run *statement*, which configures the connection."""
        with connections[self.using].cursor() as cursor:
            cursor.execute(statement)

    def close(self) -> None:
        """Close connections."""
        connections[self.using].close()


class Ours(Subject):
    """The package, as a site uses it: every request creates a memory."""

    name = "ours"
    label = "**chatmemory_django**"
    largest = 1_000_000

    def memory(self, key: str) -> ChatMemory:
        store = DjangoChatMemoryStore(self.using)
        if self.bound.unit == "messages":
            return MessageWindowChatMemory(id=key, store=store, max_messages=self.bound.limit)
        return TokenWindowChatMemory(id=key, store=store, max_tokens=self.bound.limit, token_count_estimator=estimator)

    def load(self, key: str, count: int) -> None:
        load_conversation(self.server, key, count, self.bound)

    def add(self, key: str, text: str, is_user: bool) -> None:
        self.memory(key).add(UserMessage(text) if is_user else AiMessage(text))

    def read(self, key: str) -> list[ChatMessage]:
        return self.memory(key).messages()

    def turn(self, key: str, user: str, reply: str) -> None:
        memory = self.memory(key)
        memory.add(UserMessage(user))
        memory.messages()
        memory.add(AiMessage(reply))


class OursWithBinding(Ours):
    """The package with psycopg's server-side binding and prepared statements."""

    name = "ours_binding"
    label = "**chatmemory_django**, server-side binding"


class OursAsTurn(Ours):
    """The package, with a turn as one unit."""

    name = "ours_turn"
    label = "**chatmemory_django**, `memory.turn()`"

    def turn(self, key: str, user: str, reply: str) -> None:
        with self.memory(key).turn() as turn:
            turn.add(UserMessage(user))
            _ = turn.messages
            turn.add(AiMessage(reply))


class OursAsTurnWithBinding(OursAsTurn):
    """The package, with a turn as one unit, and psycopg's server-side binding and prepared statements."""

    name = "ours_turn_binding"
    label = "**chatmemory_django**, `memory.turn()`, server-side binding"


class OriginalsWay(Subject):
    """LangChain4j's algorithm: every add reads, counts, deletes and inserts the whole memory."""

    name = "original"
    label = "LangChain4j's algorithm on the ORM"

    def load(self, key: str, count: int) -> None:
        load_conversation(self.server, key, min(count, self.bound.limit // COST), self.bound)  # it keeps no more

    def add(self, key: str, text: str, is_user: bool) -> None:
        messages = [*self.read(key), UserMessage(text) if is_user else AiMessage(text)]
        self._trim(messages)
        with transaction.atomic(using=self.using):
            conversation = Conversation.objects.using(self.using).get(memory_id=key)
            Message.objects.using(self.using).filter(conversation=conversation).delete()
            rows = [
                Message(conversation=conversation, sequence=place, **to_columns(message)._asdict())
                for place, message in enumerate(messages, start=1)
            ]
            Message.objects.using(self.using).bulk_create(rows)

    def read(self, key: str) -> list[ChatMessage]:
        rows = Message.objects.using(self.using).filter(conversation__memory_id=key).order_by("sequence")
        messages = [to_message(*row) for row in rows.values_list("type", "text", "payload")]
        self._trim(messages)
        return messages

    def _trim(self, messages: list[ChatMessage]) -> None:
        while estimator.estimate_token_count_in_messages(messages) > self.bound.limit:
            del messages[0]


def own_subjects(server: str) -> list[type[Subject]]:
    """Return the subjects made of this package that support *server*."""
    return [Ours, *([OursWithBinding] if server == "postgresql" else []), OursAsTurn, OriginalsWay]
