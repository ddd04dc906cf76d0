"""The settings of ``client/site_settings.py`` with an assistant that speaks first."""

from tests.acceptance.chat.client.site_settings import *  # noqa: F403
from tests.acceptance.chat.client.site_settings import CHATMEMORY

CHATMEMORY = {**CHATMEMORY, "CHAT": {**CHATMEMORY["CHAT"], "GREETING": "Hello! How can I help?"}}
