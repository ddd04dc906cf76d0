"""The checks of contributors, most of those of CI. ``nox`` alone needs neither a database server nor root access."""

import os
import shutil
import tempfile
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "tests", "docs", "package"]

PROJECT = nox.project.load_toml("pyproject.toml")

NEWEST = "django~=6.1.0"
"""
Sessions of one environment install this with the Python that runs nox. With one that is too old, they fail: nox would
skip a session whose Python is missing, and succeed.
"""

VERSIONS = [
    nox.param("3.11", ["django~=5.2.0", "msgspec==0.21.0"], id="oldest"),
    nox.param("3.12", ["django~=6.0.0"], id="middle"),
    nox.param("3.13", [NEWEST], id="newest"),
]
"""Python, and what the oldest, a middle and the newest environment pin."""

DATABASES = [
    "sqlite:///db.sqlite3",
    "postgres://postgres@127.0.0.1:5432/postgres",
    "postgres://postgres@127.0.0.1:5432/postgres?server_side_binding=true&prepare_threshold=5",
    "mysql://root@127.0.0.1:3306/test",
]
"""What ``everything`` runs on: the databases, and PostgreSQL with the options that the documentation recommends."""


FORGE = {
    "dependabot": [".github/dependabot.yml"],
    "github-issue-forms": [".github/ISSUE_TEMPLATE/bug.yml", ".github/ISSUE_TEMPLATE/idea.yml"],
    "readthedocs": [".readthedocs.yaml"],
    "github-workflows": [str(path) for path in Path(".github/workflows").iterdir()],
}
"""The files that a public forge and a host of documentation read, by their schemas."""

DEV = nox.project.dependency_groups(PROJECT, "dev")


def checkout() -> str:
    """Return what installs this checkout. MySQL's driver has to be compiled, so only where it is used."""
    return ".[mysql]" if os.environ.get("DATABASE_URL", "").startswith("mysql") else "."


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types, layers, spelling, migrations and Django's system checks."""
    session.install("-e", checkout(), *DEV, NEWEST)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("codespell")
    for schema, files in FORGE.items():
        session.run("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *files)
    session.run("mypy")
    session.run("lint-imports", "--no-cache")
    session.run(
        "python",
        "manage.py",
        "makemigrations",
        "--check",
        "--dry-run",
        env={"DJANGO_SETTINGS_MODULE": "tests.settings"},
    )
    session.run("python", "manage.py", "check")


@nox.session
@nox.parametrize(["python", "pins"], VERSIONS)
def tests(session: nox.Session, pins: list[str]) -> None:
    """Run the tests on the database that ``DATABASE_URL`` names, SQLite by default; arguments go to pytest."""
    session.install("-e", checkout(), *DEV, *pins)
    session.run("pytest", "-q", "-n", "auto", *session.posargs)


@nox.session
@nox.parametrize(["python", "pins"], VERSIONS)
def everything(session: nox.Session, pins: list[str]) -> None:
    """Run the tests on all databases, and with the newest versions the slow ones and all that .ci/run shortens."""
    session.install("-e", ".[mysql]", *DEV, *pins)
    options = ["-m", "", "--hypothesis-profile=thorough"] if NEWEST in pins else []
    for url in DATABASES:
        session.run("pytest", "-q", "-n", "auto", *options, env={"DATABASE_URL": url, "PYTHONDEVMODE": "1"})
    if NEWEST in pins:
        every = {"SEEDS": "1 2 3", "CLIENTS": "5 6 7", "PAGES": "5 6 7"}
        for script, *databases in ([".ci/rest"], [".ci/aimock"], [".ci/chat"], [".ci/frameworks", *DATABASES]):
            with tempfile.TemporaryDirectory() as folder:
                arguments = [folder, *databases] if databases else [session.bin, folder]
                session.run(script, *arguments, env=every, external=True)
        session.run("python", "-m", "benchmarks.soak", "--minutes", "10")


@nox.session
def zoo(session: nox.Session) -> None:
    """Visit the sites in tests/acceptance/zoo, which have apps that no other session installs."""
    session.install("-e", ".", *nox.project.dependency_groups(PROJECT, "zoo"), NEWEST)
    session.run("pytest", "-q", "-n", "auto", "-m", "", "tests/acceptance/zoo", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation in build/docs, with warnings as errors, and check its links."""
    session.install("-e", ".", *nox.project.dependency_groups(PROJECT, "docs"), NEWEST)
    session.run(".ci/docs", "build/docs", external=True)


@nox.session
def package(session: nox.Session) -> None:
    """Build the source distribution and the wheel in dist, check both, and use the wheel; "-- --release" is strict."""
    shutil.rmtree("dist", ignore_errors=True)
    session.install("build[uv]", "twine")
    session.run("python", "-m", "build", "--installer=uv")
    files = [str(path) for path in Path("dist").iterdir()]
    session.run("twine", "check", "--strict", *files)
    session.run("python", ".ci/check_package.py", "dist", *session.posargs)
    (wheel,) = (file for file in files if file.endswith(".whl"))
    session.install("--force-reinstall", f"{wheel}[offline]")
    session.run("python", "-I", ".ci/use_wheel.py")
