"""The example site as a server for tests that chat without a pause."""

from example_project.settings import *  # noqa: F403
from example_project.settings import CHATMEMORY

DEBUG = True
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
CHATMEMORY = {**CHATMEMORY, "CHAT": {**CHATMEMORY["CHAT"], "THROTTLE_RATE": None}, "REST": {"THROTTLE_RATES": {}}}
