"""A site on an engine whose backend extends that of PostgreSQL."""

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

DATABASES["default"]["ENGINE"] = "tests.engines.elsewhere"
