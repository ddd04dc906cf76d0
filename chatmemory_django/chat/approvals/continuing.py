"""Answers that go on by themselves, since somebody has decided on their calls without the chat."""

from __future__ import annotations

import logging
import time
from contextvars import copy_context
from functools import partial
from threading import Thread
from typing import Any

from django.apps import apps
from django.http import HttpRequest

from chatmemory_django.chat import named
from chatmemory_django.chat.approvals.approving import NotPendingError
from chatmemory_django.chat.approvals.resuming import ApprovalRequiredError, Resume
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.model import ChatModelError
from chatmemory_django.db.contexts import ThreadContext, in_context
from chatmemory_django.db.threads import leaving_no_connection
from chatmemory_django.models import Conversation
from chatmemory_django.signals import answer_waits
from chatmemory_django.stores.base import BusyError

logger = logging.getLogger(__name__)

THREAD = "chatmemory-decided"
"""The name of the threads that run what was decided."""

PAUSE, PATIENCE = 1.0, 600.0
"""Seconds between two attempts while another answer is in progress in the conversation, and until they are given up."""


def go_on(conversation: Conversation, request: HttpRequest) -> None:
    """
    Run the calls in *conversation* that were decided in *request*, and let its answers go on, in a thread.

    It is the assistant of the conversation that does, for the owner; without one, and after an error, a ``Resume`` does
    it. Where workers generate answers, they look for what was decided.
    """
    context = ThreadContext.of(request)
    if chat_settings().has_workers:
        captured = "" if context is None else context.captured
        waits = {"memory_id": conversation.memory_id, "context": captured, "using": conversation._state.db}
        answer_waits.send_robust(sender=apps.get_model("chatmemory_chat", "Run"), **waits)
    elif named.are_there():
        run = partial(copy_context().run, _go_on, conversation, request, context)
        Thread(target=run, name=THREAD, daemon=True).start()


def _go_on(conversation: Conversation, request: HttpRequest, context: ThreadContext | None) -> None:
    end = time.monotonic() + PATIENCE
    try:
        with leaving_no_connection():
            name, asked = named.name_for(conversation, None), partial(named.asked_in, conversation, request.user)
            assistant = in_context(named.assistant, context)(name, request, asked)
        while (pause := _resumes(assistant, conversation, request, context, end)) is not None:
            time.sleep(pause)
    except Exception as exc:  # noqa: BLE001  # a site's assistant may raise anything
        log = logger.warning if isinstance(exc, ChatModelError) else partial(logger.error, exc_info=exc)
        log("An answer in %r that somebody decided on failed with %s.", conversation.memory_id, type(exc).__name__)


def _resumes(
    assistant: Any, conversation: Conversation, request: HttpRequest, context: ThreadContext | None, end: float
) -> float | None:
    """Let one answer go on; return the seconds until the next one, or None if there was none."""

    def resume() -> None:
        assistant.chat(conversation.memory_id, Resume(), owner=conversation.owner, request=request)

    with leaving_no_connection():
        try:
            in_context(resume, context)()
        except NotPendingError:
            return None
        except BusyError:
            if time.monotonic() > end:
                raise
            return PAUSE
        except ApprovalRequiredError:
            pass
    return 0.0
