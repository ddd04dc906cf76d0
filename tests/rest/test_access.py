"""Who may do what: every path, every verb, everybody."""

import json
import uuid

import pytest
from django.contrib.auth.models import User
from django.test import Client
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

from chatmemory_django.formats.jsonl import export_lines
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.rest import urls
from chatmemory_django.rest.access import AccessPolicy
from chatmemory_django.rest.base import ChatMemoryView
from chatmemory_django.rest.problems import handle_exception
from tests.rest.conftest import ROOT

U1, U2 = UserMessage("one"), UserMessage("two")
MESSAGE = {"type": "USER", "contents": [{"type": "TEXT", "text": "hi"}]}

SEES = {"owner", "staff with"}
SIGNED_IN = {"other", "owner", "staff without", "staff with", "no staff but with"}

# Path, verb, body, the status if it may be done, who may do it, and the status for others who are signed in.
MATRIX = [
    ("conversations/", "get", None, 200, SIGNED_IN, None),
    ("conversations/", "post", {}, 201, SIGNED_IN, None),
    ("conversations/c/", "get", None, 200, SEES, 404),
    ("conversations/c/", "patch", {"title": "new"}, 200, SEES, 404),
    ("conversations/c/", "delete", None, 204, SEES, 404),
    ("conversations/c/messages/", "get", None, 200, SEES, 404),
    ("conversations/c/messages/", "post", {"messages": [MESSAGE]}, 201, SEES, 404),
    ("conversations/c/messages/1/", "get", None, 200, SEES, 404),
    ("conversations/c/memory/", "get", None, 200, SEES, 404),
    ("conversations/c/memory/", "put", {"messages": [MESSAGE]}, 200, SEES, 404),
    ("conversations/c/memory/", "delete", None, 204, SEES, 404),
    ("conversations/c/export/", "get", None, 200, SEES, 404),
    ("conversations/import/", "post", "lines", 201, SIGNED_IN, None),
    ("usage/", "get", None, 200, SIGNED_IN, None),
]
VERBS = ("get", "post", "put", "patch", "delete", "options", "trace")
EVERYBODY = ("anonymous", *sorted(SIGNED_IN))


@pytest.fixture
def conversation(begin) -> Conversation:
    return begin("c", U1, U2)


def send(client: APIClient, verb: str, where: str, body: object):
    if body == "lines":
        lines = "".join(export_lines(Conversation.objects.filter(memory_id="c")))
        head, *rest = lines.splitlines(keepends=True)
        copy = json.dumps({**json.loads(head), "memory_id": "copy"}) + "\n" + "".join(rest)
        return client.post(f"/api/{where}", copy, content_type="application/jsonl")
    return getattr(client, verb)(f"/api/{where}", body, format="json")


def everything() -> list:
    return [
        list(Conversation.objects.order_by("pk").values()),
        [list(each.messages.values()) for each in Conversation.objects.order_by("pk")],
    ]


class TestMatrix:
    @pytest.mark.parametrize("name", EVERYBODY)
    @pytest.mark.parametrize(("where", "verb", "body", "status", "who", "otherwise"), MATRIX)
    def test_of_paths_verbs_and_people(self, conversation, client_of, name, where, verb, body, status, who, otherwise):
        before = everything()

        answer = send(client_of(name), verb, where, body)

        if name == "anonymous":
            assert answer.status_code == 401
        elif name in who:
            assert answer.status_code == status
        else:
            assert answer.status_code == otherwise
        if not answer.status_code < 300:
            assert everything() == before
            assert answer["Content-Type"] == "application/problem+json"
            assert answer.json()["status"] == answer.status_code
        if hasattr(answer, "streaming_content"):
            b"".join(answer.streaming_content)

    @pytest.mark.parametrize("name", EVERYBODY)
    def test_other_verbs_are_not_there(self, conversation, client_of, name):
        client = client_of(name)
        for where in {row[0] for row in MATRIX}:
            allowed = {row[1] for row in MATRIX if row[0] == where}
            for verb in set(VERBS) - allowed:
                status = client.generic(verb.upper(), f"/api/{where}", "{}", "application/json").status_code

                assert status == (401 if name == "anonymous" else 405), (verb, where)

    def test_has_every_path_of_the_api(self):
        patterns = {str(each.pattern) for each in urls.urlpatterns}
        tested = {row[0].replace("/c/", "/<str:memory_id>/").replace("/1/", "/<str:sequence>/") for row in MATRIX}

        assert tested == patterns

    def test_head_is_as_get(self, conversation, client_of):
        assert client_of("owner").head(f"{ROOT}c/").status_code == 200
        assert client_of("other").head(f"{ROOT}c/").status_code == 404


class TestWhatIsSeen:
    def test_of_ones_own_in_a_list(self, conversation, client_of):
        seen = {name: len(client_of(name).get(ROOT).json()["results"]) for name in SIGNED_IN}

        assert {name for name, count in seen.items() if count} == SEES

    def test_of_ones_own_in_a_search_for_what_others_said(self, conversation, client_of):
        assert client_of("other").get(ROOT, {"search": "one"}).json()["results"] == []
        assert len(client_of("owner").get(ROOT, {"search": "one"}).json()["results"]) == 1

    def test_of_ones_own_in_usage(self, conversation, client_of):
        assert client_of("other").get("/api/usage/").json()["results"] == []
        assert client_of("owner").get("/api/usage/").json()["results"][0]["messages"] == 2

    def test_of_the_ids_of_others_nothing(self, conversation, client_of):
        there, not_there = (client_of("other").get(f"{ROOT}{each}/").json() for each in ("c", "nowhere"))

        assert there == not_there

    def test_whose_they_are_when_staff_begin_or_import_them(self, conversation, client_of, people):
        made = client_of("staff with").post(ROOT, {}, format="json").json()["memory_id"]

        assert Conversation.objects.get(memory_id=made).owner == people["staff with"]


class TestStaffWhoMayOnlyView:
    def test_are_told_that_they_may_not_change(self, conversation, client_of, people):
        boss = people["staff with"]
        boss.user_permissions.set(boss.user_permissions.filter(codename="view_conversation"))
        client = client_of("staff with")

        assert client.get(f"{ROOT}c/").status_code == 200
        assert client.patch(f"{ROOT}c/", {"title": "x"}, format="json").status_code == 403
        assert client.post(f"{ROOT}c/messages/", {"messages": [MESSAGE]}, format="json").status_code == 403
        assert client.delete(f"{ROOT}c/").status_code == 403
        assert Conversation.objects.get().title == ""


class TestSignedIn:
    def test_by_session_with_a_form_token_only(self, conversation, people):
        client = Client(enforce_csrf_checks=True)
        client.force_login(people["owner"])
        client.get("/admin/login/")
        token = client.cookies["csrftoken"].value

        refused = client.post(ROOT, {}, content_type="application/json")
        taken = client.post(ROOT, {}, content_type="application/json", headers={"X-CSRFToken": token})

        assert refused.status_code == 403
        assert "CSRF" in refused.json()["detail"]
        assert taken.status_code == 201

    def test_by_token(self, conversation, people):
        token = Token.objects.create(user=people["owner"])

        answer = Client(headers={"Authorization": f"Token {token.key}"}).get(f"{ROOT}c/")

        assert answer.status_code == 200
        assert answer["Cache-Control"] == "no-store"

    @pytest.mark.parametrize("header", ["Token 12345", "Token", "Token \xff", "Bearer x"])
    def test_not_by_another(self, conversation, header: str):
        answer = Client(headers={"Authorization": header}).get(f"{ROOT}c/")

        assert answer.status_code == 401
        assert answer["WWW-Authenticate"] == "Token"

    def test_not_without_being_active(self, conversation, people):
        token = Token.objects.create(user=people["owner"])
        User.objects.filter(username="owner").update(is_active=False)

        assert Client(headers={"Authorization": f"Token {token.key}"}).get(ROOT).status_code == 401


class Tenants(AccessPolicy):
    """Everybody sees what is of the tenant in the metadata."""

    def conversations(self, request, verb):
        return Conversation.objects.filter(metadata__tenant=request.headers["X-Tenant"])

    def owner_of_new(self, request):
        return None


class TestAnotherPolicy:
    def test_decides_what_is_within_reach(self, conversation, client_of, settings):
        settings.CHATMEMORY["REST"]["ACCESS_POLICY"] = f"{__name__}.Tenants"
        Conversation.objects.update(metadata={"tenant": "acme"})
        other = client_of("other")

        assert other.get(f"{ROOT}c/", headers={"X-Tenant": "acme"}).status_code == 200
        assert other.get(f"{ROOT}c/", headers={"X-Tenant": "else"}).status_code == 404
        assert other.post(ROOT, {}, format="json").json()["owner"] is None


class TestTheSitesOwnRestFramework:
    """Whatever a site has made of DRF's settings, the API is as it is."""

    def test_has_no_say_since_all_is_said_on_the_views(self):
        said = {"parser", "renderer", "permission", "throttle", "content_negotiation", "metadata", "versioning"}

        assert {f"{name}_class" for name in said} <= {name.replace("classes", "class") for name in vars(ChatMemoryView)}
        assert ChatMemoryView().get_exception_handler() is handle_exception

    def test_cannot_open_it_or_change_its_shape(self, conversation, client_of, settings):
        settings.REST_FRAMEWORK = {
            # The page's own views take this when they are imported, which may be now.
            "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
            "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.AllowAny"],
            "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.BrowsableAPIRenderer"],
            "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.FormParser"],
            "DEFAULT_PAGINATION_CLASS": "rest_framework.pagination.PageNumberPagination",
            "DEFAULT_VERSIONING_CLASS": "rest_framework.versioning.AcceptHeaderVersioning",
            "DEFAULT_THROTTLE_CLASSES": ["nowhere.Throttle"],
            "EXCEPTION_HANDLER": "nowhere.handler",
            "PAGE_SIZE": 1,
            "UNAUTHENTICATED_USER": None,
        }

        assert APIClient().get(ROOT).status_code == 401
        answer = client_of("owner").get(f"{ROOT}c/", headers={"Accept": "text/html"})

        assert answer.status_code == 200
        assert answer["Content-Type"] == "application/json"
        assert uuid.UUID(client_of("owner").post(ROOT, {}, format="json").json()["memory_id"])
