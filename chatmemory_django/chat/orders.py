"""What a run is to answer, read from the database by a process that has not seen the request."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.db.models import Exists, OuterRef, Subquery, Value
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils import timezone

from chatmemory_django.chat import named
from chatmemory_django.chat.answers.questions import left
from chatmemory_django.chat.answers.stored import StoredAnswer
from chatmemory_django.chat.approvals import Output, Resume
from chatmemory_django.chat.approvals.tables import ToolApproval
from chatmemory_django.chat.approvals.waiting import can_go_on, waiting_answers
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.runs.answer import InterruptedAnswerError
from chatmemory_django.chat.runs.streams import Maker
from chatmemory_django.chat.runs.tables import ASKED, Run
from chatmemory_django.chat.runs.taking import Given
from chatmemory_django.chat.wishes import wished
from chatmemory_django.chat.work import ChatWork, Order
from chatmemory_django.db import row_codec
from chatmemory_django.db.row_codec import address_of
from chatmemory_django.models import Conversation
from chatmemory_django.models.fields import as_stored

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser


JUST_NOW = 3.0
"""Seconds in which the request by which a call was decided goes on with the answer itself, if it is one of the chat."""


class Decided(NamedTuple):
    """A call that was decided, and is to be run or denied, in a conversation in which no answer is in progress."""

    approval: UUID
    memory_id: str
    owner_key: str
    assistant: str
    context: str
    """What ``THREAD_CONTEXT`` captured of the request whose answer waits."""
    is_new: bool
    """Whether it was decided ``JUST_NOW``."""


def decided(using: str, count: int) -> list[Decided]:
    """Return up to *count* calls in the database *using* that were decided and not run yet, the oldest first."""
    now = timezone.now()
    since, just_now = (now - timedelta(seconds=each) for each in (chat_settings().APPROVAL_SECONDS, JUST_NOW))
    waiting = ToolApproval.objects.using(using).filter(
        state=ToolApproval.State.WAITING, approved__isnull=False, decided_at__gte=since
    )
    runs = Run.objects.using(using).filter(conversation=OuterRef("conversation"))
    captured = Coalesce(Subquery(runs.order_by("-created_at").values("context")[:1]), Value(""))
    found = waiting.exclude(Exists(runs.open())).annotate(captured=captured).order_by("decided_at")
    names = (
        "pk",
        "conversation__memory_id",
        "conversation__owner",
        "conversation__assistant",
        "captured",
        "decided_at",
    )
    return [
        Decided(key, memory_id, "" if owner is None else str(owner), assistant, context, decided_at > just_now)
        for key, memory_id, owner, assistant, context, decided_at in found.values_list(*names)[:count]
    ]


def carried_on(maker: Maker, request: HttpRequest | None = None) -> ChatWork:
    """
    Return the work of the run of *maker*, with which this process goes on: its order is made of what is stored.

    Its assistant is the one of the settings, and *request* that of who goes on, if there is one.
    """
    return ChatWork(partial(_order_of, maker, request), "", maker.answer_id, request)


def resumed(maker: Maker, given: Given, name: str) -> ChatWork:
    """Return the work of a new run of *maker*, which goes on with what was decided; *name* is the assistant's."""

    def order() -> Order:
        conversation = Conversation.objects.using(maker.using).get(memory_id=maker.memory_id)
        assistant = _assistant(conversation, given, name, None)
        return Order(assistant, conversation.memory_id, conversation.owner, Resume(about=given.about))

    return ChatWork(order, name, maker.answer_id, goes_on=True)


def given_to(run: Run, conversation: Conversation) -> Given:
    """Return what *run* in *conversation* was given: once it has ended, nothing is known of that."""
    rows = Run.objects.using(conversation._state.db).filter(pk=run.pk)
    asked: str = rows.values_list(as_stored("asked"), flat=True).first() or ""
    if asked and (coder := row_codec.at(address_of(conversation))):
        asked = coder.decode(asked, ASKED, (run.pk.hex,))
    return Given.of(asked) if asked else Given(conversation.memory_id)


def _order_of(maker: Maker, request: HttpRequest | None) -> Order:
    rows = Run.objects.using(maker.using).filter(pk=maker.run)
    run = rows.defer("asked").select_related("conversation").get()
    conversation = run.conversation
    given = given_to(run, conversation)
    if given.memory_id != conversation.memory_id:
        raise InterruptedAnswerError(
            "What was asked is of another conversation, or this one has got another memory id."
        )
    message = (
        _waiting(conversation, given)
        or left(conversation, maker.answer_id, run.question, run.next_sequence, is_another=given.is_another)
        or _decided(conversation)
    )
    if message is None:
        raise InterruptedAnswerError("Nothing is stored of what was asked, or its answer has ended.")
    question = None if isinstance(message, Resume) else message.stored
    assistant = _assistant(conversation, given, run.assistant or "", question, request)
    return Order(assistant, conversation.memory_id, conversation.owner, message, name=run.assistant or "")


def _waiting(conversation: Conversation, given: Given) -> Resume | None:
    """Return what was *given* for calls that still wait for it; None if there are none."""
    approvals = ToolApproval.objects.using(conversation._state.db).filter(state=ToolApproval.State.WAITING)
    names = [*given.about, *(each.id for each in given.outputs)]
    waiting = {str(key) for key in approvals.filter(pk__in=names).values_list("pk", flat=True)} if names else set()
    outputs = [Output(each.id, each.value, each.is_error) for each in given.outputs if each.id in waiting]
    return Resume(*outputs, about=names) if waiting else None


def _decided(conversation: Conversation) -> Resume | None:
    """Return what goes on with calls that were decided, below a question whose answer has ended; None without any."""
    for waiting in waiting_answers(conversation):
        if can_go_on(waiting, conversation):
            return Resume(about=[each.id for each in waiting.approvals])
    return None


def _assistant(
    conversation: Conversation,
    given: Given,
    name: str,
    question: StoredAnswer | None,
    request: HttpRequest | None = None,
) -> Any:
    """Return the assistant with this *name* for *conversation*; without a *request*, a function is given None."""
    name = named.name_for(conversation, name)

    def asked() -> named.Asked:
        return named.Asked(
            id=given.chat_id or conversation.memory_id,
            memory_id=conversation.memory_id,
            message=None if question is None else question.asked(),
            user=_user(conversation, given) or cast("AbstractBaseUser", AnonymousUser()),
            assistant=name,
            body=given.body,
        )

    return wished(named.assistant(name, request, asked), given.wishes)


def _user(conversation: Conversation, given: Given) -> AbstractBaseUser | None:
    """Return who has asked, or decided: nearly always the owner."""
    if given.user in {"", str(conversation.owner_id)}:
        return conversation.owner
    return get_user_model()._default_manager.filter(pk=given.user).first() or conversation.owner
