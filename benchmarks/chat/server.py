"""The site under uvicorn, in a process of its own, and that process's resources."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.ports import free_port

WAIT_SECONDS = 60
"""The seconds that a server may take to start, and to stop."""


class Server:
    """
    A uvicorn with one process, which logs errors to *log*; on *port*, or on a free one. At its end, it waits for its
    clients, at most for so many *seconds* if that is given.
    """

    def __init__(self, log: Path, *, port: int | None = None, seconds: int | None = None, **environment: str) -> None:
        self.log = log
        self.port = port or free_port()
        self._options = [] if seconds is None else ["--timeout-graceful-shutdown", str(seconds)]
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start the server, and wait until it listens."""
        command = [sys.executable, "-m", "uvicorn", "example_project.asgi:application", "--log-level", "warning"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), *self._options]
        with self.log.open("ab") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=file, env=self._environment)
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise RuntimeError(f"The server did not start: {self.log.read_text()[-2000:]}") from None
                time.sleep(0.05)
            else:
                return self

    def end(self, number: int = signal.SIGTERM, *, within: float = WAIT_SECONDS) -> float:
        """Send a signal, and return the seconds until the end; kill the process after *within*."""
        if self._process is None:
            return 0.0
        begun = time.monotonic()
        self._process.send_signal(number)
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        return time.monotonic() - begun

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself."""
        return self._process is None or self._process.poll() is not None

    @property
    def pid(self) -> int:
        """The process id."""
        if self._process is None:
            raise RuntimeError("The server does not run.")
        return self._process.pid

    def kib(self) -> int:
        """The resident memory of the process in KiB."""
        return self._status("VmRSS")

    def threads(self) -> int:
        """The number of its threads."""
        return self._status("Threads")

    def processor(self) -> float:
        """The seconds of a processor that the process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def opened(self, name: str) -> int:
        """Return how many times it has the file *name* open."""
        folder = Path(f"/proc/{self.pid}/fd")
        return sum(os.path.realpath(file) == name for file in folder.iterdir())

    def _status(self, name: str) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()
