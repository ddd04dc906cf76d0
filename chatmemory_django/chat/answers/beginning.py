"""How an answer begins: at the place of its question in the conversation, or with what was decided on its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from chatmemory_django.chat.answers.exchange import Exchange
from chatmemory_django.chat.answers.questions import Question, conversation_of, positioned, unanswered
from chatmemory_django.chat.answers.shown import Shown, followed, named_in
from chatmemory_django.chat.answers.stored import StoredAnswer, show_decided
from chatmemory_django.chat.approvals.resuming import Resume, Resumed, django_store
from chatmemory_django.chat.costs.ledger import Ledger
from chatmemory_django.chat.runs.leases import HandedOverError, Lease
from chatmemory_django.memory import ChatMemory
from chatmemory_django.messages import NewMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.operations.one_by_one import in_lock


class Beginning(NamedTuple):
    """What is known of an answer before anything is read of the conversation; see ``Assistant``."""

    memory: ChatMemory
    ledger: Ledger
    lease: Lease
    exchange: Callable[..., Exchange]
    """Returns the exchange, for a turn and a question."""
    client_message_id: str | None
    answer_id: str | None
    after: int | None
    shown: Sequence[Shown] | None
    is_early: bool

    def begun(
        self, message: str | UserMessage | Resume | Question | None, *, has_tools: bool, only_asks: bool
    ) -> Exchange:
        """
        Return the exchange of *message*, which goes on with what is stored of it, unless another process does.

        Raises:
            HandedOverError: A person answers in the conversation, or is waited for: then a question is only stored.

        """
        while True:
            try:
                exchange = self._begun(message, has_tools=has_tools, only_asks=only_asks)
                self._check(exchange)
            except HandedOverError:
                if self.left(message):
                    raise
            else:
                return exchange

    def _check(self, exchange: Exchange) -> None:
        """Raise ``HandedOverError`` where *exchange* needs no run, which is not taken then."""
        if self.lease.fence is None and exchange.turn.is_handed_over:
            raise HandedOverError(self.memory.id)

    def left(self, message: str | UserMessage | Resume | Question | None) -> bool:
        """
        Store the question *message*, unless it is stored, for the person who answers; return whether one still does.

        Nothing is stored of what is no question, or if the assistant answers again.
        """
        memory, named = self.memory, django_store(self.memory).named(self.memory.id)

        def store(conversation: Conversation) -> bool:
            if conversation.state == Conversation.State.ASSISTANT:
                return False
            asked = Question(None) if message is None or isinstance(message, Resume) else self._question(message)[0]
            if asked.message is not None:
                new = NewMessage(asked.message, client_message_id=asked.client_message_id)
                # Not by ``add``: a memory that summarizes would call its model, while others wait for the conversation.
                memory.store.append_messages(memory.id, [new], memory.window(), after=asked.after)
            return True

        key = named.values_list("pk", flat=True).first()
        return key is not None and in_lock(named, key, store) is True

    def _begun(
        self, message: str | UserMessage | Resume | Question | None, *, has_tools: bool, only_asks: bool
    ) -> Exchange:
        memory, lease = self.memory, self.lease
        if self.ledger.is_strict or isinstance(message, Resume) or (has_tools and self._may_go_on(message)):
            lease.take(memory, goes_on=isinstance(message, Resume))
        if isinstance(message, Resume):
            self.ledger.check()
            return self._resumed(Resumed(memory, message, lease.fence))
        question, answer_id = self._question(message)
        stored = question.stored
        decided = None if stored is None or only_asks or not stored.is_decided else stored
        if decided is None and stored is not None and stored.stands:
            stored.show(memory)
            return self.exchange(memory.turn(), question)
        self.ledger.check()
        if decided is not None:
            decided.show(memory)
            return self._resumed(Resumed(memory, Resume(about=decided.about), lease.take(memory, goes_on=True)))
        begun = None if stored is None else stored.begun()
        return self.exchange(memory.turn(after=question.after, begun=begun).begin(), question, answer_id=answer_id)

    def _may_go_on(self, message: str | UserMessage | Question | None) -> bool:
        """
        Return whether something may be stored of the question already, or is stored before the model is asked: then the
        conversation is taken first, and otherwise once the model calls a tool.
        """
        is_named = bool(self.client_message_id or self.answer_id or self.after is not None)
        return is_named or message is None or self.is_early

    def _resumed(self, resumed: Resumed) -> Exchange:
        """Return the exchange of an answer that goes on, or of one about calls that other messages follow."""
        memory, stored = self.memory, StoredAnswer.before(*resumed.asked_before)
        question = Question(None) if stored is None else Question(stored.asked())
        if stored is not None and resumed.waiting is not None:
            question = Question(None, stored=stored._replace(pending=(), about=()))
        begun = None if stored is None else stored.asked_only()
        turn = memory.turn(begun=begun if question.stored is None else question.stored.begun()).begin()
        show_decided(resumed, turn)
        answer_id = self.answer_id if question.stored is None else None
        free_id = None if answer_id in named_in(memory, answer_id) else answer_id
        last_results = 0 if stored is None else stored.last_results
        return self.exchange(turn, question, answer_id=free_id, resumed=resumed, last_results=last_results)

    def _question(self, message: str | UserMessage | Question | None) -> tuple[Question, str | None]:
        """Return the question with its place in the conversation, and the id of the answer unless it is taken."""
        memory, answer_id, shown, is_of_new = self.memory, self.answer_id, self.shown, self.lease.is_of_new
        if isinstance(message, Question):
            return message, None if answer_id in named_in(memory, answer_id) else answer_id
        asked = UserMessage(message) if isinstance(message, str) else message
        question = Question(asked, self.after, self.client_message_id)
        if asked is None and question.after is None:
            raise ValueError("message and after are both None; give a message, or the message to answer as after.")
        names = () if is_of_new else (question.client_message_id, answer_id, *(each.id for each in shown or ()))
        taken = named_in(memory, *names)
        if question.after is None and (question.client_message_id or self.is_early):
            there = (lambda: None) if is_of_new else partial(conversation_of, memory)
            follows = None if shown is None or asked is None else partial(followed, shown, taken, there)
            question = positioned(question, memory, is_known=question.client_message_id in taken, follows=follows)
        elif asked is None:
            question = unanswered(question, memory)
        return question, None if answer_id in {question.client_message_id, *taken} else answer_id
