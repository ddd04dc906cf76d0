"""Past days are read from sums: these say the same as the calls, beside writers, and after calls or users are gone."""

import random
import threading
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from chatmemory_django.chat.costs.calls import Account, prune_calls
from chatmemory_django.chat.costs.summing import sum_calls
from chatmemory_django.chat.costs.usage import tokens_by_day, usage
from chatmemory_django.chat.models import CallSum, ModelCall

pytestmark = pytest.mark.django_db(transaction=True)

TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
DAYS = 100
KEYS = {"user": "owner_id", "model": "model", "purpose": "purpose", "outcome": "outcome"}


@pytest.fixture
def users() -> list[Any]:
    return [get_user_model().objects.create_user(name) for name in ("ann", "bob")]


@pytest.fixture
def calls(users, settings, monkeypatch) -> None:
    settings.USE_TZ = True
    monkeypatch.setattr("chatmemory_django.chat.costs.summing.SUMMED_AT_ONCE", 7)
    dice = random.Random(5)
    add(dice, [*users, None], 400)


def add(dice: random.Random, users: list[Any], number: int) -> None:
    def row() -> ModelCall:
        moment = TODAY + timedelta(hours=12) - timedelta(days=dice.randrange(DAYS), seconds=dice.randrange(86_400))
        return ModelCall(
            owner=dice.choice(users),
            purpose=dice.choice(["answer", "title"]),
            model=dice.choice("mn"),
            outcome=dice.choice(["completed", "cancelled"]),
            input_tokens=dice.choice([None, 10, 7]),
            output_tokens=dice.choice([None, 3]),
            cost=dice.choice([None, Decimal("0.25")]),
            # Many at the same moment, many at midnight.
            created_at=moment if dice.random() < 0.7 else moment.replace(hour=0, minute=0, second=0),
        )

    ModelCall.objects.bulk_create([row() for _ in range(number)])


def expected(by: str, since: datetime, until: datetime, calls: Any = None) -> dict[str | None, tuple[Any, ...]]:
    found: dict[str | None, list[Any]] = defaultdict(lambda: [0, 0, 0, 0, 0, None])
    for call in ModelCall.objects.all() if calls is None else calls:
        if not since <= call.created_at < until:
            continue
        key = call.created_at.astimezone(UTC).date() if by == "day" else getattr(call, KEYS[by])
        sums = found[None if key is None else str(key)]
        numbers = (1, call.input_tokens is None, call.cost is None, call.input_tokens or 0, call.output_tokens or 0)
        sums[:5] = [old + new for old, new in zip(sums, numbers, strict=False)]
        sums[5] = sums[5] if call.cost is None else (sums[5] or 0) + call.cost
    return {key: tuple(sums) for key, sums in found.items()}


def read(by: Any, since: datetime, until: datetime, calls: Any = None) -> dict[str | None, tuple[Any, ...]]:
    found = usage(ModelCall.objects.all() if calls is None else calls, by, since=since, until=until, limit=1000)
    return {each.key: (each.calls, each.uncounted, each.unpriced, each.input, each.output, each.cost) for each in found}


def periods() -> list[tuple[datetime, datetime]]:
    dice = random.Random(7)
    moments = [TODAY - timedelta(days=dice.uniform(-1, DAYS)) for _ in range(12)]
    midnights = [TODAY - timedelta(days=number) for number in (0, 1, 31, 62, DAYS)]
    pairs = [(dice.choice(moments), dice.choice(midnights)) for _ in range(4)]
    pairs += [(dice.choice(moments), dice.choice(moments)) for _ in range(4)]
    return [(min(pair), max(pair)) for pair in pairs] + [(midnights[-1], TODAY), (midnights[-1], TODAY + timedelta(9))]


def check_all() -> None:
    for since, until in periods():
        for by in (*KEYS, "day"):
            assert read(by, since, until) == expected(by, since, until), (by, since, until)


@pytest.mark.slow
def test_sums_say_what_the_calls_say(calls, users):
    check_all()
    past = ModelCall.objects.filter(created_at__lt=TODAY).count()

    assert sum_calls() == past
    assert sum_calls() == 0
    check_all()
    for since, until in periods():
        for owned in (ModelCall.objects.owned_by(users[0]), ModelCall.objects.filter(owner__in=users)):
            assert read("day", since, until, owned) == expected("day", since, until, owned)
            assert read("user", since, until, owned) == expected("user", since, until, owned)
        titles = ModelCall.objects.owned_by(users[1]).filter(purpose="title")
        assert read("model", since, until, titles) == expected("model", since, until, titles)
        tokens = {(str(day), model): number for day, model, number in tokens_by_day(
            ModelCall.objects.all(), since=since, until=until)}  # fmt: skip
        assert sum(tokens.values()) == sum(each[3] + each[4] for each in expected("model", since, until).values())


@pytest.mark.slow
def test_late_calls_count_at_once_and_are_summed_later(calls, users):
    sum_calls()
    add(random.Random(11), users, 40)
    check_all()

    assert sum_calls() > 0
    check_all()


@pytest.mark.slow
def test_there_is_one_row_for_the_same_keys_and_one_statement_reads_a_year(calls, users):
    sum_calls()
    add(random.Random(11), users, 40)
    sum_calls()

    for span, keys in {"month": ["owner"], "total": ["model", "purpose", "outcome"]}.items():
        rows = CallSum.objects.filter(span=span).values_list("begin", *keys)
        assert len(rows) == len(set(rows))
    with CaptureQueriesContext(connection) as captured:
        read("user", TODAY - timedelta(days=365), TODAY + timedelta(hours=5))
    assert len(captured) == 1


@pytest.mark.slow
def test_sums_outlive_their_calls_and_so_does_what_counts_for_a_budget(calls, users):
    since, until = TODAY - timedelta(days=DAYS + 9), TODAY + timedelta(days=1)
    whole = {by: read(by, since, until) for by in (*KEYS, "day")}
    own = read("model", since, until, ModelCall.objects.owned_by(users[0]))
    spent = Account(users[0].pk).spent(TODAY - timedelta(days=31))

    assert prune_calls(timedelta(days=5)) > 300
    assert {by: read(by, since, until) for by in (*KEYS, "day")} == whole
    assert read("model", since, until, ModelCall.objects.owned_by(users[0])) == own
    assert Account(users[0].pk).spent(TODAY - timedelta(days=31)) == spent


def test_sums_do_not_name_an_erased_owner(calls, users):
    sum_calls()
    since, until = TODAY - timedelta(days=DAYS + 9), TODAY + timedelta(days=1)
    users[0].delete()

    assert set(CallSum.objects.values_list("owner", flat=True)) == {None, users[1].pk}
    assert read("user", since, until) == expected("user", since, until)


@pytest.mark.skipif(connection.vendor == "sqlite", reason="In memory, threads cannot race on SQLite")
def test_two_that_sum_beside_writers_count_each_call_once(calls, users):
    def summing() -> None:
        try:
            for _ in range(3):
                sum_calls()
        finally:
            connections.close_all()

    def writing() -> None:
        try:
            for number in range(10):
                with transaction.atomic():
                    add(random.Random(number), users, 5)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=each) for each in (summing, summing, writing)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert ModelCall.objects.count() == 450
    check_all()
    sum_calls()
    check_all()
