"""The app's configuration."""

from django.apps import AppConfig, apps
from django.core.checks import Tags, register
from django.db.models.signals import post_migrate


class SearchConfig(AppConfig):
    """Configuration of the search app. It has no models, only a migration."""

    name = "chatmemory_django.search"
    label = "chatmemory_search"

    def ready(self) -> None:
        """Register the check, and the signal handler that repairs the index after migrations."""
        from chatmemory_django.search import checks, migrating  # models are not loaded before this point

        main = apps.get_app_config("chatmemory")  # the signal is only sent for apps with models
        post_migrate.connect(migrating.mend, sender=main, dispatch_uid="chatmemory_search")
        register(checks.check_index, Tags.database)
