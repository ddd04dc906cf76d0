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

from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.provider import get_chat_memory

MESSAGES = 85
ROUNDS = 60
EACH = 5
"""The number of requests of each subject per round."""

SITES = {"the example site": {}, "a bare site, without middleware": {"MIDDLEWARE": []}}

SUBJECTS = {
    "GET memory/": "/api/conversations/memory/memory/",
    "GET messages/, the newest 85": f"/api/conversations/memory/messages/?page_size={MESSAGES}",
    "the same rows by a plain ModelSerializer": "/plain/",
    "a view that only authenticates": "/bare/",
}


def main() -> None:
    """Measure, and print a table for each site."""
    setup_test_environment(debug=False)
    connection.creation.create_test_db(verbosity=0)
    try:
        with override_settings(ROOT_URLCONF="benchmarks.rest.urls", CHATMEMORY=_settings()):
            client = _client()
            for name, its in SITES.items():
                with override_settings(**its):
                    _measure(name, client)
    finally:
        connection.creation.destroy_test_db("", verbosity=0)


def _settings() -> dict[str, object]:
    window = {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": MESSAGES}}
    return {"MEMORY": window, "REST": {"THROTTLE_RATES": {}}}


def _client() -> RequestFactory:
    user = User.objects.create_user("ann")
    token = Token.objects.create(user=user).key
    memory = get_chat_memory("memory", owner=user)
    for number in range(MESSAGES):
        memory.add((UserMessage if number % 2 else AiMessage)(f"Message {number}: " + "so it goes, " * 20))
    return RequestFactory(headers={"Authorization": f"Token {token}"})


def _measure(site: str, client: RequestFactory) -> None:
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
    print(f"\n{connection.vendor}, {MESSAGES} messages, {site}\n")
    print("| | requests per second | ms, median | of the plain view | of a view that only authenticates |")
    print("|---|---|---|---|---|")
    *_, plain, bare = medians = [statistics.median(each) for each in took.values()]
    for name, median in zip(took, medians, strict=True):
        print(f"| {name} | {1 / median:.0f} | {median * 1000:.2f} | {plain / median:.2f} | {bare / median:.2f} |")
