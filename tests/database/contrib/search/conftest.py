"""These tests run on the site ``tests.acceptance.sites.search``, which installs the app; ``test_sites`` starts them."""

from django.apps import apps

collect_ignore_glob = [] if apps.is_installed("chatmemory_django.contrib.search") else ["test_*"]
