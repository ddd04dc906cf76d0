"""The deletion of streams some time after their end, in a thread of the process that ended them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from typing import ClassVar

from django.db.models import Exists, OuterRef

from chatmemory_django.chat.runs.tables import AnswerChunk, before
from chatmemory_django.db.background import leave_connections
from chatmemory_django.db.batches import in_parts
from chatmemory_django.db.contexts import ThreadContext, in_context
from chatmemory_django.db.threads import leaving_no_connection
from chatmemory_django.db.transactions import tried_again

logger = logging.getLogger(__name__)

TIMES = 4
"""How often what has ended is deleted within the time for which a stream is kept."""

PATIENCE = 10
"""After how many such times without success the rest is left to others, as that of a tenant that is gone."""

KEEP = 60.0
"""Seconds for which the stream of an answer is kept after its last piece, for clients that are still reading it."""

ANSWERS = 100
"""How many answers' streams one statement deletes."""


class Deletion:
    """
    Calls *delete*, which deletes the streams that ended more than *seconds* ago, as long as there may be any, in each
    context in which some ended.

    It needs no event loop, since under WSGI that of a request ends with the request.
    """

    running: ClassVar[set[Deletion]] = set()
    """Those that have a thread now."""

    def __init__(self, delete: Callable[[], object], seconds: float) -> None:
        self._delete = delete
        self._seconds = seconds
        self._lock = threading.Lock()
        self._due: dict[ThreadContext | None, tuple[float, float]] = {}  # for what ended there first, and last
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def note_end(self, context: ThreadContext | None = None) -> None:
        """Record that a stream ends now in *context*; the thread starts, unless it is running."""
        with self._lock:
            due = time.monotonic() + self._seconds
            self._due[context] = self._due.get(context, (due,))[0], due
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
            with leaving_no_connection():
                for context, (first, last) in self._due.copy().items():
                    if time.monotonic() >= first and self._has_deleted(context, last):
                        self._forget(context, last)
            with self._lock:
                if not self._due and not stopped.is_set():
                    self._thread = None
                    self.running.discard(self)
                    return

    def _has_deleted(self, context: ThreadContext | None, due: float) -> bool:
        """Delete in *context*; return whether nothing is left for the next time."""
        begun = time.monotonic()
        try:
            in_context(self._delete, context)()
        except Exception:
            logger.exception("Ended streams of answers could not be deleted; this is tried again.")
            leave_connections()
            return begun > due + PATIENCE * self._seconds
        return begun > due

    def _forget(self, context: ThreadContext | None, due: float) -> None:
        with self._lock:
            if self._due[context][1] == due:
                del self._due[context]


@cache
def deletion(using: str) -> Deletion:
    """Return what deletes the old streams in the database *using* while this process has answers, and a while after."""
    return Deletion(partial(tried_again, using, partial(delete_old, using)), KEEP)


def delete_old(using: str) -> None:
    """Delete the streams of answers that have ended, or whose process is dead, from the database *using*."""
    old, chunks = before(KEEP), AnswerChunk.objects.using(using)
    newer = chunks.filter(memory_id=OuterRef("memory_id"), answer_id=OuterRef("answer_id"), written_at__gte=old)
    found = chunks.filter(~Exists(newer), written_at__lt=old).values_list("memory_id", "answer_id").distinct()
    for part in in_parts(list(found), ANSWERS):
        memory_ids, answer_ids = zip(*part, strict=True)
        chunks.filter(memory_id__in=set(memory_ids), answer_id__in=answer_ids).delete()
