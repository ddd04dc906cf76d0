"""A site with conversations in one database and users in another."""

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS

DATABASES = {**DATABASES, "chat": {**DATABASES["default"], "NAME": f"{DATABASES['default']['NAME']}_chat"}}
INSTALLED_APPS = [*INSTALLED_APPS, "chatmemory_django.contrib.search"]
DATABASE_ROUTERS = ["tests.acceptance.sites.routers.ByApp"]
