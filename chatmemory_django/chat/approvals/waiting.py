"""
Which calls of tools wait for a decision, or to be run, in a conversation.

A call waits as long as it is on the path: whatever was asked and answered since, unless that ended the waiting, or the
memory was cleared. One of the owner has to be in the memory as well, to be decided and to be run, since a question ends
only what it finds there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import Q

from chatmemory_django.chat.approvals.tables import ToolApproval
from chatmemory_django.chat.model import CLIENT, OWNER, ApprovalRequested
from chatmemory_django.chat.ui_messages import Approval
from chatmemory_django.db.transactions import as_now, has_locked
from chatmemory_django.messages import AiMessage, MessageType, ToolExecutionRequest
from chatmemory_django.models import Conversation, ConversationQuerySet, Message
from chatmemory_django.operations.one_by_one import messages_of

State = ToolApproval.State

OWNERS = (OWNER, CLIENT)
"""What ``approve_by`` is for calls that wait for the owner of their conversation."""

BESIDE_MEMORY = ~Q(approve_by__in=OWNERS) | Q(approved__isnull=False)
"""The calls that wait also if they have left the memory."""

EXPIRED = "The time to approve and run this call has passed, so it was not run."
UNKNOWN = "This call was approved, and interrupted while it ran: its outcome is unknown. It is not run again."
"""What the model reads, and the page shows, of an approved call that was not run in time, or whose process died."""


class Waiting(NamedTuple):
    """An answer that waits, or has waited, for approvals."""

    rows: Sequence[Message]
    """The answer so far if it is the newest of the path; only then does it go on as itself."""
    caller: Message
    """The message of the model with the calls, ..."""
    calls: Sequence[ToolExecutionRequest]
    approvals: Sequence[ToolApproval]
    """Those of its calls that need one."""

    @property
    def is_newest(self) -> bool:
        """Whether nothing but its results follows the calls."""
        return bool(self.rows)

    @property
    def open(self) -> list[ToolApproval]:
        """The approvals of the calls that have no result yet."""
        return [each for each in self.approvals if each.is_open]

    def call(self, approval: ToolApproval) -> ToolExecutionRequest:
        """Return the stored call of *approval*."""
        return self.calls[approval.position]

    def request(self, approval: ToolApproval) -> ApprovalRequested:
        """Return *approval* as the event that asks for it."""
        return ApprovalRequested(approval.id, self.call(approval), approval.approve_by, approval.asks)


def waiting_answers(conversation: Conversation) -> list[Waiting]:
    """
    Return the answers on the path that wait for approvals, oldest first, and the newest one if it has waited for some.

    None was cleared, or is on another branch.
    """
    history = messages_of(conversation).history().defer("verbatim")
    newest = history.filter(type=MessageType.AI).last()
    if newest is None:
        return []
    is_remembered = Q(sequence__gte=conversation.window_start) | BESIDE_MEMORY
    found: dict[int, list[ToolApproval]] = {}
    for approval in approvals_of(conversation).filter(is_remembered, sequence__gt=conversation.forgotten_through):
        found.setdefault(approval.sequence, []).append(approval)
    waiting = [key for key, each in found.items() if key == newest.sequence or any(one.is_open for one in each)]
    callers = history.filter(sequence__in=waiting, type=MessageType.AI) if waiting else ()
    rows = _newest_answer(conversation, newest) if newest.sequence in waiting else ()
    return [
        Waiting(rows if caller.sequence == newest.sequence else (), caller, calls, found[caller.sequence])
        for caller in callers
        if (calls := _calls(caller))
    ]


def pending_calls(
    conversation: Conversation, *, in_client: bool = False
) -> list[tuple[ToolApproval, ToolExecutionRequest]]:
    """Return the calls of *conversation* that wait for a decision or, *in_client*, for an output."""
    answers = waiting_answers(conversation)
    pending = [(each, answer.call(each)) for answer in answers for each in answer.approvals if each.is_pending]
    return [(each, call) for each, call in pending if each.is_for_client is in_client]


def newest_waiting(conversation: Conversation) -> Waiting | None:
    """Return the answer at the end of the path if it waits, or has waited, for approvals."""
    return next((answer for answer in waiting_answers(conversation) if answer.is_newest), None)


def waiting_in(conversation: Conversation, rows: Iterable[Message]) -> Waiting | None:
    """Return the answer of which *rows* are, if it waits or, at the end of the path, has waited for approvals."""
    answers = {row.sequence: row for row in rows if row.type == MessageType.AI}
    if all(row.on_path for row in answers.values()):
        return next((each for each in waiting_answers(conversation) if each.caller.sequence in answers), None)
    caller = answers[max(answers)]  # on another branch, to which the conversation would have to switch
    waiting = Waiting((), caller, _calls(caller), list(approvals_of(conversation).filter(sequence=caller.sequence)))
    return waiting if waiting.open else None


def can_go_on(answer: Waiting, conversation: Conversation) -> bool:
    """Return whether any of the calls of *answer* was decided, or was interrupted, and the model does not know yet."""
    return any(each.is_decided or has_died(each, conversation) for each in answer.approvals)


def can_run(approval: ToolApproval, conversation: Conversation) -> bool:
    """Return whether a call was approved, and is to be run: one of the owner is not once it has left the memory."""
    is_remembered = approval.approve_by not in OWNERS or approval.sequence >= conversation.window_start
    return bool(approval.approved) and approval.is_decided and not approval.has_expired and is_remembered


def has_died(approval: ToolApproval, conversation: Conversation) -> bool:
    """Return whether the process that ran a call is dead, so that nobody will store its result."""
    if approval.state != State.RUNNING:
        return False
    runs: Any = conversation.runs  # of a higher layer
    return approval.fence < conversation.fence or not runs.db_manager(conversation._state.db).alive().exists()


def ids_beside_memory(conversations: ConversationQuerySet) -> set[str | None]:
    """
    Return the ids of the calls that wait in *conversations*, which is one at most, also if its memory has lost them.

    Those of the owner are not among them until they were decided, since they wait in the memory alone.
    """
    approvals = ToolApproval.objects.using(conversations.db).filter(conversation__in=conversations.values("pk"))
    waiting = list(approvals.exclude(state=State.ENDED).filter(BESIDE_MEMORY).select_related("conversation"))
    if not waiting:
        return set()
    rows = messages_of(waiting[0].conversation).defer("verbatim")
    callers = rows.filter(sequence__in={each.sequence for each in waiting})
    calls = {row.sequence: _calls(row) for row in callers}
    return {calls[each.sequence][each.position].id for each in waiting if calls.get(each.sequence)}


def shown_approvals(
    conversation: Conversation, messages: Iterable[Any], may: Callable[[str], bool] | None = None
) -> dict[tuple[int, int], Approval]:
    """
    Return the approvals of the calls in *messages*, rows of *conversation*, by sequence and position.

    *may* is whether the user for whom they are may decide on a call with this ``approve_by``; by default, on each.
    """
    callers = [row.sequence for row in messages if getattr(row.chat_message, "tool_execution_requests", ())]
    found = list(approvals_of(conversation).filter(sequence__in=callers)) if callers else []
    answers = waiting_answers(conversation) if any(approval.is_open for approval in found) else []
    waiting = {answer.caller.sequence for answer in answers}
    dead = {each.id for each in found if has_died(each, conversation)}
    return {
        (each.sequence, each.position): Approval(
            str(each.id),
            each.approved,
            each.reason,
            each.sequence in waiting and each.is_open and not each.has_expired and each.id not in dead,
            UNKNOWN if each.id in dead else EXPIRED if each.approved and each.has_expired else "",
            may is not None and each.is_pending and not may(each.approve_by),
            each.is_for_client,
            each.asks,
        )
        for each in found
    }


def approvals_of(conversation: Conversation) -> Any:
    """Return a queryset of the approvals in *conversation*, as of now if it is locked."""
    rows = ToolApproval.objects.using(conversation._state.db).filter(conversation=conversation.pk)
    return as_now(rows) if has_locked(connections[rows.db], conversation.memory_id) else rows


def _newest_answer(conversation: Conversation, caller: Message) -> Sequence[Message]:
    """Return the answer that ends with *caller* and results; empty if something else follows it."""
    history = messages_of(conversation).history().defer("verbatim").exclude(type=MessageType.SYSTEM)
    asked = history.filter(type=MessageType.USER, sequence__lt=caller.sequence).last()
    rows = list(history.filter(sequence__gt=0 if asked is None else asked.sequence))
    following = [row for row in rows if row.sequence > caller.sequence]
    is_end = all(row.type == MessageType.TOOL_EXECUTION_RESULT for row in following)
    return rows if is_end else ()


def _calls(row: Message) -> Sequence[ToolExecutionRequest]:
    message = row.chat_message
    return message.tool_execution_requests if isinstance(message, AiMessage) else ()
