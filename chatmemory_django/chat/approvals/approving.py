"""
Approvals of tool calls: who decides, and that an approved call is run at most once.

Each step locks the conversation, so that of several who click, of several processes, and of a question that is asked in
the meantime, one comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.utils import timezone
from msgspec.json import encode

from chatmemory_django.access import AccessPolicy
from chatmemory_django.chat.approvals.tables import MAX_REASON_LENGTH, ToolApproval
from chatmemory_django.chat.approvals.waiting import (
    EXPIRED,
    OWNERS,
    UNKNOWN,
    Waiting,
    approvals_of,
    can_run,
    has_died,
    waiting_answers,
)
from chatmemory_django.chat.model import CLIENT, OWNER, ApprovalRequested
from chatmemory_django.chat.ui_messages.reading import verbatim
from chatmemory_django.chat.ui_messages.writing import IS_JSON
from chatmemory_django.core.limits import is_storable
from chatmemory_django.core.tool_calls import NOT_RUN, tool_answers
from chatmemory_django.messages import ChatMessage, MessageType, ToolExecutionRequest, ToolExecutionResultMessage
from chatmemory_django.models import Conversation, ConversationQuerySet
from chatmemory_django.operations.one_by_one import in_lock, messages_of, write
from chatmemory_django.security import SecurityEvent, report

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser
    from django.http import HttpRequest

_T = TypeVar("_T")

State = ToolApproval.State

DENIED = "This call was not approved, so it was not run."
PASSED_OVER = "The user wrote something else instead of approving this call, so it was not run."
WITHDRAWN = "The conversation went on before this call, which was approved, was run. It is not run any more."
"""What the model reads of a call that has no result, or ``EXPIRED``, or ``UNKNOWN``."""

NO_OUTPUT = "The user's browser has sent no output of this call, and nobody waits for it any more."
"""The same of a call that ran in the client, if it has: that is not known."""

WAITS = "This call waits for approval by somebody else; it has not run yet."
RUNS = "This call was approved and runs now; its result is not known yet."
WAITS_FOR_CLIENT = "This call runs in the user's browser, which has not sent its output yet."
"""What the model reads of a call that is still open, while it answers another question."""


class NotPendingError(RuntimeError):
    """There is no such call that waits for a decision, or for its result: it was decided, it expired, or it is gone."""


class Decision(NamedTuple):
    """What was decided on the call with the approval *id*; the model reads the *reason* why it was denied."""

    id: UUID | str
    approved: bool
    reason: str = ""


class Output(NamedTuple):
    """
    What the client has as the output of the call with the request *id*: any JSON value, of which the model reads a text
    as it is; or, if it *is_error*, the text of that.
    """

    id: UUID | str
    value: Any
    is_error: bool = False


class Ended(NamedTuple):
    """A call that will not be run here, and what the model reads of it."""

    approval: ToolApproval
    result: ToolExecutionResultMessage


class Claim(NamedTuple):
    """What one caller alone is to do now: run the *approved* calls, and store the results of the *ended* ones."""

    conversation: Conversation
    waiting: Waiting | None
    """Their answer; None if all have results, but the model has not answered to them, below other messages."""
    caller: int
    """The message with them."""
    fence: int | None
    """That of the conversation since the caller has taken it, if it has."""
    approved: Sequence[ToolApproval] = ()
    ended: Sequence[Ended] = ()


class StillOpen(NamedTuple):
    """A message with *calls* that stay open while something else is answered: what the model reads by position."""

    calls: Sequence[ToolExecutionRequest]
    texts: dict[int, str]


class Closed(NamedTuple):
    """How many calls have *ended* since something else was asked, and which are still open."""

    ended: int
    still_open: Sequence[StillOpen]


User: TypeAlias = "AbstractBaseUser | AnonymousUser"

May: TypeAlias = Callable[[str], bool]
"""A function that returns whether somebody may decide on calls with this ``approve_by``."""


def may_decide(user: User | None, approve_by: str) -> bool:
    """Return whether *user*, who may decide on a conversation's calls, has what *approve_by* asks for in addition."""
    return approve_by in OWNERS or (user is not None and user.has_perm(approve_by))  # type: ignore[union-attr]  # users have it


def by_policy(policy: AccessPolicy, request: HttpRequest, conversation: Conversation) -> May:
    """
    Return whether the user of *request* may decide on the calls in *conversation*.

    For those of the owner, the access policy decides; others take their permission, and that the user may view it. What
    runs in the client is the owner's alone.
    """

    def may(approve_by: str) -> bool:
        if approve_by == CLIENT:
            return bool(conversation.owner_id == request.user.pk)
        if not may_decide(request.user, approve_by):
            return False
        allowed = policy.conversations(request, "approve" if approve_by == OWNER else "view")
        return allowed.using(conversation._state.db).filter(pk=conversation.pk).exists()

    return may


def request_approvals(
    using: str, conversation: int, sequence: int, asked: Iterable[tuple[int, ApprovalRequested]]
) -> None:
    """Ask for the approval of calls in a message that is being stored: *asked*, with their positions."""
    ToolApproval.objects.using(using).bulk_create(
        ToolApproval(
            id=each.id,
            conversation_id=conversation,
            sequence=sequence,
            position=position,
            approve_by=each.approve_by,
            asks=each.asks,
        )
        for position, each in asked
    )


def decide(
    conversations: ConversationQuerySet,
    memory_id: str,
    decisions: Sequence[Decision],
    by: User | None,
    may: May | None = None,
) -> list[ToolApproval]:
    """
    Record *decisions*, all or none, on calls in the conversation *memory_id*, made *by* a user, and return their
    approvals.

    Nothing is run. The same decision once more changes nothing. *may* is by default whether the user has the permission
    that a call asks for; that the user may decide on calls of the owner is for the caller to check.

    Raises:
        NotPendingError: One of the calls does not wait for a decision, or the opposite was decided.
        PermissionDenied: The user may not decide on one of the calls.
        ValueError: A reason is too long, or a database could not store it.

    """
    for decision in decisions:
        _check_reason(decision.reason)
    try:
        return _locked(conversations, memory_id, partial(_decide, decisions, by, may or partial(may_decide, by)))
    except (NotPendingError, PermissionDenied):
        report(SecurityEvent.DECISION, user=None if by is None else by.pk, memory_id=memory_id)
        raise


def claim(
    conversations: ConversationQuerySet,
    memory_id: str,
    named: Sequence[UUID | str] = (),
    fence: int | None = None,
    *,
    outputs: Sequence[Output] = (),
    more_of: Claim | None = None,
) -> Claim:
    """
    Return the decided calls of one answer, for the caller alone to run them: of that with one of the approvals *named*,
    or else of the newest answer or the oldest one that has any; with *more_of* what was claimed, of the same one only.

    Calls that have waited too long are not run. Without any, all calls have results, and the model is to be asked: for
    that, an answer that is named comes first, too.
    *fence* is that of the conversation since the caller has taken it for an answer: a process that has
    run a call there since before that is dead, and the call is not run again.
    Calls that have *outputs* end with them. That these are the owner's is for the caller to check.

    Raises:
        NotPendingError: No answer waits, or all that it waits for is decisions, outputs, or calls that run; or one of
            the *outputs* is of no call of this answer that waits for it.
        ValueError: One of them is no JSON, or a database could not store it.

    """
    given = {str(each.id): each for each in outputs}
    names = {*map(str, named), *given}
    return _locked(conversations, memory_id, partial(_claim, names, given, fence, more_of))


def check(
    conversations: ConversationQuerySet,
    memory_id: str,
    named: Sequence[UUID | str],
    fence: int | None,
    outputs: Sequence[Output],
) -> None:
    """Raise ``NotPendingError`` where ``claim`` would find nothing to do, but do nothing of it."""
    given = {str(each.id): each for each in outputs}
    _locked(conversations, memory_id, partial(_chosen, {*map(str, named), *given}, given, fence, None))


def release(claimed: Claim) -> None:
    """Let somebody else run the calls of *claimed*, which were approved, and none of which has begun."""
    for approval in claimed.approved:
        running = approvals_of(claimed.conversation).filter(pk=approval.pk, state=State.RUNNING, fence=approval.fence)
        running.update(state=State.WAITING)


def end(claimed: Claim, approval: ToolApproval) -> None:
    """
    Note that the call of *approval*, one of *claimed*, has its result: in the transaction that stores this.

    Raises:
        NotPendingError: The conversation has gone on without it.

    """
    conversation = Conversation.objects.using(claimed.conversation._state.db).get(pk=claimed.conversation.pk)
    history = messages_of(conversation).history().filter(sequence__gt=conversation.forgotten_through)
    rows = approvals_of(conversation).filter(pk=approval.pk, state=approval.state, fence=approval.fence)
    ended = {} if approval.decided_at else {"approved": approval.approved is True, "decided_at": timezone.now()}
    is_there = history.filter(sequence=approval.sequence).exists()
    if not (is_there and rows.update(state=State.ENDED, **ended)):
        raise NotPendingError("The conversation has gone on without the result of a call, which is not stored.")


def close(
    conversations: ConversationQuerySet,
    memory_id: str,
    store: Callable[[Sequence[ChatMessage]], object],
    may: May | None,
) -> Closed:
    """
    End the calls that wait for somebody who has written something else, and *may* decide on them; None ends none.

    Nothing of them is run any more. *store* is called with what the model will read, in the same transaction. Calls
    that wait for somebody else stay open.
    """
    try:
        return _locked(conversations, memory_id, partial(_close, store, may))
    except NotPendingError:
        return Closed(0, ())


def _locked(conversations: ConversationQuerySet, memory_id: str | None, do: Callable[[Conversation], _T]) -> _T:
    """Return the result of *do* on the conversation *memory_id*, locked; ``NotPendingError`` if it is not there."""
    named = conversations if memory_id is None else conversations.filter(memory_id=memory_id)
    key = named.order_by("pk").values_list("pk", flat=True).first()
    # In a tuple, since None stands for a conversation that is gone.
    found = None if key is None else in_lock(conversations, key, lambda conversation: (do(conversation),))
    if found is None:
        raise NotPendingError("There is no such conversation, or it has no call that waits.")
    return found[0]


def _decide(decisions: Sequence[Decision], by: User | None, may: May, conversation: Conversation) -> list[ToolApproval]:
    known: dict[str, ToolApproval] = {str(each.id): each for each in approvals_of(conversation)}
    waiting = {each.id for answer in waiting_answers(conversation) for each in answer.open}
    for decision in decisions:
        approval = known.get(str(decision.id))
        if approval is None or approval.is_for_client:
            raise NotPendingError("No call in this conversation waits for this approval.")
        if not may(approval.approve_by):
            raise PermissionDenied(f"The call of a tool is approved by {approval.approve_by!r}, and not by this user.")
        if approval.approved is decision.approved:
            continue
        if approval.id not in waiting:
            raise NotPendingError("The call of this approval does not wait any more.")
        if not approval.is_pending:
            how = "has expired" if approval.approved is None else "was decided before"
            raise NotPendingError(f"The approval {how}.")
        approval.approved, approval.reason = decision.approved, decision.reason
        approval.decided_at, approval.decided_by = timezone.now(), "" if by is None else str(by.pk)
        approval.conversation = conversation  # whose owner the reason is encoded for
        approval.save(using=approval._state.db, update_fields=["approved", "reason", "decided_at", "decided_by"])
        write(conversation)
    return [known[str(decision.id)] for decision in decisions]


def _chosen(
    named: set[str], given: Mapping[str, Output], fence: int | None, more_of: Claim | None, conversation: Conversation
) -> tuple[Waiting | None, int]:
    """Return the answer to go on with, None if only its text is to come, and the message with its calls."""
    answers = [each for each in waiting_answers(conversation) if more_of is None or _is_of(each, more_of)]
    answers.sort(key=lambda answer: (_lacks(answer.approvals, named), not answer.is_newest))
    chosen = next((answer for answer in answers if _to_do(answer, given, fence)), None)
    if chosen is None:
        chosen = next((answer for answer in answers if answer.is_newest and not answer.open), None)
    is_other = chosen is not None and named and _lacks(chosen.approvals, named)
    caller = _owed(conversation) if chosen is None or is_other else None
    if caller is None or (is_other and _lacks(approvals_of(conversation).filter(sequence=caller), named)):
        caller = None if chosen is None else chosen.caller.sequence
    else:  # of the one that is named, the results are stored, and only the text is to come
        chosen = None
    if caller is None:
        waits = "The answer waits for a decision, for an output, or for a call that runs."
        raise NotPendingError(waits if answers else "No answer here waits for an approval.")
    return chosen, caller


def _claim(
    named: set[str], given: Mapping[str, Output], fence: int | None, more_of: Claim | None, conversation: Conversation
) -> Claim:
    chosen, caller = _chosen(named, given, fence, more_of, conversation)
    write(conversation)
    approved, ended = [], []
    left = dict(given)
    for approval in [] if chosen is None else _to_do(chosen, given, fence):
        output = left.pop(str(approval.id), None) if approval.is_pending else None
        if chosen is not None and output is not None:
            approval.approved = True
            ended.append(Ended(approval, _result(chosen.call(approval), output)))
        elif can_run(approval, conversation):
            approval.state, approval.fence = State.RUNNING, fence or conversation.fence
            approval.save(using=approval._state.db, update_fields=["state", "fence"])
            approved.append(approval)
        elif chosen is not None:
            ended.append(Ended(approval, _unrun(chosen, approval)))
    if left:
        raise NotPendingError("No call of this answer waits for this output.")
    return Claim(conversation, chosen, caller, fence, approved, ended)


def _lacks(approvals: Iterable[ToolApproval], named: set[str]) -> bool:
    return named.isdisjoint(str(each.id) for each in approvals)


def _is_of(answer: Waiting, claimed: Claim) -> bool:
    """Return whether *answer* is the one that was *claimed*, and still goes on as that did: as itself, or not."""
    was_newest = claimed.waiting is not None and claimed.waiting.is_newest
    return answer.caller.sequence == claimed.caller and answer.is_newest == was_newest


def _to_do(answer: Waiting, given: Mapping[str, Output], fence: int | None) -> list[ToolApproval]:
    """Return the calls of *answer* with which it can go on: those decided or *given*, and those of dead processes."""
    return [
        each
        for each in answer.approvals
        if each.is_decided
        or (each.state == State.RUNNING and fence not in {None, each.fence})
        or (each.is_for_client and each.is_pending and str(each.id) in given)
    ]


def _result(call: ToolExecutionRequest, output: Output) -> ToolExecutionResultMessage:
    """Return the result of *call* that has this *output*; ``ValueError`` if it cannot be stored."""
    value = verbatim(output.value, "The output of a call")
    if isinstance(value, str):
        return ToolExecutionResultMessage(call.id, call.name, value, is_error=output.is_error or None)
    if output.is_error:
        raise ValueError("The output of a call that is an error must be a text.")
    return ToolExecutionResultMessage(call.id, call.name, encode(value).decode(), attributes={IS_JSON: True})


def _owed(conversation: Conversation) -> int | None:
    """Return the message with a call that was decided late, if its result ends the path, and nobody has answered it."""
    history = messages_of(conversation).history().exclude(type=MessageType.SYSTEM).defer("verbatim")
    newest, last = history.filter(type=MessageType.AI).last(), history.last()
    ended = approvals_of(conversation).filter(sequence__gt=conversation.forgotten_through, state=State.ENDED)
    callers = {
        sequence for sequence in ended.values_list("sequence", flat=True) if newest and sequence < newest.sequence
    }
    if not callers or last is None or last.type != MessageType.TOOL_EXECUTION_RESULT:
        return None
    rows = list(history.filter(sequence__gte=min(callers)))
    answers = tool_answers([row.chat_message for row in rows])
    caller = next((rows[index] for (index, _), result in answers.items() if rows[result] == last), None)
    return None if caller is None or caller.sequence not in callers else caller.sequence


def _close(store: Callable[[Sequence[ChatMessage]], object], may: May | None, conversation: Conversation) -> Closed:
    results: list[ToolExecutionResultMessage] = []
    still_open: list[StillOpen] = []
    for answer in waiting_answers(conversation):
        texts: dict[int, str] = {}
        for approval in answer.open:
            if may is None or not _ends(approval, may, conversation):
                waits = WAITS_FOR_CLIENT if approval.is_for_client else WAITS
                texts[approval.position] = RUNS if approval.state == State.RUNNING else waits
                continue
            results.append(_unrun(answer, approval))
            if approval.approved is None:
                approval.approved, approval.decided_at = False, timezone.now()
            approval.state = State.ENDED
            approval.save(using=approval._state.db, update_fields=["approved", "decided_at", "state"])
        if texts:
            still_open.append(StillOpen(answer.calls, texts))
    if results:
        store(results)
    return Closed(len(results), still_open)


def _ends(approval: ToolApproval, may: May, conversation: Conversation) -> bool:
    """Return whether a call ends with the question of somebody who *may* decide on it, or would have ended anyway."""
    is_over = approval.approved is False or approval.has_expired or has_died(approval, conversation)
    return is_over or may(approval.approve_by)


def _ending(approval: ToolApproval) -> str:
    """Return what the model reads of a call that will not be run, or not be waited for."""
    if approval.state == State.RUNNING:
        return UNKNOWN
    if approval.is_for_client:
        return NO_OUTPUT
    if approval.has_expired:
        return EXPIRED
    if approval.approved is False:
        return f"{DENIED} The reason: {approval.reason}" if approval.reason else DENIED
    return WITHDRAWN if approval.approved else PASSED_OVER


def _unrun(answer: Waiting, approval: ToolApproval) -> ToolExecutionResultMessage:
    """Return the result of a call that nobody will run, or waits for: an error that is shown as a denial, if it is."""
    call, text = answer.call(approval), _ending(approval)
    attributes = {} if approval.approved or approval.is_for_client else {NOT_RUN: True}
    return ToolExecutionResultMessage(call.id, call.name, text, is_error=True, attributes=attributes)


def _check_reason(reason: object) -> None:
    if not isinstance(reason, str) or len(reason) > MAX_REASON_LENGTH or not is_storable(reason):
        raise ValueError(
            f"A reason must be a text of at most {MAX_REASON_LENGTH} characters that a database can store."
        )
