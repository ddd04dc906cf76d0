"""Tools with which a model searches and reads the owner's earlier conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chatmemory_django.chat.tools import Tool
from chatmemory_django.operations.recall import Recall

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser
    from django.db.models import QuerySet

    from chatmemory_django.models import Conversation


def tools(
    *,
    owner: AbstractBaseUser | AnonymousUser | None = None,
    memory_id: object = None,
    conversations: QuerySet[Conversation] | None = None,
) -> list[Tool]:
    """
    Return the tools ``search_conversations`` and ``read_conversation`` for an ``Assistant``.

    They find what the owner and the assistant wrote in the owner's other conversations; see ``Recall``. The assistant
    fills in the owner and the memory id of the conversation that it answers. Pass *owner*, and *memory_id*, where there
    is no assistant; they take precedence over the assistant's owner, and apply in addition to its memory id. With
    *conversations*, only these are searched and read, and of them only the owner's.
    """
    recall = Recall(owner, memory_id=memory_id, conversations=conversations)
    return [Tool(recall.search_conversations), Tool(recall.read_conversation)]
