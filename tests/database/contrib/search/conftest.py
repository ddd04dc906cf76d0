"""These tests run on the site ``tests.acceptance.sites.search``, which installs the app; ``test_sites`` starts them."""

import pytest
from django.apps import apps

IS_SITE = apps.is_installed("chatmemory_django.contrib.search")
collect_ignore_glob = [] if IS_SITE else ["test_*"]


@pytest.fixture(autouse=True)
def site_with_search() -> None:
    """Skip those that are named on another site: pytest collects these all the same."""
    if not IS_SITE:
        pytest.skip("It needs DJANGO_SETTINGS_MODULE=tests.acceptance.sites.search.")
