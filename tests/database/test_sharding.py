"""The site of docs/sharding.md and docs/moving-owners.md: a router by owner, and owners who move while they write."""

import os
import textwrap

import pytest

from tests.acceptance.docs.pages import block_of, site

__all__ = ["site"]  # a fixture

pytest.importorskip("cryptography")  # what it stores is encrypted

MIGRATION = """
from django.db import migrations, models

class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel(
            "Place",
            [
                ("owner_key", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("database", models.CharField(max_length=40)),
            ],
        ),
    ]
"""

SETTINGS = """
import base64, os
ALIASES = ("default", "shard_1", "shard_2")

def database(alias):
    is_file = "sqlite" in SERVER["ENGINE"]
    name = os.path.abspath(f"{alias}.sqlite3") if is_file else f"test_{alias}_{os.getpid()}"
    return {**SERVER, "TEST": {"NAME": name}}

if not URL.startswith("sqlite"):  # the options for SQLite are those of the example project
    DATABASES["default"] = dj_database_url.parse(URL)
SERVER = DATABASES["default"]
DATABASES = {alias: database(alias) for alias in ALIASES}
INSTALLED_APPS.remove("example_project")  # its feedback is about messages, and would have to be with them
INSTALLED_APPS += ["shards", "chatmemory_django.contrib.encryption", "chatmemory_django.contrib.files"]
DATABASE_ROUTERS = ["shards.routing.ShardRouter"]
MIDDLEWARE += ["shards.routing.shard_middleware"]
ALLOWED_HOSTS = ["testserver"]
STORAGES = {
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    "chats": {
        "BACKEND": "django.core.files.storage.FileSystemStorage",
        "OPTIONS": {"location": os.path.join(os.getcwd(), "chats")},
    },
}
CHATMEMORY = {
    "MEDIA_STORAGE": "chats",
    "CHAT": {"ASSISTANT": "assisting.assistant"},
    "REST": {"THROTTLE_RATES": {}},
    "ENCRYPTION": {"KEYS": ["a:" + base64.b64encode(bytes(32)).decode()], "OWNER_KEYS": True},
}
"""

ASSISTING = """
from chatmemory_django.chat.assistant import Assistant
from tests.faces.chat.scripted import ScriptedModel

assistant = Assistant(ScriptedModel("An answer of some words"))
"""

PREPARE = """
import asyncio, atexit, base64, itertools, json, threading, uuid
from types import SimpleNamespace
from unittest.mock import patch
from datetime import UTC, datetime, timedelta
from django.db import connections
from django.test import AsyncClient, Client
from django.test.utils import setup_databases, teardown_databases
from rest_framework.authtoken.models import Token
from chatmemory_django.chat.models import AnswerChunk, Run
from chatmemory_django.contrib.encryption.models import OwnerKey
from chatmemory_django.messages import Image, ImageContent, TextContent
from chatmemory_django.chat.models import CallSum, ModelCall
from chatmemory_django.contrib.files.models import MediaFile
from chatmemory_django.contrib.files.findings import check_files
from chatmemory_django.chat.costs import summing
from chatmemory_django.chat.costs.calls import prune_calls
from chatmemory_django.chat.costs.summing import sum_calls
from chatmemory_django.chat.costs.usage import usage
from shards.models import Place
from shards.routing import SHARDS, on_shard, shard_of
from shards.moving import clear_up, move

atexit.register(teardown_databases, setup_databases(verbosity=0, interactive=False), verbosity=0)
users = get_user_model().objects
anna, bert = users.create_user("anna"), users.create_superuser("bert")
for user, shard in ((anna, "shard_1"), (bert, "shard_2")):
    Place.objects.create(owner_key=str(user.pk), database=shard)

def picture(letter):
    data = base64.b64encode(letter.encode() * 20_000).decode()
    return UserMessage([TextContent(f"of {letter}"), ImageContent(Image(base64_data=data, mime_type="image/png"))])

def texts(database):
    found = Conversation.objects.using(database).exclude(owner=None)
    return sorted(row.text for each in found for row in each.history())
"""


def run(site, *parts: str) -> None:
    names = {"models": "class Place", "routing": "class ShardRouter"}
    files = {f"shards/{name}": block_of("sharding.md", part) for name, part in names.items()}
    files["shards/moving"] = block_of("moving-owners.md", "def move(")
    files["shards/apps"] = block_of("moving-owners.md", "class ShardsConfig")
    files |= {"shards/__init__": "", "shards/migrations/__init__": "", "shards/migrations/0001_initial": MIGRATION}
    code = "".join(map(textwrap.dedent, (PREPARE, *parts)))
    settings = f"import dj_database_url\nURL = {os.environ.get('DATABASE_URL', 'sqlite')!r}\n{SETTINGS}"
    site(settings, code, (), assisting=ASSISTING, **files)


def test_what_belongs_to_an_owner_is_in_one_database(site):
    run(
        site,
        block_of("sharding.md", "on_shard(shard_of(anna.pk))"),
        """
        token = Token.objects.create(user=anna).key
        client = Client(headers={"Authorization": f"Token {token}"})
        posted = {"messages": [{"message": {"role": "user", "content": "Again"}}]}
        url = "/api/conversations/support/messages/"
        assert client.post(url, posted, content_type="application/json").status_code == 201
        assert [each["memory_id"] for each in client.get("/api/conversations/").json()["results"]] == ["support"]

        async def ask():
            body = {"id": str(uuid.uuid4()), "trigger": "submit-message", "messages": [
                {"id": "q", "role": "user", "parts": [{"type": "text", "text": "Question"}]}]}
            headers = {"Authorization": f"Token {token}"}
            response = await AsyncClient().post("/api/chat", body, content_type="application/json", headers=headers)
            assert response.status_code == 200, response.content
            return "".join([each.decode() async for each in response.streaming_content])
        assert "words" in asyncio.run(ask())

        assert texts("shard_1") == ["Again", "An answer of some words", "Hello", "Question"], texts("shard_1")
        for model, count in ((Conversation, 2), (ModelCall, 1), (OwnerKey, 1), (Run, 1)):
            assert [model.objects.using(each).count() for each in SHARDS] == [count, 0], model
        assert AnswerChunk.objects.using("shard_1").exists()
        assert "chatmemory_message" not in connections["default"].introspection.table_names()
        assert [each["calls"] for each in client.get("/api/usage/").json()["results"]] == [1]

        staff = Client()
        staff.force_login(bert)
        assert "support" not in staff.get("/admin/chatmemory/conversation/").content.decode()
        staff.cookies["shard"] = "shard_1"
        assert "support" in staff.get("/admin/chatmemory/conversation/").content.decode()
        call_command("check_chatmemory", database="shard_1")
        call_command("erase_chatmemory", memory_ids=["support"], database="shard_1")
        assert not AnswerChunk.objects.using("shard_1").filter(memory_id="support").exists()
        call_command("erase_chatmemory", user="anna")
        assert not any(model.objects.using("shard_1").exists() for model in (Conversation, OwnerKey, AnswerChunk))
        with on_shard("shard_2"):
            get_chat_memory("of bert", owner=bert).add(UserMessage("Hi"))
        bert.delete()
        assert not Conversation.objects.using("shard_2").exists()
        try:
            get_chat_memory("nobody's").add(UserMessage("Lost"))
        except Exception as error:
            assert "no shard" in str(error)
        else:
            raise AssertionError("It was written somewhere.")
        """,
    )


@pytest.mark.slow
def test_a_writer_loses_nothing_while_an_owner_moves(site):
    run(
        site,
        """
        from django.core.exceptions import PermissionDenied
        from chatmemory_django.chat.costs import recording
        with on_shard("shard_1"):
            for name in ("a", "b", "c", "gone"):
                get_chat_memory(name, owner=anna).add(UserMessage(f"{name} before"))
        conversation = Conversation.objects.using("shard_1").get(memory_id="a")
        version = conversation.version
        calls = ModelCall.objects.using("shard_1")
        now = datetime.now(UTC)
        for days in (0, 1, 2, 100):  # those before today are summed up, and one of them is pruned
            calls.create(
                owner_id=anna.pk, conversation=conversation, purpose="answer", created_at=now - timedelta(days=days)
            )
        sum_calls(using="shard_1")
        calls.filter(created_at__lt=now - timedelta(days=99)).delete()
        acknowledged, refused, done = [], [], threading.Event()
        moved = threading.Barrier(2)

        def write():
            number = 0
            while not done.is_set() or number < 20:
                number += 1
                if number == 5:
                    moved.wait(30)  # the move begins between two messages
                try:
                    with on_shard(shard_of(anna.pk)):
                        name = "abc"[number % 3]
                        get_chat_memory(name, owner=anna).add(UserMessage(f"{name} {number}"))
                        if number == 5:
                            Conversation.objects.get(memory_id="gone").delete()
                except PermissionDenied:
                    refused.append(number)
                else:
                    acknowledged.append(f"{name} {number}")
            connections.close_all()

        writer = threading.Thread(target=write, daemon=True)  # so that an error here is seen
        writer.start()
        moved.wait(30)
        move(anna, "shard_2")
        with on_shard("shard_1"):  # a request that began before
            try:
                get_chat_memory("a", owner=anna).add(UserMessage("too late"))
            except PermissionDenied:
                pass
            else:
                raise AssertionError("It was acknowledged.")
            get_chat_memory("late", owner=anna).add(UserMessage("late"))
        done.set()
        writer.join()
        assert shard_of(anna.pk) == "shard_2"
        clear_up(anna, "shard_1")

        there = texts("shard_2")
        assert set(acknowledged) <= set(there) and len(there) == len(set(there))
        assert {"a before", "b before", "c before", "late"} <= set(there)
        assert "too late" not in there and "gone before" not in there
        assert Conversation.objects.using("shard_2").get(memory_id="a").version >= version
        moved_calls = ModelCall.objects.using("shard_2")
        assert {call.conversation.memory_id for call in moved_calls.all()} == {"a"}
        period = {"since": now - timedelta(days=200), "until": now + timedelta(days=1)}
        for by in ("user", "day", "model"):
            used = usage(moved_calls.filter(owner=anna.pk), by, **period, limit=9)
            assert sum(each.calls for each in used) == 4, by
        for model in (Conversation, ModelCall, OwnerKey):
            assert not model.objects.using("shard_1").exists(), model
        assert not CallSum.objects.using("shard_1").filter(owner=anna.pk).exists()
        move(anna, "shard_1")  # and back, where nothing of it is left
        assert texts("shard_1") == there
        call_command("check_chatmemory", database="shard_1")
        """,
    )


@pytest.mark.slow
def test_a_user_who_is_deleted_before_it_is_cleared_up_is_gone_from_both_databases_and_never_comes_back(site):
    run(
        site,
        """
        from copy import copy
        from chatmemory_django.models import Message

        def left():
            models = (Conversation, Message, OwnerKey, MediaFile, AnswerChunk)
            places = [(model, each) for model in models for each in SHARDS]
            found = {(model.__name__, each) for model, each in places if model.objects.using(each).exists()}
            calls = {each for each in SHARDS if ModelCall.objects.using(each).exclude(owner=None).exists()}
            return found | calls | set(Place.objects.exclude(owner_key=str(bert.pk)).values_list("owner_key"))

        def store():
            user = users.create_user("carl")
            Place.objects.create(owner_key=str(user.pk), database="shard_1")
            with on_shard("shard_1"):
                get_chat_memory("one", owner=user).add(picture("a"))
            move(user, "shard_2")
            with on_shard("shard_1"):  # a request that began before the move
                get_chat_memory("late", owner=user).add(UserMessage("late"))
                ModelCall.objects.create(owner_id=user.pk, purpose="answer")
            assert texts("shard_1") == ["late"] and texts("shard_2") == ["of a"]
            return user

        anna.delete()
        for delete in (lambda user: user.delete(), lambda user: users.filter(pk=user.pk).delete()):
            user = store()
            before = copy(user)
            delete(user)
            assert not left(), left()
            for stale in (user, before):  # the job that was to clear up comes later
                clear_up(stale, "shard_1")
                move(stale, "shard_1")
                assert not left(), left()

        # A deletion while it is cleared up waits for its end, or is over before its beginning.
        if connections["shard_1"].vendor != "sqlite":
            user = store()
            deleted = []
            def delete():
                before = copy(user)
                before.delete()
                deleted.append(True)
                connections.close_all()
            def begin(execute, sql, *rest):
                if not deleting.is_alive() and deleting.ident is None:
                    deleting.start()
                    deleting.join(1)
                    assert not deleted
                return execute(sql, *rest)
            deleting = threading.Thread(target=delete, daemon=True)
            with connections["shard_1"].execute_wrapper(begin):
                clear_up(user, "shard_1")
            deleting.join(30)
            assert deleted and not left(), left()
        """,
    )


@pytest.mark.slow
def test_calls_count_once_wherever_a_move_crashes_and_whatever_the_night_does_then(site):
    run(
        site,
        """
        class Crash(Exception):
            pass

        def crashing_at(number):
            count = itertools.count()
            def execute(run, sql, *rest):
                if sql.lstrip().startswith(("INSERT", "UPDATE", "DELETE")) and next(count) == number:
                    raise Crash
                return run(sql, *rest)
            return execute

        class Tomorrow(datetime):
            @classmethod
            def now(cls, zone=None):
                return datetime.now(zone) + timedelta(days=1)

        def night():
            clock = SimpleNamespace(datetime=Tomorrow, timedelta=timedelta, UTC=UTC)
            with patch.object(summing, "datetime", clock):
                for each in SHARDS:
                    sum_calls(using=each)
                    prune_calls(timedelta(days=5), using=each)

        def record():  # a call of today, and one that can be pruned
            here = Conversation.objects.using("shard_1").filter(owner=anna.pk).first()
            for days in (0, 8):
                began = datetime.now(UTC) - timedelta(days)
                calls = ModelCall.objects.using("shard_1")
                calls.create(owner_id=anna.pk, conversation=here, purpose="answer", created_at=began)

        def attempt(moving, number):
            execute = crashing_at(number)
            try:
                with connections["shard_1"].execute_wrapper(execute), connections["shard_2"].execute_wrapper(execute):
                    moving()
            except Crash:
                return False
            return True

        with on_shard("shard_1"):
            get_chat_memory("a", owner=anna).add(UserMessage("Hello"))
        recorded = 0
        for moving in (lambda: move(anna, "shard_2"), lambda: clear_up(anna, "shard_1")):
            for number in itertools.count():
                record()
                recorded += 2
                if attempt(moving, number):
                    break
                night()
            assert number > 8, number
        if ModelCall.objects.using("shard_1").exists():
            clear_up(anna, "shard_1")
        night()

        assert texts("shard_2") == ["Hello"]
        period = {"since": datetime.now(UTC) - timedelta(days=30), "until": datetime.now(UTC) + timedelta(days=2)}
        for by in ("user", "day", "model"):
            used = usage(ModelCall.objects.using("shard_2").filter(owner=anna.pk), by, **period, limit=9)
            assert sum(each.calls for each in used) == recorded, (by, used, recorded)
        counted = [sum(each.calls for each in usage(ModelCall.objects.using(shard), "model", **period, limit=9))
                   for shard in SHARDS]
        assert sum(counted) == recorded, (counted, recorded)
        for model in (Conversation, ModelCall, CallSum):
            left = model.objects.using("shard_1")
            assert not (left if model is not CallSum else left.exclude(owner=None)).exists(), model
        """,
    )


@pytest.mark.slow
def test_no_database_deletes_the_files_of_another_in_the_same_storage(site):
    run(
        site,
        """
        from django.core.files.storage import storages
        from chatmemory_django.contrib.files.storage import FOLDERS, listed

        def files():
            return sorted(name for folder in FOLDERS for name in listed(folder))
        def check(database, **options):
            found = []
            check_files(database, found.append, age=timedelta(seconds=-60), **options)
            return [(each.name, each.detail) for each in found]

        with on_shard("shard_1"):
            get_chat_memory("one", owner=anna).add(picture("a"))
        with on_shard("shard_2"):
            get_chat_memory("two", owner=bert).add(picture("a"))
        assert len(files()) == 2
        for database in SHARDS:
            assert check(database, repair=True) == []
        left_over = files()[0] + "-left"
        storages["chats"].save(left_over, storages["chats"].open(files()[0]))
        assert check("shard_2") == [(left_over, "No message has it.")]
        check("shard_1", repair=True)
        assert len(files()) == 2

        move(anna, "shard_2")  # both in one database, until the old one is cleared up
        with on_shard("shard_2"):
            assert get_chat_memory("one", owner=anna).messages() == [picture("a")]
        assert len(files()) == 3
        clear_up(anna, "shard_1")
        assert not MediaFile.objects.using("shard_1").exists()
        with on_shard("shard_2"):
            assert get_chat_memory("one", owner=anna).messages() == [picture("a")]
            assert get_chat_memory("two", owner=bert).messages() == [picture("a")]
            assert sorted(MediaFile.objects.values_list("name", flat=True)) == files()
            bert.delete()
            assert get_chat_memory("one", owner=anna).messages() == [picture("a")]
        for database in SHARDS:
            assert check(database) == []
        """,
    )
