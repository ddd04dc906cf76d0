"""The example site's settings for tests against a live server, without limits on the rate of requests."""

from tests.settings import *  # noqa: F403
from tests.settings import CHATMEMORY

DEBUG = True
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
CHATMEMORY = {**CHATMEMORY, "CHAT": {**CHATMEMORY["CHAT"], "THROTTLE_RATE": None}, "REST": {"THROTTLE_RATES": {}}}
