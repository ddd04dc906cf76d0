"""The fixtures of the REST API, and of OpenAI's client as a user of the site's assistant."""

import asyncio
from typing import Any

import openai
import pytest
from django.contrib.auth.models import User
from rest_framework.authtoken.models import Token

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import PartialText
from chatmemory_django.db.threads import close_thread_sensitive
from chatmemory_django.messages import AiMessage
from tests.faces.chat.scripted import ScriptedModel
from tests.faces.rest.conftest import api, begin, client_of, person, small_window, writer

__all__ = ["api", "begin", "client_of", "person", "small_window", "writer"]


class ExactModel(ScriptedModel):
    """Streams the words of its answers with no space behind the last one, so that streams and histories are equal."""

    def _events(self, answer):
        for event in super()._events(answer):
            is_last = isinstance(event, PartialText) and isinstance(answer, AiMessage)
            is_last = is_last and (answer.text or "").endswith(event.text.rstrip())
            yield PartialText(event.text.rstrip()) if is_last else event


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


@pytest.fixture
def site(settings):
    """Return a function that makes *answers* those of the site's assistant."""

    def site(*answers: Any, model: ScriptedModel | None = None, **options: Any) -> ScriptedModel:
        model = model or ExactModel(*answers)
        settings.CHATMEMORY = {"CHAT": {"THROTTLE_RATE": None, "ASSISTANT": Assistant(model, **options)}}
        return model

    return site


@pytest.fixture
def client(live_server, ann):
    key = Token.objects.create(user=ann).key
    with openai.OpenAI(base_url=f"{live_server.url}/openai/v1", api_key=key, max_retries=0) as client:
        yield client
    asyncio.run(close_thread_sensitive())
