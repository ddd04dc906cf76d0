"""The app as Django sees it."""

from django.apps import AppConfig


class RecordsConfig(AppConfig):
    """The records of ``DjangoConversationStore``. Its table is in the database that has the conversations."""

    name = "chatmemory_django.records"
    label = "chatmemory_records"
