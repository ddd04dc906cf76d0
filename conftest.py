"""Collect the code blocks of the documentation as tests: each in a transaction, with the names of earlier blocks."""

import sys
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from django.conf import settings as django_settings
from django.core.management.commands import flush
from django.db import connections
from django.db.models.signals import post_migrate
from django.test import override_settings
from hypothesis import HealthCheck, settings
from sybil import Sybil
from sybil.example import SybilFailure
from sybil.integration.pytest import SybilItem
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()], patterns=["README.md", "docs/*.md", "docs/*/*.md"], fixtures=["db"]
).pytest()

ADAPTERS = {
    "ag_ui": "AG-UI",
    "agents": "OpenAI Agents SDK",
    "anthropic": "Anthropic's client",
    "boto3": "Amazon's client",
    "cryptography": "cryptography",
    "genai_prices": "genai-prices",
    "google.genai": "Google's client",
    "jinja2": "Jinja",
    "langchain_core": "LangChain",
    "llama_index.core": "LlamaIndex",
    "mcp": "MCP",
    "mistralai": "Mistral's client",
    "opentelemetry.instrumentation.openai_v2": "OpenTelemetry's instrumentation",
    "opentelemetry.sdk": "OpenTelemetry's SDK",
    "pydantic_ai": "pydantic-ai",
    "redis": "redis",
}
"""The modules of the dependency group ``adapters``, and their names for people."""


def _is_missing(module: str) -> bool:
    try:
        return find_spec(module) is None
    except ModuleNotFoundError:  # neither is the package that it is in
        return True


MISSING = {module: name for module, name in ADAPTERS.items() if _is_missing(module)}
"""Those that are not installed. What fails for that alone is skipped, so with all of them, nothing is."""

incomplete: set[Path] = set()
"""The pages of the documentation of which a block has been skipped for that: later blocks build on it."""

# How long an example takes depends on the machine, and on what else runs there: it is no reason to fail. The gate runs
# with --hypothesis-profile=thorough.
QUICK = settings(max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", QUICK)
settings.register_profile("thorough", QUICK, max_examples=500)
settings.load_profile("quick")


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Keep SQLite's test databases in files: in memory, concurrent writers do not wait for each other."""
    folder = tmp_path_factory.mktemp("databases")
    for connection in connections.all():
        if connection.vendor == "sqlite":
            connection.settings_dict["TEST"]["NAME"] = str(folder / f"{connection.alias}.sqlite3")
            # No test database outlives a crash of the machine, so nothing waits for the disk.
            connection.settings_dict["OPTIONS"]["init_command"] += "; PRAGMA synchronous=OFF"


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> Iterator[None]:
    """Keep the permissions when the rows of a test are deleted: making them again takes longer than most tests."""
    from django.contrib.auth.models import Permission  # the apps are loaded only now
    from django.contrib.contenttypes.management import create_contenttypes
    from django.contrib.contenttypes.models import ContentType

    kept = {Permission._meta.db_table, ContentType._meta.db_table}

    def sql_flush(style: Any, connection: Any, **options: Any) -> list[str]:
        tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
        return connection.ops.sql_flush(style, [table for table in tables if table not in kept], **options)

    post_migrate.disconnect(create_contenttypes)
    post_migrate.disconnect(dispatch_uid="django.contrib.auth.management.create_permissions")
    with patch.object(flush, "sql_flush", sql_flush):
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_passwords() -> Iterator[None]:
    """Hash passwords quickly: Django's default takes a large part of a second for each."""
    with override_settings(PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"]):
        yield


@pytest.fixture(autouse=True)
def settings_stay() -> Iterator[None]:
    """Refuse to change ``CHATMEMORY`` in place: nothing puts that back, so that later tests run on another site."""
    before = deepcopy(django_settings.CHATMEMORY)
    yield
    if before != django_settings.CHATMEMORY:
        django_settings.CHATMEMORY = before
        pytest.fail("This test has changed CHATMEMORY in place; assign a dict of its own to settings.CHATMEMORY.")


@pytest.fixture(autouse=True)
def no_thread_goes_on() -> Iterator[None]:
    """Stop the threads that renew leases, or delete ended streams after a while: they would do so in other tests."""
    yield
    for module, name in (("deleting", "Deletion"), ("renewals", "Renewal")):
        if loaded := sys.modules.get(f"chatmemory_django.chat.runs.{module}"):
            for each in getattr(loaded, name).running.copy():
                each.stop()


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run the tests of a file in one process: blocks of a page build on each other, and tests share live servers."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            # Each of these tests runs many, in a process and with databases of its own.
            return nodeid if "test_sites.py" in nodeid or "test_zoo.py" in nodeid else super()._split_scope(nodeid)

    config.option.loadscopereorder = False  # the order is that of the collection, see below
    return Scheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the code blocks in order even if tests are shuffled, and request a database for them."""
    blocks = sorted(
        (item for item in items if isinstance(item, SybilItem)), key=lambda block: (block.path, block.example.line)
    )
    for block in blocks:
        block.add_marker(pytest.mark.django_db)
    items[:] = [*(item for item in items if not isinstance(item, SybilItem)), *blocks]
    if hasattr(config, "workerinput"):  # Of several processes, none shall be left with a file that takes long.
        counts = Counter(item.path for item in items)
        items.sort(key=lambda item: ("acceptance" not in item.path.parts, -counts[item.path]))


WITHOUT_ADAPTERS = "It needs the dependency group adapters"


def _comes_from_what_is_missing(failure: BaseException | None) -> bool:
    while failure is not None:
        if isinstance(failure, ModuleNotFoundError):
            return any(f"{module}.".startswith(f"{failure.name}.") for module in MISSING)
        failure = failure.__cause__ or failure.__context__
    return False


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Skip the modules that import what is missing."""
    report = yield
    if report.failed and _comes_from_what_is_missing(report.call.excinfo.value):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {WITHOUT_ADAPTERS}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Skip the tests and the code blocks that import what is missing, and the blocks that need these blocks."""
    try:
        return (yield)
    except pytest.PytestWarning as exc:  # what the collector met during the test: Sybil cannot show what has no line
        if isinstance(item, SybilItem):
            raise SybilFailure(item.example, f"{exc}\n{exc.__cause__!r}") from exc
        raise
    except Exception as exc:
        if item.path not in incomplete and not _comes_from_what_is_missing(exc):
            raise
        if isinstance(item, SybilItem):
            incomplete.add(item.path)
        pytest.skip(WITHOUT_ADAPTERS)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say once what is missing."""
    if MISSING and terminalreporter.stats.get("skipped"):
        names = ", ".join(MISSING.values())
        terminalreporter.write_line(f"Skipped without the dependency group adapters: the tests of {names}.")
