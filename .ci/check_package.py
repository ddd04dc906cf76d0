"""Check what was built: ``python .ci/check_package.py DIST [--release]``, in the repository, after DIST was built."""

import re
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path
from typing import NamedTuple

_NEEDED = ("CHANGELOG.md", "conftest.py", "docs/index.md", "tests/core/test_memory.py")
"""What a distribution needs to build the documentation, and to test the package."""

_TARGET = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^## (\S+)(.*)$", re.MULTILINE)
_PLACEHOLDER = "repository.invalid"


class Built(NamedTuple):
    """What is built, and files of the repository."""

    metadata: str
    """METADATA of the wheel, whose body is README.md as a package index shows it."""
    sources: frozenset[str]
    """The paths in the source distribution."""
    changelog: str
    security: str
    files: frozenset[str]
    """The paths in the repository."""


def problems(built: Built) -> list[str]:
    """Return what would be wrong on a package index."""
    headers = message_from_string(built.metadata)
    version, readme = headers["Version"], str(headers.get_payload())
    found = []
    for target in _TARGET.findall(readme):
        _, is_ours, path = target.partition(f"/v{version}/")
        if not re.match(r"https://|#", target):
            found.append(f"README links to {target}, which is nothing on a package index. Links must be absolute.")
        elif is_ours and path.partition("#")[0] not in built.files:
            found.append(f"README links to {target}, and the repository has no {path}.")
    found += [f"The source distribution lacks {path}." for path in _NEEDED if path not in built.sources]
    found += [
        f"{each} pins one version. Those who install this package need a range."
        for each in headers.get_all("Requires-Dist") or ()
        if "==" in each.partition(";")[0]
    ]
    headings = [name for name, _ in _HEADING.findall(built.changelog)]
    if headings.count(version) != 1:
        found.append(f"CHANGELOG.md must have one section {version}; its sections: {', '.join(headings)}.")
    if headings and "migrate" in built.changelog.rpartition(f"## {headings[-1]}")[2].lower():
        found.append(f"CHANGELOG.md has users migrate in {headings[-1]}, the first version.")
    return found


def placeholders(built: Built) -> list[str]:
    """Return what has to be filled in before a release."""
    headers = message_from_string(built.metadata)
    version, found = headers["Version"], []
    if _PLACEHOLDER in built.metadata:
        found.append(f"the address of the repository, for each {_PLACEHOLDER} in pyproject.toml")
    if not any(headers.get(name) for name in ("Author", "Author-email", "Maintainer", "Maintainer-email")):
        found.append("authors in pyproject.toml, each with a name or an e-mail address")
    if not re.search(r"https://\S+|\S+@\S+\.\S+", built.security):
        found.append("a contact for security reports in SECURITY.md: an e-mail address, or the address of a form")
    dates = dict(_HEADING.findall(built.changelog))
    if not re.search(r"\d{4}-\d{2}-\d{2}", dates.get(version, "")):
        found.append(f"the date of {version} in CHANGELOG.md, for example: ## {version} (2026-12-31)")
    return found


def built_in(dist: Path) -> Built:
    """Return what *dist* has, and the files of the working directory."""
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    with tarfile.open(source) as archive:
        sources = frozenset(name.partition("/")[2] for name in archive.getnames())
    files = frozenset(str(path) for path in Path().rglob("*") if path.is_file())
    return Built(metadata, sources, Path("CHANGELOG.md").read_text(), Path("SECURITY.md").read_text(), files)


if __name__ == "__main__":
    built = built_in(Path(sys.argv[1]))
    to_fill_in = [f"Before a release, fill in {each}." for each in placeholders(built)]
    found = problems(built)
    print("\n".join(["The package:", *(found or ["No problems found."]), *to_fill_in]))  # noqa: T201
    sys.exit(bool(found or ("--release" in sys.argv and to_fill_in)))
