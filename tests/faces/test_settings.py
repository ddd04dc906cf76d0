"""The settings as values: what a site has set, and for the rest the defaults."""

from datetime import timedelta

import pytest
from django.test import override_settings

from chatmemory_django import conf
from chatmemory_django.chat.conf import Chat, chat_settings
from chatmemory_django.chat.costs.conf import Costs
from chatmemory_django.contrib.encryption.conf import Encryption
from chatmemory_django.contrib.files.conf import StorageOfFiles

SECTIONS = [conf.General, conf.Rest, conf.Threads, conf.Retention, Chat, Costs, Encryption, StorageOfFiles]


@pytest.mark.parametrize("section", SECTIONS)
def test_what_is_not_set_has_its_default(settings, section):
    for given in ({}, {section.key: {}} if section.key else {}, {"OTHER": 5}):
        settings.CHATMEMORY = given
        current = section.current()
        assert {name: getattr(current, name) for name in section.defaults()} == section.defaults()
    del settings.CHATMEMORY
    assert section.current().defaults() == section.defaults()


def test_a_section_is_read_once_until_the_settings_change(settings):
    settings.CHATMEMORY = {"KEEP_HISTORY": False, "CHAT": {"MAX_PARTS": 3}}
    before = conf.general(), chat_settings()

    settings.CHATMEMORY = {"KEEP_HISTORY": False, "CHAT": {"MAX_PARTS": 3}}  # equal ones
    assert conf.general() is before[0]
    assert chat_settings() is before[1]

    with override_settings(CHATMEMORY={"CHAT": {"MAX_PARTS": 4}}):
        assert (conf.general().KEEP_HISTORY, chat_settings().MAX_PARTS) == (True, 4)
    assert (conf.general().KEEP_HISTORY, chat_settings().MAX_PARTS) == (False, 3)


def test_a_change_in_place_has_an_effect_at_once(settings):
    settings.CHATMEMORY = {"CHAT": {"MAX_PARTS": 3, "THREADS": 5}}
    held = chat_settings()

    settings.CHATMEMORY["CHAT"]["MAX_PARTS"] = 4
    settings.CHATMEMORY["KEEP_HISTORY"] = False
    assert (chat_settings().MAX_PARTS, conf.general().KEEP_HISTORY) == (4, False)
    assert held.MAX_PARTS == 3  # who has read them sees no change in between

    del settings.CHATMEMORY["CHAT"]["THREADS"]
    assert conf.threads().THREADS == Chat.THREADS


def test_what_the_chat_and_the_memory_both_read_of_a_section_is_the_same(settings):
    settings.CHATMEMORY = {"CHAT": {"THREADS": 5, "MAX_PARTS": 3}}

    assert (conf.threads().THREADS, chat_settings().THREADS, type(chat_settings())) == (5, 5, Chat)


def test_a_function_in_the_settings_is_no_method(settings):
    settings.CHATMEMORY = {"MEMORY": lambda memory_id: {"CLASS": memory_id}}

    assert conf.imported(conf.general().MEMORY)("of") == {"CLASS": "of"}


def test_an_equal_value_of_another_type_is_no_valid_one_because_it_was_read(settings):
    settings.CHATMEMORY = {"KEEP_HISTORY": True}
    assert (conf.general().KEEP_HISTORY, conf.General.check()) == (True, [])

    settings.CHATMEMORY["KEEP_HISTORY"] = 1
    assert [each.id for each in conf.General.check()] == ["chatmemory.E006"]


def test_a_number_of_days_is_a_period(settings):
    settings.CHATMEMORY = {"RETENTION": {"IDLE": 2}}

    assert conf.retention() == {"HISTORY_OLDER_THAN": None, "IDLE": timedelta(days=2), "TEMPORARY": timedelta(days=1)}
    settings.CHATMEMORY = {}
    assert conf.retention() is None
