"""What can be done at a message of a conversation, and what to say of it: before, afterwards, and in the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from chatmemory_django import conf
from chatmemory_django.admin.downloads import UnavailableError
from chatmemory_django.admin.transcript import place_of
from chatmemory_django.admin.wording import visible
from chatmemory_django.memory import ChatMemory
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, MemoryStatus
from chatmemory_django.provider import get_chat_memory, known_window
from chatmemory_django.stores.django import DjangoChatMemoryStore


class Done(NamedTuple):
    """What was done."""

    words: str
    """What to write in the log, and to tell."""
    conversation: int
    """The key of the conversation to show next ..."""
    place: str = ""
    """... and where in it, as the end of an address."""


class MessageOperation:
    """Something that can be done at a message: to it, or to the conversation from there on."""

    name: str
    """Of its URL, and of the method of the admin that says who may do it."""
    label: str | Promise
    button: str | Promise
    is_destructive = False

    def suits(self, row: Any) -> bool:
        """Whether it can be done at *row*, a message with its status."""
        in_history: bool = row.in_history
        return in_history

    def is_offered(self, conversation: Conversation, row: Any) -> bool:
        """Whether that makes any difference."""
        return self.suits(row)

    def has_counterparts(self, row: Any) -> bool:
        """Whether it can be done to the calls or results that belong to *row* as well."""
        return False

    def consequences(self, conversation: Conversation, row: Any) -> Iterable[str]:
        """What will happen to *conversation*, in sentences."""
        raise NotImplementedError

    def do(self, conversation: Conversation, sequence: int, *, with_counterparts: bool) -> Done:
        """Do it at the message *sequence*."""
        raise NotImplementedError


class Rewind(MessageOperation):
    """Go on from the message; what came later is a branch."""

    name = "rewind"
    label = gettext_lazy("Rewind to here")
    button = gettext_lazy("Yes, rewind")

    def is_offered(self, conversation: Conversation, row: Any) -> bool:
        head = conversation.parent_sequence
        return self.suits(row) and row.sequence != (conversation.next_sequence - 1 if head is None else head)

    def consequences(self, conversation: Conversation, row: Any) -> Iterable[str]:
        if row.on_path:
            later = conversation.history().filter(sequence__gt=row.sequence).count()
            yield ngettext(
                "%(messages)d message that came later leaves the memory, and is on another branch.",
                "%(messages)d messages that came later leave the memory, and are on another branch.",
                later,
            ) % {"messages": later}
        yield from _consequences()

    def do(self, conversation: Conversation, sequence: int, *, with_counterparts: bool) -> Done:
        _relocated(conversation).rewind(sequence)
        return Done(_("Rewound to message #%(number)d.") % {"number": sequence}, conversation.pk)


class Switch(MessageOperation):
    """Go on along the branch of the message, behind its newest one."""

    name = "switch"
    label = gettext_lazy("Switch to this branch")
    button = gettext_lazy("Yes, switch")

    def is_offered(self, conversation: Conversation, row: Any) -> bool:
        return self.suits(row) and not row.on_path

    def consequences(self, conversation: Conversation, row: Any) -> Iterable[str]:
        yield _("The conversation goes on from the newest message that was said on from this one.")
        yield from _consequences()

    def do(self, conversation: Conversation, sequence: int, *, with_counterparts: bool) -> Done:
        newest = _relocated(conversation).switch(sequence)
        words = _("Switched to the branch of message #%(number)d: it goes on from #%(newest)d.")
        return Done(words % {"number": sequence, "newest": newest}, conversation.pk, place_of(sequence))


class Remove(MessageOperation):
    """Take the message out of the memory and the history."""

    name = "remove"
    label = gettext_lazy("Remove")
    button = gettext_lazy("Yes, remove")
    is_destructive = True

    def suits(self, row: Any) -> bool:
        return super().suits(row) or MemoryStatus(row.status).is_in_memory

    def has_counterparts(self, row: Any) -> bool:
        may_belong = row.type in {MessageType.AI, MessageType.TOOL_EXECUTION_RESULT}
        return may_belong and row.payload is not None and row.in_history  # a payload is what has calls and their ids

    def consequences(self, conversation: Conversation, row: Any) -> Iterable[str]:
        yield _("This message leaves the memory and the history: it is no longer shown, and not sent to the model.")
        yield _("What was said after it stays.")
        if not conf.keep_history():
            yield _("This site keeps no history: the messages are deleted for good.")
        yield _("This cannot be undone.")

    def do(self, conversation: Conversation, sequence: int, *, with_counterparts: bool) -> Done:
        store = DjangoChatMemoryStore(conversation._state.db)
        removed = store.remove(conversation.memory_id, sequence, with_results=with_counterparts)
        numbers = ", ".join(f"#{each}" for each in removed)
        words = ngettext("Removed message %(numbers)s.", "Removed messages %(numbers)s.", len(removed))
        return Done(words % {"numbers": numbers}, conversation.pk, place_of(sequence))


class Fork(MessageOperation):
    """Begin another conversation with a copy of what was said up to the message."""

    name = "fork"
    label = gettext_lazy("Fork from here")
    button = gettext_lazy("Yes, fork")

    def consequences(self, conversation: Conversation, row: Any) -> Iterable[str]:
        yield _("A new conversation begins with a copy of what was said up to this message, for the same owner.")
        yield _("This conversation stays as it is.")

    def do(self, conversation: Conversation, sequence: int, *, with_counterparts: bool) -> Done:
        forked = conversation.fork(through=sequence, window=known_window(conversation.memory_id))
        words = _("Forked from message #%(number)d as “%(memory_id)s”.")
        return Done(words % {"number": sequence, "memory_id": visible(forked.memory_id)}, forked.pk)


SWITCH = Switch()
MESSAGE_OPERATIONS: tuple[MessageOperation, ...] = (SWITCH, Rewind(), Fork(), Remove())
"""In the order in which they are offered."""


def _consequences() -> Iterable[str]:
    yield _("The memory becomes what fits of the conversation up to there, and the next message follows.")
    if conf.keep_history():
        yield _("Nothing is lost: the branch in use until now stays, and can be switched to.")
    else:
        yield _("This site keeps no history: the messages are deleted for good.")


def _relocated(conversation: Conversation) -> ChatMemory:
    """The memory of *conversation*, in its database; ``UnavailableError`` where the settings are invalid."""
    try:
        return get_chat_memory(conversation.memory_id, using=conversation._state.db)
    except (ImportError, TypeError, ValueError) as exc:
        raise UnavailableError(_("The settings of this memory are invalid: manage.py check says why.")) from exc
