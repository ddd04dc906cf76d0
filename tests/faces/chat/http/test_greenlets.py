"""On a server whose threads are greenlets, the chat refuses requests before it starts an event loop."""

import _thread
import logging

import pytest
from asgiref.sync import iscoroutinefunction
from django.test import RequestFactory

from chatmemory_django.chat.http import views
from chatmemory_django.chat.http.views import answering
from chatmemory_django.chat.threads import has_threads
from tests.logs import logged_by


async def view(request):
    raise AssertionError("It must not be called.")


@pytest.fixture
def refused(monkeypatch):
    """Return what ``answering`` makes of a view there: gevent and eventlet replace the identity of threads."""
    monkeypatch.setattr(_thread, "get_ident", lambda: 1)
    made = answering("POST")(view)
    monkeypatch.undo()
    return made


def test_a_request_is_refused_with_503_and_the_log_has_the_cure(refused, caplog):
    response = refused(RequestFactory().post("/api/chat"), chat_id="c")

    assert (response.status_code, response.content) == (503, b"This server cannot run the chat.")
    [record] = logged_by(caplog, views.logger.name)
    assert record.levelno == logging.ERROR
    assert "--worker-class gthread" in record.message


def test_no_event_loop_is_started_for_it(refused):
    assert not iscoroutinefunction(refused)
    assert iscoroutinefunction(answering("POST")(view))


def test_a_debugger_that_starts_the_threads_is_none_of_these_servers(monkeypatch):
    start = _thread.start_new_thread
    monkeypatch.setattr(_thread, "start_new_thread", lambda *arguments: start(*arguments))

    assert has_threads()


def test_programs_read_the_refusal(refused):
    assert refused.csrf_exempt
    assert refused.login_required is False
