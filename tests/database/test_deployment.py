"""``check --deploy``: what suits one process alone."""

import os
import sys
from types import SimpleNamespace

import pytest
from django.core.checks import run_checks
from django.core.checks.registry import registry

from chatmemory_django import conf, deployment
from chatmemory_django.deployment import check_deployment

LOCAL = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
REDIS = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://127.0.0.1"}}


@pytest.fixture(autouse=True)
def deployed(settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything suit several machines."""
    settings.CACHES, settings.CHATMEMORY = REDIS, {}
    settings.WSGI_APPLICATION, settings.ASGI_APPLICATION = None, "mysite.asgi.application"
    monkeypatch.setattr(deployment, "connections", {"default": SimpleNamespace(vendor="postgresql")})


def found() -> list[str]:
    return [message.id for message in check_deployment()]


def test_a_site_that_suits_several_machines_has_no_warning():
    assert found() == []


@pytest.mark.django_db  # for the checks of other apps
def test_it_runs_with_deploy_alone():
    assert check_deployment in registry.deployment_checks
    assert not {"chatmemory.W071", "chatmemory.W072"} & {message.id for message in run_checks()}


def test_W071_a_cache_of_one_process(settings):
    settings.CACHES = LOCAL

    assert found() == ["chatmemory.W071"]


def test_W072_sqlite(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deployment, "connections", {"default": SimpleNamespace(vendor="sqlite")})

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

    (message,) = check_deployment()

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
    rates = {**conf.DEFAULT_REST["THROTTLE_RATES"], "sign_in": None}
    settings.CHATMEMORY = {"REST": {"THROTTLE_RATES": rates}}
    assert found() == []


@pytest.mark.parametrize("wrong", [None, {"REST": 5}, {"CHAT": None}, {"ENCRYPTION": []}])
def test_what_other_checks_report_is_left_to_them(settings, wrong: object):
    settings.CHATMEMORY = wrong

    assert found() == []
