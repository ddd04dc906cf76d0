"""The paths that moved, in CHANGELOG.md."""

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

CHANGELOG = Path(__file__).parents[3] / "CHANGELOG.md"
MOVED = re.findall(r"^(chatmemory_django\S+) -> (chatmemory_django\S+)$", CHANGELOG.read_text(), re.MULTILINE)


def is_there(path: str) -> bool:
    """Return whether *path* is that of a module, which is not imported here, or of something in one."""
    module, _, name = path.rpartition(".")
    try:
        spec = find_spec(path)
    except ModuleNotFoundError:  # its parent is no package
        spec = None
    if spec is not None and spec.origin is not None:  # a folder with old byte code alone has no origin
        return True
    try:
        return hasattr(import_module(module), name)
    except ModuleNotFoundError:
        return False


def test_moved_paths_are_one_sorted_list() -> None:
    assert len(MOVED) > 30
    assert sorted(set(MOVED)) == MOVED


@pytest.mark.parametrize(("old", "new"), MOVED)
def test_a_moved_path_is_where_the_list_has_it_and_there_alone(old: str, new: str) -> None:
    assert is_there(new)
    assert not is_there(old)
