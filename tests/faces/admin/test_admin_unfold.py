"""The admin under django-unfold, which replaces the templates of Django's admin."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("unfold", reason="These tests require django-unfold: pip install django-unfold")


@pytest.fixture(scope="module")
def pages():
    root = Path(__file__).parents[3]
    run = subprocess.run(
        [sys.executable, "-m", "tests.faces.admin.unfold_site"], capture_output=True, cwd=root, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr.decode()
    return json.loads(run.stdout)


def test_every_page_loads(pages):
    assert {name: status for name, (status, _html) in pages.items() if name != "cleared"} == dict.fromkeys(
        ("list", "filtered", "transcript", "message", "log", "clear", "recount", "export", "delete"), 200
    )


def test_pages_use_unfold_s_templates_and_our_styles(pages):
    for name in ("list", "transcript", "message", "clear"):
        html = pages[name][1]
        assert "unfold/css/styles.css" in html, name
        assert "chatmemory/admin.css" in html, name


def test_the_transcript_and_the_figures_are_shown(pages):
    html = pages["transcript"][1]

    assert "Will it rain?" in html
    assert "forecast" in html
    assert 'class="cm-gauge"' in html
    assert 'class="cm-tools"' in html


def test_the_list_has_rows_filters_and_actions(pages):
    html = pages["list"][1]

    assert "The weather" in html
    assert 'name="owner"' in html
    assert "clear_memory" in html


def test_confirmed_operations_are_executed(pages):
    assert pages["cleared"] == [302, "0"]
    assert "leave the memory" in pages["clear"][1]
