"""What the chat needs of the store to record calls of models beside an answer, until the store has a hook for it."""

from chatmemory_django.stores.django.statements import insert_calls

__all__ = ["insert_calls"]
