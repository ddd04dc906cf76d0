"""``constraints.txt`` has a version of everything that the commands of the README install."""

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.lstrip().startswith("#")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def pins() -> dict[str, str]:
    """Return the versions for this Python and this system, by name."""
    pinned = [each for each in map(Requirement, LINES) if each.marker is None or each.marker.evaluate()]
    versions = {each.name: str(each.specifier).removeprefix("==") for each in pinned}
    assert len(versions) == len(pinned), "No name has two versions."
    return versions


def required_by(*extras: str) -> Iterator[Requirement]:
    """Yield what the project and these extras require directly."""
    for line in [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]:
        requirement = Requirement(line)
        if requirement.name == PROJECT["name"]:
            yield from required_by(*requirement.extras)
        else:
            yield requirement


def requirements_of(requirement: Requirement) -> Iterator[Requirement]:
    """Yield what an installed distribution requires here, with the extras that are asked for."""
    for each in map(Requirement, distribution(requirement.name).requires or ()):
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in {"", *requirement.extras}):
            yield each


def test_each_line_is_a_version_of_a_package_and_names_no_address():
    assert [line for line in LINES if not re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; [\w.'<>=! ]+)?", line)] == []


@pytest.mark.parametrize("extra", ["demo", "test"])
def test_each_requirement_has_a_version_that_it_allows(extra: str):
    versions = pins()

    for requirement in required_by(extra):
        name = canonicalize_name(requirement.name)
        assert requirement.specifier.contains(versions[name]), f"{requirement}, and {name}=={versions[name]}"


@pytest.mark.parametrize("extra", ["demo", "test"])
def test_what_the_requirements_require_has_a_version(extra: str):
    versions, seen, left = pins(), set(), list(required_by(extra))
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        assert name in versions, f"{name} has none: CONTRIBUTING.md has the command that writes constraints.txt"
        # What is installed in another version may require something else.
        if str(requirement) not in seen and distribution(name).version == versions[name]:
            left += requirements_of(requirement)
        seen.add(str(requirement))


def test_the_commands_install_these_versions():
    for page in ("README.md", "CONTRIBUTING.md"):
        commands = re.findall(r"^python -m pip install .*-e .*$", (ROOT / page).read_text(), re.MULTILINE)
        assert commands
        assert all("-c constraints.txt" in command for command in commands)
