"""What is stored of an answer: whether it has ended, what a retry goes on with, and its events once more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple, Self
from uuid import UUID

from chatmemory_django.chat.approvals.resuming import Resumed, calls_in, unanswered
from chatmemory_django.chat.approvals.waiting import approvals_of, can_go_on, waiting_in
from chatmemory_django.chat.model import ApprovalRequested, ChatResponse, ChatResponseMetadata
from chatmemory_django.chat.ui_messages import message_sequence, ui_id
from chatmemory_django.core.limits import is_storable
from chatmemory_django.core.tool_calls import NOT_ACCEPTED, REJECTED, tool_answers
from chatmemory_django.db.row_codec import address_of
from chatmemory_django.memory import ChatMemory
from chatmemory_django.memory.turns import Begun, Turn
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    MessageType,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message, MessageQuerySet
from chatmemory_django.models.alternatives import children_of
from chatmemory_django.models.message_codec import complete
from chatmemory_django.stores.django import DjangoChatMemoryStore

MAX_STEPS = 256
"""How many messages behind a question are read at once: nearly always, these are more than its answer has."""

STEPS = {MessageType.AI, MessageType.TOOL_EXECUTION_RESULT}
"""The types of the messages of an answer."""


class StoredAnswer(NamedTuple):
    """The *rows* that are stored of the answer to *question*."""

    conversation: Conversation
    question: Message
    rows: Sequence[Message]
    pending: Sequence[ApprovalRequested]
    """The calls for whose approval it waits."""
    is_newest: bool
    """Whether nothing that a user wrote later follows it."""
    about: Sequence[UUID] = ()
    """
    The approvals that a ``Resume`` is to be about with which it goes on: a call for which it has waited was decided, or
    was interrupted.
    """
    others: Sequence[Message] = ()
    """What was stored between its rows, or behind them, of answers about earlier calls."""

    @classmethod
    def of(cls, conversation: Conversation, question: Message) -> Self:
        """Return what is stored of the answer to *question*, on the path or, if that is not on it, the newest one."""
        rows = following(conversation, question)
        until_next = list(takewhile(lambda row: row.type != MessageType.USER, rows))
        is_newest = len(until_next) == len(rows)
        answer, others = _separated(question, [row for row in until_next if row.type in STEPS])
        if not _calls(answer):
            return cls(conversation, question, answer, [], is_newest, others=others)
        callers = [row.sequence for row in answer if row.type == MessageType.AI]
        later, is_owed = ([], False) if is_newest else _decided_later(question, answer, rows)
        answer += later
        waiting = waiting_in(conversation, answer)
        if waiting is None:
            approvals = approvals_of(conversation).filter(sequence__in=callers) if is_owed else ()
            return cls(conversation, question, answer, [], is_newest, [each.id for each in approvals], others)
        pending = [waiting.request(each) for each in waiting.open]
        about = [each.id for each in waiting.approvals] if can_go_on(waiting, conversation) else []
        return cls(conversation, question, answer, pending, is_newest, about, others)

    @classmethod
    def before(cls, conversation: Conversation, sequence: int) -> Self | None:
        """Return the answer with message *sequence* of the path; None without a question before it."""
        questions = conversation.history().filter(sequence__lt=sequence, type=MessageType.USER)
        question = questions.order_by("sequence").last()
        answer = None if question is None else cls.of(conversation, question)
        if answer is None or any(row.sequence == sequence for row in answer.rows):
            return answer
        rows = takewhile(lambda row: row.type != MessageType.USER, following(conversation, answer.question))
        return answer._replace(rows=[row for row in rows if row.type in STEPS], others=())

    def show(self, memory: ChatMemory) -> None:
        """Let *memory* go on from this answer if it is on another branch."""
        if not self.question.on_path:
            memory.switch(self.question.sequence)

    @property
    def has_ended(self) -> bool:
        """Whether it is whole, or was stopped."""
        steps = [row for row in self.rows if row.type == MessageType.AI]
        return bool(steps) and not (_calls(steps[-1:]) or self._is_broken(steps[-1]))

    @property
    def is_decided(self) -> bool:
        """Whether it goes on by a ``Resume``."""
        return bool(self.about)

    @property
    def stands(self) -> bool:
        """Whether it has ended, or waits: then the model is not asked again."""
        return self.has_ended or bool(self.pending)

    @property
    def last_results(self) -> int:
        """How many results are the last of the rows with which it goes on."""
        ends = (row.type == MessageType.TOOL_EXECUTION_RESULT for row in reversed(self.kept))
        return sum(takewhile(bool, ends))

    def another(self) -> Self:
        """Return the answer to the same question before it has begun."""
        return self._replace(rows=(), pending=(), others=())

    def unended(self) -> Self:
        """Return it without the texts that others have added to it: its own one completes its question."""
        return self._replace(rows=[row for row in self.kept if not is_text(row)])

    @property
    def kept(self) -> Sequence[Message]:
        """The rows with which it goes on: without the text of a round that broke."""
        return [row for row in self.rows if not self._is_broken(row)]

    @property
    def steps(self) -> int:
        """How many messages of the model it goes on with."""
        return sum(row.type == MessageType.AI for row in self.kept)

    @property
    def id(self) -> str | None:
        """The id under which pages know the answer; None before it has begun."""
        return ui_id(self.kept[0]) if self.kept else None

    @property
    def after(self) -> int | None:
        """The message to continue from; None if that is the newest one of the path."""
        kept = self.kept
        newest = self.conversation.history().order_by("sequence").values_list("sequence", flat=True).last()
        last = max(row.sequence for row in [self.question, *kept, *self.others])
        return None if last == newest and self.conversation.parent_sequence in {None, last} else last

    def begun(self) -> Begun:
        """Return the messages of the turn that goes on, with their files."""
        kept = [self.question, *self.kept]
        rows = sorted([*kept, *self.others], key=lambda row: row.sequence)
        return Begun(
            self.conversation.parent_of(self.question.sequence) or 0,
            [row.sequence for row in kept],
            [_as_read(row, each) for row, each in zip(rows, _complete(self.conversation, rows), strict=True)],
        )

    def asked_only(self) -> Begun:
        """Return the turn that goes on behind what others have added since, of which the last results are its own."""
        results = [row.sequence for row in self.kept[len(self.kept) - self.last_results :]]
        return Begun(None, [self.question.sequence, *results], [])

    def events(self) -> Iterator[ChatResponse | ToolExecutionResultMessage]:
        """Yield the events that the answer has had, each message of the model as a whole."""
        rows = self.rows if self.stands else self.kept
        for row, message in zip(rows, _complete(self.conversation, rows), strict=True):
            if isinstance(message, AiMessage):
                yield ChatResponse(message, ChatResponseMetadata.of_json(row.metadata or {}))
            elif isinstance(message, ToolExecutionResultMessage):
                yield message

    def asked(self) -> UserMessage | None:
        """Return the question with its files."""
        [message] = _complete(self.conversation, [self.question])
        return message if isinstance(message, UserMessage) else None

    def _is_broken(self, row: Message) -> bool:
        return not self.question.is_complete and (row.metadata or {}).get("partial") is True


def show_decided(resumed: Resumed, turn: Turn) -> None:
    """Let *turn* send the calls that were decided, and the results that are stored beside, if they left the memory."""
    caller = resumed.left(turn)
    if caller is None:
        return
    conversation, _ = resumed.asked_before
    rows = list(conversation.history().filter(sequence__gte=caller.sequence).order_by("sequence")[:MAX_STEPS])
    answers = tool_answers([row.chat_message for row in rows])
    shown = [caller, *(rows[result] for (index, _), result in sorted(answers.items()) if index == 0)]
    for row, message in zip(shown, _complete(conversation, shown), strict=True):
        turn.show(_as_read(row, message))


def not_accepted(memory: ChatMemory, turn: Turn) -> dict[tuple[int, int], str]:
    """
    Return the notes that models read in the place of results that were not accepted, and that the memory lacks, by the
    key of the message with the call and the position of that: a memory read as it was in between does not have them,
    nor does that of a branch that began there.
    """
    store, missing = memory.store, unanswered(turn)
    if not (missing and isinstance(store, DjangoChatMemoryStore)):
        return {}
    messages = Message.objects.using(store.named(memory.id).db).filter(conversation__in=store.named(memory.id))
    path = [messages.history()] if turn.earlier is None else messages.path_to(turn.earlier)
    first = min(missing)[0]  # an index in the memory or, if that is read as it was, a sequence: none is smaller
    parts = [each.filter(type__in=STEPS, sequence__gte=first).defer("verbatim") for each in path]
    if not any(each.filter(metadata__has_key=REJECTED).exists() for each in parts):
        return {}
    rows = sorted((row for part in parts for row in part), key=lambda row: row.sequence)
    stored = [row.chat_message for row in rows]
    rejected = {call for call, result in tool_answers(stored).items() if REJECTED in (rows[result].metadata or {})}
    notes: dict[tuple[int, int], str] = {}
    callers = [index for index, message in enumerate(stored) if calls_in(message)]
    for entry in reversed(turn.unevicted()[0].entries()):  # the same calls may have been made before
        calls = calls_in(entry.message)
        caller = next((index for index in reversed(callers) if calls and calls_in(stored[index]) == calls), None)
        if caller is not None:
            callers.remove(caller)
            notes.update({(entry.key, at): NOT_ACCEPTED for at in range(len(calls)) if (caller, at) in rejected})
    return notes


def _as_read(row: Message, message: ChatMessage) -> ChatMessage:
    """Return *message* of *row*, or the note that models read in the place of a result that was not accepted."""
    if isinstance(message, ToolExecutionResultMessage) and REJECTED in (row.metadata or {}):
        return ToolExecutionResultMessage(message.id, message.tool_name, NOT_ACCEPTED, is_error=True)
    return message


def named(rows: MessageQuerySet, name: str) -> Message | None:
    """Return which of *rows* a page calls *name*: by its client message id or, without one, by its sequence."""
    found = rows.filter(client_message_id=name).first() if is_storable(name) else None
    if found is None and (sequence := message_sequence(name)):
        found = rows.filter(client_message_id=None, sequence=sequence).first()
    return found


def following(conversation: Conversation, question: Message) -> list[Message]:
    """Return what follows *question*: on the path or, if it is not on it, on the newest branch."""
    found: list[Message] = []
    if question.on_path:
        rows = conversation.history().order_by("sequence")
        while not _has_whole(found):
            last = found[-1] if found else question
            more = list(rows.filter(sequence__gt=last.sequence)[:MAX_STEPS])
            found += more
            if len(more) < MAX_STEPS:
                break
        return found
    history, parent = conversation.history(all_branches=True), question.sequence
    while not _has_whole(found) and (children := children_of(history, parent)):
        row = history.filter(sequence=max(children)).first()
        if row is None:
            break
        found.append(row)
        parent = row.sequence
    return found


def _has_whole(found: Sequence[Message]) -> bool:
    """Return whether *found*, which begins with an answer, has all of it and is enough."""
    return len(found) >= MAX_STEPS and any(row.type == MessageType.USER for row in found)


def _separated(question: Message, rows: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """
    Return those of *rows*, which follow *question*, that are of its answer, and the others.

    The others begin with results of calls before the question, and end with what the model wrote about these.
    """
    if not any(row.type == MessageType.TOOL_EXECUTION_RESULT for row in rows):
        return list(rows), []
    callers = {result: caller for (caller, _), result in tool_answers([row.chat_message for row in rows]).items()}
    own: list[int] = []
    is_own = True
    for index, row in enumerate(rows):
        if row.type == MessageType.TOOL_EXECUTION_RESULT:
            is_own = callers.get(index) in own
        if is_own:
            own.append(index)
        is_own = is_own or is_text(row)
    if question.is_complete and not (own and is_text(rows[own[-1]])):
        own = [index for index in range(len(rows)) if index in callers or rows[index].type == MessageType.AI]
    return [rows[index] for index in own], [row for index, row in enumerate(rows) if index not in own]


def _decided_later(question: Message, answer: Sequence[Message], rows: Sequence[Message]) -> tuple[list[Message], bool]:
    """
    Return those of *rows* that belong to *answer* and are behind later questions, and whether the last text is to come.

    Each part begins with results of the answer's calls and ends with a text. Before *question* is complete, a text
    behind them is of another answer, which has gone on there.
    """
    callers = {result: index for (index, _), result in tool_answers([row.chat_message for row in rows]).items()}
    first = {row.sequence for row in answer}
    own = {index for index, row in enumerate(rows) if row.sequence in first}
    later: list[int] = []
    is_own = is_owed = False
    for index in range(max(own) + 1, len(rows)):
        row, caller = rows[index], callers.get(index)
        if row.type == MessageType.TOOL_EXECUTION_RESULT:
            is_owed = caller in own
            is_own = is_owed or (is_own and caller in later)
        elif row.type == MessageType.USER or (is_text(row) and not question.is_complete):
            is_own = False
        if is_own and row.type in STEPS:
            later.append(index)
        is_owed = is_owed and row.type != MessageType.AI
        is_own = is_own and not is_text(row)
    return [rows[index] for index in later], is_own and is_owed


def _calls(rows: Sequence[Message]) -> bool:
    """Return whether any of *rows* calls tools; a message that is only a text has no payload."""
    messages = [row.chat_message for row in rows if row.payload]
    return any(isinstance(each, AiMessage) and each.tool_execution_requests for each in messages)


def is_text(row: Message) -> bool:
    """Return whether an answer ends with *row*: the model has written, and calls nothing."""
    return row.type == MessageType.AI and not _calls([row])


def _complete(conversation: Conversation, rows: Sequence[Message]) -> list[ChatMessage]:
    """Return the messages of *rows* with their files."""
    messages = [row.chat_message for row in rows]
    return complete(messages, [row.sequence for row in rows], address_of(conversation))
