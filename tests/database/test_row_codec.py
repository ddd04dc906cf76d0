"""What an app that stores texts in another form knows of each value: its place; as it is written, and as it is read."""

import json
from contextlib import nullcontext
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext

from chatmemory_django.db import row_codec
from chatmemory_django.db.row_codec import Address, UnreadableError
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import AiMessage, CustomMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import entitle, erase, export_lines, fork, import_lines
from chatmemory_django.stores.django import DjangoChatMemoryStore

pytestmark = pytest.mark.django_db(transaction=True)

QUESTION, ANSWER, OTHER = UserMessage("Where?"), AiMessage("Here."), CustomMessage({"a": 1})


class Coder:
    """Writes the place of each text in front of it, and compares as much of it as is known."""

    def __init__(self, codec: "Codec", address: Address) -> None:
        self.codec = codec
        self.address = address

    def encode(self, text: str, column: str, row: tuple[Any, ...] = ()) -> str:
        place = [self.address.using, column, self.address.conversation, self.address.memory_id]
        return f"{json.dumps([*place, str(self.address.owner), *row], default=str)}\n{text}"

    def decode(self, stored: str, column: str, row: tuple[Any, ...] = ()) -> str:
        head, _, text = stored.partition("\n")
        using, written, conversation, *_, sequence, kind = [*json.loads(head), None, None][:7]
        self.codec.read.append((self.address, column, row))
        known = using == self.address.using and written == column
        if self.address.conversation is not None and row:
            known = known and (conversation, sequence, kind) == (self.address.conversation, *row)
        if not known:
            raise UnreadableError(f"{column} is not what was stored there.")
        return text

    def decode_all(self, stored: Any, column: str, sequences: Any, types: Any) -> list[str]:
        rows = zip(sequences, types, strict=True)
        return [self.decode(each, column, row) for each, row in zip(stored, rows, strict=True)]

    def encode_file(self, content: bytes, owner: str, sha256: str) -> tuple[bytes, str]:
        return content, ""

    def decode_file(self, stored: bytes, key_id: str, owner: str, sha256: str) -> bytes:
        return stored


class Codec:
    has_owner_keys = False

    def __init__(self) -> None:
        self.read: list[tuple[Address, str, tuple[Any, ...]]] = []

    def at(self, address: Address) -> Coder:
        return Coder(self, address)

    def max_size(self, size: int) -> int:
        return size + 1_000

    def selected(self, field: Any, table: str, connection: Any) -> str:
        return table + connection.ops.quote_name(field.column)

    def decoder(self, field: Any, using: str) -> Any:
        decode = self.at(Address(using)).decode
        return lambda value, *_: decode(value, field.label) if value else value

    def report(self, conversations: Any, write: Any) -> int:
        return 0

    def copied(self, source: Any, forked: Any, last: int) -> None:
        pass

    def saving(self, conversation: Any, fields: Any, using: str) -> Any:
        return nullcontext()

    def update(self, rows: Any, columns: Any) -> int:
        return QuerySet.update(rows, **columns)

    def place(self, rows: Any, instances: Any, columns: Any) -> None:
        pass


@pytest.fixture
def codec(monkeypatch) -> Codec:
    installed = Codec()
    monkeypatch.setattr(row_codec, "installed", installed)
    return installed


@pytest.fixture
def ann() -> Any:
    return get_user_model().objects.create_user("ann")


def a_memory(owner: Any = None) -> MessageWindowChatMemory:
    return MessageWindowChatMemory(max_messages=10, id="a", store=DjangoChatMemoryStore(owner=owner))


def heads(column: str = "text", table: str = "chatmemory_message") -> list[list[Any]]:
    with connection.cursor() as cursor:
        order = "conversation_id, sequence" if table == "chatmemory_message" else "id"
        cursor.execute(f"SELECT {column} FROM {table} WHERE {column} <> '' ORDER BY {order}")
        return [json.loads(value.partition("\n")[0]) for (value,) in cursor.fetchall()]


def place(column: str, conversation: int | None, owner: Any, *row: Any) -> list[Any]:
    return ["default", column, conversation, "a", str(owner.pk if owner else None), *row]


def test_a_message_is_stored_for_its_column_conversation_owner_sequence_and_type(codec, ann):
    a_memory(ann).add(QUESTION, ANSWER, OTHER)

    key = Conversation.objects.get().pk
    assert heads() == [
        place("chatmemory.message.text", key, ann, 1, "USER"),
        place("chatmemory.message.text", key, ann, 2, "AI"),
    ]
    assert heads("payload") == [place("chatmemory.message.payload", key, ann, 3, "CUSTOM")]
    assert a_memory(ann).messages() == [QUESTION, ANSWER, OTHER]


def test_so_is_one_that_is_imported_or_saved_as_a_model(codec, ann):
    a_memory(ann).add(QUESTION)
    lines = list(export_lines(Conversation.objects.all()))
    erase(Conversation.objects.all())

    import_lines(lines, owner=ann)
    conversation = Conversation.objects.get()
    Message.objects.create(conversation=conversation, sequence=2, type="AI", text="Here.")

    assert heads() == [
        place("chatmemory.message.text", conversation.pk, ann, 1, "USER"),
        place("chatmemory.message.text", conversation.pk, ann, 2, "AI"),
    ]


def test_a_title_is_stored_for_its_conversation(codec, ann):
    a_memory(ann).add(QUESTION)
    conversation = Conversation.objects.get()
    stored = place("chatmemory.conversation.title", conversation.pk, ann)

    entitle(Conversation.objects.all(), "a", "First")
    assert heads("title", "chatmemory_conversation") == [stored]
    conversation.title = "Second"
    conversation.save()
    assert heads("title", "chatmemory_conversation") == [stored]
    assert Conversation.objects.get().title == "Second"


@pytest.mark.parametrize("way", ["messages", "history", "turn"])
def test_the_store_reads_each_value_with_its_place(codec, ann, way):
    a_memory(ann).add(QUESTION, ANSWER)
    key = Conversation.objects.get().pk
    codec.read.clear()

    if way == "messages":
        a_memory(ann).messages()
    elif way == "history":
        DjangoChatMemoryStore(owner=ann).read_history("a")
    else:
        with a_memory(ann).turn() as turn:
            assert turn.messages == [QUESTION, ANSWER]

    address = Address("default", key, "a", str(ann.pk))
    assert sorted(codec.read) == [(address, "chatmemory.message.text", row) for row in ((1, "USER"), (2, "AI"))]


def test_a_field_alone_knows_the_column_and_the_database(codec):
    a_memory().add(QUESTION)
    codec.read.clear()

    assert [row.text for row in Message.objects.all()] == ["Where?"]

    assert codec.read == [(Address("default"), "chatmemory.message.text", ())]


def test_a_value_in_the_place_of_another_one_can_be_found(codec):
    a_memory().add(QUESTION, UserMessage("When?"))
    with connection.cursor() as cursor:
        cursor.execute("SELECT text FROM chatmemory_message WHERE sequence = 1")
        cursor.execute("UPDATE chatmemory_message SET text = %s WHERE sequence = 2", cursor.fetchone())

    with pytest.raises(UnreadableError):
        a_memory().messages()
    with pytest.raises(UnreadableError):
        DjangoChatMemoryStore().read_history("a")


def test_it_knows_what_was_copied_inside_the_database(codec, ann, monkeypatch):
    copied: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Codec, "copied", lambda self, *given: copied.append(given))
    a_memory().add(QUESTION, OTHER)
    source = Conversation.objects.get()

    forked = fork(source, "b", owner=ann)

    assert copied == [(source, forked, 2)]
    assert [head[2:4] for head in heads("payload")] == [[source.pk, "a"], [source.pk, "a"]]


def test_it_costs_no_statement(ann, monkeypatch):
    counts = []
    for installed in (None, Codec()):
        monkeypatch.setattr(row_codec, "installed", installed)
        erase(Conversation.objects.all())
        memory = a_memory(ann)
        memory.add(QUESTION)
        with CaptureQueriesContext(connection) as queries:
            memory.add(ANSWER)
            memory.messages()
            DjangoChatMemoryStore(owner=ann).read_history("a")
        counts.append(len(queries))

    assert counts[0] == counts[1]
