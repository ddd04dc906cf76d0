"""The app's configuration."""

from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, register
from django.utils.translation import gettext_lazy as _

from chatmemory_django.contrib.notes.conf import Notes


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
        from chatmemory_django.models.copies import OfOwners, belongs_to_owners

        # The notebook first: who adds a note has locked it.
        belongs_to_owners(
            OfOwners(Notebook, keeping.exported_book, keeping.restore_book),
            OfOwners(Note, keeping.exported, keeping.restore),
        )
        register(check_notes)


def check_notes(**kwargs: Any) -> list[CheckMessage]:
    """Check ``CHATMEMORY["NOTES"]``."""
    return Notes.check()
