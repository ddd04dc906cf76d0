"""The code of the pages in docs/, and sites of their own to run it on."""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


def blocks_of(page: str, language: str = "python") -> list[str]:
    """Return the code blocks of a page, those in lists included."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(code) for _indent, code in found]


def block_of(page: str, part: str, language: str = "python") -> str:
    """Return the one code block of a page that contains *part*."""
    [found] = [each for each in blocks_of(page, language) if part in each]
    return found


def execute(code: str, **names: object) -> dict:
    """Run *code* as a module with *names*, and return its names."""
    namespace = {"__name__": "shown", **names}
    exec(code, namespace)
    return namespace


@pytest.fixture
def site(tmp_path: Path) -> Callable[..., None]:
    """Return a function that runs code on a site of its own, with the settings and files of a page."""

    def site(settings: str, code: str, databases: tuple[str, ...] = ("default",), **files: str) -> None:
        (tmp_path / "mysite_settings.py").write_text(f"from example_project.settings import *\n{settings}")
        for name, content in files.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        script = tmp_path / "script.py"
        script.write_text(
            "import django\ndjango.setup()\n"
            "from django.core.management import call_command\n"
            f"for database in {databases!r}:\n    call_command('migrate', database=database, verbosity=0)\n"
            "from django.contrib.auth import get_user_model\n"
            "from chatmemory_django.messages import UserMessage\n"
            "from chatmemory_django.models import Conversation\n"
            "from chatmemory_django.provider import get_chat_memory\n" + code
        )
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "mysite_settings",
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{DOCS.parent}",
            "DATABASE_URL": f"sqlite:///{tmp_path / 'default.sqlite3'}",
        }
        ran = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr[-3000:]

    return site
