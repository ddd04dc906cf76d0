"""Check what was built: ``python .ci/check_package.py DIST [--release]``, in the repository, after DIST was built."""

import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from email import message_from_string
from pathlib import Path
from typing import NamedTuple

_FORGE = {
    ".github/ISSUE_TEMPLATE/bug.yml": "body:",
    ".github/ISSUE_TEMPLATE/idea.yml": "body:",
    ".github/dependabot.yml": "package-ecosystem: pip",
    ".github/pull_request_template.md": "- [ ]",
    ".github/workflows/gate.yml": "schedule:",
    ".github/workflows/release.yml": "id-token: write",
    ".github/workflows/tests.yml": "pull_request:",
    ".pre-commit-config.yaml": "ruff",
    ".readthedocs.yaml": "docs/conf.py",
}
"""What a public forge and a host of documentation read, and what makes each what it is for."""

_NOT_BUILT = (".git", ".pre-commit-config.yaml", ".readthedocs.yaml")
"""How the paths begin that are for the repository alone. Who tests, or builds the documentation, needs the others."""

_TARGET = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: *(\S+)|(?:href|src)=[\"']([^\"']+)", re.MULTILINE)
_HEADING = re.compile(r"^## (\S+)(.*)$", re.MULTILINE)
_PLACEHOLDER = "repository.invalid"


class Built(NamedTuple):
    """What is built, and files of the repository."""

    metadata: str
    """METADATA of the wheel, whose body is README.md as a package index shows it."""
    wheel: frozenset[str]
    """The paths in the wheel, without those of its metadata."""
    sources: frozenset[str]
    """The paths in the source distribution."""
    changelog: str
    security: str
    files: frozenset[str]
    """The paths in the repository."""
    forge: Mapping[str, str]
    """Of these, the texts of those that a forge reads."""


def problems(built: Built) -> list[str]:
    """Return what would be wrong on a package index."""
    headers = message_from_string(built.metadata)
    version, readme = headers["Version"], str(headers.get_payload())
    found = []
    for target in map("".join, _TARGET.findall(readme)):
        _, is_ours, path = target.partition(f"/v{version}/")
        if not re.match(r"https://|#", target):
            found.append(f"README links to {target}, which is nothing on a package index. Links must be absolute.")
        elif is_ours and path.partition("#")[0] not in built.files:
            found.append(f"README links to {target}, and the repository has no {path}.")
    needed = {path for path in built.files if not path.startswith(_NOT_BUILT)}
    found += [f"The source distribution lacks {path}." for path in sorted(needed - built.sources)]
    package = {path for path in needed if path.startswith("chatmemory_django/")}
    found += [f"The wheel lacks {path}." for path in sorted(package - built.wheel)]
    found += [f"The wheel has {path}, which is not of the package." for path in sorted(built.wheel - package)]
    found += [
        f"The repository lacks {path}, or {text!r} in it."
        for path, text in _FORGE.items()
        if text not in built.forge.get(path, "")
    ]
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
    if not re.search(rf"https://(?!{_PLACEHOLDER})\S+|\S+@\S+\.\S+", built.security):
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
        inside = frozenset(path for path in archive.namelist() if not path.startswith(name.partition("/")[0]))
    with tarfile.open(source) as archive:
        sources = frozenset(name.partition("/")[2] for name in archive.getnames())
    listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True).stdout  # noqa: S607
    files = frozenset(path for path in listed.split("\0") if Path(path).is_file())
    texts = {path: Path(path).read_text() for path in ("CHANGELOG.md", "SECURITY.md", *_FORGE) if path in files}
    return Built(metadata, inside, sources, texts.pop("CHANGELOG.md"), texts.pop("SECURITY.md"), files, texts)


if __name__ == "__main__":
    built = built_in(Path(sys.argv[1]))
    to_fill_in = [f"Before a release, fill in {each}." for each in placeholders(built)]
    found = problems(built)
    print("\n".join(["The package:", *(found or ["No problems found."]), *to_fill_in]))  # noqa: T201
    sys.exit(bool(found or ("--release" in sys.argv and to_fill_in)))
