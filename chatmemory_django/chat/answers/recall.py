"""The owner's earlier conversations: tools with which a model searches and reads them, and what is recalled unasked."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from chatmemory_django.chat.answers.context import Context
from chatmemory_django.chat.tools import Tool
from chatmemory_django.core.limits import texts_of
from chatmemory_django.db.timeouts import limited
from chatmemory_django.operations.recall import MAX_ABOUT, MAX_FOUND, Recall
from chatmemory_django.private import private

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser
    from django.db.models import QuerySet

    from chatmemory_django.chat.answers.context import ContextFunction
    from chatmemory_django.messages import UserMessage
    from chatmemory_django.models import Conversation

logger = logging.getLogger(__name__)

MAX_LIMIT = 20
"""How many messages are recalled for a question at most."""


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


def of_question(
    *,
    limit: int = MAX_FOUND,
    max_characters: int = MAX_ABOUT,
    timeout: float = 1.0,
    conversations: QuerySet[Conversation] | None = None,
) -> ContextFunction:
    """
    Return a function for an ``Assistant``'s *context*: what the owner's messages have to do with each question.

    These are up to *limit* (20 at most) of the messages that ``tools`` find, and of those that have left the memory of
    the conversation that is answered. They are quotations in JSON of at most *max_characters*. If the search fails or
    takes more than *timeout* seconds, or if the question would not fit with them, nothing is recalled: no answer fails
    for it. See ``Recall.about``; *conversations* are those of ``tools``.
    """
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        raise ValueError(f"limit must be a whole number from 1 to {MAX_LIMIT}, not {limit!r}.")
    if type(max_characters) is not int or max_characters < 1:
        raise ValueError(f"max_characters must be a whole number above 0, not {max_characters!r}.")
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not timeout > 0:
        raise ValueError(f"timeout must be a number of seconds above 0, not {timeout!r}.")
    of_all = Recall(conversations=conversations).conversations

    @private
    def recalled(
        memory_id: object, owner: AbstractBaseUser | AnonymousUser | None, question: UserMessage | None
    ) -> str | None:
        text = "" if question is None else " ".join(texts_of(question))
        if owner is None or not owner.is_authenticated or not text:
            return None
        rows = of_all.using(of_all.db)  # a router may name another database each time
        recall = Recall(owner, memory_id=memory_id, conversations=rows)
        try:
            with limited(timeout, rows.db):
                found = recall.about(text, limit=limit, max_characters=max_characters)
        except Exception as exc:  # noqa: BLE001  # a question is answered without it
            logger.warning("Nothing was recalled for a question in %r: %s.", memory_id, type(exc).__name__)
            return None
        return None if found is None else Context(found)

    return recalled
