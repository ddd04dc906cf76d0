"""Renewals: a process that is alive shows it, whatever its threads and its other connections wait for."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from uuid import uuid4

import pytest
from django.db import connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.models import F

from chatmemory_django.chat.models import Run
from chatmemory_django.chat.runs import leases, renewals
from chatmemory_django.chat.runs.leases import State, Taken
from chatmemory_django.chat.runs.renewals import Renewal, renewal
from chatmemory_django.db import threads
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.database.interleaving import Connected
from tests.logs import logged_by
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE = 30
"""Seconds after which a test gives up waiting."""

on_servers = pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one lock for the whole file")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewals, "RENEW", 0.02)


def take(memory_id: str = "c") -> Taken:
    MessageWindowChatMemory(max_messages=9, id=memory_id, store=DjangoChatMemoryStore()).add(UserMessage("Hi."))
    taken = leases.take("default", memory_id, None, uuid4())
    assert isinstance(taken, Taken)
    return taken


def lease(taken: Taken) -> datetime:
    return Run.objects.get(pk=taken.run).lease


def is_renewed(taken: Taken) -> bool:
    before = lease(taken)
    return wait_until(lambda: lease(taken) > before)


@contextmanager
def held(statement: str, *values: object) -> Iterator[None]:
    """Hold the locks of *statement* in a transaction of another connection."""
    are_held, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement, values)
            are_held.set()
            assert may_go.wait(PATIENCE)

    holding = Connected(hold)
    holding.start()
    assert are_held.wait(PATIENCE)
    yield
    may_go.set()
    holding.end()


def test_a_run_is_renewed_until_it_ends():
    one, other = take("one"), take("other")

    assert is_renewed(one)
    assert is_renewed(other)
    leases.end(one, State.DONE)
    ended = lease(one)
    assert is_renewed(other)
    assert lease(one) == ended
    leases.end(other, State.DONE)

    assert wait_until(lambda: not Renewal.running)
    assert wait_until(lambda: "chatmemory-leases" not in {thread.name for thread in threading.enumerate()})
    assert is_renewed(take("next"))


def test_the_thread_leaves_no_connection():
    opened: list[BaseDatabaseWrapper] = []

    def note(connection: BaseDatabaseWrapper, **_: object) -> None:
        if threading.current_thread().name == "chatmemory-leases":
            opened.append(connection)

    connection_created.connect(note)
    try:
        taken = take()
        assert is_renewed(taken)
        leases.end(taken, State.DONE)
        assert wait_until(lambda: not Renewal.running)
        assert wait_until(lambda: all(each.connection is None for each in opened))
    finally:
        connection_created.disconnect(note)

    assert len(opened) == 1


def test_it_uses_no_pool_that_others_may_have_used_up():
    shared = connections["default"].copy()
    shared.settings_dict["OPTIONS"]["pool"] = True

    own = renewals._unshared(shared)

    assert "pool" not in own.settings_dict["OPTIONS"]
    assert shared.settings_dict["OPTIONS"]["pool"] is True


def test_it_goes_on_while_no_thread_is_free():
    may_go = threading.Event()
    waiting = [threads.background().submit(may_go.wait, PATIENCE) for _ in range(threads.background().threads)]

    assert is_renewed(take())

    may_go.set()
    assert all(each.result() for each in waiting)


@on_servers
def test_it_goes_on_while_all_threads_wait_for_locked_conversations():
    """As in a bulk job, an import or a migration."""
    names = [f"locked {number}" for number in range(threads.background().threads)]
    for name in names:
        take(name)
    Run.objects.all().delete()
    going_on = take()

    def ask(name: str) -> object:
        return threads._call(lambda: leases.take("default", name, None, uuid4()))

    with held("SELECT * FROM chatmemory_conversation WHERE memory_id LIKE %s FOR UPDATE", "locked%"):
        asked = [threads.background().submit(ask, name) for name in names]
        assert not any(each.done() for each in asked)
        assert is_renewed(going_on)
        assert not any(each.done() for each in asked)
    taken = [each.result(PATIENCE) for each in asked]
    assert all(isinstance(each, Taken) for each in taken)


@on_servers
def test_a_run_that_is_locked_delays_no_other():
    """As while its conversation is erased, among thousands, in a transaction of the site's."""
    locked, other = take("locked"), take("other")
    key = Run._meta.get_field("id").get_db_prep_value(locked.run, connection)

    with held("SELECT * FROM chatmemory_chat_run WHERE id = %s FOR UPDATE", key):
        before = lease(locked)
        assert is_renewed(other)
        assert is_renewed(other)
        assert lease(locked) == before

    assert is_renewed(locked)


def test_those_of_a_process_take_as_many_statements_as_one(django_assert_max_num_queries):
    taken = [take(f"c{number}") for number in range(20)]
    renewal("default").stop()

    runs = [each.run for each in taken]
    for listened in ([], runs[:7], runs):
        with django_assert_max_num_queries(4):  # BEGIN, SELECT, UPDATE, COMMIT
            renewals.renew_leases("default", runs, listened)


def test_the_same_statement_notes_who_is_listened_to():
    runs = [take(f"c{number}").run for number in range(3)]
    renewal("default").stop()
    Run.objects.update(listened_at=F("listened_at") - timedelta(hours=1), lease=F("lease") - timedelta(hours=1))
    before = {run.pk: run for run in Run.objects.all()}

    renewals.renew_leases("default", runs[:2], runs[1:2])
    renewals.note_listener("default", runs[2])

    after = {run.pk: run for run in Run.objects.all()}
    assert [after[run].lease > before[run].lease for run in runs] == [True, True, False]
    assert [after[run].listened_at > before[run].listened_at for run in runs] == [False, True, True]


def test_a_run_that_was_lost_is_not_renewed():
    taken = take()
    renewal("default").stop()
    Run.objects.update(active=None, state=State.INTERRUPTED)
    before = lease(taken)

    renewals.renew_leases("default", [taken.run, uuid4()])

    assert lease(taken) == before


def test_a_renewal_that_was_under_way_leaves_one_that_was_handed_over_its_time():
    taken = take()
    leases.hand_over(taken, alive_for=3600)
    waits_until = lease(taken)

    renewals.renew_leases("default", [taken.run])

    assert lease(taken) == waits_until


def test_failures_are_logged_once_and_when_they_are_over(monkeypatch, caplog):
    monkeypatch.setattr(renewals, "LATE_AFTER", 0.2)
    taken = take()
    assert is_renewed(taken)

    def rename(old: str, new: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {old} RENAME TO {new}")

    rename("chatmemory_chat_run", "away")
    try:
        assert wait_until(lambda: "could not be renewed" in caplog.text)
        time.sleep(0.2)
    finally:
        rename("away", "chatmemory_chat_run")

    assert wait_until(lambda: "are renewed again" in caplog.text)
    assert is_renewed(taken)
    found = logged_by(caplog, renewals.logger.name)
    assert {record.levelno for record in found} == {logging.WARNING}
    assert caplog.text.count("could not be renewed") == 1
    assert "ProgrammingError" in caplog.text or "OperationalError" in caplog.text


def test_a_stopped_thread_renews_nothing_more():
    taken = take()
    renewal("default").stop()

    before = lease(taken)
    time.sleep(0.1)

    assert lease(taken) == before


def test_the_conversation_is_not_written_to():
    taken = take()
    before = Conversation.objects.values().get()

    assert is_renewed(taken)

    assert Conversation.objects.values().get() == before
