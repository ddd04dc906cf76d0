"""One name, one thing: no two public classes of the package share a name."""

import re
from collections import Counter
from pathlib import Path

import chatmemory_django

PACKAGE = Path(chatmemory_django.__file__).parent
CLASS = re.compile(r"^class ([A-Z]\w*)", re.MULTILINE)


def test_no_two_public_classes_share_a_name():
    files = (each for each in PACKAGE.rglob("*.py") if "migrations" not in each.parts)
    names = Counter(name for file in files for name in CLASS.findall(file.read_text("utf-8")))

    del names["Command"]  # Django's name for each
    assert [name for name, count in names.items() if count > 1] == []
