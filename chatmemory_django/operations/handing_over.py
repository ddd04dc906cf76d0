"""Who answers in a conversation: the assistant, or a person."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from django.db import transaction
from django.utils import timezone

from chatmemory_django.models import Conversation
from chatmemory_django.operations.one_by_one import in_lock, own_row, write
from chatmemory_django.signals import handed_over
from chatmemory_django.stores.base import ConversationErasedError

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

State = Conversation.State


class OtherPersonError(RuntimeError):
    """Another person answers in the conversation; *person* is the key of that user, as text."""

    def __init__(self, person: str) -> None:
        super().__init__(f"The user {person!r} answers in this conversation; pass takes_over=True to take it over.")
        self.person = person


def hand_over(
    conversation: Conversation, to: AbstractBaseUser | None = None, *, takes_over: bool = False
) -> Conversation:
    """
    Let a person answer in *conversation*, and return it as it is then: the user *to* or, with None, who takes it next.

    From then on a question begins no answer of the assistant, until ``give_back``; one that is in progress goes on. A
    conversation that somebody has stays theirs, unless *to* somebody else *takes_over*. What changes nothing writes
    nothing. The conversation gets a new ``version``; its ``updated_at`` stays. ``signals.handed_over`` is sent.

    Raises:
        ConversationErasedError: The conversation is gone.
        OtherPersonError: Another person has it.
        ValueError: *to* is not saved, or not signed in.

    """
    if to is not None and to.pk is None:
        raise ValueError("to must be a saved user, or None for nobody yet.")
    person = "" if to is None else str(to.pk)
    return _changed(conversation, partial(_hand_over, person, takes_over))


def give_back(conversation: Conversation) -> Conversation:
    """Let the assistant answer the next question in *conversation*, and return it then; raises as ``hand_over``."""
    return _changed(conversation, lambda found: _set(found, State.ASSISTANT, ""))


def _changed(conversation: Conversation, change: Callable[[Conversation], Conversation]) -> Conversation:
    found = in_lock(own_row(conversation), conversation.pk, change)
    if found is None:
        raise ConversationErasedError(f"The conversation {conversation.memory_id!r} was erased.")
    return found


def _hand_over(person: str, takes_over: bool, conversation: Conversation) -> Conversation:
    is_anothers = conversation.state == State.PERSON and conversation.person != person
    if is_anothers and not person:
        return conversation
    if is_anothers and not takes_over:
        raise OtherPersonError(conversation.person)
    return _set(conversation, State.PERSON if person else State.WAITING, person)


def _set(conversation: Conversation, state: Conversation.State, person: str) -> Conversation:
    """Write who answers in *conversation*, which is locked, unless that is so already."""
    if (conversation.state, conversation.person) == (state, person):
        return conversation
    conversation.state, conversation.person, conversation.state_since = state, person, timezone.now()
    write(conversation, state=state, person=person, state_since=conversation.state_since)
    conversation.version += 1
    using = conversation._state.db
    send = partial(handed_over.send_robust, Conversation, conversation=conversation, state=state, person=person)
    transaction.on_commit(partial(send, using=using), using=using, robust=True)
    return conversation
