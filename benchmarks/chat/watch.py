"""A server's resources: connections and streams as the database reports them, memory and threads as the system does."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

from django.conf import settings

from benchmarks.chat.server import Server
from benchmarks.databases import connect

COUNTS = {
    "postgresql": (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ),
    "mariadb": "SELECT count(*) FROM information_schema.processlist WHERE db = database() AND id <> connection_id()",
}
RUNS = (
    "SELECT memory_id FROM chatmemory_conversation c JOIN chatmemory_chat_run r ON r.conversation_id = c.id "
    "WHERE r.active IS NOT NULL"
)


class Watch(threading.Thread):
    """Records several times a second the memory and threads of *server*, and its connections to the database *name*."""

    def __init__(self, server: Server, name: str) -> None:
        super().__init__(daemon=True)
        self.kib_before = self.kib = server.kib()
        self.connections = 0
        """The maximum."""
        self.connections_now = 0
        self.runs_now: list[str] = []
        """The conversations with an answer marked as running."""
        self.threads: list[int] = []
        """The number at each look."""
        self._server = server
        self._name = name
        self._ended = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._look()
        except Exception as exc:  # noqa: BLE001  # raised where somebody sees it
            self._error = exc

    def _look(self) -> None:
        connection = connect(self._name)
        while not self._ended.wait(0.05):
            self.kib = max(self.kib, self._server.kib())
            self.threads.append(self._server.threads())
            self.runs_now = [key for (key,) in _asked(connection, RUNS)]
            if self._name == "sqlite":
                self.connections_now = self._server.opened(str(settings.DATABASES[self._name]["NAME"]))
            else:
                [(self.connections_now,)] = _asked(connection, COUNTS[self._name])
            self.connections = max(self.connections, self.connections_now)
        connection.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self.join()
        if self._error is not None:
            raise self._error


def _asked(connection: Any, question: str) -> list[Any]:
    cursor = connection.cursor()
    cursor.execute(question)
    return list(cursor.fetchall())
