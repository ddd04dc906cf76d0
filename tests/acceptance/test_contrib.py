"""Each folder of ``contrib`` can be deleted: nothing else names it, but tests, benchmarks and the example site."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import chatmemory_django

ROOT = Path(__file__).parents[2]
CONTRIB = Path(chatmemory_django.__file__).parent / "contrib"
FOLDERS = sorted(path.parent.name for path in CONTRIB.glob("*/__init__.py"))

COMMANDS = {
    "encryption": ["chatmemory_key", "decrypt_chatmemory", "encrypt_chatmemory"],
    "files": ["move_media_chatmemory"],
    "importing": ["import_chatmemory"],
}
"""The commands that name a folder, and are deleted with it."""

LOADS_EVERYTHING = """
import pkgutil, sys
from importlib import import_module
import django
django.setup()
from django.apps import apps
from django.core.management import call_command
import chatmemory_django
for module in pkgutil.walk_packages(chatmemory_django.__path__, "chatmemory_django."):
    if module.name.startswith("chatmemory_django.contrib.adapters."):
        continue  # the frameworks take seconds
    try:
        import_module(module.name)
    except ModuleNotFoundError as exc:  # of another framework that is not installed
        if exc.name.startswith("chatmemory_django"):
            raise
    except RuntimeError as exc:  # models of an app that the site does not have
        if "INSTALLED_APPS" not in str(exc):
            raise
call_command("check", fail_level="WARNING")
call_command("makemigrations", check_changes=True, dry_run=True, verbosity=0)
"""

TESTS = [
    "core/test_memory.py",
    "database/test_django_store.py",
    "database/test_turns.py",
    "faces/rest/test_messages.py",
]


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_everything_else_works_without_it(tmp_path: Path, folder: str):
    ignored = shutil.ignore_patterns("__pycache__", "node_modules")
    for name in ("chatmemory_django", "example_project", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for path in [*tmp_path.glob(f"*/contrib/{folder}"), *tmp_path.glob(f"tests/*/contrib/{folder}")]:
        shutil.rmtree(path)
    for command in COMMANDS.get(folder, []):
        (tmp_path / "chatmemory_django/management/commands" / f"{command}.py").unlink()
    for path in (tmp_path / "example_project").glob("*.py"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if f"contrib.{folder}" not in line))
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "example_project.settings", "PYTHONPATH": str(tmp_path)}

    for command in (["-c", LOADS_EVERYTHING], ["-m", "pytest", "-q", *(f"tests/{name}" for name in TESTS)]):
        run = subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
