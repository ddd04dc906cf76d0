"""Building memories from the settings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from django.utils.module_loading import import_string

from chatmemory_django import conf
from chatmemory_django.core.windows import Window
from chatmemory_django.memory import ChatMemory, MemoryOptions
from chatmemory_django.stores.base import ChatMemoryStore
from chatmemory_django.stores.django import DjangoChatMemoryStore
from chatmemory_django.stores.in_process import InMemoryChatMemoryStore
from chatmemory_django.tokens import OpenAiTokenCountEstimator

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

MESSAGE_WINDOW = "chatmemory_django.memory.MessageWindowChatMemory"
TOKEN_WINDOW = "chatmemory_django.memory.TokenWindowChatMemory"  # noqa: S105  # not a password


def get_chat_memory(
    memory_id: object, owner: AbstractBaseUser | None = None, *, using: str | None = None, **options: Any
) -> ChatMemory:
    """
    Return the memory named *memory_id*, stored in the database, with the window defined by the setting ``MEMORY``.

    With an *owner*, a new conversation belongs to the owner, and a conversation of another user is inaccessible: writes
    raise ``PermissionDenied``, reads return nothing. Always pass it if *memory_id* comes from a request. *using* names
    the database; *options* override those of the setting, for example ``max_messages=2``.
    """
    limits = {name: options.pop(name) for name in ("max_messages", "max_tokens") if name in options}
    wanted = with_limit(configuration(memory_id), **limits)
    wanted = {**wanted, "OPTIONS": {**wanted.get("OPTIONS", {}), **options}}
    return build_chat_memory(wanted, memory_id, DjangoChatMemoryStore(using, owner=owner))


def configuration(memory_id: object) -> Mapping[str, Any]:
    """Return the configuration of *memory_id* from the setting ``MEMORY``: the path of a class, and its options."""
    memory = conf.memory()
    if isinstance(memory, str):
        memory = import_string(memory)
    return memory(memory_id) if callable(memory) else memory


def build_chat_memory(configuration: Mapping[str, Any], memory_id: object, store: ChatMemoryStore) -> ChatMemory:
    """
    Return the memory that *configuration* describes.

    Raises:
        ImportError, TypeError, ValueError: *configuration* is invalid.

    """
    memory_class = import_string(configuration["CLASS"])
    options = dict(configuration.get("OPTIONS", {}))
    if isinstance(model_name := options.get("token_count_estimator"), str):
        options["token_count_estimator"] = _openai_estimator(model_name)
    if isinstance(path := options.get("summarize"), str):
        options["summarize"] = import_string(path)
    memory: ChatMemory = memory_class(id=memory_id, store=store, **options)
    return memory


def window_of(memory_id: object) -> Window:
    """Return the current window of *memory_id* from the setting ``MEMORY``; raises what ``build_chat_memory`` does."""
    return _memory_of(memory_id).window()


def known_memory(memory_id: object) -> ChatMemory | None:
    """
    Return an empty memory configured for *memory_id* by the setting ``MEMORY``; None if that is invalid (see the
    checks).
    """
    try:
        return _memory_of(memory_id)
    except (ImportError, TypeError, ValueError):
        return None


def known_window(memory_id: str) -> Window | None:
    """Return the window of ``known_memory``; None under the same conditions."""
    try:
        return window_of(memory_id)
    except (ImportError, TypeError, ValueError):
        return None


def _memory_of(memory_id: object) -> ChatMemory:
    return build_chat_memory(configuration(memory_id), memory_id, InMemoryChatMemoryStore(keep_history=True))


def common_window() -> Window | None:
    """Return the window that all memories share; None if the setting ``MEMORY`` makes it depend on the memory id."""
    memory = conf.memory()
    if not isinstance(memory, Mapping):
        return None
    if any(callable(value) for name, value in memory.get("OPTIONS", {}).items() if name != "summarize"):
        return None
    return window_of("any")


def with_limit(
    configuration: Mapping[str, Any], *, max_messages: int | None = None, max_tokens: int | None = None
) -> Mapping[str, Any]:
    """
    Return *configuration* with another limit.

    Raises:
        ValueError: It has no estimator to count *max_tokens* with.

    """
    options = dict(configuration.get("OPTIONS", {}))
    name, limit = ("max_messages", max_messages) if max_tokens is None else ("max_tokens", max_tokens)
    if limit is None:
        return configuration
    if name in options:
        return {**configuration, "OPTIONS": {**options, name: limit}}
    kept = {key: options[key] for key in MemoryOptions.__annotations__ if key in options}
    if max_tokens is None:
        return {"CLASS": MESSAGE_WINDOW, "OPTIONS": {**kept, name: limit}}
    if "token_count_estimator" not in options:
        raise ValueError("CHATMEMORY['MEMORY'] has no token_count_estimator, so tokens cannot be counted.")
    return {
        "CLASS": TOKEN_WINDOW,
        "OPTIONS": {**kept, name: limit, "token_count_estimator": options["token_count_estimator"]},
    }


def to_be_seen(
    memory_id: object, *, max_messages: int | None = None, max_tokens: int | None = None
) -> Mapping[str, Any]:
    """
    Return the configuration of *memory_id* for a memory that is only read, with another limit if one is passed.

    With another limit, a summarizing memory becomes a plain window, since the limit may leave no room for a summary.
    Raises ``ValueError`` as ``with_limit`` does.
    """
    seen = configuration(memory_id)
    options = seen.get("OPTIONS", {})
    if max_tokens is not None and "summarize" in options:
        known = {*MemoryOptions.__annotations__, "max_tokens", "token_count_estimator"}
        seen = {"CLASS": TOKEN_WINDOW, "OPTIONS": {name: options[name] for name in known if name in options}}
    return with_limit(seen, max_messages=max_messages, max_tokens=max_tokens)


@cache
def _openai_estimator(model_name: str) -> OpenAiTokenCountEstimator:
    return OpenAiTokenCountEstimator(model_name)
