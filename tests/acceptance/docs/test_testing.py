"""The test cases that docs/testing.md shows pass, and fail where the code that they test does something else."""

import unittest

import pytest
from django.test import SimpleTestCase, TransactionTestCase

from tests.acceptance.docs.pages import blocks_of, execute

SHOWN = {
    name: value
    for name, value in execute("\n".join(blocks_of("testing.md"))).items()
    if isinstance(value, type) and issubclass(value, SimpleTestCase) and value.__module__ == "shown"
}


def run(case: type[SimpleTestCase]) -> unittest.TestResult:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    return result


def test_the_page_shows_test_cases():
    assert sorted(SHOWN) == ["AssistantTests", "ChatTests", "SignalTests", "ToolTests", "WindowTests"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "name", sorted(name for name, case in SHOWN.items() if not issubclass(case, TransactionTestCase))
)
def test_a_case_without_a_database_of_its_own_passes(name: str):
    result = run(SHOWN[name])

    assert result.testsRun > 0
    assert result.failures + result.errors == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", sorted(name for name, case in SHOWN.items() if issubclass(case, TransactionTestCase)))
def test_a_case_that_commits_passes(name: str):
    result = run(SHOWN[name])

    assert result.testsRun > 0
    assert result.failures + result.errors == []
