"""A site whose texts are encrypted, with a key for each owner."""

from chatmemory_django.contrib.encryption.conf import Encryption
from tests.acceptance.sites.encryption import *  # noqa: F403

Encryption.OWNER_KEYS = True
