"""Workers beside a web process, killed and stopped in the middle of an answer: nothing happens twice, or never."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.database.test_concurrency import IS_SQLITE, database_url
from tests.ports import free_port
from tests.waiting import wait_until

httpx = pytest.importorskip("httpx")

TOKEN = """
from django.contrib.auth import get_user_model
from rest_framework.authtoken.models import Token
print(Token.objects.create(user=get_user_model().objects.create_user("ann")).key)
"""

STATE = """
import json
from chatmemory_django.chat.models import Run
from chatmemory_django.models import Conversation
texts = [row.text for each in Conversation.objects.all() for row in each.history()]
print(json.dumps([texts, list(Run.objects.values_list("state", flat=True))]))
"""


class Site:
    """A site of several processes, which share a database and the file of the tool's notes."""

    def __init__(self, folder: Path, stack: ExitStack, *, runs: str = "worker", pause: float = 1.0) -> None:
        self.notes = folder / "notes"
        self._log = folder / "log"
        self._stack = stack
        self._environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.database.chat.workers.site",
            "DATABASE_URL": database_url(folder),
            "NOTES": str(self.notes),
            "PAUSE": str(pause),
            "RUNS": runs,
        }
        if IS_SQLITE:
            self.manage("migrate", "--verbosity", "0")
        self._token = self.manage("shell", "--verbosity", "0", "-c", TOKEN).split()[-1]

    def manage(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "django", *arguments]
        return subprocess.run(
            command, env=self._environment, check=True, capture_output=True, text=True, timeout=300
        ).stdout

    def start(self, *command: str) -> subprocess.Popen:
        log = self._stack.enter_context(self._log.open("a"))
        process = subprocess.Popen([sys.executable, "-m", *command], env=self._environment, stdout=log, stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def worker(self) -> subprocess.Popen:
        return self.start("django", "run_chatmemory")

    def web(self) -> str:
        port = free_port()
        self.start("uvicorn", "example_project.asgi:application", "--port", str(port), "--lifespan", "off")

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        assert wait_until(listens), self._log.read_text()
        return f"http://127.0.0.1:{port}/api/chat"

    def ask(self, url: str, chat_id: str = "c") -> tuple[list[str], threading.Thread]:
        """Ask in a thread, and return the pieces of the stream as they come."""
        message = {"id": "q1", "role": "user", "parts": [{"type": "text", "text": "Note!"}]}
        headers = {"Authorization": f"Bearer {self._token}"}
        pieces: list[str] = []

        def read() -> None:
            asked = {"json": {"id": chat_id, "messages": [message]}, "headers": headers, "timeout": 60}
            with httpx.stream("POST", url, **asked) as response:
                pieces.append(f"{response.status_code}\n\n")
                pieces.extend(response.iter_text())

        thread = threading.Thread(target=read)
        thread.start()
        return pieces, thread

    def noted(self) -> list[str]:
        return [line.split()[0] for line in self.notes.read_text().splitlines()] if self.notes.exists() else []

    def state(self) -> list:
        return json.loads(self.manage("shell", "--verbosity", "0", "-c", STATE).splitlines()[-1])

    def log(self) -> str:
        return self._log.read_text()


@pytest.fixture
def site(transactional_db, tmp_path) -> Iterator[Callable[..., Site]]:
    with ExitStack() as stack:
        yield lambda **options: Site(tmp_path, stack, **options)


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_ends_in_the_middle_leaves_the_rest_to_another_one(site, end):
    one = site()
    url, first = one.web(), one.worker()
    pieces, asking = one.ask(url)
    assert wait_until(lambda: "Round 1. " in "".join(pieces)), one.log()

    first.send_signal(end)
    first.wait(60)
    one.worker()
    asking.join(60)

    texts, states = one.state()
    assert one.noted() == ["0", "1"], one.log()
    assert texts == ["Note!", "Round 0.", "noted 0", "Round 1.", "noted 1", "Round 2. noted 0, noted 1"], one.log()
    assert states == ["done"]
    stream = "".join(pieces)
    assert stream.startswith("200\n\n"), stream
    assert stream.endswith("data: [DONE]\n\n")
    assert '"error' not in stream, stream
    assert "Round 2. " in stream
    if end == signal.SIGTERM:
        assert first.returncode == 0, one.log()


@pytest.mark.slow
def test_several_workers_answer_each_question_once(site):
    one = site(pause=0.2)
    url = one.web()
    for _ in range(3):
        one.worker()

    asked = [one.ask(url, f"c{number}") for number in range(5)]
    for _, asking in asked:
        asking.join(60)

    texts, states = one.state()
    assert sorted(one.noted()) == ["0"] * 5 + ["1"] * 5, one.log()
    assert states == ["done"] * 5
    assert texts.count("Round 2. noted 0, noted 1") == 5
    assert all("".join(pieces).endswith("data: [DONE]\n\n") for pieces, _ in asked)
