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

from chatmemory_django.chat.costs.budgets import Limits
from chatmemory_django.chat.costs.calls import Account, prune_calls
from chatmemory_django.chat.costs.conf import Budget
from chatmemory_django.chat.costs.summing import sum_calls
from chatmemory_django.chat.costs.usage import tokens_by_day, usage
from chatmemory_django.chat.models import CallSum, ModelCall

pytestmark = pytest.mark.django_db(transaction=True)

TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
DAYS = 100
KEYS = {"user": "owner_id", "model": "model", "purpose": "purpose", "outcome": "outcome"}
LABELS = ("tenant", "feature")
LABELLED = [
    {},
    {"tenant": "acme"},
    {"tenant": "Acme"},
    {"tenant": "acme "},
    {"feature": 'é"5'},
    {"tenant": "5", "feature": "true"},
]
ALL_BY = (*KEYS, "day", *(f"label:{name}" for name in LABELS))


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
            labels=dice.choice(LABELLED),
            # Many at the same moment, many at midnight.
            created_at=moment if dice.random() < 0.7 else moment.replace(hour=0, minute=0, second=0),
        )

    ModelCall.objects.bulk_create([row() for _ in range(number)])


def key_of(call: ModelCall, by: str) -> Any:
    if by == "day":
        return call.created_at.astimezone(UTC).date()
    return getattr(call, KEYS[by]) if by in KEYS else call.labels.get(by.removeprefix("label:"))


def expected(by: str, since: datetime, until: datetime, calls: Any = None) -> dict[str | None, tuple[Any, ...]]:
    found: dict[str | None, list[Any]] = defaultdict(lambda: [0, 0, 0, 0, 0, None])
    for call in ModelCall.objects.all() if calls is None else calls:
        if not since <= call.created_at < until:
            continue
        key = key_of(call, by)
        sums = found[None if key is None else str(key)]
        numbers = (1, call.input_tokens is None, call.cost is None, call.input_tokens or 0, call.output_tokens or 0)
        sums[:5] = [old + new for old, new in zip(sums, numbers, strict=False)]
        sums[5] = sums[5] if call.cost is None else (sums[5] or 0) + call.cost
    return {key: tuple(sums) for key, sums in found.items()}


def read(
    by: Any, since: datetime, until: datetime, calls: Any = None, labels: Any = None
) -> dict[str | None, tuple[Any, ...]]:
    calls = ModelCall.objects.all() if calls is None else calls
    found = usage(calls, by, since=since, until=until, limit=1000, labels=labels)
    return {each.key: (each.calls, each.uncounted, each.unpriced, each.input, each.output, each.cost) for each in found}


def periods() -> list[tuple[datetime, datetime]]:
    dice = random.Random(7)
    moments = [TODAY - timedelta(days=dice.uniform(-1, DAYS)) for _ in range(12)]
    midnights = [TODAY - timedelta(days=number) for number in (0, 1, 31, 62, DAYS)]
    pairs = [(dice.choice(moments), dice.choice(midnights)) for _ in range(4)]
    pairs += [(dice.choice(moments), dice.choice(moments)) for _ in range(4)]
    return [(min(pair), max(pair)) for pair in pairs] + [(midnights[-1], TODAY), (midnights[-1], TODAY + timedelta(9))]


def month_of(user: Any) -> list[Any]:
    budget = Budget(1, None, "month")
    return Limits([budget], Account(user.pk), {}).spent()


def check_all() -> None:
    for since, until in periods():
        for by in ALL_BY:
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
            assert read("label:tenant", since, until, owned) == expected("label:tenant", since, until, owned)
        titles = ModelCall.objects.owned_by(users[1]).filter(purpose="title")
        assert read("model", since, until, titles) == expected("model", since, until, titles)
        tokens = {(str(day), model): number for day, model, number in tokens_by_day(
            ModelCall.objects.all(), since=since, until=until)}  # fmt: skip
        assert sum(tokens.values()) == sum(each[3] + each[4] for each in expected("model", since, until).values())


@pytest.mark.slow
@pytest.mark.parametrize("is_summed", [False, True])
def test_the_calls_with_given_labels_are_summed_alone(calls, users, is_summed):
    if is_summed:
        sum_calls()
    for labels in ({"tenant": "acme"}, {"tenant": "Acme"}, {"tenant": "5", "feature": "true"}, {"feature": "none"}):
        own = [each for each in ModelCall.objects.all() if labels.items() <= each.labels.items()]
        for since, until in periods():
            for by in ALL_BY:
                assert read(by, since, until, labels=labels) == expected(by, since, until, own), (labels, by)


@pytest.mark.slow
def test_by_a_label_the_numbers_add_up_to_those_of_all_calls_after_the_calls_are_pruned_too(calls):
    since, until = TODAY - timedelta(days=DAYS + 9), TODAY + timedelta(days=1)
    whole = [0, 0, 0, 0, 0]
    for each in expected("purpose", since, until).values():
        whole = [old + new for old, new in zip(whole, each, strict=False)]
    prune_calls(timedelta(days=5))

    for name in LABELS:
        found = read(f"label:{name}", since, until).values()
        assert [sum(each[place] for each in found) for place in range(5)] == whole


@pytest.mark.parametrize("by", ["tenant", "label:", "label:a b", "labels:tenant", "owner"])
def test_what_calls_cannot_be_grouped_by_is_an_error(by):
    with pytest.raises(ValueError, match="by must be one of day, model"):
        read(by, TODAY, TODAY)


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
        rows = [str(row) for row in CallSum.objects.filter(span=span).values_list("begin", "labels", *keys)]
        assert len(rows) == len(set(rows))
    with CaptureQueriesContext(connection) as captured:
        read("user", TODAY - timedelta(days=365), TODAY + timedelta(hours=5))
    assert len(captured) == 1


@pytest.mark.slow
def test_sums_outlive_their_calls_and_so_does_what_counts_for_a_budget(calls, users):
    since, until = TODAY - timedelta(days=DAYS + 9), TODAY + timedelta(days=1)
    whole = {by: read(by, since, until) for by in ALL_BY}
    own = read("model", since, until, ModelCall.objects.owned_by(users[0]))
    spent = month_of(users[0])

    assert prune_calls(timedelta(days=5)) > 300
    assert {by: read(by, since, until) for by in ALL_BY} == whole
    assert read("model", since, until, ModelCall.objects.owned_by(users[0])) == own
    assert month_of(users[0]) == spent


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
