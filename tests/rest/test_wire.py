"""Bounds, errors, throttles and budgets: the same everywhere."""

import importlib
import importlib.util
import json
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.db import connection
from django.test import Client
from rest_framework.authtoken.models import Token

import chatmemory_django.rest
from chatmemory_django.messages import AiMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from tests.rest.conftest import ROOT
from tests.test_models import PRIVATE

pytestmark = pytest.mark.django_db

MESSAGES = f"{ROOT}c/messages/"
HI = {"type": "USER", "contents": [{"type": "TEXT", "text": "hi"}]}


def user(text: object) -> dict:
    return {"type": "USER", "contents": [{"type": "TEXT", "text": text}]}


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def post(api, body: str | bytes, where: str = MESSAGES, content_type: str = "application/json"):
    return api.generic("POST", where, body, content_type=content_type)


HOSTILE = [
    ("{", "$"),
    ("", "$"),
    ("[]", "$"),
    ("null", "$"),
    ('"x"', "$"),
    ("{}", "$"),
    (b"\xff\xfe{}", "$"),
    ('{"messages": [NaN]}', "$"),
    ('{"messages": [1e999]}', "$"),
    ('{"messages": [-1e999]}', "$"),
    ('{"messages": ' + "9" * 5000 + "}", "$"),
    ("[" * 100_000, "$"),
    ('{"messages": "x"}', "$.messages"),
    ('{"messages": [[]]}', "$.messages[0]"),
    ('{"messages": [{"type": "USER"}]}', "$.messages[0]"),
    ('{"messages": [{"type": "user", "contents": []}]}', "$.messages[0].type"),
    ('{"messages": [{"type": 7}]}', "$.messages[0].type"),
    ('{"messages": [{"type": "AI", "text": "\\ud800"}]}', "$"),
    ('{"messages": [{"type": "AI", "text": "\\u0000"}]}', "$.messages[0].text"),
    ('{"messages": [{"type": "AI", "text": "a", "attributes": {"\\u0000": 1}}]}', "$.messages[0].attributes"),
    ('{"messages": [{"type": "SYSTEM", "text": " "}]}', "$.messages[0]"),
    (json.dumps({"messages": [{"type": "USER", "contents": []}]}), "$.messages[0]"),
    (json.dumps({"messages": [user(5)]}), "$.messages[0].contents[0].text"),
    (json.dumps({"messages": [HI, {**HI, "colour": 1}]}), "$.messages[1].colour"),
    (
        json.dumps({"messages": [{"type": "USER", "contents": [{"type": "TEXT", "text": "a", "b": 1}]}]}),
        "$.messages[0].contents[0].b",
    ),
    (
        json.dumps({"messages": [{"type": "AI", "toolExecutionRequests": [{"id": "1", "nome": "t"}]}]}),
        "$.messages[0].toolExecutionRequests[0].nome",
    ),
    (json.dumps({"messages": [HI], "colour": 1}), "$"),
    (json.dumps({"messages": [HI], "metadata": "m"}), "$.metadata"),
    (
        json.dumps({"messages": [{"type": "CUSTOM", "attributes": {"a": nested(40)}}]}),
        "$.messages[0].attributes.a" + "[0]" * 28,
    ),
]


class TestHostileBodies:
    @pytest.mark.parametrize(("body", "path"), HOSTILE)
    def test_are_refused_with_the_path_and_store_nothing(self, api, begin, body, path):
        begin("c")

        answer = post(api, body)

        assert answer.status_code == 400
        assert [each["path"] for each in answer.json()["errors"]] == [path]
        assert not Message.objects.exists()

    @pytest.mark.parametrize("where", [ROOT, f"{ROOT}c/memory/", f"{ROOT}c/"])
    @pytest.mark.parametrize("body", [row[0] for row in HOSTILE if row[0] != ""])
    def test_are_refused_wherever_they_are_sent(self, api, begin, where, body):
        begin("c", UserMessage("hi"))
        verb = {ROOT: "POST", f"{ROOT}c/memory/": "PUT", f"{ROOT}c/": "PATCH"}[where]
        if body == "{}" and verb != "PUT":
            return  # nothing is what may be said there

        answer = api.generic(verb, where, body, content_type="application/json")

        assert answer.status_code == 400
        assert Conversation.objects.count() == Message.objects.count() == 1

    def test_are_not_told_again_in_errors_or_logs(self, api, begin, caplog):
        caplog.set_level(logging.DEBUG)
        begin("c")
        said = [{**user(PRIVATE), "colour": PRIVATE}]

        answer = api.post(MESSAGES, {"messages": said}, format="json")

        assert answer.status_code == 400
        assert PRIVATE not in answer.content.decode() + caplog.text

    @pytest.mark.parametrize("text", ["京都 😀", "\u202e\u2028\ufeff", "<script>", "'; DROP TABLE", "a" * 100_000])
    def test_are_not_what_is_merely_unusual(self, api, begin, text):
        begin("c")

        assert api.post(MESSAGES, {"messages": [user(text)]}, format="json").status_code == 201
        assert api.get(MESSAGES).json()["results"][0]["contents"][0]["text"] == text

    @pytest.mark.parametrize("number", [0.1, 1e308, -0.0, 2**63, 10**400, 1e-320])
    def test_are_not_what_json_can_say(self, api, begin, number):
        begin("c")
        said = {"type": "CUSTOM", "attributes": {"n": number}}

        assert api.post(MESSAGES, {"messages": [said], "metadata": {"n": number}}, format="json").status_code == 201
        assert api.get(MESSAGES).json()["results"][0]["attributes"]["n"] == number


class TestBounds:
    @pytest.fixture(autouse=True)
    def limits(self, settings) -> None:
        settings.CHATMEMORY["REST"].update(
            MAX_BODY_BYTES=2000, MAX_MESSAGES=3, MAX_TEXT_LENGTH=100, MAX_JSON_DEPTH=8, MAX_PAGE_SIZE=2, PAGE_SIZE=5
        )

    @pytest.mark.parametrize(
        ("body", "status", "path"),
        [
            (json.dumps({"messages": [HI] * 3}), 201, None),
            (json.dumps({"messages": [HI] * 4}), 400, "$.messages"),
            (json.dumps({"messages": [user("x" * 100)]}), 201, None),
            (json.dumps({"messages": [user("x" * 101)]}), 400, "$.messages[0].contents[0].text"),
            (json.dumps({"messages": [{"type": "AI", "thinking": "x" * 101}]}), 400, "$.messages[0].thinking"),
            (
                json.dumps(
                    {
                        "messages": [
                            {
                                "type": "USER",
                                "contents": [{"type": "IMAGE", "image": {"base64Data": "A" * 1000}}],
                            }
                        ]
                    }
                ),
                201,
                None,
            ),
            (json.dumps({"messages": [], "metadata": {"a": nested(6)}}), 201, None),
            (json.dumps({"messages": [], "metadata": {"a": nested(7)}}), 400, "$.metadata.a" + "[0]" * 6),
            (" " * 2000, 400, "$"),
            (" " * 2001, 413, "$"),
        ],
    )
    def test_are_those_of_the_settings(self, api, begin, body, status, path):
        begin("c")

        answer = post(api, body)

        assert answer.status_code == status, answer.content
        assert [each["path"] for each in answer.json().get("errors", [])] == ([] if path is None else [path])

    def test_of_a_message_are_those_of_the_store(self, api, begin, settings):
        settings.CHATMEMORY["MAX_MESSAGE_BYTES"] = 10
        begin("c")

        answer = post(api, json.dumps({"messages": [HI, user("x" * 11)]}))

        assert answer.status_code == 400
        assert answer.json()["errors"][0]["path"] == "$.messages[1]"

    def test_of_pages(self, api, begin):
        begin("c", *[UserMessage("hi")] * 3)

        assert len(api.get(MESSAGES).json()["results"]) == 2
        assert api.get(MESSAGES, {"limit": 3}).json()["errors"] == [
            {"path": "?limit", "detail": "It is 3, but may be 2 at most."}
        ]

    @pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "application/jsonl"])
    def test_of_what_is_taken(self, api, begin, content_type):
        begin("c")

        answer = post(api, "{}", content_type=content_type)

        assert answer.status_code == 415
        assert answer["Content-Type"] == "application/problem+json"


class TestProblems:
    def test_have_one_shape(self, api, client_of, begin):
        begin("c")
        answers = [
            client_of("anonymous").get(ROOT),
            api.get(f"{ROOT}nowhere/"),
            api.get(f"{ROOT}c/messages/7/"),
            api.put(ROOT),
            post(api, "{"),
            post(api, "x", content_type="text/plain"),
            api.delete(f"{ROOT}c/", headers={"If-Match": '"x"'}),
        ]

        for answer in answers:
            problem = answer.json()
            assert answer["Content-Type"] == "application/problem+json"
            assert problem["type"] == "about:blank"
            assert problem["status"] == answer.status_code
            assert problem["title"]
            assert problem["detail"]
            assert set(problem) <= {"type", "title", "status", "detail", "errors"}
        assert [each.status_code for each in answers] == [401, 404, 404, 405, 400, 415, 412]

    def test_of_the_server_are_not_hidden(self, api, begin, monkeypatch):
        begin("c")
        monkeypatch.setattr("chatmemory_django.rest.memories.read", lambda *args: 1 / 0)

        with pytest.raises(ZeroDivisionError):
            api.get(f"{ROOT}c/memory/")


class TestThrottles:
    @pytest.fixture(autouse=True)
    def rates(self, settings) -> None:
        settings.CHATMEMORY["REST"]["THROTTLE_RATES"] = {"read": "2/min", "write": "1/min", "export": "1/min"}
        cache.clear()

    def test_count_reading_writing_and_exporting_apart(self, api, begin):
        begin("c")
        requests = [
            *[lambda: api.get(ROOT)] * 3,
            *[lambda: api.post(ROOT)] * 2,
            *[lambda: api.get(f"{ROOT}c/export/")] * 2,
        ]

        assert [request().status_code for request in requests] == [200, 200, 429, 201, 429, 200, 429]
        assert int(api.get(ROOT)["Retry-After"]) <= 60
        assert Conversation.objects.count() == 2

    def test_count_everybody_apart(self, api, client_of):
        assert [api.get(ROOT).status_code for _ in range(3)][-1] == 429
        assert client_of("other").get(ROOT).status_code == 200


@contextmanager
def statements() -> Iterator[list[str]]:
    """The statements that are run, without the savepoints that stand for transactions in a test."""
    run: list[str] = []

    def note(execute, sql, *rest):
        if "SAVEPOINT" not in sql:
            run.append(sql)
        return execute(sql, *rest)

    with connection.execute_wrapper(note):
        yield run


class TestStatements:
    """How many there are, whatever the size. To know who asks takes one more by token, and two more by session."""

    @pytest.fixture(params=[1, 300])
    def conversation(self, request, begin) -> Conversation:
        begin("c", SystemMessage("be brief"), *[UserMessage("hi")] * request.param)
        for number in range(request.param // 10):
            begin(f"c{number}", AiMessage("hello"))
        return Conversation.objects.get(memory_id="c")

    @pytest.mark.parametrize(
        ("verb", "where", "body", "count"),
        [
            ("get", ROOT, None, 1),
            ("get", f"{ROOT}?search=hello&title=", None, 1),
            ("get", f"{ROOT}c/", None, 1),
            ("patch", f"{ROOT}c/", {"title": "new"}, 3),
            ("get", MESSAGES, None, 2),
            ("get", f"{MESSAGES}?after=0&type=USER&as=openai", None, 2),
            ("get", f"{MESSAGES}1/", None, 2),
            ("post", MESSAGES, {"messages": [HI]}, 5),
            ("post", MESSAGES, {"messages": [HI, HI], "client_message_ids": ["msg_1", None]}, 6),
            ("get", f"{ROOT}c/memory/", None, 2),
            ("get", f"{ROOT}c/memory/?max_messages=1", None, 2),
            ("get", f"{ROOT}c/memory/?explain=1", None, 3),
            ("put", f"{ROOT}c/memory/", {"messages": [HI]}, 6),
            ("delete", f"{ROOT}c/memory/", None, 3),
            ("get", "/api/usage/", None, 1),
        ],
    )
    def test_are_as_few(self, api, conversation, verb, where, body, count):
        with statements() as run:
            answer = getattr(api, verb)(where, body, format="json")

        assert answer.status_code < 300
        assert len(run) <= count, run

    @pytest.mark.parametrize(("how", "count"), [("token", 2), ("session", 3)])
    def test_with_signing_in(self, conversation, how, count):
        owner = User.objects.get(username="owner")
        client = Client()
        if how == "session":
            client.force_login(owner)
        else:
            client = Client(headers={"Authorization": f"Token {Token.objects.create(user=owner).key}"})

        with statements() as run:
            assert client.get(ROOT).status_code == 200

        assert len(run) == count, run


def test_time_does_not_grow_with_the_history(api, begin, settings):
    """A hundred times the history takes less than twice the time, and a little."""
    settings.CHATMEMORY["MEMORY"]["OPTIONS"] = {"max_messages": 20}
    for name, count in (("small", 200), ("large", 20_000)):
        begin(name)
        memory = get_chat_memory(name)
        for _ in range(count // 1000 or 1):
            memory.add(*[UserMessage("hi there")] * min(count, 1000))
    requests = [
        lambda name: api.get(f"{ROOT}{name}/messages/"),
        lambda name: api.get(f"{ROOT}{name}/messages/?type=CUSTOM"),
        lambda name: api.get(f"{ROOT}{name}/messages/?in_memory=true"),
        lambda name: api.get(f"{ROOT}{name}/messages/?after=100"),
        lambda name: api.get(f"{ROOT}{name}/memory/?explain=1"),
        lambda name: api.post(f"{ROOT}{name}/messages/", {"messages": [HI]}, format="json"),
    ]
    for request in requests:
        took = {}
        for name in ("small", "large"):
            request(name)
            times = []
            for _ in range(5):
                begun = time.perf_counter()
                assert request(name).status_code < 300
                times.append(time.perf_counter() - begun)
            took[name] = min(times)

        assert took["large"] < 2 * took["small"] + 0.02


def test_without_what_it_needs_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ImportError, match=re.escape("pip install 'chatmemory_django[rest]'")):
        importlib.reload(chatmemory_django.rest)
