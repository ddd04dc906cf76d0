"""What a page shows before a question: it decides which message the question follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import takewhile
from typing import NamedTuple

from chatmemory_django.chat.answers.stored import following
from chatmemory_django.chat.answers.versions import versions_of
from chatmemory_django.chat.ui_messages import message_sequence
from chatmemory_django.memory import ChatMemory
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, Message
from chatmemory_django.stores.django import DjangoChatMemoryStore


class Shown(NamedTuple):
    """A message that a page shows."""

    id: str
    """Empty if no stored message can have it."""
    is_answer: bool


class Named(NamedTuple):
    """The message that has a client's id."""

    sequence: int
    in_history: bool
    is_head: bool
    """Whether it is the newest one of the path; if not, that may still end with the same answer."""


class UnknownQuestionError(LookupError):
    """A page shows a question and its answer in front of a new question, and no such question is stored."""

    def __init__(self, id: str) -> None:
        super().__init__("The question before this one is not stored in the conversation.")
        self.id = id
        """The page's id of the question that is not stored."""


def named_in(memory: ChatMemory, *client_message_ids: str | None) -> dict[str, Named]:
    """Return the messages in the conversation of *memory* that have one of *client_message_ids*, by these."""
    store, names = memory.store, [each for each in client_message_ids if each]
    if not names or not isinstance(store, DjangoChatMemoryStore):
        return {}
    found = store.named(memory.id).filter(messages__client_message_id__in=names)
    columns = ("client_message_id", "sequence", "in_history", "on_path")
    rows = found.values_list(*(f"messages__{each}" for each in columns), "parent_sequence", "next_sequence")
    return {
        name: Named(sequence, in_history, in_history and on_path and sequence == (next_ - 1 if head is None else head))
        for name, sequence, in_history, on_path, head, next_ in rows
    }


def followed(
    shown: Sequence[Shown], named: Mapping[str, Named], conversation: Callable[[], Conversation | None]
) -> int | None:
    """
    Return the message that a question follows behind those *shown*, the nearest first; None if it is the newest one.

    It is the nearest one that is stored: an answer with all of its messages, or a question without an answer. Answers
    of which nothing is stored are skipped, and so is a question that has no answer there: it was refused. If nothing is
    left, the question begins the conversation once more, behind the system message, and behind the greeting of the
    assistant if an answer is the first one shown. *named* has the messages with the ids of those shown; *conversation*
    is called if that is not enough.

    Raises:
        UnknownQuestionError: A question that has an answer on the page is not stored, or any was removed.

    """
    conversation, has_answer = cache(conversation), False
    for each in shown:
        known = named.get(each.id)
        if known is not None and known.is_head:
            return None
        may_be_stored = known is not None or message_sequence(each.id) or (each.id and not each.is_answer)
        there = conversation() if may_be_stored else None
        found = None if there is None else _stored(there, each, known)
        if there is not None and found is not None:
            return _end_of_answer(there, found) if each.is_answer else _unanswered(there, found)
        if not each.is_answer and (has_answer or known is not None):
            raise UnknownQuestionError(each.id)
        has_answer = each.is_answer
    there = conversation()
    return None if there is None else _beginning(there, is_greeted=bool(shown) and shown[-1].is_answer)


def _stored(conversation: Conversation, shown: Shown, known: Named | None) -> Message | None:
    """Return the row that a page shows as *shown*, a question in its version on the path; None if there is none."""
    if not shown.is_answer:
        versions = versions_of(conversation, shown.id)
        return versions[0] if versions else None
    history = conversation.history(all_branches=True)
    if known is not None:
        return history.filter(sequence=known.sequence).first()
    return history.filter(sequence=message_sequence(shown.id) or 0, client_message_id=None).first()


def _end_of_answer(conversation: Conversation, first: Message) -> int | None:
    """Return the last message of the answer that begins with *first*; None if no question follows it on the path."""
    if not first.on_path:
        rest = takewhile(lambda row: row.type != MessageType.USER, following(conversation, first))
        return [row.sequence for row in [first, *rest] if row.type != MessageType.SYSTEM][-1]
    path = conversation.history().filter(sequence__gte=first.sequence).order_by("sequence")
    question = path.filter(type=MessageType.USER).values_list("sequence", flat=True).first()
    if question is None:
        return None
    answer = path.filter(sequence__lt=question).exclude(type=MessageType.SYSTEM)
    return answer.values_list("sequence", flat=True).last()


def _unanswered(conversation: Conversation, question: Message) -> int | None:
    """Return the place of *question*, which a page shows without an answer; None if it is the newest of the path."""
    behind = conversation.history().filter(sequence__gt=question.sequence).exclude(type=MessageType.SYSTEM)
    return None if question.on_path and not behind.exists() else question.sequence


def _beginning(conversation: Conversation, *, is_greeted: bool) -> int | None:
    """Return the message in front of the first question; None if there is none, so that one would come to the end."""
    path = conversation.history().order_by("sequence")
    first = path.filter(type=MessageType.USER).values_list("sequence", flat=True).first()
    if first is None:
        return None
    before = list(path.filter(sequence__lt=first).values_list("sequence", "type"))
    greetings = [sequence for sequence, kind in before if kind == MessageType.AI]
    systems = [sequence for sequence, _ in takewhile(lambda row: row[1] == MessageType.SYSTEM, before)]
    return (greetings if is_greeted and greetings else systems or [0])[-1]
