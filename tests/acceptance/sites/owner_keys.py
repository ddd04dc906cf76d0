"""A site whose texts are encrypted, with a key for each owner."""

from chatmemory_django import conf
from tests.acceptance.sites.encryption import *  # noqa: F403

conf.DEFAULT_ENCRYPTION["OWNER_KEYS"] = True
