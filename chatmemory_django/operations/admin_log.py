"""
The log of Django's admin: what staff do to conversations of others, in the same words by REST as in the admin, and what
they read of them, if the setting ``LOG_READS`` is on.

Nothing is logged on a site without ``django.contrib.admin``. The sentences never contain the text of a message or a
title, since the log outlives erased conversations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.utils.text import get_text_list
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext_lazy

from chatmemory_django.core.shown import visible
from chatmemory_django.models import Conversation
from chatmemory_django.operations.reading import Way

if TYPE_CHECKING:
    from django.contrib.admin.models import LogEntry
    from django.db.models import Model

ADDITION, CHANGE, DELETION = 1, 2, 3
"""The action flags of ``django.contrib.admin.models``, which can only be imported where that app is installed."""


def log(conversation: Conversation, user_id: Any, words: str, flag: int = CHANGE) -> None:
    """Log *words* about what the user *user_id* did to *conversation*, if the admin is installed."""
    if apps.is_installed("django.contrib.admin"):
        entry(conversation, user_id, words, flag).save(force_insert=True)


def entry(what: Model, user_id: Any, words: str, flag: int = CHANGE) -> LogEntry:
    """Return an unsaved entry about *what*, a conversation by its memory id, or something else by its name."""
    # Imported here, since a site may have neither of the two apps.
    from django.contrib.admin.models import LogEntry
    from django.contrib.contenttypes.models import ContentType

    return LogEntry(
        user_id=user_id,
        content_type=ContentType.objects.get_for_model(what),
        object_id=str(what.pk),
        object_repr=visible(str(what))[:200],
        action_flag=flag,
        change_message=words,
    )


def log_read(sender: object, reader: Any, conversations: Sequence[Model], way: Way, **kwargs: Any) -> None:
    """
    Log that *reader* has read *conversations*, or other rows, in one entry; an export or a change has been logged as
    what it is.
    """
    if way in {"exported", "changed"} or reader.pk is None or not apps.is_installed("django.contrib.admin"):
        return
    if way == "read":
        entry(conversations[0], reader.pk, _("Read.")).save(force_insert=True)
        return
    names = [visible(str(each)) for each in conversations]
    words = _("Listed: %(ids)s.") if way == "listed" else _("Found by a search: %(ids)s.")
    listed = entry(conversations[0], reader.pk, words % {"ids": ", ".join(names)})
    if len(names) > 1:
        listed.object_id = None
        listed.object_repr = f"{len(names)} {conversations[0]._meta.verbose_name_plural}"
    listed.save(force_insert=True)


CLEARED = ngettext_lazy(
    "Cleared the memory (%(messages)d message).", "Cleared the memory (%(messages)d messages).", "messages"
)
REPLACED = ngettext_lazy(
    "Replaced the memory (%(messages)d message).", "Replaced the memory (%(messages)d messages).", "messages"
)
ERASED = ngettext_lazy("Erased with %(messages)d message.", "Erased with %(messages)d messages.", "messages")
EXPORTED = ngettext_lazy("Exported %(messages)d message.", "Exported %(messages)d messages.", "messages")
REWOUND = gettext_lazy("Rewound to message #%(number)d.")
SWITCHED = gettext_lazy("Switched to the branch of message #%(number)d; the conversation continues from #%(newest)d.")
ANNOTATED = gettext_lazy("Changed the metadata of message #%(number)d.")
HANDED_OVER = gettext_lazy("Took over the conversation.")
GIVEN_BACK = gettext_lazy("Gave the conversation back to the assistant.")
ANSWERED = gettext_lazy("Answered with message #%(number)d.")
_FORKED = gettext_lazy("Forked from message #%(number)d as “%(memory_id)s”.")
_REMOVED = ngettext_lazy("Removed message %(numbers)s.", "Removed messages %(numbers)s.", "count")
_ADDED = ngettext_lazy("Added message %(numbers)s.", "Added messages %(numbers)s.", "count")
_PINNED = ngettext_lazy("Pinned message %(numbers)s.", "Pinned messages %(numbers)s.", "count")
_UNPINNED = ngettext_lazy("Unpinned message %(numbers)s.", "Unpinned messages %(numbers)s.", "count")


def forked(through: int, memory_id: str) -> str:
    """Return the words for a conversation that was copied up to the message *through*, as *memory_id*."""
    return _FORKED % {"number": through, "memory_id": visible(memory_id)}


def removed(sequences: Collection[int]) -> str:
    """Return the words for the messages *sequences* that were removed."""
    return _REMOVED % _numbers(sequences)


def added(sequences: Collection[int]) -> str:
    """Return the words for the messages *sequences* that were added."""
    return _ADDED % _numbers(sequences)


def pinned(sequences: Collection[int]) -> str:
    """Return the words for the messages *sequences* that were pinned."""
    return _PINNED % _numbers(sequences)


def unpinned(sequences: Collection[int]) -> str:
    """Return the words for the messages *sequences* that are no longer pinned."""
    return _UNPINNED % _numbers(sequences)


def changed(names: Iterable[str]) -> str:
    """Return the words for a conversation whose fields *names* were changed; their values are not logged."""
    verbose = {field.name: str(field.verbose_name) for field in Conversation._meta.fields}
    fields = [verbose[name] for name in names]
    return _("Changed %(fields)s.") % {"fields": get_text_list(fields, _("and"))}


def _numbers(sequences: Collection[int]) -> dict[str, Any]:
    return {"count": len(sequences), "numbers": ", ".join(f"#{each}" for each in sequences)}
