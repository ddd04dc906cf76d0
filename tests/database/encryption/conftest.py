"""These tests run on the site ``tests.acceptance.sites.encryption``, which installs the app: see ``test_sites``."""

from django.apps import apps

collect_ignore_glob = [] if apps.is_installed("chatmemory_django.contrib.encryption") else ["test_*"]
