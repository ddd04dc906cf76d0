"""The app's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, register
from django.utils.translation import gettext_lazy as _

from chatmemory_django.contrib.notes.conf import Notes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chatmemory_django.operations.reading import Way


class NotesConfig(AppConfig):
    """Notes of assistants about users. The tables are in the same database as the conversations."""

    name = "chatmemory_django.contrib.notes"
    label = "chatmemory_notes"
    verbose_name = _("Notes")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register what the app keeps of users, and the check of its settings."""
        from chatmemory_django.contrib.notes import keeping  # models are not loaded before
        from chatmemory_django.contrib.notes.models import Note, Notebook
        from chatmemory_django.contrib.notes.signals import notes_read
        from chatmemory_django.models.copies import OfOwners, belongs_to_owners

        # The notebook first: who adds a note has locked it.
        belongs_to_owners(
            OfOwners(Notebook, keeping.exported_book, keeping.restore_book),
            OfOwners(Note, keeping.exported, keeping.restore),
        )
        notes_read.connect(_log_read, dispatch_uid="chatmemory_notes")
        register(check_notes)


def _log_read(sender: object, reader: Any, notes: Sequence[Any], way: Way, **kwargs: Any) -> None:
    from chatmemory_django.operations.admin_log import log_read  # loaded by the first read, since it is large

    log_read(sender, reader, notes, way)


def check_notes(**kwargs: Any) -> list[CheckMessage]:
    """Check ``CHATMEMORY["NOTES"]``."""
    return Notes.check()
