"""A site whose users have their names as primary keys."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.acceptance.sites.people"]
AUTH_USER_MODEL = "people.TextUser"
