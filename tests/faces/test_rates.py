"""Rates: how many requests are allowed, and when the next one is."""

import pytest
from django.core.cache import cache

from chatmemory_django import access
from chatmemory_django.access import client_address, count_wrong_credentials, parsed_rate, seconds_to_wait


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> list[float]:
    """Empty the cache, and return the time, which tests may change."""
    cache.clear()
    now = [1_000_000.0]
    monkeypatch.setattr(access.time, "time", lambda: now[0])
    return now


def waits(name: str, rate: str | None, count: int) -> list[int]:
    return [seconds_to_wait(name, rate) for _ in range(count)]


@pytest.mark.parametrize(
    ("rate", "parsed"),
    [("5/s", (5, 1)), ("10/sec", (10, 1)), ("60/min", (60, 60)), ("1/hour", (1, 3600)), ("1000/day", (1000, 86_400))],
)
def test_a_rate_is_a_number_of_requests_in_a_unit_of_time(rate, parsed):
    assert parsed_rate(rate) == parsed


@pytest.mark.parametrize(
    "rate", ["", "5", "5/", "/min", "0/min", "-1/min", "5/month", "5/minutes", "5 / min", "\u0665/min"]
)
def test_any_other_rate_is_an_error(rate):
    with pytest.raises(ValueError, match="A rate is a number of requests per second, minute, hour or day"):
        parsed_rate(rate)


def test_requests_within_the_rate_do_not_wait():
    assert waits("a", "3/min", 3) == [0, 0, 0]


def test_further_requests_wait_for_the_end_of_the_period_that_began_with_the_first(clock):
    waits("a", "2/min", 1)
    clock[0] += 45.5

    assert waits("a", "2/min", 3) == [0, 15, 15]


def test_a_new_period_begins_when_the_last_one_has_ended(clock):
    assert waits("a", "1/min", 2) == [0, 60]
    clock[0] += 60

    assert waits("a", "1/min", 2) == [0, 60]


def test_each_name_is_counted_separately():
    assert waits("a", "1/min", 2) == [0, 60]
    assert waits("b", "1/min", 1) == [0]


def test_without_a_rate_there_is_no_limit():
    assert waits("a", None, 5) == [0] * 5


def test_a_counter_that_is_lost_begins_again(monkeypatch):
    monkeypatch.setattr(cache, "add", lambda *args, **options: False)

    assert waits("a", "1/min", 1) == [0]


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("unknown", "unknown"),
    ],
)
def test_a_client_is_counted_by_its_ipv4_address_or_its_ipv6_network(rf, settings, address, counted):
    settings.CHATMEMORY = {"REST": {"NUM_PROXIES": 1}}

    assert client_address(rf.get("/", REMOTE_ADDR=address)) == counted
    if address:
        assert client_address(rf.get("/", REMOTE_ADDR="10.0.0.9", headers={"X-Forwarded-For": address})) == counted


@pytest.mark.parametrize("account", ["ann", "\ud800", "a b\n\0", "ä" * 1000])
def test_wrong_passwords_are_counted_by_account_and_address(rf, settings, account):
    settings.CHATMEMORY = {"REST": {"THROTTLE_RATES": {"sign_in": "1/min"}}}
    one, other = rf.get("/", REMOTE_ADDR="10.0.0.1"), rf.get("/", REMOTE_ADDR="10.0.0.2")

    assert [count_wrong_credentials(one, account) for _ in range(2)] == [0, 60]
    assert [count_wrong_credentials(one, "bob"), count_wrong_credentials(other, account)] == [0, 0]
    assert [count_wrong_credentials(one) for _ in range(2)] == [0, 60]
