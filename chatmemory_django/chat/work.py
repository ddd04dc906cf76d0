"""How an answer of the chat is generated, in whichever process: its exchange, and the events of its stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from django.db import router
from django.http import HttpRequest
from django.utils.translation import gettext as _

from chatmemory_django import observing
from chatmemory_django.access import access_policy
from chatmemory_django.chat.answers.exchange import AssistantEvent, Exchange
from chatmemory_django.chat.answers.explained import log_failure, refused
from chatmemory_django.chat.answers.questions import Question, conversation_of
from chatmemory_django.chat.answers.rejections import Rejection
from chatmemory_django.chat.answers.returns import Text
from chatmemory_django.chat.answers.shown import Shown
from chatmemory_django.chat.answers.titles import TitleFunction, aentitle, entitle, first_words
from chatmemory_django.chat.answers.ui_steps import Chunk
from chatmemory_django.chat.answers.ui_stream import DONE, UiStream, decoded, encode, response_to
from chatmemory_django.chat.answers.ways import InEventLoop, Way
from chatmemory_django.chat.approvals.approving import May, by_policy, may_decide
from chatmemory_django.chat.approvals.resuming import Resume
from chatmemory_django.chat.approvals.waiting import shown_approvals
from chatmemory_django.chat.model import ChatModel
from chatmemory_django.chat.runs.answer import Answer
from chatmemory_django.chat.runs.answers import AWAY
from chatmemory_django.chat.runs.leases import Lease, State
from chatmemory_django.chat.threads import afterwards
from chatmemory_django.chat.ui_messages import message_sequence, to_ui_messages, ui_id
from chatmemory_django.chat.ui_messages.writing import OUTCOME_UNKNOWN
from chatmemory_django.db.threads import raisable
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.private import empty_frames
from chatmemory_django.stores.base import LeaseLostError

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser


class Answering(Protocol):
    """What an ``Assistant`` does, for modules that it uses."""

    model: ChatModel
    timeout: float | None
    keep_partial: bool
    title: TitleFunction | None
    name: str | None

    def begin(
        self,
        memory_id: object,
        message: Any,
        options: Any,
        answer: Text,
        lease: Lease,
        *,
        may: May | None = None,
        shown: Sequence[Shown] | None = None,
        greeting: str | None = None,
        only_asks: bool = False,
        is_guarded: bool = False,
    ) -> Exchange: ...

    def events(
        self, exchange: Exchange, way: Way, memory_id: object, options: Any
    ) -> AsyncGenerator[AssistantEvent, None]: ...

    def check_resume(self, memory_id: object, resume: Resume, owner: AbstractBaseUser | None, lease: Lease) -> None: ...


class Order(NamedTuple):
    """What *assistant* is to answer in a conversation: values that need no request."""

    assistant: Answering
    memory_id: str
    owner: AbstractBaseUser | None
    """That of the conversation."""
    message: UserMessage | Resume | Question | None
    """None for a question that is to be answered once more, which is *after* then."""
    client_message_id: str | None = None
    after: int | None = None
    """The message to continue from, if it is not the newest."""
    may: May | None = None
    """Whether who asks may decide on calls that wait in the conversation; by default, whether the owner may."""
    shown: Sequence[Shown] | None = None
    """What the page shows before the message, the nearest first; None if that is not known."""
    greeting: str | None = None
    """What the page shows in front of the first question, in the words of the site."""
    is_guarded: bool = False
    """Whether the message is as guards have left it."""
    name: str = ""
    """That of the assistant in the settings, where the work does not know it yet."""


class ChatWork:
    """
    How an *order* is worked off: its exchange, and the events of its stream, in which the answer is *answer_id*.

    *order* is called in the thread in which the answer begins, since it may read the database. *name* is that of the
    assistant in the settings, and *question* the message that is to have another answer. The functions of the site are
    given *request*, if there is one. If this *returns_message*, it keeps the one that is stored.
    """

    def __init__(
        self,
        order: Callable[[], Order],
        name: str,
        answer_id: str,
        request: HttpRequest | None = None,
        *,
        question: int | None = None,
        returns_message: bool = False,
    ) -> None:
        self.assistant = name
        self.question = question
        self._ordered = order
        self._order: Order | None = None
        self._request = request
        self._answer_id = answer_id
        self._ui = UiStream(answer_id)
        self._returns_message = returns_message
        self._has_evicted = self._is_stored = False
        self._missing: list[Chunk] = []
        self._exchange: Exchange | None = None
        self._context = copy_context() if observing.observers else None  # the request's, which the answer outlives
        self._operation: observing.Operation | None = None
        self.message: dict[str, Any] | None = None
        """The answer as a ``UIMessage``, if there is one."""

    def begin(self, answer: Answer) -> None:
        sent = decoded("".join(answer.events))
        if sent:
            self._ui = UiStream.going_on(sent)
        if answer.is_stopping or self._ui.has_ended:
            return
        order = self._order = self._ordered()
        if self._context is not None:
            self._operation = self._context.run(observing.Operation, "answer", assistant=order.assistant)
        with self._traced():
            if answer.is_handed_over and isinstance(order.message, Resume):
                order.assistant.check_resume(order.memory_id, order.message, order.owner, Lease(answer.taken))
                return
            self._exchange = order.assistant.begin(
                order.memory_id,
                order.message,
                self._options(order),
                Text(),
                Lease(answer.taken),
                may=order.may,
                shown=order.shown,
                greeting=order.greeting,
                only_asks=answer.is_handed_over,
                is_guarded=order.is_guarded,
            )
        stored = self._exchange.question.stored
        if answer.is_handed_over:
            answer.question = self._exchange.question_key
            answer.is_handed_over = stored is None or stored.is_decided or not stored.stands
        waiting = None if self._exchange.resumed is None else self._exchange.resumed.waiting
        if waiting is not None:  # the page has the answer so far
            self._answer_id = ui_id(waiting.rows[0])
            self._ui = UiStream(self._answer_id, {}, waiting.rows)
        elif stored is not None and stored.id is not None:  # it goes on under its own name
            self._answer_id = stored.id
            self._ui = UiStream(stored.id)
        if sent:  # what is stored was sent, or is missing
            rows = () if stored is None else stored.rows if stored.stands else stored.kept
            self._ui = UiStream.going_on(sent, rows)
            self._missing = self._ui.catch_up()
            self._exchange.stored_events.clear()

    def _options(self, order: Order) -> Mapping[str, Any]:
        return {
            "owner": order.owner,
            "request": self._request,
            "persist": "early",
            "client_message_id": order.client_message_id,
            "answer_id": self._answer_id,
            "after": order.after,
            "labels": {"assistant": name} if (name := order.name or self.assistant) else {},
        }

    async def make(self, answer: Answer) -> None:
        if begun := encoded([*self._ui.start(), *self._missing]):
            answer.put(begun)
        if self._exchange is None or self._order is None:
            return
        assistant = self._order.assistant
        way = InEventLoop(assistant.model.astream, assistant.timeout)
        events = assistant.events(self._exchange, way, self._order.memory_id, self._options(self._order))
        with self._traced():
            async with aclosing(events):
                async for event in events:
                    if new := self._ui.feed(event):
                        answer.put(encoded(new))

    def end(self, answer: Answer) -> str:
        with self._traced():
            last = self._end(answer)
        self._end_operation(answer)
        return last

    def give_up(self, answer: Answer) -> str:
        self._end_operation(answer)
        return self._last(answer)

    def _end_operation(self, answer: Answer) -> None:
        if self._operation is not None:
            self._operation.end(answer.failure)

    def _end(self, answer: Answer) -> str:
        order, exchange, waiting = self._order, self._exchange, ""
        if answer.state is State.ASKED and exchange is not None and exchange.is_complete:
            answer.state, answer.failure = State.DONE, None
        try:
            if order is not None and exchange is not None and not isinstance(answer.failure, LeaseLostError):
                keeps_part = answer.is_stopping or order.assistant.keep_partial
                finish = partial(exchange.finish, keeps_part=keeps_part, has_failed=not answer.is_stopping)
                self._has_evicted = raisable(finish)()
                self._is_stored = exchange.is_complete and not (exchange.was_stored or exchange.pending)
                answer.state = State.WAITING if exchange.pending else answer.state
                answer.question = exchange.question_key
                if self._is_stored and exchange.first and order.assistant.title is first_words:  # it takes no time
                    entitle(exchange.memory, *exchange.first, first_words)
                conversation = conversation_of(exchange.memory) if exchange.pending else None
                if conversation is not None:
                    may = self._may(conversation, order.owner)
                    for each in exchange.pending:  # they are the last events: a thread must not wake the listeners
                        waiting += encoded(self._ui.feed(each, is_others=not may(each.approve_by)))
            if self._returns_message:
                self.read_message()
        except Exception as exc:
            if isinstance(exc, AWAY) and not self._is_stored:
                raise
            answer.failure = exc  # a site's estimators and fields may raise anything
            empty_frames(exc)
        if exchange is not None:
            exchange.ledger.write()
        return waiting + self._last(answer)

    def read_message(self) -> None:
        """Read the ``message``, which another process may have stored."""
        self.message = None if self._order is None else self._stored_message(self._order)

    async def follow(self) -> None:
        exchange = self._exchange
        if exchange is None or self._order is None:
            return
        title = self._order.assistant.title
        with self._traced():
            if self._has_evicted:
                await afterwards(exchange.turn.afollow())
            if exchange.first and title is not None and title is not first_words and self._is_stored:
                await afterwards(aentitle(exchange.memory, *exchange.first, title))

    @property
    def rejected(self) -> Rejection | None:
        """Why the model's server has rejected the question, if it has."""
        return None if self._exchange is None else self._exchange.rejected

    def _traced(self) -> AbstractContextManager[object]:
        return nullcontext() if self._operation is None else self._operation.active()

    def _last(self, answer: Answer) -> str:
        exc = answer.failure
        if exc is not None:
            log_failure(exc, answer.maker.memory_id)
        if self._ui.has_ended:  # another process has sent that
            return ""
        if exc is not None:
            refusal = refused(exc, self.rejected)
            error = encoded(self._ui.error(str(refusal))) + DONE
            return error if self._request is not None else response_to(refusal) + error
        is_whole = self._exchange is not None and self._exchange.is_complete
        return encoded(self._ui.finish() if is_whole else self._ui.abort()) + DONE

    def _may(self, conversation: Conversation, owner: AbstractBaseUser | None) -> May:
        """Return whether who asks, without a request the owner, may decide on the calls in *conversation*."""
        if self._request is None:
            return partial(may_decide, owner)
        return by_policy(access_policy(), self._request, conversation)

    def _stored_message(self, order: Order) -> dict[str, Any] | None:
        """Return the answer as it is stored, all its rows as one message; None if there is none."""
        rows = Message.objects.using(router.db_for_write(Message))
        sequence = message_sequence(self._answer_id)
        which = {"client_message_id": self._answer_id} if sequence is None else {"sequence": sequence}
        named = rows.filter(conversation__memory_id=order.memory_id, **which).order_by()
        first = next(iter(named.values_list("conversation", "sequence")), None)
        if first is None:
            return None
        conversation, sequence = first  # as values: with a subquery, MariaDB reads the whole history
        answer = list(rows.history().filter(conversation=conversation, sequence__gte=sequence).order_by("sequence"))
        has_calls = any(row.payload for row in answer)  # without one, a message is only a text
        may = self._may(answer[0].conversation, order.owner) if has_calls else None
        approvals = shown_approvals(answer[0].conversation, answer, may) if has_calls else {}
        return to_ui_messages(answer, approvals, unknown=_(OUTCOME_UNKNOWN))[0]


def encoded(chunks: Iterable[dict[str, Any]]) -> str:
    """Return *chunks* as they are sent in a stream."""
    return "".join(map(encode, chunks))
