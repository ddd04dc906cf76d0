"""The threads that all answers of a process share: which call comes next, and for how long a connection lives."""

import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.db import DatabaseError, Error, OperationalError, connection, transaction

from chatmemory_django.chat.runs import overload
from chatmemory_django.db import background as background_module
from chatmemory_django.db import threads
from chatmemory_django.db.background import KEPT_CALLS, Background
from chatmemory_django.db.threads import in_background, in_slow_thread, in_thread
from tests.asgi import run
from tests.logs import logged_by

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE = 60
"""Seconds after which a test gives up waiting."""


@contextmanager
def held(background: Background) -> Iterator[None]:
    """Keep the only thread of *background* busy in the block."""
    has_begun, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        has_begun.set()
        may_end.wait(PATIENCE)

    holding = background.submit(hold)
    has_begun.wait(PATIENCE)
    yield
    may_end.set()
    holding.result(PATIENCE)


class TestOrder:
    def test_what_goes_on_comes_before_what_is_new(self):
        background, made = Background(1), []
        with held(background):
            calls = [background.new.submit(made.append, f"new {number}") for number in range(2)]
            calls += [background.submit(made.append, f"going on {number}") for number in range(2)]
            assert (background.waiting, background.new_waiting) == (4, 2)
        for each in calls:
            each.result(PATIENCE)

        assert made == ["going on 0", "going on 1", "new 0", "new 1"]

    def test_a_call_that_is_cancelled_before_its_turn_is_not_made(self):
        background, made = Background(1), []
        with held(background):
            left, call = background.submit(made.append, "left"), background.submit(made.append, "call")
            assert left.cancel()
        call.result(PATIENCE)

        assert made == ["call"]

    def test_an_error_is_that_of_its_call_alone(self):
        background = Background(1)
        with held(background):
            failing, call = background.submit(int, "x"), background.submit(int, "1")

        assert isinstance(failing.exception(PATIENCE), ValueError)
        assert call.result(PATIENCE) == 1

    def test_an_error_knows_nothing_of_the_next_call(self):
        def seen(secret: str) -> str:
            frames = [frame for frame, _ in traceback.walk_tb(failing.exception(PATIENCE).__traceback__)]
            assert frames
            return repr([frame.f_locals for frame in frames])

        background = Background(1)
        with held(background):
            failing = background.submit(int, "x")
            following = background.submit(seen, "of somebody else")

        assert "somebody else" not in following.result(PATIENCE)

    def test_an_error_of_its_connection_is_that_of_the_call(self, monkeypatch):
        def fail(*, keeps: bool) -> None:
            raise OperationalError

        monkeypatch.setattr(background_module, "leave_connections", fail)

        assert isinstance(Background(1).submit(str).exception(PATIENCE), OperationalError)

    def test_so_many_are_made_at_once(self):
        background, barrier = Background(3), threading.Barrier(3)

        calls = [background.submit(barrier.wait, PATIENCE) for _ in range(3)]

        assert sorted(each.result(PATIENCE) for each in calls) == [0, 1, 2]

    def test_the_setting_is_their_number(self, settings):
        settings.CHATMEMORY = {"CHAT": {"THREADS": 3}}

        assert threads.background.__wrapped__().threads == 3


class TestBound:
    @pytest.fixture
    def background(self, monkeypatch) -> Background:
        background = Background(1)
        for module in (threads, overload):
            monkeypatch.setattr(module, "background", lambda: background)
        monkeypatch.setattr(overload, "WAITING", 2)
        monkeypatch.setattr(overload._overload, "is_there", False)
        return background

    def test_a_request_is_refused_at_once_if_as_many_wait_as_may(self, background, caplog):
        async def ask(call: Callable[..., Any]) -> None:
            with in_background():
                await call(str)

        with held(background):
            waiting = [background.new.submit(str) for _ in range(2)]
            for _ in range(2):
                with pytest.raises(overload.NoThreadError, match="more than 2 requests wait"):
                    run(ask(overload.in_thread_in_turn))
        assert [each.result(PATIENCE) for each in waiting] == ["", ""]
        run(ask(overload.in_thread_in_turn))

        records = logged_by(caplog, overload.logger.name)
        assert [record.levelno for record in records] == [logging.WARNING] * 2
        busy, free = (record.getMessage() for record in records)
        assert "All 1 threads that use the database are busy, and more than 2 requests wait" in busy
        assert "free again" in free

    def test_what_an_answer_in_progress_does_is_never_refused(self, background):
        async def end() -> str:
            with in_background():
                return await in_thread(str, "stored")

        ended: list[Future[str]] = []
        with held(background):
            waiting = [background.new.submit(str) for _ in range(3)]
            other = threading.Thread(target=lambda: ended.append(run(end())))
            other.start()
        other.join(PATIENCE)

        assert ended == ["stored"]
        assert [each.result(PATIENCE) for each in waiting] == [""] * 3


def session() -> tuple[int, Any]:
    """Return what is the same only as long as the connection of this thread lives."""
    connection.ensure_connection()
    return id(connection.connection), connection.connection


def is_closed() -> bool:
    return connection.connection is None


def ask(question: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(question)
        return list(cursor.fetchall())


KILL = {"postgresql": "SELECT pg_terminate_backend(pg_backend_pid())", "mysql": "KILL CONNECTION_ID()"}


@pytest.mark.skipif(connection.vendor == "sqlite", reason="A database in memory lives as long as its connection.")
class TestConnections:
    @pytest.fixture(autouse=True)
    def of_each_call(self, monkeypatch) -> None:
        monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", 0)

    def test_one_lives_on_while_calls_wait_and_no_longer(self):
        background = Background(1)
        with held(background):
            calls = [background.submit(session) for _ in range(3)]
            last = [background.submit(is_closed) for _ in range(2)]
        assert len({each.result(PATIENCE)[0] for each in calls}) == 1
        assert [each.result(PATIENCE) for each in last] == [False, True]

    def test_a_crowd_that_does_not_end_has_another_one_from_time_to_time(self):
        background = Background(1)
        with held(background):
            calls = [background.submit(session) for _ in range(KEPT_CALLS + 1)]
            background.submit(str)

        assert len({each.result(PATIENCE)[0] for each in calls}) == 2

    def test_a_broken_one_does_not_live_on(self):
        background = Background(1)
        with held(background):
            killed = background.submit(ask, KILL[connection.vendor])
            call = background.submit(ask, "SELECT 1")

        assert isinstance(killed.exception(PATIENCE), OperationalError)
        assert call.result(PATIENCE) == [(1,)]

    @pytest.mark.parametrize("may_wait", [True, False], ids=["background", "slow"])
    def test_nor_does_one_that_is_cut_when_its_transaction_has_ended(self, may_wait):
        def cut() -> None:
            connection.set_autocommit(False)  # what the end of a transaction leaves that cannot turn it on again
            with suppress(DatabaseError):
                ask(KILL[connection.vendor])
            with transaction.atomic():  # of which Django believes from now on that it is in it
                pass

        async def call(function: Callable[..., Any], *args: Any) -> Any:
            with in_background():
                return await (in_thread if may_wait else in_slow_thread)(function, *args)

        async def calls() -> list[Any]:
            with pytest.raises(Error):
                await call(cut)
            return [await call(ask, "SELECT 1") for _ in range(2)]

        assert run(calls()) == [[(1,)]] * 2

    def test_one_that_may_live_by_its_own_settings_does(self, monkeypatch):
        monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", 60)
        background = Background(1)

        first, second = (background.submit(session).result(PATIENCE) for _ in range(2))
        background.submit(lambda: connection.close()).result(PATIENCE)  # that of the thread

        assert first[0] == second[0]
