"""The example site's settings with a slow model, whose tool writes down what it does."""

from tests.acceptance.chat.live_settings import *  # noqa: F403
from tests.acceptance.chat.live_settings import CHATMEMORY

CHATMEMORY = {**CHATMEMORY, "CHAT": {**CHATMEMORY["CHAT"], "ASSISTANT": "tests.acceptance.chat.slowly.assistant"}}
