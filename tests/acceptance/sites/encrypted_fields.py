"""A site with custom fields for messages, unreadable in the tables."""

from example_project.settings import *  # noqa: F403
from example_project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.acceptance.sites.secret.SecretConfig"]
