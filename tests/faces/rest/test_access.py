"""Access: every path, every verb, every kind of user."""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from django.urls import resolve
from rest_framework.authentication import SessionAuthentication, TokenAuthentication
from rest_framework.authtoken.models import Token
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.test import APIClient

from chatmemory_django.access import AccessPolicy
from chatmemory_django.chat.approvals.rest import DECISION
from chatmemory_django.chat.models import ModelCall
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.operations.jsonl import export_lines
from chatmemory_django.rest import urls
from chatmemory_django.rest.problems import handle_exception
from chatmemory_django.rest.views import ChatMemoryView
from tests.faces.rest.conftest import ANSWER, HI, MESSAGES, PEOPLE, ROOT, adding, memory_ids

U1, U2 = UserMessage("one"), UserMessage("two")

EVERYBODY = set(PEOPLE)
OWNER = {name for name in PEOPLE if name.startswith("owner")}
ALL = {"staff with every permission"}
SEE = OWNER | ALL | {name for name in PEOPLE if name.startswith("staff who")} - {"staff who delete unseen"}
CHANGE = OWNER | ALL | {"staff who change"}
CLEAR = OWNER | ALL | {"staff who clear"}
APPROVE = OWNER | ALL | {"staff who approve"}
FORK = OWNER | ALL | {"staff who fork"}
WRITE = OWNER | ALL | {"staff who write"}
WRITE_ALL = {name for name in OWNER if name.endswith("writes")} | {"staff who write"} | ALL
SET = {name for name in OWNER if "sets" in name} | {"staff who set"} | ALL
IMPORT = {name for name in OWNER if "imports" in name} | ALL
REMOVE = ALL | {"owner who removes", "staff who remove"}
DELETE = OWNER | ALL | {"staff who delete"}
EXPORT = OWNER | ALL | {"staff who export"}
ODD = {"other with every permission"}

# Path, verb, body, and the users who get each status; all others get 404.
MATRIX = [
    ("", "get", None, {200: EVERYBODY}),
    ("messages/?search=one", "get", None, {200: EVERYBODY}),
    ("conversations/c/approvals/", "get", None, {200: OWNER | ALL, 403: SEE - OWNER - ALL}),
    ("conversations/c/approvals/", "post", DECISION, {409: APPROVE, 403: SEE - APPROVE}),  # it does not wait
    ("conversations/", "get", None, {200: EVERYBODY}),
    ("conversations/", "post", {}, {201: EVERYBODY}),
    ("conversations/?title=nothing", "delete", None, {200: EVERYBODY}),
    ("conversations/c/", "get", None, {200: SEE}),
    ("conversations/c/", "patch", {"title": "new"}, {200: CHANGE, 403: SEE - CHANGE}),
    ("conversations/c/", "delete", None, {204: DELETE, 403: SEE - DELETE}),
    ("conversations/c/messages/", "get", None, {200: SEE}),
    ("conversations/c/messages/", "post", adding(HI), {201: WRITE, 403: SEE - WRITE}),
    (
        "conversations/c/messages/", "post", adding(ANSWER),
        {201: WRITE_ALL, 403: EVERYBODY - WRITE_ALL - ODD},
    ),
    ("conversations/c/messages/1/", "get", None, {200: SEE}),
    ("conversations/c/messages/1/", "patch", {"metadata": {"feedback": 1}}, {200: OWNER | ALL, 403: SEE - OWNER - ALL}),
    ("conversations/c/messages/1/", "delete", None, {200: REMOVE, 403: SEE - REMOVE}),
    ("conversations/c/messages/1/alternatives/", "get", None, {200: SEE}),
    ("conversations/c/messages/1/pin/", "post", None, {200: CHANGE, 403: SEE - CHANGE}),
    ("conversations/c/messages/1/pin/", "delete", None, {200: CHANGE, 403: SEE - CHANGE}),
    ("conversations/c/messages/1/media/0/", "get", None, {}),
    ("conversations/c/memory/", "get", None, {200: SEE}),
    (
        "conversations/c/memory/", "put", adding(HI),
        {200: SET, 403: EVERYBODY - SET - ODD},
    ),
    ("conversations/c/memory/", "delete", None, {204: CLEAR, 403: SEE - CLEAR}),
    ("conversations/c/memory/rewind/", "post", {"to": 1}, {200: CHANGE, 403: SEE - CHANGE}),
    ("conversations/c/memory/switch/", "post", {"to": 1}, {200: CHANGE, 403: SEE - CHANGE}),
    ("conversations/c/fork/", "post", {}, {201: FORK, 403: SEE - FORK}),
    ("conversations/c/memory/pop/", "post", None, {200: REMOVE, 403: SEE - REMOVE}),
    ("conversations/c/export/", "get", None, {200: EXPORT, 403: SEE - EXPORT}),
    (
        "import/", "post", "lines",
        {201: IMPORT | ODD, 403: EVERYBODY - IMPORT - ODD},
    ),
    ("usage/", "get", None, {200: EVERYBODY}),
    ("storage/", "get", None, {200: EVERYBODY}),
    ("queue/", "get", None, {200: SEE - OWNER, 403: EVERYBODY - SEE | OWNER}),
    ("conversations/c/person/", "put", {}, {200: ALL, 403: SEE - ALL}),
    ("conversations/c/person/", "delete", None, {200: ALL, 403: SEE - ALL}),
    ("conversations/c/answers/", "post", {"text": "Yes."}, {201: ALL, 403: SEE - ALL}),
    ("conversations/c/approvals/0/person/", "put", None, {}),  # there is none
    ("conversations/c/approvals/0/person/", "delete", None, {}),
]  # fmt: skip
VERBS = ("get", "post", "put", "patch", "delete", "trace")
PATHS = sorted({row[0].partition("?")[0] for row in MATRIX})


@pytest.fixture
def conversation(begin) -> Conversation:
    return begin("c", U1, U2)


@contextmanager
def undone() -> Iterator[None]:
    """Undo what the block writes."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def send(client: APIClient, verb: str, where: str, body: object):
    """Send a request, and read its response to the end."""
    if body == "lines":
        lines = "".join(export_lines(Conversation.objects.filter(memory_id="c")))
        head, *rest = lines.splitlines(keepends=True)
        copy = json.dumps({**json.loads(head), "memory_id": str(uuid.uuid4())}) + "\n" + "".join(rest)
        return client.post(f"/api/{where}", copy, content_type="application/jsonl")
    response = getattr(client, verb)(f"/api/{where}", body, format="json")
    if response.streaming:
        b"".join(response.streaming_content)
    return response


def everything() -> list:
    return [
        list(Conversation.objects.order_by("pk").values()),
        [list(each.messages.values()) for each in Conversation.objects.order_by("pk")],
    ]


def is_problem(response, status: int) -> bool:
    return response["Content-Type"] == "application/problem+json" and response.json()["status"] == status


class TestAccessMatrix:
    @pytest.mark.parametrize("name", ["anonymous", *PEOPLE])
    def test_each_user_gets_the_expected_status(self, conversation, client_of, name):
        client, before = client_of(name), everything()
        found, expected, wrong = {}, {}, []
        for number, (where, verb, body, statuses) in enumerate(MATRIX):
            cell = f"{number}: {verb} {where}"
            status = next((status for status, who in statuses.items() if name in who), 404)
            expected[cell] = 401 if name == "anonymous" else status
            with undone():
                response = send(client, verb, where, body)
                found[cell] = response.status_code
                if response.status_code >= 300 and not (
                    is_problem(response, response.status_code) and everything() == before
                ):
                    wrong.append(cell)

        assert found == expected
        assert wrong == []

    def test_paths_without_the_slash_are_equal(self, conversation, client_of):
        client, found = client_of("staff with every permission"), {}
        for number, (where, verb, body, _) in enumerate(MATRIX):
            path, mark, query = where.partition("?")
            with undone():
                response = send(client, verb, f"{path.rstrip('/')}{mark}{query}", body)
            found[f"{number}: {verb} {where}"] = response.status_code

        assert found == {
            f"{number}: {verb} {where}": next(iter(statuses), 404)
            for number, (where, verb, _, statuses) in enumerate(MATRIX)
        }

    @pytest.mark.parametrize("slash", ["/", ""])
    @pytest.mark.parametrize("name", ["anonymous", "other", "owner", "staff with every permission"])
    def test_other_verbs_are_refused(self, conversation, client_of, name, slash):
        client = client_of(name)
        for where in PATHS:
            allowed = {row[1] for row in MATRIX if row[0].partition("?")[0] == where}
            for verb in set(VERBS) - allowed:
                path = f"/api/{where.rstrip('/')}{slash}" if where else "/api/"
                response = client.generic(verb.upper(), path, "{}", "application/json")

                assert is_problem(response, 401 if name == "anonymous" else 405), (verb, where)
                assert name == "anonymous" or set(response["Allow"].lower().split(", ")) == {
                    *allowed, "options", *({"head"} if "get" in allowed else ()),
                }  # fmt: skip

    @pytest.mark.parametrize("where", PATHS)
    def test_head_is_get_without_a_body(self, conversation, client_of, where):
        for name in ("anonymous", "owner", "other"):
            get, head = (getattr(client_of(name), verb)(f"/api/{where}") for verb in ("get", "head"))
            for response in (get, head):
                if hasattr(response, "streaming_content"):
                    b"".join(response.streaming_content)

            assert head.status_code == get.status_code
            assert head.get("ETag") == get.get("ETag")
            assert head.streaming or head.content == b""

    @pytest.mark.parametrize("where", PATHS)
    def test_options_describe_the_api_and_reveal_no_data(self, conversation, client_of, where):
        assert client_of("anonymous").options(f"/api/{where}").status_code == 401
        there, hidden = (client_of(name).options(f"/api/{where}") for name in ("owner", "other"))

        assert there.status_code == 200
        assert there.content == hidden.content

    def test_every_path_of_the_api_is_tested(self):
        tested = {resolve(f"/api/{path}").url_name for path in PATHS}

        assert tested == {pattern.name for pattern in urls.urlpatterns}

    def test_a_memory_id_can_equal_a_path_of_the_api(self, begin, api):
        for memory_id in ("import", "usage", "messages", "memory"):
            begin(memory_id, U1)

            assert api.get(f"{ROOT}{memory_id}/").json()["memory_id"] == memory_id
            assert api.get(f"{ROOT}{memory_id}/messages").json()["results"][0]["sequence"] == 1


class TestVisibility:
    def test_a_list_has_the_users_own_conversations(self, conversation, client_of):
        seen = {name for name in PEOPLE if memory_ids(client_of(name).get(ROOT))}

        assert seen == OWNER

    def test_staff_see_other_users_conversations_on_request(self, conversation, client_of, person):
        owner = person("owner").pk
        for asked in (owner, "*"):
            seen = {name for name in PEOPLE if memory_ids(client_of(name).get(ROOT, {"owner": asked}))}

            assert seen == SEE

    @pytest.mark.parametrize("owner", ["0", "-1", "x", "9" * 30, "null", "None"])
    def test_an_unknown_owner_has_no_conversations(self, conversation, client_of, owner):
        assert memory_ids(client_of("staff who see").get(ROOT, {"owner": owner})) == []

    def test_a_search_finds_only_the_users_own_conversations(self, conversation, client_of):
        assert memory_ids(client_of("other").get(ROOT, {"search": "one"})) == []
        assert memory_ids(client_of("owner").get(ROOT, {"search": "one"})) == ["c"]

    def test_usage_sums_the_users_own_calls(self, conversation, client_of):
        ModelCall.objects.create(owner=conversation.owner, purpose="answer", outcome="completed")

        assert client_of("other").get("/api/usage/").json()["results"] == []
        assert client_of("owner").get("/api/usage/").json()["results"][0]["calls"] == 1
        for name in ("other", "staff who see"):  # who may not see the calls of others
            assert client_of(name).get("/api/usage/", {"owner": "*"}).json()["results"] == []

    def test_staff_can_create_conversations_for_an_owner(self, conversation, client_of, person):
        made = client_of("staff who change").post(ROOT, {}, format="json").json()["memory_id"]

        assert Conversation.objects.get(memory_id=made).owner == person("staff who change")


class TestStaffWithViewPermission:
    def test_are_refused_changes(self, conversation, client_of):
        client = client_of("staff who see")

        assert client.get(f"{ROOT}c/").status_code == 200
        assert client.patch(f"{ROOT}c/", {"title": "x"}, format="json").status_code == 403
        assert client.post(MESSAGES, adding(HI), format="json").status_code == 403
        assert client.delete(f"{ROOT}c/").status_code == 403
        assert Conversation.objects.get().title == ""


class TestAuthentication:
    def test_a_session_needs_a_csrf_token_for_unsafe_requests(self, conversation, person):
        client = Client(enforce_csrf_checks=True)
        client.force_login(person("owner"))
        client.get("/admin/login/")
        token = client.cookies["csrftoken"].value

        refused = client.post(ROOT, {}, content_type="application/json")
        taken = client.post(ROOT, {}, content_type="application/json", headers={"X-CSRFToken": token})

        assert refused.status_code == 403
        assert "CSRF" in refused.json()["detail"]
        assert taken.status_code == 201

    def test_a_token_is_accepted(self, conversation, person):
        token = Token.objects.create(user=person("owner"))

        response = Client(headers={"Authorization": f"Token {token.key}"}).get(f"{ROOT}c/")

        assert response.status_code == 200
        assert response["Cache-Control"] == "no-store"

    def test_a_token_is_accepted_as_a_bearer(self, conversation, person):
        token = Token.objects.create(user=person("owner"))
        client = Client(headers={"Authorization": f"Bearer {token.key}"}, enforce_csrf_checks=True)

        assert client.get(f"{ROOT}c/").status_code == 200
        assert client.post(ROOT, {}, content_type="application/json").status_code == 201

    @pytest.mark.parametrize("classes", [(), (SessionAuthentication,)], ids=["none", "sessions"])
    def test_a_bearer_is_refused_where_tokens_are(self, conversation, person, monkeypatch, classes):
        token = Token.objects.create(user=person("owner"))
        monkeypatch.setattr(AccessPolicy, "authentication_classes", classes)

        response = Client(headers={"Authorization": f"Bearer {token.key}"}).get(f"{ROOT}c/")

        assert response.status_code in {401, 403}

    @pytest.mark.parametrize("keyword", ["Token", "Bearer"])
    def test_the_sites_own_class_decides_which_tokens_are_accepted(self, conversation, person, monkeypatch, keyword):
        Token.objects.create(user=person("owner"), key="expired")
        monkeypatch.setattr(AccessPolicy, "authentication_classes", [Expiring])

        response = Client(headers={"Authorization": f"{keyword} expired"}).get(f"{ROOT}c/")

        assert (response.status_code, response.json()["detail"]) == (401, "The token has expired.")

    @pytest.mark.parametrize("header", ["Token 12345", "Token", "Token \xff", "Bearer x", "Bearer", "Bearer \xff"])
    def test_a_wrong_token_is_refused(self, conversation, header: str):
        response = Client(headers={"Authorization": header}).get(f"{ROOT}c/")

        assert response.status_code == 401
        assert response["WWW-Authenticate"] == "Token"

    def test_an_inactive_user_is_refused(self, conversation, person):
        token = Token.objects.create(user=person("owner"))
        User.objects.filter(username="owner").update(is_active=False)

        assert Client(headers={"Authorization": f"Token {token.key}"}).get(ROOT).status_code == 401


class Expiring(TokenAuthentication):
    """Tokens of a project that expire."""

    def authenticate_credentials(self, key):
        raise AuthenticationFailed("The token has expired.")


class Tenants(AccessPolicy):
    """Users see the conversations of the tenant in the metadata."""

    def conversations(self, request, verb):
        return Conversation.objects.filter(metadata__tenant=request.headers["X-Tenant"])

    def owner_of_new(self, request):
        return None


class OwnTokens(AccessPolicy):
    """Tokens of a project: the name of the user."""

    def user_of_token(self, key):
        return User.objects.filter(username=key).first()


class TestCustomPolicy:
    @pytest.mark.django_db(transaction=True)  # the chat looks tokens up in another thread
    @pytest.mark.parametrize("kind", ["Bearer", "Token"])
    @pytest.mark.parametrize(
        "path", [f"{ROOT}c/", "/api/chat/c/messages", "/openai/v1/conversations/c"], ids=["rest", "chat", "openai"]
    )
    def test_it_knows_the_tokens_of_each_face(self, conversation, settings, kind, path):
        settings.CHATMEMORY["ACCESS_POLICY"] = f"{__name__}.OwnTokens"
        key = Token.objects.create(user=conversation.owner).key

        statuses = [
            Client(headers={"Authorization": f"{kind} {each}"}).get(path).status_code for each in ("owner", key, "x")
        ]

        assert statuses == [200, 401, 401]

    def test_it_decides_which_conversations_are_found(self, conversation, client_of, settings):
        settings.CHATMEMORY["ACCESS_POLICY"] = f"{__name__}.Tenants"
        Conversation.objects.update(metadata={"tenant": "acme"})
        other = client_of("other")

        assert other.get(f"{ROOT}c/", headers={"X-Tenant": "acme"}).status_code == 200
        assert other.get(f"{ROOT}c/", headers={"X-Tenant": "else"}).status_code == 404
        assert other.post(ROOT, {}, format="json", headers={"X-Tenant": "acme"}).json()["owner"] is None


class TestSitesRestFrameworkSettings:
    """A site's DRF settings do not change the API."""

    def test_they_have_no_effect_as_the_views_set_everything(self):
        on_the_views = {"parser", "renderer", "permission", "throttle", "content_negotiation", "metadata", "versioning",
                "pagination"}  # fmt: skip

        assert {f"{name}_class" for name in on_the_views} <= {
            name.replace("classes", "class") for name in vars(ChatMemoryView)
        }
        assert "filter_backends" in vars(ChatMemoryView)
        assert ChatMemoryView().get_exception_handler() is handle_exception

    @pytest.mark.parametrize("key", ["message", "to", "page_size", "unknown", "errors"])
    def test_they_do_not_rename_its_terms(self, conversation, client_of, settings, key):
        owner = client_of("owner")
        requests = [
            lambda: owner.post(ROOT, [], format="json"),
            lambda: owner.post(ROOT, {"unknown": 1, "errors": 2}, format="json"),
            lambda: owner.post(f"{ROOT}c/memory/rewind/", {"to": "x"}, format="json"),
            lambda: owner.post(MESSAGES, {"messages": "x"}, format="json"),
            lambda: owner.post(MESSAGES, adding({"type": "X"}), format="json"),
            lambda: owner.get("/api/usage/", {"page_size": "x", "unknown": "1"}),
            lambda: owner.delete(ROOT),
            lambda: owner.get(ROOT, {"ordering": "created_at"}),
            lambda: owner.get(ROOT, {"ordering": "x"}),
            lambda: owner.get(ROOT, {"search": "one"}),
        ]
        before = [request() for request in requests]
        settings.REST_FRAMEWORK = {"NON_FIELD_ERRORS_KEY": key, "ORDERING_PARAM": "sort", "SEARCH_PARAM": "q"}

        after = [request() for request in requests]

        assert [each.status_code for each in after] == [400] * 7 + [200, 400, 200]
        assert [each.json() for each in after] == [each.json() for each in before]

    def test_they_cannot_open_the_api_or_change_its_format(self, conversation, client_of, settings):
        settings.REST_FRAMEWORK = {
            # The schema page's views read this on import, which can happen now.
            "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
            "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.AllowAny"],
            "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.BrowsableAPIRenderer"],
            "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.FormParser"],
            "DEFAULT_FILTER_BACKENDS": ["nowhere.Filter"],
            "DEFAULT_PAGINATION_CLASS": "rest_framework.pagination.PageNumberPagination",
            "DEFAULT_VERSIONING_CLASS": "rest_framework.versioning.AcceptHeaderVersioning",
            "DEFAULT_THROTTLE_CLASSES": ["nowhere.Throttle"],
            "EXCEPTION_HANDLER": "nowhere.handler",
            "NON_FIELD_ERRORS_KEY": "errors",
            "ORDERING_PARAM": "sort",
            "SEARCH_PARAM": "q",
            "COERCE_DECIMAL_TO_STRING": False,
            "DATETIME_FORMAT": "%Y",
            "PAGE_SIZE": 1,
            "UNAUTHENTICATED_USER": None,
        }
        owner = client_of("owner")

        assert APIClient().get(ROOT).status_code == 401
        response = owner.get(f"{ROOT}c/", headers={"Accept": "text/html"})

        assert response.status_code == 200
        assert response["Content-Type"] == "application/json"
        assert len(response.json()["created_at"]) > 20
        assert owner.post(ROOT, [], format="json").json()["errors"][0]["path"] == "$"
        assert uuid.UUID(owner.post(ROOT, {}, format="json").json()["memory_id"])
