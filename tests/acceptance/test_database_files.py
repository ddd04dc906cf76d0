"""What depends on the database has tests in ``tests/database``, which alone run on every database.

A module is covered by a test of that folder that imports from it. To cover another one, import it where it is tested,
or name the test that reaches it by another way in ``REACHED_BY``.
"""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import chatmemory_django

PACKAGE = Path(chatmemory_django.__path__[0])
TESTS = Path(__file__).parents[1] / "database"

NAMES = {"dialect", "combines", "queues", "cursor", "as_sql", "as_mysql", "as_postgresql", "as_sqlite", "raw"}
NAMES |= {"vendor", "RawSQL", "RunSQL"}
"""Attributes, methods and imports of code that depends on the database."""

SQL = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE|ALTER|DROP)\b")

REACHED_BY = {
    "chat/outgoing/fitting.py": "test_vendor_response.py::test_it_does_not_go_to_another_vendor",
    "chat/pydantic_ai/vendors.py": "test_vendor_response.py::test_it_does_not_go_to_another_vendor",
    "contrib/encryption/places.py": "encryption/test_attacks.py::test_a_column_alone_is_read_with_its_place",
    "db/tables.py": "test_verifying.py::test_after_it_nothing_is_left_but_what_others_have",
}
"""Tests of modules that no test imports: the store calls them, a command or Django itself."""


def syntax_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def depends_on_the_database(path: Path) -> bool:
    """Return whether a module has SQL, or distinguishes databases."""
    tree = syntax_of(path)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return any(
        getattr(node, "attr", getattr(node, "name", None)) in NAMES
        or (isinstance(node, ast.Constant) and id(node) not in docs and SQL.search(str(node.value)) is not None)
        for node in ast.walk(tree)
    )


def imported_by(path: Path) -> Iterator[str]:
    """Yield the modules from which a test imports; of what is imported from elsewhere, the module that defines it."""
    for node in ast.walk(syntax_of(path)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("chatmemory_django"):
            module = importlib.import_module(str(node.module))
            yield str(node.module)
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
                yield str(getattr(getattr(module, alias.name, None), "__module__", ""))


def module_of(path: str) -> str:
    return f"chatmemory_django.{path}".removesuffix(".py").replace("/", ".").removesuffix(".__init__")


DEPENDENT = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if depends_on_the_database(path))
IMPORTED = {module for path in TESTS.rglob("test_*.py") for module in imported_by(path)}


def test_the_modules_with_sql_are_found():
    assert {"stores/django/statements.py", "contrib/search/sqlite.py", "models/lookups.py"} <= set(DEPENDENT)
    assert not {"core/windows.py", "rest/pagination.py", "chat/runs/redis_streams.py"} & set(DEPENDENT)


@pytest.mark.parametrize("path", DEPENDENT)
def test_a_test_of_every_database_covers_it(path: str):
    imported_by_no_test = {module_of(path)} - IMPORTED

    assert imported_by_no_test == set() or path in REACHED_BY


@pytest.mark.parametrize("path", REACHED_BY)
def test_a_test_reaches_it_although_it_imports_nothing(path: str):
    assert path in DEPENDENT
    assert module_of(path) not in IMPORTED
    file, _, test = REACHED_BY[path].partition("::")
    assert f"def {test}(" in (TESTS / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted((TESTS.parent / "core").glob("test_*.py")), ids=lambda path: path.stem)
def test_a_test_of_pure_python_uses_no_database(path: Path):
    used = re.findall(r"django_db|transactional_db|tests\.(?:database|faces)", path.read_text(encoding="utf-8"))

    assert used == []
