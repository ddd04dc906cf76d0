"""A site whose texts are encrypted. The key is a default, since many tests replace ``CHATMEMORY``."""

from base64 import b64encode

from chatmemory_django.contrib.encryption.conf import Encryption
from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "chatmemory_django.contrib.encryption"]
Encryption.KEYS = [f"tests:{b64encode(bytes(32)).decode()}"]
