"""What is encrypted is tested on the site ``tests.acceptance.sites.encryption``, see ``test_sites``."""

from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth import get_user_model

collect_ignore = [] if apps.is_installed("chatmemory_django.contrib.encryption") else ["test_sealed_notes.py"]


@pytest.fixture
def ann() -> Any:
    return get_user_model().objects.create_user("ann")


@pytest.fixture
def eve() -> Any:
    return get_user_model().objects.create_user("eve")
