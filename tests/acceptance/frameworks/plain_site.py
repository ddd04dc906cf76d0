"""A pytest plugin: a site with only this app, in which other frameworks run their own tests."""

import asyncio
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
        "MEMORY": {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 3}}
    },
    USE_TZ=True,
)
django.setup()

from chatmemory_django.db.threads import close_thread_sensitive  # noqa: E402

_databases = []


def leave_out(config, items, names):
    """Deselect the tests whose names begin with these; each must match a test, so that no typo goes unnoticed."""
    left = [item for item in items if item.name.startswith(tuple(names))]
    missing = [name for name in names if not any(item.name.startswith(name) for item in left)]
    if missing:
        raise pytest.UsageError(f"There are no tests of these names any more: {missing}")
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


def pytest_sessionstart(session):
    """Create the test database."""
    _databases.extend(setup_databases(verbosity=0, interactive=False))


def pytest_sessionfinish(session):
    """Drop the test database, once the thread that used it has closed its connection."""
    asyncio.run(close_thread_sensitive())
    teardown_databases(_databases, verbosity=0)
