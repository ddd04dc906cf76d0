"""Answers that wait for the approval of tool calls: how they end, and how they go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING
from uuid import UUID

from django.db import router

from chatmemory_django.chat.approvals import approving
from chatmemory_django.chat.approvals.approving import Decision, May, NotPendingError, Output, StillOpen
from chatmemory_django.chat.approvals.waiting import Waiting, newest_waiting
from chatmemory_django.chat.model import ApprovalRequested
from chatmemory_django.core.tool_calls import tool_answers
from chatmemory_django.core.windows import Entry
from chatmemory_django.memory import ChatMemory
from chatmemory_django.memory.turns import Turn
from chatmemory_django.messages import AiMessage, ChatMessage, ToolExecutionRequest, ToolExecutionResultMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.stores.django import DjangoChatMemoryStore

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

__all__ = ["ApprovalRequested", "ApprovalRequiredError", "Decision", "NotPendingError", "Output", "Resume"]

DECIDED = "A call that waited for approval has been decided, and has its result now. Answer the user about it."
"""What the model is sent in the place of a question, and what is not stored, if other messages follow the call."""


class ApprovalRequiredError(Exception):
    """
    The answer waits for the approval of tool calls, or for their outputs; what there is of it is stored.

    *requests* are the calls. Pass ``Resume(Decision(request.id, approved=True))`` as the message to go on or, for one
    that ``runs_in`` the client, ``Resume(Output(request.id, value))``.
    """

    def __init__(self, requests: Sequence[ApprovalRequested]) -> None:
        names = ", ".join(sorted({str(request.call.name) for request in requests}))
        what = "output" if all(request.runs_in == "client" for request in requests) else "approval"
        super().__init__(f"The answer waits for the {what} of {len(requests)} calls of tools: {names}.")
        self.requests = tuple(requests)


class Resume:
    """
    In place of a message: go on with the answer that waits, after *decisions* on its calls, or with their outputs.

    Without any, decisions that were made elsewhere count, for example by REST; if several answers can go on, the one
    that has a call with an approval in *about* does. *by* is the user who has decided, by default the owner that the
    assistant is given; that this user may decide for the owner is for the caller to check.
    """

    def __init__(
        self, *decisions: Decision | Output, by: AbstractBaseUser | None = None, about: Sequence[UUID | str] = ()
    ) -> None:
        self.decisions = tuple(each for each in decisions if isinstance(each, Decision))
        self.outputs = tuple(each for each in decisions if isinstance(each, Output))
        self.by = by
        self.about = about

    def __repr__(self) -> str:
        return f"Resume({len(self.decisions)} decisions, {len(self.outputs)} outputs)"


class Resumed:
    """
    An answer that goes on: the decided calls, which nobody else runs, and then their results.

    *fence* is the conversation's, which is taken for this answer, see ``Turn.fence``.
    """

    def __init__(self, memory: ChatMemory, resume: Resume, fence: int | None) -> None:
        store = django_store(memory)
        self._stored: set[UUID] = set()
        self._memory_id = str(memory.id)
        self._conversations = store.named(memory.id)
        try:
            if resume.decisions:
                by = store.owner if resume.by is None else resume.by
                approving.decide(self._conversations, self._memory_id, resume.decisions, by)
            named = [*resume.about, *(each.id for each in resume.decisions)]
            self._claim = approving.claim(self._conversations, self._memory_id, named, fence, outputs=resume.outputs)
            if resume.decisions and not (self._claim.approved or self._claim.ended):
                raise NotPendingError("The same was decided before.")  # noqa: TRY301  # like those of the operations
        except NotPendingError:
            memory.turn().begin()  # raises PermissionDenied if the conversation is another user's
            raise

    @property
    def waiting(self) -> Waiting | None:
        """The answer as it was, if it goes on as itself; None if it was passed by, and another one is made about it."""
        waiting = self._claim.waiting
        return waiting if waiting is not None and waiting.is_newest else None

    @property
    def asked_before(self) -> tuple[Conversation, int]:
        """The conversation, and the message before which the question was asked to which the answer belongs."""
        return self._claim.conversation, self._claim.caller

    @property
    def fence(self) -> int | None:
        """The fence of the conversation, which all that is stored of the answer requires, see ``Turn.fence``."""
        return self._claim.fence

    @property
    def calls(self) -> list[ToolExecutionRequest]:
        """The calls to run now: exactly as they are stored."""
        waiting = self._claim.waiting
        return [] if waiting is None else [waiting.call(approval) for approval in self._claim.approved]

    @property
    def ended(self) -> list[ToolExecutionResultMessage]:
        """What the model reads of the calls that will not be run."""
        return [each.result for each in self._claim.ended]

    def left(self, turn: Turn) -> Message | None:
        """Return the message with the calls, if that has left the memory of *turn*."""
        waiting, messages = self._claim.waiting, turn.unevicted()[0].messages()
        if waiting is None or any(calls_in(message) == waiting.calls for message in messages):
            return None
        return waiting.caller

    def store_with(self, turn: Turn, result: ToolExecutionResultMessage) -> bool:
        """
        Let the next write of *turn*, which stores *result*, end the call of that, if it is one of those to run now.

        Returns whether it is.
        """
        claim, waiting = self._claim, self._claim.waiting
        if waiting is None:
            return False
        claimed = [*claim.approved, *(each.approval for each in claim.ended)]
        left = [each for each in claimed if each.id not in self._stored]  # later calls may have their ids
        ended = next((each for each in left if waiting.call(each).id == result.id), None)
        if ended is not None:
            self._stored.add(ended.id)
            turn.beside(lambda conversation, keys: approving.end(claim, ended))
        return ended is not None

    def again(self) -> bool:
        """Return whether more calls of the answer were decided meanwhile, which are the ones to run now."""
        try:
            claim = approving.claim(self._conversations, self._memory_id, (), self.fence, more_of=self._claim)
        except NotPendingError:
            return False
        if not (claim.approved or claim.ended):
            return False
        self._claim = claim
        return True

    def release(self) -> None:
        """Give up the calls to run now, before any of them has begun: the answer can be resumed again."""
        approving.release(self._claim)

    def still_open(self) -> list[ApprovalRequested]:
        """Return the calls for which the answer goes on waiting."""
        conversation = self._conversations.first() if self.waiting is not None else None
        newest = None if conversation is None else newest_waiting(conversation)
        return [] if newest is None else [newest.request(each) for each in newest.open]


class OpenCalls:
    """The calls that stay open while something else is answered."""

    def __init__(self, still_open: Sequence[StillOpen] = ()) -> None:
        self._still_open = still_open

    def texts(self, entries: Sequence[Entry]) -> dict[tuple[int, int], str]:
        """Return what the model reads of them, by the key of the entry and the position of the call."""
        texts: dict[tuple[int, int], str] = {}
        for message in self._still_open:
            key = next((each.key for each in reversed(entries) if calls_in(each.message) == message.calls), None)
            texts.update({(key, position): text for position, text in message.texts.items() if key is not None})
        return texts


def django_store(memory: ChatMemory) -> DjangoChatMemoryStore:
    """Return the store of *memory*; ``TypeError`` if approvals cannot be kept there."""
    if not isinstance(memory.store, DjangoChatMemoryStore):
        raise TypeError(f"Approvals of tools are kept by DjangoChatMemoryStore only, not by {memory.store!r}.")
    return memory.store


def check_resume(memory: ChatMemory, resume: Resume, fence: int | None) -> None:
    """Raise ``NotPendingError`` if there is nothing with which *resume*, whose decisions are recorded, goes on."""
    store = django_store(memory)
    approving.check(store.named(memory.id), str(memory.id), resume.about, fence, resume.outputs)


def request_approvals(memory: ChatMemory, turn: Turn, asked: Mapping[int, ApprovalRequested]) -> None:
    """Let *turn* ask for approvals in its next write: *asked*, by the position of each call in its last message."""
    using = django_store(memory).using or router.db_for_write(Conversation)

    def store(conversation: object, keys: Sequence[int]) -> None:
        approving.request_approvals(using, conversation, keys[-1], asked.items())  # type: ignore[arg-type]  # its key

    turn.beside(store)


def end_waiting(memory: ChatMemory, may: May | None, fence: int | None = None) -> tuple[bool, OpenCalls]:
    """
    End the calls that wait for who asks something else, and *may* decide on them; None for no question.

    What is stored of that requires the *fence* of who asks. Returns whether there were any, so that the turn has to
    begin again, and which calls in the memory still wait. Where the memory has no call without a result, there is
    nothing to end; see ``unanswered``.
    """
    store = memory.store
    if not isinstance(store, DjangoChatMemoryStore):
        return False, OpenCalls()
    closed = approving.close(store.named(memory.id), str(memory.id), partial(_store, memory, fence), may)
    return closed.ended > 0, OpenCalls(closed.still_open)


def unanswered(turn: Turn) -> dict[tuple[int, int], str | None]:
    """Return the ids of the calls in the memory without a result, by the key of the message and the position in it."""
    entries = turn.unevicted()[0].entries()
    if not any(map(attrgetter("calls_tools"), entries)):  # it is asked for each question
        return {}
    found = [(each.key, each.message) for each in entries if each.message is not None]
    answers = tool_answers([message for _, message in found])
    calls = ((index, at, call) for index, (_, each) in enumerate(found) for at, call in enumerate(calls_in(each)))
    return {(found[index][0], at): call.id for index, at, call in calls if (index, at) not in answers}


def calls_in(message: ChatMessage | None) -> Sequence[ToolExecutionRequest]:
    """Return the calls of tools that *message* has, if it is one of the model."""
    return message.tool_execution_requests if isinstance(message, AiMessage) else ()


def _store(memory: ChatMemory, fence: int | None, messages: Sequence[ChatMessage]) -> None:
    # Not ``memory.add``: a model that summarizes would be called in the transaction.
    turn = memory.turn().begin()
    turn.fence = fence
    turn.add(*messages)
    turn.save()
