"""Django's settings: those of the other benchmarks, with the index."""

from benchmarks.settings import *  # noqa: F403
from benchmarks.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "chatmemory_django.contrib.search"]
