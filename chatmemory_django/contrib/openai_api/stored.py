"""Responses that are stored: each is a run of the chat, and its output what that run has added to its conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import UUID

from chatmemory_django.chat.answers.stored import StoredAnswer
from chatmemory_django.chat.answers.ui_steps import Chunk
from chatmemory_django.chat.models import Run, ToolApproval
from chatmemory_django.chat.runs.streams import Maker
from chatmemory_django.chat.ui_messages import ui_id
from chatmemory_django.chat.ui_messages.writing import answer_metadata, call_id
from chatmemory_django.contrib.openai_api.assistants import DEFAULT
from chatmemory_django.contrib.openai_api.errors import RefusedRequestError
from chatmemory_django.contrib.openai_api.items import ConversationItems
from chatmemory_django.contrib.openai_api.responses import ResponseEvents, chunks_of
from chatmemory_django.db.contexts import current
from chatmemory_django.db.moments import aware
from chatmemory_django.messages import AiMessage, MessageType
from chatmemory_django.models import Message

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

STATUSES: Mapping[str, str] = {
    Run.State.ASKED: "queued",
    Run.State.RUNNING: "in_progress",
    Run.State.FAILED: "failed",
    Run.State.STOPPED: "cancelled",
    Run.State.INTERRUPTED: "failed",
}
"""OpenAI's status of a response, by the state of its run; it is completed in any other."""


class StoredResponse(NamedTuple):
    """The response that is *run*, of *user*: as long as the run is kept, see ``RUN_SECONDS``."""

    run: Run
    maker: Maker

    @classmethod
    def of(cls, run: UUID, user: AbstractBaseUser) -> Self | None:
        """Return the response in a conversation of *user*; None if there is none."""
        maker = Maker("", str(user.pk), run.hex, current.get())
        rows = Run.objects.using(maker.using).defer("asked").select_related("conversation")
        found = rows.filter(pk=run, conversation__owner=user.pk).first()
        if found is None or found.conversation.has_expired:
            return None
        return cls(found, maker._replace(memory_id=found.conversation.memory_id))

    @property
    def is_active(self) -> bool:
        """Whether it is in progress."""
        return self.run.active is not None

    def events(self) -> ResponseEvents:
        """Return what makes its events."""
        known: dict[str, Any] = {"conversation": {"id": self.run.conversation.memory_id}, "store": True}
        created_at = aware(self.run.created_at).timestamp()
        return ResponseEvents(f"resp_{self.run.id.hex}", self.run.assistant or DEFAULT, created_at=created_at, **known)

    def shown(self) -> dict[str, Any]:
        """Return it as it is now."""
        events, status = self.events(), STATUSES.get(self.run.state)
        if not self.is_active:
            for chunk in self.chunks():
                events.of(chunk)
        response = events.response(status)
        if status == "failed":
            response["error"] = {"code": "server_error", "message": "The answer failed."}
        return response

    def chunks(self) -> list[Chunk]:
        """Return the chunks of the AI SDK for what it has stored."""
        rows = [(row, row.chat_message) for row in self._rows() if row.type == MessageType.AI]
        messages = [message for _, message in rows if isinstance(message, AiMessage)]
        *chunks, finish = chunks_of(messages, answer_metadata([row.metadata for row, _ in rows]))
        sequences = [row.sequence for row, _ in rows]
        asked = ToolApproval.objects.using(self.maker.using).filter(conversation=self.run.conversation)
        by_sequence = dict(zip(sequences, messages, strict=True))
        for approval in asked.filter(sequence__in=sequences).order_by("sequence", "position"):
            call = by_sequence[approval.sequence].tool_execution_requests[approval.position]
            name = call_id(call.id, (), 1, approval.position)
            chunks += [
                {"type": "tool-input-start", "toolCallId": name, "toolName": call.name or ""},
                {"type": "tool-input-delta", "toolCallId": name, "inputTextDelta": call.arguments or "{}"},
                {"type": "tool-input-available", "toolCallId": name, "toolName": call.name or "", "input": {}},
            ]
            if not approval.is_for_client:
                chunks.append({"type": "tool-approval-request", "approvalId": str(approval.id), "toolCallId": name})
        return [*chunks, finish]

    def input_items(self) -> list[dict[str, Any]]:
        """Return what was new in its input: a question, or the results of calls."""
        sequences = [self.run.question] if self.run.question is not None else []
        if self.run.question is not None and self.run.question < self.run.next_sequence:
            results = [row.sequence for row in self._rows() if row.type == MessageType.TOOL_EXECUTION_RESULT]
            sequences = results or sequences
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
        named = [("user", ui_id(question)), *([("assistant", answer)] if answer else [])]
        return [{"id": name, "role": role} for role, name in named]

    def delete(self) -> None:
        """Drop the response: it is not retrieved any more. Raises ``RefusedRequestError`` if it is in progress."""
        ended = Run.objects.using(self.maker.using).filter(pk=self.run.pk, active=None)
        if not ended.delete()[0]:
            raise RefusedRequestError(409, "The response is in progress; cancel it first.")

    def _rows(self) -> list[Message]:
        """Return what it has added to its conversation: all up to where the next run has begun."""
        runs = Run.objects.using(self.maker.using).filter(conversation=self.run.conversation)
        following = runs.filter(created_at__gt=self.run.created_at).order_by("created_at")
        end = following.values_list("next_sequence", flat=True).first()
        rows = self.run.conversation.history(all_branches=True).filter(sequence__gte=self.run.next_sequence)
        rows = rows if end is None else rows.filter(sequence__lt=end)
        kinds = (MessageType.AI, MessageType.TOOL_EXECUTION_RESULT)
        return list(rows.filter(type__in=kinds).order_by("sequence"))
