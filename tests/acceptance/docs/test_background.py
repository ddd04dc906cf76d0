"""The page *Answers in the background*: its code on a site of its own, with real queues."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.docs.pages import DOCS, block_of

pytestmark = pytest.mark.slow

PAGE = "answers-in-the-background.md"

SETTINGS = """
from example_project.settings import *
INSTALLED_APPS = [*INSTALLED_APPS, "mysite"]
CHATMEMORY = {**CHATMEMORY, "CHAT": {"ASSISTANT": "mysite.assistants.assistant", "RUNS": %r}}
"""

ASSISTANTS = """
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import ChatModel, ChatResponse
from chatmemory_django.messages import AiMessage


class Model(ChatModel):
    def do_chat(self, request):
        return ChatResponse(AiMessage("Twelve."))


assistant = Assistant(Model())
"""

APPS = """
from django.apps import AppConfig


class MySite(AppConfig):
    name = "mysite"

    def ready(self):
        import mysite.queue
"""

CELERY = """
import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
from celery import Celery

app = Celery("mysite", broker="filesystem://", set_as_current=True)
app.conf.broker_transport_options = {name: %r for name in ("data_folder_in", "data_folder_out", "processed_folder")}
app.conf.imports = ["mysite.queue"]
import django

django.setup()
"""

ASK = """
import django
django.setup()
from django.contrib.auth import get_user_model
from mysite.assistants import assistant
user, _ = get_user_model().objects.get_or_create(username="ann")
"""


class Site:
    """A project on an SQLite file, and processes of it."""

    def __init__(self, folder: Path, runs: str, queue: str = "", **more: str) -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "mysite.settings",
            "DATABASE_URL": f"sqlite:///{folder / 'db.sqlite3'}",
            "PYTHONPATH": os.pathsep.join([str(folder), str(DOCS.parent), os.environ.get("PYTHONPATH", "")]),
        }
        files = {"__init__": "", "settings": SETTINGS % runs, "assistants": ASSISTANTS, "queue": queue, "apps": APPS}
        (folder / "mysite").mkdir()
        for name, content in {**files, **more}.items():
            path = folder / "mysite" / f"{name}.py"
            path.write_text(files.get(name, "") + content if name == "settings" and name in more else content)
        self.run("-m", "django", "migrate", "--verbosity", "0")

    def run(self, *arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=300, check=False, cwd=self._folder
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    @contextmanager
    def running(self, *arguments: str) -> Iterator[None]:
        with (
            (self._folder / "log").open("w") as log,
            subprocess.Popen(
                [sys.executable, "-m", *arguments], env=self._environment, cwd=self._folder, stdout=log, stderr=log
            ) as process,
        ):
            try:
                yield
            finally:
                process.terminate()
                process.wait(300)

    def log(self) -> str:
        return (self._folder / "log").read_text()


def block(part: str) -> str:
    return block_of(PAGE, part)


BEGUN = "".join(
    [ASK, block("result(timeout=60)"), block("StartedRun"), block("on_commit"), "\nprint(text)\n"]
    # the last run ends, too, or is handed over
)


def test_an_answer_begins_and_is_found_again_without_any_worker(tmp_path):
    assert Site(tmp_path, "web").run("-c", BEGUN).split()[-1] == "Twelve."


def test_an_answer_begins_and_is_found_again_with_a_worker(tmp_path):
    site = Site(tmp_path, "worker")

    with site.running("django", "run_chatmemory"):
        assert site.run("-c", BEGUN).split()[-1] == "Twelve."


def test_a_celery_worker_generates_what_waits(tmp_path):
    pytest.importorskip("celery")
    (tmp_path / "queued").mkdir()
    celery = CELERY % str(tmp_path / "queued")
    site = Site(tmp_path, "worker", block("shared_task"), celery=celery, __init__="")
    begun = BEGUN.replace("import django\n", "import mysite.celery\nimport django\n", 1)

    with site.running("celery", "-A", "mysite.celery", "worker", "--pool", "prefork", "--concurrency", "1"):
        assert site.run("-c", begun).split()[-1] == "Twelve.", site.log()


def test_djangos_tasks_generate_what_waits(tmp_path):
    pytest.importorskip("django.tasks")
    pytest.importorskip("django_tasks_db")
    settings = (
        '\nINSTALLED_APPS += ["django_tasks_db"]\n'
        'TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": []}}\n'
    )
    site = Site(tmp_path, "worker", block("answer.enqueue"), settings=settings)

    with site.running("django", "db_worker", "--interval", "0.1"):
        assert site.run("-c", BEGUN).split()[-1] == "Twelve.", site.log()


def test_a_backend_that_runs_tasks_at_once_answers_before_start_returns(tmp_path):
    pytest.importorskip("django.tasks")
    site = Site(tmp_path, "worker", block("answer.enqueue"))

    assert site.run("-c", BEGUN).split()[-1] == "Twelve."
