"""The stores of memories. The store in Django's database is in ``stores.django``, since it needs the app registry."""

from chatmemory_django.stores.base import ChatMemoryStore
from chatmemory_django.stores.in_process import InMemoryChatMemoryStore, SingleSlotChatMemoryStore

__all__ = ["ChatMemoryStore", "InMemoryChatMemoryStore", "SingleSlotChatMemoryStore"]
