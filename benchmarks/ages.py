"""What each table of README.md was measured on, and whether that is too old for the code as it is."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PACKAGE = "chatmemory_django"

MEMORY = ("messages.py", "codec.py", "core", "db", "memory", "models", "stores", "tokens")
ABOUT = {
    **dict.fromkeys(("turn", "leanest", "flat", "add", "read", "window"), MEMORY),
    **dict.fromkeys(("threads", "disk", "memory", "branches"), MEMORY),
    "search": (*MEMORY, "contrib/search"),
    "recall": ("core/weighing.py", "models/finding.py", "operations/recall.py", "operations/searching.py"),
}
"""What of the package a table is about, by the first word of its name. The others are about all of it."""

UNMEASURED = ("Section", "hop")
"""The first cells of the tables without measurements, the only ones that no command writes."""

SECTION = re.compile(r"(?s)<!-- (?P<name>[\w-]+) -->\n(?P<body>.*?)<!-- end of (?P=name) -->")
STAMP = re.compile(r"(?m)^\d{4}-\d\d-\d\d, commit `(?P<commit>[0-9a-f]{7,40})\+?`")
TABLE = re.compile(r"(?m)^\|(?P<first>[^|\n]*)\|.*\n\|[-:| ]+\|$")


def stamp() -> str:
    """Return the day, the commit, with "+" if the code differs from it, and the machine's load, as of now."""
    try:
        commit = _git(ROOT, "rev-parse", "--short=9", "HEAD")
        commit += "+" * bool(_git(ROOT, "status", "--porcelain", "--", PACKAGE, "benchmarks/*.py"))
    except (FileNotFoundError, subprocess.CalledProcessError):
        commit = "unknown"
    today = datetime.datetime.now(datetime.UTC).date()
    return f"{today}, commit `{commit}`, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors."


def has_history(root: Path) -> bool:
    """Return whether *root* is a clone with all commits, and not a source distribution."""
    return (root / ".git").exists() and _git(root, "rev-parse", "--is-shallow-repository") == "false"


def findings(root: Path = ROOT) -> Iterator[str]:
    """Yield what is wrong with the tables of README.md: written by hand, or measured on something unknown or old."""
    text = (root / "benchmarks" / "README.md").read_text()
    releases = _git(root, "tag", "--merged", "HEAD", "--list", "v*", "--sort=creatordate").split()
    for table in TABLE.finditer(SECTION.sub("", text)):
        if table["first"].strip() not in UNMEASURED:
            yield f"No command writes this table: {table[0].splitlines()[0]}"
    for section in SECTION.finditer(text):
        name, measured = section["name"], STAMP.search(section["body"])
        if measured is None:
            yield f"{name} does not state what it was measured on."
        elif not _follows(root, "HEAD", measured["commit"]):
            yield f"{name} was measured on {measured['commit']}, which is not in the history."
        elif releases[:-1] and not _follows(root, measured["commit"], releases[-2]):
            paths = [f"{PACKAGE}/{path}" for path in ABOUT.get(name.partition("-")[0], ("",))]
            if _git(root, "diff", "--name-only", measured["commit"], "--", *paths):
                yield f"{name} was measured before {releases[-2]}, and its code has changed since."


def _follows(root: Path, commit: str, earlier: str) -> bool:
    """Return whether *commit* is *earlier* or comes after it."""
    command = ["git", "merge-base", "--is-ancestor", earlier, commit]
    return subprocess.run(command, cwd=root, capture_output=True, check=False).returncode == 0


def _git(root: Path, *arguments: str) -> str:
    ran = subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=True, text=True)
    return ran.stdout.strip()
