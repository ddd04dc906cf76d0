"""The views of the example's page, its texts, its assistant, and ``runserver``."""

import importlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from gettext import GNUTranslations
from http.client import HTTPConnection
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.cache import cache
from django.core.exceptions import ValidationError
from django.utils import timezone
from rest_framework.authtoken.models import Token

import example_project
from chatmemory_django.chat import page
from chatmemory_django.chat.model import ChatResponse
from chatmemory_django.chat.models import ModelCall
from chatmemory_django.chat.tools import ToolError
from chatmemory_django.memory import SummarizingChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import AiMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory
from example_project import assistants, llm, memories
from example_project.parrot import Parrot
from example_project.policy import POLICY
from example_project.tokens import AGE
from tests.acceptance.chat.live_site import DEADLINE, ROOT, environment, manage, served

PROJECT = Path(example_project.__file__).parent
PAGE = Path(page.__file__).parent
GERMAN = PROJECT / "locale/de/LC_MESSAGES/django.po"
UUID = "0192f5a0-7d3e-7c21-9b1a-5d2f4e0b7a11"

needs_gettext = pytest.mark.skipif(shutil.which("msgfmt") is None, reason="Needs gettext: apt-get install gettext")


@pytest.mark.django_db
class TestPages:
    def test_anonymous_users_are_redirected_to_the_login_and_back(self, client):
        response = client.get("/?chat=x")

        assert response.url == "/sign-in/?next=/%3Fchat%3Dx"

    def test_the_page_has_a_strict_policy_and_sets_a_csrf_cookie(self, client):
        client.force_login(User.objects.create_user("ann"))

        response = client.get("/")

        policy = response.headers["Content-Security-Policy"]
        assert policy == POLICY
        assert policy.startswith("default-src 'none'; script-src 'self'; ")
        assert "unsafe" not in policy
        assert "csrftoken" in response.cookies
        html = response.content.decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)(?![^>]*application/json)", html)
        assert not re.search(r"<style|\sstyle=|\son\w+=", html)

    def test_the_page_shows_what_the_model_used_for_the_user(self, client):
        ann = User.objects.create_user("ann")
        client.force_login(ann)
        for owner in (ann, User.objects.create_user("bob"), None):
            ModelCall.objects.create(owner=owner, purpose="answer", input_tokens=1_200, output_tokens=34)

        assert "Tokens used in 30 days: 1,234" in client.get("/").content.decode()

    def test_the_demo_user_is_offered_only_with_DEBUG(self, client, settings):
        settings.DEBUG = True
        assert "<kbd>demo</kbd>" in client.get("/sign-in/").content.decode()
        settings.DEBUG = False
        assert "<kbd>" not in client.get("/sign-in/").content.decode()

    def test_it_uses_the_browsers_language_and_leaves_the_sites_unchanged(self, client):
        html = client.get("/sign-in/", headers={"Accept-Language": "de-AT, en;q=0.5"})

        assert '<html lang="de">' in html.content.decode()
        assert "Anmelden" in html.content.decode()
        assert "Accept-Language" in html.headers["Vary"]
        assert '<html lang="en' in client.get("/sign-in/", headers={"Accept-Language": "fr"}).content.decode()
        assert "Log in" in client.get("/admin/login/").content.decode()


@pytest.mark.django_db
class TestSigningIn:
    @pytest.fixture(autouse=True)
    def few(self, settings):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "REST": {"THROTTLE_RATES": {"sign_in": "3/min"}}}
        cache.clear()
        yield
        cache.clear()

    @pytest.mark.parametrize("address", ["/sign-in/", "/admin/login/", "/api/token/"])
    def test_wrong_passwords_are_limited_everywhere(self, client, address):
        User.objects.create_user("ann", password="right")
        wrong, right = ({"username": "ann", "password": each} for each in ("wrong", "right"))

        answers = [client.post(address, wrong).status_code for _ in range(3)]
        refused = client.post("/sign-in/", wrong)

        assert set(answers) <= {200, 400}
        assert refused.status_code == 429
        assert 0 < int(refused.headers["Retry-After"]) <= 60
        assert "Too many failed attempts; wait " in refused.content.decode()
        assert {client.post(each, wrong).status_code for each in ("/admin/login/", "/api/token/")} == {429}
        assert client.get("/sign-in/").status_code == 200
        assert client.post("/sign-in/", right).status_code == 302

    def test_right_passwords_are_not_limited(self, client):
        User.objects.create_user("ann", password="right")

        for _ in range(5):
            assert client.post("/api/token/", {"username": "ann", "password": "right"}).status_code == 200
            assert client.post("/sign-in/", {"username": "ann", "password": "right"}).status_code == 302


@pytest.mark.django_db
class TestPolicy:
    @pytest.mark.parametrize("address", ["/sign-in/", "/admin/login/", "/api/conversations/", "/nowhere/"])
    def test_every_response_has_a_policy(self, client, address):
        assert client.get(address).headers["Content-Security-Policy"] == POLICY

    def test_error_pages_of_DEBUG_have_none(self, client, settings):
        settings.DEBUG = True

        assert "Content-Security-Policy" not in client.get("/nowhere/").headers
        assert "Content-Security-Policy" in client.get("/admin/login/").headers

    def test_the_documentation_has_no_inline_script(self, client):
        response = client.get("/api/docs/")

        assert "script-src 'self';" in response.headers["Content-Security-Policy"]
        assert not re.search(r"<script(?![^>]*\bsrc=)", response.content.decode())
        [script] = re.findall(r'src="(/api/docs/[^"]+)"', response.content.decode())
        assert "SwaggerUIBundle" in client.get(script).content.decode()


class TestSettings:
    def check(self, **environment):
        code = (
            "from django.conf import settings as s; import django; django.setup();"
            "print(s.DEBUG, s.SECURE_SSL_REDIRECT, s.SECURE_HSTS_SECONDS, s.SESSION_COOKIE_NAME, s.CSRF_COOKIE_NAME)"
        )
        kept = {name: value for name, value in os.environ.items() if name not in {"DEBUG", "SECRET_KEY"}}
        made = {**kept, **environment, "DJANGO_SETTINGS_MODULE": "example_project.settings"}
        return subprocess.run(
            [sys.executable, "-c", code], cwd=PROJECT.parent, env=made, capture_output=True, text=True, check=False
        )

    def test_with_DEBUG_nothing_has_to_be_set(self):
        assert self.check(DEBUG="1").stdout == "True False 0 sessionid csrftoken\n"

    @pytest.mark.parametrize("debug", [{}, {"DEBUG": "0"}, {"DEBUG": "yes"}])
    @pytest.mark.parametrize("key", [{}, {"SECRET_KEY": "only good enough for a demo on your own machine"}])
    def test_without_DEBUG_the_known_key_is_an_error(self, key, debug):
        failed = self.check(**debug, **key)

        assert failed.returncode == 1
        assert "ImproperlyConfigured: With DEBUG off, the environment variable SECRET_KEY must be" in failed.stderr

    def test_without_DEBUG_cookies_are_of_this_host_alone_and_browsers_remember_https(self):
        shown = "False True 31536000 __Host-sessionid __Host-csrftoken\n"
        assert self.check(SECRET_KEY="of our own").stdout == shown

    def test_a_deployed_site_has_no_warnings_but_of_its_cache_and_of_what_is_the_sites_to_decide(self):
        given = {"SECRET_KEY": "k" * 60 + "0123456789", "BEHIND_PROXY": "1"}
        kept = {name: value for name, value in os.environ.items() if name != "DEBUG"} | given
        command = [sys.executable, "-m", "django", "check", "--deploy", "--settings", "example_project.settings"]
        checked = subprocess.run(command, cwd=PROJECT.parent, env=kept, capture_output=True, text=True, check=False)

        # Subdomains and preloading of HSTS; a cache and a database that processes share, which take servers.
        known = {"security.W005", "security.W021", "chatmemory.W071", "chatmemory.W072"}
        assert set(re.findall(r"\((\w+\.[WE]\d+)\)", checked.stderr)) <= known, checked.stderr

    def test_easy_passwords_are_refused(self):
        with pytest.raises(ValidationError):
            validate_password("password")


@pytest.mark.django_db(transaction=True)
class TestTokens:
    def test_a_token_ends_and_a_new_one_takes_its_place(self, client):
        user = User.objects.create_user("ann", password="right")
        old = Token.objects.create(user=user)
        headers = {"Authorization": f"Bearer {old.key}"}
        paths = ("/api/conversations/", "/api/chat/c/messages")
        assert [client.get(path, headers=headers).status_code for path in paths] == [200, 200]

        Token.objects.update(created=timezone.now() - AGE)

        assert [client.get(path, headers=headers).status_code for path in paths] == [401, 401]
        new = client.post("/api/token/", {"username": "ann", "password": "right"}).json()["token"]
        assert new != old.key
        again = client.post("/api/token/", {"username": "ann", "password": "right"}).json()["token"]
        assert again == new
        headers = {"Authorization": f"Bearer {new}"}
        assert [client.get(path, headers=headers).status_code for path in paths] == [200, 200]


class TestTexts:
    def test_the_scripts_use_existing_texts(self):
        from chatmemory_django.chat.page.texts import TEXTS

        scripts = "".join(path.read_text() for path in (PAGE / "static/chatmemory_page").glob("*.js"))
        literal = set(re.findall(r'"([a-z0-9_]+)"', scripts))

        assert {name for name in re.findall(r'\btext\("(\w+)"', scripts) if name not in TEXTS} == set()
        made = {"kind_user", "kind_ai", "kind_tool", "kind_system", "kind_summary", "kind_custom"}
        made |= {"window_of_messages", "window_of_tokens", "nothing_with_all", "nothing_with_any"}
        made |= {"sent_count_and_summary", "would_be_sent_and_summary"}
        reasons = {"in_window", "pinned", "summary", "refilled", "does_not_fit", "before_first_user", "unpaired_tool",
                   "evicted", "cleared", "summarized", "superseded", "off_path", "waits"}  # fmt: skip
        made |= {f"about_{each}" for each in reasons}
        assert set(TEXTS) - literal - made - reasons == set()
        assert made | reasons <= set(TEXTS)

    def test_translations_have_the_placeholders_of_the_original(self):
        with GERMAN.with_suffix(".mo").open("rb") as file:
            catalog = GNUTranslations(file)._catalog
        places = re.compile(r"\{\w+\}|%\(\w+\)s|</?\w+")

        for original, translated in catalog.items():
            if original:
                assert sorted(places.findall(original)) == sorted(places.findall(translated)), original

    @needs_gettext
    def test_every_text_is_translated_and_the_catalogs_are_compiled(self, tmp_path):
        copy = tmp_path / "example_project"
        shutil.copytree(PROJECT, copy, ignore=shutil.ignore_patterns("__pycache__", "*.mo"))
        command = [
            sys.executable,
            "-m",
            "django",
            "makemessages",
            "-l",
            "de",
            "--no-location",
            "--no-obsolete",
            "-v",
            "0",
        ]
        kept = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        subprocess.run(command, cwd=copy, env=kept, check=True)
        made, compiled = copy / "locale/de/LC_MESSAGES/django.po", tmp_path / "django.mo"
        subprocess.run(["msgfmt", "-o", compiled, made], check=True, stderr=subprocess.DEVNULL)

        missing = subprocess.run(
            ["msgattrib", "--untranslated", "--no-wrap", made], check=True, capture_output=True, text=True
        ).stdout
        assert re.findall(r'^msgid "(.+)"$', missing, re.MULTILINE) == []
        assert "fuzzy" not in made.read_text()
        with compiled.open("rb") as new, GERMAN.with_suffix(".mo").open("rb") as shipped:
            assert GNUTranslations(new)._catalog.items() - {("", "")} >= {
                each for each in GNUTranslations(shipped)._catalog.items() if each[0]
            }


class TestMemories:
    def test_a_chat_of_the_page_has_a_small_memory_and_named_conversations_a_large_one(self):
        assert type(get_chat_memory(UUID)) is SummarizingChatMemory
        assert get_chat_memory(UUID).window().limit == 240
        assert type(get_chat_memory("demo-bread")) is TokenWindowChatMemory
        assert get_chat_memory("demo-bread").window().limit == 4000

    def test_a_summary_drops_the_oldest_facts_until_it_fits(self):
        messages = [
            UserMessage(f"My animal{number} is called Something or other number {number}.") for number in range(30)
        ]

        summary = memories.summarize(None, messages)

        assert "animal29 = Something" in summary
        assert "animal0 =" not in summary
        estimator = llm.chat_model().estimator
        assert estimator.estimate_token_count_in_message(SystemMessage(summary)) <= 60

    def test_a_real_model_summarizes_in_its_own_words_and_is_recorded(self, monkeypatch, db):
        class Model(Parrot):
            def do_chat(self, request):
                self.asked = request.messages
                return ChatResponse(AiMessage("They met."))

        model = Model(llm.chat_model().estimator, pause=0)
        monkeypatch.setattr(memories, "IS_REAL", True)
        monkeypatch.setattr(memories, "model", model)

        assert memories.summarize("Before.", [UserMessage("Hello"), AiMessage("Hi")]) == "They met."
        assert "Before." in model.asked[0].text
        assert model.asked[1].single_text == "USER: Hello\nAI: Hi"
        assert ModelCall.objects.get().purpose == "summary"


class TestModel:
    def test_the_default_is_the_offline_model(self, monkeypatch):
        monkeypatch.setattr(llm, "IS_REAL", False)

        assert isinstance(llm.chat_model(), Parrot)

    def test_two_environment_variables_select_a_real_model(self, monkeypatch):
        monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
        monkeypatch.setattr(llm, "NAME", "some-model")
        monkeypatch.setattr(llm, "IS_REAL", True)

        model = llm.chat_model()

        assert type(model).__name__ == "OpenAiChatModel"
        assert model.model_name == "some-model"


class TestTools:
    def test_the_weather_names_the_city_and_fails_for_atlantis(self):
        assert "Bergen" in assistants.get_weather("Bergen")
        with pytest.raises(ToolError, match="Atlantis"):
            assistants.get_weather("Atlantis")

    def test_the_time_is_in_the_sites_time_zone(self, settings):
        assert re.fullmatch(r"It is \d\d:\d\d on \w+, \d\d \w+ \d{4} \(UTC\)\.", assistants.get_time())

    def test_a_sum_has_no_trailing_zeros(self):
        assert assistants.add([2, 3.5]) == "2 + 3.5 = 5.5"

    @pytest.mark.django_db
    def test_a_search_finds_evicted_messages_of_the_owners_conversation(self):
        ann, bob = (User.objects.create_user(name) for name in ("ann", "bob"))
        memory = get_chat_memory("c", owner=ann, max_tokens=30)
        memory.add(SystemMessage("secret name"), UserMessage("My name is Ada."), AiMessage("Noted: your name is Ada."))
        memory.add(UserMessage("Which name do I have, and what else do you know of it?"))
        get_chat_memory("d", owner=ann, max_tokens=3).add(UserMessage("another name that is too long"))
        assert Conversation.objects.get(memory_id="c").evicted().count() == 2

        found = assistants.search_conversation("name", ann, "c")

        assert sorted(found.split("\n")) == [
            "- message 2, you: My name is Ada.",
            "- message 3, I: Noted: your name is Ada.",
        ]
        assert assistants.search_conversation("name", bob, "c").startswith("No evicted message")

    @pytest.mark.django_db(transaction=True)
    def test_the_parrot_recalls_what_its_user_wrote_in_earlier_chats(self):
        ann, bob = (User.objects.create_user(name) for name in ("ann", "bob"))
        for memory_id, owner, tea in (("a", ann, "green tea"), ("b", bob, "black tea")):
            get_chat_memory(memory_id, owner=owner).add(UserMessage(f"I like {tea}."))

        answer = assistants.assistant.chat("c", "What did I tell you about tea in earlier chats?", owner=ann)
        german = assistants.assistant.chat("d", "Was habe ich dir über Kuchen erzählt?", owner=ann)

        assert answer.startswith("In earlier chats:")
        assert "you: “I like green tea.”" in answer
        assert "black" not in answer
        assert german.startswith("Nichts, was in früheren Chats gesagt wurde")

    def test_a_real_model_can_use_the_documented_tools(self, monkeypatch):
        monkeypatch.setattr(llm, "IS_REAL", True)
        try:
            names = list(importlib.reload(assistants).assistant.tools)
        finally:
            monkeypatch.undo()
            importlib.reload(assistants)

        assert names == ["get_time", "get_weather", "rename_conversation", "search_conversations", "read_conversation"]
        assert list(assistants.assistant.tools) == [*names, "add", "search_conversation"]


class TestRunserver:
    @pytest.mark.slow
    def test_it_streams_serves_static_files_and_ends_cleanly(self, tmp_path):
        manage(tmp_path, "demo", "--no-serve")
        with served(tmp_path) as address:
            connection = HTTPConnection(address.removeprefix("http://"), timeout=DEADLINE)
            connection.request("GET", "/static/chatmemory_page/page.js")
            script = connection.getresponse()
            assert (script.status, b"import" in script.read()) == (200, True)
            token = post(connection, "/api/token/", {"username": "demo", "password": "demo"})
            key = json.loads(token.read())["token"]
            asked = {"id": UUID, "message": {"role": "user", "parts": [{"type": "text", "text": "Count to 30"}]}}
            stream = post(connection, "/api/chat", asked, {"Authorization": f"Bearer {key}"})
            pieces = []
            while piece := stream.read1():
                pieces.append(piece)
            connection.close()

        assert b'"type":"start"' in pieces[0]
        assert len(pieces) > 5
        assert pieces[-1].endswith(b"data: [DONE]\n\n")

    @pytest.mark.slow
    def test_a_port_in_use_is_an_error(self, tmp_path):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            command = [sys.executable, "manage.py", "runserver", "--noreload", address]
            ended = subprocess.run(
                command, cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True, timeout=DEADLINE
            )

        assert ended.returncode == 1
        assert "That port is already in use" in ended.stderr

    @pytest.mark.slow
    def test_ctrl_c_ends_it_even_during_a_stream(self, tmp_path):
        manage(tmp_path, "demo", "--no-serve")
        with served(tmp_path, signal.SIGINT) as address:
            connection = HTTPConnection(address.removeprefix("http://"), timeout=DEADLINE)
            key = json.loads(post(connection, "/api/token/", {"username": "demo", "password": "demo"}).read())["token"]
            asked = {"id": UUID, "message": {"role": "user", "parts": [{"type": "text", "text": "Count to 999"}]}}
            stream = post(connection, "/api/chat", asked, {"Authorization": f"Bearer {key}"})
            assert stream.read1()
        connection.close()

        assert "Traceback" not in (tmp_path / "server.log").read_text()


def post(connection, path, body, headers=()):
    """Return the response to a POST of JSON."""
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **dict(headers)})
    return connection.getresponse()
