"""A site that has what is said in a database of its own, apart from its users."""

from example_project.settings import *  # noqa: F403
from example_project.settings import DATABASES

DATABASES = {**DATABASES, "chat": {**DATABASES["default"], "NAME": f"{DATABASES['default']['NAME']}_chat"}}
DATABASE_ROUTERS = ["tests.sites.routers.ByApp"]
