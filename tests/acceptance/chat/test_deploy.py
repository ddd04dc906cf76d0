"""A server that is ended, or killed, in the middle of an answer: who comes back to another one sees it go on."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

import pytest

from benchmarks.chat.client import Client, Exchange, ended
from benchmarks.chat.model import END, Plan
from benchmarks.chat.server import Server
from chatmemory_django.chat.answers.ui_steps import RESTARTED
from chatmemory_django.chat.runs.leases import State
from chatmemory_django.chat.runs.tables import DEAD_AFTER, Run
from tests.database.test_concurrency import IS_SQLITE, database_url
from tests.faces.chat.ui_reader import read

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

USER = "from django.contrib.auth.models import User as U; from rest_framework.authtoken.models import Token as T; "
USER += "print(T.objects.create(user=U.objects.create_user('ann')).key)"

PLAN = Plan(words=120, pause=0.05, calls=2)

LATE = 60.0
"""Seconds that a busy machine may take for what takes a moment."""


@pytest.fixture
def site(transactional_db, tmp_path, monkeypatch) -> Path:
    """The folder of a site whose model is slow: its log, and the effects of its tool."""
    monkeypatch.setenv("DATABASE_URL", database_url(tmp_path))
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.acceptance.chat.deployed_settings")
    monkeypatch.setenv("EFFECTS", str(tmp_path / "effects"))
    if IS_SQLITE:
        manage("migrate", "--verbosity", "0")
    return tmp_path


@pytest.mark.parametrize(
    ("number", "state", "seconds"), [(SIGTERM, State.ASKED, 0.0), (SIGKILL, State.RUNNING, DEAD_AFTER)]
)
def test_the_next_server_goes_on(number: Signals, state: State, seconds: float, site: Path):
    log, token = site / "log", manage("shell", "--verbosity", "0", "-c", USER).split()[-1]

    with Server(log) as first:
        asyncio.run(left(Client(first.port, token)))
        took = first.end(number)
    assert run(site) == (state, 1)
    with Server(log, port=first.port) as second:
        begun = time.monotonic()
        found = asyncio.run(ended(Client(second.port, token).listen("c")))
        waited = time.monotonic() - begun

    assert took < LATE
    check(found, site)
    assert waited > PLAN.seconds
    assert waited < seconds + PLAN.seconds + LATE
    assert "Traceback" not in log.read_text()


def test_another_process_goes_on_with_a_stream_that_the_end_of_its_server_cuts_off(site: Path):
    token = manage("shell", "--verbosity", "0", "-c", USER).split()[-1]

    with Server(site / "log", seconds=0) as first, Server(site / "log") as second:
        cut = asyncio.run(cut_off(first, token))
        assert run(site) == (State.ASKED, 1)
        found = asyncio.run(ended(Client(second.port, token).listen("c")))

    assert not cut.has_finished
    assert found.events()[: len(cut.events())] == cut.events()
    check(found, site)
    assert run(site) == (State.DONE, 2)


def check(found: Exchange, site: Path) -> None:
    """Check that nothing of an answer is lost or was done twice."""
    assert found.status == 200
    assert found.is_whole
    assert found.text().endswith(END)
    message = read(found.events())
    assert [part["data"] for part in message["parts"] if part["type"] == RESTARTED] == [{"step": 3}]
    assert [part["state"] for part in message["parts"] if part["type"] == "tool-look"] == ["output-available"] * 2
    assert (site / "effects").read_text().split() == ["the", "clock"] * 2  # each call once


async def left(client: Client) -> None:
    """Ask, and leave in the middle of the answer."""
    asked = await half_answered(client)
    asked.drop(rudely=True)
    await asyncio.sleep(0.5)


async def cut_off(server: Server, token: str) -> Exchange:
    """Ask, and end the server in the middle of the answer."""
    asked = await half_answered(Client(server.port, token))
    await asyncio.to_thread(server.end)
    await asked.done.wait()
    return asked


async def half_answered(client: Client) -> Exchange:
    """Ask, and return in the middle of the answer."""
    asked = await client.ask("c", "question", str(PLAN))
    while len(asked.delays) < 10:
        assert not asked.done.is_set(), asked.received
        await asyncio.sleep(0.01)
    return asked


def run(site: Path) -> tuple[str, int]:
    """Return the state of the run, and how many processes have had it."""
    if IS_SQLITE:
        with closing(sqlite3.connect(site / "db.sqlite3")) as file:
            return file.execute("SELECT state, fence FROM chatmemory_chat_run").fetchone()
    return Run.objects.values_list("state", "fence").get()


def manage(*arguments: str) -> str:
    """Return the output of a ``manage.py`` command."""
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ).stdout
