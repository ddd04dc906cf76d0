"""
Approvals of tool calls: what waits for one, who decides, and that an approved call is run at most once.

Each step locks the conversation, so that of several who click, of several processes, and of a question that is asked in
the meantime, one comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from django.db import connections
from django.utils import timezone

from chatmemory_django.chat.approvals.tables import MAX_REASON_LENGTH, ToolApproval
from chatmemory_django.chat.model import ApprovalRequested
from chatmemory_django.chat.ui_messages import Approval
from chatmemory_django.core.limits import is_storable
from chatmemory_django.core.tool_calls import NOT_RUN
from chatmemory_django.db.isolation import as_now, has_locked
from chatmemory_django.encryption.ciphers import for_owner
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    MessageType,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
)
from chatmemory_django.models import Conversation, ConversationQuerySet, Message
from chatmemory_django.operations.whole import in_lock, messages_of, write

_T = TypeVar("_T")

State = ToolApproval.State

DENIED = "The user did not approve this call, so it was not run."
EXPIRED = "Nobody approved this call in time, so it was not run."
PASSED_OVER = "The user wrote something else instead of approving this call, so it was not run."
WITHDRAWN = "The user wrote something else before this call, which was approved, was run. It is not run any more."
UNKNOWN = "This call was approved, and interrupted while it ran: its outcome is unknown. It is not run again."
"""What the model reads of a call that has no result."""


class NotPendingError(RuntimeError):
    """There is no such call that waits for a decision, or for its result: it was decided, it expired, or it is gone."""


class Decision(NamedTuple):
    """What was decided on the call with the approval *id*; the model reads the *reason* why it was denied."""

    id: UUID | str
    approved: bool
    reason: str = ""


class Waiting(NamedTuple):
    """An answer at the end of a conversation that waits, or has waited, for approvals."""

    rows: Sequence[Message]
    """The answer so far."""
    caller: Message
    """The message of the model with the calls, the last one of the answer, ..."""
    calls: Sequence[ToolExecutionRequest]
    approvals: Sequence[ToolApproval]
    """Those of its calls that need one."""

    def call(self, approval: ToolApproval) -> ToolExecutionRequest:
        """Return the stored call of *approval*."""
        return self.calls[approval.position]


class Claim(NamedTuple):
    """The calls that one caller alone is to run now, and the denied ones, which the model does not know yet."""

    waiting: Waiting
    approved: Sequence[ToolApproval]
    denied: Sequence[ToolApproval]


class Settled(NamedTuple):
    """The results that an answer has now, and the approvals for which it goes on waiting."""

    results: Sequence[ToolExecutionResultMessage]
    still_open: Sequence[ToolApproval]


def request_approvals(using: str, conversation: int, sequence: int, ids: Mapping[UUID, int]) -> None:
    """Ask for the approval of calls in a message that is being stored: *ids* with the position of each call."""
    ToolApproval.objects.using(using).bulk_create(
        ToolApproval(id=name, conversation_id=conversation, sequence=sequence, position=position)
        for name, position in ids.items()
    )


def waiting_answer(conversation: Conversation) -> Waiting | None:
    """
    Return the answer at the end of the path, if its last step has calls that need approvals; None otherwise.

    A call that is not at the end is none: other messages follow it, it is on another branch, it was removed, or it has
    left the memory.
    """
    history = messages_of(conversation).history().defer("verbatim")
    asked = history.filter(type=MessageType.USER).values_list("sequence", flat=True).last() or 0
    rows = list(history.filter(sequence__gt=asked).exclude(type=MessageType.SYSTEM))
    index = next((index for index in range(len(rows) - 1, -1, -1) if rows[index].type == MessageType.AI), None)
    left = max(conversation.forgotten_through, conversation.window_start - 1)
    if index is None or rows[index].sequence <= left:
        return None
    caller, message = rows[index], rows[index].chat_message
    if not isinstance(message, AiMessage) or any(_is_no_result(row) for row in rows[index + 1 :]):
        return None
    approvals = list(_approvals(conversation).filter(sequence=caller.sequence))
    return Waiting(rows, caller, message.tool_execution_requests, approvals) if approvals else None


def pending_calls(conversation: Conversation) -> list[tuple[ToolApproval, ToolExecutionRequest]]:
    """Return the calls of *conversation* that wait for a decision."""
    waiting = waiting_answer(conversation)
    if waiting is None:
        return []
    return [(approval, waiting.call(approval)) for approval in waiting.approvals if approval.is_pending]


def open_calls(conversation: Conversation) -> list[ApprovalRequested]:
    """Return the calls for which the answer at the end of *conversation* waits: for a decision, or to be run."""
    waiting = waiting_answer(conversation)
    left = [] if waiting is None else [each for each in waiting.approvals if each.is_open and not each.has_expired]
    return [] if waiting is None else [ApprovalRequested(each.id, waiting.call(each)) for each in left]


def shown_approvals(conversation: Conversation, messages: Iterable[Any]) -> dict[tuple[int, int], Approval]:
    """Return the approvals of the calls in *messages*, rows of *conversation*, by sequence and position."""
    callers = [row.sequence for row in messages if getattr(row.chat_message, "tool_execution_requests", ())]
    found = list(_approvals(conversation).filter(sequence__in=callers)) if callers else []
    waiting = waiting_answer(conversation) if any(approval.is_open for approval in found) else None
    open_in = None if waiting is None else waiting.caller.sequence
    return {
        (each.sequence, each.position): Approval(
            str(each.id),
            each.approved,
            each.reason,
            each.sequence == open_in and each.is_open and (each.is_pending or each.approved is not None),
        )
        for each in found
    }


def decide(
    conversations: ConversationQuerySet, memory_id: str, decisions: Sequence[Decision], by: object
) -> list[ToolApproval]:
    """
    Record *decisions*, all or none, on calls in the conversation *memory_id*, made by the user with the key *by*, and
    return their approvals.

    Nothing is run. The same decision once more changes nothing.

    Raises:
        NotPendingError: One of the calls does not wait for a decision, or the opposite was decided.
        ValueError: A reason is too long, or a database could not store it.

    """
    for decision in decisions:
        _check_reason(decision.reason)
    return _locked(conversations, memory_id, partial(_decide, decisions, by))


def claim(conversations: ConversationQuerySet, memory_id: str) -> Claim:
    """
    Return the approved calls of the answer that waits, for the caller alone to run them, with the denied ones.

    Calls that have waited too long count as denied. Without any, all calls have results, and the model is to be asked.

    Raises:
        NotPendingError: No answer waits, or all that it waits for is decisions, or calls that run.

    """
    return _locked(conversations, memory_id, _claim)


def settle(
    conversations: ConversationQuerySet,
    claimed: Claim,
    results: Sequence[ToolExecutionResultMessage],
    store: Callable[[Sequence[ChatMessage]], object],
) -> Settled:
    """
    Store the *results* of the approved calls of *claimed*, with errors for the denied ones.

    *store* is called with all of them, in the same transaction.

    Raises:
        NotPendingError: The conversation has gone on without them.

    """
    key = claimed.waiting.caller.conversation_id
    return _locked(conversations.filter(pk=key), None, partial(_settle, claimed, results, store))


def close(conversations: ConversationQuerySet, memory_id: str, store: Callable[[Sequence[ChatMessage]], object]) -> int:
    """
    End what an answer waits for, since the user has written something else: nothing of it is run any more.

    *store* is called with what the model will read, in the same transaction. Returns how many calls have waited.
    """
    try:
        return _locked(conversations, memory_id, partial(_close, store))
    except NotPendingError:
        return 0


def _locked(conversations: ConversationQuerySet, memory_id: str | None, do: Callable[[Conversation], _T]) -> _T:
    """Return the result of *do* on the conversation *memory_id*, locked; ``NotPendingError`` if it is not there."""
    named = conversations if memory_id is None else conversations.filter(memory_id=memory_id)
    key = named.order_by("pk").values_list("pk", flat=True).first()
    # In a tuple, since None stands for a conversation that is gone.
    found = None if key is None else in_lock(conversations, key, lambda conversation: (do(conversation),))
    if found is None:
        raise NotPendingError("There is no such conversation, or it has no call that waits.")
    return found[0]


def _decide(decisions: Sequence[Decision], by: object, conversation: Conversation) -> list[ToolApproval]:
    waiting = waiting_answer(conversation)
    known = {} if waiting is None else {str(approval.id): approval for approval in waiting.approvals}
    for decision in decisions:
        approval = known.get(str(decision.id))
        if approval is None:
            raise NotPendingError("No call in this conversation waits for this approval.")
        if approval.approved is decision.approved:
            continue
        if not approval.is_pending:
            how = "has expired" if approval.approved is None else "was decided before"
            raise NotPendingError(f"The approval {how}.")
        approval.approved, approval.reason = decision.approved, decision.reason
        approval.decided_at, approval.decided_by = timezone.now(), "" if by is None else str(by)
        with for_owner(conversation.owner_id):
            approval.save(update_fields=["approved", "reason", "decided_at", "decided_by"])
        write(conversation)
    return [known[str(decision.id)] for decision in decisions]


def _claim(conversation: Conversation) -> Claim:
    waiting = waiting_answer(conversation)
    if waiting is None:
        raise NotPendingError("No answer in this conversation waits for an approval.")
    for approval in waiting.approvals:
        if approval.approved is None and approval.is_open and not approval.is_pending:
            approval.approved, approval.decided_at = False, timezone.now()
            approval.save(update_fields=["approved", "decided_at"])
    undone = [each for each in waiting.approvals if each.state == State.WAITING and each.approved is not None]
    if not undone and any(each.is_open for each in waiting.approvals):
        raise NotPendingError("The answer waits for a decision, or for a call that runs.")
    approved = [each for each in undone if each.approved]
    for approval in approved:
        approval.state = State.RUNNING
        approval.save(update_fields=["state"])
    write(conversation)
    return Claim(waiting, approved, [each for each in undone if not each.approved])


def _settle(
    claimed: Claim,
    results: Sequence[ToolExecutionResultMessage],
    store: Callable[[Sequence[ChatMessage]], object],
    conversation: Conversation,
) -> Settled:
    now = waiting_answer(conversation)
    states = {} if now is None else {each.id: each.state for each in now.approvals}
    ours = {each.id: State.RUNNING for each in claimed.approved} | {each.id: State.WAITING for each in claimed.denied}
    if now is None or any(states.get(name) != state for name, state in ours.items()):
        raise NotPendingError("The conversation has gone on without the results of the calls, which are not stored.")
    made = [*results, *(_not_run(claimed.waiting.call(each), _denial(each)) for each in claimed.denied)]
    _approvals(conversation).filter(pk__in=list(ours)).update(state=State.ENDED)
    if made:
        store(made)
    return Settled(made, [each for each in now.approvals if each.is_open and each.id not in ours])


def _close(store: Callable[[Sequence[ChatMessage]], object], conversation: Conversation) -> int:
    waiting = waiting_answer(conversation)
    left = [] if waiting is None else [each for each in waiting.approvals if each.is_open]
    if waiting is None or not left:
        return 0
    results: list[ToolExecutionResultMessage] = []
    for approval in left:
        results.append(_not_run(waiting.call(approval), _ending(approval)))
        if approval.approved is None:
            approval.approved, approval.decided_at = False, timezone.now()
        approval.state = State.ENDED
        approval.save(update_fields=["approved", "decided_at", "state"])
    store(results)
    return len(left)


def _ending(approval: ToolApproval) -> str:
    """Return what the model reads of a call that will not be run, or not be waited for."""
    if approval.state == State.RUNNING:
        return UNKNOWN
    if approval.approved:
        return WITHDRAWN
    return PASSED_OVER if approval.is_pending else _denial(approval)


def _denial(approval: ToolApproval) -> str:
    # Nobody decides what has expired, so no one is named.
    if approval.approved is None or (approval.decided_at or timezone.now()) >= approval.expires_at:
        return EXPIRED
    return f"{DENIED} The reason: {approval.reason}" if approval.reason else DENIED


def _not_run(call: ToolExecutionRequest, text: str) -> ToolExecutionResultMessage:
    attributes = {} if text == UNKNOWN else {NOT_RUN: True}
    return ToolExecutionResultMessage(call.id, call.name, text, is_error=True, attributes=attributes)


def _is_no_result(row: Message) -> bool:
    return row.type != MessageType.TOOL_EXECUTION_RESULT


def _approvals(conversation: Conversation) -> Any:
    rows = ToolApproval.objects.using(conversation._state.db).filter(conversation=conversation.pk)
    return as_now(rows) if has_locked(connections[rows.db], conversation.memory_id) else rows


def _check_reason(reason: object) -> None:
    if not isinstance(reason, str) or len(reason) > MAX_REASON_LENGTH or not is_storable(reason):
        raise ValueError(
            f"A reason must be a text of at most {MAX_REASON_LENGTH} characters that a database can store."
        )
