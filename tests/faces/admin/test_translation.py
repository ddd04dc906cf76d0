"""The German translation: complete, and used by the pages."""

import re
import shutil
import subprocess
import sys
from gettext import GNUTranslations
from pathlib import Path

import pytest

import chatmemory_django
from chatmemory_django.messages import AiMessage, UserMessage
from tests.faces.admin.admin_site import EVERYTHING, conversation, page, staff

PACKAGE = Path(chatmemory_django.__file__).parent
GERMAN = PACKAGE / "locale/de/LC_MESSAGES/django.po"
PLACES = re.compile(r"%\(\w+\)[sd]|%%|%s|\{\w+\}")

needs_gettext = pytest.mark.skipif(
    shutil.which("msgfmt") is None, reason="This test requires gettext: apt-get install gettext"
)


@pytest.fixture(scope="module")
def german():
    with GERMAN.with_suffix(".mo").open("rb") as file:
        return GNUTranslations(file)


def test_every_translation_has_the_placeholders_of_its_original(german):
    for original, translated in german._catalog.items():
        if original:
            original = original[0] if isinstance(original, tuple) else original
            assert sorted(PLACES.findall(original)) == sorted(PLACES.findall(translated)), original


def test_every_translation_ends_as_its_original_does(german):
    # Merged catalogs have had the end of another text: "{number} messages" was "{number} NachrichtenTokens hätte?".
    for original, translated in german._catalog.items():
        text = original[0] if isinstance(original, tuple) else original
        assert {text[-1:], translated[-1:]} & set("?!…") <= {text[-1:]} & {translated[-1:]}, text


def test_the_unit_of_a_window_is_written_once(german):
    # The script fills in "4.000 Tokens"; a window of messages has no tokens.
    [asked] = [each for original, each in german._catalog.items() if "What if the window had" in original]

    assert "Token" not in asked


@needs_gettext
def test_the_compiled_translations_are_up_to_date(german, tmp_path):
    compiled = tmp_path / "django.mo"

    subprocess.run(["msgfmt", "--check", "-o", compiled, GERMAN], check=True)

    with compiled.open("rb") as file:
        assert GNUTranslations(file)._catalog == german._catalog


@pytest.mark.slow
@needs_gettext
def test_every_text_of_the_app_is_translated(tmp_path):
    copy = tmp_path / "chatmemory_django"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.mo"))

    options = ("-l", "de", "--no-location", "--no-obsolete", "-v", "0")
    subprocess.run([sys.executable, "-m", "django", "makemessages", *options], cwd=copy, check=True)

    made = copy / "locale/de/LC_MESSAGES/django.po"
    assert "fuzzy" not in made.read_text()
    missing = subprocess.run(
        ["msgattrib", "--untranslated", "--no-wrap", made], check=True, capture_output=True, text=True
    ).stdout
    assert re.findall(r'^msgid "(.+)"$', missing, re.MULTILINE) == []


@pytest.mark.django_db
def test_pages_and_log_are_in_german(client, settings):
    settings.LANGUAGE_CODE = "de"
    talk = conversation(UserMessage("Guten Tag"), AiMessage("Hallo"))
    client.force_login(staff(*EVERYTHING))

    assert "2 im Gedächtnis<" in client.get(page("changelist")).content.decode()
    html = client.get(page("change", talk.pk)).content.decode()
    assert "Inhalt des Gedächtnisses" in html
    assert ">Benutzer<" in html
    assert ">Nachrichten im Gedächtnis<" in html
    assert "2 Nachrichten werden aus dem Gedächtnis entfernt" in client.get(page("clear", talk.pk)).content.decode()
    done = client.post(page("clear", talk.pk), {"confirmed": "clear"}, follow=True).content.decode()
    assert "Das Gedächtnis von 1 Gespräch wurde geleert." in done
    assert "Gedächtnis geleert (2 Nachrichten)." in client.get(page("history", talk.pk)).content.decode()
