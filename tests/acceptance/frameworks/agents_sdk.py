"""A pytest plugin: the Agents SDK's own tests get a ``DjangoSession`` wherever they create an ``SQLiteSession``.

Tests of the internals of ``SQLiteSession`` are left out: its connections, its tables, its locks.
"""

import itertools

import agents
import agents.memory.sqlite_session
from plain_site import leave_out

from chatmemory_django.contrib.adapters.openai_agents import DjangoSession

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


class Session(DjangoSession):
    """A session with the arguments of an ``SQLiteSession``: each file name is a separate part of the database."""

    def __init__(self, session_id, db_path=":memory:", *tables, session_settings=None, **options):
        part = next(_numbers) if str(db_path) == ":memory:" else db_path
        super().__init__(f"{part}:{session_id}"[-255:], session_settings=session_settings)
        self.session_id = session_id

    def close(self):
        """Do nothing: Django owns the connections."""


agents.SQLiteSession = agents.memory.SQLiteSession = agents.memory.sqlite_session.SQLiteSession = Session


def pytest_collection_modifyitems(config, items):
    """Leave out the tests of internals."""
    leave_out(config, items, INSIDE)
