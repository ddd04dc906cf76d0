"""A site that has its own fields for what is said: nobody who sees the tables can read it."""

from example_project.settings import *  # noqa: F403
from example_project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.sites.secret.SecretConfig"]
