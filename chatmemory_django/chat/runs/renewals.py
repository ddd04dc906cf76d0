"""The renewal of leases, in a thread with a connection of its own, so that no wait of others delays it."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, ClassVar
from uuid import UUID

from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Case, F, When

from chatmemory_django.chat.runs.tables import Run, RunQuerySet
from chatmemory_django.db.contexts import ThreadContext, in_context
from chatmemory_django.db.moments import DatabaseNow

logger = logging.getLogger(__name__)

RENEW = 0.5
"""Seconds between two renewals of all leases of a process."""

LATE_AFTER = 2.0
"""Seconds without a renewal after which that is logged."""


class Renewal:
    """
    Renews the leases of the runs of this process in the database *using*, as long as there are any.

    It needs no event loop, since answers are generated in threads, too.
    """

    running: ClassVar[set[Renewal]] = set()
    """Those that have a thread now."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._runs: dict[UUID, tuple[ThreadContext | None, Callable[[], bool]]] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._renewed_at = 0.0
        self._is_late = False

    def add(self, run: UUID, context: ThreadContext | None, has_listeners: Callable[[], bool]) -> None:
        """Renew the lease of *run* in *context*, and note while it *has_listeners* that somebody listens to it."""
        with self._lock:
            self._runs[run] = context, has_listeners
            if self._thread is None or not self._thread.is_alive():
                self._renewed_at, self._is_late, self._stopped = time.monotonic(), False, threading.Event()
                self._thread = threading.Thread(
                    target=self._renew_on, args=[self._stopped], name="chatmemory-leases", daemon=True
                )
                self._thread.start()
                self.running.add(self)

    def drop(self, run: UUID) -> None:
        """Renew the lease of *run* no longer."""
        with self._lock:
            self._runs.pop(run, None)

    def stop(self) -> None:
        """Renew nothing any more, and wait for the end of the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._runs.clear()
            self._stopped.set()
            self.running.discard(self)
        if thread is not None:
            thread.join()

    def _renew_on(self, stopped: threading.Event) -> None:
        own = connections[self._using] = _unshared(connections[self._using])
        try:
            while not stopped.wait(RENEW) and (runs := self._left()):
                has_failed = False
                for context, together in runs.items():
                    listened = [run for run, has_listeners in together.items() if has_listeners()]
                    try:
                        in_context(renew_leases, context)(self._using, together, listened)
                    except Exception as exc:  # noqa: BLE001  # whatever it is, the next attempt may succeed
                        has_failed = True
                        self._note_failure(exc)
                        with suppress(DatabaseError):
                            own.close()
                if not has_failed:
                    self._note_success()
        finally:
            own.close()

    def _left(self) -> Mapping[ThreadContext | None, Mapping[UUID, Callable[[], bool]]]:
        """Return the runs to renew by their contexts, and whether each has listeners; the thread ends without any."""
        with self._lock:
            if not self._runs:
                self._thread = None
                self.running.discard(self)
            together: defaultdict[ThreadContext | None, dict[UUID, Callable[[], bool]]] = defaultdict(dict)
            for run, (context, has_listeners) in self._runs.items():
                together[context][run] = has_listeners
            return together

    def _note_failure(self, error: Exception) -> None:
        seconds = time.monotonic() - self._renewed_at
        if seconds > LATE_AFTER and not self._is_late:
            self._is_late = True
            text = "The leases of answers in the database %r could not be renewed for %.1f s (%s)."
            logger.warning(text, self._using, seconds, type(error).__name__)

    def _note_success(self) -> None:
        now = time.monotonic()
        if self._is_late or now - self._renewed_at > LATE_AFTER + RENEW:
            text = "The leases of answers in the database %r are renewed again, after %.1f s."
            logger.warning(text, self._using, now - self._renewed_at)
        self._renewed_at, self._is_late = now, False


@cache
def renewal(using: str) -> Renewal:
    """Return what renews the leases of this process in the database *using*."""
    return Renewal(using)


def renew_leases(using: str, runs: Collection[UUID], listened: Collection[UUID] = ()) -> None:
    """Renew the leases of *runs*, all at once, and note that somebody listens to those that are *listened* to."""
    columns: dict[str, Any] = {"lease": DatabaseNow()}
    if listened:
        are_all = len(listened) == len(runs)
        noted = Case(When(pk__in=listened, then=DatabaseNow()), default=F("listened_at"))
        columns["listened_at"] = DatabaseNow() if are_all else noted
    # Not of one that was handed over meanwhile: it waits for as long as that has written.
    _update(Run.objects.using(using).filter(pk__in=runs, state=Run.State.RUNNING), columns)


def note_listener(using: str, run: UUID) -> None:
    """Note that somebody listens to *run*, which another process generates."""
    _update(Run.objects.using(using).filter(pk=run), {"listened_at": DatabaseNow()})


def _update(runs: RunQuerySet, columns: dict[str, Any]) -> None:
    """
    Update the *columns* of those of *runs* that are in progress.

    A run that is locked, as while its conversation is erased in a long transaction, is left out where the database can
    do that: the others must not wait for it. Nobody can take its place, since its conversation is locked, too.
    """
    held, using = runs.filter(active__isnull=False), runs.db
    if not connections[using].features.has_select_for_update_skip_locked:
        held.update(**columns)
        return
    with transaction.atomic(using=using):
        free = held.select_for_update(skip_locked=True).values_list("pk", flat=True)
        Run.objects.using(using).filter(pk__in=list(free)).update(**columns)


def _unshared(connection: BaseDatabaseWrapper) -> BaseDatabaseWrapper:
    """Return a connection like *connection* that is of no pool, which others may have used up."""
    own = connection.copy()
    own.settings_dict["OPTIONS"].pop("pool", None)
    return own
