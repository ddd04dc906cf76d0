"""The app's configuration."""

from django.apps import AppConfig
from django.core.checks import register


class FilesConfig(AppConfig):
    """Files of messages in a storage. The tables are in the same database as the conversations."""

    name = "chatmemory_django.contrib.files"
    label = "chatmemory_files"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Let the memory ask this app for files; register what deletes them with their messages, and the checks."""
        from chatmemory_django.contrib.files import checks, codec, findings, releasing  # models are not loaded before
        from chatmemory_django.models import message_codec
        from chatmemory_django.models.copies import finds_remnants, keeps_copies

        message_codec.installed = codec
        keeps_copies(releasing.forget, of_rows=True)
        finds_remnants(findings.left)
        register(checks.check_storage)
