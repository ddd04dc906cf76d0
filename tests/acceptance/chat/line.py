"""A line between a browser and a site that a test can cut: what a phone loses in a tunnel."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit


class Line:
    """A relay of connections to *site*. While it is cut, it has none and accepts none."""

    def __init__(self, site: str) -> None:
        parts = urlsplit(site)
        self._site = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_cut = False
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Break all connections, and refuse new ones."""
        with self._lock:
            self._is_cut = True
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Accept connections again."""
        self._is_cut = False

    def accept(self) -> None:
        """Relay connections until the line is taken down."""
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=[near], daemon=True).start()

    def _relay(self, near: socket.socket) -> None:
        with near, socket.create_connection(self._site) as far:
            with self._lock:
                if self._is_cut:
                    return
                self._open |= {near, far}
            back = threading.Thread(target=_pour, args=[far, near], daemon=True)
            back.start()
            _pour(near, far)
            back.join()
            with self._lock:
                self._open -= {near, far}

    def take_down(self) -> None:
        """End it."""
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _pour(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextmanager
def line_to(site: str) -> Iterator[Line]:
    """Yield a line to *site*."""
    line = Line(site)
    accepting = threading.Thread(target=line.accept, daemon=True)
    accepting.start()
    yield line
    line.take_down()
    accepting.join()
