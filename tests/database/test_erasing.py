"""A long conversation is erased at once, and its messages are deleted after it, in short transactions."""

import itertools
from collections.abc import Callable, Iterator
from hashlib import sha256
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from django.contrib.auth.models import User
from django.core.files.storage import storages
from django.core.management import CommandError, call_command
from django.db import connection, models, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chatmemory_django import operations
from chatmemory_django.chat.models import ModelCall
from chatmemory_django.contrib.files import storage as storage_of_files
from chatmemory_django.contrib.files.codec import stored_bytes
from chatmemory_django.contrib.files.findings import check_files
from chatmemory_django.contrib.files.models import MediaFile, MediaReference
from chatmemory_django.contrib.files.storage import FOLDER
from chatmemory_django.db import batches
from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation, ErasedConversation, Message, remains
from chatmemory_django.operations.searching import find_messages
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.database.interleaving import another_writer
from tests.database.test_operations import DAY, NO_WINDOW
from tests.leftovers import leftovers
from tests.pictures import a_file, picture, stored_in, use_storage

pytestmark = pytest.mark.django_db(transaction=True)

TEXT = "Zaquixo wrote a letter of seven lines"
LENGTH = 7
NEW = UserMessage("again")


class Crash(BaseException):
    """The process ends."""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch, settings) -> None:
    """Make ``LENGTH`` messages many, so that they are deleted in several transactions, and the storage one folder."""
    monkeypatch.setattr(remains, "SHORT", 3)
    monkeypatch.setattr(remains, "BATCH", 2)
    monkeypatch.setattr(storage_of_files, "FOLDERS", [f"{FOLDER}/{sha256(a_file(1)).hexdigest()[:2]}"])
    use_storage(settings)


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


def a_memory(owner: User | None = None, memory_id: str = "a") -> ChatMemory:
    return MessageWindowChatMemory(max_messages=4, id=memory_id, store=DjangoChatMemoryStore(owner=owner))


def a_long_talk(owner: User) -> Conversation:
    """Store ``LENGTH`` messages, each with a call of a model, and the last with a file."""
    a_memory(owner).add(*(UserMessage(f"{TEXT}, {number}") for number in range(1, LENGTH)))
    a_memory(owner).add(picture(1, TEXT))
    conversation = Conversation.objects.get(memory_id="a")
    for _ in range(LENGTH):
        ModelCall.objects.create(owner=owner, conversation=conversation, purpose="answer", outcome="completed")
    return conversation


WAYS: dict[str, Callable[[], object]] = {
    "erase": lambda: operations.erase(Conversation.objects.filter(memory_id="a")),
    "delete many": lambda: Conversation.objects.filter(memory_id="a").delete(),
    "delete one": lambda: Conversation.objects.get(memory_id="a").delete(),
    "prune": lambda: operations.prune(Conversation.objects.all(), idle=DAY),
}


@pytest.fixture(params=WAYS)
def erase(request) -> Callable[[], object]:
    def run() -> object:
        if request.param == "prune":
            Conversation.objects.filter(memory_id="a").update(updated_at=timezone.now() - 2 * DAY)
        return WAYS[request.param]()

    return run


def rows() -> list[int]:
    """Return how many rows there are of what a conversation has."""
    of_calls = ModelCall.objects.exclude(conversation=None)
    return [each.count() for each in (Message.objects, of_calls, MediaReference.objects, MediaFile.objects)]


def everything_is_gone() -> bool:
    """Return whether nothing is left of the talk, in any table or in the storage."""
    is_listed = ErasedConversation.objects.exists()
    return rows() == [0] * 4 and not is_listed and not stored_in(storages["chats"]) and leftovers(TEXT) == []


def seen_by(owner: User) -> dict[str, object]:
    """Return what readers find of the talk."""
    every = Conversation.objects.all()
    findings: list[object] = []
    operations.check(every, NO_WINDOW, findings.append)
    check_files("default", findings.append, age=-DAY)
    found = find_messages(every, "Zaquixo", owner=owner, types=["USER"], stop=9)
    return {
        "memory": len(a_memory(owner).messages()),
        "history": len(DjangoChatMemoryStore().read_history("a")),
        "list": Conversation.objects.owned_by(owner).count(),
        "search": len(found),
        "searched conversations": every.search("Zaquixo", types=["USER"]).count(),
        "messages of the owner": Message.objects.filter(conversation__owner=owner).count(),
        "export": sum(TEXT in piece for piece in operations.export_lines(every)),
        "files": stored_bytes(owner.pk),
        "findings": len(findings),
    }


NOTHING = dict.fromkeys(
    ("memory", "history", "list", "search", "searched conversations", "messages of the owner", "export", "files"), 0
) | {"findings": 0}


def test_nothing_is_left_of_it(ann, erase):
    a_long_talk(ann)

    erase()

    assert everything_is_gone()
    assert ModelCall.objects.filter(owner=ann).count() == LENGTH


def test_receipts_count_its_messages(ann):
    a_long_talk(ann)
    assert operations.erase(Conversation.objects.all()).messages == {"a": LENGTH}
    a_long_talk(ann)
    _, deleted = Conversation.objects.all().delete()

    assert (deleted["chatmemory.Message"], deleted["chatmemory.Conversation"]) == (LENGTH, 1)


def test_no_transaction_deletes_more_than_a_few_messages(ann, erase):
    conversation = a_long_talk(ann)

    counted: list[int] = []

    def count(execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        if sql.startswith("DELETE") and "chatmemory_message" in sql.split("WHERE")[0]:
            counted.append(Message.objects.filter(conversation_id=conversation.pk).count())
        return result

    with connection.execute_wrapper(count):
        erase()

    assert counted == [5, 3, 1, 0]


def test_large_messages_are_deleted_alone(ann, monkeypatch):
    monkeypatch.setattr(remains, "SHORT", 100)
    monkeypatch.setattr(remains, "BATCH", 100)
    monkeypatch.setattr(remains, "LARGE", 20_000)
    monkeypatch.setattr(remains, "BATCH_BYTES", 50_000)
    a_memory(ann).add(*(UserMessage("x" * size) for size in (1, 1, 19_000, 1, 30_000, 1, 60_000, 1)))
    rows = Message.objects.all()

    assert list(remains.runs(rows)) == [(1, 6), (7, 7), (8, 8)]
    with patch.object(remains, "delete_rows", side_effect=AssertionError):
        assert operations.erase(Conversation.objects.all()).messages == {"a": 8}
    assert not rows.exists()


@pytest.mark.parametrize("way", ["erase", "delete many", "delete one"])
def test_a_short_one_takes_no_more_statements_than_before(way, settings, monkeypatch, django_assert_num_queries):
    monkeypatch.setattr(remains, "SHORT", 200)
    del settings.CHATMEMORY["MEDIA_STORAGE"]
    a_memory().add(*(UserMessage(str(number)) for number in range(6)))

    with CaptureQueriesContext(connection) as statements:
        WAYS[way]()

    sent = [each["sql"] for each in statements if not each["sql"].startswith(("BEGIN", "COMMIT"))]
    is_sqlite = connection.vendor == "sqlite"
    # Two are about legal holds, an app that the example site does not have.
    assert len(sent) == {"erase": 17, "delete many": 17, "delete one": 14}[way] + is_sqlite * (way != "delete one")
    assert not any("erasedconversation" in sql for sql in sent)


@pytest.mark.parametrize("erase", [WAYS["erase"], WAYS["delete many"]], ids=["erase", "delete many"])
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_wherever_the_process_ends_nobody_finds_half_of_it_and_the_next_prune_deletes_the_rest(ann, erase, step):
    for number in itertools.count(step=step):
        a_long_talk(ann)
        before, whole = rows(), seen_by(ann)
        statements = itertools.count()

        def crash(execute, sql, params, many, context, number=number, statements=statements):
            if next(statements) == number:
                raise Crash
            return execute(sql, params, many, context)

        try:
            with connection.execute_wrapper(crash):
                erase()
        except Crash:
            pass
        else:
            break

        if Conversation.objects.exists():
            assert (rows(), seen_by(ann)) == (before, whole)
            Conversation.objects.all().delete()
        else:
            assert seen_by(ann) == NOTHING
            a_memory(ann).add(NEW)
            assert a_memory(ann).messages() == [NEW]
            operations.prune(Conversation.objects.all())
            assert [row.text for row in Message.objects.all()] == [NEW.single_text]
            Conversation.objects.all().delete()
        assert rows() == [0] * 4
    assert number > 30
    assert everything_is_gone()


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 7])
def test_a_writer_between_any_two_statements_loses_nothing(ann, erase, step):
    for after in itertools.count(1, step):
        a_long_talk(ann)
        with another_writer(lambda: a_memory(ann).add(NEW), after), CaptureQueriesContext(connection) as statements:
            erase()
        there = a_memory(ann).messages()
        # Before the lock, it is erased with the others, or keeps the conversation from being idle; after it, it begins
        # another one.
        assert there[-1:] in ([], [NEW])
        assert Message.objects.count() == {0: 0, 1: 1}.get(len(there), LENGTH + 1)
        assert not ErasedConversation.objects.exists()
        operations.check(Conversation.objects.all(), NO_WINDOW, lambda finding: pytest.fail(str(finding)))
        Conversation.objects.all().delete()
        if after > len(statements):
            break


def test_the_command_deletes_what_is_left_of_an_earlier_erasure(ann, capsys):
    a_long_talk(ann)
    with patch.object(remains, "delete_left"):
        operations.erase(Conversation.objects.all())

    call_command("erase_chatmemory", user="ann", verbosity=0)

    assert everything_is_gone()


def test_the_check_finds_what_is_left_of_an_erasure_and_repairs_it(ann, capsys):
    a_long_talk(ann)
    with patch.object(remains, "delete_left"):
        operations.erase(Conversation.objects.all())

    for option, done in ((), "prune_chatmemory deletes them."), (("--repair",), "Repaired."):
        with pytest.raises(CommandError, match="1 findings"):
            call_command("check_chatmemory", *option, verbosity=0)
        assert f"1 erased conversations have messages left. {done}" in capsys.readouterr().out

    assert everything_is_gone()
    call_command("check_chatmemory", verbosity=0)


@pytest.mark.slow
def test_two_can_delete_the_rest_at_the_same_time(ann):
    for after in range(1, 30):
        conversation = a_long_talk(ann)
        with patch.object(remains, "delete_left"):
            operations.erase(Conversation.objects.all())
        assert list(ErasedConversation.objects.values_list("pk", flat=True)) == [conversation.pk]
        with another_writer(lambda: operations.prune(Conversation.objects.all()), after):
            operations.prune(Conversation.objects.all())

        assert everything_is_gone()


def test_inside_a_transaction_of_the_caller_all_happens_there(ann, erase):
    a_long_talk(ann)
    before = rows()
    with pytest.raises(ConnectionError), transaction.atomic():
        erase()
        assert rows()[0] == 0
        assert not ErasedConversation.objects.exists()
        raise ConnectionError
    assert rows() == before

    with transaction.atomic():
        erase()

    assert everything_is_gone()


def test_with_its_owner_it_is_deleted_in_django_s_transaction(ann):
    a_long_talk(ann)

    ann.delete()

    assert everything_is_gone()


def test_where_objects_of_the_site_protect_messages_all_happens_in_one_transaction():
    protected = [SimpleNamespace(on_delete=models.PROTECT)]

    with patch.object(Message._meta, "get_fields", return_value=protected):
        condition = remains.is_long()

    assert isinstance(condition, models.Value)
    assert not condition.value


def test_others_are_left_time_between_the_transactions_of_sqlite(ann, erase, monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr(batches, "time", SimpleNamespace(monotonic=itertools.count().__next__, sleep=pauses.append))
    a_long_talk(ann)

    erase()

    assert len(pauses) == (9 if connection.vendor == "sqlite" else 0)


@pytest.fixture(autouse=True)
def cleared_storage() -> Iterator[None]:
    yield
    Conversation.objects.all().delete()
