"""
The characters of a model's answer, so that all of it can be stored and sent on.

Servers that cut their text as UTF-16 send a character outside of the basic plane, for example an emoji, as two halves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from chatmemory_django.core.limits import is_storable, storable
from chatmemory_django.messages import Attributes

_T = TypeVar("_T")

_encode = msgspec.json.Encoder().encode


class Halves(Generic[_T]):
    """The first halves of characters whose second halves have not come yet, by the *kind* of the piece."""

    def __init__(self) -> None:
        self._halves: dict[_T, str] = {}

    def join(self, kind: _T, piece: str) -> str:
        """Return *piece* with the half before it, and without one at its end, which is kept for the next piece."""
        if not self._halves and is_storable(piece):
            return piece
        text = self._halves.pop(kind, "") + piece
        if "\ud800" <= text[-1:] <= "\udbff":
            self._halves[kind] = text[-1]
            text = text[:-1]
        return storable(text)

    def left(self) -> Iterator[tuple[_T, str]]:
        """Yield what stands for the halves that remained alone."""
        for kind, half in self._halves.items():
            yield kind, storable(half)


def with_whole_characters(value: _T) -> _T:
    """Return *value*, a message, a dataclass or JSON, with whole characters in all of its texts."""
    try:
        is_whole = b"\\u0000" not in _encode(value)
    except (TypeError, ValueError, OverflowError):  # a lone half is a ValueError; the others are not JSON
        is_whole = False
    return value if is_whole else _with_whole_characters(value)


def _with_whole_characters(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, Mapping):
        return Attributes({_with_whole_characters(name): _with_whole_characters(each) for name, each in value.items()})
    if isinstance(value, list | tuple):
        return type(value)(_with_whole_characters(each) for each in value)
    fields = {name: _with_whole_characters(each) for name, each in _fields(value).items()}
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **fields)
    return dataclasses.replace(value, **fields) if fields else value


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a struct or a dataclass; of anything else, none."""
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    names = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    return {name: getattr(value, name) for name in names}
