"""The example site, with apps that tests are about, and that this site does not need."""

import os

os.environ.setdefault("DEBUG", "1")  # as manage.py does, for what the tests start, too

from example_project.settings import *  # noqa: F403
from example_project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "chatmemory_django.contrib.files", "chatmemory_django.contrib.holds"]
