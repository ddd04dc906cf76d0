"""What to say of what can be done to conversations: before, afterwards, and in the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from django.contrib.admin.models import CHANGE, DELETION
from django.db.models import CASCADE, ManyToOneRel, QuerySet, Sum
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from chatmemory_django import conf, operations
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import Each, Refused
from chatmemory_django.provider import known_window

SHOWN = 20
"""How many conversations a confirmation names; of the others it says how many."""


class Totals(NamedTuple):
    """What is in the conversations that an operation is about."""

    conversations: int
    said: int
    remembered: int
    tokens: int

    @classmethod
    def of(cls, conversations: QuerySet[Conversation]) -> Totals:
        """The totals of *conversations*, from their counters alone."""
        sums = conversations.order_by().aggregate(
            said=Sum("total_messages"), remembered=Sum("memory_messages"), tokens=Sum("memory_tokens")
        )
        return cls(conversations.count(), *(sums[name] or 0 for name in ("said", "remembered", "tokens")))


class Operation:
    """Something that can be done to a conversation."""

    name: str
    """Of its URL, and of the method of the admin that says who may do it."""
    action: str
    """Of the list."""
    label: str | Promise
    button: str | Promise
    is_destructive = False
    log_flag = CHANGE

    def consequences(self, conversations: QuerySet[Conversation], totals: Totals) -> Iterable[str]:
        """What will happen to *conversations*, in sentences."""
        raise NotImplementedError

    def do(self, conversations: QuerySet[Conversation], each: Each, refused: Refused) -> int:
        """Do it to *conversations*, as ``chatmemory_django.operations`` does, and return to how many it was done."""
        raise NotImplementedError

    def logged(self, conversation: Conversation, result: int) -> str:
        """What to write in the log: it was done to *conversation*, as it was before, and *result* came of it."""
        raise NotImplementedError

    def refusal(self, error: Exception) -> str:
        """Why it cannot be done to a conversation."""
        raise NotImplementedError

    def done(self, count: int) -> str:
        """What to tell once it is done to *count* conversations."""
        raise NotImplementedError


class Clear(Operation):
    """Empty the memory; the history stays, if it is kept."""

    name = "clear"
    action = "clear_memory"
    label = gettext_lazy("Clear memory")
    button = gettext_lazy("Yes, clear")
    is_destructive = True

    def consequences(self, conversations: QuerySet[Conversation], totals: Totals) -> Iterable[str]:
        yield ngettext(
            "%(messages)d message leaves the memory; the model will be sent nothing of it any more.",
            "%(messages)d messages leave the memory; the model will be sent nothing of them any more.",
            totals.remembered,
        ) % {"messages": totals.remembered}
        if conf.keep_history():
            yield ngettext(
                "The history stays: %(messages)d message that was said can still be read here.",
                "The history stays: %(messages)d messages that were said can still be read here.",
                totals.said,
            ) % {"messages": totals.said}
        else:
            yield _("This site keeps no history: the messages are deleted for good.")

    def do(self, conversations: QuerySet[Conversation], each: Each, refused: Refused) -> int:
        return operations.clear(conversations, each=each)

    def logged(self, conversation: Conversation, result: int) -> str:
        return ngettext(
            "Cleared the memory of %(messages)d message.", "Cleared the memory of %(messages)d messages.", result
        ) % {"messages": result}

    def done(self, count: int) -> str:
        return ngettext(
            "Cleared the memory of %(count)d conversation.", "Cleared the memory of %(count)d conversations.", count
        ) % {"count": count}


class Erase(Operation):
    """Delete the conversation, history and all."""

    name = "delete"
    action = "delete_selected"
    label = gettext_lazy("Erase")
    button = gettext_lazy("Yes, erase for good")
    is_destructive = True
    log_flag = DELETION

    def consequences(self, conversations: QuerySet[Conversation], totals: Totals) -> Iterable[str]:
        yield ngettext(
            "%(count)d conversation is deleted, with its memory and its whole history.",
            "%(count)d conversations are deleted, with their memories and their whole histories.",
            totals.conversations,
        ) % {"count": totals.conversations}
        yield ngettext(
            "%(messages)d message that was said is deleted.",
            "%(messages)d messages that were said are deleted.",
            totals.said,
        ) % {"messages": totals.said}
        for model, field_name in _belongings():
            rows = model._base_manager.filter(**{f"{field_name}__in": conversations.order_by()})
            if count := rows.count():
                name = model._meta.verbose_name if count == 1 else model._meta.verbose_name_plural
                yield _("Belonging to them: %(count)d %(objects)s.") % {"count": count, "objects": name}
        yield _("This cannot be undone.")

    def do(self, conversations: QuerySet[Conversation], each: Each, refused: Refused) -> int:
        return len(operations.erase(conversations, each=each, refused=refused).messages)

    def logged(self, conversation: Conversation, result: int) -> str:
        return ngettext(
            "Erased with %(messages)d message.", "Erased with %(messages)d messages.", conversation.total_messages
        ) % {"messages": conversation.total_messages}

    def refusal(self, error: Exception) -> str:
        objects = {*getattr(error, "protected_objects", ()), *getattr(error, "restricted_objects", ())}
        names = sorted({str(held._meta.verbose_name) for held in objects})
        return _("It is held by objects of another kind: %(names)s.") % {"names": ", ".join(names)}

    def done(self, count: int) -> str:
        return ngettext("Erased %(count)d conversation.", "Erased %(count)d conversations.", count) % {"count": count}


class Recount(Operation):
    """Count the tokens in the memory anew."""

    name = "recount"
    action = "recount_tokens"
    label = gettext_lazy("Recount tokens")
    button = gettext_lazy("Yes, recount")

    def consequences(self, conversations: QuerySet[Conversation], totals: Totals) -> Iterable[str]:
        yield ngettext(
            "%(messages)d message in the memory is counted anew, as the settings say now.",
            "%(messages)d messages in the memory are counted anew, as the settings say now.",
            totals.remembered,
        ) % {"messages": totals.remembered}
        yield _("Nothing leaves the memory by that, before something is added to it.")

    def do(self, conversations: QuerySet[Conversation], each: Each, refused: Refused) -> int:
        return operations.recount(conversations, known_window, each=each, refused=refused)

    def logged(self, conversation: Conversation, result: int) -> str:
        return _("Recounted: %(after)d tokens, before %(before)d.") % {
            "after": result,
            "before": conversation.memory_tokens,
        }

    def refusal(self, error: Exception) -> str:
        return _("The settings give it no estimator whose counts can be kept.")

    def done(self, count: int) -> str:
        return ngettext(
            "Recounted the tokens of %(count)d conversation.", "Recounted the tokens of %(count)d conversations.", count
        ) % {"count": count}


class Export(Operation):
    """Write the conversations as JSON lines. It is logged before the first line is sent."""

    name = "export"
    action = "export_conversations"
    label = gettext_lazy("Export")
    button = gettext_lazy("Yes, export")

    def consequences(self, conversations: QuerySet[Conversation], totals: Totals) -> Iterable[str]:
        yield ngettext(
            "%(count)d conversation is written to a file of JSON lines.",
            "%(count)d conversations are written to a file of JSON lines.",
            totals.conversations,
        ) % {"count": totals.conversations}
        yield ngettext(
            "All that was said is in it, %(messages)d message, with its metadata.",
            "All that was said is in it, %(messages)d messages, with their metadata.",
            totals.said,
        ) % {"messages": totals.said}
        yield _("Nothing here is changed. Whoever has the file can read what was said.")

    def logged(self, conversation: Conversation, result: int) -> str:
        return ngettext("Exported %(messages)d message.", "Exported %(messages)d messages.", result) % {
            "messages": result
        }


CLEAR, ERASE, RECOUNT, EXPORT = Clear(), Erase(), Recount(), Export()
OPERATIONS: tuple[Operation, ...] = (CLEAR, RECOUNT, EXPORT, ERASE)
"""In the order in which they are offered."""


def _belongings() -> list[tuple[Any, str]]:
    """The models whose objects go with their conversation, but for the messages, and the fields that point to it."""
    relations = [
        field for field in Conversation._meta.get_fields(include_hidden=True) if isinstance(field, ManyToOneRel)
    ]
    return [
        (relation.related_model, relation.field.name)
        for relation in relations
        if relation.on_delete is CASCADE and relation.related_model is not Message
    ]
