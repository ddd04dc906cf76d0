"""The numbers of docs/limits.md are those of the settings and constants, and those of docs/databases.md Django's."""

import re
from importlib import import_module
from math import prod

import django
import pytest
from django.db import connection

from chatmemory_django import conf
from chatmemory_django.chat.conf import Chat
from chatmemory_django.contrib.files.conf import StorageOfFiles
from chatmemory_django.contrib.notes.conf import Notes
from tests.acceptance.docs.pages import DOCS

LIMITS = re.findall(r"^\| .+ \| (.+) \| `(.+)` \|$", (DOCS / "limits.md").read_text(), re.MULTILINE)
SECTIONS = {
    "CHATMEMORY": conf.General.defaults() | StorageOfFiles.defaults(),
    "REST": conf.Rest.defaults(),
    "CHAT": Chat.defaults(),
    "NOTES": Notes.defaults(),
}
UNITS = {"KiB": 1024, "MiB": 1024 * 1024}


def number(shown: str) -> int:
    return prod(UNITS.get(part) or int(part.replace(",", "")) for part in shown.split())


def in_force(where: str) -> int:
    if setting := re.fullmatch(r'(CHATMEMORY|REST|CHAT|NOTES)\["(\w+)"\]', where):
        return SECTIONS[setting[1]][setting[2]]
    module, _, name = where.rpartition(".")
    return getattr(import_module(f"chatmemory_django.{module}"), name)


@pytest.mark.parametrize(("shown", "where"), LIMITS)
def test_a_limit_is_the_one_in_force(shown: str, where: str):
    if where.startswith("contrib.mcp."):
        pytest.importorskip("mcp")

    assert number(shown) == in_force(where)


def test_every_setting_of_what_is_at_most_allowed_is_on_the_page():
    names = [f'{key}["{name}"]' for key, its in SECTIONS.items() for name in its if "MAX_" in name]

    assert [name for name in names if name not in dict(map(reversed, LIMITS))] == []


def test_all_rows_are_read():
    rows = re.findall(r"^\| (?!what|--).+ \|$", (DOCS / "limits.md").read_text(), re.MULTILINE)

    assert len(LIMITS) == len([row for row in rows if not row.startswith("|---")]) > 40


@pytest.mark.django_db
@pytest.mark.skipif(django.VERSION[:2] not in {(5, 2), (6, 1)}, reason="The page names the versions of 5.2 and 6.1.")
def test_the_oldest_versions_of_databases_are_those_of_django():
    page = (DOCS / "databases.md").read_text()
    column = {(5, 2): 1, (6, 1): 2}[django.VERSION[:2]]
    oldest = {
        cells[0]: cells[column] for cells in re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \|", page, re.MULTILINE)
    }
    name = connection.display_name

    assert sorted(oldest) == ["MariaDB", "MySQL", "PostgreSQL", "SQLite"]
    assert oldest[name] == ".".join(map(str, connection.features.minimum_database_version))
