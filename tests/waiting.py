"""Wait for what other threads and processes do."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool]) -> bool:
    """Wait until *condition* is true, or for too long; return whether it is."""
    end = time.monotonic() + 120
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()
