"""A site's own API: the viewsets, extended by the means of DRF, in a router of its own."""

import pytest
from django.contrib.auth.models import Group
from django.core.cache import cache
from django.urls import include, path
from django_filters import rest_framework as filters
from drf_spectacular.generators import SchemaGenerator
from rest_framework import serializers
from rest_framework.pagination import LimitOffsetPagination

from chatmemory_django.access import AccessPolicy
from chatmemory_django.messages import (
    AiMessage,
    Image,
    ImageContent,
    NewMessage,
    SystemMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.rest.conversations import ConversationViewSet
from chatmemory_django.rest.filters import ConversationFilter
from chatmemory_django.rest.messages import MessageViewSet
from chatmemory_django.rest.serializers import ConversationSerializer, MessageSerializer
from chatmemory_django.rest.urls import ChatMemoryRouter
from tests.faces.rest.conftest import HI, adding, memory_ids, paths, sequences, users

pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]


class TeamPolicy(AccessPolicy):
    """Users see the conversations of members of their groups."""

    def conversations(self, request, verb):
        return Conversation.objects.filter(owner__groups__user=request.user)


class ChatSerializer(ConversationSerializer):
    label = serializers.CharField(source="memory_id")


class ShownMessageSerializer(MessageSerializer):
    type = serializers.CharField()  # one field more
    is_complete = None  # one field less
    created_at = serializers.DateTimeField(format="%Y-%m-%d")  # one field replaced


class ChatFilter(ConversationFilter):
    min_messages = filters.NumberFilter("total_messages", "gte")


class ChatPagination(LimitOffsetPagination):
    default_limit = 2


class ChatViewSet(ConversationViewSet):
    serializer_class = ChatSerializer
    message_serializer_class = ShownMessageSerializer
    pagination_class = ChatPagination
    filterset_class = ChatFilter
    policy_class = TeamPolicy
    throttle_scope = "chats"


class ChatMessageViewSet(MessageViewSet):
    serializer_class = ShownMessageSerializer
    policy_class = TeamPolicy


router = ChatMemoryRouter()
router.register("chats", ChatViewSet, basename="chat")
router.register("chats/(?P<memory_id>[^/]+)/messages", ChatMessageViewSet, basename="chat-message")

urlpatterns = [
    path("own/", include(router.urls)),
    path("api/", include("chatmemory_django.rest.urls")),
    path("<str:version>/", include("chatmemory_django.rest.urls")),
]

CHATS = "/own/chats/"


@pytest.fixture(autouse=True)
def team(person, begin) -> None:
    """Put the owner and the other user in the same two teams."""
    for number, name in enumerate("abc", 1):
        begin(name, *users(*range(number)))
    for name in ("left", "right"):
        Group.objects.create(name=name).user_set.add(person("owner"), person("other"))


def test_a_field_can_be_added_to_conversations(api):
    assert api.get(f"{CHATS}a/").json()["label"] == "a"
    assert [each["label"] for each in api.get(CHATS).json()["results"]] == ["c", "b"]
    assert "label" in api.post(CHATS).json()
    assert "label" not in api.get("/api/conversations/a/").json()


def test_fields_of_messages_can_be_added_removed_and_replaced(api):
    shown = api.post(f"{CHATS}a/messages/", adding(HI), format="json").json()["messages"]
    shown += api.get(f"{CHATS}a/messages/").json()["results"]
    shown += api.get(f"{CHATS}a/memory/").json()["messages"]
    shown.append(api.get(f"{CHATS}a/messages/1/").json())

    for message in shown:
        assert message["type"] == "USER"
        assert "is_complete" not in message
        assert len(message["created_at"]) == 10
        assert message["message"]["type"] == "USER"
    assert "is_complete" in api.get("/api/conversations/a/messages/1/").json()


def test_the_paths_may_have_a_version(api):
    for where in ("", "conversations/a/", "conversations/a/messages/", "conversations/a/memory/", "messages/?search=x"):
        response = api.get(f"/v2/{where}")
        assert response.status_code == 200, where
        assert str(response.json()).replace("/v2/", "/api/") == str(api.get(f"/api/{where}").json()), where


def test_fields_that_are_not_changed_are_the_same(api, begin):
    picture = ImageContent(Image(base64_data="iVBORw0KGgo=", mime_type="image/png"))
    begin("e", UserMessage([picture]), NewMessage(AiMessage("Nice."), {"model": "m"}, "k"), AiMessage("Lovely."))
    get_chat_memory("e").add(AiMessage("A dot."), after=1)

    for where in ("messages/?all_branches=1", "memory/"):
        own, plain = (api.get(f"{root}e/{where}").json() for root in (CHATS, "/api/conversations/"))
        for row, other in zip(*(each.get("results") or each["messages"] for each in (own, plain)), strict=True):
            same = row.keys() & other.keys() - {"created_at", "message"}
            assert {name: row[name] for name in same} == {name: other[name] for name in same}
            assert str(row["message"]).replace(CHATS, "/api/conversations/") == str(other["message"])


def test_the_pagination_can_be_replaced(api):
    first = api.get(CHATS)

    assert memory_ids(first) == ["c", "b"]
    assert first.json()["count"] == 3
    assert memory_ids(api.get(first.json()["next"])) == ["a"]
    assert memory_ids(api.get(CHATS, {"limit": 1, "offset": 1})) == ["b"]
    assert paths(api.get(CHATS, {"cursor": "x"})) == ["?cursor"]


def test_a_filter_can_be_added(api):
    assert memory_ids(api.get(CHATS, {"min_messages": 2, "title": ""})) == ["c", "b"]
    assert paths(api.get(CHATS, {"min_messages": "x"})) == ["?min_messages"]
    assert api.delete(f"{CHATS}?min_messages=3").json() == {"erased": 1, "protected": [], "files_to_delete": 0}


def test_the_queryset_can_be_limited_to_tenants(client_of):
    other, stranger = client_of("other"), client_of("staff")

    assert memory_ids(other.get(CHATS)) == ["c", "b"]
    assert sequences(other.get(f"{CHATS}b/messages/")) == [2, 1]
    assert other.patch(f"{CHATS}b/", {"title": "t"}, format="json").status_code == 200
    assert stranger.get(f"{CHATS}b/").status_code == 404
    assert other.get("/api/conversations/b/").status_code == 404


def test_hidden_texts_stay_hidden(api, begin):
    begin("d", SystemMessage("secret"), UserMessage("hi"), AiMessage("hello"))

    assert "secret" not in "".join(
        api.get(f"{CHATS}d/{each}").content.decode() for each in ("", "messages/", "messages/1/", "memory/")
    )


def test_the_throttle_can_have_its_own_scope(api, settings):
    settings.CHATMEMORY["REST"]["THROTTLE_RATES"] = {"chats": "2/min"}
    cache.clear()

    assert [api.get(CHATS).status_code for _ in range(3)] == [200, 200, 429]
    assert api.get("/api/conversations/").status_code == 200


def test_addresses_are_in_the_sites_router(api):
    made = api.post(CHATS.rstrip("/"))

    assert made["Location"].startswith(f"http://testserver{CHATS}")
    assert api.get(made["Location"]).json() == made.json()


def test_the_schema_has_both(api):
    schema = SchemaGenerator(patterns=urlpatterns).get_schema(public=True)

    assert {"/own/chats/{memory_id}/messages/", "/api/conversations/{memory_id}/messages/"} <= set(schema["paths"])
    shown = schema["components"]["schemas"]
    assert "label" in shown["Chat"]["properties"]
    assert {"type", "is_complete"} & set(shown["ShownMessage"]["properties"]) == {"type"}
