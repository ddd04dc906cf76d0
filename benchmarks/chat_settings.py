"""The settings of benchmarks that need the chat: its assistants, or its tables, which have the calls of models."""

from benchmarks.settings import *  # noqa: F403
from benchmarks.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "chatmemory_django.chat"]
