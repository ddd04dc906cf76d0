"""What is logged of an exception cannot begin a line of its own: line breaks in its text are escaped."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import chatmemory_django

PACKAGE = Path(chatmemory_django.__file__).parent
METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
CONVERSION = re.compile(r"%[-#0 +]*[\d.*]*([a-z])")


def test_texts_of_exceptions_are_logged_as_literals():
    found = {
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in PACKAGE.rglob("*.py")
        for line in as_they_are(path.read_text(encoding="utf-8"))
    }

    assert not found


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("try: pass\nexcept OSError as exc:\n log.error('%s', exc)", [3]),
        ("try: pass\nexcept OSError as exc:\n log.error('%d in %s', 1, str(exc))", [3]),
        ("try: pass\nexcept OSError as exc:\n log.error(f'{exc}')", [3]),
        ("try: pass\nexcept OSError as exc:\n log.error('%r %s', exc, type(exc).__name__)", []),
        ("def note(error: Exception):\n logger.warning('%s', error)", [2]),
    ],
)
def test_it_would_be_seen(source, lines):
    assert list(as_they_are(source)) == lines


def as_they_are(source: str) -> Iterator[int]:
    """Yield the lines where the text of an exception is logged as it is."""
    tree = ast.parse(source)
    names = {each.name for each in ast.walk(tree) if isinstance(each, ast.ExceptHandler) and each.name}
    for each in ast.walk(tree):
        if isinstance(each, ast.arg) and each.annotation is not None and "Exception" in ast.unparse(each.annotation):
            names.add(each.arg)
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in METHODS):
            continue
        if "log" not in ast.unparse(call.func.value) or not call.args:
            continue
        words, *values = call.args
        if isinstance(words, ast.JoinedStr):
            yield call.lineno
        elif isinstance(words, ast.Constant):
            conversions = CONVERSION.findall(str(words.value).replace("%%", ""))
            shown = [ast.unparse(each).removeprefix("str(").rstrip(")") for each in values]
            if any(kind == "s" and name in names for kind, name in zip(conversions, shown, strict=False)):
                yield call.lineno
