"""What the assistant writes before anybody has asked it anything: ``CHATMEMORY["CHAT"]["GREETING"]``."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from chatmemory_django.chat.answers.exchange import GREETING
from chatmemory_django.chat.answers.questions import Question
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.conf import imported, is_path
from chatmemory_django.models import Conversation


def greeting(request: HttpRequest, conversation: Conversation | None) -> str | None:
    """Return what the assistant writes first in *conversation*; None for nothing, or if there are messages already."""
    if conversation is not None and conversation.next_sequence > 1:
        return None
    given = chat_settings().GREETING
    given = imported(given) if is_path(given) else given
    if callable(given):
        given = given(request)
    return str(given) if given else None


def is_shown(question: Question) -> bool:
    """Return whether the page of *question* may show a greeting: a list without one has none."""
    return question.shown is None or (bool(question.shown) and question.shown[-1].is_answer)


def as_ui_message(text: str) -> dict[str, Any]:
    """Return the greeting as the ``UIMessage`` that it is once it is stored."""
    parts = [{"type": "step-start"}, {"type": "text", "text": text, "state": "done"}]
    return {"id": GREETING, "role": "assistant", "metadata": {}, "parts": parts}
