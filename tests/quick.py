"""What a quick run leaves to the gate."""

from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet


def mostly_slow(values: Iterable[object]) -> list[ParameterSet]:
    """Return *values* as parameters: a quick run has the first one, and the gate all of them."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=[pytest.mark.slow] if number else [])
        for number, value in enumerate(values)
    ]
