"""Each check of the setting CHAT is found by its id."""

import pytest
from django.core.checks import run_checks

from chatmemory_django.chat.access import ChatAccessPolicy
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.checks import check_chat
from tests.chat.scripted import ScriptedModel

assistant = Assistant(ScriptedModel("Yes."))


def assistant_of(request) -> Assistant:
    return assistant


class Own(ChatAccessPolicy):
    """A policy of somebody's own."""


def found(settings, chat: object) -> list[str]:
    settings.CHATMEMORY = {"CHAT": chat}
    return [each.id for each in check_chat()]


@pytest.mark.parametrize(
    "chat",
    [
        {},
        {"ASSISTANT": f"{__name__}.assistant", "THROTTLE_RATE": None, "WAIT_SECONDS": 0},
        {"ASSISTANT": f"{__name__}.assistant_of", "THROTTLE_RATE": "5/hour", "MAX_PARTS": 1},
        {"ASSISTANT": assistant},
        {"ACCESS_POLICY": f"{__name__}.Own", "STREAMS": "chatmemory_django.chat.redis_streams.RedisStreams"},
    ],
)
def test_nothing_is_said_of_good_settings(settings, chat):
    assert found(settings, chat) == []


@pytest.mark.parametrize("chat", [None, [], "yes"])
def test_E031_chat_is_no_dict(settings, chat):
    assert found(settings, chat) == ["chatmemory.E031"]


def test_W031_there_is_no_setting_of_that_name(settings):
    assert found(settings, {"ASISTANT": "x"}) == ["chatmemory.W031"]


@pytest.mark.parametrize("value", [-1, "1", 1.5, True, None], ids=repr)
@pytest.mark.parametrize("name", ["MAX_BODY_BYTES", "MAX_TEXT_LENGTH", "MAX_PARTS", "MAX_MESSAGES", "WAIT_SECONDS"])
def test_E032_a_limit_is_a_whole_number(settings, name, value):
    assert found(settings, {name: value}) == ["chatmemory.E032"]


@pytest.mark.parametrize("rate", ["often", "60", "60/", "/min", "60/month", 7, "-1/min"])
def test_E033_a_rate_is_so_many_in_a_time(settings, rate):
    assert found(settings, {"THROTTLE_RATE": rate}) == ["chatmemory.E033"]


@pytest.mark.parametrize("path", ["nowhere.assistant", f"{__name__}.Own", f"{__name__}.missing", 7, ""], ids=repr)
def test_E034_the_assistant_is_an_assistant(settings, path):
    assert found(settings, {"ASSISTANT": path}) == ["chatmemory.E034"]


@pytest.mark.parametrize("path", ["nowhere.Policy", f"{__name__}.assistant", None])
@pytest.mark.parametrize("name", ["ACCESS_POLICY", "STREAMS"])
def test_E035_the_classes_are_of_their_kind(settings, name, path):
    assert found(settings, {name: path}) == ["chatmemory.E035"]


@pytest.mark.parametrize("level", ["auto", "SHARP", None, 1])
def test_E036_there_is_no_such_level_of_detail(settings, level):
    assert found(settings, {"IMAGE_DETAIL": level}) == ["chatmemory.E036"]


@pytest.mark.django_db
def test_the_check_is_registered(settings):
    settings.CHATMEMORY = {"CHAT": []}

    assert "chatmemory.E031" in {each.id for each in run_checks()}


def test_a_wrong_CHATMEMORY_is_another_checks_error(settings):
    settings.CHATMEMORY = []

    assert check_chat() == []
