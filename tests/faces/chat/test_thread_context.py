"""The setting THREAD_CONTEXT on any database: when it is entered, and its errors."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

import pytest
from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.test import RequestFactory

from chatmemory_django.chat.runs.overload import in_thread_soon
from chatmemory_django.chat.threads import from_thread, in_own_thread
from chatmemory_django.db.contexts import MAX_CAPTURED, ThreadContext, current, in_context
from chatmemory_django.db.threads import bring_into, from_callback, in_background, in_slow_thread, in_thread

HERE = threading.local()
"""What is set in each thread, as on a connection."""

middleware: ContextVar[str] = ContextVar("middleware", default="")


class Setting:
    def __init__(self, capture: Callable[[HttpRequest], object] = HttpRequest.get_host) -> None:
        self.capture = capture

    @contextmanager
    def enter(self, text: str) -> Iterator[None]:
        assert not getattr(HERE, "tenant", ""), "It is entered once in each thread."
        HERE.tenant = text
        try:
            yield
        finally:
            HERE.tenant = ""


def tenant() -> str:
    return getattr(HERE, "tenant", "") + middleware.get()


def request(host: str = "testserver") -> HttpRequest:
    return RequestFactory().get("/", headers={"Host": host})


@pytest.fixture
def setting(settings) -> Setting:
    given = Setting()
    settings.CHATMEMORY = {"CHAT": {"THREAD_CONTEXT": given}}
    return given


def run(work) -> object:
    async def within() -> object:
        context = ThreadContext.of(request())
        with in_background(context):
            bring_into(context)
            middleware.set("!")
            return await work

    return asyncio.run(within())


async def streamed() -> str:
    return "".join([each async for each in from_thread(each() for each in [tenant])])


async def in_a_callback() -> str:
    return from_callback(tenant)


@pytest.mark.parametrize(
    "work",
    [
        lambda: in_thread(tenant),
        lambda: in_slow_thread(tenant),
        lambda: in_own_thread(tenant),
        lambda: in_thread_soon(tenant),
        lambda: sync_to_async(tenant)(),
        streamed,
        in_a_callback,
        lambda: in_thread(from_callback, tenant),
        lambda: in_thread(in_context(tenant)),
    ],
    ids=[
        "in_thread",
        "in_slow_thread",
        "in_own_thread",
        "in_thread_soon",
        "Django's own",
        "from_thread",
        "from_callback",
        "a callback in a thread",
        "twice",
    ],
)
def test_threads_work_for_their_request(setting, work):
    assert run(work()) == "testserver!"
    assert tenant() == ""


def test_without_the_setting_there_is_no_context():
    assert ThreadContext.of(request()) is None
    assert in_context(tenant) is tenant
    assert current.get() is None


def test_what_is_captured_keeps_contexts_apart(setting):
    one, again, other = (ThreadContext.of(request(host)) for host in ("testserver", "testserver", "localhost"))

    assert one == again != other
    assert (one.captured, one.name) == ("testserver", "testserver")


def test_a_function_knows_requests_alone(settings):
    settings.CHATMEMORY = {"CHAT": {"THREAD_CONTEXT": suppress}}
    asked = request()

    one, again, other = (ThreadContext.of(each) for each in (asked, asked, request()))

    assert one == again != other
    assert (one.captured, one.name) == ("", "testserver")


@pytest.mark.parametrize("captured", [None, 7, b"acme", "a" * (MAX_CAPTURED + 1)])
def test_what_cannot_be_stored_is_an_error_that_does_not_repeat_it(setting, captured):
    setting.capture = lambda request: captured

    with pytest.raises(ValueError, match="THREAD_CONTEXT") as raised:
        ThreadContext.of(request())

    assert "aaaa" not in str(raised.value)


@pytest.mark.parametrize("error", [ValueError("Broken."), StopIteration(), GeneratorExit()])
def test_nothing_is_done_where_it_cannot_be_entered(setting, error):
    done = []

    @contextmanager
    def enter(text: str) -> Iterator[None]:
        raise error
        yield

    setting.enter = enter

    for work in (in_thread, in_slow_thread, in_own_thread, in_thread_soon):
        with pytest.raises((ValueError, RuntimeError)):
            run(work(done.append, 1))
    assert done == []


def test_it_must_not_suppress_errors(setting):
    setting.enter = lambda text: suppress(ValueError)

    with pytest.raises(RuntimeError, match="has suppressed an exception"):
        run(in_thread(int, "x"))
