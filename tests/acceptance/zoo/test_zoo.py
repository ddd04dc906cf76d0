"""Every site answers the same requests alike, in a process and with a database of its own; and gevent's server."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.acceptance.chat.live_site import environment, manage, wait_for
from tests.acceptance.zoo.sites import SITES
from tests.ports import free_port

ROOT = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("wagtail") is None, reason="The sites require the dependency group zoo"),
]


@pytest.mark.parametrize("name", SITES)
def test_a_site_answers_like_all_others(name):
    run = subprocess.run(
        [sys.executable, "-m", "tests.acceptance.zoo", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert run.stdout, run.stderr[-5000:]
    assert json.loads(run.stdout) == {}, run.stderr[-2000:]


@pytest.fixture(scope="module")
def gevent(tmp_path_factory):
    """Serve the example site by gunicorn with greenlets in place of threads; return its address, and its log."""
    folder = tmp_path_factory.mktemp("gevent")
    manage(folder, "migrate", "-v0")
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "--worker-class=gevent", f"--bind=127.0.0.1:{port}"]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [*command, "example_project.wsgi"], cwd=ROOT, env=environment(folder), stdout=log, stderr=log
        ) as server,
    ):
        try:
            wait_for(port, server)
            yield f"http://127.0.0.1:{port}", folder / "log"
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(300)


def status(url, body=None):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=300) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_under_gevent_the_chat_refuses_requests_and_all_others_are_answered(gevent):
    root, log = gevent
    chat = [(f"{root}/api/chat", b"{}"), (f"{root}/api/chat/c/messages", None)]
    others = [(f"{root}/admin/login/", None), (f"{root}/api/conversations/", None)]

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(status, *zip(*([*chat, *others] * 10), strict=True)))

    assert {status for status, _ in found[2::4]} == {200}
    assert {status for status, _ in found[3::4]} == {401}
    refusal = (503, b"This server cannot run the chat.")
    assert found[0::4] == found[1::4] == [refusal] * 10
    assert "--worker-class gthread" in log.read_text()
