"""The recipes whose code needs a site of its own, a live server, or another package."""

import asyncio
import os
import re
import sys
import textwrap
import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta
from types import ModuleType

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group, Permission, User
from django.core.cache import caches
from django.db import connections
from django.urls import path
from django.utils import timezone
from rest_framework.test import APIClient

from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import SystemMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.signals import messages_added, messages_evicted
from tests.acceptance.docs.pages import DOCS, block_of, blocks_of, execute, site
from tests.faces.contrib.adapters.running import in_threads

__all__ = ["site"]  # a fixture

ROOT = DOCS.parent
REDIS = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/9")
CLIENT = ROOT / "tests" / "acceptance" / "chat" / "client"
PAGE = CLIENT / "page" / "src"


def recipe(page: str, part: str) -> str:
    """Return the one code block of a recipe that contains *part*."""
    return block_of(f"recipes/{page}", part)


def flush(code: str) -> str:
    """Return *code* without indentation."""
    return re.sub(r"^ +", "", code, flags=re.MULTILINE)


@pytest.fixture
def disconnected() -> Iterator[None]:
    """Disconnect the receivers that a recipe connects."""
    signals = (messages_added, messages_evicted)
    receivers = [list(signal.receivers) for signal in signals]
    yield
    for signal, before in zip(signals, receivers, strict=True):
        signal.receivers = before
        signal.sender_receivers_cache.clear()


class TestBackgroundTasks:
    @pytest.fixture
    def in_jobs(self, settings) -> None:
        """Use the settings of the page, with a small window and a function that is importable here."""
        settings.CHATMEMORY = execute(recipe("background-tasks.md", "CHATMEMORY"))["CHATMEMORY"]
        settings.CHATMEMORY["MEMORY"]["OPTIONS"] |= {
            "max_tokens": 40,
            "summary_tokens": 20,
            "after_tokens": 10,
            "summarize": f"{__name__}.shorten",
        }

    def fill(self) -> None:
        get_chat_memory("c").add(*(UserMessage(f"number {number}") for number in range(12)))

    @pytest.mark.django_db(transaction=True)
    def test_a_django_task_summarizes_evicted_messages(self, in_jobs, disconnected):
        pytest.importorskip("django.tasks")

        names = execute(recipe("background-tasks.md", "summarize_memory.enqueue"))
        self.fill()

        assert get_chat_memory("c").messages()[0].text.startswith("until number")
        assert "summarize_later" in names

    @pytest.mark.django_db
    def test_a_django_task_erases_what_is_old(self, settings):
        pytest.importorskip("django.tasks")
        settings.CHATMEMORY = {"RETENTION": {"IDLE": 5}}
        Conversation.objects.create(memory_id="old", updated_at=timezone.now() - timedelta(days=6))
        Conversation.objects.create(memory_id="new")

        names = execute(recipe("background-tasks.md", "apply_retention"))
        result = names["erase_what_is_old"].enqueue()

        assert result.return_value == {"conversations": 1, "messages": 0}
        assert Conversation.objects.get().memory_id == "new"

    @pytest.mark.django_db(transaction=True)
    def test_a_celery_task_summarizes_evicted_messages(self, in_jobs, disconnected):
        celery = pytest.importorskip("celery")
        app = celery.Celery("recipe", set_as_current=True, broker="memory://")
        app.conf.task_always_eager = app.conf.task_eager_propagates = True

        names = execute(recipe("background-tasks.md", "celery"))
        self.fill()

        assert isinstance(get_chat_memory("c").messages()[0], SystemMessage)
        assert "summarize_later" in names

    @pytest.mark.django_db(transaction=True)
    def test_a_queue_sets_titles(self, disconnected):
        execute(recipe("background-tasks.md", "title_later") + recipe("background-tasks.md", "for memory_id in queue"))


def shorten(previous: str | None, messages: list) -> str:
    return f"until {messages[-1].single_text}"


class TestTenants:
    @pytest.mark.django_db
    def test_policy_shows_staff_their_own_tenant_only(self, settings, monkeypatch):
        policy = execute(recipe("tenants.md", "class TenantPolicy"))["TenantPolicy"]
        module = ModuleType("recipe_access")
        module.TenantPolicy = policy  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "recipe_access", module)
        settings.CHATMEMORY = {"ACCESS_POLICY": "recipe_access.TenantPolicy", "REST": {"THROTTLE_RATES": {}}}
        for name in ("acme", "globex"):
            group = Group.objects.create(name=name)
            group.user_set.add(User.objects.create_user(f"user of {name}"))
            get_chat_memory(f"of {name}", group.user_set.get()).add(UserMessage("Hello"))
        staff = User.objects.create_user("staff", is_staff=True)
        staff.groups.add(Group.objects.get(name="acme"))
        staff.user_permissions.add(Permission.objects.get(codename="view_conversation"))

        execute(recipe("tenants.md", "staff_of_acme"), APIClient=APIClient, staff_of_acme=staff)


@pytest.mark.slow
def test_each_tenant_has_a_database(site):
    aliases = ("default", "acme", "globex")
    settings = (
        "DATABASES = {name: {**DATABASES['default'], 'NAME': f'{name}.sqlite3'} for name in "
        f"{aliases!r}}}\nDATABASE_ROUTERS = ['tenants.TenantRouter']\n"
    )
    router = recipe("tenants.md", "class TenantRouter")
    code = "from tenants import tenant\nanna = get_user_model().objects.create_user('anna')\n"
    code += recipe("tenants.md", 'for name in ("acme"')
    code += textwrap.dedent("""
        from types import SimpleNamespace
        from tenants import tenant_middleware
        seen = []
        def view(request):
            seen.append(Conversation.objects.get().history().get().text)
        request = SimpleNamespace(get_host=lambda: "globex.example.com")
        tenant_middleware(view)(request)
        assert seen == ["Hello, globex"]
        assert tenant.get() == "acme"

        from django.db import connections
        tables = {name: set(connections[name].introspection.table_names()) for name in ("default", "acme")}
        assert "chatmemory_chat_answerchunk" in tables["default"] - tables["acme"]
        assert {"chatmemory_chat_modelcall", "chatmemory_chat_toolapproval"} <= tables["acme"] - tables["default"]

        from chatmemory_django.chat.costs.calls import record_call
        from chatmemory_django.chat.models import ModelCall
        with record_call("other", "model", owner=anna, memory_id="ticket-1"):
            pass
        assert ModelCall.objects.using("acme").get().conversation.memory_id == "ticket-1"
    """)

    site(settings, code, aliases, tenants=router)


@pytest.mark.slow
def test_conversations_have_a_database_of_their_own(site):
    settings = (
        recipe("several-databases.md", "DATABASE_ROUTERS") + "INSTALLED_APPS += ['chatmemory_django.contrib.search']\n"
    )
    # Its feedback points at messages, and would have to be in their database.
    settings += "INSTALLED_APPS.remove('example_project')\nCHATMEMORY = {}\n"
    code = recipe("several-databases.md", "anna.delete()") + block_of("recipes/several-databases.md", "orphans")
    code += textwrap.dedent("""
        get_chat_memory("orphan").add(UserMessage("Hello"))
        assert not orphans.exists()
        Conversation.objects.filter(memory_id="orphan").update(owner=4711)
        assert orphans.get().memory_id == "orphan"
        from chatmemory_django.models import Message
        assert Message.objects.search("hello").count() == 1
        from django.db import connections
        assert "chatmemory_message" not in connections["default"].introspection.table_names()
        call_command("check_chatmemory")
    """)

    site(settings, code, ("default", "chat"), routers=recipe("several-databases.md", "class ChatRouter"))


@pytest.mark.slow
def test_users_have_a_uuid(site):
    settings = "INSTALLED_APPS += ['members']\nAUTH_USER_MODEL = 'members.Member'\n"
    model = recipe("custom-users.md", "class Member")
    use = "import uuid\n" + recipe("custom-users.md", "member.pk")
    use += "call_command('erase_chatmemory', user='anna')\nassert not Conversation.objects.exists()\n"

    site(
        settings,
        use,
        **{
            "members/__init__": "",
            "members/models": model,
            "members/migrations/__init__": "",
            "members/migrations/0001_initial": MEMBER_MIGRATION,
        },
    )


MEMBER_MIGRATION = """
import uuid
import django.contrib.auth.models
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = [("auth", "0012_alter_user_first_name_max_length")]
    operations = [
        migrations.CreateModel(
            "Member",
            [
                ("password", models.CharField(max_length=128)),
                ("last_login", models.DateTimeField(blank=True, null=True)),
                ("is_superuser", models.BooleanField(default=False)),
                ("username", models.CharField(max_length=150, unique=True)),
                ("first_name", models.CharField(blank=True, max_length=150)),
                ("last_name", models.CharField(blank=True, max_length=150)),
                ("email", models.EmailField(blank=True, max_length=254)),
                ("is_staff", models.BooleanField(default=False)),
                ("is_active", models.BooleanField(default=True)),
                ("date_joined", models.DateTimeField(auto_now_add=True)),
                ("id", models.UUIDField(primary_key=True, default=uuid.uuid4, serialize=False)),
                ("groups", models.ManyToManyField(to="auth.group", blank=True)),
                ("user_permissions", models.ManyToManyField(to="auth.permission", blank=True)),
            ],
            managers=[("objects", django.contrib.auth.models.UserManager())],
        ),
    ]
"""


MIGRATED = "call_command('migrate', run_syncdb=True, verbosity=0)\n"


EMBEDDINGS = """
topics = [("cat", "pet"), ("tea", "drink"), ("train", "travel")]
during = []  # what another writer does meanwhile

def embed(texts):
    for each in during:
        each()
    return [[float(word in text or topic in text) for word, topic in topics] for text in texts]
"""


def test_messages_are_found_by_their_meaning(site):
    pytest.importorskip("numpy")
    models, meaning, app, tool = blocks_of("recipes/vectors.md")
    code = MIGRATED + textwrap.dedent("""
        from chatmemory_django.messages import AiMessage, SystemMessage
        from chatmemory_django.models import Message
        from mysite import embeddings
        from tool import find_similar
        from vectors.meaning import add_vectors, forget_removed, nearest
        from vectors.models import Vector
        ann, bob = (get_user_model().objects.create_user(name) for name in ("ann", "bob"))
        memory = get_chat_memory("a", owner=ann)
        memory.add(SystemMessage("tea"), UserMessage("My cat is old"), AiMessage("What tea?"), UserMessage("By train"))
        get_chat_memory("b", owner=bob).add(UserMessage("A cat, too"))

        def found(topic, owner=ann):
            return [row.text for row in nearest(topic, owner=owner, limit=1)]

        def vectors():
            return sorted(Vector.objects.values_list("conversation__memory_id", "sequence"))

        assert vectors() == [("a", 2), ("a", 3), ("a", 4), ("b", 1)]
        assert (found("pet"), found("drink"), found("pet", bob)) == (["My cat is old"], ["What tea?"], ["A cat, too"])
        assert len(nearest("pet", owner=ann)) == 3
        [first, *_] = find_similar("a pet", owner=ann, memory_id="c")
        assert (first["by"], first["quotation"]) == ("USER", "My cat is old")
        assert find_similar("a pet", owner=ann, memory_id="a") == []
        assert find_similar("a pet", owner=None, memory_id="a") == []

        memory.remove(2)
        assert vectors() == [("a", 3), ("a", 4), ("b", 1)]
        assert found("pet") != ["My cat is old"]
        memory.rewind(3)  # by train: on another branch now, whose vectors stay
        assert ("a", 4) in vectors() and found("travel") == ["What tea?"]

        embeddings.during.append(lambda: memory.remove(5))  # another writer, while the vector is made
        memory.add(UserMessage("A cat again"))
        embeddings.during.clear()
        assert ("a", 5) not in vectors(), vectors()
        embeddings.during.append(lambda: Conversation.objects.filter(memory_id="gone").delete())
        get_chat_memory("gone", owner=ann).add(UserMessage("A cat that goes"))
        embeddings.during.clear()
        assert [each for each in vectors() if each[0] not in "ab"] == []

        conversation = Conversation.objects.get(memory_id="a")
        add_vectors(conversation.pk, range(1, conversation.next_sequence))  # again: nothing twice, nothing removed
        assert vectors() == [("a", 3), ("a", 4), ("b", 1)]
        Message.objects.filter(conversation=conversation, sequence=4).delete()  # as by prune_chatmemory
        forget_removed(Vector.objects.all())
        assert vectors() == [("a", 3), ("b", 1)]
        ann.delete()
        assert vectors() == [("b", 1)]
        Conversation.objects.all().delete()
        assert vectors() == []
    """)

    site(
        "INSTALLED_APPS += ['vectors.apps.VectorsConfig']\n",
        code,
        **{
            "vectors/__init__": "",
            "vectors/models": models,
            "vectors/meaning": meaning,
            "vectors/apps": app,
            "tool": tool,
            "mysite/__init__": "",
            "mysite/embeddings": EMBEDDINGS,
        },
    )


FUSED = textwrap.dedent("""
    from chatmemory_django.messages import AiMessage
    from mysite.answers import answers
    ann, bob = (get_user_model().objects.create_user(name) for name in ("ann", "bob"))
    get_chat_memory("a", owner=ann).add(
        UserMessage("My cat is called Tom"), AiMessage("A tea?"), UserMessage("Code 4711"), UserMessage("By train")
    )
    get_chat_memory("b", owner=bob).add(UserMessage("My pet cat, code 4711"))

    def found(question, owner=ann):
        return [row.text for row in answers(question, owner=owner, limit=2)]

    assert found("Tom, the pet")[0] == "My cat is called Tom"
    assert found("Which code?")[0] == "Code 4711"  # no vector knows it
    assert found("drink")[0] == "A tea?"  # and no word this
    assert found("drink", bob) == ["My pet cat, code 4711"]
""")


def test_words_and_meaning_are_fused(site):
    pytest.importorskip("numpy")
    models, meaning, app, _ = blocks_of("recipes/vectors.md")
    files = {
        "vectors/__init__": "",
        "vectors/models": models,
        "vectors/meaning": meaning,
        "vectors/apps": app,
        "mysite/__init__": "",
        "mysite/embeddings": EMBEDDINGS,
        "mysite/answers": recipe("words-and-meaning.md", "def answers"),
    }

    site("INSTALLED_APPS += ['vectors.apps.VectorsConfig']\n", MIGRATED + FUSED, **files)


@pytest.mark.skipif("PGVECTOR_URL" not in os.environ, reason="It needs a database with the extension vector")
def test_pgvector_compares_the_vectors(site):
    models, meaning, app, _ = blocks_of("recipes/vectors.md")
    column = recipe("words-and-meaning.md", "numbers =").replace("1024", "3")
    imported, field = column.strip().rsplit("\n", 1)
    models = f"{imported}\n{models.replace('numbers = models.BinaryField()', field)}"
    meaning = meaning.replace("numbers=vectors[each].tobytes()", "numbers=vectors[each]")
    files = {
        "vectors/__init__": "",
        "vectors/models": models,
        "vectors/meaning": meaning + recipe("words-and-meaning.md", "CosineDistance"),
        "vectors/apps": app,
        "mysite/__init__": "",
        "mysite/embeddings": EMBEDDINGS,
        "mysite/answers": recipe("words-and-meaning.md", "def answers"),
    }
    url = os.environ["PGVECTOR_URL"]
    settings = f"import dj_database_url\nDATABASES = {{'default': dj_database_url.parse({url!r})}}\n"

    site(f"{settings}INSTALLED_APPS += ['vectors.apps.VectorsConfig']\n", MIGRATED + FUSED, **files)


class TestTemporaryChats:
    @pytest.fixture(params=["locmem", "redis"])
    def store_class(self, request, settings):
        """Return the class of the page, in a cache of that kind."""
        backend = {
            "locmem": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": "temporary"},
            "redis": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": REDIS},
        }[request.param]
        settings.CACHES = {"default": {**backend, "KEY_PREFIX": uuid.uuid4().hex}}
        if request.param == "redis":
            redis = pytest.importorskip("redis")
            try:
                caches["default"].get("any")
            except redis.ConnectionError:
                pytest.skip(f"No Redis at {REDIS}.")
        return execute(recipe("temporary-chats.md", "class CacheStore"))["CacheStore"]

    def memory(self, store) -> MessageWindowChatMemory:
        return MessageWindowChatMemory(max_messages=1000, id="c", store=store)

    def test_many_writers_lose_nothing(self, store_class):
        def write(number: int) -> None:
            for count in range(10):
                self.memory(store_class()).add(UserMessage(f"{number}-{count}"))

        in_threads(6, write)

        texts = [message.single_text for message in self.memory(store_class()).messages()]
        assert sorted(texts) == sorted(f"{number}-{count}" for number in range(6) for count in range(10))
        for number in range(6):  # each writer's in order
            assert [each for each in texts if each.startswith(f"{number}-")] == [f"{number}-{n}" for n in range(10)]

    @pytest.mark.parametrize("change", ["clear", "set", "add"])
    def test_a_change_waits_for_a_writer_and_is_not_undone_by_it(self, store_class, change):
        store, changes = store_class(), {"clear": (), "set": ([UserMessage("new")],), "add": (UserMessage("new"),)}
        self.memory(store).add(UserMessage("old"))
        changing = threading.Thread(target=getattr(self.memory(store_class()), change), args=changes[change])

        with store.exclusive("c"):
            changing.start()
            changing.join(0.2)
            assert changing.is_alive()
            store.update_messages("c", [*store.get_messages("c"), UserMessage("added")])
        changing.join()

        texts = [message.single_text for message in self.memory(store).messages()]
        assert texts == {"clear": [], "set": ["new"], "add": ["old", "added", "new"]}[change]

    def test_it_expires(self, store_class):
        memory = self.memory(store_class(seconds=0))

        memory.add(UserMessage("Hello"))

        assert memory.messages() == []

    def test_a_lock_that_nobody_frees_is_an_error_without_texts(self, store_class):
        store = store_class()
        store.lock_seconds = 0
        store.cache.set(f"{store._key('c')}:lock", "another's")

        with pytest.raises(TimeoutError, match="the memory 'c'"):
            self.memory(store).add(UserMessage("Hello"))

        assert store.cache.get(f"{store._key('c')}:lock") == "another's"

    def test_a_writer_that_took_too_long_does_not_free_the_lock_of_the_next(self, store_class):
        store = store_class()

        with store.exclusive("c"):
            store.cache.set(f"{store._key('c')}:lock", "the next one's")

        assert store.cache.get(f"{store._key('c')}:lock") == "the next one's"


class TestAsync:
    @pytest.mark.django_db(transaction=True)
    def test_a_view_can_release_its_connection(self):
        async def view() -> list[bool]:
            await Conversation.objects.acount()
            before = await sync_to_async(is_connected)()
            await sync_to_async(connections.close_all)()
            return [before, await sync_to_async(is_connected)()]

        def is_connected() -> bool:
            return connections["default"].connection is not None

        assert "await sync_to_async(connections.close_all)()" in (DOCS / "connections.md").read_text()
        assert asyncio.run(view()) == [True, False]


class TestReact:
    def test_the_page_shows_the_files_that_ci_builds(self):
        [component] = blocks_of("recipes/react.md", "tsx")
        headers, loading = blocks_of("recipes/react.md", "ts")

        assert component == (PAGE / "chat.tsx").read_text()
        assert headers == (PAGE / "headers.ts").read_text()
        assert loading in (PAGE / "main.tsx").read_text()

    def test_a_tool_of_assistant_ui_is_shown_as_ci_runs_it(self):
        _imports, *parts = flush(block_of("browser-tools.md", "toolkit", "tsx")).split("\n\n")
        script = flush((CLIENT / "tree.mjs").read_text())

        assert len(parts) == 2
        assert all(part.strip() in script for part in parts)

    def test_the_urls_are_those_of_the_chat_page(self):
        [line] = [each for each in blocks_of("recipes/react.md")[0].splitlines() if each.startswith("urlpatterns")]
        chat = re.search(r'include\("([\w.]+)"\)', re.search(r'path\("api/chat", .*\)\)', line)[0])[1]

        assert f'path("api/chat", include("{chat}"' in (ROOT / "chatmemory_django/chat/page/urls.py").read_text()


@pytest.mark.django_db
def test_the_page_with_htmx_gets_what_was_written_and_answered(settings, tmp_path, client, monkeypatch):
    page, messages = blocks_of("recipes/htmx.md", "html")
    (tmp_path / "chat.html").write_text(page)
    (tmp_path / "messages.html").write_text(messages)
    views = execute(recipe("htmx.md", "def send"))
    urls = ModuleType("recipe_htmx")
    urls.urlpatterns = [path("", views["page"]), path("send/", views["send"], name="send")]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, urls.__name__, urls)
    settings.ROOT_URLCONF = urls.__name__
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]
    client.force_login(User.objects.create_user("ann"))

    first = client.post("/send/", {"message": "Hello <b>"}).content.decode()
    second = client.post("/send/", {"message": "Again"}).content.decode()

    assert first.split("\n")[:2] == [
        '<p class="USER">Hello &lt;b&gt;</p>',
        '<p class="AI">You wrote: Hello &lt;b&gt;</p>',
    ]
    assert "Hello" not in second
    assert client.get("/").content.decode().count("<p class=") == 4
    assert client.post("/send/", {"message": " "}).status_code == 400
