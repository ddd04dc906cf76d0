"""The example site's settings, with the assistant of ``site.py``; the scenes ask faster than people do."""

from tests.settings import *  # noqa: F403
from tests.settings import CHATMEMORY

CHATMEMORY = {
    **CHATMEMORY,
    "CHAT": {
        **CHATMEMORY["CHAT"],
        "ASSISTANT": "tests.acceptance.chat.client.site.assistant",
        "THROTTLE_RATE": None,
        "READ_THROTTLE_RATE": None,
    },
}
