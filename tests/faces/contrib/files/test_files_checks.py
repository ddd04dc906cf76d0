"""Checks of the settings of files."""

import pytest
from django.core.checks import Error, Warning  # noqa: A004

from chatmemory_django.checks import check_settings
from chatmemory_django.contrib.files.checks import check_storage


def found(settings, **given):
    settings.CHATMEMORY = given
    return check_storage()


def test_the_defaults_pass(settings):
    assert found(settings) == []
    settings.CHATMEMORY = 5  # another check reports it
    assert check_storage() == []


def test_a_misspelled_setting_is_found_with_those_of_the_memory(settings):
    settings.CHATMEMORY = {"MEDIA_QUOTE": 5, "MEDIA_QUOTA": 5}
    [message] = check_settings()

    assert (message.id, message.hint[:26]) == ("chatmemory.W002", "Did you mean 'MEDIA_QUOTA'")


def test_E081_the_storage_of_files_has_no_such_alias(settings):
    [message] = found(settings, MEDIA_STORAGE="chats")

    assert (type(message), message.id) == (Error, "chatmemory.E081")
    assert message.msg == "CHATMEMORY['MEDIA_STORAGE'] must be an alias in STORAGES, or None, not 'chats'."


def test_W081_the_storage_of_files_is_that_of_public_ones(settings):
    [message] = found(settings, MEDIA_STORAGE="default")

    assert (type(message), message.id) == (Warning, "chatmemory.W081")


@pytest.mark.parametrize("name", ["MEDIA_MIN_BYTES", "MEDIA_MAX_BYTES", "MEDIA_QUOTA", "MEDIA_TIMEOUT", "MEDIA_URLS"])
def test_E082_a_bound_of_files_is_no_whole_number(settings, name):
    [message] = found(settings, **{name: 0})

    assert (type(message), message.id) == (Error, "chatmemory.E082")
    assert message.msg.startswith(f"CHATMEMORY['{name}'] must be a whole number above 0")


def test_E083_what_a_lost_file_is_is_unknown(settings):
    [message] = found(settings, MEDIA_MISSING="ignore")

    assert (type(message), message.id) == (Error, "chatmemory.E083")
    assert message.msg == "CHATMEMORY['MEDIA_MISSING'] must be one of 'error', 'placeholder', not 'ignore'."


def test_E084_the_storage_of_files_does_not_sign_addresses(settings):
    backend = "django.core.files.storage.FileSystemStorage"
    settings.STORAGES = {**settings.STORAGES, "chats": {"BACKEND": backend}}
    [message] = found(settings, MEDIA_STORAGE="chats", MEDIA_URLS=60)

    assert (type(message), message.id) == (Error, "chatmemory.E084")
    assert message.msg.endswith("'chats' cannot sign addresses: url() of FileSystemStorage takes no 'expire'.")
