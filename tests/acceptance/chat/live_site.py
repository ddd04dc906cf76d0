"""The example site as a separate process that streams, on a database file of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port

ROOT = Path(__file__).parents[3]
DEADLINE = 300  # seconds within which a server must be up, and a command must end, on a machine that runs others beside


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of the site's processes, with the database in *folder*."""
    settings = {
        "DATABASE_URL": f"sqlite:///{folder / 'site.sqlite3'}",
        "DJANGO_SETTINGS_MODULE": "tests.acceptance.chat.live_settings",
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    return {**kept, **settings, "PYTHONPATH": str(ROOT)}


def manage(folder: Path, *arguments: str) -> str:
    """Return the output of a ``manage.py`` command."""
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment(folder), check=True, capture_output=True, text=True, timeout=DEADLINE
    ).stdout


@contextmanager
def served(folder: Path, end: signal.Signals = signal.SIGTERM, **settings: str) -> Iterator[str]:
    """Serve the site with ``runserver``, yield its address, and end it with the signal *end*."""
    port = free_port()
    command = [sys.executable, "manage.py", "runserver", "--noreload", f"127.0.0.1:{port}"]
    with (
        (folder / "server.log").open("w") as log,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(folder) | settings,
            stdout=log,
            stderr=log,
            # Background jobs ignore Ctrl-C, and their child processes would as well.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as server,
    ):
        try:
            wait_for(port, server)
            yield f"http://127.0.0.1:{port}"
            if server.poll() is not None:
                raise RuntimeError(f"The server has ended on the way, with {server.returncode}.")
        finally:
            server.send_signal(end)
            server.wait(DEADLINE)


def wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    """Return once something listens at *port*."""
    deadline = time.monotonic() + DEADLINE
    while server.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"The server does not listen; it has ended with {server.poll()}.")
