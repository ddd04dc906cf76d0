"""Users in lines: by the names with which they sign in, since their keys are others on another site."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError

from chatmemory_django.core.shown import AUTHOR
from chatmemory_django.messages import AiMessage, ChatMessage

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

NameOf: TypeAlias = Callable[[Any], str]
Named: TypeAlias = "Callable[[str], AbstractBaseUser | None]"
"""Returns the user whom a line names, None for nobody; ``ValueError`` states why there is none."""


MAX_KNOWN = 10_000
"""How many users an export or an import remembers, so that it asks for each only once: their lines are in any order."""


def name_of_user(key: Any) -> str:
    """Return the name with which the user with this *key*, or its text, signs in; empty if there is none."""
    users = get_user_model()
    try:
        key = users._meta.pk.to_python(key) if key not in {None, ""} else None
    except ValidationError:
        return ""
    user = None if key is None else users._default_manager.filter(pk=key).first()
    return "" if user is None else user.get_username()


def author_key(message: ChatMessage) -> str:
    """Return the key of the user who wrote *message* instead of the model, as text; empty if nobody did."""
    author = message.attributes.get(AUTHOR) if isinstance(message, AiMessage) and message.attributes else None
    key = author.get("id") if isinstance(author, Mapping) else None
    return key if isinstance(key, str) else ""


def with_author(message: ChatMessage, author: AbstractBaseUser | None) -> ChatMessage:
    """Return *message*, which a person wrote, with the key of *author*; without any for None."""
    if not author_key(message) or not isinstance(message, AiMessage):
        raise ValueError("author is given, but the message has no id in the author of its attributes")
    named: Mapping[str, Any] = message.attributes[AUTHOR]
    attributes = {**message.attributes, AUTHOR: {**named, "id": "" if author is None else str(author.pk)}}
    return AiMessage(message.text, message.thinking, message.tool_execution_requests, attributes)
