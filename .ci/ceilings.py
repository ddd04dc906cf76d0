"""
Measure how large and how entangled the package is, and fail if a figure is above its ceiling in ``ceilings.toml``.

``.ci/ceilings`` measures the code: its lines, the modules and calls of what sites do most, the lines that name an
optional feature outside of its own files, and what the smallest site loads. A call is a function of the package that
starts, in any thread. A coroutine that goes on is not counted: how often it does depends on time.

``.ci/ceilings --tests JUNIT.xml --times TIMES`` measures a run of README's command, in figures that other work on the
machine, and its speed, change little. The slowest tests are measured as a share of the seconds of all tests. What is
skipped counts, since a test is skipped for any module of another framework that cannot be imported. The run is measured
by the seconds that its processes computed, user and system, which TIMES contains: what runs beside it takes none of
those. They are converted to those of another machine, by how long a loop takes here.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
import tokenize
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any
from uuid import UUID
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "chatmemory_django"
DATA = Path(__file__).with_suffix(".toml")

RUNS = 3
"""How often each journey is traced. What depends on time only adds calls, so the smallest figures count."""

SLOWEST = 10
CLEARLY_BELOW = 0.99
LOOP_SECONDS = 0.09
"""What the loop took on the machine on which the ceiling of the tests' seconds was set."""

SMALLEST_SITE = """
import sys, django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "chatmemory_django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
from chatmemory_django.provider import get_chat_memory
get_chat_memory("smallest")
for name, module in sys.modules.items():
    if name.split(".")[0] == "chatmemory_django":
        print(module.__file__)
"""

Figures = dict[str, float]
Ceilings = Mapping[str, Mapping[str, Any]]


def refusals(figures: Figures, ceilings: Ceilings) -> Iterator[str]:
    """Yield why *figures* are refused: those that are above their ceilings, or have none, or one without a reason."""
    for name, figure in figures.items():
        if name not in ceilings:
            yield f"{name} is {figure:,} and has no ceiling: give it one in {DATA.name}."
            continue
        ceiling = ceilings[name]["ceiling"]
        if not ceilings[name].get("reason"):
            yield f"{name} has a ceiling of {ceiling:,} without a reason: write one in {DATA.name}."
        if figure > ceiling:
            yield f"{name} is {figure:,}, above its ceiling of {ceiling:,}: lower it, or give a reason to raise it."


def table(figures: Figures, ceilings: Ceilings) -> Iterator[str]:
    """Yield a line for each figure, with a note where it is above its ceiling, or clearly below it."""
    yield f"{'figure':24}{'ceiling':>10}{'measured':>10}"
    for name, figure in figures.items():
        ceiling = ceilings.get(name, {}).get("ceiling", 0)
        note = "  ABOVE" if figure > ceiling else "  can be lowered" if figure < CLEARLY_BELOW * ceiling else ""
        yield f"{name:24}{ceiling:>10,}{figure:>10,}{note}"


def figures_of_code(data: Mapping[str, Any]) -> Figures:
    """Return all that is measured of the code, with the folders and features that *data* names."""
    paths = [path for path in PACKAGE.rglob("*.py") if "migrations" not in path.parts]
    modules = {path.relative_to(PACKAGE).as_posix(): path.read_text().splitlines() for path in paths}
    code = {path: code_lines(lines) for path, lines in modules.items()}
    return {
        "package_lines": lines_outside([], modules),
        "memory_lines": lines_outside(data["beside_the_memory"], modules),
        **{
            f"{name}_elsewhere": lines_outside(its["own"], code, its["names"]) for name, its in data["features"].items()
        },
        **smallest_site(),
        **traced(),
    }


def code_lines(lines: Sequence[str]) -> list[str]:
    """Return the *lines* of a module without comments and without texts that stand alone, as docstrings do."""
    code, begins_statement = list(lines), True
    tokens = tokenize.generate_tokens((f"{line}\n" for line in lines).__next__)
    for token, following in itertools.pairwise(token for token in tokens if token.type != tokenize.NL):
        row, column = token.start
        if token.type == tokenize.COMMENT:
            code[row - 1] = code[row - 1][:column]
        elif begins_statement and token.type == tokenize.STRING and following.type == tokenize.NEWLINE:
            code[row - 1 : token.end[0]] = [""] * (token.end[0] - row + 1)
        else:
            begins_statement = token.type in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    return code


def lines_outside(own: Sequence[str], modules: Mapping[str, Sequence[str]], names: str = "") -> int:
    """Return how many lines of *modules* match *names*, except in the *own* files and folders."""
    outside = (lines for path, lines in modules.items() if not path.startswith(tuple(own)))
    return sum(bool(re.search(names, line)) for lines in outside for line in lines)


def smallest_site() -> Figures:
    """Return the modules, and their lines, that a site with nothing else loads to make a memory."""
    command = [sys.executable, "-c", SMALLEST_SITE]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout  # noqa: S603
    lines = [len(Path(file).read_text().splitlines()) for file in printed.splitlines()]
    return {"smallest_site_modules": len(lines), "smallest_site_lines": sum(lines)}


def traced() -> Figures:
    """Return the modules and the calls of each journey through the example site, on a new SQLite database."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DATABASE_URL"] = f"sqlite:///{folder}/db.sqlite3"
        os.environ.setdefault("DEBUG", "1")
        os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
        sys.path.insert(0, str(ROOT))
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        for journey in journeys(0).values():  # what is loaded and cached once is not counted
            journey()
        for run in range(1, RUNS + 1):
            for name, journey in journeys(run).items():
                started = started_in(journey)
                for figure, count in {f"{name}_modules": len(set(started)), f"{name}_calls": len(started)}.items():
                    figures[figure] = min(count, figures.get(figure, count))
    return figures


def journeys(run: int) -> dict[str, Callable[[], object]]:
    """Return what is traced, with a user and conversations of this *run*: each run does the same."""
    from django.contrib.auth.models import User
    from django.test import Client

    from chatmemory_django.messages import AiMessage, UserMessage
    from chatmemory_django.provider import get_chat_memory
    from example_project.llm import model

    model.pause = 0  # type: ignore[attr-defined]  # Parrot's, between words: what is written meanwhile takes calls
    user = User.objects.create_user(f"user-{run}")
    memory = get_chat_memory(f"memory-{run}", owner=user)
    for number in range(15):
        memory.add(UserMessage(f"Question {number}"), AiMessage(f"Answer {number}"))
    client = Client(SERVER_NAME="localhost", headers={"accept": "application/json"})
    client.force_login(user)
    numbers = itertools.count()

    def turn() -> None:
        with memory.turn() as turn:
            turn.add(UserMessage("Question"))
            _ = turn.messages
            turn.add(AiMessage("Answer"))

    def get_memory() -> None:
        _check(client.get(f"/api/conversations/memory-{run}/memory/"))

    def post_chat() -> None:
        question = {"id": f"question-{next(numbers)}", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}
        asked = {"id": str(UUID(int=run)), "messages": [question]}
        _check(client.post("/api/chat", asked, content_type="application/json"))

    post_chat()  # the first question makes the conversation
    return {
        "messages": memory.messages,
        "get_memory": get_memory,
        "add": lambda: memory.add(UserMessage("Question")),
        "turn": turn,
        "post_chat": post_chat,
    }


def _check(response: Any) -> None:
    if response.status_code != 200:
        raise RuntimeError(f"{response.request['PATH_INFO']} was answered with {response.status_code}, not with 200.")


def started_in(journey: Callable[[], object]) -> list[str]:
    """Return the module of each function of the package that starts during *journey*, in any thread."""
    started: list[str] = []
    monitoring, tool = sys.monitoring, sys.monitoring.PROFILER_ID

    def note(code: CodeType, _offset: int) -> object:
        if not code.co_filename.startswith(f"{PACKAGE}{os.sep}"):
            return monitoring.DISABLE
        started.append(code.co_filename)
        return None

    monitoring.use_tool_id(tool, "ceilings")
    monitoring.register_callback(tool, monitoring.events.PY_START, note)
    monitoring.set_events(tool, monitoring.events.PY_START)
    try:
        journey()
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
    return started


def figures_of_tests(junit: Path, times: Path | None) -> Figures:
    """Return what is measured of a run of all tests, of its seconds where *times* has them; print its slowest tests."""
    cases = list(ElementTree.parse(junit).iter("testcase"))  # noqa: S314  # pytest has just written it
    tests = [(float(case.get("time", 0)), f"{case.get('classname')}::{case.get('name')}") for case in cases]
    slowest = heapq.nlargest(SLOWEST, tests)
    sys.stdout.writelines(f"{seconds:8.2f} s  {name}\n" for seconds, name in slowest)
    share = sum(seconds for seconds, _ in slowest) / sum(seconds for seconds, _ in tests)
    skipped = sum(case.find("skipped") is not None for case in cases)
    figures: Figures = {"tests_skipped": skipped, "slowest_tests_percent": round(100 * share)}
    if times is not None:
        computed = sum(map(float, times.read_text().split()))
        figures["tests_cpu_seconds"] = round(computed * LOOP_SECONDS / min(_loop_seconds() for _ in range(5)))
    return figures


def _loop_seconds() -> float:
    began = time.process_time()
    words = [f"word {number}" for number in range(1000)]
    for _time in range(1000):
        sorted({word: len(word) for word in words}, key=str.upper)
    return time.process_time() - began


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of all figures, and which are refused; return the exit status."""
    parser = argparse.ArgumentParser(description="Fail if a figure is above its ceiling.")
    parser.add_argument("--tests", metavar="JUNIT.xml", type=Path, help="measure this run of all tests, not the code")
    parser.add_argument("--times", metavar="TIMES", type=Path, help="the seconds of the processor that the run took")
    asked = parser.parse_args(arguments)
    data = tomllib.loads(DATA.read_text())
    ceilings = data["ceilings"]["tests" if asked.tests else "code"]
    figures = figures_of_tests(asked.tests, asked.times) if asked.tests else figures_of_code(data)
    refused = list(refusals(figures, ceilings))
    sys.stdout.writelines(f"{line}\n" for line in [*table(figures, ceilings), *refused])
    return bool(refused)


if __name__ == "__main__":
    sys.exit(main())
