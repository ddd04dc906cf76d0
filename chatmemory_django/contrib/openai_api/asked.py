"""What a request asks in a conversation: something new, or what it has asked before, as its client sends it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.http import HttpRequest
from django.utils import timezone

from chatmemory_django.access import NotAllowedError
from chatmemory_django.chat.answers.explained import refused
from chatmemory_django.chat.answers.questions import Question
from chatmemory_django.chat.answers.stored import StoredAnswer, named
from chatmemory_django.chat.answers.versions import versions_of
from chatmemory_django.chat.approvals.waiting import pending_calls
from chatmemory_django.chat.http.asking import Admission, nothing_waits, stored_question
from chatmemory_django.chat.runs.leases import BusyError, HandedOverError
from chatmemory_django.contrib.openai_api.errors import RefusedRequestError
from chatmemory_django.contrib.openai_api.reading import ReadRequest
from chatmemory_django.contrib.openai_api.retries import KEY, RETRY_SECONDS
from chatmemory_django.contrib.openai_api.stored import StoredResponse
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, Message


def asked_in(
    request: HttpRequest,
    read: ReadRequest[Any],
    conversation: Conversation | None,
    body: dict[str, Any],
    outputs: Mapping[str, Any],
    decisions: Sequence[Mapping[str, Any]] = (),
) -> Admission | StoredResponse:
    """
    Return what *body* asks or, with *outputs* or *decisions*, that the answer in *conversation* goes on with them.

    If the client has asked the same before, and its answer is there, or in progress, return that.

    Raises:
        NotAllowedError: It is refused. 409: Nothing waits for the outputs, or a person has the question. 422: The key
            is that of another question.

    """
    if outputs or decisions:
        may_be_sent_again = read.is_retry or read.key is not None
        again = _gone_on(read, conversation, outputs, decisions) if conversation and may_be_sent_again else None
        if again is not None:
            return again
        return read.admission(request, {**body, "messages": _answered_calls(conversation, outputs, decisions)})
    asked = read.admission(request, body)
    return _asked_before(request, read, asked) or asked


def _asked_before(request: HttpRequest, read: ReadRequest[Any], asked: Admission) -> StoredResponse | None:
    """Return the response to the question that is *asked*, if that was asked before and needs no other answer."""
    question, name = asked.question, asked.question.client_message_id
    if question.message is None or not (name or read.is_retry) or (conversation := asked.conversation()) is None:
        return None
    row = stored_question(request, conversation, question._replace(is_retry=True), lambda: asked.assistant)
    if row is not None:
        if name is None and not _is_right_behind(row, conversation, question):
            return None
        since = RETRY_SECONDS if name is None else None
        found = StoredResponse.to(row, conversation, read.user, since)
        is_recent = since is None or row.created_at >= timezone.now() - timedelta(seconds=since)
        if found is None and is_recent and conversation.state != Conversation.State.ASSISTANT:
            raise refused(HandedOverError(conversation.memory_id))  # a person has it
        return found
    if name is not None and name == read.question_id and versions_of(conversation, name):
        what = f"The {KEY} is that of another question; send each question with a key of its own."
        raise RefusedRequestError(422, what, code="idempotency_key_reused")
    return None


def _is_right_behind(row: Message, conversation: Conversation, question: Question) -> bool:
    """Return whether the question *row* is the first one behind what is shown before *question*, if that is known."""
    if not question.shown:
        return True
    history = conversation.history()
    shown = named(history.only("sequence"), question.shown[0].id)
    if shown is None:
        return False
    following = history.filter(sequence__gt=shown.sequence, type=MessageType.USER).order_by("sequence")
    return following.values_list("sequence", flat=True).first() == row.sequence


def _gone_on(
    read: ReadRequest[Any],
    conversation: Conversation,
    outputs: Mapping[str, Any],
    decisions: Sequence[Mapping[str, Any]],
) -> StoredResponse | None:
    """Return the newest response of *conversation* if it has gone on with the *outputs* and *decisions*."""
    newest = StoredResponse.newest(conversation, read.user)
    if newest is None:
        return None
    if newest.has_taken(outputs, [each["approval"]["id"] for each in decisions]):
        return newest
    if newest.is_active:  # it may be about to take them
        raise NotAllowedError(409, str(BusyError()), **{"Retry-After": "1"})
    return None


def _answered_calls(
    conversation: Conversation | None, outputs: Mapping[str, Any], decisions: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """
    Return the answer in *conversation* that goes on, as the AI SDK's clients send it: with the *outputs* for which it
    waits, by the ids of calls, and the *decisions*.

    Raises:
        NotAllowedError: 409: Nothing waits for them.

    """
    pending = [] if conversation is None or not outputs else pending_calls(conversation, in_client=True)
    for approval, call in pending:
        answer = StoredAnswer.before(approval.conversation, approval.sequence) if call.id in outputs else None
        if answer is not None:
            parts = [
                {"toolCallId": name, "state": "output-available", "output": output} for name, output in outputs.items()
            ]
            return [{"id": answer.id, "role": "assistant", "parts": [*parts, *decisions]}]
    if not decisions:
        raise nothing_waits()
    return [{"id": "", "role": "assistant", "parts": list(decisions)}]
