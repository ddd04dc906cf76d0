"""
A plugin for pytest: wherever the Agents SDK's own tests make an ``SQLiteSession``, they get a ``DjangoSession``.

Left out are those that look inside of an ``SQLiteSession``: at its connections, its tables, its locks.
"""

import asyncio
import itertools
import os

import dj_database_url
import django
import pytest
from django.conf import settings
from django.test.utils import setup_databases, teardown_databases

database = {**dj_database_url.parse(os.environ["DATABASE_URL"]), "TEST": {"NAME": os.environ["TEST_NAME"]}}
settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "chatmemory_django"],
    DATABASES={"default": database},
    CHATMEMORY={
        "MEMORY": {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 20}}
    },
    USE_TZ=True,
)
django.setup()

import agents  # noqa: E402
import agents.memory.sqlite_session  # noqa: E402

from chatmemory_django.integrations.openai_agents import DjangoSession  # noqa: E402
from chatmemory_django.threads import close_thread_sensitive  # noqa: E402

INSIDE = (
    "test_automatic_compaction_does_not_reload_unbounded_hidden_history",
    "test_automatic_compaction_rollback_budget[True]",
    "test_backend_read_limit_cannot_hide_retained_history_from_compaction",
    "test_expired_read_overhead_does_not_authorize_hidden_history",
    "test_handoff_resume_after_cancelled_compaction_commits",
    "test_settled_clear_failure_invalidates_response_chain",
    "test_settled_pop_failure_invalidates_response_chain",
    "test_sqlite_session_close_closes_worker_thread_connections",
    "test_sqlite_session_close_retries_quarantined_connection",
    "test_sqlite_session_closed_rejects_empty_add_items",
    "test_sqlite_session_closes_retired_connections_before_the_next_allocation",
    "test_sqlite_session_failed_add_items_releases_write_lock",
    "test_sqlite_session_failed_clear_session_rolls_back",
    "test_sqlite_session_failed_pop_item_releases_write_lock",
    "test_sqlite_session_file_lock_is_shared_across_instances",
    "test_sqlite_session_get_items_limit_skips_corrupt_newest_rows",
    "test_sqlite_session_get_items_session_settings_limit_skips_corrupt_rows",
    "test_sqlite_session_keeps_connections_of_live_worker_threads",
    "test_sqlite_session_pop_item_returns_none_after_dropping_only_corrupt_rows",
    "test_sqlite_session_pop_item_skips_corrupt_most_recent",
    "test_sqlite_session_post_commit_cancellation_propagates_after_known_outcome",
    "test_sqlite_session_reaps_connections_from_exited_worker_threads",
    "test_sqlite_session_rollback_failure_evicts_connection",
)

_numbers = itertools.count()
_databases = []


class Session(DjangoSession):
    """A session that takes the arguments of an ``SQLiteSession``: each file is a part of the database of its own."""

    def __init__(self, session_id, db_path=":memory:", *tables, session_settings=None, **options):
        part = next(_numbers) if str(db_path) == ":memory:" else db_path
        super().__init__(f"{part}:{session_id}"[-255:], session_settings=session_settings)
        self.session_id = session_id

    def close(self):
        """Do nothing: the connections are Django's."""


agents.SQLiteSession = agents.memory.SQLiteSession = agents.memory.sqlite_session.SQLiteSession = Session


def pytest_collection_modifyitems(config, items):
    """Leave out the tests of the inside; each of them must be there, so that no name here is a mistake."""
    left = [item for item in items if any(item.name.startswith(name) for name in INSIDE)]
    missing = [name for name in INSIDE if not any(item.name.startswith(name) for item in left)]
    if missing:
        raise pytest.UsageError(f"The SDK has no tests of these names any more: {missing}")
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


def pytest_sessionstart(session):
    """Make the test database."""
    _databases.extend(setup_databases(verbosity=0, interactive=False))


def pytest_sessionfinish(session):
    """Drop it, once the thread that has used it has no connection to it."""
    asyncio.run(close_thread_sensitive())
    teardown_databases(_databases, verbosity=0)
