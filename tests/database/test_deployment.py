"""``check --deploy``: what suits one process alone."""

import os
import sys
from types import SimpleNamespace

import pytest
from django.core.checks import run_checks
from django.core.checks.registry import registry

from chatmemory_django import conf, deployment
from chatmemory_django.chat import checks as chat
from chatmemory_django.chat.checks import check_chat_deployment
from chatmemory_django.contrib.encryption.checks import check_written_keys
from chatmemory_django.deployment import check_deployment

CHECKS = (check_deployment, check_chat_deployment, check_written_keys)
LOCAL = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
REDIS = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://127.0.0.1"}}


@pytest.fixture(autouse=True)
def deployed(settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything suit several machines."""
    settings.CACHES, settings.CHATMEMORY = REDIS, {}
    settings.WSGI_APPLICATION, settings.ASGI_APPLICATION = None, "mysite.asgi.application"
    connect(monkeypatch, CONN_MAX_AGE=60)


def connect(monkeypatch: pytest.MonkeyPatch, **given: object) -> None:
    """Let the database be one of a server, with the settings *given*."""
    settings_dict = {"CONN_MAX_AGE": 0, "OPTIONS": {}, **given}
    connection = SimpleNamespace(data_types={"JSONField": "jsonb"}, settings_dict=settings_dict)
    for module in (deployment, chat):
        monkeypatch.setattr(module, "connections", {"default": connection})


def found() -> list[str]:
    return [message.id for check in CHECKS for message in check()]


def test_a_site_that_suits_several_machines_has_no_warning():
    assert found() == []


@pytest.mark.django_db  # for the checks of other apps
def test_it_runs_with_deploy_alone():
    assert {check_deployment, check_chat_deployment} < registry.deployment_checks
    assert not {"chatmemory.W071", "chatmemory.W072"} & {message.id for message in run_checks()}


def test_W071_a_cache_of_one_process(settings):
    settings.CACHES = LOCAL

    assert found() == ["chatmemory.W071"]


def test_W072_sqlite(monkeypatch: pytest.MonkeyPatch):
    sqlite = SimpleNamespace(data_types={"JSONField": "text"})
    for module in (deployment, chat):
        monkeypatch.setattr(module, "connections", {"default": sqlite})

    assert found() == ["chatmemory.W072"]


def test_W073_encodings_from_the_network(settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deployment, "encoding_source", lambda name: "network")
    assert found() == ["chatmemory.W073"]

    settings.CHATMEMORY = {"ALLOW_NETWORK": False}
    assert found() == []


def test_W074_a_kind_of_request_without_a_rate(settings):
    settings.CHATMEMORY = {"REST": {"THROTTLE_RATES": {"read": "1/min", "write": None}}}

    (message,) = check_deployment()

    assert message.id == "chatmemory.W074"
    assert "no rate for fork, export, import, usage, sign_in" in message.msg


def test_W075_a_key_that_is_written_in_the_settings_is_named_by_its_place(settings, monkeypatch, tmp_path):
    key, other = "2026:c2VjcmV0", "2025:b3RoZXI="
    (tmp_path / "settings.py").write_text(f'KEYS = ["{key}"]')
    monkeypatch.setitem(
        sys.modules, os.environ["DJANGO_SETTINGS_MODULE"], SimpleNamespace(__file__=str(tmp_path / "settings.py"))
    )
    settings.CHATMEMORY = {"ENCRYPTION": {"KEYS": [other, key]}}

    (message,) = check_written_keys()

    assert (message.id, "['KEYS'][1]" in message.msg) == ("chatmemory.W075", True)
    assert key not in str(message)


def test_W076_streams_under_wsgi(settings):
    settings.WSGI_APPLICATION, settings.ASGI_APPLICATION = "mysite.wsgi.application", None

    assert found() == ["chatmemory.W076"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SECURE_PROXY_SSL_HEADER", ("HTTP_X_FORWARDED_PROTO", "https")),
        ("USE_X_FORWARDED_HOST", True),
        ("USE_X_FORWARDED_PORT", True),
    ],
)
def test_W077_a_proxy_behind_which_all_clients_are_counted_as_one(settings, name: str, value: object):
    setattr(settings, name, value)

    (message,) = check_deployment()
    assert (message.id, message.msg.split()[0]) == ("chatmemory.W077", name)

    settings.CHATMEMORY = {"REST": {"NUM_PROXIES": 1}}
    assert found() == []
    rates = {**conf.RATES, "sign_in": None}
    settings.CHATMEMORY = {"REST": {"THROTTLE_RATES": rates}}
    assert found() == []


@pytest.mark.parametrize("wrong", [None, {"REST": 5}, {"CHAT": None}, {"ENCRYPTION": []}])
def test_what_other_checks_report_is_left_to_them(settings, wrong: object):
    settings.CHATMEMORY = wrong

    assert found() == []


@pytest.mark.parametrize(
    ("pool", "threads", "ids"),
    [
        ({"max_size": 8}, 8, []),
        ({"max_size": 8}, 9, ["chatmemory.W078"]),
        ({"min_size": 9}, 9, []),
        ({"min_size": 2, "max_size": None}, 3, ["chatmemory.W078"]),
        (True, 4, []),
        (True, 5, ["chatmemory.W078"]),
    ],
)
def test_W078_more_threads_than_connections_of_the_pool(settings, monkeypatch, pool, threads, ids):
    settings.CHATMEMORY = {"CHAT": {"THREADS": threads}}
    connect(monkeypatch, OPTIONS={"pool": pool})

    assert found() == ids


@pytest.mark.parametrize(("age", "ids"), [(0, ["chatmemory.W079"]), (60, []), (None, [])])
def test_W079_a_connection_for_each_call(monkeypatch, age, ids):
    connect(monkeypatch, CONN_MAX_AGE=age)
    assert found() == ids
