"""Responses that are stored: each is a run of the chat, and its output what that run has added to its conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import UUID

from chatmemory_django.chat.answers.stored import MAX_STEPS, STEPS, StoredAnswer, is_text
from chatmemory_django.chat.answers.ui_steps import Chunk
from chatmemory_django.chat.approvals.waiting import State, approvals_of
from chatmemory_django.chat.models import Run
from chatmemory_django.chat.orders import given_to
from chatmemory_django.chat.runs.streams import Maker
from chatmemory_django.chat.runs.tables import RunQuerySet, before
from chatmemory_django.chat.runs.taking import Given
from chatmemory_django.chat.ui_messages import ui_id
from chatmemory_django.chat.ui_messages.writing import answer_metadata, call_id
from chatmemory_django.contrib.openai_api.assistants import DEFAULT
from chatmemory_django.contrib.openai_api.errors import RefusedRequestError
from chatmemory_django.contrib.openai_api.history import named_turn
from chatmemory_django.contrib.openai_api.items import ConversationItems
from chatmemory_django.contrib.openai_api.responses import ResponseEvents, chunks_of, fields_of
from chatmemory_django.db.contexts import current
from chatmemory_django.db.moments import aware
from chatmemory_django.messages import AiMessage, MessageType, ToolExecutionResultMessage
from chatmemory_django.models import Conversation, Message

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

ANSWERED = (Run.State.DONE, Run.State.WAITING, Run.State.STOPPED)
"""The states of a run that is over, and whose answer is there."""

UNKNOWN = Given()
"""What is known of the request of a response that has ended."""

MAX_RUNS = 16
"""How many runs about one question are looked at: nearly always, the newest one has its answer."""

STATUSES: Mapping[str, str] = {
    Run.State.ASKED: "queued",
    Run.State.RUNNING: "in_progress",
    Run.State.FAILED: "failed",
    Run.State.STOPPED: "cancelled",
    Run.State.INTERRUPTED: "failed",
}
"""OpenAI's status of a response, by the state of its run; it is completed in any other."""

BROKEN = frozenset({Run.State.FAILED, Run.State.STOPPED, Run.State.INTERRUPTED})
"""The states of a run whose answer may have no end."""

FAILED: Chunk = {"type": "error", "errorText": "The answer failed."}
"""The chunk that ends a failed response, once its own words for that are gone."""


class StoredResponse(NamedTuple):
    """The response that is *run*, of *user*: as long as the run is kept, see ``RUN_SECONDS``."""

    run: Run
    maker: Maker

    @classmethod
    def of(cls, run: UUID, user: AbstractBaseUser) -> Self | None:
        """Return the response in a conversation of *user*; None if there is none."""
        found = _runs_of(user).filter(pk=run, conversation__owner=user.pk).first()
        return None if found is None or found.conversation.has_expired else cls._by(found, user)

    @classmethod
    def newest(cls, conversation: Conversation, user: AbstractBaseUser) -> Self | None:
        """Return the newest response in *conversation* of *user*, if it is in progress or its answer is there."""
        run = _runs_of(user).filter(conversation=conversation.pk).order_by("-created_at").first()
        is_there = run is not None and (run.active is not None or run.state in ANSWERED)
        return cls._by(run, user) if run is not None and is_there else None

    @classmethod
    def to(
        cls, question: Message, conversation: Conversation, user: AbstractBaseUser, since: float | None
    ) -> Self | None:
        """
        Return the response to *question* in *conversation* of *user* that is in progress, or whose answer is there.

        None if there is none that began in the seconds *since*: then the answer goes on, or is given once more.
        """
        runs = _runs_of(user).filter(conversation=conversation.pk).order_by("-created_at")
        asked = question.sequence
        active = runs.filter(active__isnull=False).first()
        if active is not None:
            is_new = active.question is None and active.next_sequence <= asked
            is_about = is_new or active.question == asked
            return cls._by(active, user) if is_about else None
        if not StoredAnswer.of(conversation, question).stands:
            return None
        runs = runs.filter(question=asked, state__in=ANSWERED)
        runs = runs if since is None else runs.filter(created_at__gte=before(since))
        found = (cls._by(run, user) for run in runs[:MAX_RUNS])
        return next((each for each in found if each._rows()), None)  # one may have given once more what was there

    @classmethod
    def _by(cls, run: Run, user: AbstractBaseUser) -> Self:
        return cls(run, Maker(run.conversation.memory_id, str(user.pk), run.id.hex, current.get()))

    def has_taken(self, outputs: Mapping[str, Any], decided: Sequence[str]) -> bool:
        """Return whether it has gone on with the *outputs*, by the ids of calls, and with calls that were *decided*."""
        results = takewhile(lambda row: row.type == MessageType.TOOL_EXECUTION_RESULT, self._rows())
        messages = [row.chat_message for row in results]
        taken = {each.id: each.text for each in messages if isinstance(each, ToolExecutionResultMessage)}
        calls = approvals_of(self.run.conversation).filter(pk__in=decided).exclude(state=State.WAITING)
        begun = calls.filter(sequence__lt=self.run.next_sequence, sequence__gt=self.run.question or 0)
        return begun.count() == len(set(decided)) and outputs.items() <= taken.items()

    @property
    def memory_id(self) -> str:
        """That of its conversation."""
        return self.maker.memory_id

    @property
    def is_active(self) -> bool:
        """Whether it is in progress."""
        return self.run.active is not None

    def events(self) -> ResponseEvents:
        """Return what makes its events. Only of one in progress, it is known what its request had besides the input."""
        run, conversation = self.run, self.run.conversation
        known: dict[str, Any] = {"conversation": {"id": conversation.memory_id}, "store": True}
        given = given_to(run, conversation) if self.is_active else UNKNOWN
        known |= {**fields_of(given.body), "instructions": given.wishes.context or None}
        created_at = aware(run.created_at).timestamp()
        name = run.assistant or DEFAULT
        return ResponseEvents(f"resp_{run.id.hex}", name, wishes=given.wishes, created_at=created_at, **known)

    def shown(self) -> dict[str, Any]:
        """Return it as it is now."""
        events, status = self.events(), STATUSES.get(self.run.state)
        if not self.is_active:
            for chunk in self.chunks():
                events.of(chunk)
        return events.response(status)

    def chunks(self) -> list[Chunk]:
        """Return the chunks of the AI SDK for what it has stored."""
        rows = [(row, row.chat_message) for row in self._rows() if row.type == MessageType.AI]
        by_sequence = {row.sequence: message for row, message in rows if isinstance(message, AiMessage)}
        *chunks, finish = chunks_of(list(by_sequence.values()), answer_metadata([row.metadata for row, _ in rows]))
        asked = approvals_of(self.run.conversation).filter(sequence__in=by_sequence)
        for approval in asked.order_by("sequence", "position"):
            call = by_sequence[approval.sequence].tool_execution_requests[approval.position]
            name = call_id(call.id, (), 1, approval.position)
            chunks += [
                {"type": "tool-input-start", "toolCallId": name, "toolName": call.name or ""},
                {"type": "tool-input-delta", "toolCallId": name, "inputTextDelta": call.arguments or "{}"},
                {"type": "tool-input-available", "toolCallId": name, "toolName": call.name or "", "input": {}},
            ]
            if not approval.is_for_client:
                chunks.append({"type": "tool-approval-request", "approvalId": str(approval.id), "toolCallId": name})
        return [*chunks, FAILED if STATUSES.get(self.run.state) == "failed" else finish]

    def input_items(self) -> list[dict[str, Any]]:
        """Return what was new in its input: a question, or the results of calls."""
        sequences = [self.run.question] if self.run.question is not None else []
        if self.run.question is not None and self.run.question < self.run.next_sequence:
            results = takewhile(lambda row: row.type == MessageType.TOOL_EXECUTION_RESULT, self._rows())
            sequences = [row.sequence for row in results] or sequences
        return ConversationItems(self.run.conversation, MessageType).of(sequences)

    def ids(self) -> list[dict[str, Any]]:
        """Return its question and its answer as the AI SDK's clients name them, to go on behind them."""
        conversation = self.run.conversation
        history = conversation.history(all_branches=True)
        question = history.filter(sequence=self.run.question or 0, type=MessageType.USER).first()
        if question is None:
            return []
        own = history.filter(client_message_id=self.run.id.hex).first()
        answer = StoredAnswer.of(conversation, question).id if own is None else ui_id(own)
        return named_turn(ui_id(question), answer)

    def delete(self) -> None:
        """Drop the response: it is not retrieved any more. Raises ``RefusedRequestError`` if it is in progress."""
        ended = Run.objects.using(self.maker.using).filter(pk=self.run.pk, active=None)
        if not ended.delete()[0]:
            raise RefusedRequestError(409, "The response is in progress; cancel it first.")

    def _rows(self) -> list[Message]:
        """Return what it has added to its conversation: up to its text, or to the calls that wait."""
        runs = Run.objects.using(self.maker.using).filter(conversation=self.run.conversation)
        following = runs.filter(created_at__gt=self.run.created_at).order_by("created_at")
        end = following.values_list("next_sequence", flat=True).first()
        rows = self.run.conversation.history(all_branches=True).filter(sequence__gte=self.run.next_sequence)
        if self.run.state in BROKEN:  # it has no text at which it ends
            asked = rows.filter(type=MessageType.USER, sequence__gt=self.run.question or self.run.next_sequence)
            others = asked.order_by("sequence").values_list("sequence", flat=True).first()
            end = min((each for each in (end, others) if each is not None), default=None)
        rows = rows if end is None else rows.filter(sequence__lt=end)
        waiting = set(approvals_of(self.run.conversation).values_list("sequence", flat=True))
        found = list[Message]()
        for row in rows.filter(type__in=STEPS).order_by("sequence")[:MAX_STEPS]:
            found.append(row)
            if is_text(row) or row.sequence in waiting:  # the next run may be dropped, or others may write there
                break
        return found


def _runs_of(user: AbstractBaseUser) -> RunQuerySet:
    """Return the runs in the database of *user*'s conversations, without what they were asked."""
    of_any = Maker("", str(user.pk), "")
    return Run.objects.using(of_any.using).defer("asked").select_related("conversation")
