"""Answers that go on by themselves, since somebody has decided on their calls without the chat."""

from __future__ import annotations

import logging
from contextvars import copy_context
from functools import partial
from threading import Thread
from typing import Any

from django.http import HttpRequest
from django.utils.module_loading import import_string

from chatmemory_django import conf
from chatmemory_django.chat.approvals.approving import NotPendingError
from chatmemory_django.chat.approvals.resuming import ApprovalRequiredError, Resume
from chatmemory_django.db.threads import leaving_no_connection
from chatmemory_django.models import Conversation

logger = logging.getLogger(__name__)

THREAD = "chatmemory-decided"
"""The name of the threads that run what was decided."""


def go_on(conversation: Conversation, request: HttpRequest) -> None:
    """
    Run the calls in *conversation* that were decided in *request*, and let its answers go on, in a thread.

    It is the assistant of the chat that does, for the owner; without one, and after an error, a ``Resume`` does it.
    """
    if conf.chat()["ASSISTANT"] is not None:
        run = partial(copy_context().run, _go_on, conversation, request)
        Thread(target=run, name=THREAD, daemon=True).start()


def _go_on(conversation: Conversation, request: HttpRequest) -> None:
    with leaving_no_connection():
        try:
            path = conf.chat()["ASSISTANT"]
            found: Any = import_string(path) if isinstance(path, str) else path
            assistant = found if hasattr(found, "chat") else found(request)
            while _resumes(assistant, conversation, request):
                pass
        except Exception as exc:
            logger.exception("What was decided in %r did not run: %s.", conversation.memory_id, type(exc).__name__)


def _resumes(assistant: Any, conversation: Conversation, request: HttpRequest) -> bool:
    """Let one answer go on; return whether there was any."""
    try:
        assistant.chat(conversation.memory_id, Resume(), owner=conversation.owner, request=request)
    except NotPendingError:
        return False
    except ApprovalRequiredError:
        pass
    return True
