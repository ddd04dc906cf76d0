"""The admin under django-unfold, which brings templates of its own for those of Django's admin."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("unfold", reason="The test of the admin under django-unfold needs it: pip install django-unfold")


@pytest.fixture(scope="module")
def told():
    root = Path(__file__).parent.parent
    run = subprocess.run(
        [sys.executable, "-m", "tests.unfold_site"], capture_output=True, cwd=root, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr.decode()
    return json.loads(run.stdout)


def test_every_page_is_there(told):
    assert {name: status for name, (status, _html) in told.items() if name != "cleared"} == dict.fromkeys(
        ("list", "filtered", "transcript", "message", "log", "clear", "recount", "export", "delete"), 200
    )


def test_they_are_in_unfold_s_clothes_and_have_their_own_style(told):
    for name in ("list", "transcript", "message", "clear"):
        html = told[name][1]
        assert "unfold/css/styles.css" in html, name
        assert "chatmemory/admin.css" in html, name


def test_the_transcript_and_the_figures_are_in_them(told):
    html = told["transcript"][1]

    assert "Will it rain?" in html
    assert "forecast" in html
    assert 'class="cm-gauge"' in html
    assert 'class="cm-tools"' in html


def test_the_list_has_its_rows_its_filters_and_its_actions(told):
    html = told["list"][1]

    assert "The weather" in html
    assert 'name="owner"' in html
    assert "clear_memory" in html


def test_what_is_confirmed_is_done(told):
    assert told["cleared"] == [302, "0"]
    assert "leave the memory" in told["clear"][1]
