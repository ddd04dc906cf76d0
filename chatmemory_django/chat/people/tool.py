"""The tool with which an assistant asks for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import router

from chatmemory_django.chat.tools import ToolError
from chatmemory_django.core.limits import memory_key
from chatmemory_django.models import Conversation
from chatmemory_django.operations import hand_over
from chatmemory_django.stores.base import ConversationErasedError

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

COMING = (
    "A person has been asked, and will answer in this conversation as soon as possible; until then, nobody answers. "
    "Write that to the user in one sentence, and do not promise when it will be."
)
"""What the model reads as the result."""


def ask_a_person(  # noqa: D417  # the docstring is for the model, which passes the reason alone
    reason: str, *, memory_id: object, owner: AbstractBaseUser | None = None
) -> str:
    """
    Ask a person of the staff to answer in this conversation instead of you.

    Use it if the user wants a person, or if you cannot help and a person can. You do not answer the messages that
    follow.

    Args:
        reason: What the user needs, and what you have tried, in one or two sentences for that person.

    """
    using = router.db_for_write(Conversation, owner_key="" if owner is None else str(owner.pk))
    conversation = Conversation.objects.using(using).filter(memory_id=memory_key(memory_id)).first()
    if conversation is None:
        raise ToolError("There is no such conversation.")
    try:
        hand_over(conversation)
    except ConversationErasedError:
        raise ToolError("There is no such conversation any more.") from None
    return COMING
