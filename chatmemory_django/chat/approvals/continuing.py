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
from chatmemory_django.stores.base import BusyError

logger = logging.getLogger(__name__)

THREAD = "chatmemory-decided"
"""The name of the threads that run what was decided."""

PAUSE, PATIENCE = 1.0, 600.0
"""Seconds between two attempts while another answer is in progress in the conversation, and until they are given up."""


def go_on(conversation: Conversation, request: HttpRequest) -> None:
    """
    Run the calls in *conversation* that were decided in *request*, and let its answers go on, in a thread.

    It is the assistant of the chat that does, for the owner; without one, and after an error, a ``Resume`` does it.
    """
    if conf.chat()["ASSISTANT"] is not None:
        run = partial(copy_context().run, _go_on, conversation, request)
        Thread(target=run, name=THREAD, daemon=True).start()


def _go_on(conversation: Conversation, request: HttpRequest) -> None:
    end = time.monotonic() + PATIENCE
    try:
        with leaving_no_connection():
            path = conf.chat()["ASSISTANT"]
            found: Any = import_string(path) if isinstance(path, str) else path
            assistant = found if hasattr(found, "chat") else found(request)
        while (pause := _resumes(assistant, conversation, request, end)) is not None:
            time.sleep(pause)
    except Exception as exc:  # noqa: BLE001  # a site's assistant may raise anything
        log = logger.warning if isinstance(exc, ChatModelError) else partial(logger.error, exc_info=exc)
        log("An answer in %r that somebody decided on failed with %s.", conversation.memory_id, type(exc).__name__)


def _resumes(assistant: Any, conversation: Conversation, request: HttpRequest, end: float) -> float | None:
    """Let one answer go on; return the seconds until the next one, or None if there was none."""
    with leaving_no_connection():
        try:
            assistant.chat(conversation.memory_id, Resume(), owner=conversation.owner, request=request)
        except NotPendingError:
            return None
        except BusyError:
            if time.monotonic() > end:
                raise
            return PAUSE
        except ApprovalRequiredError:
            pass
    return 0.0
