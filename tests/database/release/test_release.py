"""The tables of 0.1 stay what they are, and what a site has in them is there after each upgrade."""

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from django.db import connection

from tests.database.release.dump import DUMPS, dumped, environment
from tests.database.release.frozen import digest, migrations
from tests.database.test_concurrency import IS_SQLITE, database_url

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def empty_database(tmp_path) -> Iterator[str]:
    """Return the address of a database without tables."""
    url, name = database_url(tmp_path), f"{connection.settings_dict['NAME']}_upgraded"
    if IS_SQLITE:
        yield url
        return
    quoted = connection.ops.quote_name(name)
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {quoted}")
        cursor.execute(f"CREATE DATABASE {quoted}")
    yield re.sub(r"[^/]+$", name, url)
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {quoted}")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if IS_SQLITE else []) for name in DUMPS])
def test_a_site_of_the_first_release_is_upgraded_and_all_that_it_has_is_read(name, empty_database, tmp_path):
    if name == "sealed":
        pytest.importorskip("cryptography")

    upgraded = subprocess.run(
        [sys.executable, "-m", "tests.database.release.upgrade", name],
        env=environment(name, empty_database, tmp_path / "files"),
        capture_output=True,
        text=True,
        check=False,
    )

    assert (upgraded.stdout, upgraded.returncode) == ("", 0), upgraded.stderr


def test_a_migration_of_a_release_is_never_changed():
    now = migrations()

    for name in DUMPS:
        changed = [path for path, frozen in dumped(name)["migrations"].items() if now.get(path) != frozen]
        assert changed == [], "These were released: put them back, and write new migrations with makemigrations."


def test_the_first_migration_of_each_app_is_in_a_dump():
    assert {path for path in migrations() if "0001_" in path} <= dumped("plain")["migrations"].keys()


def test_every_column_of_the_tables_is_filled_in_a_dump():
    assert set.intersection(*(set(dumped(name)["unfilled"]) for name in DUMPS)) == set()


def test_a_migration_is_the_same_in_other_words_and_another_one_if_it_does_something_else():
    source = 'operations = [AddField("message", "text", TextField())]'

    assert digest(source) == digest(f"# A comment\n\n{source.replace(chr(34), chr(39))}\n")
    assert digest(source) != digest(source.replace("TextField()", "TextField(null=True)"))
