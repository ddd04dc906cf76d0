"""The tests that threats.md in tests/acceptance and the pages on OWASP's lists name exist, and pytest collects them."""

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from chatmemory_django.chat.tools import READABLE
from tests.acceptance.docs.pages import DOCS

ROOT = DOCS.parent
THREATS = (DOCS / "threats.md").read_text()
TESTS_OF_THREATS = (ROOT / "tests/acceptance/threats.md").read_text()
PAGES = "".join([TESTS_OF_THREATS, *(path.read_text() for path in DOCS.glob("threats-*.md"))])
REFERENCES = sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)*)`", PAGES)))
TESTS = [each for each in REFERENCES if "/test_" in each]


def test_the_pages_refer_to_tests():
    assert len(TESTS) > 20


def test_each_threat_of_the_page_has_its_tests():
    threats, shown = (
        re.findall(r"^\| (?!threat \|)(.+?) \| ", text, re.MULTILINE) for text in (THREATS, TESTS_OF_THREATS)
    )

    assert len(threats) > 40
    assert [re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", each) for each in threats] == shown


def test_the_page_names_the_exceptions_that_the_model_reads():
    [row] = re.findall(r"^\| A tool's exception .*", THREATS, re.MULTILINE)

    assert set(re.findall(r"`([A-Z]\w+)`", row)) == {each.__name__ for each in READABLE}


def test_the_page_lists_what_encryption_cannot_detect():
    _, _, undetected = THREATS.partition("## What cannot be detected")

    for attack in (
        "a whole row, or an owner's key, of an earlier moment",
        "an old value back in its own place",
        "in a fork, put a value of its source at the same sequence, column and type",
        "empty a text",
        "without `OWNER_KEYS`, change the owner",
        'without `"PLAIN": "refuse"`, put in plain texts',
    ):
        assert attack in undetected


@pytest.mark.parametrize("reference", sorted(set(REFERENCES) - set(TESTS)))
def test_another_file_exists(reference: str):
    assert (ROOT / reference).is_file()


def needs_playwright(reference: str) -> bool:
    return "from tests.acceptance.browser import" in (ROOT / reference.partition("::")[0]).read_text()


@pytest.mark.slow
def test_each_reference_is_collected():
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-rs", "-m", "", "-p", "no:randomly", *TESTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    lines = collected.stdout.splitlines()
    skipped = [
        each
        for each in TESTS
        if (find_spec("playwright") is None and needs_playwright(each))
        or re.search(rf"^SKIPPED .* {each.partition('::')[0]}:", collected.stdout, re.MULTILINE)
    ]

    assert collected.returncode == 0, collected.stdout[-2000:] + collected.stderr[-2000:]
    assert [each for each in TESTS if not any(line.startswith(f"{each}::") for line in lines)] == skipped
