"""Questions in a conversation: at its end, where one was asked before, or a new version of one that was."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple

from chatmemory_django.chat.answers.shown import Shown
from chatmemory_django.chat.answers.stored import MAX_STEPS, StoredAnswer
from chatmemory_django.chat.answers.versions import id_again, versions_of
from chatmemory_django.chat.ui_messages import message_sequence, ui_id
from chatmemory_django.core.limits import EDIT, unedited
from chatmemory_django.core.tool_calls import REJECTED
from chatmemory_django.db.row_codec import address_of
from chatmemory_django.memory import ChatMemory
from chatmemory_django.messages import MessageType, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.models.message_codec import complete
from chatmemory_django.operations.one_by_one import as_kept, messages_of
from chatmemory_django.stores.base import MessageNotFoundError
from chatmemory_django.stores.django import DjangoChatMemoryStore


class Question(NamedTuple):
    """A question for a turn; without a *message*, it is stored already and only has to be answered."""

    message: UserMessage | None
    after: int | None = None
    """The message to continue from, if it is not the newest."""
    client_message_id: str | None = None
    stored: StoredAnswer | None = None
    """What is stored of its answer, which goes on or, if it has ended, is given once more."""
    shown: Sequence[Shown] | None = None
    """What its page shows before it, the nearest first; None if that is not known."""
    is_retry: bool = False
    """Whether its client has sent it before: without an id, it is the newest one then, if it is equal to that."""


def positioned(
    question: Question, memory: ChatMemory, *, is_known: bool, follows: Callable[[], int | None] | None = None
) -> Question:
    """
    Return *question* with its position in the conversation of *memory*; *is_known* is whether its id is taken there.

    If a message with the same client id and the same content is stored, its answer goes on, or is given once more if it
    has ended; without one, it is answered where it is, or asked once more at the end, see ``_stays``. With other
    content, the new message replaces it. Without an id, the answer goes on if it is that of the newest question. A new
    question comes to the end, or after the message that *follows* returns.

    Raises:
        MessageNotFoundError: The message was removed.
        UnknownQuestionError: By *follows*.

    """
    name = question.client_message_id
    is_new = not is_known and name is not None and message_sequence(name) is None  # as nearly every question
    conversation = None if is_new else conversation_of(memory)
    found = None if conversation is None else _asked_before(question, conversation, memory, follows)
    if found is not None or follows is None:
        return found or question
    return question._replace(after=follows())


def _asked_before(
    question: Question, conversation: Conversation, memory: ChatMemory, follows: Callable[[], int | None] | None
) -> Question | None:
    """Return *question* with its position if it is a retry or an edit; None if it is new."""
    message, name = question.message, question.client_message_id
    if name is None:
        newest = posted_before(conversation, question)
        return None if newest is None else _again(conversation, newest)
    versions = versions_of(conversation, name)
    if not versions:
        _check_not_removed(conversation, memory, name)
        return None
    row = next((row for row in versions if _is_same(row, message)), None)
    if row is None:
        replaced = versions[0]
        known = unedited(replaced.client_message_id or name)
        # Ids are unique, and the first version keeps its own, even if it was taken out of the history.
        return Question(message, conversation.parent_of(replaced.sequence), f"{known}{EDIT}{secrets.token_hex(4)}")
    again = ""
    while row is not None:
        if (found := _again(conversation, row, versions, follows)) is not None:
            return found
        again = id_again(row)  # there is such a row, not on the path, if an edit of a question in between has left it
        row = next((each for each in versions if each.client_message_id == again and _is_same(each, message)), None)
    _check_not_removed(conversation, memory, again)
    return Question(message, None, again)


def unanswered(question: Question, memory: ChatMemory) -> Question:
    """Return *question*, which is to have another answer, or its answer to go on with if that has not ended."""
    conversation = conversation_of(memory)
    if conversation is None:
        return question
    asked = conversation.history(all_branches=True).filter(sequence=question.after or 0, type=MessageType.USER).first()
    answer = None if asked is None else StoredAnswer.of(conversation, asked)
    if answer is None:
        return question
    if answer.pending or answer.is_decided:
        return Question(None, stored=answer)
    goes_on = (answer.rows or answer.others) and not answer.has_ended and answer.is_newest
    return _going_on(answer) if goes_on else Question(None, question.after, stored=answer.another())


def _again(
    conversation: Conversation,
    row: Message,
    versions: Sequence[Message] = (),
    follows: Callable[[], int | None] | None = None,
) -> Question | None:
    """Return how the question *row* is asked again where it is; None if it has to be asked once more at the end."""
    answer = StoredAnswer.of(conversation, row)
    if answer.stands or answer.is_decided:
        return Question(None, row.sequence, stored=answer)
    if answer.rows:
        return _going_on(answer) if answer.is_newest and _is_remembered(answer) else None
    if REJECTED in (row.metadata or {}):  # it is in no memory
        return None
    stays = _stays(conversation, row, versions) or (follows is not None and _is_shown(conversation, row, follows))
    return _going_on(answer) if stays else None


def _going_on(answer: StoredAnswer) -> Question:
    return Question(None, answer.after, stored=answer)


def left(
    conversation: Conversation, run: str, asked: int | None, since: int, *, is_another: bool = True
) -> Question | None:
    """
    Return the question with whose answer the *run* goes on that another process has begun; None if there is none.

    It is the one that was *asked*, if that is given, and otherwise the first one from the sequence *since* on, which
    may begin a branch or, if the question was there before, the newest one. It is
    answered behind whatever others have added since. If its answer has ended, it is given once more if it is the one of
    this run, or if the run was not asked for *another* one.

    Raises:
        MessageNotFoundError: The memory was cleared since the question was asked, or the question removed.

    """
    questions = conversation.history(all_branches=True).filter(type=MessageType.USER).order_by("sequence")
    if asked is None:
        row = questions.filter(sequence__gte=since).first() or questions.last()
    else:
        row = questions.filter(sequence=asked).first()
    answer = None if row is None else StoredAnswer.of(conversation, row)
    goes_on = row is not None and not (row.is_complete or is_another)
    if row is None or answer is None or (goes_on and not _is_remembered(answer)):
        if asked is None:
            return None
        raise MessageNotFoundError(conversation.memory_id, asked)
    if goes_on and not (answer.pending or answer.is_decided):
        is_last = answer.is_newest or not row.on_path
        return Question(None, answer.after if is_last else None, stored=answer.unended())
    if answer.has_ended and answer.id != run and (is_another or asked is None):
        return None if asked is None else Question(None, asked, stored=answer.another())
    return _again(conversation, row, follows=lambda: conversation.parent_of(row.sequence))


def question_again(conversation: Conversation, name: str | None, posted: Question) -> Question | None:
    """
    Return the question to answer again, or None if there is none.

    It is the message *name* or, if that is an answer's id, the question before the answer; without an id, or with its
    own, it is the *posted* one or, without that, the newest one. One whose answer has not ended is returned as it was
    asked: where it is answered is decided when the answer begins, since another one may be in progress now.
    """
    is_posted = posted.message is not None and name in {None, posted.client_message_id}
    row = posted_before(conversation, posted) if is_posted else None
    if row is not None and StoredAnswer.of(conversation, row).has_ended:
        return Question(None, row.sequence)
    if is_posted:  # it has not ended, or it is a new version
        return posted
    row = _newest_question(conversation) if name is None else _message_of(conversation, name)
    for _ in range(MAX_STEPS):
        if row is None or row.type == MessageType.USER:
            break
        parent = conversation.parent_of(row.sequence)
        row = conversation.history(all_branches=True).filter(sequence=parent or 0).first()
    if row is None or row.type != MessageType.USER:
        return None
    [message] = complete([row.chat_message], [row.sequence], address_of(conversation))
    if isinstance(message, UserMessage) and not StoredAnswer.of(conversation, row).has_ended:
        return Question(message, None, ui_id(row))
    return Question(None, row.sequence)


def posted_before(conversation: Conversation, posted: Question) -> Message | None:
    """Return the version of the *posted* question that has its content; None if it is a new one."""
    name = posted.client_message_id
    if name is None:
        newest = _newest_question(conversation)
        may_be = newest is not None and (posted.is_retry or not newest.is_complete)
        return newest if newest and may_be and _is_same(newest, posted.message) else None
    versions = versions_of(conversation, name)
    return next((row for row in versions if _is_same(row, posted.message)), None)


def _is_same(row: Message, message: UserMessage | None) -> bool:
    """Return whether *row* holds *message*, whose files may be in a storage there."""
    return message is not None and row.chat_message == as_kept(message)


def conversation_of(memory: ChatMemory) -> Conversation | None:
    """Return the conversation of *memory*; None if it is not in the database, or not the owner's."""
    store = memory.store
    return store.named(memory.id).first() if isinstance(store, DjangoChatMemoryStore) else None


def _message_of(conversation: Conversation, name: str) -> Message | None:
    """Return the row of the message with the client's id *name*; of several versions, the one on the path."""
    versions = versions_of(conversation, name)
    if versions:
        return versions[0]
    sequence = message_sequence(name)
    return conversation.history(all_branches=True).filter(sequence=sequence or 0).first()


def _newest_question(conversation: Conversation) -> Message | None:
    return conversation.history().filter(type=MessageType.USER).order_by("sequence").last()


def _check_not_removed(conversation: Conversation, memory: ChatMemory, client_message_id: str) -> None:
    """Raise ``MessageNotFoundError`` if the message with that id, which is not in the history, was removed."""
    removed = messages_of(conversation).filter(in_history=False)
    row = removed.filter(client_message_id=client_message_id).first()
    if row is None and (sequence := message_sequence(client_message_id)):
        row = removed.filter(sequence=sequence, client_message_id=None, type=MessageType.USER).first()
    if row is not None:
        raise MessageNotFoundError(memory.id, row.sequence)


def _stays(conversation: Conversation, row: Message, versions: Sequence[Message] = ()) -> bool:
    """
    Return whether the question *row*, asked again, is answered where it is; if not, it is asked once more at the end.

    It stays if it is the newest message; and on another branch if one of its *versions* is on the path, which it is to
    replace. From anywhere else, it would take the answers to later questions off the path. It never stays if the memory
    was cleared just after it: then no memory there has it.
    """
    if row.cleared_before is not None:
        return False
    if not row.on_path:
        return any(version.on_path for version in versions)
    return _following(conversation, row) is None and row.sequence > conversation.forgotten_through


def _is_shown(conversation: Conversation, row: Message, follows: Callable[[], int | None]) -> bool:
    """Return whether the question *row*, on a branch that is not used, is right behind what *follows* returns."""
    if row.on_path or row.cleared_before is not None:
        return False
    after, parent = follows(), conversation.parent_of(row.sequence)
    return after is not None and _before_systems(conversation, after) == _before_systems(conversation, parent)


def _before_systems(conversation: Conversation, sequence: int | None) -> int:
    """Return message *sequence* or, if that is a system message, what it follows; 0 for nothing."""
    history = conversation.history(all_branches=True)
    while sequence and history.filter(sequence=sequence, type=MessageType.SYSTEM).exists():
        sequence = conversation.parent_of(sequence)
    return sequence or 0


def _is_remembered(answer: StoredAnswer) -> bool:
    """
    Return whether the memory was not cleared since the question of *answer* was asked, and does not lack it since it
    was rejected: one that was regenerated then has an answer, whose tools have run.
    """
    row = answer.question
    is_cleared = row.cleared_before is not None or row.sequence <= answer.conversation.forgotten_through
    return not is_cleared and (bool(answer.kept) or REJECTED not in (row.metadata or {}))


def _following(conversation: Conversation, row: Message) -> Message | None:
    """Return the message that follows *row* on the path, system messages aside."""
    following = conversation.history().filter(sequence__gt=row.sequence).exclude(type=MessageType.SYSTEM)
    return following.order_by("sequence").first()
