"""Files in a storage: once per owner, read back whole, and gone with the last message that has them."""

import base64
import hashlib
import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from functools import partial

import pytest
from django.contrib.auth.models import User
from django.core.files.base import ContentFile
from django.core.files.storage import InMemoryStorage, storages
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, transaction
from django.http import HttpRequest
from django.utils import timezone

from chatmemory_django import operations
from chatmemory_django.access import AccessPolicy
from chatmemory_django.codec import message_to_json
from chatmemory_django.contrib.files import storage as storage_module
from chatmemory_django.contrib.files.codec import stored_bytes
from chatmemory_django.contrib.files.findings import check_files
from chatmemory_django.contrib.files.models import MediaFile, MediaReference
from chatmemory_django.db.row_codec import address_of
from chatmemory_django.memory import (
    ChatMemory,
    MessageWindowChatMemory,
    SummarizingChatMemory,
    TokenWindowChatMemory,
)
from chatmemory_django.messages import (
    AiMessage,
    Audio,
    AudioContent,
    CustomMessage,
    Image,
    ImageContent,
    NewMessage,
    PdfFile,
    PdfFileContent,
    TextContent,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.models.message_codec import MissingFileError, StorageError, file_in
from chatmemory_django.stores.django import DjangoChatMemoryStore
from chatmemory_django.tokens import OpenAiTokenCountEstimator
from tests.database.interleaving import Connected, another_writer, in_another_connection
from tests.database.test_writes import isolated
from tests.estimators import ADDITIVE_WORDS
from tests.pictures import a_file, assert_consistent, custom, entry, picture, stored_in, use_storage

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def storage(settings) -> Iterator[InMemoryStorage]:
    use_storage(settings)
    yield storages["chats"]
    assert_consistent(storages["chats"])


def a_memory(memory_id: str = "a", owner: User | None = None, *, limit: int = 100, keep_history: bool = True):
    store = DjangoChatMemoryStore(owner=owner, keep_history=keep_history)
    return MessageWindowChatMemory(max_messages=limit, id=memory_id, store=store)


def test_each_kind_of_file_comes_back_as_it_was_given_and_none_is_in_a_row():
    data = a_file(1)
    encoded = base64.b64encode(data).decode()
    messages = [
        picture(1),
        UserMessage([ImageContent(Image(url=f"data:image/png;base64,{encoded}", revised_prompt="A cat"))]),
        UserMessage([AudioContent(Audio(binary_data=data)), PdfFileContent(PdfFile(base64_data=encoded))]),
        UserMessage([ImageContent(Image(base64_data=encoded[:-8] + "\n" + encoded[-8:]))]),  # not as computers write it
        UserMessage(
            [ImageContent(Image(base64_data="!" * 3000)), ImageContent(Image(url="https://example.org/a.png"))]
        ),
        AiMessage("A cat."),
    ]
    memory = a_memory()
    memory.add(*messages)

    assert memory.messages() == messages
    assert memory.store.get_messages("a") == messages
    assert [row.chat_message for row in memory.store.read_history("a")][::-1] == messages
    assert memory.pop() == messages[-1]
    payloads = list(Message.objects.order_by("sequence").values_list("payload", flat=True))
    assert not any(encoded[:100] in payload for payload in payloads[:3])
    kept = json.loads(payloads[0])["contents"][1]["image"]["file"]
    assert kept == {
        "sha256": hashlib.sha256(data).hexdigest(),
        "size": 2000,
        "type": "image/png",
        "width": 512,
        "height": 256,
    }
    assert [content for _, content in stored_in(storages["chats"])] == [data]


def test_base64_in_other_json_is_a_file_as_well_and_comes_back_as_it_was_given():
    data = a_file(1) + b"\xfb\xff"
    encoded = base64.b64encode(data).decode()
    messages = [
        custom(1),
        CustomMessage({"url": f"data:image/png;base64,{encoded}", "safe": base64.urlsafe_b64encode(data).decode()}),
        CustomMessage({"short": encoded[:900], "broken": encoded[:-1], "words": "AAAA " * 500, "é": f"é{encoded}="}),
        UserMessage("Look", attributes={"parts": [{"data": encoded}]}),
        AiMessage("A cat", attributes={"image": encoded}),
    ]
    texts = [message.text for message in messages[:3]]
    memory = a_memory()
    memory.add(*messages)

    assert memory.messages() == messages
    assert [row.chat_message for row in memory.store.read_history("a")][::-1] == messages
    assert list(Message.objects.order_by("sequence").values_list("text", flat=True))[:3] == texts
    rows = list(Message.objects.order_by("sequence").values_list("payload", flat=True))
    assert [encoded[:1000] in row for row in rows] == [False, False, True, False, False]
    assert "_" in base64.urlsafe_b64encode(data).decode()
    assert sorted(content for _, content in stored_in(storages["chats"])) == sorted([a_file(1), data])
    assert memory.pop() == messages[-1]
    lines = "".join(operations.export(Conversation.objects.all())).splitlines()
    operations.import_lines(lines, rename=True)
    assert "".join(operations.export(Conversation.objects.filter(memory_id="a"))).splitlines() == lines


def test_an_entry_of_several_messages_keeps_the_files_of_all_of_them():
    memory = a_memory()
    given = entry(1)
    memory.add(*given, AiMessage("A cat"))

    rows = memory.store.read_history("a")
    assert rows[1].verbatim == given[1].verbatim
    assert all("AAAA" not in (verbatim or "") for verbatim in Message.objects.values_list("verbatim", flat=True))
    assert len(Message.objects.get(sequence=2).verbatim or "") < 1_000
    operations.fork(Conversation.objects.get(), "b", owner=User.objects.create_user("ann"))
    memory.remove(1)  # and so its original, of which the second message is the end
    assert memory.store.read_history("a")[1].verbatim is None
    assert MediaReference.objects.filter(conversation__memory_id="a").count() == 0
    fork = DjangoChatMemoryStore()
    assert fork.read_history("b")[1].verbatim == given[1].verbatim
    lines = "".join(operations.export(Conversation.objects.filter(memory_id="b"))).splitlines()
    operations.erase(Conversation.objects.all())
    operations.import_lines(lines)
    assert fork.read_history("b")[1].verbatim == given[1].verbatim


def test_a_lost_file_of_other_json_is_an_error_or_a_text(storage, settings):
    a_memory().add(custom(1))
    a_memory("b").add(*entry(1))
    storage.delete(MediaFile.objects.get().name)

    with pytest.raises(MissingFileError, match="A file in the attributes or the original of message 1 of 'a'"):
        a_memory().messages()
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MEDIA_MISSING": "placeholder"}
    [message] = a_memory().messages()
    assert message.attributes["result"] == "[A file of type unknown with 2000 bytes is not available.]"
    assert json.loads(a_memory("b").store.read_history("b")[0].verbatim)["entries"]["parts"][1] == "And this?"
    operations.erase(Conversation.objects.all())


def test_a_window_reads_each_file_once_with_one_more_statement_and_a_text_costs_none(django_assert_num_queries):
    memory = a_memory()
    memory.add(picture(1), picture(1, "Again"), picture(2))
    texts = a_memory("texts")
    texts.add(UserMessage("Hi"))

    with django_assert_num_queries(1):
        assert len(texts.messages()) == 1
    with django_assert_num_queries(2):
        assert len(memory.messages()) == 3


def test_tokens_are_counted_by_what_the_row_keeps():
    estimator = OpenAiTokenCountEstimator("gpt-4o")
    message = picture(1)
    TokenWindowChatMemory(
        max_tokens=10_000, token_count_estimator=estimator, id="a", store=DjangoChatMemoryStore()
    ).add(message)
    row = Message.objects.get()

    expected = estimator.estimate_token_count_in_message(message)
    assert row.token_count == expected == estimator.estimate_token_count_in_message(row.chat_message)


def test_owners_share_no_file_and_an_owner_has_each_once():
    ann, bob = (User.objects.create_user(name) for name in ("ann", "bob"))
    for owner in (ann, bob, None):
        for number in (1, 2):
            a_memory(f"{owner}-{number}", owner).add(picture())

    assert sorted(MediaFile.objects.values_list("owner", "size")) == sorted(
        [(str(ann.pk), 2000), (str(bob.pk), 2000), ("", 2000)]
    )
    ann.delete()
    assert MediaFile.objects.count() == 2
    assert a_memory("bob-1", bob).messages() == [picture()]


def test_a_reference_that_someone_sends_is_no_key_to_a_file():
    a_memory("mine").add(picture())
    theirs = Message.objects.get().chat_message

    with pytest.raises(ValueError, match="has the field 'file', which only the store sets"):
        a_memory("yours").add(theirs)
    a_memory("mine").add(custom())
    message = Message.objects.get(sequence=2).chat_message
    for forged in (message, NewMessage(UserMessage("Hi"), verbatim=f'{{"x": "{message.attributes["result"]}"}}')):
        with pytest.raises(ValueError, match="or the mark of one"):
            a_memory("yours").add(forged)


@pytest.mark.parametrize("way", ["remove", "erase", "delete", "prune", "evict", "clear and forget", "set"])
@pytest.mark.parametrize(
    "message", [picture(1), custom(1), NewMessage(UserMessage("Look"), verbatim=message_to_json(custom(1)))]
)
def test_the_file_goes_with_the_last_message_that_has_it(way, message, storage):
    memory = a_memory(keep_history=way not in {"evict", "clear and forget", "set"}, limit=2)
    memory.add(message)
    other = a_memory("other")
    other.add(picture(2))
    match way:
        case "remove":
            memory.remove(1)
        case "erase":
            operations.erase(Conversation.objects.filter(memory_id="a"))
        case "delete":
            Conversation.objects.get(memory_id="a").delete()
        case "prune":
            memory.add(UserMessage("1"), UserMessage("2"))
            Message.objects.update(created_at="2020-01-01T00:00Z")
            operations.prune(Conversation.objects.filter(memory_id="a"), history_older_than=timedelta(days=1))
        case "evict":
            memory.add(UserMessage("1"), UserMessage("2"))
        case "clear and forget":
            memory.clear()
        case "set":
            memory.set([UserMessage("1")])

    assert [content for _, content in stored_in(storage)] == [a_file(2)]
    assert other.messages() == [picture(2)]


def test_setting_a_memory_that_was_read_changes_nothing():
    memory = a_memory()
    memory.add(picture(1), AiMessage("A cat"))
    version = Conversation.objects.get().version

    memory.set(memory.messages())

    assert Conversation.objects.get().version == version
    memory.rewind(1)
    assert memory.messages() == [picture(1)]


def test_forks_share_files_and_another_owner_gets_copies(storage):
    ann, bob = (User.objects.create_user(name) for name in ("ann", "bob"))
    a_memory("a", ann).add(picture(1), picture(2))
    source = Conversation.objects.get()

    operations.fork(source, "same", through=1)
    operations.fork(source, "bobs", owner=bob)
    operations.erase(Conversation.objects.filter(memory_id="a"))

    assert a_memory("same", ann).messages() == [picture(1)]
    assert a_memory("bobs", bob).messages() == [picture(1), picture(2)]
    assert len(stored_in(storage)) == 3


def test_an_export_has_the_files_and_an_import_restores_them(settings):
    a_memory().add(picture(1), AiMessage("A cat"))
    lines = "".join(operations.export(Conversation.objects.all())).splitlines()
    operations.erase(Conversation.objects.all())

    operations.import_lines(lines)
    assert MediaFile.objects.count() == 1
    assert a_memory().messages() == [picture(1), AiMessage("A cat")]
    assert "".join(operations.export(Conversation.objects.all())).splitlines() == lines
    with pytest.raises(operations.ConversationExistsError):
        operations.import_lines(lines)


def test_files_move_there_and_back_and_a_second_run_moves_nothing(settings, capsys):
    with_storage = settings.CHATMEMORY
    settings.CHATMEMORY = {**with_storage, "MEDIA_STORAGE": None}
    messages = [picture(1), picture(1), UserMessage("Hi"), custom(2), *entry(3)]
    a_memory().add(*messages)
    before = list(Message.objects.order_by("sequence").values_list("payload", "verbatim"))
    assert MediaFile.objects.count() == 0
    settings.CHATMEMORY = with_storage

    call_command("move_media_chatmemory", dry_run=True)
    assert MediaFile.objects.count() == 0
    call_command("move_media_chatmemory")
    assert a_memory().messages() == [each.message if isinstance(each, NewMessage) else each for each in messages]
    assert MediaFile.objects.count() == 3
    call_command("move_media_chatmemory")
    call_command("move_media_chatmemory", to_rows=True)

    assert list(Message.objects.order_by("sequence").values_list("payload", "verbatim")) == before
    moved = "files with 10,000 bytes of 5 messages"
    assert capsys.readouterr().out.splitlines() == [
        f"{moved} to move.",
        f"Moved {moved}.",
        "Moved files with 0 bytes of 0 messages.",
        f"Moved {moved}.",
    ]


@pytest.mark.skipif("connection.vendor == 'sqlite'", reason="has one writer at a time")
@pytest.mark.parametrize("after", range(1, 9))
def test_a_file_that_another_writer_removes_or_adds_meanwhile_is_there_for_who_has_it(after):
    a_memory("other").add(picture(1))
    memory = a_memory()
    with another_writer(lambda: a_memory("other").remove(1), after):
        memory.add(picture(1))
    assert a_memory().messages() == [picture(1)]

    with another_writer(lambda: a_memory("third").add(picture(1)), after):
        memory.remove(1)
    assert a_memory("third").messages() == [picture(1)]


@pytest.mark.skipif("connection.vendor == 'sqlite'", reason="has one writer at a time")
@pytest.mark.parametrize("after", range(1, 5))
def test_a_summary_is_made_of_what_is_left_if_another_writer_removes_a_file_meanwhile(after):
    summarized = []
    memory = SummarizingChatMemory(
        max_tokens=100,
        token_count_estimator=ADDITIVE_WORDS,
        id="a",
        store=DjangoChatMemoryStore(),
        summarize=lambda previous, messages: summarized.append(messages) or "They looked.",
        summary_tokens=20,
        after_tokens=10,
        summarize_after_add=False,
    )
    memory.add(picture(1), *(UserMessage("word " * 30) for _ in range(5)))

    with another_writer(lambda: a_memory().remove(1), after):
        memory.summarize()

    assert len(summarized) == 1


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="others read what is there now")
def test_who_removes_a_file_notices_at_repeatable_read_too_that_another_writer_has_added_it():
    a_memory().add(picture(1))
    add = partial(a_memory("third").add, picture(1))

    with isolated("REPEATABLE READ"), pytest.raises(OperationalError, match="serialize"), transaction.atomic():
        Conversation.objects.count()  # from here on, it sees nothing new
        in_another_connection(add)
        a_memory().remove(1)

    assert a_memory().messages() == a_memory("third").messages() == [picture(1)]


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="others read what is there now")
@pytest.mark.parametrize("after", range(1, 13))
def test_a_removal_at_repeatable_read_leaves_a_file_that_another_writer_adds_meanwhile(after):
    a_memory().add(picture(1))

    with isolated("REPEATABLE READ"), another_writer(lambda: a_memory("third").add(picture(1)), after):
        a_memory().remove(1)

    assert (a_memory().messages(), a_memory("third").messages()) == ([], [picture(1)])


@pytest.mark.skipif("connection.vendor != 'mysql'", reason="others see all of a transaction as it was, or all as it is")
def test_a_fork_has_the_files_of_what_another_writer_has_added_since_its_transaction_began(storage):
    a_memory().add(UserMessage("Hello"))

    with isolated("REPEATABLE READ"), transaction.atomic():
        MediaReference.objects.count()  # from here on, a plain SELECT sees nothing new
        in_another_connection(lambda: a_memory().add(picture(1)))
        forked = operations.fork(Conversation.objects.get(memory_id="a"))

    assert a_memory(forked.memory_id).messages() == [UserMessage("Hello"), picture(1)]
    assert_consistent(storage)


def test_an_add_that_fails_leaves_no_file(storage, monkeypatch):
    memory = a_memory(owner=User.objects.create_user("ann"))
    a_memory("theirs", User.objects.create_user("bob")).add(picture(1))
    with pytest.raises(Exception, match="belongs to another user"):
        a_memory("theirs", memory.store.owner).add(picture(2))
    with pytest.raises(ValueError, match="MAX_MESSAGE_BYTES"):
        memory.add(picture(3), UserMessage("x" * 5_000_000))

    def save(*args, **kwargs):
        raise OSError("down")

    monkeypatch.setattr(storage, "_save", save)
    with pytest.raises(StorageError, match=r"did not store a file \(OSError\); nothing is stored"):
        memory.add(UserMessage("Look"), picture(4))
    monkeypatch.undo()
    assert memory.messages() == []


def test_a_storage_that_hangs_is_an_error_after_the_time_out(storage, settings, monkeypatch):
    memory = a_memory()
    memory.add(picture(1))
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MEDIA_TIMEOUT": 0.05}
    goes_on = threading.Event()
    monkeypatch.setattr(storage, "_open", lambda *args: goes_on.wait(30))
    try:
        with pytest.raises(StorageError, match=r"did not return a file within 0\.05 seconds"):
            memory.messages()
    finally:
        goes_on.set()
        monkeypatch.undo()


def test_a_lost_file_is_an_error_that_names_the_message_or_a_text(storage, settings):
    memory = a_memory()
    memory.add(picture(1), picture(2))
    name = MediaFile.objects.get(sha256=hashlib.sha256(a_file(1)).hexdigest()).name
    storage.delete(name)

    with pytest.raises(MissingFileError, match="The file at 1 in the contents of message 1 of 'a'"):
        memory.messages()
    found = []
    assert check_files("default", found.append) == 1
    assert "It is lost; message 1 of 'a' has it." in found[0].detail
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MEDIA_MISSING": "placeholder"}
    first, second = memory.messages()
    assert first.contents[1] == TextContent("[A file of type image/png with 2000 bytes is not available.]")
    assert second == picture(2)
    memory.add(UserMessage("The conversation goes on"))
    memory.remove(1)


@pytest.mark.parametrize("fails", [False, True], ids=["all are late", "another one fails"])
def test_a_save_that_ends_after_its_time_out_leaves_no_file(storage, settings, monkeypatch, fails):
    goes_on, ended = threading.Event(), threading.Event()
    save = type(storage)._save

    def hanging(self, name, content):
        if fails and content.read() == a_file(2):
            raise OSError
        content.seek(0)
        goes_on.wait(60)
        try:
            return save(self, name, content)
        finally:
            ended.set()

    monkeypatch.setattr(type(storage), "_save", hanging)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MEDIA_TIMEOUT": 0.05}
    with pytest.raises(StorageError, match="nothing is stored"):
        a_memory().add(picture(1), picture(2))
    goes_on.set()
    assert ended.wait(60)

    until(lambda: stored_in(storage) == [])
    assert not MediaFile.objects.exists()


def until(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


ALTERED = {
    "cut off": lambda content: content[:-1],
    "empty": lambda content: b"",
    "longer": lambda content: content + b"\0",
    "another one": lambda content: a_file(3),
    "a bit of it": lambda content: content[:100] + bytes([content[100] ^ 1]) + content[101:],
}


def alter(storage, name: str, change) -> None:
    with storage.open(name) as file:
        content = change(file.read())
    storage.delete(name)
    assert storage.save(name, ContentFile(content)) == name


@pytest.mark.parametrize("how", ALTERED)
def test_a_file_that_is_not_the_one_that_was_stored_is_lost(storage, settings, how):
    memory = a_memory()
    memory.add(picture(1), picture(2), custom(1), *entry(1))
    name = MediaFile.objects.get(sha256=hashlib.sha256(a_file(1)).hexdigest()).name

    alter(storage, name, ALTERED[how])

    with pytest.raises(MissingFileError, match="The file at 1 in the contents of message 1 of 'a'"):
        memory.messages()
    with pytest.raises(MissingFileError):
        list(operations.export_lines(Conversation.objects.all()))
    at = address_of(Conversation.objects.get())
    rows = Message.objects.order_by("sequence")
    assert [file_in(row.chat_message, 1, at) is None for row in rows[:2]] == [True, False]
    with pytest.raises(CommandError, match="not as it was stored"):
        call_command("move_media_chatmemory", to_rows=True, verbosity=0)
    found = []
    assert check_files("default", found.append) == 0
    assert check_files("default", found.append, read=True, repair=True) == 1
    [finding] = found
    assert (finding.name, finding.is_repaired) == (name, False)
    assert finding.detail == "It is not the file that was stored; message 1 of 'a' has it."
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MEDIA_MISSING": "placeholder"}
    first, second, *_ = memory.messages()
    assert first.contents[1] == TextContent("[A file of type image/png with 2000 bytes is not available.]")
    assert second == picture(2)


def test_two_files_that_were_swapped_are_both_lost(storage):
    memory = a_memory()
    memory.add(picture(1), picture(2))
    one, two = MediaFile.objects.order_by("pk")
    MediaFile.objects.filter(pk=one.pk).update(name="x")
    MediaFile.objects.filter(pk=two.pk).update(name=one.name)
    MediaFile.objects.filter(pk=one.pk).update(name=two.name)

    with pytest.raises(MissingFileError):
        memory.messages()
    out = io.StringIO()
    with pytest.raises(CommandError, match="2 findings"):
        call_command("check_chatmemory", files=True, verbosity=0, stdout=out)
    assert out.getvalue().count("It is not the file that was stored") == 2
    memory.clear()
    Conversation.objects.all().delete()


def test_the_newest_files_are_sent_as_far_as_they_fit(settings):
    memory = a_memory()
    memory.add(picture(1), picture(2), picture(3))
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MEDIA_MAX_BYTES": 4000}

    first, *others = memory.messages()

    assert isinstance(first.contents[1], TextContent)
    assert others == [picture(2), picture(3)]
    with pytest.raises(ValueError, match="has files with 6000 bytes, but CHATMEMORY"):
        memory.add(UserMessage([each.contents[1] for each in (picture(1), picture(2), picture(3))]))


@pytest.mark.slow
def test_a_check_finds_files_without_rows_and_repairs_them(storage, settings):
    a_memory().add(picture(1))
    with transaction.atomic():
        a_memory("b").add(picture(2))
        transaction.set_rollback(True)  # as a crash between the file and the row leaves it

    found = []
    assert check_files("default", found.append) == 0  # it may be of a message that is being written
    with pytest.raises(CommandError, match="1 findings"):
        operations_age(lambda: call_command("check_chatmemory", repair=True))
    assert a_memory().messages() == [picture(1)]
    call_command("check_chatmemory")


def test_a_repair_removes_references_whose_messages_are_gone(storage):
    a_memory().add(picture(1), picture(2))
    Message.objects.filter(sequence=1)._raw_delete("default")  # as other programs may

    found = []
    assert check_files("default", found.append, repair=True) == 1
    assert found[0].detail == "1 references are to messages that are gone."
    assert [content for _, content in stored_in(storage)] == [a_file(2)]


@pytest.mark.skipif("connection.vendor == 'sqlite'", reason="has one writer at a time")
@pytest.mark.parametrize("after", range(1, 8))
def test_a_repair_deletes_no_file_to_which_another_writer_adds_a_message(storage, after):
    sha256 = hashlib.sha256(a_file(1)).hexdigest()
    name = storage_module.new_name(sha256)
    storage.save(name, ContentFile(a_file(1)))
    MediaFile.objects.create(sha256=sha256, name=name, size=2000, created_at="2020-01-01T00:00Z")

    with another_writer(lambda: a_memory().add(picture(1)), after):
        check_files("default", print, repair=True, age=timedelta(seconds=-60))
    assert all(message == picture(1) for message in a_memory().messages())


def operations_age(do) -> None:
    """Call *do* where every file without a row counts as left over, however young it is."""
    age = check_files.__kwdefaults__["age"]
    check_files.__kwdefaults__["age"] = timedelta(seconds=-60)
    try:
        do()
    finally:
        check_files.__kwdefaults__["age"] = age


def test_without_their_storage_files_are_an_error_that_names_the_message_and_nothing_is_lost(settings):
    memory = a_memory()
    memory.add(UserMessage("Look"), picture(1))
    with_storage = settings.CHATMEMORY
    settings.CHATMEMORY = {**with_storage, "MEDIA_STORAGE": None}
    message = "Message 2 of 'a' has a file in a storage, but CHATMEMORY"
    for verb in (
        memory.messages,
        lambda: memory.store.read_history("a"),
        lambda: memory.store.read_memory_after("a", memory.window(), 2),
        lambda: "".join(operations.export(Conversation.objects.all())),
        memory.pop,
    ):
        with pytest.raises(StorageError, match=message):
            verb()
    operations.fork(Conversation.objects.get(), "b")
    with pytest.raises(StorageError, match="MEDIA_STORAGE"):
        operations.fork(Conversation.objects.get(memory_id="a"), "c", owner=User.objects.create_user("ann"))
    with pytest.raises(CommandError, match="1 findings"):
        call_command("check_chatmemory")

    settings.CHATMEMORY = with_storage
    a_memory("a").remove(2)
    assert a_memory("b").messages() == [UserMessage("Look"), picture(1)]


def test_no_question_to_the_storage_takes_longer_than_the_time_out(storage, settings, monkeypatch):
    a_memory().add(picture(1))
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MEDIA_TIMEOUT": 0.05}
    goes_on = threading.Event()
    name = MediaFile.objects.get().name
    try:
        for asked, do in {
            "exists": lambda: storage_module.is_lost(name),
            "listdir": lambda: check_files("default", print),
            "get_modified_time": lambda: storage_module.is_older(name, timezone.now()),
        }.items():
            with monkeypatch.context() as patched:
                patched.setattr(storage, asked, lambda *args: goes_on.wait(30))
                with pytest.raises(StorageError, match=r"within 0\.05 seconds"):
                    do()
    finally:
        goes_on.set()


def test_a_storage_that_does_not_sign_is_an_error_and_no_address_is_public(storage, settings, monkeypatch):
    memory = a_memory()
    memory.add(picture(1))
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MEDIA_URLS": 60}

    with pytest.raises(StorageError, match=r"url\(\) of InMemoryStorage takes no 'expire'"):
        memory.messages()
    monkeypatch.setattr(InMemoryStorage, "url", lambda self, name, expire: f"https://example.org/{name}")
    with pytest.raises(StorageError, match="without a signature"):
        memory.messages()


def test_files_count_for_who_has_the_conversation_now():
    ann, bob = (User.objects.create_user(name) for name in ("ann", "bob"))
    a_memory("a", ann).add(picture(1), picture(1))
    a_memory("b", ann).add(picture(1), picture(2))
    assert (stored_bytes(ann.pk), stored_bytes(bob.pk)) == (4000, 0)

    Conversation.objects.filter(memory_id="b").update(owner=bob)
    assert (stored_bytes(ann.pk), stored_bytes(bob.pk)) == (2000, 4000)
    ann.delete()
    assert a_memory("b", bob).messages() == [picture(1), picture(2)]
    assert (stored_bytes(ann.pk or 0), stored_bytes(bob.pk)) == (0, 4000)


def test_an_export_names_what_lacks_a_file_or_is_no_message_and_goes_on(storage, tmp_path, capsys):
    for number, name in enumerate("abc", start=1):
        a_memory(name).add(UserMessage("Hello"), picture(number))
    name = MediaFile.objects.get(sha256=hashlib.sha256(a_file(1)).hexdigest()).name
    alter(storage, name, ALTERED["cut off"])
    Message.objects.filter(conversation__memory_id="b", sequence=1).update(payload="{")
    refused = {}

    def note(conversation, error):
        refused[conversation.memory_id] = str(error)

    lines = "".join(operations.export(Conversation.objects.all(), refused=note))

    assert [json.loads(line)["memory_id"] for line in lines.splitlines() if "memory_id" in line] == ["c"]
    assert lines.count("\n") == 3
    assert refused["a"].startswith("The file at 1 in the contents of message 2 of 'a' is not in the storage")
    assert refused["b"] == "Cannot export message 1 of conversation 'b': ValueError. See check_chatmemory."
    output = tmp_path / "out.jsonl"
    with pytest.raises(CommandError, match="2 of them cannot be read, first 'a': The file at 1") as error:
        call_command("export_chatmemory", output=output, verbosity=0)
    assert error.value.returncode == 1
    assert output.read_text() == lines
    assert capsys.readouterr().err.count("\n") == 2


def test_by_rest_an_export_that_lacks_a_file_is_an_error_and_no_part_of_a_file(storage, client):
    ann = User.objects.create_user("ann")
    a_memory("a", ann).add(UserMessage("Hello"), picture(1))
    alter(storage, MediaFile.objects.get().name, ALTERED["cut off"])
    client.force_login(ann)

    response = client.get("/api/conversations/a/export/")

    assert (response.status_code, response["Content-Type"]) == (503, "application/problem+json")
    assert response.json()["type"] == "urn:chatmemory:storage"


def test_an_import_above_the_quota_stores_nothing():
    ann = User.objects.create_user("ann")
    a_memory("a", ann).add(picture(1), picture(2))
    lines = "".join(operations.export(Conversation.objects.all())).splitlines()

    for limit in (4000, 7999):
        with pytest.raises(operations.JsonLinesError, match=f"have 4000 bytes, .* 4000; .* {limit} at most"):
            operations.import_lines(lines, ann, rename=True, limits=operations.ImportLimits(max_file_bytes=limit))
        assert Conversation.objects.count() == 1
        assert_consistent(storages["chats"])
    operations.import_lines(lines, ann, rename=True, limits=operations.ImportLimits(max_file_bytes=8000))
    assert stored_bytes(ann.pk) == 4000


@pytest.mark.skipif("connection.vendor == 'sqlite'", reason="has one writer at a time")
@pytest.mark.parametrize("after", range(1, 12))
def test_of_two_adds_at_the_same_time_only_one_may_use_the_rest_of_a_quota(after, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MEDIA_QUOTA": 3000}
    request = HttpRequest()
    request.user = User.objects.create_user("ann")
    for name in ("a", "b"):
        a_memory(name, request.user).add(UserMessage("Hi"))
    refused = []

    def add(name, seed):
        try:
            with transaction.atomic():
                AccessPolicy().check_quota(request, request.user, picture(seed))
                a_memory(name, request.user).add(picture(seed))
        except ValueError as exc:
            refused.append(str(exc))

    with another_writer(lambda: add("b", 2), after):
        add("a", 1)
    assert refused == ["the files in your conversations have 2000 bytes, and may have 3000 at most."]
    assert stored_bytes(request.user.pk) == 2000


@pytest.mark.parametrize("in_a_transaction", [False, True])
def test_an_import_that_is_refused_halfway_leaves_no_file_and_takes_none_away(in_a_transaction, storage):
    for name, seeds in {"a": (1, 2), "b": (3,), "c": (2,)}.items():
        a_memory(name).add(*map(picture, seeds))
    there = Conversation.objects.filter(memory_id__in=["a", "b"]).order_by("memory_id")
    lines = "".join(operations.export(there)).splitlines()
    operations.erase(there.filter(memory_id="a"))

    with transaction.atomic() if in_a_transaction else nullcontext():
        with pytest.raises(operations.ConversationExistsError):
            operations.import_lines(lines, all_or_none=True)
        assert Conversation.objects.count() == 2
    assert_consistent(storage)
    operations.erase(there)
    assert operations.import_lines(lines, all_or_none=True) == 2
    assert a_memory("a").messages() == [picture(1), picture(2)]


@pytest.mark.skipif("connection.vendor != 'mysql'", reason="only there, a transaction sees what was before")
def test_a_transaction_that_sees_the_past_deletes_no_file_of_what_was_added_since():
    memory = a_memory(keep_history=False, limit=2)
    memory.add(UserMessage("1"))
    with isolated("REPEATABLE READ"), transaction.atomic():
        assert Message.objects.count() == 1
        writer = Connected(lambda: a_memory(keep_history=False, limit=2).add(picture(1)))
        writer.start()
        writer.end()
        memory.add(UserMessage("2"))
    assert a_memory().messages() == [picture(1), UserMessage("2")]


def test_without_a_storage_nothing_is_asked_and_nothing_is_written(settings, django_assert_num_queries):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MEDIA_STORAGE": None}
    memory: ChatMemory = a_memory()
    memory.add(picture(1))
    reads = 1
    with django_assert_num_queries(reads):
        assert memory.messages() == [picture(1)]
    writes = 2 if connection.vendor == "postgresql" else 5
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as asked:
        memory.add(picture(2))
    assert len(asked) <= writes
    assert not any("media" in each["sql"] for each in asked)
