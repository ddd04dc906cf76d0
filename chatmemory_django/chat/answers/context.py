"""
Functions of a site that make something for one answer: its context, the system message, or the tools.

They are called with those of ``NAMES`` that they name as parameters.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeAlias

from asgiref.sync import async_to_sync
from django.utils.functional import Promise

from chatmemory_django.chat.threads import araisable
from chatmemory_django.db.threads import in_slow_thread
from chatmemory_django.messages import BLANK
from chatmemory_django.private import private

LABEL_NAMES = ("memory_id", "owner", "request")
NAMES = (*LABEL_NAMES, "question")
"""The parameters that can be named; *question* is the ``UserMessage`` to answer."""

ContextFunction: TypeAlias = Callable[..., str | Promise | None] | Callable[..., Awaitable[str | Promise | None]]
"""
A function, sync or async, of parameters with any of ``NAMES``. It returns a text, or None if there is nothing to add.
"""


class Context(str):
    """A text of a context function; *needed* is what of it is sent if the question does not fit with all of it."""

    __slots__ = ("needed",)
    needed: str | None

    def __new__(cls, text: str, *, needed: str | None = None) -> Self:
        made = super().__new__(cls, text)
        made.needed = needed
        return made


class Checked:
    """A *function* that can be called with the values of an answer; ``TypeError`` if it cannot. See ``checked``."""

    def __init__(self, function: Callable[..., Any], where: str, names: Sequence[str] = NAMES) -> None:
        self.function = function
        self.where = where
        self._names = names
        if not callable(function):
            raise TypeError(f"{where} must be a function, not {function!r}.")
        self.name = _name(function)
        self.is_async = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
        self.parameters = self._parameters()

    def __repr__(self) -> str:
        return f"Checked({self.name})"

    @private
    def text(self, values: Mapping[str, Any]) -> str | None:
        """Return the text, or None, that the function returns for *values*."""
        return self._as_text(self.value(values))

    @private
    async def atext(self, values: Mapping[str, Any]) -> str | None:
        """See ``text``."""
        return self._as_text(await self.avalue(values))

    @private
    def value(self, values: Mapping[str, Any], timeout: float | None = None) -> Any:
        """Return what the function returns for *values*, awaited if need be, for at most *timeout* seconds."""
        returned = self.call(values)
        if not inspect.isawaitable(returned):
            return returned
        return async_to_sync(asyncio.wait_for)(araisable(returned), timeout)

    @private
    async def avalue(self, values: Mapping[str, Any]) -> Any:
        """See ``value``. A function that is not async runs in a thread."""
        returned = self.call(values) if self.is_async else await in_slow_thread(self.call, values)
        return await araisable(returned) if inspect.isawaitable(returned) else returned

    @private
    def call(self, values: Mapping[str, Any]) -> Any:
        """Return what the function returns for those of *values* that it takes."""
        return self.function(**{name: values.get(name) for name in self.parameters})

    def _as_text(self, returned: object) -> str | None:
        if returned is None or isinstance(returned, str):
            return returned
        if isinstance(returned, Promise):
            return str(returned)
        raise TypeError(f"{self.where}: {self.name} returned {type(returned).__name__}; it must return a str or None.")

    def _parameters(self) -> Sequence[str]:
        """Return the names of the values that the function takes; what a partial binds is none of them."""
        bound = self.function.keywords if isinstance(self.function, partial) else {}
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except ValueError:
            raise TypeError(
                f"{self.where}: {self.name} has no signature from which its parameters could be read; wrap it in a "
                "function of your own."
            ) from None
        open_ones = [each for each in parameters if each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}]
        for each in open_ones:
            if each.name not in {*self._names, *bound} or each.kind == each.POSITIONAL_ONLY:
                raise TypeError(
                    f"{self.where}: {self.name} has the parameter {each.name!r}; it can be given "
                    f"{', '.join(self._names)}, "
                    "by name. Bind any other with functools.partial."
                )
        takes_all = any(each.kind == each.VAR_KEYWORD for each in parameters)
        named = self._names if takes_all else [each.name for each in open_ones]
        return [name for name in named if name not in bound]


def checked(function: ContextFunction, where: str) -> Checked:
    """
    Return *function*, which is the assistant's argument *where*, for ``text_of`` and ``atext_of``.

    Raises:
        TypeError: It is not callable, or it has a parameter that is none of ``NAMES``, even one with a default, since
            that may be a misspelled one. What a ``functools.partial`` binds may have any name. A function with
            ``**kwargs`` is given all values.

    """
    return Checked(function, where)


def labels_function(function: Callable[..., Mapping[str, str]]) -> Callable[[Mapping[str, Any]], Mapping[str, str]]:
    """
    Return what calls *function*, an assistant's labels, with those of ``LABEL_NAMES`` that it names.

    Raises:
        TypeError: It has another parameter, or is asynchronous: labels are needed before the answer begins.

    """
    found = Checked(function, "labels", LABEL_NAMES)
    if found.is_async:
        raise TypeError(f"labels must not be asynchronous, as {found.name} is.")
    return found.call


@private
def text_of(functions: Iterable[Checked], values: Mapping[str, Any]) -> str | None:
    """
    Return the texts that *functions* make of *values*, joined by blank lines; None if there is none that is not blank.

    Raises:
        TypeError: A function returned something else than a str or None.

    """
    return joined([function.text(values) for function in functions])


@private
async def atext_of(functions: Iterable[Checked], values: Mapping[str, Any]) -> str | None:
    """See ``text_of``. Asynchronous functions run concurrently."""
    return joined(await asyncio.gather(*(function.atext(values) for function in functions)))


def joined(texts: Sequence[str | None]) -> Context | None:
    """Return *texts* as one, separated by blank lines; None if there is none that is not blank."""
    together = _together(texts)
    return None if together is None else Context(together, needed=_together(map(needed_of, texts)))


def needed_of(context: str | None) -> str | None:
    """Return what of *context* is sent if the question does not fit with all of it."""
    return context.needed if isinstance(context, Context) else context


def _together(texts: Iterable[str | None]) -> str | None:
    return "\n\n".join(text for text in texts if text and text.strip(BLANK)) or None


def _name(function: object) -> str:
    function = function.func if isinstance(function, partial) else function
    return str(getattr(function, "__qualname__", type(function).__qualname__))
