"""
What each commit exported whose lines were others, before they had a version, is read.

The files were made by those commits' own code: a site with the owner anna was filled by it and exported by its command
(by ``export_lines``, where it had none). Their names are the commits'.
"""

import json
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from chatmemory_django.models import Conversation
from chatmemory_django.operations.jsonl import check_lines, export_lines, import_lines
from tests.database.test_operations import everything_is_whole

EXPORTS = sorted((Path(__file__).parents[1] / "data" / "exports").glob("*.jsonl"))

NEW = {"said_messages": "total_messages", "token_counter": "counted_by", "client_id": "client_message_id"}

pytestmark = pytest.mark.django_db


def read(lines: str) -> list[dict]:
    return [json.loads(line) for line in lines.splitlines()]


@pytest.mark.parametrize("file", EXPORTS, ids=lambda file: file.stem)
def test_an_export_without_a_version_is_read_and_written_as_it_was(file: Path):
    anna = User.objects.create_user("anna")
    old = file.read_text()
    assert check_lines(old.splitlines())

    import_lines(old.splitlines(), anna)

    new = iter(read("".join(export_lines(Conversation.objects.all(), owner=anna.pk))))
    for line in read(old):
        written = next(new)
        if reason := (line.get("metadata") or {}).get("feedback", {}).pop("reason", None):
            line["rating_reason"] = reason  # which is encrypted there
        for name, value in line.items():
            name = NEW.get(name, name)
            if name == "content":
                assert written[name].items() >= value.items() or written["name"].endswith("notebook")
            elif name != "state_since":
                assert written.get(name, value) == value, name
    assert next(new, None) is None
    assert everything_is_whole()
    assert {each.owner for each in Conversation.objects.all()} == {anna}


def test_there_is_a_file_for_each_set_of_fields_there_was():
    fields = {frozenset(name for line in read(file.read_text()) for name in line) for file in EXPORTS}

    assert len(EXPORTS) == 16
    assert len(fields) >= 10
