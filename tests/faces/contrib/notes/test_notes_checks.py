"""The checks of the settings of notes."""

import pytest
from django.core.checks import Error, Warning  # noqa: A004  # Django's name for it

from chatmemory_django.contrib.notes.apps import check_notes


def test_the_defaults_are_right():
    assert check_notes() == []


@pytest.mark.parametrize("given", [True, 30, "on", ["MAX_NOTES"]])
def test_E101_the_settings_of_notes_are_no_dict(settings, given):
    settings.CHATMEMORY = {"NOTES": given}

    [message] = check_notes()

    assert (type(message), message.id) == (Error, "chatmemory.E101")


@pytest.mark.parametrize(
    ("name", "given"),
    [(name, given) for name in ("MAX_NOTES", "MAX_LENGTH") for given in (0, -1, True, "30", None, 1.5)]
    + [("MAX_LENGTH", 10_001)],
)
def test_E102_a_bound_of_notes_is_none(settings, name, given):
    settings.CHATMEMORY = {"NOTES": {name: given}}

    [message] = check_notes()

    assert (type(message), message.id) == (Error, "chatmemory.E102")
    assert repr(given) in message.msg


def test_W101_a_setting_of_notes_is_unknown(settings):
    settings.CHATMEMORY = {"NOTES": {"MAX_NOTE": 3}}

    [message] = check_notes()

    assert (type(message), message.id) == (Warning, "chatmemory.W101")
    assert "MAX_NOTES" in message.hint
