"""A site without time zones, far from UTC."""

from tests.settings import *  # noqa: F403

USE_TZ = False
TIME_ZONE = "America/St_Johns"
