"""The example site as a server for tests that send thousands of requests."""

from example_project.settings import *  # noqa: F403
from example_project.settings import CHATMEMORY

DEBUG = False
CHATMEMORY = {**CHATMEMORY, "REST": {"THROTTLE_RATES": {}}}
