"""A site whose texts are encrypted. The key is a default, since many tests replace ``CHATMEMORY``."""

from base64 import b64encode

from chatmemory_django import conf
from example_project.settings import *  # noqa: F403
from example_project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "chatmemory_django.encryption"]
conf.DEFAULT_ENCRYPTION["KEYS"] = [f"tests:{b64encode(bytes(32)).decode()}"]
