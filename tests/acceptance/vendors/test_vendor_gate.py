"""
Whatever happened in a conversation, no vendor refuses it.

This is the short form; ``python -m tests.acceptance.vendors --requests 10000`` is the long one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("anthropic")
pytest.importorskip("boto3")
pytest.importorskip("google.genai")
pytest.importorskip("jinja2")
pytest.importorskip("mistralai")
pytest.importorskip("pydantic_ai")

from tests.acceptance.vendors.histories import Site
from tests.acceptance.vendors.rules import VENDORS
from tests.acceptance.vendors.server import Vendors, vendors

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
]

REQUESTS = 400


@pytest.fixture
def server() -> Iterator[Vendors]:
    with vendors() as server:
        yield server


def test_any_history_is_accepted_by_any_vendor(server: Vendors, tmp_path: Path):
    site = Site(Random(1), server, tmp_path)

    site.run(REQUESTS)

    assert Counter((each.vendor, each.way, each.violation.rule) for each in site.findings) == {}
    assert {*server.counts} == {*VENDORS}
