"""System checks of ``check --deploy``: what suits one process on a developer's machine, and no site with several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Warning  # noqa: A004  # Django's name for it
from django.db import connections, router

from chatmemory_django import conf
from chatmemory_django.db.engines import Dialect, dialect
from chatmemory_django.models import Conversation
from chatmemory_django.tokens.encodings import encoding_source

OF_ONE_PROCESS = ("locmem.LocMemCache", "dummy.DummyCache")
OF_PROXIES = ("SECURE_PROXY_SSL_HEADER", "USE_X_FORWARDED_HOST", "USE_X_FORWARDED_PORT")
"""Settings of Django that only make sense behind a proxy."""


def check_deployment(**kwargs: Any) -> list[CheckMessage]:
    """Check that the cache, the database and the rates suit several machines, and that none needs the network."""
    general, rest = conf.General.readable(), conf.Rest.readable()
    if general is None or rest is None:
        return []  # other checks report this
    return [*_cache(), *_database(), *_network(general), *_rates(rest), *_proxies(rest)]


def _cache() -> Iterator[CheckMessage]:
    backend = str(settings.CACHES["default"].get("BACKEND"))
    if backend.endswith(OF_ONE_PROCESS):
        yield Warning(
            f"CACHES['default'] is {backend!r}, in which each process counts alone: a user may send as many times "
            "the rates of CHATMEMORY as there are processes, and guess tokens as often.",
            hint="Use a cache that all processes share, such as django.core.cache.backends.redis.RedisCache.",
            id="chatmemory.W071",
        )


def _database() -> Iterator[CheckMessage]:
    alias = router.db_for_write(Conversation)
    if dialect(connections[alias]) is Dialect.SQLITE:
        yield Warning(
            f"DATABASES[{alias!r}], which stores conversations, streams, budgets and approvals, is SQLite: it is "
            "shared by the processes of one machine alone.",
            hint="Use PostgreSQL or MariaDB on several machines; on one, silence this check.",
            id="chatmemory.W072",
        )


def _network(general: conf.General) -> Iterator[CheckMessage]:
    if general.ALLOW_NETWORK is True and encoding_source("o200k_base") == "network":
        yield Warning(
            "CHATMEMORY['ALLOW_NETWORK'] is True and no encodings are installed: each new server downloads them when "
            "it first counts tokens, and fails if it cannot.",
            hint="Run pip install 'chatmemory_django[offline]', and set ALLOW_NETWORK to False.",
            id="chatmemory.W073",
        )


def _rates(rest: conf.Rest) -> Iterator[CheckMessage]:
    rates: object = rest.THROTTLE_RATES
    missing = [name for name in conf.RATES if isinstance(rates, Mapping) and name not in rates]
    if missing and apps.is_installed("rest_framework"):
        yield Warning(
            f"CHATMEMORY['REST']['THROTTLE_RATES'] has no rate for {', '.join(missing)}: these are not limited.",
            hint="Add a rate for each, or None if that is what you want; the setting replaces the default as a whole.",
            id="chatmemory.W074",
        )


def _proxies(rest: conf.Rest) -> Iterator[CheckMessage]:
    rates: object = rest.THROTTLE_RATES
    behind = [name for name in OF_PROXIES if getattr(settings, name, None)]
    if behind and rest.NUM_PROXIES == 0 and isinstance(rates, Mapping) and rates.get("sign_in"):
        yield Warning(
            f"{behind[0]} is set, so there is a proxy, but CHATMEMORY['REST']['NUM_PROXIES'] is 0: all clients are "
            "counted by the address of the proxy, as if they were one.",
            hint="Set it to the number of proxies that append to X-Forwarded-For; silence this check if the server "
            "itself reads that header, as uvicorn does with --forwarded-allow-ips.",
            id="chatmemory.W077",
        )
