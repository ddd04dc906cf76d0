"""The example site, with apps that tests are about, and that this site does not need."""

from example_project.settings import *  # noqa: F403
from example_project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "chatmemory_django.contrib.files", "chatmemory_django.contrib.holds"]
