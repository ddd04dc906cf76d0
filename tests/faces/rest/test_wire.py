"""Limits, errors, throttles and numbers of statements: the same everywhere."""

import importlib
import importlib.util
import json
import logging
import re

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.core.signals import got_request_exception
from django.db import connection
from django.test import Client
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

import chatmemory_django.rest
from chatmemory_django.messages import AiMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation, Message, copies
from tests.database.test_models import PRIVATE
from tests.faces.rest.conftest import HI, MEMORY, MESSAGES, ROOT, USAGE, adding, paths, statements, text
from tests.logs import logged_by
from tests.quick import mostly_slow

pytestmark = pytest.mark.django_db


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def post(client, body: str | bytes, where: str = MESSAGES, content_type: str = "application/json"):
    return client.generic("POST", where, body, content_type=content_type)


def body(*messages: object) -> str:
    return json.dumps({"messages": [{"message": each} for each in messages]})


M = "$.messages[0].message"

HOSTILE = [
    ("{", "$"),
    ("", "$.messages"),
    ("[]", "$"),
    ("null", "$"),
    ('"x"', "$"),
    ("{}", "$.messages"),
    (b"\xff\xfe{}", "$"),
    ('{"messages": [NaN]}', "$"),
    ('{"messages": [1e999]}', "$"),
    ('{"messages": [-1e999]}', "$"),
    ('{"messages": ' + "9" * 5000 + "}", "$"),
    ("[" * 100_000, "$"),
    ('{"messages": "x"}', "$.messages"),
    ('{"messages": {}}', "$.messages"),
    ('{"messages": [[]]}', "$.messages[0]"),
    ('{"messages": [{}]}', M),
    ('{"messages": [{"message": null}]}', M),
    (body("x"), M),
    (body([]), M),
    (body({}), M),
    (body({"type": "USER"}), M),
    (body({"type": "user", "contents": []}), f"{M}.type"),
    (body({"type": 7}), f"{M}.type"),
    ('{"messages": [{"message": {"type": "AI", "text": "\\ud800"}}]}', "$"),
    (body({"type": "AI", "text": "\0"}), M),
    (body({"type": "AI", "text": "a", "attributes": {"\0": 1}}), M),
    (body({"type": "SYSTEM", "text": " "}), M),
    (body({"type": "USER", "contents": []}), M),
    (body(text(5)), f"{M}.contents[0].text"),
    (body({**HI, "colour": 1}), f"{M}.colour"),
    (body({"type": "USER", "contents": [{"type": "TEXT", "text": "a", "b": 1}]}), f"{M}.contents[0].b"),
    (body({"type": "AI", "toolExecutionRequests": [{"id": "1", "nome": "t"}]}), f"{M}.toolExecutionRequests[0].nome"),
    (json.dumps({**adding(HI), "colour": 1}), "$.colour"),
    (json.dumps(adding(HI, colour=1)), "$.messages[0].colour"),
    (json.dumps(adding(HI, metadata="m")), "$.messages[0].metadata"),
    (body({"type": "CUSTOM", "attributes": {"a": nested(40)}}), f"{M}.attributes.a" + "[0]" * 27),
]


class TestHostileBodies:
    @pytest.mark.parametrize(("hostile", "path"), HOSTILE)
    def test_are_refused_with_the_path_and_store_nothing(self, writer, begin, hostile, path):
        begin("c")

        response = post(writer, hostile)

        assert (response.status_code, paths(response)) == (400, [path])
        assert not Message.objects.exists()

    @pytest.mark.parametrize("where", [ROOT, MEMORY, f"{ROOT}c/", f"{MESSAGES}1/"])
    @pytest.mark.parametrize("hostile", mostly_slow([row[0] for row in HOSTILE if row[0] not in {"", "{}"}], one_in=3))
    def test_are_refused_at_every_path(self, client_of, begin, where, hostile):
        begin("c", UserMessage("hi"))
        before = Conversation.objects.values().get()
        verb = {ROOT: "POST", MEMORY: "PUT"}.get(where, "PATCH")

        response = client_of("owner who sets").generic(verb, where, hostile, content_type="application/json")

        assert response.status_code == 400
        assert Conversation.objects.values().get() == before
        assert Message.objects.count() == 1

    def test_have_all_their_errors_reported_at_once(self, writer, begin):
        begin("c")
        hostile = {
            "messages": [
                {"message": {"type": "X"}, "client_message_id": 5},
                {"message": HI},
                {"message": {"role": "x"}, "metadata": []},
                {},
            ],
            "colour": 1,
        }

        response = post(writer, json.dumps(hostile))

        assert sorted(paths(response)) == [
            "$.colour",
            "$.messages[0].client_message_id",
            "$.messages[0].message.type",
            "$.messages[2].message.role",
            "$.messages[2].metadata",
            "$.messages[3].message",
        ]
        assert {each["code"] for each in response.json()["errors"]} == {"invalid", "required", "unknown"}

    def test_are_not_repeated_in_errors_or_logs(self, writer, begin, caplog):
        caplog.set_level(logging.DEBUG)
        begin("c")

        for hostile in (
            {**text(PRIVATE), "colour": PRIVATE},
            {"type": "USER", "contents": PRIVATE},
            {"type": "AI", "toolExecutionRequests": [{"id": PRIVATE, "name": 5}]},
            {"role": "user", "content": [{"type": "text", "txt": PRIVATE}]},
            {"type": "CUSTOM", "attributes": {"a": PRIVATE + "\0"}},
        ):
            response = post(writer, body(hostile))

            assert response.status_code == 400
            assert PRIVATE not in response.content.decode() + caplog.text

    def test_with_countless_keys_get_short_responses(self, writer, begin):
        begin("c")

        response = post(writer, json.dumps({"k" * 100_000: 1, "messages": [{"message": {**HI, "m" * 100_000: 1}}]}))

        assert response.status_code == 400
        assert len(response.content) < 2_000

    @pytest.mark.parametrize("words", ["京都 😀", "\u202e\u2028\ufeff", "<script>", "'; DROP TABLE", "a" * 100_000])
    def test_exclude_unusual_but_valid_ones(self, api, begin, words):
        begin("c")

        assert post(api, body(text(words))).status_code == 201
        assert api.get(MESSAGES).json()["results"][0]["message"] == text(words)

    @pytest.mark.parametrize("number", [0.1, 1e308, -0.0, 2**63, 10**400, 1e-320])
    def test_exclude_everything_json_can_express(self, client_of, begin, number):
        begin("c")
        staff = client_of("staff with every permission")
        custom = {"type": "CUSTOM", "attributes": {"n": number}}

        assert post(staff, json.dumps(adding(custom, metadata={"n": number}))).status_code == 201
        assert staff.get(MESSAGES).json()["results"][0]["message"]["attributes"]["n"] == number


def several(*texts: str) -> dict:
    return {"type": "USER", "contents": [{"type": "TEXT", "text": each} for each in texts]}


class TestLimits:
    @pytest.fixture(autouse=True)
    def limits(self, settings) -> None:
        settings.CHATMEMORY["REST"].update(
            MAX_BODY_BYTES=2000, MAX_MESSAGES=3, MAX_TEXT_LENGTH=100, MAX_JSON_DEPTH=9, MAX_PAGE_SIZE=2, PAGE_SIZE=5,
            MAX_METADATA_BYTES=200,
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("given", "status", "path"),
        [
            (body(*[HI] * 3), 201, None),
            (body(*[HI] * 4), 400, "$.messages"),
            (body(text("x" * 100)), 201, None),
            (body(text("x" * 101)), 400, f"{M}.contents[0].text"),
            (body({"type": "AI", "thinking": "x" * 101}), 400, f"{M}.thinking"),
            (body(several("x" * 50, "x" * 50)), 201, None),
            (body(several("x" * 50, "x" * 51)), 400, M),
            (body({"type": "AI", "text": "x" * 60, "thinking": "x" * 41}), 400, M),
            (body({"type": "AI", "text": "x" * 60, "attributes": {"a": ["x" * 41]}}), 400, M),
            (body({"role": "user", "content": [{"type": "text", "text": "x" * 51}] * 2}), 400, M),
            (body(*[text("x" * 60)] * 3), 201, None),
            (body({"type": "USER", "contents": [{"type": "IMAGE", "image": {"base64Data": "A" * 1000}}]}), 201, None),
            (json.dumps(adding(HI, metadata={"a": ["x" * 90, "x" * 90]})), 201, None),
            (json.dumps(adding(HI, metadata={"a": ["x" * 95, "x" * 95]})), 400, "$.messages[0].metadata"),
            (json.dumps(adding(HI, metadata={"a": nested(5)})), 201, None),
            (json.dumps(adding(HI, metadata={"a": nested(6)})), 400, "$.messages[0].metadata.a" + "[0]" * 5),
            (" " * 2000, 400, "$"),
            (" " * 2001, 413, "$"),
        ],
    )
    def test_are_set_in_the_settings(self, writer, begin, given, status, path):
        begin("c")

        response = post(writer, given)

        assert response.status_code == status, response.content
        assert path is None or paths(response) == [path]

    def test_apply_to_metadata_of_conversations(self, api):
        statuses = [
            api.post(ROOT, {"metadata": {"a": ["x" * size] * 2}}, format="json").status_code for size in (90, 95)
        ]

        assert statuses == [201, 400]

    def test_of_a_message_are_the_stores(self, api, begin, settings):
        settings.CHATMEMORY["MAX_MESSAGE_BYTES"] = 10
        begin("c")

        response = post(api, body(HI, text("x" * 11)))

        assert (response.status_code, paths(response)) == (400, ["$.messages[1].message"])

    def test_of_pages(self, api, begin):
        begin("c", *[UserMessage("hi")] * 3)

        assert len(api.get(MESSAGES).json()["results"]) == 2
        assert api.get(MESSAGES, {"page_size": 3}).json()["errors"] == [
            {"path": "?page_size", "code": "invalid", "detail": "It must be a whole number from 1 to 2."}
        ]

    @pytest.mark.parametrize(
        "content_type", ["text/plain", "application/x-www-form-urlencoded", "application/jsonl", "multipart/form-data"]
    )
    def test_of_imports(self, api, begin, content_type):
        begin("c")

        response = post(api, "{}", content_type=content_type)

        assert response.status_code == 415
        assert response["Content-Type"] == "application/problem+json"

    @pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
    def test_of_imports_do_not_depend_on_spelling(self, api, begin, content_type):
        begin("c")

        assert post(api, body(HI), content_type=content_type).status_code == 201


class TestProblems:
    def test_of_the_query_are_reported_all_at_once(self, api):
        response = api.get(ROOT, {"colour": "red", "size": "x"})

        assert [(each["path"], each["code"]) for each in response.json()["errors"]] == [
            ("?colour", "unknown"),
            ("?size", "unknown"),
        ]

    def test_of_a_body_that_is_no_json_are_reported_once(self, api, begin):
        begin("c")
        problem = post(api, '{"messages": [').json()

        assert problem["detail"] == "The body is not valid JSON; see errors."
        assert problem["errors"] == [{"path": "$", "code": "parse_error", "detail": "Input data was truncated."}]

    @pytest.mark.parametrize("wrong", ['{"text": "hello"}', '{"messages": "hello"}', '{"role": "user"}', "[]", "{", ""])
    def test_of_a_wrong_body_come_with_a_right_one(self, api, begin, wrong):
        begin("c")
        problem = post(api, wrong).json()
        [shown] = problem["example"]["messages"]

        assert shown["message"] == {"role": "user", "content": "Where is my parcel?"}
        assert post(api, json.dumps(problem["example"])).status_code == 201

    def test_of_another_wrong_body_come_with_its_own_example(self, api, begin):
        begin("c")
        refused = [
            api.post(ROOT, {"memory_id": 7}, format="json"),
            api.patch(f"{ROOT}c/", {"owner": "me"}, format="json"),
            api.post(f"{MEMORY}rewind/", {"from": 1}, format="json"),
            api.post(f"{ROOT}c/fork/", {"through": "x"}, format="json"),
        ]

        assert [each.status_code for each in refused] == [400] * 4
        assert [set(each.json()["example"]) for each in refused] == [
            {"memory_id", "title"},
            {"title", "metadata", "is_pinned"},
            {"to"},
            {"through"},
        ]

    def test_of_the_query_have_no_example_of_a_body(self, api, begin):
        begin("c")

        assert "example" not in post(api, body(HI), f"{MESSAGES}?as=xml").json()

    def test_have_one_shape(self, api, client_of, begin):
        begin("c")
        api.post(MESSAGES, adding(HI), format="json", headers={"Idempotency-Key": "k"})
        responses = {
            "not_authenticated": client_of("anonymous").get(ROOT),
            "not_found": api.get(f"{ROOT}nowhere/"),
            "method_not_allowed": api.put(ROOT),
            "parse_error": post(api, "{"),
            "invalid": post(api, "{}"),
            "unsupported_media_type": post(api, "x", content_type="text/plain"),
            "precondition_failed": api.delete(f"{ROOT}c/", headers={"If-Match": '"x"'}),
            "permission_denied": api.put(MEMORY, adding(HI), format="json"),
            "forbidden_type": post(api, body({"type": "AI", "text": "x"})),
            "exists": client_of("staff").post(ROOT, {"memory_id": "c"}, format="json"),
            "key_reused": api.post(MESSAGES, adding(text("x")), format="json", headers={"Idempotency-Key": "k"}),
        }

        for code, response in responses.items():
            problem = response.json()
            assert response["Content-Type"] == "application/problem+json"
            assert problem["type"] == f"urn:chatmemory:{code}"
            assert problem["status"] == response.status_code
            assert problem["title"]
            assert problem["detail"]
            has_example = code in {"parse_error", "invalid"}  # the body was wrong
            assert set(problem) == {"type", "title", "status", "detail", "errors"} | (
                {"example"} if has_example else set()
            )
            assert all(set(each) == {"path", "code", "detail"} for each in problem["errors"])
        assert [each.status_code for each in responses.values()] == [
            401,
            404,
            405,
            400,
            400,
            415,
            412,
            403,
            403,
            409,
            422,
        ]

    def test_of_unexpected_errors_reveal_no_details(self, begin, person, monkeypatch, caplog):
        begin("c", UserMessage(PRIVATE))
        client = APIClient(raise_request_exception=False)
        client.force_authenticate(person("owner"))
        sent = []

        def fail(*args: object) -> None:
            raise ValueError(PRIVATE)

        def note(**kwargs: object) -> None:
            sent.append(kwargs["request"].path)

        monkeypatch.setattr(Conversation, "read", fail)
        got_request_exception.connect(note)
        try:
            response = client.get(MEMORY)
        finally:
            got_request_exception.disconnect(note)

        assert (response.status_code, response["Content-Type"]) == (500, "application/problem+json")
        assert response.json()["type"] == "urn:chatmemory:error"
        assert PRIVATE not in response.content.decode()
        [record] = logged_by(caplog, "django.request")
        assert record.getMessage() == f"Internal Server Error: {MEMORY}"
        assert record.exc_info
        assert sent == [MEMORY]

    def test_of_unexpected_errors_leave_no_partial_write(self, begin, person, monkeypatch):
        begin("c")
        client = APIClient(raise_request_exception=False)
        client.force_authenticate(person("owner"))
        monkeypatch.setattr(Conversation, "refresh_from_db", lambda *args, **kwargs: 1 / 0)

        assert client.post(MESSAGES, adding(HI), format="json").status_code == 500
        assert not Message.objects.exists()

    def test_of_unexpected_errors_are_djangos_page_with_debug(self, begin, person, monkeypatch, settings):
        settings.DEBUG = True
        begin("c")
        client = APIClient(raise_request_exception=False)
        client.force_authenticate(person("owner"))
        monkeypatch.setattr(Conversation, "read", lambda *args: 1 / 0)

        response = client.get(MEMORY, headers={"Accept": "text/html"})

        assert response.status_code == 500
        assert response["Content-Type"].startswith("text/html")
        assert b"ZeroDivisionError" in response.content


class TestThrottles:
    @pytest.fixture(autouse=True)
    def rates(self, settings) -> None:
        settings.CHATMEMORY["REST"]["THROTTLE_RATES"] = {"read": "2/min", "write": "1/min", "export": "1/min"}
        cache.clear()

    def test_count_reading_writing_and_exporting_separately(self, api, begin):
        begin("c", UserMessage("hi"))
        requests = [
            *[lambda: api.get(ROOT)] * 3,
            *[lambda: api.post(ROOT)] * 2,
            *[lambda: api.get(f"{ROOT}c/export/")] * 2,
        ]

        assert [request().status_code for request in requests] == [200, 200, 429, 201, 429, 200, 429]
        refused = api.get(ROOT)
        assert 0 < int(refused["Retry-After"]) <= 60
        assert refused.json()["type"] == "urn:chatmemory:throttled"
        assert Conversation.objects.count() == 2

    def test_count_each_user_separately(self, api, client_of):
        assert [api.get(ROOT).status_code for _ in range(3)][-1] == 429
        assert client_of("other").get(ROOT).status_code == 200


MAY = 2
"""The statements that read a regular user's permissions: the user's own, and those of the groups."""


class TestStatements:
    """Their number is the same for any size. Authentication takes one more by token, and two more by session."""

    @pytest.fixture(params=[1, 300])
    def conversation(self, request, begin) -> Conversation:
        begin("c", SystemMessage("be brief"), *[UserMessage("hi")] * request.param)
        for number in range(request.param // 10):
            begin(f"c{number}", AiMessage("hello"))
        return Conversation.objects.get(memory_id="c")

    @pytest.mark.parametrize(
        ("verb", "where", "body", "count"),
        [
            ("get", ROOT, None, 2),
            ("get", f"{ROOT}?search=hello", None, 2),
            ("get", f"{ROOT}?ordering=-is_pinned&metadata=a:b", None, 1),
            ("post", ROOT, {}, 2),
            ("get", f"{ROOT}c/", None, 2),
            ("patch", f"{ROOT}c/", {"title": "new"}, 3),
            ("patch", f"{ROOT}c/", {}, 2),
            ("get", MESSAGES, None, 3),
            ("get", f"{MESSAGES}?after=0&type=USER&as=openai", None, 3),
            ("get", f"{MESSAGES}?search=hi", None, 3),
            ("get", f"{MESSAGES}2/", None, 2),
            ("patch", f"{MESSAGES}2/", {"metadata": {"feedback": 1}}, 14),
            ("post", MESSAGES, adding(HI), 6 + MAY),
            ("post", MESSAGES, adding(HI, client_message_id="msg_1"), 8 + MAY),
            ("get", MEMORY, None, 2),
            ("get", f"{MEMORY}?max_messages=1", None, 2),
            ("get", f"{MEMORY}?explain=1", None, 3),
            ("put", MEMORY, adding(HI), 6 + MAY),
            ("delete", MEMORY, None, 5),
            ("get", USAGE, None, 1),
        ],
    )
    def test_are_few(self, client_of, conversation, verb, where, body, count, monkeypatch):
        monkeypatch.setattr(copies, "_holds", [])  # an app that the example site does not have
        client_of("owner who sets")
        client = APIClient()
        client.force_authenticate(User.objects.get(username="owner"))  # without cached permissions

        with statements() as run:
            response = getattr(client, verb)(where, body, format="json")

        assert response.status_code < 300
        assert len(run) <= count, run

    @pytest.mark.parametrize(("how", "count"), [("token", 3), ("session", 4)])
    def test_with_authentication(self, conversation, how, count):
        owner = User.objects.get(username="owner")
        client = Client()
        if how == "session":
            client.force_login(owner)
        else:
            client = Client(headers={"Authorization": f"Token {Token.objects.create(user=owner).key}"})

        with statements() as run:
            assert client.get(ROOT).status_code == 200

        assert len(run) == count, run


@pytest.mark.parametrize("first", [[], [SystemMessage("be brief")]], ids=["plain", "pinned"])
@pytest.mark.skipif(connection.vendor != "sqlite", reason="Each database explains itself in words of its own")
@pytest.mark.parametrize(
    "where",
    [MESSAGES, f"{MESSAGES}?after=100", f"{MESSAGES}?before=100&ordering=sequence", f"{MESSAGES}?in_memory=true",
     f"{MESSAGES}250/", MEMORY, f"{MEMORY}?explain=1", f"{ROOT}c/"],
)  # fmt: skip
def test_reading_does_not_grow_with_the_history(api, begin, where, first):
    """No statement reads a whole table or conversation: each walks the primary key as far as it needs to."""
    begin("c", *first, *[UserMessage("hi")] * 300)
    run = []

    def note(execute, sql, params, *rest):
        if sql.startswith("SELECT"):
            run.append((sql, params))
        return execute(sql, params, *rest)

    with connection.execute_wrapper(note):
        assert api.get(where).status_code == 200

    assert run
    with connection.cursor() as cursor:
        for sql, params in run:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
            plan = " ".join(str(row[-1]) for row in cursor.fetchall())
            assert "SCAN chatmemory" not in plan, (sql, plan)
            assert "LIST SUBQUERY" not in plan, (sql, plan)
            assert "TEMP B-TREE" not in plan or "(conversation_id=?)" not in plan, (sql, plan)


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ImportError, match=re.escape("pip install 'chatmemory_django[rest]'")):
        importlib.reload(chatmemory_django.rest)
