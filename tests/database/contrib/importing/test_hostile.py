"""Files of other frameworks that are broken, or made to break the import: refused, with bounded memory."""

import json
import re
import tracemalloc
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
from django.core.management import CommandError
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.contrib.importing import documents
from chatmemory_django.contrib.importing.documents import open_conversations
from chatmemory_django.contrib.importing.frameworks import MESSAGES, open_source
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import ImportedConversation
from tests.database.contrib.importing.sources import messages_of, moved, refused
from tests.quick import mostly_slow

pytestmark = pytest.mark.django_db

HUMAN = {"type": "human", "data": {"content": "Hi"}}
VALID = {
    "langchain": HUMAN,
    "langchain4j": {"type": "USER", "contents": [{"type": "TEXT", "text": "Hi"}]},
    "llamaindex": {"role": "user", "additional_kwargs": {}, "blocks": [{"block_type": "text", "text": "Hi"}]},
    "pydantic-ai": {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Hi"}]},
}
each_framework = pytest.mark.parametrize("framework", VALID)
MEGABYTE = 1_000_000


def archive(path: Path, name: str, *parts: str, times: int = 1) -> Path:
    """Write an archive with a file that has *parts*, the second of them *times* times."""
    with ZipFile(path, "w", ZIP_DEFLATED) as packed, packed.open(name, "w") as file:
        before, middle, after = parts
        file.write(before.encode())
        for _ in range(times):
            file.write(middle.encode())
        file.write(after.encode())
    return path


@pytest.mark.parametrize("framework", mostly_slow(VALID))
@pytest.mark.parametrize("at", mostly_slow(["before", "between", "within", "after"]))
def test_spaces_take_no_memory(framework, at, tmp_path):
    item = json.dumps(VALID[framework])
    first, rest = item[:1], item[1:]
    before, after = {
        "before": ("", f"[{item},{item}]"),
        "between": (f"[{item},", f"{item}]"),
        "within": (f"[{item},{first}", f"{rest}]"),
        "after": (f"[{item},{item}]", ""),
    }[at]
    path = archive(tmp_path / "a.zip", "talk.json", before, " " * MEGABYTE, after, times=60)
    assert path.stat().st_size < MEGABYTE
    tracemalloc.start()
    try:
        moved(framework, path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert messages_of("talk") == [UserMessage("Hi")] * 2
    assert peak < 50 * MEGABYTE


@pytest.mark.slow
@pytest.mark.parametrize("filling", mostly_slow(["{},", "[],", "[", '"x",', "1", "x"]))
def test_what_is_no_message_is_refused_and_not_kept(filling, tmp_path):
    path = archive(tmp_path / "a.zip", "talk.json", "[", filling * (MEGABYTE // len(filling)), "", times=2)
    tracemalloc.start()
    try:
        [error] = refused("langchain", path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert error.startswith("'talk")
    assert peak < 30 * MEGABYTE
    assert Conversation.objects.count() == 0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not JSON"),
        (b"nul", "is not JSON"),
        (b"null", "must be a list of messages, or an object of such lists"),
        (b"[1", "is not JSON"),
        (b"[", "is not JSON"),
        (b"[]]", "is not JSON"),
        (b'{"a": []', "is not JSON"),
        (b'{"a" []}', "is not JSON"),
        (b"{1: []}", "is not JSON"),
        (b'[{"type": "human" "data": {}}]', "is not JSON"),
        (b'["\xff"]', "is not UTF-8"),
        (b"[" * 100_000, "is nested too deeply"),
        (b"[" + b"9" * 5_000 + b"]", "is not JSON"),
        (b"[1, 2]", r"messages\[0\] must be a dict, not int"),
        (b"[12]", r"messages\[0\] must be a dict, not int"),
        (b"[null]", r"messages\[0\] must be a dict, not NoneType"),
        (b'{"a": 5}', "must be a list, not int"),
        (b'{"store": {"a": "b"}}', "must be a list, not str"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_refused_with_the_reason(content, reason, tmp_path):
    path = tmp_path / "talk.json"
    path.write_bytes(content)

    [error] = refused("langchain", path)

    assert re.search(reason, error)


def test_the_conversations_beside_an_invalid_one_are_stored(tmp_path):
    path = tmp_path / "talks.json"
    path.write_text(json.dumps({"a": [HUMAN], "b": [HUMAN, {"no": 1}, HUMAN], "c": 5, "d": [HUMAN, HUMAN]}))

    errors = refused("langchain", path)

    assert [error.partition(":")[0] for error in errors] == ["'b'", "'c'"]
    assert sorted(Conversation.objects.values_list("memory_id", flat=True)) == ["a", "d"]


def test_what_is_beside_a_store_is_no_conversation(tmp_path):
    path = tmp_path / "store.json"
    path.write_text(json.dumps({"class_name": "SimpleChatStore", "store": {"a": [VALID["llamaindex"]]}}))

    moved("llamaindex", path)

    assert Conversation.objects.get().memory_id == "a"


def test_a_conversation_that_is_there_twice_is_stored_once(tmp_path):
    path = tmp_path / "talks.json"
    path.write_text(f'{{"a": [{json.dumps(HUMAN)}], "a": [{json.dumps(HUMAN)}]}}')

    moved("langchain", path)

    assert Message.objects.count() == 1


def test_a_damaged_or_encrypted_archive_is_refused(tmp_path):
    path = archive(tmp_path / "a.zip", "talk.json", "[", " " * 1000, json.dumps(HUMAN) + "]")
    content = bytearray(path.read_bytes())
    content[60] ^= 0xFF
    path.write_bytes(content)
    [damaged] = refused("langchain", path)

    content = bytearray(archive(path, "talk.json", "[", "", "]").read_bytes())
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + at] |= 1  # the flag of an encrypted file
    path.write_bytes(content)
    [encrypted] = refused("langchain", path)

    assert "is damaged" in damaged
    assert "cannot be read" in encrypted


def test_an_encrypted_export_of_chatgpt_is_refused(tmp_path):
    path = archive(tmp_path / "a.zip", "conversations.json", "[", "", "]")
    content = bytearray(path.read_bytes())
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + at] |= 1
    path.write_bytes(content)

    with pytest.raises(CommandError, match="cannot be read"):
        moved("openai", path)


@pytest.mark.slow
@given(
    title=st.one_of(
        st.none(), st.integers(), st.lists(st.text(max_size=3), max_size=2), st.dictionaries(st.text(), st.none())
    ),
    time=st.one_of(st.none(), st.text(max_size=3), st.floats(), st.integers(-(10**400), 10**400), st.booleans()),
    message=st.recursive(
        st.one_of(
            st.none(), st.integers(), st.text(max_size=5), st.sampled_from(["user", "assistant", "tool", "text"])
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=2),
            st.dictionaries(
                st.sampled_from(["author", "role", "content", "content_type", "parts", "recipient", "thoughts"]), inner
            ),
        ),
        max_leaves=10,
    ),
    parent=st.sampled_from([None, "a", "b", "none", 5]),
)
def test_any_node_of_an_export_of_chatgpt_is_read_or_refused(title, time, message, parent, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / "conversations.json"
    if isinstance(message, dict):
        message["create_time"] = time
    nodes = {"a": {"message": message, "parent": parent}, "b": {"message": message, "parent": "a"}}
    path.write_text(json.dumps([{"id": "c", "title": title, "create_time": time, "mapping": nodes}]))

    with open_source("openai", str(path)) as source:
        [step] = source.steps

    assert isinstance(step.conversation, ValueError) or isinstance(step.conversation.title, str)


@each_framework
@given(
    value=st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=5)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(
                st.sampled_from(
                    ["type", "data", "content", "role", "blocks", "kind", "parts", "contents", "tool_calls", "store"]
                ),
                inner,
                max_size=4,
            ),
        ),
        max_leaves=12,
    )
)
def test_any_json_is_read_or_refused(framework, value, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / "talk.json"
    path.write_text(json.dumps(value))

    with open_conversations(str(path), MESSAGES[framework]) as source:
        found = [step.conversation for step in source.steps]

    assert all(isinstance(each, (ImportedConversation, ValueError)) for each in found)


@pytest.mark.slow
@given(
    document=st.recursive(
        st.one_of(st.integers(), st.text(st.sampled_from('a "\\\n\t\u2028😀'), max_size=8)),
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=4)),
        max_leaves=20,
    ),
    size=st.integers(1, 12),
    ensure_ascii=st.booleans(),
    indent=st.sampled_from([None, 0, 3]),
)
def test_values_are_read_as_json_reads_them_wherever_a_file_is_cut(
    document, size, ensure_ascii, indent, tmp_path_factory
):
    path = tmp_path_factory.mktemp("any") / "talk.json"
    path.write_text(json.dumps(document, ensure_ascii=ensure_ascii, indent=indent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "READ_CHARACTERS", size)
        with documents._text(documents._file(path), 10_000) as text:
            assert text.value() == document
            text.end()
