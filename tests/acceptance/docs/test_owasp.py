"""The pages on OWASP's lists answer every point of them, and what they name is there."""

import re

import pytest

from tests.acceptance.docs.pages import DOCS

ROOT = DOCS.parent
ASVS, LLM = ((DOCS / f"threats-{name}.md").read_text() for name in ("asvs", "llm"))

LEVEL_2 = (
    "1.1:2 1.2:9 1.3:11 1.4:3 1.5:2 2.1:3 2.2:3 2.3:4 2.4:1 3.2:2 3.3:4 3.4:6 3.5:5 3.7:2 4.1:3 4.2:1 4.3:2 4.4:4 "
    "5.1:1 5.2:3 5.3:2 5.4:3 6.1:3 6.2:12 6.3:4 6.4:4 6.5:5 6.6:3 6.8:4 7.1:3 7.2:4 7.3:2 7.4:5 7.5:2 7.6:2 8.1:2 "
    "8.2:3 8.3:1 8.4:1 9.1:3 9.2:4 10.1:2 10.2:2 10.3:4 10.4:11 10.5:5 10.6:2 10.7:3 11.1:2 11.2:3 11.3:3 11.4:4 "
    "11.5:1 11.6:1 12.1:3 12.2:2 12.3:4 13.1:1 13.2:5 13.3:2 13.4:5 14.1:2 14.2:4 14.3:3 15.1:3 15.2:3 15.3:7 16.1:1 "
    "16.2:5 16.3:4 16.4:3 16.5:3 17.1:1 17.2:4 17.3:2"
)
"""How many points of level 1 and 2 each section of ASVS 5.0 has. They come first, before those of level 3 alone."""

STATES = {"met", "partly", "not met", "Django", "site", "server", "absent"}


def rows(text: str, first: str) -> list[list[str]]:
    """Return the cells of the rows of the tables in *text* whose first cell begins with *first*."""
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in re.findall(rf"^\| {first}.*", text, re.MULTILINE)
    ]


def expanded(points: str) -> list[str]:
    """Return the numbers of *points*, such as "1.1.1, 1.2.1 to 1.2.9"."""
    found = []
    for each in points.split(", "):
        first, _, last = each.partition(" to ")
        section, _, number = first.rpartition(".")
        until = last.removeprefix(f"{section}.") if last else number
        found += [f"{section}.{count}" for count in range(int(number), int(until) + 1)]
    return found


def test_every_point_of_level_2_has_its_row_and_only_one():
    expected = [
        f"{section}.{number}"
        for section, count in (each.split(":") for each in LEVEL_2.split())
        for number in range(1, int(count) + 1)
    ]
    answered = [number for points, *_ in rows(ASVS, r"\d") for number in expanded(points)]

    assert sorted(answered) == sorted(expected)
    assert f"asks {len(expected)} things" in " ".join(ASVS.split())


def test_every_chapter_is_in_a_heading():
    headings = "\n".join(re.findall("^## .*", ASVS, re.MULTILINE))

    assert {int(each) for each in re.findall(r"V(\d+) [A-Z]", headings)} == set(range(1, 18))


def test_each_of_the_ten_risks_of_llm_applications_has_a_row():
    assert [risk[:5] for risk, *_ in rows(LLM, "LLM")] == [f"LLM{number:02}" for number in range(1, 11)]


@pytest.mark.parametrize("row", [*rows(ASVS, r"\d"), *rows(LLM, "LLM")], ids=lambda row: row[0])
def test_a_row_has_a_state_and_what_is_met_names_a_test_a_page_or_a_file(row: list[str]):
    state, shown = row[-2:]

    assert state in STATES
    assert shown
    if state in {"met", "partly"}:
        assert re.search(r"`[\w/]+/[\w.]+`|\]\([\w/.#-]+\)|`[\w.]+\.(md|txt)`", shown)


def test_the_states_are_those_that_the_page_explains():
    explained = {row[0] for row in rows(ASVS, "[a-zA-Z]") if len(row) == 2}

    assert explained - {"state"} == STATES


@pytest.mark.parametrize("text", [ASVS, LLM], ids=["asvs", "llm"])
def test_each_file_that_is_named_exists(text: str):
    named = set(re.findall(r"`((?:tests|chatmemory_django|example_project)/[\w/.-]*|[\w-]+\.(?:md|txt))`", text))

    assert len(named) > 10
    assert [each for each in sorted(named) if not (ROOT / each).exists()] == []


@pytest.mark.parametrize("text", [ASVS, LLM], ids=["asvs", "llm"])
def test_each_page_that_is_linked_exists_with_its_heading(text: str):
    links = set(re.findall(r"\]\(([\w/-]*(?:\.md)?)(?:#([\w-]+))?\)", text))

    assert len(links) > 10
    for page, heading in links:
        there = (DOCS / page).read_text() if page else text
        slugs = {
            re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-")
            for each in re.findall("^#+ (.*)", there, re.MULTILINE)
        }
        assert not heading or heading in slugs, f"{page}#{heading}"
