"""The app as Django sees it."""

from django.apps import AppConfig, apps
from django.core.checks import Tags, register
from django.db.models.signals import post_migrate


class SearchConfig(AppConfig):
    """An index of what was said. It has no models, but a migration."""

    name = "chatmemory_django.search"
    label = "chatmemory_search"

    def ready(self) -> None:
        """Register the check, and what mends the index after migrations."""
        from chatmemory_django.search import checks, migrating  # only now are models loaded

        main = apps.get_app_config("chatmemory")  # the signal is sent for apps with models alone
        post_migrate.connect(migrating.mend, sender=main, dispatch_uid="chatmemory_search")
        register(checks.check_index, Tags.database)
