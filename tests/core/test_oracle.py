"""The oracle knows nothing of what it judges."""

import ast
from pathlib import Path

import tests.oracle


def test_the_oracle_imports_nothing_but_messages_and_their_json():
    tree = ast.parse(Path(tests.oracle.__file__).read_text(encoding="utf-8"))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module)
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}

    of_the_project = {
        name for name in imported if name.partition(".")[0] in {"chatmemory_django", "tests", "benchmarks"}
    }

    assert of_the_project == {"chatmemory_django.codec", "chatmemory_django.messages"}
