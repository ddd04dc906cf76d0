"""A person's process is killed before each of its statements, and after the last one: one answer, and nothing lost."""

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from django.db import connection

from tests.database.test_concurrency import database_url

# Slow, and yet always run on servers: there the gate leaves slow tests out.
pytestmark = [pytest.mark.django_db(transaction=True), *([pytest.mark.slow] if connection.vendor == "sqlite" else [])]

ASKED, PERSONS, ASSISTANTS = "Who helps?", "I do.", "The assistant does."


@pytest.fixture
def killed(transactional_db, tmp_path) -> Callable[[str], list[dict]]:
    """Return what runs ``tests.database.chat.people.killed``, and returns what it prints."""

    def run(verb: str) -> list[dict]:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.database.chat.people.killed", verb],
            env={**os.environ, "DATABASE_URL": database_url(tmp_path)},
            check=False,
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr[-2000:]
        return [json.loads(line) for line in ended.stdout.splitlines()]

    return run


@pytest.mark.parametrize(
    ("verb", "states", "texts"),
    [
        ("hand_over", ("assistant", "person"), [ASKED]),
        ("answer_as", ("assistant", "person"), [ASKED, PERSONS]),
        ("give_back", ("person", "assistant"), [ASKED]),
    ],
)
def test_all_of_it_is_stored_or_nothing_and_the_question_has_one_answer(killed, verb, states, texts):
    found = killed(verb)

    assert len(found) > 4
    assert [each["killed"] for each in found] == [*[True] * (len(found) - 2), False, True]
    before, after = states
    for each in found[:-2]:
        assert (each["first"]["state"], each["first"]["texts"]) == (before, [ASKED]), each
    for each in found[-2:]:
        assert (each["first"]["state"], each["first"]["texts"]) == (after, texts), each
    for each in found:
        assert (each["done"]["state"], each["done"]["texts"]) == (after, texts), each
        assert bool(each["done"]["person"]) == (after == "person"), each
        answer = PERSONS if verb == "answer_as" else ASSISTANTS
        assert each["last"]["texts"] == [ASKED, answer], each
        assert each["requests"] == (verb != "answer_as"), each
        assert each["last"]["running"] == 0, each
