"""System checks of the setting ``CHAT``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004  # Django's name for it
from django.utils.module_loading import import_string

from chatmemory_django import conf
from chatmemory_django.access import parsed_rate
from chatmemory_django.chat.streams import Streams
from chatmemory_django.messages import DetailLevel


def check_chat(**kwargs: Any) -> list[CheckMessage]:
    """Check ``CHATMEMORY["CHAT"]``."""
    chatmemory: object = getattr(settings, "CHATMEMORY", {})
    if not isinstance(chatmemory, Mapping):
        return []  # another check reports this
    given: object = chatmemory.get("CHAT", {})
    if not isinstance(given, Mapping):
        return [
            Error(
                f"CHATMEMORY['CHAT'] must be a dict, not {type(given).__name__}.",
                hint='Write "CHAT": {"ASSISTANT": "mysite.assistants.assistant"}, for example.',
                id="chatmemory.E031",
            )
        ]
    return [*_names(given), *_numbers(given), *_rate(given), *_assistant(given), *_streams(given), *_detail(given)]


def _names(given: Mapping[Any, Any]) -> Iterator[CheckMessage]:
    for name in sorted(set(given) - set(conf.DEFAULT_CHAT), key=str):
        yield Warning(
            f"CHATMEMORY['CHAT'] has an unknown key {name!r}, which has no effect.",
            hint=f"The valid keys are {', '.join(sorted(conf.DEFAULT_CHAT))}.",
            id="chatmemory.W031",
        )


def _numbers(given: Mapping[Any, Any]) -> Iterator[CheckMessage]:
    for name, default in conf.DEFAULT_CHAT.items():
        value: object = given.get(name, default)
        least = min(1, default) if isinstance(default, int) else 0
        if isinstance(default, int) and (type(value) is not int or value < least):
            yield Error(
                f"CHATMEMORY['CHAT'][{name!r}] must be a whole number of at least {least}, not {value!r}.",
                hint=f"Remove it to use the default of {default}.",
                id="chatmemory.E032",
            )


def _rate(given: Mapping[Any, Any]) -> Iterator[CheckMessage]:
    rate = given.get("THROTTLE_RATE")
    if rate is None:
        return
    try:
        parsed_rate(rate)
    except (TypeError, ValueError):
        yield Error(
            f"CHATMEMORY['CHAT']['THROTTLE_RATE'] must be a rate or None, not {rate!r}.",
            hint="A rate is '10/sec', '60/min', '100/hour' or '1000/day'; use None for no limit.",
            id="chatmemory.E033",
        )


def _assistant(given: Mapping[Any, Any]) -> Iterator[CheckMessage]:
    named: object = given.get("ASSISTANT")
    if named is None:
        return
    from chatmemory_django.chat.assistant import Assistant  # requires extras that some sites lack

    found = _imported(named)
    if not isinstance(found, Assistant) and (isinstance(found, type) or not callable(found)):
        yield Error(
            f"CHATMEMORY['CHAT']['ASSISTANT'] must be the path of an Assistant, or of a function that takes a request "
            f"and returns an Assistant, not {named!r}.",
            hint="For example 'mysite.assistants.assistant', where assistant = Assistant(OpenAiChatModel('gpt-5')).",
            id="chatmemory.E034",
        )


def _streams(given: Mapping[Any, Any]) -> Iterator[CheckMessage]:
    path: object = given.get("STREAMS", conf.DEFAULT_CHAT["STREAMS"])
    found = _imported(path)
    if not (isinstance(found, type) and issubclass(found, Streams)):
        yield Error(
            f"CHATMEMORY['CHAT']['STREAMS'] must be the path of a subclass of Streams, not {path!r}.",
            hint=f"For example {conf.DEFAULT_CHAT['STREAMS']!r}, the default.",
            id="chatmemory.E035",
        )


def _detail(given: Mapping[Any, Any]) -> Iterator[CheckMessage]:
    value: object = given.get("IMAGE_DETAIL", conf.DEFAULT_CHAT["IMAGE_DETAIL"])
    names = [level.name for level in DetailLevel]
    if value not in names:
        yield Error(
            f"CHATMEMORY['CHAT']['IMAGE_DETAIL'] must be one of {', '.join(names)}, not {value!r}.",
            hint="OpenAI supports LOW, HIGH and AUTO, the default.",
            id="chatmemory.E036",
        )


def _imported(named: object) -> object:
    try:
        return import_string(named) if isinstance(named, str) else named
    except ImportError:
        return None
