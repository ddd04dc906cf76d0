"""Operations on a message of a conversation, with the texts of their confirmations and log entries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from chatmemory_django import conf
from chatmemory_django.admin.downloads import NotPossibleError
from chatmemory_django.admin.navigation import link_to
from chatmemory_django.memory import ChatMemory
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, MemoryStatus
from chatmemory_django.operations import admin_log, fork
from chatmemory_django.provider import get_chat_memory, known_window
from chatmemory_django.stores.base import PinError
from chatmemory_django.stores.django import DjangoChatMemoryStore


class Done(NamedTuple):
    """The result of an operation on a message."""

    words: str
    """The text for the log and for the user."""
    conversation: int
    """The key of the conversation to show next ..."""
    link: str = ""
    """... and which message of it, as the end of a URL."""


class MessageOperation:
    """An operation on a message, or on the conversation from that message on."""

    name: str
    """Its name in URLs and in the admin's ``has_…_permission`` method."""
    label: str | Promise
    button: str | Promise
    is_destructive = False

    def suits(self, row: Any) -> bool:
        """Return whether it is possible on *row*, a message with its status."""
        in_history: bool = row.in_history
        return in_history

    def is_offered(self, conversation: Conversation, row: Any) -> bool:
        """Return whether it is possible on *row* and would change anything."""
        return self.suits(row)

    def has_counterparts(self, row: Any) -> bool:
        """Return whether it can include the tool calls or results that belong to *row*."""
        return False

    def consequences(self, conversation: Conversation, row: Any) -> Iterable[str]:
        """Yield sentences that describe what will happen to *conversation*."""
        raise NotImplementedError

    def do(self, conversation: Conversation, sequence: int, *, with_counterparts: bool) -> Done:
        """Run it on the message *sequence*."""
        raise NotImplementedError


class Rewind(MessageOperation):
    """Continue the conversation from the message; later messages become a branch."""

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
                "%(messages)d later message will leave the memory, and will be on another branch.",
                "%(messages)d later messages will leave the memory, and will be on another branch.",
                later,
            ) % {"messages": later}
        yield from _consequences()

    def do(self, conversation: Conversation, sequence: int, *, with_counterparts: bool) -> Done:
        _memory_of(conversation).rewind(sequence)
        return Done(admin_log.REWOUND % {"number": sequence}, conversation.pk)


class Switch(MessageOperation):
    """Continue the conversation from the newest message on the branch of the message."""

    name = "switch"
    label = gettext_lazy("Switch to this branch")
    button = gettext_lazy("Yes, switch")

    def is_offered(self, conversation: Conversation, row: Any) -> bool:
        return self.suits(row) and not row.on_path

    def consequences(self, conversation: Conversation, row: Any) -> Iterable[str]:
        yield _("The conversation will continue from the newest message that follows this one.")
        yield from _consequences()

    def do(self, conversation: Conversation, sequence: int, *, with_counterparts: bool) -> Done:
        newest = _memory_of(conversation).switch(sequence)
        return Done(admin_log.SWITCHED % {"number": sequence, "newest": newest}, conversation.pk, link_to(sequence))


class Pin(MessageOperation):
    """Keep the message in the memory, whatever leaves it."""

    name = "pin"
    label = gettext_lazy("Pin")
    button = gettext_lazy("Yes, pin")

    def suits(self, row: Any) -> bool:
        return super().suits(row) and row.on_path and row.type != MessageType.SYSTEM

    def is_offered(self, conversation: Conversation, row: Any) -> bool:
        return self.suits(row) and not row.is_pinned

    def consequences(self, conversation: Conversation, row: Any) -> Iterable[str]:
        yield _("This message, with the tool calls or results that belong to it, will stay in the memory.")
        yield _("What else is in the memory may leave it earlier.")

    def do(self, conversation: Conversation, sequence: int, *, with_counterparts: bool) -> Done:
        try:
            pinned = _memory_of(conversation).pin(sequence)
        except PinError as exc:
            raise NotPossibleError(
                _("Message #%(number)d cannot be pinned: %(reason)s")
                % {
                    "number": sequence,
                    "reason": exc,
                }
            ) from exc
        return Done(admin_log.pinned(pinned), conversation.pk, link_to(sequence))


class Unpin(MessageOperation):
    """Keep the message in the memory no longer than others."""

    name = "unpin"
    label = gettext_lazy("Unpin")
    button = gettext_lazy("Yes, unpin")

    def is_offered(self, conversation: Conversation, row: Any) -> bool:
        return self.suits(row) and row.is_pinned

    def consequences(self, conversation: Conversation, row: Any) -> Iterable[str]:
        yield _("This message, with the tool calls or results that belong to it, will leave the memory like others.")

    def do(self, conversation: Conversation, sequence: int, *, with_counterparts: bool) -> Done:
        return Done(admin_log.unpinned(_memory_of(conversation).unpin(sequence)), conversation.pk, link_to(sequence))


class Remove(MessageOperation):
    """Remove the message from the memory and the history."""

    name = "remove"
    label = gettext_lazy("Remove")
    button = gettext_lazy("Yes, remove")
    is_destructive = True

    def suits(self, row: Any) -> bool:
        return super().suits(row) or MemoryStatus(row.status).is_in_memory

    def has_counterparts(self, row: Any) -> bool:
        may_belong = row.type in {MessageType.AI, MessageType.TOOL_EXECUTION_RESULT}
        return may_belong and row.payload is not None and row.in_history  # tool calls and their ids are in the payload

    def consequences(self, conversation: Conversation, row: Any) -> Iterable[str]:
        yield _(
            "This message will be removed from the memory and the history: it is no longer shown or sent to the model."
        )
        yield _("Its content is deleted, and so are the summaries that cover it.")
        yield _("Later messages are kept.")
        if not conf.general().KEEP_HISTORY:
            yield _("This site does not keep a history: the messages are deleted permanently.")
        yield _("This cannot be undone.")

    def do(self, conversation: Conversation, sequence: int, *, with_counterparts: bool) -> Done:
        store = DjangoChatMemoryStore(conversation._state.db)
        removed = store.remove(conversation.memory_id, sequence, with_results=with_counterparts)
        return Done(admin_log.removed(removed), conversation.pk, link_to(sequence))


class Fork(MessageOperation):
    """Start another conversation with a copy of the messages up to this one."""

    name = "fork"
    label = gettext_lazy("Fork from here")
    button = gettext_lazy("Yes, fork")

    def consequences(self, conversation: Conversation, row: Any) -> Iterable[str]:
        yield _("A new conversation of the same owner will start with a copy of the messages up to this one.")
        yield _("This conversation is not changed.")

    def do(self, conversation: Conversation, sequence: int, *, with_counterparts: bool) -> Done:
        forked = fork(conversation, through=sequence, window=known_window(conversation.memory_id))
        return Done(admin_log.forked(sequence, forked.memory_id), forked.pk)


SWITCH = Switch()
MESSAGE_OPERATIONS: tuple[MessageOperation, ...] = (SWITCH, Rewind(), Fork(), Pin(), Unpin(), Remove())
"""All operations on messages, in the order in which they are offered."""


def _consequences() -> Iterable[str]:
    yield _("The memory will hold as much of the conversation up to that point as fits; the next message follows it.")
    if conf.general().KEEP_HISTORY:
        yield _("Nothing is lost: the current branch is kept, and you can switch back to it.")
    else:
        yield _("This site does not keep a history: the messages are deleted permanently.")


def _memory_of(conversation: Conversation) -> ChatMemory:
    """Return the memory of *conversation* in its database; raise ``NotPossibleError`` if the settings are invalid."""
    try:
        return get_chat_memory(conversation.memory_id, using=conversation._state.db)
    except (ImportError, TypeError, ValueError) as exc:
        raise NotPossibleError(_("The settings of this memory are invalid; run manage.py check for details.")) from exc
