"""A site on an engine whose backend declares no SQL that is known here, with an app whose index it does not have."""

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS

DATABASES["default"]["ENGINE"] = "tests.engines.unknown"

INSTALLED_APPS = [*INSTALLED_APPS, "chatmemory_django.contrib.search"]
