"""A site goes through an export and an import, and is what it was, whatever the keys of its users are there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.management import call_command

from chatmemory_django.chat.costs.tables import CallSum, ModelCall
from chatmemory_django.models import Conversation
from tests.moved_site import NAMES, fill, rows, users
from tests.pictures import use_storage

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)


@pytest.fixture
def filled(settings) -> dict[str, list[str]]:
    """Fill the site, and return its rows."""
    use_storage(settings)
    users(*NAMES)
    fill()
    return rows()


def emptied(*names: str) -> None:
    """Erase everything, and create other users with the same names."""
    Conversation.objects.all().delete()
    for model in (ModelCall, CallSum):
        model.objects.all().delete()
    get_user_model().objects.all().delete()
    users(*names)


def test_a_site_with_something_of_every_feature_is_equal_after_an_export_and_an_import(filled, tmp_path: Path):
    lines = tmp_path / "site.jsonl"
    call_command("export_chatmemory", output=lines, verbosity=0)
    emptied("dan", *NAMES)  # so that the keys are others

    call_command("import_chatmemory", str(lines), verbosity=0)

    assert rows() == filled
    assert all(filled.values()), [label for label, found in filled.items() if not found]


def test_it_is_stored_once_however_often_it_is_imported(filled, tmp_path: Path):
    lines = tmp_path / "site.jsonl"
    call_command("export_chatmemory", output=lines, verbosity=0)

    call_command("import_chatmemory", str(lines), skip_existing=True, verbosity=0)

    assert rows() == filled


def test_names_are_others_or_nobody_by_a_file(filled, tmp_path: Path):
    lines, owners = tmp_path / "site.jsonl", tmp_path / "owners.json"
    call_command("export_chatmemory", output=lines, verbosity=0)
    emptied("ann@example.org", "carla")
    owners.write_text(json.dumps({"ann": "ann@example.org", "ben": None}))

    call_command("import_chatmemory", str(lines), owners=str(owners), verbosity=0)

    found = {each.memory_id: each.owner and each.owner.get_username() for each in Conversation.objects.all()}
    ann = "ann@example.org"
    assert found == {"letters": ann, "tales": None, "nobody's": None, "asked": None, "waits": ann}


@pytest.mark.slow
@pytest.mark.skipif(
    apps.is_installed("chatmemory_django.contrib.encryption"), reason="The other site is the one with it."
)
def test_it_comes_from_another_database_and_goes_to_an_encrypted_one(settings, tmp_path: Path):
    pytest.importorskip("cryptography")
    use_storage(settings)
    users("dan", *NAMES)
    lines = tmp_path / "site.jsonl"

    def of_sqlite(what: str, site: str) -> dict[str, list[str]]:
        """Fill a site with its own database, or import into one, and return its rows."""
        url = f"sqlite:///{tmp_path / what}.sqlite3"
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": site, "DATABASE_URL": url}
        command = [sys.executable, "-m", "tests.moved_site", what, str(lines)]
        run = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
        )
        return json.loads(run.stdout)

    filled = of_sqlite("fill", "tests.settings")
    call_command("import_chatmemory", str(lines), verbosity=0)
    assert rows() == filled

    lines.unlink()
    call_command("export_chatmemory", output=lines, verbosity=0)
    assert of_sqlite("import", "tests.acceptance.sites.encryption") == filled
