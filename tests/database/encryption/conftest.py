"""These tests run on the site ``tests.acceptance.sites.encryption``, which installs the app: see ``test_sites``."""

import pytest
from django.apps import apps

IS_SITE = apps.is_installed("chatmemory_django.contrib.encryption")
collect_ignore_glob = [] if IS_SITE else ["test_*"]


@pytest.fixture(autouse=True)
def site_with_encryption() -> None:
    """Skip those that are named on another site: pytest collects these all the same."""
    if not IS_SITE:
        pytest.skip("It needs DJANGO_SETTINGS_MODULE=tests.acceptance.sites.encryption.")
