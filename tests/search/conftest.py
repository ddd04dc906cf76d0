"""These tests are of the site ``tests.sites.search``, on which the app is installed; see ``tests.test_sites``."""

from django.apps import apps

collect_ignore_glob = [] if apps.is_installed("chatmemory_django.search") else ["test_*"]
