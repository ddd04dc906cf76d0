"""After any sequence of acts, answers are as design §16 promises; see ``oracle``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.database.chat.answers import driver, world
from tests.strategies import IN_DATABASE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def chats(settings) -> Iterator[None]:
    settings.CHATMEMORY = {**settings.CHATMEMORY, "CHAT": world.CHAT}
    with tempfile.TemporaryDirectory() as folder:
        world.begin(Path(folder))
        yield


seeds = st.integers(0, 2**32 - 1)


class Answers(RuleBasedStateMachine):
    """One conversation. A seed is an act: what there is to draw depends on the tables, and on who is quicker."""

    found: ClassVar[list[str]] = []
    """What was found, each with the acts before it: since ids are random, it may not be found a second time."""

    @initialize(seed=seeds)
    def begin(self, seed: int) -> None:
        self.site = driver.Site(Random(seed), driver.in_this_process)
        self.chat = self.site.chat()

    @rule(seed=seeds)
    def act(self, seed: int) -> None:
        self.site.random = Random(seed)
        self.check(self.site.step(self.chat))

    def teardown(self) -> None:
        if hasattr(self, "chat"):
            self.check(self.site.step(self.chat, plain=True))

    def check(self, found: list[str]) -> None:
        if found:
            self.found.append("\n".join([*found, *map(str, self.chat.acts)]))
        assert not found


def test_nothing_that_is_promised_of_answers_is_broken_by_any_sequence_of_acts():
    Answers.found.clear()
    try:
        run_state_machine_as_test(Answers, settings=IN_DATABASE)
    except Exception:
        if not Answers.found:
            raise
        pytest.fail(min(Answers.found, key=len), pytrace=False)


def test_nor_by_processes_that_are_killed_or_ask_at_the_same_time():
    answers = str(hypothesis_settings.default.max_examples)
    command = [sys.executable, "-m", "tests.database.chat.answers.driver", "--answers", answers]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
