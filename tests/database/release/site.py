"""A site with every app of the package that has tables; with SEALED in the environment, its texts are encrypted."""

import os
from base64 import b64encode

from tests.estimators import ADDITIVE_WORDS
from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

IS_SEALED = bool(os.environ.get("SEALED"))
INSTALLED_APPS = [*INSTALLED_APPS, f"chatmemory_django.contrib.{'encryption' if IS_SEALED else 'search'}"]
ALLOWED_HOSTS = ["*"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
FILES = os.environ["FILES"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": FILES}},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    "chats": {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": FILES}},
}
CHATMEMORY = {
    "MEMORY": {
        "CLASS": "chatmemory_django.memory.SummarizingChatMemory",
        "OPTIONS": {
            "max_tokens": 60,
            "summary_tokens": 20,
            "after_tokens": 10,
            "summarize": "tests.database.release.filling.summarize",
            "token_count_estimator": ADDITIVE_WORDS,
        },
    },
    "MEDIA_STORAGE": "chats",
    "MEDIA_MIN_BYTES": 1000,
    "COST": "tests.database.release.filling.cost",
    "BUDGET": {"TOKENS": 10**9, "COST": "1000.00", "PER": "month", "STRICT": True},
    "RETENTION": {"TEMPORARY": 100_000},
    "REST": {"THROTTLE_RATES": {}},
    "CHAT": {"THROTTLE_RATE": None, "READ_THROTTLE_RATE": None},
}
if IS_SEALED:
    CHATMEMORY["ENCRYPTION"] = {"KEYS": [f"tests:{b64encode(bytes(32)).decode()}"], "OWNER_KEYS": True}
