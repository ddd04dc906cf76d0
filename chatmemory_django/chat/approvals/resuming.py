"""Answers that wait for the approval of tool calls: how they end, and how they go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from uuid import UUID

from django.db import router

from chatmemory_django.chat.approvals import approving
from chatmemory_django.chat.approvals.approving import Decision, NotPendingError
from chatmemory_django.chat.model import ApprovalRequested
from chatmemory_django.memory import ChatMemory
from chatmemory_django.memory.turns import Turn
from chatmemory_django.messages import ChatMessage, ToolExecutionRequest, ToolExecutionResultMessage
from chatmemory_django.models import Conversation
from chatmemory_django.stores.django import DjangoChatMemoryStore

__all__ = ["ApprovalRequested", "ApprovalRequiredError", "Decision", "NotPendingError", "Resume"]


class ApprovalRequiredError(Exception):
    """
    The answer waits for the approval of tool calls; what there is of it is stored.

    *requests* are the calls. Pass ``Resume(Decision(request.id, approved=True))`` as the message to go on.
    """

    def __init__(self, requests: Sequence[ApprovalRequested]) -> None:
        names = ", ".join(sorted({str(request.call.name) for request in requests}))
        super().__init__(f"The answer waits for the approval of {len(requests)} calls of tools: {names}.")
        self.requests = tuple(requests)


class Resume:
    """
    In place of a message: go on with the answer that waits, after *decisions* on its calls.

    Without any, those that were made elsewhere count, for example by REST.
    """

    def __init__(self, *decisions: Decision) -> None:
        self.decisions = decisions

    def __repr__(self) -> str:
        return f"Resume({len(self.decisions)} decisions)"


class Resumed:
    """An answer that goes on: the approved calls, which nobody else runs, and then their results."""

    def __init__(self, memory: ChatMemory, resume: Resume) -> None:
        store = django_store(memory)
        self._memory = memory
        self._conversations = store.named(memory.id)
        try:
            if resume.decisions:
                by = None if store.owner is None else store.owner.pk
                approving.decide(self._conversations, str(memory.id), resume.decisions, by)
            self._claim = approving.claim(self._conversations, str(memory.id))
            if resume.decisions and not (self._claim.approved or self._claim.denied):
                raise NotPendingError("The same was decided before.")  # noqa: TRY301  # like those of the operations
        except NotPendingError:
            memory.turn().begin()  # raises PermissionDenied if the conversation is another user's
            raise

    @property
    def waiting(self) -> approving.Waiting:
        """The answer as it was."""
        return self._claim.waiting

    @property
    def calls(self) -> list[ToolExecutionRequest]:
        """The calls to run now: exactly as they are stored."""
        return [self.waiting.call(approval) for approval in self._claim.approved]

    def settle(
        self, results: Sequence[ToolExecutionResultMessage]
    ) -> tuple[Sequence[ToolExecutionResultMessage], list[ApprovalRequested]]:
        """Store the *results* of ``calls``; return all results, and the calls for which the answer goes on waiting."""
        store = partial(_store, self._memory)
        settled = approving.settle(self._conversations, self._claim, results, store)
        left = [ApprovalRequested(each.id, self.waiting.call(each)) for each in settled.still_open]
        return settled.results, left


def django_store(memory: ChatMemory) -> DjangoChatMemoryStore:
    """Return the store of *memory*; ``TypeError`` if approvals cannot be kept there."""
    if not isinstance(memory.store, DjangoChatMemoryStore):
        raise TypeError(f"Approvals of tools are kept by DjangoChatMemoryStore only, not by {memory.store!r}.")
    return memory.store


def request_approvals(memory: ChatMemory, turn: Turn, ids: Mapping[UUID, int]) -> None:
    """Let *turn* ask for approvals in its next write: *ids*, with the position of each call in its last message."""
    using = django_store(memory).using or router.db_for_write(Conversation)

    def store(conversation: object, keys: Sequence[int]) -> None:
        approving.request_approvals(using, conversation, keys[-1], ids)  # type: ignore[arg-type]  # its key

    turn.beside(store)


def end_waiting(memory: ChatMemory, turn: Turn) -> bool:
    """Deny what the answer at the end of the memory waits for, since *turn* asks something else; return if any did."""
    store = memory.store
    if not (isinstance(store, DjangoChatMemoryStore) and turn.has_open_calls):
        return False
    return approving.close(store.named(memory.id), str(memory.id), partial(_store, memory)) > 0


def _store(memory: ChatMemory, messages: Sequence[ChatMessage]) -> None:
    # Not ``memory.add``: a model that summarizes would be called in the transaction.
    turn = memory.turn().begin()
    turn.add(*messages)
    turn.save()
