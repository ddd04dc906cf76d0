"""A site whose users have UUIDs as primary keys."""

from example_project.settings import *  # noqa: F403
from example_project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.acceptance.sites.people"]
AUTH_USER_MODEL = "people.UuidUser"
