"""A run on which nobody works is taken over by one process, and by one only."""

import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connections

from chatmemory_django.chat.models import Run
from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.runs.leases import State, Taken
from chatmemory_django.models import Conversation
from chatmemory_django.operations import erase
from chatmemory_django.stores.base import LeaseLostError
from tests.database.chat.runs.test_leases import let_die, store, texts
from tests.database.interleaving import another_writer

pytestmark = pytest.mark.django_db(transaction=True)


def take(assistant: str | None = "") -> Taken:
    taken = leases.take("default", "c", None, uuid4(), assistant)
    assert isinstance(taken, Taken)
    return taken


def take_over(run: UUID) -> Taken | None:
    return leases.take_over("default", run)


def at_once(count: int, function: Callable[[], Any]) -> list[Any]:
    """Return what *function* returns in as many threads, which begin it together."""
    returned, start = [], threading.Barrier(count)

    def call() -> None:
        try:
            start.wait()
            returned.append(function())
        finally:
            connections.close_all()

    threads = [threading.Thread(target=call) for _ in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return returned


def test_it_keeps_its_id_and_has_a_fence_of_its_own():
    dead = take()
    let_die(dead)

    taken = take_over(dead.run)

    assert taken == Taken(dead.run, dead.conversation, dead.fence + 1, "default")
    run = Run.objects.get()
    assert (run.pk, run.state, run.fence) == (dead.run, State.RUNNING, Conversation.objects.get().fence)
    assert take_over(dead.run) is None  # it is renewed


def test_the_process_that_had_it_stores_nothing_any_more_and_ends_nothing():
    dead = take()
    let_die(dead)
    taken = take_over(dead.run)

    with pytest.raises(LeaseLostError):
        store(dead, "of the dead")
    assert not leases.end(dead, State.FAILED)
    assert not leases.hand_over(dead)
    assert leases.stopping("default", [dead]) == {}
    assert leases.stopping("default", [taken]) == {dead.run: False}
    store(taken, "of the living")
    assert texts() == ["of the living"]
    assert leases.end(taken, State.DONE)


def test_one_that_was_handed_over_is_taken_at_once():
    first = take()
    assert leases.hand_over(first)
    assert Run.objects.get().state == State.ASKED

    assert isinstance(take_over(first.run), Taken)
    assert Run.objects.get().state == State.RUNNING


OTHERS = ["is renewed", "has ended", "is of code of the site", "was never there", "gave way"]


@pytest.mark.parametrize("other", OTHERS)
def test_others_are_left_alone(other):
    taken = take(None if other == "is of code of the site" else "")
    run = taken.run
    match other:
        case "has ended":
            leases.end(taken, State.INTERRUPTED)
        case "is of code of the site" | "gave way":
            let_die(taken)
        case "was never there":
            run = uuid4()
    if other == "gave way":
        take()
    fence = Conversation.objects.values_list("fence", flat=True).first()

    assert take_over(run) is None

    assert Conversation.objects.values_list("fence", flat=True).first() == fence


def test_of_many_at_once_one_gets_it():
    for state in (State.RUNNING, State.ASKED):
        Run.objects.all().delete()
        dead = take()
        let_die(dead)
        Run.objects.update(state=state)

        taken = at_once(8, lambda run=dead.run: take_over(run))

        [winner] = [each for each in taken if each is not None]
        assert winner.fence == dead.fence + 1 == Conversation.objects.get().fence == Run.objects.get().fence
        leases.end(winner, State.DONE)


@pytest.mark.parametrize("is_question", [True, False])
@pytest.mark.parametrize("after", [1, 2, 3, 4, 5])
def test_between_any_two_statements_a_question_or_another_process_comes_first_or_does_not(after, is_question):
    dead = take()
    let_die(dead)

    def come_first() -> None:
        leases.take("default", "c", None, uuid4(), "") if is_question else take_over(dead.run)

    with another_writer(come_first, after):
        taken = take_over(dead.run)

    [run] = Run.objects.filter(active__isnull=False)
    assert run.fence == Conversation.objects.get().fence
    assert run.pk == dead.run or taken is None


def test_one_whose_conversation_is_erased_is_gone():
    dead = take()
    let_die(dead)

    with another_writer(lambda: erase(Conversation.objects.filter(memory_id="c")), 1):
        assert take_over(dead.run) is None

    assert not Run.objects.exists()
