"""The project is written in plain, present-day English; codespell finds misspellings, this finds obscure words."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = [".ci", "benchmarks", "chatmemory_django", "docs", "example_project", "tests"]
SUFFIXES = {"", ".css", ".html", ".js", ".jsx", ".md", ".mjs", ".po", ".py", ".sh", ".toml", ".ts", ".tsx"}
OBSCURE = {
    r"said(?! messages)|says|tells|telling|told": "wrote, sent, asked; states, returns, reports, describes, shows",
    r"of (no )?use\b(?! of)": "invalid, has no effect, useful",
    r"at home here|will do(?= *[.,;:)]|$)": "is supported, is enough, requires",
    r"lets? go of|gone for good|deleted for good": "evicts, is deleted permanently",
    r"anew": "again",
    r"whoever|whosoever": "anyone who, the user, the caller",
    r"whatever is no|in whatever|on whatever": "unsafe requests, case-insensitively, on any",
    r"(?<!there )(?:is|are|was|were) no (?!longer)": "is not a",
    r"but for|but once": "except, only once",
    r"as (?:they|it) lies?|(?:that|what) there is not|not a word": "unordered, unknown, missing, nothing",
    r"thereof|whereof|wherein|thereby|lest|alas|hence|thus": "a plain word",
    r"forgetting|forgets": "evicts, deletes, loses",
}
"""
What must not be written, as regular expressions of whole words, and what to write instead.

A field of the first exports, which are still read, is called ``said_messages``.
"""


@pytest.fixture(scope="module")
def lines() -> list[tuple[str, str]]:
    """Return each line of the project's own texts, and where it is; names in snake case count as words."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    files += [*ROOT.glob("*.md"), *ROOT.glob("*.py"), ROOT / "pyproject.toml"]
    return [
        (f"{path.relative_to(ROOT)}:{number}", line.replace("_", " "))
        for path in sorted(files)
        if path.is_file() and path != Path(__file__) and not {"data", "node_modules"} & set(path.parts)
        for number, line in enumerate(path.read_text(errors="ignore").splitlines(), 1)
    ]


@pytest.mark.parametrize("obscure", OBSCURE)
def test_an_obscure_word_is_not_used(obscure: str, lines: list[tuple[str, str]]):
    pattern = re.compile(rf"(?<![a-z])(?:{obscure})(?![a-z])", re.IGNORECASE)

    found = [f"{place}: {match[0]}" for place, line in lines if (match := pattern.search(line))]

    assert found == [], f"Write instead: {OBSCURE[obscure]}."


def test_the_lines_are_those_of_every_folder(lines: list[tuple[str, str]]):
    assert {place.split("/")[0] for place, _ in lines} >= {*FOLDERS}
    assert len(lines) > 50_000
