"""The script that fails when the package grows: what it refuses, and what it counts of code and of a run of tests."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

JUNIT = (
    '<testsuites><testsuite>{}<testcase classname="tests.slow" name="test_slow" time="5.0"/></testsuite></testsuites>'
)
QUICK = '<testcase classname="tests.quick" name="test_quick" time="1.0"/>'


@pytest.fixture
def ceilings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """Return the script, with a run of 16 tests, in which the ten slowest take 14 of 20 seconds."""
    spec = importlib.util.spec_from_file_location("ceilings", Path(__file__).parents[2] / ".ci" / "ceilings.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "DATA", tmp_path / "ceilings.toml")
    monkeypatch.chdir(tmp_path)
    Path("junit.xml").write_text(JUNIT.format(QUICK * 15))
    return script


def status(ceilings: ModuleType, entry: str) -> int:
    ceilings.DATA.write_text(f'[ceilings.tests]\ntests_skipped = {{ceiling = 0, reason = "none"}}\n{entry}')
    return ceilings.main(["--tests", "junit.xml"])


def test_a_figure_that_equals_its_ceiling_is_accepted(ceilings: ModuleType, capsys: pytest.CaptureFixture[str]):
    assert status(ceilings, 'slowest_tests_percent = {ceiling = 70, reason = "a test"}') == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["slowest_tests_percent", "70", "70"]


def test_a_figure_above_its_ceiling_is_refused_by_its_name(ceilings: ModuleType, capsys: pytest.CaptureFixture[str]):
    assert status(ceilings, 'slowest_tests_percent = {ceiling = 69, reason = "a test"}') == 1
    assert "slowest_tests_percent is 70, above its ceiling of 69" in capsys.readouterr().out


def test_a_figure_clearly_below_its_ceiling_is_accepted_and_shown(
    ceilings: ModuleType, capsys: pytest.CaptureFixture[str]
):
    assert status(ceilings, 'slowest_tests_percent = {ceiling = 80, reason = "a test"}') == 0
    assert "can be lowered" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("slowest_tests_percent = {ceiling = 70}", "without a reason"),
        ('slowest_tests_percent = {ceiling = 70, reason = ""}', "without a reason"),
        ('slowest_test_percent = {ceiling = 70, reason = "misspelled"}', "has no ceiling"),
    ],
)
def test_a_figure_without_a_ceiling_or_a_reason_is_refused(
    entry: str, problem: str, ceilings: ModuleType, capsys: pytest.CaptureFixture[str]
):
    assert status(ceilings, entry) == 1
    assert problem in capsys.readouterr().out


def test_the_slowest_tests_are_shown_first(ceilings: ModuleType, capsys: pytest.CaptureFixture[str]):
    ceilings.figures_of_tests(Path("junit.xml"), None)

    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 10
    assert shown[0].split() == ["5.00", "s", "tests.slow::test_slow"]


def test_seconds_of_a_slower_machine_are_converted(ceilings: ModuleType, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ceilings, "_loop_seconds", lambda: 2 * ceilings.LOOP_SECONDS)
    Path("times").write_text("290.500 9.500\n")

    assert ceilings.figures_of_tests(Path("junit.xml"), Path("times"))["tests_cpu_seconds"] == 150


def test_comments_and_docstrings_name_no_feature(ceilings: ModuleType):
    module = [
        '"""Of search."""',
        "import search  # of search",
        "# Of search.",
        "class Search:",
        '    """',
        "    Of search.",
        '    """',
        "",
        '    text = "search"',
        '    """Of search."""',
        "    found = f'''",
        "    search'''",
    ]
    code = {"own/one.py": module, "one.py": ceilings.code_lines(module)}

    assert ceilings.lines_outside(["own/"], code, "(?i)search") == 4
