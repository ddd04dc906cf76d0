"""Files of LangChain4j's serializer are imported as conversations."""

import json
from pathlib import Path

import pytest
from django.core.management import CommandError

from chatmemory_django.codec import messages_to_json
from chatmemory_django.messages import AiMessage, SystemMessage, UserMessage
from tests.database.contrib.importing.sources import messages_of, moved, refused
from tests.database.test_operations import everything_is_whole

pytestmark = pytest.mark.django_db(transaction=True)

MESSAGES = [SystemMessage("Be brief."), UserMessage("Grüß dich 🙂", name="Anna"), AiMessage("Hello", thinking="Hm.")]


def test_a_file_is_the_conversation_named_by_the_file(tmp_path: Path):
    file = tmp_path / "anna.json"
    file.write_text(messages_to_json(MESSAGES), encoding="utf-8")

    moved("langchain4j", file)

    assert messages_of("anna") == MESSAGES


def test_a_file_can_have_many_conversations_by_id(tmp_path: Path):
    file = tmp_path / "memories.json"
    file.write_text(json.dumps({str(number): json.loads(messages_to_json(MESSAGES)) for number in range(3)}))

    assert moved("langchain4j", file, "--prefix", "java:").startswith("Imported 3 conversations")

    assert everything_is_whole() == {f"java:{number}": 3 for number in range(3)}


def test_a_folder_has_a_file_for_each(tmp_path: Path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(messages_to_json(MESSAGES))
    (tmp_path / "notes.txt").write_text("no conversation")

    moved("langchain4j", tmp_path)

    assert everything_is_whole() == {"a": 3, "b": 3}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'"secret"', "'x.json': x.json must be a list of messages, or an object of such lists."),
        (b"secret", "'x.json': x.json is not JSON."),
        (b"[\xff]", "'x.json': x.json is not UTF-8."),
        (b'[{"type": "USER", "text": "secret"}]', "'x': $[0].contents is missing."),
        (b'{"a": "secret"}', "'a': Its messages must be a list, not str."),
        (b'{"": [{"type": "AI", "text": "secret"}]}', "'': A memory id must have 1 to 255 characters"),
        (b'[{"type": "AI", "text": "a\\u0000b"}]', "'x': messages[0]: AiMessage.text holds a NUL character"),
    ],
)
def test_errors_name_the_problem_and_never_repeat_the_text(tmp_path: Path, content: bytes, reason: str):
    (tmp_path / "x.json").write_bytes(content)

    [refusal] = refused("langchain4j", tmp_path / "x.json")

    assert refusal.startswith(reason)
    assert "secret" not in refusal
    assert everything_is_whole() == {}


def test_it_has_no_table(tmp_path: Path):
    with pytest.raises(CommandError, match="langchain4j does not store messages in a table"):
        moved("langchain4j", "default")
