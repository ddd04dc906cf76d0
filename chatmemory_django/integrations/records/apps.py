"""The app's configuration."""

from django.apps import AppConfig


class RecordsConfig(AppConfig):
    """The records of ``DjangoConversationStore``. The table is in the same database as the conversations."""

    name = "chatmemory_django.integrations.records"
    label = "chatmemory_records"
