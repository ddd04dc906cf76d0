"""Who writes to the database without a key is not shown what others wrote. The oracle is a text that nobody reads."""

import base64
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from django.contrib.auth import get_user_model
from django.core import serializers
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import Case, F, Max, OuterRef, Subquery, Value, When
from django.test import Client
from rest_framework.test import APIClient

from chatmemory_django.contrib.encryption.ciphers import install
from chatmemory_django.contrib.encryption.values import EncryptionError
from chatmemory_django.db.row_codec import EncryptedError
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import export_lines, fork
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.security import SecurityEvent
from chatmemory_django.signals import security_event
from tests.faces.admin.admin_site import TOKEN_WINDOW
from tests.pictures import picture, use_storage

pytestmark = pytest.mark.django_db(transaction=True)

ANNS, ANSWER, EVES = "Zwiebelkuchen am Donnerstag", "Um acht bei mir", "Eve asks"


def key(name: str) -> str:
    return f"{name}:{base64.b64encode(name.encode().ljust(32)).decode()}"


@pytest.fixture(params=[False, True], ids=["site", "owners"])
def has_owner_keys(request, settings) -> bool:
    settings.CHATMEMORY = {
        "MEMORY": {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 10}},
        "ENCRYPTION": {"KEYS": [key("k1")], "OWNER_KEYS": request.param},
        "REST": {"THROTTLE_RATES": {}},
    }
    return request.param


@pytest.fixture
def eve() -> Any:
    return get_user_model().objects.create_superuser("eve")


@pytest.fixture
def conversations(has_owner_keys, ann, eve) -> dict[str, int]:
    """What ann and eve wrote, with titles: the keys of their conversations by memory id."""
    for owner, name, question in ((ann, "a", ANNS), (eve, "e", EVES)):
        get_chat_memory(name, owner=owner).add(UserMessage(question), AiMessage(ANSWER))
        Conversation.objects.filter(memory_id=name).update(title=question)
    return dict(Conversation.objects.values_list("memory_id", "pk"))


def sql(statement: str, *values: object) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall()) if cursor.description else []


def paste(text: str, conversation: int, sequence: int, column: str = "text") -> None:
    sql(
        f"UPDATE chatmemory_message SET {column} = %s WHERE conversation_id = %s AND sequence = %s",
        text,
        conversation,
        sequence,
    )


def stored(conversation: int, sequence: int) -> str:
    query = "SELECT text FROM chatmemory_message WHERE conversation_id = %s AND sequence = %s"
    return sql(query, conversation, sequence)[0][0]


def another_conversation(a: int, e: int) -> None:
    paste(stored(a, 1), e, 1)


def rows_of_another_conversation(a: int, e: int) -> None:
    sql("DELETE FROM chatmemory_message WHERE conversation_id = %s", e)
    sql("UPDATE chatmemory_message SET conversation_id = %s WHERE conversation_id = %s", e, a)


def another_row(a: int, e: int) -> None:
    paste(stored(e, 1), e, 2)


def question_and_answer(a: int, e: int) -> None:
    question, answer = stored(e, 1), stored(e, 2)
    paste(answer, e, 1)
    paste(question, e, 2)


def another_column(a: int, e: int) -> None:
    paste(stored(a, 1), e, 1, "payload")


def another_type(a: int, e: int) -> None:
    sql("UPDATE chatmemory_message SET type = 'SYSTEM' WHERE conversation_id = %s AND sequence = 1", e)


def another_sequence(a: int, e: int) -> None:
    sql("UPDATE chatmemory_message SET sequence = 7 WHERE conversation_id = %s AND sequence = 2", e)
    sql("UPDATE chatmemory_conversation SET next_sequence = 8 WHERE id = %s", e)


def truncated(a: int, e: int) -> None:
    paste(stored(e, 1)[:-8], e, 1)


def flipped(a: int, e: int) -> None:
    head, _, encoded = stored(e, 1).rpartition(":")
    data = bytearray(base64.b64decode(encoded))
    data[20] ^= 1
    paste(f"{head}:{base64.b64encode(data).decode()}", e, 1)


def another_head(a: int, e: int) -> None:
    paste(stored(a, 1).replace(f":{a}:1:", f":{e}:1:"), e, 1)


def a_missing_key(a: int, e: int) -> None:
    paste(stored(e, 1).replace(stored(e, 1).split(":")[1], "lost", 1), e, 1)


def an_origin_of_ones_own(a: int, e: int) -> None:
    another_conversation(a, e)
    sql("INSERT INTO chatmemory_encryption_origin (conversation_id, text) VALUES (%s, %s)", e, f'{{"{a}": 9}}')


ATTACKS = [
    another_conversation,
    rows_of_another_conversation,
    another_row,
    question_and_answer,
    another_column,
    another_type,
    another_sequence,
    truncated,
    flipped,
    another_head,
    a_missing_key,
    an_origin_of_ones_own,
]


def faces(owner: Any) -> dict[str, Callable[[], object]]:
    """All ways to read the conversation "e", as its owner, who is staff."""
    conversation = Conversation.objects.defer("title").get(memory_id="e")
    client = Client(raise_request_exception=False)
    client.force_login(owner)

    def page(path: str) -> object:
        response = client.get(path)
        shown = b"".join(response) if response.streaming else response.content
        if response.status_code >= 400 or b"cannot be decrypted" in shown:
            raise EncryptionError(shown.decode()[:200])
        return shown.decode()

    def turn() -> object:
        with get_chat_memory("e").turn() as going_on:
            return going_on.messages

    return {
        "memory": lambda: get_chat_memory("e", owner=owner).messages(),
        "memory of anybody": lambda: get_chat_memory("e").messages(),
        "turn": turn,
        "rows": lambda: [(row.text, row.payload) for row in conversation.messages.all()],
        "values": lambda: list(conversation.messages.values_list("payload", "text")),
        "export": lambda: list(export_lines(Conversation.objects.filter(memory_id="e"))),
        "REST": lambda: page("/api/conversations/e/messages/"),
        "REST of the memory": lambda: page("/api/conversations/e/memory/"),
        "chat": lambda: page("/api/chat/e/messages"),
        "admin": lambda: page(f"/admin/chatmemory/conversation/{conversation.pk}/change/"),
    }


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_no_face_shows_what_was_pasted(conversations, has_owner_keys, eve, settings, attack):
    ways = faces(eve)
    for way in ways.values():
        assert way() is not None
    attack(conversations["a"], conversations["e"])

    for name, way in ways.items():
        with pytest.raises(EncryptionError):
            raise AssertionError(f"{name}: {way()}")
    if not has_owner_keys:  # the command leaves what the present key of the owner has encrypted as it is
        settings.CHATMEMORY["ENCRYPTION"]["KEYS"].insert(0, key("k2"))
        install()
        with pytest.raises(CommandError, match="'e'"):
            call_command("encrypt_chatmemory", stdout=io.StringIO())


class TestOwners:
    @pytest.fixture(autouse=True)
    def with_owner_keys(self, settings, has_owner_keys):
        if not has_owner_keys:
            pytest.skip("The site's key has no owner.")

    def test_a_changed_owner_is_refused_by_each_face(self, conversations, ann, eve):
        sql("UPDATE chatmemory_conversation SET memory_id = 'x' WHERE memory_id = 'e'")
        sql("UPDATE chatmemory_conversation SET memory_id = 'e', owner_id = %s WHERE memory_id = 'a'", eve.pk)
        sql("UPDATE chatmemory_conversation SET title = '' WHERE memory_id = 'e'")
        ways = faces(eve)

        for name, way in ways.items():
            with pytest.raises(EncryptionError):
                raise AssertionError(f"{name}: {way()}")
        with pytest.raises(CommandError, match="which is another owner's"):
            call_command("encrypt_chatmemory", stdout=io.StringIO())
        with pytest.raises(EncryptionError):
            get_chat_memory("e", owner=eve).messages()

    def test_the_key_of_another_owner_is_refused(self, conversations, ann, eve):
        sql("UPDATE chatmemory_encryption_ownerkey SET owner = 'nobody' WHERE owner = %s", str(eve.pk))
        sql("UPDATE chatmemory_encryption_ownerkey SET owner = %s WHERE owner = %s", str(eve.pk), str(ann.pk))
        sql("UPDATE chatmemory_conversation SET owner_id = %s WHERE memory_id = 'a'", eve.pk)
        install()  # as another process

        with pytest.raises(EncryptionError, match="not the one that was stored for its owner"):
            get_chat_memory("a", owner=eve).messages()


class TestTitles:
    def test_one_of_another_conversation_is_refused(self, conversations, eve):
        title = sql("SELECT title FROM chatmemory_conversation WHERE memory_id = 'a'")[0][0]
        sql("UPDATE chatmemory_conversation SET title = %s WHERE memory_id = 'e'", title)

        with pytest.raises(EncryptionError):
            list(Conversation.objects.all())

    def test_a_list_shows_it_of_that_row_and_the_check_names_it_and_goes_on(self, conversations, eve, client):
        sql("UPDATE chatmemory_conversation SET title = %s WHERE memory_id = 'a'", f"enc2:lost:x:{'A' * 60}")
        flip = "UPDATE chatmemory_message SET text = %s WHERE conversation_id = %s AND sequence = 2"
        sql(flip, stored(conversations["e"], 1), conversations["e"])
        client.force_login(eve)

        listed = client.get("/admin/chatmemory/conversation/").content.decode()
        rows = client.get("/api/conversations/").json()["results"]
        out = io.StringIO()
        with pytest.raises(CommandError, match="2 findings"):
            call_command("check_chatmemory", stdout=out)

        assert "cannot be decrypted (key lost)" in listed
        assert EVES in listed
        assert [row["title"] for row in rows] == [EVES]
        assert "cannot be decrypted (key " in rows[0]["preview"]
        first, second, *_ = out.getvalue().splitlines()
        assert (first.split()[:2], second.split()[:2]) == (["'a'", "content:"], ["'e'", "content:"])


class TestOneBadValue:
    """A value that cannot be decrypted stops nothing but itself: commands name its conversation, and go on."""

    @pytest.fixture(params=["a text", "a title"])
    def lost(self, request, conversations, has_owner_keys) -> None:
        bad = f"enc2:lost:x:{'A' * 60}"
        if request.param == "a text":
            paste(bad, conversations["a"], 1)
            paste(bad, conversations["a"], 1, "payload")
        else:
            sql("UPDATE chatmemory_conversation SET title = %s WHERE memory_id = 'a'", bad)

    @staticmethod
    def run(command: str, *options: str) -> str:
        out, err = io.StringIO(), io.StringIO()
        with pytest.raises(CommandError, match=r"1 of them cannot .* 'a': .*'lost'"):
            call_command(command, *options, stdout=out, stderr=err, verbosity=0)
        (line,) = err.getvalue().splitlines()
        assert line.startswith("'a': A value of chatmemory.")
        assert "'lost'" in line
        return out.getvalue()

    @pytest.mark.parametrize("form", ["jsonl", "text", "html"])
    def test_exports_have_the_others(self, lost, form):
        exported = self.run("export_chatmemory", "--format", form)

        assert EVES in exported
        assert ANNS not in exported
        assert ("cannot be decrypted (key lost)" in exported) is (form != "jsonl")

    def test_a_file_of_an_export_has_the_others(self, lost, tmp_path):
        self.run("export_chatmemory", "--output", str(tmp_path / "all.jsonl"))

        assert EVES in (tmp_path / "all.jsonl").read_text()

    def test_tokens_of_the_others_are_counted(self, lost, settings):
        settings.CHATMEMORY = settings.CHATMEMORY | TOKEN_WINDOW

        assert self.run("recount_chatmemory") == "Recounted the tokens of 1 conversations.\n"

    def test_files_of_the_others_are_moved(self, lost, settings, tmp_path):
        get_chat_memory("e").add(picture())
        use_storage(settings)

        assert "of 1 messages" in self.run("move_media_chatmemory")

    @pytest.mark.parametrize("form", ["text", "html"])
    def test_a_document_of_the_admin_shows_it(self, lost, form, conversations, admin_client):
        chosen = {"action": "export_conversations", "_selected_action": list(conversations.values())}
        confirmed = {"confirmed": "export", "form": form}

        exported = admin_client.post("/admin/chatmemory/conversation/", chosen | confirmed).getvalue().decode()

        assert EVES in exported
        assert "cannot be decrypted (key lost)" in exported

    def test_the_memories_of_all_are_cleared(self, lost, conversations, admin_client):
        chosen = {"action": "clear_memory", "_selected_action": list(conversations.values()), "confirmed": "clear"}

        page = admin_client.post("/admin/chatmemory/conversation/", chosen, follow=True).content.decode()

        assert "Cleared the memory of 2 conversations." in page
        assert get_chat_memory("a").messages() == get_chat_memory("e").messages() == []

    def test_by_rest_a_conversation_is_shown_and_gets_another_title(self, lost, conversations, ann):
        client = APIClient()
        client.force_login(ann)
        there = client.get("/api/conversations/a/")
        changed = client.patch("/api/conversations/a/", {"metadata": {"a": 1}}, format="json")
        titled = client.patch("/api/conversations/a/", {"title": "new"}, format="json")

        assert [each.status_code for each in (there, changed, titled)] == [200] * 3
        assert there.json()["title"] in {ANNS, "cannot be decrypted (key lost)"}
        assert titled.json()["title"] == "new"
        assert titled.json()["metadata"] == {"a": 1}
        assert Conversation.objects.get(memory_id="a").title == "new"


class TestReports:
    """Each value that does not authenticate is reported once a read; see docs/seeing-attacks.md."""

    @pytest.fixture
    def reported(self, caplog) -> Iterator[list[tuple[Any, Any]]]:
        events: list[tuple[Any, Any]] = []

        def receive(event: Any, user: Any, memory_id: Any, **kwargs: Any) -> None:
            assert event == SecurityEvent.ALTERED
            events.append((user, memory_id))

        security_event.connect(receive)
        yield events
        security_event.disconnect(receive)
        assert ANNS not in caplog.text

    @pytest.mark.parametrize("attack", [each for each in ATTACKS if each is not a_missing_key])
    def test_of_messages(self, conversations, eve, reported, attack):
        attack(conversations["a"], conversations["e"])
        with pytest.raises(EncryptionError):
            get_chat_memory("e", owner=eve).messages()
        assert reported == [(str(eve.pk), "e")]
        with pytest.raises(EncryptionError):
            list(Message.objects.filter(conversation=conversations["e"]).values_list("text", "payload"))
        assert len(reported) == 2

    def test_of_titles_in_a_list(self, conversations, eve, reported, client):
        sql("UPDATE chatmemory_conversation SET title = 'enc2:k1:x'")
        client.force_login(eve)
        assert client.get("/api/conversations/").status_code == 200
        assert reported == [(str(eve.pk), "e")]

    def test_of_an_origin(self, conversations, ann, reported):
        fork(Conversation.objects.get(memory_id="a"), "f")
        sql("UPDATE chatmemory_encryption_origin SET text = 'enc2:k1:x'")
        with pytest.raises(EncryptionError):
            get_chat_memory("f", owner=ann).messages()
        assert reported == [(str(ann.pk), "f")]

    def test_of_plain_texts_that_are_refused(self, conversations, eve, reported, settings):
        paste(EVES, conversations["e"], 1)
        assert get_chat_memory("e", owner=eve).messages()
        assert reported == []
        settings.CHATMEMORY["ENCRYPTION"]["PLAIN"] = "refuse"
        install()
        with pytest.raises(EncryptionError):
            get_chat_memory("e", owner=eve).messages()
        assert reported == [(str(eve.pk), "e")]

    def test_not_of_a_key_that_is_missing(self, conversations, eve, reported):
        a_missing_key(conversations["a"], conversations["e"])
        with pytest.raises(EncryptionError):
            get_chat_memory("e", owner=eve).messages()
        assert reported == []


class TestQueries:
    def test_a_column_alone_is_read_with_its_place(self, conversations):
        own = Message.objects.filter(conversation=conversations["e"])
        texts = [EVES, ANSWER]

        newest = Message.objects.filter(conversation=OuterRef("pk")).order_by("-sequence").values("text")[:1]
        assert list(own.values_list("text", flat=True)) == texts
        assert list(own.values_list(F("text"), flat=True)) == texts
        assert [row.text for row in own.only("text")] == texts
        assert [row.text for row in own.defer("text")] == texts
        assert [row["text"] for row in own.order_by().union(own.none().order_by(), all=True).values("text")] == texts
        assert [row.conversation.title for row in own.select_related("conversation")] == [EVES, EVES]
        assert {row.newest for row in Conversation.objects.annotate(newest=Subquery(newest))} == {ANSWER}
        assert next(iter(own.filter(sequence=1).iterator())).text == EVES
        (found,) = Conversation.objects.prefetch_related("messages").filter(memory_id="e")
        assert [row.text for row in found.messages.all()] == texts

    def test_what_the_database_computes_has_no_place(self, conversations):
        own = Message.objects.filter(conversation=conversations["e"])
        dumped = serializers.serialize("json", Conversation.objects.filter(memory_id="e"))
        ways: dict[str, Callable[[], object]] = {
            "raw": lambda: [row.title for row in Conversation.objects.raw("SELECT * FROM chatmemory_conversation")],
            "aggregate": lambda: own.aggregate(found=Max("text")),
            "CASE": lambda: list(own.values_list(Case(When(sequence=1, then="text")), flat=True)),
            "loaddata": lambda: [each.save() for each in serializers.deserialize("json", dumped)],
            "base manager": lambda: Message._base_manager.filter(pk=(conversations["e"], 1)).update(text=ANNS),
            "several": lambda: own.update(text=ANNS),
            "an expression": lambda: own.filter(sequence=1).update(text=Value(ANNS)),
            "type": lambda: own.filter(sequence=1).update(type="SYSTEM"),
            "memory id": lambda: Conversation.objects.filter(memory_id="e").update(memory_id="f"),
        }

        for name, way in ways.items():
            with pytest.raises(EncryptedError):
                raise AssertionError(f"{name}: {way()}")

    def test_one_row_and_many_by_bulk_update_are_written_for_their_places(self, conversations):
        own = Message.objects.filter(conversation=conversations["e"])

        assert own.filter(sequence=1).update(text=ANNS) == 1
        assert own.filter(sequence=9).update(text=ANNS) == 0
        assert [row.text for row in own] == [ANNS, ANSWER]
        rows = list(own)
        for row in rows:
            row.text += "!"
        Message.objects.bulk_update(rows, ["text"])
        assert [row.text for row in own] == [f"{ANNS}!", f"{ANSWER}!"]


class TestForks:
    def test_rows_are_read_where_they_were_copied_even_without_their_source(self, conversations, has_owner_keys):
        forked = fork(Conversation.objects.get(memory_id="a"), "f")
        again = fork(forked, "g")
        assert stored(again.pk, 1) == stored(conversations["a"], 1)  # copied inside the database
        Conversation.objects.exclude(pk=again.pk).filter(owner=again.owner).defer("title")[:1].get().delete()

        assert [message.single_text for message in get_chat_memory("g").messages()[:1]] == [ANNS]
        assert [row.text for row in again.messages.all()] == [ANNS, ANSWER]
        get_chat_memory("g").add(UserMessage("more"))
        paste(stored(again.pk, 1), again.pk, 3)
        with pytest.raises(EncryptionError):
            get_chat_memory("g").messages()

    def test_the_command_encrypts_them_for_their_place_and_then_the_origin_goes(self, conversations):
        forked = fork(Conversation.objects.get(memory_id="a"), "f")
        before = stored(forked.pk, 1)

        for left in (1, 0):
            call_command("encrypt_chatmemory", stdout=io.StringIO())
            assert len(sql("SELECT text FROM chatmemory_encryption_origin")) == left

        assert [row.text for row in forked.messages.all()] == [ANNS, ANSWER]
        paste(before, forked.pk, 1)
        with pytest.raises(EncryptionError):
            get_chat_memory("f").messages()


class TestPlain:
    """``"PLAIN": "refuse"`` ends the time in which what is not encrypted is read."""

    @pytest.fixture
    def refuse(self, conversations, settings) -> None:
        settings.CHATMEMORY["ENCRYPTION"]["PLAIN"] = "refuse"
        install()

    def test_what_is_sealed_is_read(self, refuse, eve):
        for way in faces(eve).values():
            assert EVES in str(way())

    @pytest.mark.parametrize("attack", ["a plain text", "a renamed prefix", "of an earlier version", "a plain payload"])
    def test_no_face_shows_another(self, refuse, conversations, eve, attack):
        own = conversations["e"]
        pasted = {
            "a plain text": ANNS,
            "a renamed prefix": f"x{stored(own, 1)}",
            "of an earlier version": earlier("chatmemory.message.text"),
            "a plain payload": '{"type":"USER","contents":[{"type":"TEXT","text":"Zwiebelkuchen"}]}',
        }[attack]
        paste(pasted, own, 1, "payload" if attack == "a plain payload" else "text")

        for name, way in faces(eve).items():
            with pytest.raises(EncryptionError):
                raise AssertionError(f"{name}: {way()}")
        out = io.StringIO()
        with pytest.raises(CommandError, match="findings"):
            call_command("check_chatmemory", stdout=out)
        assert ("in plain text: 1" in out.getvalue()) is (attack != "of an earlier version")

    def test_what_an_earlier_version_has_encrypted_is_read_until_it_is_encrypted_again(self, conversations, settings):
        paste(earlier("chatmemory.message.text"), conversations["e"], 1)
        assert get_chat_memory("e").messages()[0] == UserMessage(ANNS)

        call_command("encrypt_chatmemory", stdout=io.StringIO())
        settings.CHATMEMORY["ENCRYPTION"]["PLAIN"] = "refuse"
        install()

        assert get_chat_memory("e").messages()[0] == UserMessage(ANNS)
        call_command("check_chatmemory", stdout=io.StringIO())


def earlier(column: str) -> str:
    """Return ann's text as earlier versions encrypted it with the site's key."""
    data = bytes(12) + AESGCM(b"k1".ljust(32)).encrypt(bytes(12), ANNS.encode(), f"{column}:k1".encode())
    return f"enc1:k1:{base64.b64encode(data).decode()}"
