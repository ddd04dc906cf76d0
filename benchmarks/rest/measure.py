"""Requests, measured in a new random order for each round, each through Django's whole handler."""

from __future__ import annotations

import random
import statistics
import time

from django.contrib.auth.models import User
from django.core.handlers.wsgi import WSGIHandler
from django.db import connection
from django.test import RequestFactory, override_settings
from django.test.utils import setup_test_environment
from rest_framework.authtoken.models import Token

from benchmarks.report import TIMES, Report, table
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.provider import get_chat_memory

MESSAGES = 85
ROUNDS = 60
EACH = 5
"""The number of requests of each subject per round."""

SITES: dict[str, dict[str, object]] = {"example": {}, "bare": {"MIDDLEWARE": []}}
"""The settings by which each site differs: the second one has no middleware."""

SUBJECTS = {
    "`GET memory/`": "/api/conversations/memory/memory/",
    "`GET messages/`, the newest 85": f"/api/conversations/memory/messages/?page_size={MESSAGES}",
    "the same rows by a plain `ModelSerializer`": "/plain/",
    "a view that only authenticates": "/bare/",
}


def main(report: Report) -> None:
    """Measure, and report a table."""
    setup_test_environment(debug=False)
    connection.creation.create_test_db(verbosity=0)
    try:
        with override_settings(ROOT_URLCONF="benchmarks.rest.urls", CHATMEMORY=_settings()):
            client = _client()
            rows = []
            for name, its in SITES.items():
                with override_settings(**its):
                    rows += _measure(name, client)
    finally:
        connection.creation.destroy_test_db("", verbosity=0)
    head = [f"{MESSAGES} messages", "requests per second", "ms, median", "of the plain view", "of the last view"]
    report.section(f"rest-{connection.display_name.lower()}", table(head, rows))


def _settings() -> dict[str, object]:
    window = {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": MESSAGES}}
    return {"MEMORY": window, "REST": {"THROTTLE_RATES": {}}}


def _client() -> RequestFactory:
    user = User.objects.create_user("ann")
    token = Token.objects.create(user=user).key
    memory = get_chat_memory("memory", owner=user)
    for number in range(MESSAGES):
        memory.add((UserMessage if number % 2 else AiMessage)(f"Message {number}: " + "so it goes, " * 20))
    return RequestFactory(headers={"Authorization": f"Token {token}"}, **{"wsgi.url_scheme": "https"})


def _measure(site: str, client: RequestFactory) -> list[list[str]]:
    handler = WSGIHandler()
    took: dict[str, list[float]] = {name: [] for name in SUBJECTS}
    for number in range(-5, ROUNDS):  # the first are for warming up
        for name in random.sample(list(SUBJECTS), len(SUBJECTS)):
            for _ in range(EACH):
                begun = time.perf_counter()
                response = handler.get_response(client.get(SUBJECTS[name]))
                seconds = time.perf_counter() - begun
                if response.status_code != 200:
                    raise SystemExit(f"{name}: {response.status_code} {response.content.decode()}")
                if number >= 0:
                    took[name].append(seconds)
    medians = {name: statistics.median(each) for name, each in took.items()}
    *_, plain, bare = medians.values()
    return [
        [
            f"{site}: {name}",
            f"{1 / each:,.0f}",
            f"{each * 1000:.2f}",
            f"**{plain / each:.2f} {TIMES}**",
            f"{bare / each:.2f} {TIMES}",
        ]
        for name, each in medians.items()
    ]
