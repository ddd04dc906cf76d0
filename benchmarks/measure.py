"""The measuring loop: in each round each subject does the same once, so that all see the same machine."""

from __future__ import annotations

import gc
import random
import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WARM_UP = 8
"""The number of runs before the measurement: psycopg prepares a statement at its sixth use."""


class Effort(NamedTuple):
    """How long to measure."""

    rounds: int
    seconds: float
    """The total time that an operation may take ..."""
    least: int
    """... unless it ran fewer times than this."""


FULL = Effort(rounds=200, seconds=6, least=3)
QUICK = Effort(rounds=20, seconds=0.8, least=1)


class Timing(NamedTuple):
    """The duration of an operation."""

    microseconds: float
    runs: int


def interleaved(operations: Mapping[str, Callable[[int], object]], effort: Effort) -> dict[str, Timing]:
    """Return the median of what each of *operations* takes, called with the number of its earlier runs.

    A slow one runs in fewer of the rounds, spread over all of them. The garbage collector stays on; what was loaded
    before is frozen, so that no subject pays for the modules of others.
    """
    taken: dict[str, list[int]] = {name: [] for name in operations}
    done = dict.fromkeys(operations, 0)

    def run(name: str) -> int:
        start = time.perf_counter_ns()
        operations[name](done[name])
        done[name] += 1
        return time.perf_counter_ns() - start

    for name in operations:
        for _ in range(WARM_UP):
            if (elapsed := run(name)) > effort.seconds * 1e9 / (4 * WARM_UP):
                if elapsed > effort.seconds * 1e9:
                    taken[name].append(elapsed)  # too expensive to throw away
                break
    gc.collect()
    gc.freeze()
    shuffled = random.Random(2026)  # not a secret, but the same each time
    for number in range(effort.rounds):
        # A subject that follows one with the same code finds it in the processor's caches, so the order changes.
        for name in shuffled.sample(sorted(operations), len(operations)):
            times = taken[name]
            is_due = sum(times) <= effort.seconds * 1e9 * number / effort.rounds
            if is_due or effort.least - len(times) >= effort.rounds - number:
                times.append(run(name))
    gc.unfreeze()
    return {name: Timing(statistics.median(times) / 1000, len(times)) for name, times in taken.items()}
