"""What ``.ci/check_docs.py`` finds in signatures of the built reference."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from tests.acceptance.docs.pages import DOCS

SIGNATURE = '<dt class="sig sig-object py">{}</dt>'


@pytest.fixture(scope="module")
def check_docs():
    spec = spec_from_file_location("check_docs", DOCS.parent / ".ci/check_docs.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("signature", "unreadable"),
    [
        ("Assistant(model: ~chatmemory_django.chat.model.ChatModel)", "~"),
        ("Assistant(title = &lt;function first_words&gt;)", "<function first_words>"),
        ('Asked(<em class="sig-param">body=&lt;factory&gt;</em>)', "<factory>"),
        ("run(method: Callable[[P], _R])", "_R"),
        ("CallRecorder(_cost: Decimal = None)", "_cost"),
    ],
)
def test_what_no_person_writes_is_found(check_docs, tmp_path: Path, signature: str, unreadable: str):
    (tmp_path / "chat.html").write_text(SIGNATURE.format(signature))

    [found] = check_docs.problems_of_signatures(tmp_path)

    assert found.startswith(f"chat.html has {unreadable!r}")


def test_a_readable_signature_is_no_problem(check_docs, tmp_path: Path):
    readable = "async run(method: Callable[[P], R], *args: P.args, memory_id: str = '', body: Any = ...) → R | None"
    (tmp_path / "chat.html").write_text(SIGNATURE.format(readable))
    (tmp_path / "guide.html").write_text("<p>about ~5 seconds, _private</p>")

    assert check_docs.problems_of_signatures(tmp_path) == []
