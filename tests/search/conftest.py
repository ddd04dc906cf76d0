"""These tests run on the site ``tests.sites.search``, which installs the app; see ``tests.test_sites``."""

from django.apps import apps

collect_ignore_glob = [] if apps.is_installed("chatmemory_django.search") else ["test_*"]
