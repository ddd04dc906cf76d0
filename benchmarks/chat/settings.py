"""Django's settings: a site with the middleware of a new project, on the database that ``BENCHMARK_CHAT_ON`` names."""

import os

from benchmarks.settings import *  # noqa: F403
from benchmarks.settings import INSTALLED_APPS, SERVERS

POOL = 8
"""The maximum size of psycopg's pool."""

CONFIGURATIONS = {
    "sqlite": SERVERS["sqlite"],
    "postgresql": SERVERS["postgresql"],
    "postgresql-pool": {
        **SERVERS["postgresql"],
        "CONN_MAX_AGE": 0,
        "OPTIONS": {
            "pool": {"min_size": 2, "max_size": POOL},
            "server_side_binding": True,
            "prepare_threshold": 5,
        },
    },
    "mariadb": SERVERS["mariadb"],
}
ON = os.environ.get("BENCHMARK_CHAT_ON", "sqlite")
DATABASES = {"default": CONFIGURATIONS[ON], **SERVERS}

STREAMS = {
    "DatabaseStreams": "chatmemory_django.chat.runs.streams.DatabaseStreams",
    "RedisStreams": "chatmemory_django.chat.runs.redis_streams.RedisStreams",
}

INSTALLED_APPS = [
    *INSTALLED_APPS,
    "django.contrib.sessions",
    "rest_framework.authtoken",
    "chatmemory_django.chat",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "benchmarks.chat.urls"
CHATMEMORY = {
    "MEMORY": {
        "CLASS": "chatmemory_django.memory.TokenWindowChatMemory",
        "OPTIONS": {"max_tokens": 4000, "token_count_estimator": "gpt-4o-mini"},
    },
    "CHAT": {
        "ASSISTANT": "benchmarks.chat.model.assistant",
        "STREAMS": STREAMS[os.environ.get("BENCHMARK_CHAT_STREAMS", "DatabaseStreams")],
        "REDIS_URL": os.environ.get("BENCHMARK_REDIS", "redis://127.0.0.1:6379/9"),
        # One user asks all questions.
        "THROTTLE_RATE": None,
        "READ_THROTTLE_RATE": None,
        "MAX_ANSWERS": 1_000,
        "MAX_STREAMS": 1_000,
    },
}
