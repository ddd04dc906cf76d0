"""Answers that go on by themselves, since somebody has decided on their calls without the chat."""

from __future__ import annotations

import logging
import time
from contextvars import copy_context
from functools import partial
from threading import Thread
from typing import Any

from django.http import HttpRequest
from django.utils.module_loading import import_string

from chatmemory_django import conf
from chatmemory_django.chat.approvals.approving import NotPendingError
from chatmemory_django.chat.approvals.resuming import ApprovalRequiredError, Resume
from chatmemory_django.chat.model import ChatModelError
from chatmemory_django.db.threads import leaving_no_connection
from chatmemory_django.models import Conversation

logger = logging.getLogger(__name__)

BUSY_SECONDS = 600
"""For how long what was decided waits for another answer in the conversation to end."""

INTERVAL = 0.5
"""After how many seconds it is tried again."""

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
            until = time.monotonic() + BUSY_SECONDS
            while _resumes(assistant, conversation, request, until):
                pass
        except Exception as exc:  # noqa: BLE001  # a site's assistant may raise anything
            log = logger.warning if isinstance(exc, ChatModelError) else partial(logger.error, exc_info=exc)
            log("An answer in %r that somebody decided on failed with %s.", conversation.memory_id, type(exc).__name__)


def _resumes(assistant: Any, conversation: Conversation, request: HttpRequest, until: float) -> bool:
    """Let one answer go on, or wait for another one; return whether there was any."""
    busy = import_string("chatmemory_django.chat.runs.leases.BusyError")  # by its name: it is of a higher layer
    try:
        assistant.chat(conversation.memory_id, Resume(), owner=conversation.owner, request=request)
    except NotPendingError:
        return False
    except ApprovalRequiredError:
        pass
    except busy:
        if time.monotonic() > until:
            raise
        time.sleep(INTERVAL)
    return True
