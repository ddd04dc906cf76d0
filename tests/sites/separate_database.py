"""A site that has what is said in a database of its own, apart from its users."""

from example_project.settings import *  # noqa: F403
from example_project.settings import DATABASES, INSTALLED_APPS

DATABASES = {**DATABASES, "chat": {**DATABASES["default"], "NAME": f"{DATABASES['default']['NAME']}_chat"}}
INSTALLED_APPS = [*INSTALLED_APPS, "chatmemory_django.search"]
DATABASE_ROUTERS = ["tests.sites.routers.ByApp"]
