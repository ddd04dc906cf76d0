"""A toolset with which an agent searches and reads a user's earlier conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_ai.toolsets import FunctionToolset

from chatmemory_django.operations.recall import Recall

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser
    from django.db.models import QuerySet

    from chatmemory_django.models import Conversation


def recall_toolset(
    owner: AbstractBaseUser | AnonymousUser | None,
    *,
    memory_id: object = None,
    conversations: QuerySet[Conversation] | None = None,
) -> FunctionToolset[Any]:
    """
    Return a toolset with ``search_conversations`` and ``read_conversation``, for ``agent.run(…, toolsets=[…])``.

    They find what *owner* and assistants wrote in the owner's conversations, except in the present one, *memory_id*.
    With *conversations*, only these are searched and read, and of them only the owner's.
    """
    recall = Recall(owner, memory_id=memory_id, conversations=conversations)
    toolset: FunctionToolset[Any] = FunctionToolset(id="recall")
    toolset.add_function(recall.asearch_conversations, name="search_conversations")
    toolset.add_function(recall.aread_conversation, name="read_conversation")
    return toolset
