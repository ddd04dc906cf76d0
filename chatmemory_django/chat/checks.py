"""System checks of the setting ``CHAT``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004  # Django's name for it
from django.urls import NoReverseMatch, reverse

from chatmemory_django import conf
from chatmemory_django.access import is_rate
from chatmemory_django.chat.runs.streams import Streams
from chatmemory_django.memory import TokenWindowChatMemory
from chatmemory_django.messages import DetailLevel, Image, ImageContent, UserMessage
from chatmemory_django.tokens import OpenAiTokenCountEstimator, ScaledTokenCountEstimator, TokenCountEstimator

SMALLEST_IMAGE = Image(base64_data="R0lGODlhAQABAAAAACw=")  # the header of a GIF file of one pixel

LIMITS = ("max_tokens", "evict_to", "summary_tokens", "after_tokens")
"""The options of memories that may be functions of the memory id."""


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
        yield from _assistant(chat["ASSISTANT"], chat["IMAGE_DETAIL"])
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


def _assistant(named: object, image_detail: object) -> Iterator[CheckMessage]:
    from chatmemory_django.chat.assistant import Assistant  # requires extras that some sites lack

    found = conf.imported(named)
    if not isinstance(found, Assistant) and (isinstance(found, type) or not callable(found)):
        yield Error(
            f"CHATMEMORY['CHAT']['ASSISTANT'] must be the path of an Assistant, or of a function that takes a request "
            f"and returns an Assistant, not {named!r}.",
            hint="For example 'mysite.assistants.assistant', where assistant = Assistant(OpenAiChatModel('gpt-5')).",
            id="chatmemory.E034",
        )
        return
    if not isinstance(found, Assistant):
        return  # it depends on the request
    if getattr(found.model, "lacks_key", False):
        yield Warning(
            f"The model of {named!r}, CHATMEMORY['CHAT']['ASSISTANT'], has no API key, so it answers no question.",
            hint=(
                "Set the environment variable of its vendor, such as OPENAI_API_KEY or ANTHROPIC_API_KEY; a server "
                "without keys takes any text."
            ),
            id="chatmemory.W033",
        )
    if (limit := _token_limit(found)) and image_detail in list(DetailLevel.__members__):
        image = ImageContent(SMALLEST_IMAGE, DetailLevel[str(image_detail)])
        needed = limit.estimator.estimate_token_count_in_messages([UserMessage([image])])
        if needed > limit.max_tokens:
            yield Warning(
                f"The memory of {named!r}, CHATMEMORY['CHAT']['ASSISTANT'], can hold no image: even the smallest takes "
                f"{needed:,} tokens, and max_tokens is {limit.max_tokens:,}.",
                hint=(
                    'Raise max_tokens, write "IMAGE_DETAIL": "LOW", or choose a model whose images take fewer tokens '
                    "and count with it. Silence this check if nobody sends images."
                ),
                id="chatmemory.W034",
            )


class _TokenLimit(NamedTuple):
    max_tokens: int
    estimator: TokenCountEstimator


def _token_limit(assistant: Any) -> _TokenLimit | None:
    """Return the limit of *assistant*'s memories, if it is the same for all and a vendor need not be asked to count."""
    given: Any = conf.imported(conf.memory()) if assistant.memory is None else assistant.memory
    if not isinstance(given, Mapping | type):
        return None  # a function
    try:
        options = {**(given.get("OPTIONS", {}) if isinstance(given, Mapping) else {}), **assistant.memory_options}
        if any(callable(options.get(each)) for each in LIMITS):
            return None
        memory = assistant.chat_memory("check")
    except (ImportError, KeyError, TypeError, ValueError):  # another check reports it
        return None
    if not isinstance(memory, TokenWindowChatMemory) or not isinstance(memory.max_tokens, int):
        return None
    counts_here = isinstance(memory.token_count_estimator, OpenAiTokenCountEstimator | ScaledTokenCountEstimator)
    return _TokenLimit(memory.max_tokens, memory.token_count_estimator) if counts_here else None
