"""The deletion of streams some time after their end, in a thread of the process that ended them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import ClassVar

from chatmemory_django.db.threads import leaving_no_connection

logger = logging.getLogger(__name__)

TIMES = 4
"""How often what has ended is deleted within the time for which a stream is kept."""


class Deletion:
    """
    Calls *delete*, which deletes the streams that ended more than *seconds* ago, as long as there may be any.

    It needs no event loop, since under WSGI that of a request ends with the request.
    """

    running: ClassVar[set[Deletion]] = set()
    """Those that have a thread now."""

    def __init__(self, delete: Callable[[], object], seconds: float) -> None:
        self._delete = delete
        self._seconds = seconds
        self._lock = threading.Lock()
        self._due = 0.0
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def note_end(self) -> None:
        """Record that a stream ends now; the thread starts, unless it is running."""
        with self._lock:
            self._due = time.monotonic() + self._seconds
            if self._thread is None or not self._thread.is_alive():
                self._stopped = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=[self._stopped], name="chatmemory-deletion", daemon=True
                )
                self._thread.start()
                self.running.add(self)

    def stop(self) -> None:
        """Stop the thread, and wait for its end; what is not deleted yet stays until the next stream has ended."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._stopped.set()
            self.running.discard(self)
        if thread is not None:
            thread.join()

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(self._seconds / TIMES):
            begun = time.monotonic()
            try:
                with leaving_no_connection():
                    self._delete()
            except Exception:
                logger.exception("Ended streams of answers could not be deleted; this is tried again.")
                continue
            with self._lock:
                if begun > self._due and not stopped.is_set():
                    self._thread = None
                    self.running.discard(self)
                    return
