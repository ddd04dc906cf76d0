"""A process that answers with two rounds of tools is killed before each of its statements: others go on with it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.database.test_concurrency import database_url
from tests.faces.chat.ui_reader import read, without_void

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

ENOUGH = 20
"""How many statements such an answer has at least."""


@pytest.fixture
def killed(transactional_db, tmp_path) -> Callable[[int, int], Iterator[dict]]:
    """Return what runs ``tests.database.chat.runs.killed``, and yields what it prints."""

    def run(first: int, step: int) -> Iterator[dict]:
        command = [sys.executable, "-m", "tests.database.chat.runs.killed", str(tmp_path), str(first), str(step)]
        ended = subprocess.run(
            command,
            env={**os.environ, "DATABASE_URL": database_url(tmp_path)},
            check=False,
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr[-2000:]
        yield from map(json.loads, ended.stdout.splitlines())

    return run


def bare(message: dict) -> list[dict]:
    """Return the parts of *message* that count; the scripted model streams a space behind its last word."""
    return [part | {"text": part.get("text", "").strip()} for part in without_void(message["parts"])]


def test_every_question_is_answered_once_and_no_effect_comes_twice(killed):
    found = list(killed(1, 1))

    assert len(found) > ENOUGH
    for each in found:
        assert each["effects"] in (["0", "1"], ["1"], ["0"]), each  # the process may have died in between
        assert [each["types"][0], each["types"][-1]] == ["USER", "AI"], each
        assert each["types"].count("USER") == 1, each
        assert each["types"].count("AI") == 3, each  # two rounds of calls, and one text
        assert "done" in each["states"], each
        assert each["stream"][-1]["type"] == "finish", each
        page = read(each["stream"])
        assert page["id"] == each["stored"]["id"], each
        assert bare(page) == bare(each["stored"]), each
    assert any(each["effects"] == ["0", "1"] and each["killed"] for each in found)
