"""What a quick run leaves to the gate."""

from collections.abc import Iterable, Iterator

import pytest
from _pytest.mark import ParameterSet


def mostly_slow(values: Iterable[object], *, one_in: int = 0) -> list[ParameterSet]:
    """Return *values* as parameters: a quick run has the first one, or one in so many, and the gate has all of them."""
    return [
        given
        if (number % one_in if one_in else number) == 0
        else given._replace(marks=[*given.marks, pytest.mark.slow])
        for number, given in enumerate(_parameters(values))
    ]


def _parameters(values: Iterable[object]) -> Iterator[ParameterSet]:
    for value in values:
        match value:
            case ParameterSet():
                yield value
            case tuple():
                yield pytest.param(*value)
            case _:
                yield pytest.param(value)
