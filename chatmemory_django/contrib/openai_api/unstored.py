"""Answers of which nothing is stored: their history is the client's, and only the calls of models are recorded."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from django.http import HttpRequest

from chatmemory_django.chat import named
from chatmemory_django.chat.answers.exchange import AssistantEvent
from chatmemory_django.chat.answers.explained import explained, log_failure, refused
from chatmemory_django.chat.answers.ui_stream import DONE, UiStream
from chatmemory_django.chat.assistant import ClientsHistory
from chatmemory_django.chat.guards import GuardRefusedError
from chatmemory_django.chat.work import encoded
from chatmemory_django.contrib.openai_api.history import SentHistory
from chatmemory_django.contrib.openai_api.reading import ReadRequest
from chatmemory_django.messages import UserMessage

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser


class Unstored(NamedTuple):
    """A question of *user*, and the assistant that answers it for once."""

    assistant: Any
    memory_id: str
    """That of no conversation."""
    question: UserMessage
    user: AbstractBaseUser
    name: str
    """That of the assistant in the settings."""

    @classmethod
    def of(cls, request: HttpRequest, read: ReadRequest[Any], history: SentHistory) -> Unstored:
        """Return the last question of *history*; ``NotAllowedError`` if a guard refuses one of those before it."""
        user, name = read.user, read.name
        *earlier, last = history.turns
        key = str(uuid4())

        def asked() -> named.Asked:
            return named.Asked(id=key, memory_id=key, message=last.question, user=user, assistant=name, body=read.rest)

        assistant = named.assistant(name, request, asked)
        guarded = partial(assistant.guarded, key, options={"owner": user, "request": request})
        try:  # by who knows what was sent before: the client may have changed it
            before = [message for turn in earlier for message in (guarded(turn.question), *turn.answer)]
        except GuardRefusedError as exc:
            raise refused(exc) from None
        return cls(assistant.wished(read.wishes, ClientsHistory(before, last.answer)), key, last.question, user, name)

    async def begun(self, request: HttpRequest) -> AsyncGenerator[str, None]:
        """
        Return the answer as the AI SDK's stream, once the model has begun to answer.

        Raises:
            NotAllowedError: It has failed before.

        """
        labels = {"assistant": self.name} if self.name else {}
        events = self.assistant.astream(self.memory_id, self.question, owner=self.user, request=request, labels=labels)
        try:
            first = await anext(events, None)
        except Exception as exc:  # noqa: BLE001  # each has a status
            await events.aclose()
            log_failure(exc, self.memory_id)
            raise refused(exc) from None
        return self._pieces(first, events)

    async def _pieces(
        self, event: AssistantEvent | None, events: AsyncGenerator[AssistantEvent, None]
    ) -> AsyncGenerator[str, None]:
        ui = UiStream(uuid4().hex, {})
        try:
            async with aclosing(events):
                while event is not None:
                    yield encoded(ui.feed(event))
                    event = await anext(events, None)
        except Exception as exc:  # noqa: BLE001  # whatever it is, the response has begun
            log_failure(exc, self.memory_id)
            yield encoded(ui.error(explained(exc)[1])) + DONE
        else:
            yield encoded(ui.finish()) + DONE
