"""Processes that are killed, once they have come to a certain statement."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from django.db.backends.signals import connection_created


def die(*_: Any, **__: Any) -> NoReturn:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("It lives.")


def kill_before(number: int) -> None:
    """Kill this process before its statement with that *number*, the renewals of leases aside."""
    left, lock = number, threading.Lock()

    def wrapper(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        nonlocal left
        if threading.current_thread().name != "chatmemory-leases":
            with lock:
                left -= 1
                if left == 0:
                    die()
        return execute(sql, params, many, context)

    connection_created.connect(lambda connection, **_: connection.execute_wrappers.append(wrapper), weak=False)


def in_child(work: Callable[[], object]) -> int:
    """Run *work* in a process of its own, and return how that has ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
