"""Building memories from the settings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from django.utils.module_loading import import_string

from chatmemory_django import conf
from chatmemory_django.core.reasons import Reader
from chatmemory_django.core.windows import Window
from chatmemory_django.memory import ChatMemory, MemoryOptions
from chatmemory_django.stores.base import ChatMemoryStore
from chatmemory_django.stores.django import DjangoChatMemoryStore
from chatmemory_django.tokens import OpenAiTokenCountEstimator

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

_MARK = {"evict_to", "idle"}
"""The options of a memory that are for its limit."""

MESSAGE_WINDOW = "chatmemory_django.memory.MessageWindowChatMemory"
TOKEN_WINDOW = "chatmemory_django.memory.TokenWindowChatMemory"  # noqa: S105  # not a password


def get_chat_memory(
    memory_id: object, owner: AbstractBaseUser | None = None, *, using: str | None = None, **options: Any
) -> ChatMemory:
    """
    Return the memory named *memory_id*, stored in the database, with the window defined by the setting ``MEMORY``.

    With an *owner*, a new conversation belongs to the owner, and a conversation of another user is inaccessible: writes
    raise ``PermissionDenied``, reads return nothing. Always pass it if *memory_id* comes from a request. *using* names
    the database; *options* override those of the setting, for example ``max_messages=2``, which then has no
    ``evict_to`` but one that is passed with it. Unless one of both sets ``refill=False``, a limit that has grown brings
    messages back.
    """
    limits = {name: options.pop(name) for name in ("max_messages", "max_tokens") if name in options}
    wanted = MemoryConfiguration.of(memory_id).with_options(options).with_limit(**limits).with_options(options)
    return wanted.memory(DjangoChatMemoryStore(using, owner=owner))


class MemoryConfiguration(NamedTuple):
    """What the memory *memory_id* is built from: the path of a class, and its options."""

    memory_id: object
    path: str
    options: Mapping[str, Any]

    @classmethod
    def of(cls, memory_id: object) -> Self:
        """Return the configuration of *memory_id* in the setting ``MEMORY``."""
        memory = conf.general().MEMORY
        if isinstance(memory, str):
            memory = import_string(memory)
        if callable(memory):
            memory = memory(memory_id)
        return cls(memory_id, memory["CLASS"], memory.get("OPTIONS", {}))

    def memory(self, store: ChatMemoryStore) -> ChatMemory:
        """
        Return the memory in *store*.

        Raises:
            ImportError, TypeError, ValueError: The configuration is invalid.

        """
        options = dict(self.options)
        if isinstance(model_name := options.get("token_count_estimator"), str):
            options["token_count_estimator"] = _openai_estimator(model_name)
        if isinstance(path := options.get("summarize"), str):
            options["summarize"] = import_string(path)
        memory: ChatMemory = import_string(self.path)(id=self.memory_id, store=store, **options)
        return refilling(memory)

    def reader(self) -> Reader:
        """Return how the memory is read, wherever it is stored; raises what ``memory`` does."""
        return self.memory(_OF_READERS)

    def window(self) -> Window:
        """Return the current window; raises what ``memory`` does."""
        return self.reader().window()

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """Return the configuration with *options* in place of those of the same names."""
        return self._replace(options={**self.options, **options}) if options else self

    def with_limit(
        self, *, max_messages: int | None = None, max_tokens: int | None = None, is_only_read: bool = False
    ) -> Self:
        """
        Return the configuration with another limit, if one is passed.

        Another limit has no ``evict_to``. If the memory *is_only_read*, a summarizing one then becomes a plain window,
        since the limit may leave no room for a summary.

        Raises:
            ValueError: It has no estimator to count *max_tokens* with, or has a summary and is limited otherwise.

        """
        name, limit = ("max_messages", max_messages) if max_tokens is None else ("max_tokens", max_tokens)
        if limit is None:
            return self
        if name in self.options and not (is_only_read and "summarize" in self.options):
            return self.with_options({name: limit, **{each: None for each in _MARK if each in self.options}})
        if "summarize" in self.options and not is_only_read:
            raise ValueError(
                f"{name} cannot limit the memory of CHATMEMORY['MEMORY'], a {self.path.rpartition('.')[2]}, which is "
                "limited by max_tokens; pass that, or create a memory of another class."
            )
        kept = MemoryOptions.__annotations__.keys() - _MARK
        options = {key: value for key, value in self.options.items() if key in kept}
        if max_tokens is None:
            return self._replace(path=MESSAGE_WINDOW, options={**options, name: limit})
        if "token_count_estimator" not in self.options:
            raise ValueError(
                "CHATMEMORY['MEMORY'] has no token_count_estimator, so tokens cannot be counted; pass one, too."
            )
        options |= {name: limit, "token_count_estimator": self.options["token_count_estimator"]}
        return self._replace(path=TOKEN_WINDOW, options=options)


def refilling(memory: ChatMemory) -> ChatMemory:
    """Return *memory*, with ``refill`` unless it was created without."""
    memory.refill = memory.refill is not False
    return memory


def known_reader(memory_id: object) -> Reader | None:
    """Return how *memory_id* is read; None if the setting ``MEMORY`` is invalid for it (see the checks)."""
    try:
        return MemoryConfiguration.of(memory_id).reader()
    except (ImportError, TypeError, ValueError):
        return None


def known_window(memory_id: str) -> Window | None:
    """Return the current window of *memory_id*; None under the same conditions."""
    reader = known_reader(memory_id)
    return None if reader is None else reader.window()


_OF_READERS = DjangoChatMemoryStore(keep_history=True)
"""The store of readers, which use nothing of it."""


@cache
def _openai_estimator(model_name: str) -> OpenAiTokenCountEstimator:
    return OpenAiTokenCountEstimator(model_name)
