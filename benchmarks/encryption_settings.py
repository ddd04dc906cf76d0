"""The settings of the benchmarks with encryption; ``BENCHMARK_OWNER_KEYS=1`` gives each owner a key of their own."""

import os
from base64 import b64encode

from benchmarks.settings import *  # noqa: F403
from benchmarks.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "chatmemory_django.contrib.encryption"]
CHATMEMORY = {
    "ENCRYPTION": {
        "KEYS": [f"benchmark:{b64encode(bytes(32)).decode()}"],
        "OWNER_KEYS": bool(os.environ.get("BENCHMARK_OWNER_KEYS")),
    }
}
