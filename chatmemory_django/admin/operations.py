"""Operations on conversations, with the texts of their confirmations, results and log entries."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from django.contrib.admin.models import CHANGE, DELETION
from django.db.models import CASCADE, ManyToOneRel, QuerySet, Sum
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy

from chatmemory_django import conf, operations
from chatmemory_django.db.row_codec import UNREADABLE, UnreadableError
from chatmemory_django.models import Conversation, Message
from chatmemory_django.models.message_codec import files_to_delete
from chatmemory_django.operations import Each, Refused, admin_log
from chatmemory_django.provider import known_window

SHOWN = 20
"""Maximum number of conversations that a confirmation lists; the others are only counted."""


class Totals(NamedTuple):
    """Totals of the conversations that an operation affects."""

    conversations: int
    messages: int
    remembered: int
    tokens: int

    @classmethod
    def of(cls, conversations: QuerySet[Conversation]) -> Totals:
        """Return the totals of *conversations*, computed from their counters."""
        sums = conversations.order_by().aggregate(
            messages=Sum("total_messages"), remembered=Sum("memory_messages"), tokens=Sum("memory_tokens")
        )
        return cls(conversations.count(), *(sums[name] or 0 for name in ("messages", "remembered", "tokens")))


def protection(error: Exception) -> str:
    """Return why nothing of a conversation can be erased, given the ``ProtectedError`` or ``RestrictedError``."""
    objects = {*getattr(error, "protected_objects", ()), *getattr(error, "restricted_objects", ())}
    names = sorted({str(held._meta.verbose_name) for held in objects})
    return _("It cannot be erased because protected objects refer to it: %(names)s.") % {"names": ", ".join(names)}


class AdminOperation:
    """An operation on conversations."""

    name: str
    """Its name in URLs and in the admin's ``has_…_permission`` method."""
    action: str
    """The name of its action in the list."""
    label: str | Promise
    button: str | Promise
    is_destructive = False
    is_first = False
    """Whether the page of a conversation offers it in the first place, and not in the menu."""
    log_flag = CHANGE
    forms: tuple[tuple[str, str | Promise], ...] = ()
    """The forms of its result that the user chooses from, and their names; the first one is suggested."""
    done: Any
    """The success message for a *count* of conversations."""

    def consequences(self, conversations: QuerySet[Conversation], totals: Totals) -> Iterable[str]:
        """Yield sentences that describe what will happen to *conversations*."""
        raise NotImplementedError

    def do(self, conversations: QuerySet[Conversation], each: Each, refused: Refused) -> int:
        """Run it on *conversations* with ``chatmemory_django.operations``, and return the number of successes."""
        raise NotImplementedError

    def logged(self, conversation: Conversation, result: int) -> str:
        """Return the log message; *conversation* is in its state before the operation, which returned *result*."""
        raise NotImplementedError

    def refusal(self, error: Exception) -> str:
        """Return why the operation is not possible on a conversation, given the *error* it raised."""
        return protection(error)

    def left(self, keys: Collection[int], using: str) -> str:
        """Return what it has not done yet of the conversations *keys*, on which it succeeded; empty for nothing."""
        return ""


class Clear(AdminOperation):
    """Empty the memory; the history remains, if the site keeps one."""

    name = "clear"
    action = "clear_memory"
    label = gettext_lazy("Clear memory")
    button = gettext_lazy("Yes, clear")
    done = ngettext_lazy(
        "Cleared the memory of %(count)d conversation.", "Cleared the memory of %(count)d conversations.", "count"
    )
    is_destructive = True

    def consequences(self, conversations: QuerySet[Conversation], totals: Totals) -> Iterable[str]:
        yield ngettext(
            "%(messages)d message will leave the memory, and will no longer be sent to the model.",
            "%(messages)d messages will leave the memory, and will no longer be sent to the model.",
            totals.remembered,
        ) % {"messages": totals.remembered}
        if conf.general().KEEP_HISTORY:
            yield ngettext(
                "The history is kept: its %(messages)d message can still be read here.",
                "The history is kept: its %(messages)d messages can still be read here.",
                totals.messages,
            ) % {"messages": totals.messages}
        else:
            yield _("This site does not keep a history: the messages are deleted permanently.")

    def do(self, conversations: QuerySet[Conversation], each: Each, refused: Refused) -> int:
        return operations.clear(conversations, each=each, refused=refused)

    def logged(self, conversation: Conversation, result: int) -> str:
        return admin_log.CLEARED % {"messages": result}


class Erase(AdminOperation):
    """Delete the conversation with its memory and its history."""

    name = "delete"
    action = "delete_selected"
    label = gettext_lazy("Erase")
    button = gettext_lazy("Yes, erase permanently")
    done = ngettext_lazy("Erased %(count)d conversation.", "Erased %(count)d conversations.", "count")
    is_destructive = True
    log_flag = DELETION

    def consequences(self, conversations: QuerySet[Conversation], totals: Totals) -> Iterable[str]:
        yield ngettext(
            "%(count)d conversation will be deleted, with its memory and its entire history.",
            "%(count)d conversations will be deleted, with their memories and their entire histories.",
            totals.conversations,
        ) % {"count": totals.conversations}
        yield ngettext(
            "%(messages)d message will be deleted.",
            "%(messages)d messages will be deleted.",
            totals.messages,
        ) % {"messages": totals.messages}
        for model, field_name in _cascading():
            rows = model._base_manager.filter(**{f"{field_name}__in": conversations.order_by()})
            if count := rows.count():
                name = model._meta.verbose_name if count == 1 else model._meta.verbose_name_plural
                yield _("Related objects to be deleted: %(count)d %(objects)s.") % {"count": count, "objects": name}
        yield _("This cannot be undone.")

    def do(self, conversations: QuerySet[Conversation], each: Each, refused: Refused) -> int:
        return len(operations.erase(conversations, each=each, refused=refused).messages)

    def logged(self, conversation: Conversation, result: int) -> str:
        return admin_log.ERASED % {"messages": conversation.total_messages}

    def left(self, keys: Collection[int], using: str) -> str:
        count = files_to_delete(using, keys)
        words = ngettext(
            "%(count)d file is still in the storage, which has not deleted it; this is tried again at night.",
            "%(count)d files are still in the storage, which has not deleted them; this is tried again at night.",
            count,
        )
        return words % {"count": count} if count else ""


class Recount(AdminOperation):
    """Count the tokens in the memory again."""

    name = "recount"
    action = "recount_tokens"
    label = gettext_lazy("Recount tokens")
    button = gettext_lazy("Yes, recount")
    done = ngettext_lazy(
        "Recounted the tokens of %(count)d conversation.", "Recounted the tokens of %(count)d conversations.", "count"
    )

    def consequences(self, conversations: QuerySet[Conversation], totals: Totals) -> Iterable[str]:
        yield ngettext(
            "The tokens of %(messages)d message in the memory will be counted again, using the current settings.",
            "The tokens of %(messages)d messages in the memory will be counted again, using the current settings.",
            totals.remembered,
        ) % {"messages": totals.remembered}
        yield _("No messages are evicted until the next one is added.")

    def do(self, conversations: QuerySet[Conversation], each: Each, refused: Refused) -> int:
        return operations.recount(conversations, known_window, each=each, refused=refused)

    def logged(self, conversation: Conversation, result: int) -> str:
        return _("Recounted: %(after)d tokens, previously %(before)d.") % {
            "after": result,
            "before": conversation.memory_tokens,
        }

    def refusal(self, error: Exception) -> str:
        if isinstance(error, UnreadableError):
            return str(UNREADABLE).format(error.key_id)
        return _("Its settings have no token estimator whose counts can be stored.")


class Export(AdminOperation):
    """Export the conversations, in the form that the user chooses. It is logged before the first line is sent."""

    name = "export"
    is_first = True
    action = "export_conversations"
    label = gettext_lazy("Export")
    button = gettext_lazy("Yes, export")
    forms = (
        ("html", gettext_lazy("A page to read or print (HTML)")),
        ("text", gettext_lazy("Plain text")),
        ("jsonl", gettext_lazy("JSON lines with all metadata, which can be imported again")),
    )

    def consequences(self, conversations: QuerySet[Conversation], totals: Totals) -> Iterable[str]:
        yield ngettext(
            "%(count)d conversation will be exported to a file.",
            "%(count)d conversations will be exported to a file.",
            totals.conversations,
        ) % {"count": totals.conversations}
        yield ngettext(
            "The file will contain %(messages)d message.",
            "The file will contain all %(messages)d messages, on all branches.",
            totals.messages,
        ) % {"messages": totals.messages}
        yield _("Nothing is changed here. Anyone who has the file can read the messages.")

    def logged(self, conversation: Conversation, result: int) -> str:
        return admin_log.EXPORTED % {"messages": result}


CLEAR, ERASE, RECOUNT, EXPORT = Clear(), Erase(), Recount(), Export()
OPERATIONS: tuple[AdminOperation, ...] = (CLEAR, RECOUNT, EXPORT, ERASE)
"""All operations, in the order in which they are offered."""


def _cascading() -> list[tuple[Any, str]]:
    """Return the models whose objects are deleted by cascade, except ``Message``, and their foreign keys."""
    relations = [
        field for field in Conversation._meta.get_fields(include_hidden=True) if isinstance(field, ManyToOneRel)
    ]
    return [
        (relation.related_model, relation.field.name)
        for relation in relations
        if relation.on_delete is CASCADE and relation.related_model is not Message
    ]
