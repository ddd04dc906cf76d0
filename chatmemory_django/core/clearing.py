"""
Results of tools that are old: the memory has a marker in their place, so that more messages fit.

What is replaced is what a memory has, never what is stored: a row keeps its result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Self

import msgspec
from msgspec.structs import force_setattr, replace

from chatmemory_django.core.limits import texts_of
from chatmemory_django.messages import ChatMessage, TextContent, ToolExecutionResultMessage

CLEARED = "[The result of {name} was cleared to save space. Call it again if needed.]"
"""What a model reads in the place of a result: the same for each result of a tool, so that prompt caches hold."""


class ClearToolResults(msgspec.Struct, frozen=True, kw_only=True):
    """
    When a window is full, old results of tools are cleared before messages are evicted.

    The newest *keep* results stay, those of the running answer, which come after the newest message of a user, those of
    the tools in *exclude*, and those that are no larger than the marker in their place. All others are cleared at once.
    Where the window has an ``evict_to``, messages are evicted as well if there are still more tokens than that, unless
    clearing alone has freed *at_least* so many tokens.
    """

    keep: int = 3
    at_least: int | None = None
    exclude: Collection[str] = ()

    def __post_init__(self) -> None:
        if type(self.keep) is not int or self.keep < 0:
            raise ValueError(f"keep must be a whole number of at least 0, not {self.keep!r}.")
        if self.at_least is not None and (type(self.at_least) is not int or self.at_least < 1):
            raise ValueError(f"at_least must be a whole number above 0, or None, not {self.at_least!r}.")
        if isinstance(self.exclude, str) or not all(isinstance(each, str) for each in self.exclude):
            raise TypeError(f"exclude must be names of tools, for example ['search'], not {self.exclude!r}.")
        force_setattr(self, "exclude", frozenset(self.exclude))

    def is_enough(self, freed: int) -> bool:
        """Return whether a memory that fits after clearing has *freed* so much stays above its ``evict_to``."""
        return self.at_least is not None and freed >= self.at_least

    @classmethod
    def of(cls, option: Self | Mapping[str, object] | bool | None) -> Self | None:
        """Return what *option* of a memory means; None if nothing is cleared. ``TypeError`` if it is invalid."""
        if option is None or isinstance(option, bool):
            return cls() if option else None
        if isinstance(option, Mapping):
            return cls(**option)  # type: ignore[arg-type]  # checked there
        if isinstance(option, cls):
            return option
        raise TypeError(f"clear_tool_results must be True, None, options or ClearToolResults, not {option!r}.")


def cleared(message: ChatMessage) -> ChatMessage:
    """Return the marker in the place of *message*, if that is a result of a tool."""
    if not isinstance(message, ToolExecutionResultMessage):
        return message
    return replace(message, contents=(TextContent(CLEARED.format(name=message.tool_name or "this tool")),))


def is_shorter_cleared(message: ToolExecutionResultMessage) -> bool:
    """Return whether the marker in the place of *message* has fewer characters; files are longer."""
    texts = [each.text for each in message.contents if isinstance(each, TextContent)]
    return len(texts) < len(message.contents) or sum(map(len, texts)) > sum(map(len, texts_of(cleared(message))))


def is_marker(message: ChatMessage | None) -> bool:
    """Return whether *message* is such a marker."""
    return isinstance(message, ToolExecutionResultMessage) and message == cleared(message)
