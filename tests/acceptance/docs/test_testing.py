"""The test cases that docs/testing.md shows pass."""

import unittest

import pytest
from django.test import SimpleTestCase

from tests.acceptance.docs.pages import blocks_of, execute

SHOWN = {
    name: value
    for name, value in execute("\n".join(blocks_of("testing.md"))).items()
    if isinstance(value, type) and issubclass(value, SimpleTestCase) and value.__module__ == "shown"
}


def test_the_page_shows_test_cases():
    assert sorted(SHOWN) == ["AssistantTests", "ChatTests", "SignalTests", "ToolTests", "WindowTests"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", sorted(SHOWN))
def test_a_case_passes(name: str):
    result = unittest.TestResult()

    unittest.defaultTestLoader.loadTestsFromTestCase(SHOWN[name]).run(result)

    assert result.testsRun > 0
    assert result.failures + result.errors == []
