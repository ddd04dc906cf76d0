"""
Answers that are generated in the background, for which no request waits: begun here, and awaited, watched and stopped
in any process, by the id of the run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypedDict
from uuid import UUID, uuid4

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.db.transaction import TransactionManagementError

from chatmemory_django.chat import named
from chatmemory_django.chat.answers.stored import StoredAnswer, following, is_text
from chatmemory_django.chat.answers.ui_stream import error_in
from chatmemory_django.chat.approvals import ApprovalRequiredError
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.runs.answer import InterruptedAnswerError
from chatmemory_django.chat.runs.answers import answers
from chatmemory_django.chat.runs.background import background_loop
from chatmemory_django.chat.runs.following import LISTEN, Listening
from chatmemory_django.chat.runs.leases import Progress, State
from chatmemory_django.chat.runs.streams import INTERVAL, Maker, decoded, streams
from chatmemory_django.chat.runs.tables import Run
from chatmemory_django.chat.runs.taking import Given
from chatmemory_django.chat.work import Answering, ChatWork, Order
from chatmemory_django.core.limits import memory_key
from chatmemory_django.db.contexts import ThreadContext, current
from chatmemory_django.db.threads import in_background, in_thread
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.operations.one_by_one import messages_of
from chatmemory_django.stores.base import ConversationErasedError

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.http import HttpRequest


class AnswerFailedError(RuntimeError):
    """An answer that was generated in the background has failed; the text is what users are shown of it."""


class StartedRun:
    """
    The run of an answer that is generated in the background, in whichever process; *id* is enough to find it again.

    It is in the database *using*, by default that of conversations. None of its methods needs the process that has
    started it.
    """

    def __init__(self, id: UUID | str, *, using: str | None = None) -> None:
        self.id = id if isinstance(id, UUID) else UUID(id)
        self._using = using or router.db_for_write(Conversation)
        self._noted_at = float("-inf")

    def __repr__(self) -> str:
        return f"StartedRun({str(self.id)!r})"

    @property
    def state(self) -> State:
        """How far it is now; reading it reads the database."""
        return State(self._run().state)

    def result(self, timeout: float | None = None) -> str:
        """
        Wait for the end of the answer, and return its text, also if it has gone on since it waited for a decision.

        Raises:
            TimeoutError: It has not ended after *timeout* seconds; it goes on.
            AnswerFailedError: It has failed.
            ApprovalRequiredError: It waits for the approval of calls, or for their outputs.
            InterruptedAnswerError: It was stopped, or its process is dead, and no other one goes on with it.
            ConversationErasedError: The conversation was erased, or the run was deleted, long after its end.

        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self._has_ended():
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"The answer has not ended after {timeout} seconds.")
            time.sleep(INTERVAL)
        return self._result()

    async def aresult(self, timeout: float | None = None) -> str:
        """See ``result``."""
        async with asyncio.timeout(timeout):
            while not await in_thread(self._has_ended):
                await asyncio.sleep(INTERVAL)
        return await in_thread(self._result)

    def stream(self) -> Generator[str, None, None]:
        """
        Yield the events of the answer from its beginning to its end, in the AI SDK's UI message stream.

        They are kept until a minute after the end. Without an end, this raises ``InterruptedAnswerError``.
        """
        listening, is_last = self._listening(), False
        while not is_last:
            events, is_last = self._events(listening)
            yield from events
            if not is_last:
                time.sleep(INTERVAL)

    async def astream(self) -> AsyncGenerator[str, None]:
        """See ``stream``."""
        listening, is_last = await in_thread(self._listening), False
        while not is_last:
            events, is_last = await in_thread(self._events, listening)
            for each in events:
                yield each
            if not is_last:
                await asyncio.sleep(INTERVAL)

    def stop(self) -> None:
        """Have the answer stopped, in whichever process, without waiting for it; what has arrived of it is stored."""
        if not leases.withdraw(self._using, self.id):
            leases.stop(self._using, self.id)

    async def astop(self) -> None:
        """See ``stop``."""
        await in_thread(self.stop)

    def _run(self) -> Run:
        found = Run.objects.using(self._using).select_related("conversation").filter(pk=self.id).first()
        if found is None:
            gone = f"There is no run {self.id}: its conversation was erased, or it ended long ago."
            raise ConversationErasedError(gone)
        return found

    def _maker(self) -> Maker:
        conversation = self._run().conversation
        owner = "" if conversation.owner_id is None else str(conversation.owner_id)
        return Maker(conversation.memory_id, owner, self.id.hex, current.get())

    def _listening(self) -> Listening:
        return Listening(streams(), self._using, self._maker())

    def _events(self, listening: Listening) -> tuple[Sequence[str], bool]:
        """Return the new events, together, and whether they are the last ones."""
        found, events = listening.read()
        progress = self._waited(found)
        if progress is Progress.LOST and not events:
            raise InterruptedAnswerError("The process that generated the answer is gone.")
        return [events] if events else [], progress is Progress.ENDED

    def _has_ended(self) -> bool:
        progress, _ = leases.progress(self._using, self.id)
        return self._waited(progress) is not Progress.RUNS

    def _waited(self, progress: Progress) -> Progress:
        """
        Return its *progress*; what nobody works on runs, if that is for workers to do, and is lost if not.

        Who waits for it listens: another question does not stop it then.
        """
        if progress in {Progress.RUNS, Progress.LEFT} and time.monotonic() - self._noted_at >= LISTEN:
            self._noted_at = time.monotonic()
            leases.note_listener(self._using, self.id)
        if progress is not Progress.LEFT:
            return progress
        return Progress.RUNS if chat_settings().has_workers else Progress.LOST

    def _result(self) -> str:
        run = self._run()
        if run.state == State.FAILED:
            raise AnswerFailedError(self._error())
        answer = self._answer(run)
        if run.state == State.WAITING and answer is not None and answer.pending:
            raise ApprovalRequiredError(answer.pending)
        has_gone_on = run.state == State.WAITING and answer is not None and answer.has_ended
        if run.state != State.DONE and not has_gone_on:
            raise InterruptedAnswerError(f"The answer has no end: its run is {run.state}.")
        return "" if answer is None else self._text(answer)

    def _text(self, answer: StoredAnswer) -> str:
        """Return the last text of *answer*: others may have added messages since the question."""
        texts = [row for row in following(answer.conversation, answer.question) if is_text(row)]
        own = [row for row in texts if row.client_message_id == self.id.hex]
        if not own and answer.has_ended:
            own = [row for row in answer.rows if is_text(row)]
        return next((row.text or "" for row in [*own[-1:], *texts]), "")

    def _answer(self, run: Run) -> StoredAnswer | None:
        question = messages_of(run.conversation).filter(sequence=run.question or 0).first()
        return None if question is None else StoredAnswer.of(run.conversation, question)

    def _error(self) -> str:
        """Return what users are shown of the failure, as long as that is kept."""
        maker = self._maker()
        return str(error_in("".join(decoded(maker, streams().read(maker, 0)))) or "The answer has failed.")


class StartOptions(TypedDict, total=False):
    """The options of ``Assistant.start``; see there."""

    owner: AbstractBaseUser | None
    request: HttpRequest | None
    client_message_id: str | None
    after: int | None


def name_of(assistant: Answering) -> str:
    """Return the name of *assistant* in the settings; ``ImproperlyConfigured`` if it is not there."""
    names: list[str] = ["", *chat_settings().ASSISTANTS]
    for name in names:
        if named.configured(name) is assistant:
            return name
    raise ImproperlyConfigured(
        "An answer in the background is generated by whichever process, which finds the assistant by its name: name it "
        "in CHATMEMORY['CHAT']['ASSISTANT'] or ['ASSISTANTS'] to start it. One that a function there returns has no "
        "name of its own."
    )


def start(
    assistant: Answering, memory_id: object, message: str | UserMessage | None, options: StartOptions
) -> Future[StartedRun]:
    """
    Begin an answer in this process's event loop for those that no request waits for; see ``Assistant.start``.

    It is generated there, or handed over to workers, by the setting ``RUNS``.
    """
    owner, request = options.get("owner"), options.get("request")
    is_for_workers = chat_settings().has_workers
    name, context = name_of(assistant), current.get() or ThreadContext.of(request)
    owner_key = "" if owner is None else str(owner.pk)
    using = router.db_for_write(Conversation, owner_key=owner_key)
    if connections[using].in_atomic_block:  # it could wait, without end, for what this transaction has locked
        raise TransactionManagementError(
            f"An answer in the background cannot begin within a transaction in the database {using!r}, in which its "
            "process does not see what this one has stored: call start when it has ended, by transaction.on_commit."
        )
    maker = Maker(memory_key(memory_id), owner_key, uuid4().hex, context)
    question = UserMessage(message) if isinstance(message, str) else message
    order = Order(assistant, maker.memory_id, owner, question, options.get("client_message_id"), options.get("after"))
    work = ChatWork(lambda: order, name, maker.answer_id, None if is_for_workers else request)

    async def begin() -> StartedRun:
        given = Given(chat_id=maker.memory_id, user=owner_key, is_another=question is None)
        with in_background(context):
            answer = await answers().begin(maker, work, wait=0, given=given, hands_over=is_for_workers)
            if answer.was_refused and answer.failure is not None:
                await answers().stop(maker)
                raise answer.failure
        return StartedRun(UUID(maker.answer_id), using=using)

    return asyncio.run_coroutine_threadsafe(begin(), background_loop())
