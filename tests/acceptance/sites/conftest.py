"""Fixtures for all sites: two owners, and a small memory."""

import pytest
from django.contrib.auth import get_user_model
from django.core.cache import cache
from rest_framework.test import APIClient

from tests.estimators import ADDITIVE_WORDS


@pytest.fixture(autouse=True)
def small_window(settings) -> None:
    """Use a memory of 20 tokens, counted in words: three messages of one word, plus the overhead of each."""
    settings.CHATMEMORY = {
        "MEMORY": {
            "CLASS": "chatmemory_django.memory.TokenWindowChatMemory",
            "OPTIONS": {"max_tokens": 15, "token_count_estimator": ADDITIVE_WORDS},
        },
        "REST": {"THROTTLE_RATES": {}},
    }
    cache.clear()


@pytest.fixture
def ann(request):
    return get_user_model().objects.create_user("ann")


@pytest.fixture
def bob(request):
    return get_user_model().objects.create_user("bob")


@pytest.fixture
def trusted():
    """Return a function that makes a user a superuser and returns that user."""

    def trusted(user):
        user.is_staff = user.is_superuser = True
        user.save()
        return user

    return trusted


@pytest.fixture
def admin(client):
    """Return a client logged in as a superuser."""
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


@pytest.fixture
def api_of():
    """Return a function that returns the API's client of a logged-in user."""

    def api_of(user) -> APIClient:
        client = APIClient()
        client.force_login(user)
        return client

    return api_of
