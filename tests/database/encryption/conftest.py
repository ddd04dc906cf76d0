"""These tests run on the site ``tests.acceptance.sites.encryption``, which installs the app: see ``test_sites``."""

from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth import get_user_model

IS_SITE = apps.is_installed("chatmemory_django.contrib.encryption")
collect_ignore_glob = [] if IS_SITE else ["test_*"]


@pytest.fixture(autouse=True)
def site_with_encryption() -> None:
    """Skip those that are named on another site: pytest collects these all the same."""
    if not IS_SITE:
        pytest.skip("It needs DJANGO_SETTINGS_MODULE=tests.acceptance.sites.encryption.")


@pytest.fixture
def ann() -> Any:
    return get_user_model().objects.create_user("ann")
