"""The example site's settings for tests that send thousands of requests."""

from example_project.memories import SHIPPED
from tests.settings import *  # noqa: F403
from tests.settings import CHATMEMORY, INSTALLED_APPS

DEBUG = False
CHAT = {**CHATMEMORY["CHAT"], "THROTTLE_RATE": None, "READ_THROTTLE_RATE": None}
CHATMEMORY = {**CHATMEMORY, "MEMORY": SHIPPED, "REST": {"THROTTLE_RATES": {}}, "CHAT": CHAT}

# Last, so that runserver is Django's own, under WSGI; other tests run gunicorn and uvicorn.
INSTALLED_APPS = [*(app for app in INSTALLED_APPS if app != "example_project"), "example_project"]
