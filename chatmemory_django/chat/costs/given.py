"""Functions of a site that are given what they name: one that names less goes on working when there is more to know."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Mapping
from functools import lru_cache
from typing import Any


def given(function: Callable[..., Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of *known* that *function* has parameters for, by their names; with ``**kwargs``, all of them."""
    function = getattr(function, "__func__", function)  # of a method, since its object may be a new one each time
    named = _named(function) if isinstance(function, Hashable) else _named.__wrapped__(function)
    return {name: value for name, value in known.items() if named is None or name in named}


@lru_cache(maxsize=64)  # to look is slow, and each answer does; a site has a few such functions
def _named(function: Callable[..., Any]) -> Collection[str] | None:
    """Return the names that *function* can be given; None for any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # one of C, without a signature
        return ()
    if any(each.kind == each.VAR_KEYWORD for each in parameters):
        return None
    return {each.name for each in parameters if each.kind in {each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD}}
