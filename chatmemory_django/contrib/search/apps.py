"""The app's configuration."""

from django.apps import AppConfig, apps
from django.core.checks import Tags, register
from django.db.models.signals import post_migrate


class SearchConfig(AppConfig):
    """Configuration of the search app. It has no models, only a migration."""

    name = "chatmemory_django.contrib.search"
    label = "chatmemory_search"

    def ready(self) -> None:
        """Let searches use the index; register the checks, and the handler that repairs the index after migrations."""
        from chatmemory_django.contrib.search import checks, indexes, migrating  # models are not loaded before
        from chatmemory_django.models import finding
        from chatmemory_django.models.copies import finds_remnants, prunes

        finding.index = indexes
        prunes(indexes.PRUNING)
        finds_remnants(indexes.left)
        main = apps.get_app_config("chatmemory")  # the signal is only sent for apps with models
        post_migrate.connect(migrating.mend, sender=main, dispatch_uid="chatmemory_search")
        register(checks.check_texts)
        register(checks.check_index, Tags.database)
