"""Django's settings for the soak of runs: each process has its own addresses of the database and of Redis."""

import os

from benchmarks.chat.settings import *  # noqa: F403
from benchmarks.chat.settings import CHATMEMORY, CONFIGURATIONS, ON

DATABASES = {"default": CONFIGURATIONS[ON]}
if ON == "sqlite":  # for its locks to end as errors, too
    DATABASES["default"]["OPTIONS"]["timeout"] = 3  # type: ignore[index]

CHATMEMORY = {
    "MEMORY": {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 30}},
    "CHAT": {
        **CHATMEMORY["CHAT"],
        "ASSISTANT": "benchmarks.chat.acting.assistant",
        "RUNS": os.environ.get("BENCHMARK_CHAT_RUNS", "web"),
    },
}
