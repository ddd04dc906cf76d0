"""The app's configuration."""

from django.apps import AppConfig


class RecordsConfig(AppConfig):
    """The records of ``DjangoConversationStore``. The table is in the same database as the conversations."""

    name = "chatmemory_django.contrib.adapters.records"
    label = "chatmemory_records"

    def ready(self) -> None:
        """Register what is deleted from a record when messages are removed."""
        from chatmemory_django.contrib.adapters.records.models import forget_calls  # models are not loaded before
        from chatmemory_django.models.copies import keeps_copies

        keeps_copies(forget_calls)
