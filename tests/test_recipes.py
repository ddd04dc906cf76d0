"""The recipes of the README that need something of a newer Django, or of another package."""

import re
from pathlib import Path

import pytest

from chatmemory_django.messages import SystemMessage, UserMessage
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.signals import messages_evicted

README = (Path(__file__).parent.parent / "README.md").read_text()


def recipe(beginning: str) -> dict:
    """Run the block of the README that begins so, and return its names."""
    [block] = [each for each in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if each.startswith(beginning)]
    names: dict = {"__name__": "recipe"}
    exec(block, names)
    return names


def shorten(previous, messages):
    return f"until {messages[-1].single_text}"


@pytest.fixture
def in_jobs(settings):
    """Memories that are summarized in jobs alone."""
    settings.CHATMEMORY = {
        "MEMORY": {
            "CLASS": "chatmemory_django.summaries.SummarizingChatMemory",
            "OPTIONS": {
                "max_tokens": 40,
                "token_count_estimator": "gpt-4o-mini",
                "summarize": "tests.test_recipes.shorten",
                "summary_tokens": 20,
                "after_tokens": 10,
                "summarize_after_add": False,
            },
        }
    }


def say_too_much():
    get_chat_memory("c").add(*(UserMessage(f"number {number}") for number in range(12)))


@pytest.fixture
def disconnected():
    receivers = list(messages_evicted.receivers)
    yield
    messages_evicted.receivers = receivers
    messages_evicted.sender_receivers_cache.clear()


@pytest.mark.django_db(transaction=True)
def test_a_task_of_django_summarizes_what_was_evicted(in_jobs, disconnected):
    pytest.importorskip("django.tasks")

    recipe("from django.dispatch import receiver\nfrom django.tasks")
    say_too_much()

    assert get_chat_memory("c").messages()[0].text.startswith("until number")


@pytest.mark.django_db(transaction=True)
def test_a_task_of_celery_summarizes_what_was_evicted(in_jobs, disconnected):
    celery = pytest.importorskip("celery")
    app = celery.Celery("recipe", set_as_current=True, broker="memory://")
    app.conf.task_always_eager = app.conf.task_eager_propagates = True

    recipe("from celery import shared_task")
    say_too_much()

    assert isinstance(get_chat_memory("c").messages()[0], SystemMessage)
