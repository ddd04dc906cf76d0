"""
Which assistant of the settings answers in a conversation: ``ASSISTANT``, or one of ``ASSISTANTS`` by its name.

A conversation belongs to the one that was asked first. ``ASSISTANT`` has no name, and nor have its conversations.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _

from chatmemory_django.access import NotAllowedError
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request asks, for a function in the settings that returns the assistant to answer it."""

    id: str
    """The id of the chat, as its client names it."""
    memory_id: str
    """The memory id of its conversation, which need not exist yet."""
    message: UserMessage | None
    """The question; None where none is sent: an answer is made again, or goes on after an approval."""
    user: AbstractBaseUser
    """Who asks, or decides on a call; an ``AnonymousUser`` in a worker, for a conversation without an owner."""
    assistant: str
    """The name of the assistant that is asked; empty for ``ASSISTANT``."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """What the client sends beside the fields of the AI SDK, for example ``model``: it is not checked."""


def are_there() -> bool:
    """Return whether the settings have any assistant."""
    chat = chat_settings()
    return chat.ASSISTANT is not None or bool(chat.ASSISTANTS)


def name_for(conversation: Conversation | None, wanted: str | None) -> str:
    """
    Return the name of the assistant that answers in *conversation*, None for a new one; *wanted* is a client's wish.

    Raises ``NotAllowedError`` if there is no such assistant, or if the conversation belongs to another one.
    """
    chat = chat_settings()
    if conversation is not None and belongs(conversation):
        if wanted not in {None, conversation.assistant}:
            raise another()
        if conversation.assistant not in {"", *chat.ASSISTANTS}:
            raise NotAllowedError(409, _("The assistant of this conversation is no longer there. Begin a new one."))
        return conversation.assistant
    name = wanted or ""
    if name and name not in chat.ASSISTANTS:
        raise unknown()
    if not name and chat.ASSISTANT is None:
        if chat.ASSISTANTS:
            raise NotAllowedError(400, "$.assistant is missing: the assistants of this chat are asked by name.")
        logger.error(
            'Set CHATMEMORY["CHAT"]["ASSISTANT"] to the path of an Assistant, or of a function of the request.'
        )
        raise NotAllowedError(503, _("This chat has no assistant."))
    return name


def belongs(conversation: Conversation) -> bool:
    """
    Return whether *conversation* belongs to an assistant: to one with a name, or to ``ASSISTANT``.

    To that belongs what was asked or has messages, unless the site has none: such a conversation is anyone's.
    """
    is_begun = conversation.next_sequence > 1 or conversation.fence > 0
    return bool(conversation.assistant) or (is_begun and chat_settings().ASSISTANT is not None)


def bind(conversation: Conversation, name: str) -> None:
    """Have *conversation* belong to the assistant with this *name*, unless by now it ``belongs`` to one."""
    if name == conversation.assistant:
        return
    free = Conversation.objects.using(conversation._state.db).filter(pk=conversation.pk, assistant="")
    if chat_settings().ASSISTANT is not None:
        free = free.filter(next_sequence=1, fence=0)
    free.update(assistant=name)  # who takes the conversation finds out whether this has changed it


def unknown() -> NotAllowedError:
    """Return the refusal of a question to an assistant that is not there, or not for who asks."""
    return NotAllowedError(404, _("There is no such assistant."))


def another() -> NotAllowedError:
    """Return the refusal of a question to another assistant than that of the conversation."""
    return NotAllowedError(409, _("This conversation belongs to another assistant. Begin a new one."))


def configured(name: str) -> Any:
    """Return what the settings have for this *name*: an assistant, or a function; None if they have nothing."""
    chat = chat_settings()
    path = chat.ASSISTANTS.get(name) if name else chat.ASSISTANT
    return import_string(path) if isinstance(path, str) else path


def asked_in(conversation: Conversation, user: Any) -> Asked:
    """Return what is known to a function of the settings where an answer in *conversation* goes on for *user*."""
    key = conversation.memory_id
    return Asked(id=key, memory_id=key, message=None, user=user, assistant=conversation.assistant)


def assistant(name: str, request: HttpRequest | None, asked: Callable[[], Asked]) -> Any:
    """Return the assistant with this *name*; *asked* is only called for a function that takes it."""
    found = configured(name)
    if hasattr(found, "chat"):
        return found
    return found(request, asked()) if takes_asked(found) else found(request)


@lru_cache(maxsize=64)
def takes_asked(function: Callable[..., Any]) -> bool:
    """
    Return whether *function* takes ``(request, asked)``, and not the request alone; ``TypeError`` if neither.

    If the second parameter has a default, its name decides.
    """
    signature = inspect.signature(function)
    try:
        signature.bind(None)
    except TypeError:
        pass
    else:
        if "asked" not in signature.parameters:
            return False
    signature.bind(None, None)
    return True
