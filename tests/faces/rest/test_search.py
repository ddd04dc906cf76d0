"""The search in all messages of the user: whose are found, in which order, page by page."""

import base64
import os

import pytest
from django.contrib.auth.models import User
from django.core.checks.registry import registry

from chatmemory_django.access import AccessPolicy
from chatmemory_django.messages import AiMessage, SystemMessage, ToolExecutionResultMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory
from tests.faces.rest.conftest import pages, paths, statements

pytestmark = pytest.mark.django_db

SEARCH = "/api/messages/"


class NoDrafts(AccessPolicy):
    """Hides some of the user's own conversations."""

    def conversations(self, request, verb):
        return super().conversations(request, verb).exclude(title="draft")


class Silent(AccessPolicy):
    """Lets no one read."""

    def readable_types(self, request, *, own):
        return frozenset()


def places(response) -> list[tuple[str, int]]:
    assert response.status_code == 200, response.content
    return [(each["memory_id"], each["sequence"]) for each in response.json()["results"]]


def find(client, words, **others):
    return client.get(SEARCH, {"search": words, **others})


def test_hits_of_all_conversations_come_best_first_with_excerpts(api, begin):
    begin("one", UserMessage("My parcel is late. " + "Words. " * 50))
    begin("two", UserMessage("Hello."), AiMessage("A parcel? Which parcel?"))
    begin("three", UserMessage("Good morning."))
    response = find(api, "parcel")

    assert places(response) == [("two", 2), ("one", 1)]
    hit = response.json()["results"][0]
    assert set(hit) == {"memory_id", "title", "is_archived", "sequence", "type", "created_at", "snippet"}
    assert hit["type"] == "AI"
    assert [each["text"] for each in hit["snippet"] if each["is_hit"]] == ["parcel", "parcel"]
    assert "".join(each["text"] for each in hit["snippet"]) == "A parcel? Which parcel?"
    assert response["Cache-Control"] == "no-store"


def test_only_what_the_user_may_read_is_found(api, client_of, begin, person):
    begin("c", SystemMessage("swordfish one"), UserMessage("swordfish two"), ToolExecutionResultMessage("1", "t", "x"))
    Conversation.objects.create(memory_id="theirs", owner=person("other"))
    get_chat_memory("theirs").add(UserMessage("swordfish three"))

    assert places(find(api, "swordfish")) == [("c", 2)]
    assert places(find(client_of("other"), "swordfish")) == [("theirs", 1)]
    # Staff search their own conversations, too, not those of everybody.
    assert places(find(client_of("staff with every permission"), "swordfish")) == []
    assert find(client_of("anonymous"), "swordfish").status_code == 401


def test_staff_who_read_system_messages_find_them_in_their_own_conversations(client_of, person):
    Conversation.objects.create(memory_id="s", owner=person("staff who read"))
    get_chat_memory("s").add(SystemMessage("swordfish"))

    assert places(find(client_of("staff who read"), "swordfish")) == [("s", 1)]


def test_messages_on_other_branches_and_removed_ones_are_not_found(api, begin):
    begin("c", UserMessage("parcel one"), AiMessage("parcel two"), UserMessage("parcel three"))
    memory = get_chat_memory("c")
    memory.remove(3)
    memory.rewind(1)

    assert places(find(api, "parcel")) == [("c", 1)]


def test_the_access_policy_narrows_it(api, begin, settings):
    begin("c", UserMessage("parcel"))
    draft = begin("d", UserMessage("parcel"))
    draft.title = "draft"
    draft.save()
    settings.CHATMEMORY["ACCESS_POLICY"] = f"{__name__}.NoDrafts"
    assert places(find(api, "parcel")) == [("c", 1)]

    settings.CHATMEMORY["ACCESS_POLICY"] = f"{__name__}.Silent"
    assert places(find(api, "parcel")) == []


def test_pages_follow_each_other_in_both_directions(api, begin):
    for number in range(7):
        begin(f"c{number}", UserMessage("parcel " * (number + 1)))
    forth = list(pages(api, f"{SEARCH}?search=parcel&page_size=3"))
    back = list(
        pages(api, api.get(forth[1]["next"]).request["PATH_INFO"] + "?" + forth[1]["next"].split("?")[1], "previous")
    )

    assert [len(each["results"]) for each in forth] == [3, 3, 1]
    assert [hit["memory_id"] for each in forth for hit in each["results"]] == [f"c{n}" for n in reversed(range(7))]
    assert [each["results"] for each in back] == [each["results"] for each in reversed(forth)]
    assert 'rel="next"' in find(api, "parcel", page_size=3)["Link"]


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ({}, "?search"),
        ({"search": ""}, "?search"),
        ({"search": "   "}, "?search"),
        ({"search": "x" * 256}, "?search"),
        ({"search": "a\0b"}, "?search"),
        ({"search": "a", "match": "some"}, "?match"),
        ({"search": "a", "page_size": "0"}, "?page_size"),
        ({"search": "a", "page_size": "1000"}, "?page_size"),
        ({"search": "a", "owner": "*"}, "?owner"),
        ({"page_size": "2"}, "?search"),
        *(
            ({"search": "a", "cursor": base64.b64encode(each).decode()}, "?cursor")
            for each in (b"p=501", b"p=-1", b"p=x", b"r=1", b"p=1&p=2")
        ),
        ({"search": "a", "cursor": "no"}, "?cursor"),
    ],
    ids=repr,
)
def test_wrong_parameters_are_refused(api, query, path):
    response = api.get(SEARCH, query)

    assert (response.status_code, path in paths(response)) == (400, True), response.content


class TestAny:
    QUESTION = "When did the blue parcel arrive?"

    @pytest.fixture(autouse=True)
    def parcels(self, begin, person):
        begin("one", UserMessage("My parcels are blue."), AiMessage("Nice."))
        begin("two", UserMessage("Two parcels."), SystemMessage("parcel"))
        begin("three", UserMessage("Hello"))
        get_chat_memory("theirs", owner=person("other")).add(UserMessage("Their blue parcel"))

    def test_messages_with_any_of_the_words_are_found_on_request(self, api):
        assert places(find(api, self.QUESTION)) == []
        assert places(find(api, self.QUESTION, match="all")) == []
        assert places(find(api, self.QUESTION, match="any")) == [("one", 1), ("two", 1)]
        assert [each["text"] for each in find(api, "parcel", match="any").json()["results"][0]["snippet"]] != []

    def test_so_are_their_conversations(self, api):
        ids = [
            [each["memory_id"] for each in api.get("/api/conversations/", query).json()["results"]]
            for query in ({"search": self.QUESTION}, {"search": self.QUESTION, "match": "any"})
        ]

        assert (ids[0], sorted(ids[1])) == ([], ["one", "two"])
        assert len(api.get("/api/conversations/", {"match": "any"}).json()["results"]) == 3

    @pytest.mark.parametrize("query", ["?match=any", "?match=any&search=parcel"])
    def test_nothing_is_erased_by_it(self, api, query):
        assert api.delete(f"/api/conversations/{query}").status_code == 400
        assert Conversation.objects.count() == 4

    def test_pages_follow_each_other(self, api, begin):
        begin("many", *(UserMessage(f"parcel {number}") for number in range(7)))
        found = [
            hit for page in pages(api, f"{SEARCH}?search=my+parcel&match=any&page_size=3") for hit in page["results"]
        ]

        assert len(found) == len({(each["memory_id"], each["sequence"]) for each in found}) == 9


@pytest.mark.parametrize("words", ["%", "_", "'", '"', "; DROP TABLE", "<b>", "\u202e", "😀"])
def test_any_characters_are_only_text(api, begin, words):
    begin("c", UserMessage("nothing of this"))

    assert places(find(api, words)) == []


def test_it_takes_as_many_statements_for_many_hits_as_for_one(api, begin):
    begin("c", UserMessage("parcel"))
    with statements() as few:
        find(api, "parcel")
    begin("d", *[UserMessage(f"parcel {number}") for number in range(40)])
    with statements() as many:
        assert len(find(api, "parcel").json()["results"]) == 41

    assert len(few) == len(many) <= 4


def test_only_get_is_allowed(api):
    assert {api.post(SEARCH).status_code, api.delete(SEARCH).status_code} == {405}


def test_where_texts_are_encrypted_it_is_refused_with_the_reason(api, begin, settings, monkeypatch):
    # The app registers its checks when it is ready, and only here.
    monkeypatch.setattr(registry, "registered_checks", set(registry.registered_checks))
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "chatmemory_django.contrib.encryption"]
    settings.CHATMEMORY["ENCRYPTION"] = {"KEYS": [f"key:{base64.b64encode(os.urandom(32)).decode()}"]}
    response = find(api, "parcel")

    assert (response.status_code, response.json()["type"]) == (400, "urn:chatmemory:encrypted")
    assert "encrypted" in response.json()["detail"]


def test_an_erased_owner_leaves_nothing_to_find(api, begin):
    begin("c", UserMessage("parcel"))
    Conversation.objects.filter(owner=User.objects.get(username="owner")).delete()

    assert places(find(api, "parcel")) == []
