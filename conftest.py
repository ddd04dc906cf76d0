"""Collect the code blocks of the documentation as tests: each in a transaction, with the names of earlier blocks."""

import pytest
from django.db import connections
from sybil import Sybil
from sybil.integration.pytest import SybilItem
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()], patterns=["README.md", "docs/*.md", "docs/*/*.md"], fixtures=["db"]
).pytest()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Keep SQLite's test databases in files: in memory, concurrent writers do not wait for each other."""
    folder = tmp_path_factory.mktemp("databases")
    for connection in connections.all():
        if connection.vendor == "sqlite":
            connection.settings_dict["TEST"]["NAME"] = str(folder / f"{connection.alias}.sqlite3")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options for CI, which runs database tests on every database and all other tests only once."""
    parser.addoption("--database-only", action="store_true", help="run only the tests that use the database")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the code blocks in order even if tests are shuffled, and request a database for them."""
    blocks = sorted(
        (item for item in items if isinstance(item, SybilItem)), key=lambda block: (block.path, block.example.line)
    )
    for block in blocks:
        block.add_marker(pytest.mark.django_db)
    items[:] = [*(item for item in items if not isinstance(item, SybilItem)), *blocks]
    if config.getoption("database_only"):
        items[:] = [item for item in items if uses_database(item)]


def uses_database(item: pytest.Item) -> bool:
    """Return whether *item* needs the database, by mark or fixture, and is not mainly a browser test."""
    if item.get_closest_marker("browser") is not None:
        return False
    return item.get_closest_marker("django_db") is not None or "transactional_db" in getattr(item, "fixturenames", ())
