"""What ``check`` finds in ``CHATMEMORY["ENCRYPTION"]``. It never prints a key."""

import base64
import importlib.util

import pytest
from django.core.checks import CheckMessage

from chatmemory_django.contrib.encryption import checks

pytest.importorskip("cryptography")

BASE64 = base64.b64encode(b"a secret key of 32 bytes, a key.").decode()
KEY = f"a1:{BASE64}"


def found(settings, options) -> list[CheckMessage]:
    settings.CHATMEMORY = {"ENCRYPTION": options}
    messages = checks.check_keys()
    assert not any(BASE64[:12] in f"{message.msg} {message.hint}" for message in messages)
    return messages


def test_right_keys_pass(settings):
    assert found(settings, {"KEYS": [KEY, f"b2:{BASE64}"], "OWNER_KEYS": True}) == []


def test_E051_it_is_not_a_dict(settings):
    [message] = found(settings, [KEY])

    assert message.id == "chatmemory.E051"
    assert message.hint == 'Write "ENCRYPTION": {"KEYS": [os.environ["CHATMEMORY_KEY"]]}.'


def test_W051_an_option_is_unknown(settings):
    [message] = found(settings, {"KEYS": [KEY], "OWNERKEYS": True})

    assert message.id == "chatmemory.W051"
    assert "'OWNER_KEYS'" in message.hint


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (None, "['KEYS'] must be a list of at least one key, not a NoneType."),
        (KEY, "['KEYS'] must be a list of at least one key, not a str."),
        ([], "['KEYS'] must be a list of at least one key, not an empty list."),
        ([KEY, None], "['KEYS'][1] must be a str, '<id>:<Base64>', not NoneType."),
        ([KEY[:-8]], "['KEYS'][0] must have 32 bytes, not 27."),
        ([f"{KEY}!"], "['KEYS'][0] must be Base64 after the colon."),
        ([BASE64], "['KEYS'][0] must begin with an id of at most 40 letters, digits, '.', '_' and '-', and a colon."),
        ([KEY, KEY], "['KEYS'][1] has the id 'a1', like [0]; each key needs its own."),
        ([KEY, f"A1:{BASE64}"], "['KEYS'][1] has the id 'A1', like [0]; each key needs its own."),
    ],
)
def test_E053_a_key_is_wrong(settings, keys, problem):
    [message] = found(settings, {"KEYS": keys})

    assert message.id == "chatmemory.E053"
    assert message.msg == f"CHATMEMORY['ENCRYPTION']{problem}"
    assert "chatmemory_key" in message.hint


def test_E053_each_wrong_key_is_named(settings):
    assert len(found(settings, {"KEYS": ["a", KEY, "b"]})) == 2


@pytest.mark.parametrize("path", ["no.such.Class", "builtins.dict", 1])
def test_E054_the_class_is_none_of_keys(settings, path):
    [message] = found(settings, {"KEYS": [KEY], "CLASS": path})

    assert message.id == "chatmemory.E054"


def test_E056_the_package_is_missing(settings, monkeypatch):
    monkeypatch.setattr(
        checks, "find_spec", lambda name: None if name == "cryptography" else importlib.util.find_spec(name)
    )

    [message] = found(settings, {"KEYS": [KEY]})

    assert message.id == "chatmemory.E056"
    assert "pip install 'chatmemory-django[encryption]'" in message.hint


@pytest.mark.parametrize("value", [1, "yes", None])
def test_E052_the_choice_of_owners_keys_is_no_boolean(settings, value):
    [message] = found(settings, {"KEYS": [KEY], "OWNER_KEYS": value})

    assert message.id == "chatmemory.E052"
    assert message.msg == f"CHATMEMORY['ENCRYPTION']['OWNER_KEYS'] must be True or False, not {value!r}."


@pytest.mark.parametrize("value", [-1, 3601, 1.5, True, "60", None])
def test_E052_the_time_for_which_keys_of_owners_are_used_is_no_number_of_seconds(settings, value):
    [message] = found(settings, {"KEYS": [KEY], "OWNER_KEY_SECONDS": value})

    assert message.id == "chatmemory.E052"
    assert message.msg == (
        "CHATMEMORY['ENCRYPTION']['OWNER_KEY_SECONDS'] must be a whole number of seconds from 0 to 3,600, "
        f"not {value!r}."
    )


@pytest.mark.parametrize("value", [0, 60, 3600])
def test_the_time_for_which_keys_of_owners_are_used_may_be_an_hour(settings, value):
    assert found(settings, {"KEYS": [KEY], "OWNER_KEY_SECONDS": value}) == []


def test_E057_what_plain_texts_are_is_unknown(settings):
    [message] = found(settings, {"KEYS": [KEY], "PLAIN": "allow"})

    assert message.id == "chatmemory.E057"


def test_W080_plain_texts_are_read(settings):
    for plain in ({}, {"PLAIN": "write"}):
        settings.CHATMEMORY = {"ENCRYPTION": {"KEYS": [KEY], **plain}}
        assert [message.id for message in checks.check_plain()] == ["chatmemory.W080"]

    settings.CHATMEMORY = {"ENCRYPTION": {"KEYS": [KEY], "PLAIN": "refuse"}}
    assert checks.check_plain() == []
