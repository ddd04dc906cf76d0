"""Rates: how many requests are allowed, and when the next one is."""

import pytest
from django.core.cache import cache

from chatmemory_django import access
from chatmemory_django.access import parsed_rate, seconds_to_wait


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


def test_asking_does_not_count():
    assert [seconds_to_wait("a", "1/min", counts=False) for _ in range(3)] == [0, 0, 0]
    assert waits("a", "1/min", 1) == [0]
    assert [seconds_to_wait("a", "1/min", counts=False) for _ in range(2)] == [60, 60]


def test_a_counter_that_is_lost_begins_again(monkeypatch):
    monkeypatch.setattr(cache, "add", lambda *args, **options: False)

    assert waits("a", "1/min", 1) == [0]
