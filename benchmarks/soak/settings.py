"""Django's settings for the soak: the environment defines the databases."""

import json
import os
from base64 import b64encode

SECRET_KEY = "nothing here is secret"
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "chatmemory_django",
    "chatmemory_django.contrib.files",
]
DATABASES = json.loads(os.environ["SOAK_DATABASES"])
USE_TZ = True
STORAGES = {
    "soak": {
        "BACKEND": "django.core.files.storage.FileSystemStorage",
        "OPTIONS": {"location": os.environ.get("SOAK_FILES")},
    },
}
# The judge has no storage, since each database has one: it looks into their folders.
CHATMEMORY = {"MEDIA_STORAGE": "soak" if "SOAK_FILES" in os.environ else None, "MEDIA_MIN_BYTES": 100}
if os.environ.get("SOAK_ENCRYPTED"):
    INSTALLED_APPS.append("chatmemory_django.contrib.encryption")
    CHATMEMORY["ENCRYPTION"] = {"KEYS": [f"soak:{b64encode(bytes(32)).decode()}"]}
