"""The OpenAPI schema says what the API does."""

from http import HTTPStatus

import jsonschema
import pytest
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.settings import patched_settings
from drf_spectacular.validation import validate_schema

from chatmemory_django.messages import AiMessage, CustomMessage, SystemMessage, ToolExecutionRequest, UserMessage
from chatmemory_django.rest.examples import EXAMPLES
from chatmemory_django.rest.urls import urlpatterns
from tests.rest.conftest import ROOT

pytestmark = pytest.mark.django_db


def schema() -> dict:
    return SchemaGenerator().get_schema(public=True)


def check(name: str, value: object) -> None:
    """Assert that *value* is what the component *name* says."""
    whole = schema()
    jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", **whole}).validate(value)


def test_it_is_valid_in_both_versions_of_openapi():
    for version in ("3.0.3", "3.1.1"):
        with patched_settings({"OAS_VERSION": version}):
            validate_schema(schema())


def test_in_the_older_version_it_knows_no_type_of_null():
    with patched_settings({"OAS_VERSION": "3.0.3"}):
        written = repr(schema()["components"]["schemas"]["StoredUserMessage"])

    assert "'null'" not in written
    assert "'nullable': True" in written


def test_it_has_every_path_and_says_of_each_what_can_go_wrong():
    paths = {where: item for where, item in schema()["paths"].items() if where.startswith((ROOT, "/api/usage"))}

    assert len(paths) == len(urlpatterns)
    for where, item in paths.items():
        for verb, operation in item.items():
            assert operation["summary"], (where, verb)
            assert operation["security"], (where, verb)
            assert {"400", "401", "403", "429"} <= set(operation["responses"])
            assert ("404" in operation["responses"]) == ("{memory_id}" in where)


def test_which_kind_a_message_is_its_type_tells():
    for name, field, count in (("ChatMessage", "type", 5), ("StoredMessage", "type", 5), ("OpenAiMessage", "role", 5)):
        union = schema()["components"]["schemas"][name]

        assert len(union["oneOf"]) == count
        assert union["discriminator"]["propertyName"] == field
        assert sorted(union["discriminator"]["mapping"].values()) == sorted(each["$ref"] for each in union["oneOf"])


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_its_examples_are_true(kind):
    for value in EXAMPLES[kind].values():
        check(kind.__name__, value)


def test_its_examples_of_what_comes_in_are_taken(api, begin):
    begin("c")
    by_name = {kind.__name__: list(values.values()) for kind, values in EXAMPLES.items()}
    for verb, where, name in (
        ("post", ROOT, "NewConversation"),
        ("patch", f"{ROOT}c/", "ConversationChange"),
        ("post", f"{ROOT}c/messages/", "NewMessages"),
        ("put", f"{ROOT}c/memory/", "NewMemory"),
    ):
        for value in by_name[name]:
            answer = getattr(api, verb)(where, value, format="json")

            assert answer.status_code in {HTTPStatus.OK, HTTPStatus.CREATED}, answer.content


def test_what_is_answered_is_what_it_says(api, begin):
    begin(
        "c",
        SystemMessage("be brief"),
        UserMessage("hi", name="Ann"),
        AiMessage("so", "hm", [ToolExecutionRequest("1", "t", "{}")], {"a": 1}),
        CustomMessage({"a": 1}),
    )
    for where, name in (
        (ROOT, "ConversationPage"),
        (f"{ROOT}c/", "ConversationView"),
        (f"{ROOT}c/messages/", "MessagePage"),
        (f"{ROOT}c/messages/1/", "StoredSystemMessage"),
        (f"{ROOT}c/messages/?as=openai&before=4", "MessagePage"),
        (f"{ROOT}c/memory/?explain=1", "MemoryView"),
        ("/api/usage/?by=model", "UsageView"),
        ("/api/usage/?limit=0", "Problem"),
    ):
        check(name, api.get(where).json())


def test_the_page_needs_nothing_from_elsewhere(client):
    page = client.get("/api/docs/").content.decode()

    assert "swagger-ui" in page
    assert "https://" not in page
