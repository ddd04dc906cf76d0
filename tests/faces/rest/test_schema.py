"""The OpenAPI schema describes the API's actual behaviour."""

import re
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus

import jsonschema
import pytest
from django.urls import include, path
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.settings import patched_settings
from drf_spectacular.validation import validate_schema

from chatmemory_django.chat import urls as chat_urls
from chatmemory_django.chat.approvals.rest import DECISION
from chatmemory_django.chat.http.schema import with_chat
from chatmemory_django.chat.models import ToolApproval
from chatmemory_django.messages import AiMessage, CustomMessage, SystemMessage, ToolExecutionRequest, UserMessage
from tests.faces.rest.conftest import ROOT

pytestmark = pytest.mark.django_db

OWN = (ROOT, "/api/messages", "/api/usage", "/api/storage", "/api/import", "/api/chat")

urlpatterns = [path("api/", include("chatmemory_django.rest.urls"))]
"""The URLs of a site without the chat."""


@pytest.fixture(scope="module")
def whole() -> dict:
    return SchemaGenerator().get_schema(public=True)


@pytest.fixture
def writer(client_of):
    """Return a client that may read and add everything."""
    return client_of("staff with every permission")


def operations(whole: dict) -> Iterator[tuple[str, str, dict]]:
    for where, item in whole["paths"].items():
        if where == "/api/" or where.startswith(OWN):
            yield from ((where, verb, operation) for verb, operation in item.items())


def check(whole: dict, schema: dict, value: object) -> None:
    """Assert that *value* conforms to *schema*."""
    jsonschema.Draft202012Validator({**schema, "components": whole["components"]}).validate(value)


def contents(operation: dict) -> Iterator[dict]:
    """Yield the schemas of request and response bodies."""
    for body in (operation.get("requestBody", {}), *operation["responses"].values()):
        yield from body.get("content", {}).values()


def examples(content: dict) -> list:
    named = [each["value"] for each in content.get("examples", {}).values()]
    return named + ([content["example"]] if "example" in content else [])


@pytest.mark.slow
def test_it_is_valid_in_both_versions_of_openapi():
    for version in ("3.0.3", "3.1.1"):
        with patched_settings({"OAS_VERSION": version}):
            validate_schema(SchemaGenerator().get_schema(public=True))


def test_openapi_3_0_has_no_null_type_no_const_and_no_tuples():
    with patched_settings({"OAS_VERSION": "3.0.3"}):
        written = repr(SchemaGenerator().get_schema(public=True)["components"]["schemas"])

    assert "'null'" not in written
    assert "'const'" not in written
    assert "prefixItems" not in written
    assert "'nullable': True" in written


def test_each_operation_describes_its_errors(whole):
    found = [each for each in operations(whole) if "chat" not in each[2]["tags"]]

    assert len(found) == 30
    assert len({operation["operationId"] for _, _, operation in found}) == 30
    for where, verb, operation in found:
        assert operation["description"], (where, verb)
        assert operation["security"], (where, verb)
        assert {"400", "401", "403", "429", "500"} <= set(operation["responses"])
        assert ("404" in operation["responses"]) == ("{memory_id}" in where)
        assert "Retry-After" in operation["responses"]["429"]["headers"]


def test_each_operation_has_a_name_a_group_and_a_summary_of_its_own(whole):
    found = list(operations(whole))

    assert len(found) == 35
    assert len({operation["operationId"] for _, _, operation in found}) == 35
    assert len({operation["summary"] for _, _, operation in found}) == 35
    groups = Counter(tag for _, _, operation in found for tag in operation["tags"])
    assert groups == {"conversations": 11, "messages": 10, "memory": 6, "usage": 2, "addresses": 1, "chat": 5}
    assert set(groups) <= {each["name"] for each in whole["tags"]}
    for where, verb, operation in found:
        assert 3 <= len(operation["summary"]) <= 85, (where, verb)
        assert not operation["summary"].endswith("."), (where, verb)
        assert operation["description"], (where, verb)


@pytest.mark.django_db(transaction=True)  # the chat uses threads
def test_the_chat_is_in_it_where_the_site_has_it(whole, client, person, settings):
    settings.CHATMEMORY = {"CHAT": {"ASSISTANT": "example_project.assistants.assistant"}}
    client.force_login(person("owner"))
    chat = "/api/chat/{chat_id}"
    body = {"id": "c", "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "hi"}]}]}
    check(whole, whole["paths"]["/api/chat"]["post"]["requestBody"]["content"]["application/json"]["schema"], body)
    answers = {
        ("/api/chat", "post"): client.post(
            "/api/chat", body, "application/json", headers={"Accept": "application/json"}
        ),
        (f"{chat}/messages", "get"): client.get("/api/chat/c/messages"),
        (f"{chat}/stop", "post"): client.post("/api/chat/c/stop"),
    }

    assert client.get("/api/chat/c/stream").status_code == 204
    assert "204" in whole["paths"][f"{chat}/stream"]["get"]["responses"]
    assert "text/event-stream" in whole["paths"]["/api/chat"]["post"]["responses"]["200"]["content"]
    for (where, verb), answer in answers.items():
        described = whole["paths"][where][verb]["responses"][str(answer.status_code)]["content"]
        assert answer.status_code == 200
        check(whole, described["application/json"]["schema"], answer.json())
    refused = client.post("/api/chat", {}, "application/json")
    described = whole["paths"]["/api/chat"]["post"]["responses"][str(refused.status_code)]
    assert list(described["content"]) == [refused["Content-Type"].partition(";")[0]] == ["text/plain"]


def test_every_address_of_the_chat_is_in_it(whole):
    described = {where for where in whole["paths"] if where.startswith("/api/chat")}
    routes = [re.sub(r"\(\?P<(\w+)>[^)]*\)", r"{\1}", str(each.pattern)) for each in chat_urls.urlpatterns]

    assert described == {"/api/chat" + route.replace("^[/]?", "/").rstrip("$") for route in routes}


def test_a_site_without_the_chat_has_no_chat_in_it(settings):
    settings.ROOT_URLCONF = "tests.faces.rest.test_schema"

    assert with_chat([]) == []
    assert not [where for where in SchemaGenerator().get_schema(public=True)["paths"] if "chat" in where]


def test_each_response_conforms_to_its_schema(whole, writer, begin):
    begin("c", UserMessage("hi"), UserMessage("hello"))
    for where, verb, body in (
        (f"{ROOT}{{memory_id}}/memory/rewind/", "post", {"to": 1}),
        (f"{ROOT}{{memory_id}}/memory/switch/", "post", {"to": 2}),
        (f"{ROOT}{{memory_id}}/fork/", "post", {}),
        (f"{ROOT}{{memory_id}}/messages/{{sequence}}/alternatives/", "get", None),
        (f"{ROOT}{{memory_id}}/messages/{{sequence}}/pin/", "post", None),
        (f"{ROOT}{{memory_id}}/messages/{{sequence}}/pin/", "delete", None),
        (f"{ROOT}{{memory_id}}/messages/{{sequence}}/", "delete", None),
        (f"{ROOT}{{memory_id}}/memory/pop/", "post", None),
    ):
        answer = getattr(writer, verb)(where.format(memory_id="c", sequence=2), body, format="json")

        described = whole["paths"][where][verb]["responses"][str(answer.status_code)]["content"]
        check(whole, described["application/json"]["schema"], answer.json())
        assert answer.status_code < 300


def test_a_constant_identifies_the_type_of_a_message(whole):
    schemas = whole["components"]["schemas"]
    for name, tag in (("ChatMessage", "type"), ("OpenAiMessage", "role")):
        union = schemas[name]

        assert union["discriminator"]["propertyName"] == tag
        assert len(union["oneOf"]) == 5
        for value, reference in union["discriminator"]["mapping"].items():
            kind = schemas[reference.rpartition("/")[2]]
            assert kind["properties"][tag] == {"type": "string", "const": value}
            assert tag in kind["required"]
            assert {"$ref": reference} in union["oneOf"]


def test_its_examples_conform_to_it(whole):
    count = 0
    for _, _, operation in operations(whole):
        for content in contents(operation):
            for value in examples(content):
                check(whole, content["schema"], value)
                count += 1

    assert count > 100


def test_its_examples_of_requests_are_accepted(whole, writer, begin):
    conversation = begin("c", UserMessage("hi"), AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "a")]))
    ToolApproval.objects.create(id=DECISION["id"], conversation=conversation, sequence=2, position=0)
    accepted = 0
    for where, verb, operation in operations(whole):
        if "chat" in operation["tags"]:
            continue  # it is asked above
        for content in operation.get("requestBody", {}).get("content", {}).values():
            for value in examples(content):
                path = where.format(memory_id="c", sequence="1")
                answer = getattr(writer, verb)(path, value, format="json")

                assert answer.status_code in {HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT}, answer.content
                accepted += 1

    assert accepted >= 7


@pytest.mark.parametrize("query", ["", "?as=openai"])
def test_responses_conform_to_it(whole, writer, begin, query):
    custom = [] if query else [CustomMessage({"a": 1})]
    calls = [ToolExecutionRequest("1", "t", "{}")]
    begin(
        "c", SystemMessage("be brief"), UserMessage("hi", name="Ann"), AiMessage("so", "hm", calls, {"a": 1}), *custom
    )
    for where, template in (
        ("/api/", "/api/"),
        ("/api/messages/?search=hi", "/api/messages/"),
        ("/api/messages/", "/api/messages/"),
        (ROOT, ROOT),
        (f"{ROOT}c/", f"{ROOT}{{memory_id}}/"),
        (f"{ROOT}c/messages/{query}", f"{ROOT}{{memory_id}}/messages/"),
        (f"{ROOT}c/messages/1/{query}", f"{ROOT}{{memory_id}}/messages/{{sequence}}/"),
        (f"{ROOT}c/memory/{query or '?explain=1'}", f"{ROOT}{{memory_id}}/memory/"),
        ("/api/usage/?by=model", "/api/usage/"),
        ("/api/usage/?limit=0", "/api/usage/"),
        (f"{ROOT}nowhere/", f"{ROOT}{{memory_id}}/"),
    ):
        answer = writer.get(where)

        described = whole["paths"][template]["get"]["responses"][str(answer.status_code)]["content"]
        check(whole, described[answer["Content-Type"]]["schema"], answer.json())


def test_the_page_loads_nothing_from_other_hosts(client):
    page = client.get("/api/docs/").content.decode()

    assert "swagger-ui" in page
    assert "https://" not in page
