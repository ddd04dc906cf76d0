"""System checks of the setting ``CHAT``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004  # Django's name for it
from django.urls import NoReverseMatch, reverse

from chatmemory_django import conf
from chatmemory_django.access import is_rate
from chatmemory_django.chat.runs.streams import Streams
from chatmemory_django.messages import DetailLevel


def check_chat(**kwargs: Any) -> list[CheckMessage]:
    """Check ``CHATMEMORY["CHAT"]``."""
    return conf.check_dict(
        "CHAT",
        conf.DEFAULT_CHAT,
        _values,
        hint='Write "CHAT": {"ASSISTANT": "mysite.assistants.assistant"}, for example.',
        ids=("chatmemory.E031", "chatmemory.W031", "chatmemory.E032"),
    )


def check_assistant(**kwargs: Any) -> list[CheckMessage]:
    """Warn if the chat has no assistant: then it refuses every question."""
    chatmemory: object = getattr(settings, "CHATMEMORY", {})
    chat = chatmemory.get("CHAT", {}) if isinstance(chatmemory, Mapping) else None
    if not isinstance(chat, Mapping) or chat.get("ASSISTANT") is not None or not _is_included():
        return []  # or other checks report it
    return [
        Warning(
            "CHATMEMORY['CHAT'] has no 'ASSISTANT', so the chat answers every question with 503.",
            hint="Name your assistant, for example 'mysite.assistants.assistant', or remove the chat's URLs.",
            id="chatmemory.W032",
        )
    ]


def _is_included() -> bool:
    """Return whether the site has URLs, and includes those of the chat."""
    if not hasattr(settings, "ROOT_URLCONF"):
        return False
    try:
        reverse("chatmemory_chat:chat")
    except NoReverseMatch:
        return False
    return True


def _values(chat: Mapping[str, Any]) -> Iterator[CheckMessage]:
    for name in ("THROTTLE_RATE", "READ_THROTTLE_RATE"):
        if not is_rate(chat[name]):
            yield Error(
                f"CHATMEMORY['CHAT'][{name!r}] must be a rate or None, not {chat[name]!r}.",
                hint="A rate is '10/sec', '60/min', '100/hour' or '1000/day'; use None for no limit.",
                id="chatmemory.E033",
            )
    if chat["ASSISTANT"] is not None:
        yield from _assistant(chat["ASSISTANT"])
    default = conf.DEFAULT_CHAT["STREAMS"]
    yield from conf.check_class("CHATMEMORY['CHAT']['STREAMS']", chat["STREAMS"], Streams, default, "chatmemory.E035")
    missing = getattr(conf.imported(chat["STREAMS"]), "__abstractmethods__", None)
    if missing:
        yield Error(
            f"{chat['STREAMS']!r}, CHATMEMORY['CHAT']['STREAMS'], does not implement {', '.join(sorted(missing))}.",
            hint="Implement all abstract methods of Streams, or extend DatabaseStreams or RedisStreams.",
            id="chatmemory.E037",
        )
    names = [level.name for level in DetailLevel]
    if chat["IMAGE_DETAIL"] not in names:
        yield Error(
            f"CHATMEMORY['CHAT']['IMAGE_DETAIL'] must be one of {', '.join(names)}, not {chat['IMAGE_DETAIL']!r}.",
            hint="OpenAI supports LOW, HIGH and AUTO, the default.",
            id="chatmemory.E036",
        )


def _assistant(named: object) -> Iterator[CheckMessage]:
    from chatmemory_django.chat.assistant import Assistant  # requires extras that some sites lack

    found = conf.imported(named)
    if not isinstance(found, Assistant) and (isinstance(found, type) or not callable(found)):
        yield Error(
            f"CHATMEMORY['CHAT']['ASSISTANT'] must be the path of an Assistant, or of a function that takes a request "
            f"and returns an Assistant, not {named!r}.",
            hint="For example 'mysite.assistants.assistant', where assistant = Assistant(OpenAiChatModel('gpt-5')).",
            id="chatmemory.E034",
        )
    elif isinstance(found, Assistant) and getattr(found.model, "lacks_key", False):
        yield Warning(
            f"The model of {named!r}, CHATMEMORY['CHAT']['ASSISTANT'], has no API key, so it answers no question.",
            hint=(
                "Set the environment variable of its vendor, such as OPENAI_API_KEY or ANTHROPIC_API_KEY; a server "
                "without keys takes any text."
            ),
            id="chatmemory.W033",
        )
