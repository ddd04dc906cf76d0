"""A site with ATOMIC_REQUESTS, whose transactions see the database as of their first read."""

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

DATABASE = DATABASES["default"]
DATABASE["ATOMIC_REQUESTS"] = True
if DATABASE["ENGINE"].endswith("postgresql"):
    from psycopg import IsolationLevel

    DATABASE.setdefault("OPTIONS", {})["isolation_level"] = IsolationLevel.REPEATABLE_READ
elif DATABASE["ENGINE"].endswith("mysql"):
    DATABASE.setdefault("OPTIONS", {})["isolation_level"] = "repeatable read"
