"""The tables of benchmarks/README.md: written by their commands, and not older than the rule there allows."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import ages

WRITTEN = """<!-- add-sqlite -->

| messages | 100 |
| --- | --: |
| ours | 7 µs |

2026-01-01, commit `{commit}+`, load 0.1 on 2 processors.

<!-- end of add-sqlite -->
"""


class Clone:
    """A repository with a package, a README.md with a table, and releases."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "--quiet")
        for folder in ("benchmarks", "chatmemory_django/stores", "chatmemory_django/rest"):
            (root / folder).mkdir(parents=True)

    def git(self, *arguments: str) -> str:
        names = {f"GIT_{who}_{what}": "ann@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        ran = subprocess.run(
            ["git", *arguments], cwd=self.root, env=os.environ | names, capture_output=True, check=True, text=True
        )
        return ran.stdout.strip()

    def commit(self, path: str, text: str) -> str:
        """Commit *text* as the file at *path*, and return the commit's name."""
        (self.root / path).write_text(text)
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", path)
        return self.git("rev-parse", "HEAD")

    def release(self, *names: str) -> None:
        for name in names:
            self.commit("CHANGELOG.md", name)
            self.git("tag", name)

    def describe(self, text: str) -> list[str]:
        """Return the findings with *text* as the README.md."""
        (self.root / "benchmarks" / "README.md").write_text(text)
        return list(ages.findings(self.root))


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_every_table_of_the_readme_may_stay():
    if not ages.has_history(ages.ROOT):
        pytest.skip("A source distribution or a shallow clone has no history.")

    assert list(ages.findings()) == []


def test_the_paths_that_tables_are_about_exist():
    paths = {path for about in ages.ABOUT.values() for path in about}

    assert [path for path in paths if not (ages.ROOT / ages.PACKAGE / path).exists()] == []


def test_without_two_releases_a_table_is_never_too_old(clone: Clone):
    text = WRITTEN.format(commit=clone.commit("chatmemory_django/stores/a.py", "1"))
    clone.release("v0.1.0")
    clone.commit("chatmemory_django/stores/a.py", "2")

    assert clone.describe(text) == []


def test_a_table_from_before_the_release_before_the_last_is_too_old_once_its_code_changes(clone: Clone):
    text = WRITTEN.format(commit=clone.commit("chatmemory_django/stores/a.py", "1"))
    clone.release("v0.1.0", "v0.2.0")

    assert clone.describe(text) == []

    clone.commit("chatmemory_django/rest/a.py", "a part that the table is not about")

    assert clone.describe(text) == []

    clone.commit("chatmemory_django/stores/a.py", "2")

    assert clone.describe(text) == ["add-sqlite was measured before v0.1.0, and its code has changed since."]
    assert clone.describe(text.replace("add-", "soak-")) == [
        "soak-sqlite was measured before v0.1.0, and its code has changed since."
    ]


def test_a_table_of_the_release_before_the_last_may_stay(clone: Clone):
    clone.release("v0.1.0")
    text = WRITTEN.format(commit=clone.git("rev-parse", "HEAD"))
    clone.release("v0.2.0")
    clone.commit("chatmemory_django/stores/a.py", "2")

    assert clone.describe(text) == []


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (lambda text: text.replace(", commit", ""), "add-sqlite does not state what it was measured on."),
        (lambda text: text.replace("2026-01-01", "On Monday"), "add-sqlite does not state what it was measured on."),
        (lambda text: text.replace("<!-- end of", "<!--"), "No command writes this table: | messages | 100 |"),
        (lambda text: text + "\n| day | 1 |\n|---|--:|\n", "No command writes this table: | day | 1 |"),
    ],
    ids=["no commit", "no day", "no end", "no markers"],
)
def test_a_table_states_what_it_was_measured_on(clone: Clone, change: Callable[[str], str], finding: str):
    text = WRITTEN.format(commit=clone.commit("chatmemory_django/stores/a.py", "1"))

    assert clone.describe(change(text)) == [finding]


def test_a_table_that_was_never_measured_is_found(clone: Clone):
    clone.commit("chatmemory_django/stores/a.py", "1")

    found = clone.describe("<!-- soak -->\n<!-- end of soak -->\n")

    assert found == ["soak does not state what it was measured on."]


def test_a_commit_that_is_not_in_the_history_is_found(clone: Clone):
    clone.commit("chatmemory_django/stores/a.py", "1")

    assert clone.describe(WRITTEN.format(commit="0123456789")) == [
        "add-sqlite was measured on 0123456789, which is not in the history."
    ]


def test_a_clone_has_a_history_and_a_source_distribution_has_none(clone: Clone, tmp_path: Path):
    clone.release("v0.1.0", "v0.2.0")
    (tmp_path / "distribution").mkdir()
    clone.git("clone", "--quiet", "--depth", "1", f"file://{tmp_path}", "shallow")

    assert ages.has_history(tmp_path)
    assert not ages.has_history(tmp_path / "shallow")
    assert not ages.has_history(tmp_path / "distribution")


@pytest.mark.skipif(not (ages.ROOT / ".git").exists(), reason="A source distribution has no commit.")
def test_what_the_commands_write_can_be_read():
    assert ages.STAMP.search(ages.stamp())


def test_the_figures_of_docs_prompt_caching_are_those_of_the_benchmark():
    rows = re.compile(r"^\| (`max_\w+=.*?) \| ([\d,]+) \| (\d+%) \|.*?([\d.]+) \N{MULTIPLICATION SIGN}", re.MULTILINE)
    shown = rows.findall((ages.ROOT / "docs" / "prompt-caching.md").read_text())

    assert len(shown) == 6
    assert shown == rows.findall((ages.ROOT / "benchmarks" / "README.md").read_text())


def test_the_figures_of_breakpoints_in_docs_prompt_caching_are_those_of_the_benchmark():
    cell = "([\\d.]+%) \N{MIDDLE DOT} \\**([\\d.]+) \N{MULTIPLICATION SIGN}\\**"
    rows = re.compile(rf"^\| (Anthropic|Bedrock, Claude) \| .*? \| {cell} \| {cell} \|$", re.MULTILINE)
    shown = rows.findall((ages.ROOT / "docs" / "prompt-caching.md").read_text())

    assert len(shown) == 6
    assert shown == rows.findall((ages.ROOT / "benchmarks" / "README.md").read_text())


def test_the_figures_of_docs_clearing_are_those_of_the_benchmark_and_half_the_window_shows_as_much():
    rows = re.compile(r"^\| (300|1,000|2,500) \| .*? \| \**([\d.]+)\** \| ([\d,]+) \|", re.MULTILINE)
    shown = rows.findall((ages.ROOT / "docs" / "clearing.md").read_text())

    assert len(shown) == 9
    assert set(shown) <= set(rows.findall((ages.ROOT / "benchmarks" / "README.md").read_text()))
    for (_, plain, _), (_, half, _) in zip(shown[::3], shown[2::3], strict=True):
        assert float(half) >= float(plain)
