"""Conversations: listed, begun, renamed, erased."""

import datetime
import json
import uuid
from urllib.parse import quote

import pytest
from django.utils import timezone

from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation, Message
from tests.rest.conftest import ROOT

pytestmark = pytest.mark.django_db

MEMORY_ID = "0192f5a0-7c1e-7b39-9d3c-2f6d1c0b7a11"


def listed(api, **query) -> list[str]:
    answer = api.get(ROOT, query)
    assert answer.status_code == 200, answer.content
    return [each["memory_id"] for each in answer.json()["results"]]


class TestList:
    def test_begins_with_the_latest_activity(self, api, begin):
        for name in "abc":
            begin(name, UserMessage("hi"))

        api.post(f"{ROOT}b/messages/", {"messages": [{"type": "AI", "text": "hello"}]}, format="json")

        assert listed(api) == ["b", "c", "a"]

    def test_tells_of_each(self, api, begin, people):
        begin("a", *[UserMessage(str(number)) for number in range(5)])
        Conversation.objects.update(title="京都 😀", metadata={"n": [1, None]})

        (found,) = api.get(ROOT).json()["results"]

        moments = {name: datetime.datetime.fromisoformat(found.pop(name)) for name in ("created_at", "updated_at")}
        assert moments["updated_at"] == Conversation.objects.get().updated_at
        assert found == {
            "memory_id": "a",
            "owner": str(people["owner"].pk),
            "title": "京都 😀",
            "metadata": {"n": [1, None]},
            "messages": 5,
            "memory_messages": 3,
        }

    @pytest.mark.parametrize("same", [True, False])
    def test_has_pages_that_miss_nothing_and_say_nothing_twice(self, api, begin, same):
        names = [begin(f"c{number}").memory_id for number in range(7)]
        if same:
            Conversation.objects.update(updated_at=timezone.now())
        seen, where = [], f"{ROOT}?limit=3&title="

        while where:
            page = api.get(where).json()
            seen += [each["memory_id"] for each in page["results"]]
            where = page["next"]

        assert seen == names[::-1]

    @pytest.mark.parametrize(
        ("query", "found"),
        [
            ({"title": "PARCEL"}, ["a"]),
            ({"title": "%"}, []),
            ({"title": "null"}, []),
            ({"metadata": "topic:travel"}, ["b"]),
            ({"metadata": "topic:other"}, []),
            ({"metadata": "nothing:travel"}, []),
            ({"metadata": "stars:5"}, ["b"]),
            ({"metadata": "stars:50"}, []),
            ({"search": "Lisbon"}, ["b"]),
            ({"search": "parcel"}, ["a"]),
            ({"search": "nowhere"}, []),
            ({"active_since": "2026-01-01T00:00:00Z"}, ["b"]),
            ({"idle_since": "2026-01-01T00:00:00+02:00"}, ["a"]),
            ({"idle_since": "0001-01-01T00:00:00Z"}, []),
            ({"active_since": "9999-12-31T23:59:59Z"}, []),
            ({"title": "a", "search": "lisbon", "metadata": "topic:travel"}, ["b"]),
        ],
    )
    def test_can_be_narrowed(self, api, begin, query, found):
        begin("a", UserMessage("hi"))
        begin("b", UserMessage("a week in Lisbon"))
        long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
        Conversation.objects.filter(memory_id="a").update(title="My parcel", updated_at=long_ago)
        Conversation.objects.filter(memory_id="b").update(title="a", metadata={"topic": "travel", "stars": 5})

        assert listed(api, **query) == found

    @pytest.mark.parametrize(
        ("query", "path"),
        [
            ({"limit": "0"}, "?limit"),
            ({"limit": "201"}, "?limit"),
            ({"limit": "x"}, "?limit"),
            ({"limit": "9" * 400}, "?limit"),
            ({"cursor": "x"}, "?cursor"),
            ({"cursor": "9" * 17 + "-1"}, "?cursor"),
            ({"metadata": "a"}, "?metadata"),
            ({"metadata": 'a"]:b'}, "?metadata"),
            ({"metadata": "a__contains:b\0"}, "?metadata"),
            ({"title": "\0"}, "?title"),
            ({"search": ""}, "?search"),
            ({"active_since": "yesterday"}, "?active_since"),
            ({"active_since": "2026-01-01T00:00:00"}, "?active_since"),
            ({"active_since": "9999-12-31T23:59:59-12:00"}, "?active_since"),
            ({"active_since": "null"}, "?active_since"),
            ({"active_since": "0.5"}, "?active_since"),
            ({"limit": "null"}, "?limit"),
            ({"colour": "red"}, "?"),
        ],
    )
    def test_says_which_parameter_is_wrong(self, api, query, path):
        answer = api.get(ROOT, query)

        assert answer.status_code == 400
        assert answer.json()["errors"][0]["path"] == path


class TestBegin:
    def test_with_an_id_made_here(self, api, people):
        answer = api.post(ROOT)

        memory_id = answer.json()["memory_id"]
        assert answer.status_code == 201
        assert uuid.UUID(memory_id)
        assert answer["Location"] == f"http://testserver{ROOT}{memory_id}/"
        assert api.get(answer["Location"]).json() == answer.json()
        assert api.get(answer["Location"])["ETag"] == answer["ETag"]
        assert Conversation.objects.get().owner == people["owner"]

    def test_twice_with_the_same_id_is_once(self, api):
        body = {"memory_id": MEMORY_ID, "title": "t", "metadata": {"a": 1}}

        first, second = (api.post(ROOT, body, format="json") for _ in range(2))

        assert first.status_code == second.status_code == 201
        assert first.json() == second.json()
        assert Conversation.objects.count() == 1

    @pytest.mark.parametrize("change", [{"title": "u"}, {"metadata": {"a": 2}}])
    def test_with_an_id_that_is_taken_by_another(self, api, change):
        api.post(ROOT, {"memory_id": MEMORY_ID, "title": "t"}, format="json")

        answer = api.post(ROOT, {"memory_id": MEMORY_ID, "title": "t", **change}, format="json")

        assert answer.status_code == 409
        assert Conversation.objects.get().title == "t"

    def test_with_an_id_of_somebody_else(self, api, client_of):
        api.post(ROOT, {"memory_id": MEMORY_ID}, format="json")

        assert client_of("other").post(ROOT, {"memory_id": MEMORY_ID}, format="json").status_code == 409

    @pytest.mark.parametrize(
        ("body", "path"),
        [
            ({"memory_id": "a"}, "$.memory_id"),
            ({"memory_id": 1}, "$.memory_id"),
            ({"title": "x" * 256}, "$.title"),
            ({"title": "\0"}, "$.title"),
            ({"title": None}, "$.title"),
            ({"metadata": []}, "$.metadata"),
            ({"metadata": {"\0": 1}}, "$.metadata"),
            ({"metadata": {"a": {"b": "\0"}}}, "$.metadata.a.b"),
            ({"colour": "red"}, "$"),
            ([], "$"),
            (None, "$"),
            ("x", "$"),
        ],
    )
    def test_says_what_is_wrong(self, api, body, path):
        answer = api.post(ROOT, json.dumps(body), content_type="application/json")

        assert answer.status_code == 400
        assert answer.json()["errors"][0]["path"] == path
        assert not Conversation.objects.exists()


class TestChange:
    def test_of_the_title_leaves_the_metadata(self, api, begin):
        begin("a", UserMessage("hi"))
        api.patch(f"{ROOT}a/", {"metadata": {"a": 1}}, format="json")

        answer = api.patch(f"{ROOT}a/", {"title": "new"}, format="json")

        assert answer.status_code == 200
        assert (answer.json()["title"], answer.json()["metadata"]) == ("new", {"a": 1})
        assert api.get(f"{ROOT}a/").json() == answer.json()
        assert Message.objects.count() == 1

    def test_only_of_what_one_has_seen(self, api, begin):
        begin("a")
        seen = api.get(f"{ROOT}a/")["ETag"]

        first = api.patch(f"{ROOT}a/", {"title": "one"}, format="json", headers={"If-Match": seen})
        second = api.patch(f"{ROOT}a/", {"title": "two"}, format="json", headers={"If-Match": seen})
        third = api.patch(f"{ROOT}a/", {"title": "3"}, format="json", headers={"If-Match": f'"x", {first["ETag"]}'})

        assert [each.status_code for each in (first, second, third)] == [200, 412, 200]
        assert second.json()["errors"][0]["path"] == "If-Match"
        assert Conversation.objects.get().title == "3"

    def test_of_what_is_there_at_all(self, api, begin):
        begin("a")

        assert api.patch(f"{ROOT}a/", {}, format="json", headers={"If-Match": "*"}).status_code == 200
        assert api.patch(f"{ROOT}b/", {}, format="json", headers={"If-Match": "*"}).status_code == 404

    @pytest.mark.parametrize("changes", [{"title": 1}, {"memory_id": "b"}, {"owner": 1}, {"metadata": None}])
    def test_of_nothing_else(self, api, begin, changes):
        begin("a")

        assert api.patch(f"{ROOT}a/", changes, format="json").status_code == 400


class TestErase:
    def test_leaves_nothing(self, api, begin):
        begin("a", UserMessage("hi"))
        begin("b", UserMessage("hi"))

        assert api.delete(f"{ROOT}a/").status_code == 204
        assert api.delete(f"{ROOT}a/").status_code == 404
        assert listed(api) == ["b"]
        assert Message.objects.count() == 1

    def test_only_what_one_has_seen(self, api, begin):
        begin("a")
        seen = api.get(f"{ROOT}a/")["ETag"]
        api.post(f"{ROOT}a/messages/", {"messages": [{"type": "AI", "text": "more"}]}, format="json")

        assert api.delete(f"{ROOT}a/", headers={"If-Match": seen}).status_code == 412
        assert Conversation.objects.count() == 1


class TestMemoryIds:
    @pytest.mark.parametrize("memory_id", ["a b", "京都", "a?b", "x" * 255, "..."])
    def test_of_any_kind_but_with_a_slash(self, api, begin, memory_id):
        begin(memory_id, UserMessage("hi"))

        assert api.get(f"{ROOT}{quote(memory_id, safe='')}/messages/").status_code == 200

    @pytest.mark.parametrize("path", ["%00", "a%00", "x" * 256, "%ff%fe", "%ed%a0%80", " "])
    def test_that_cannot_be_are_not_found(self, api, path):
        for rest in ("", "messages/", "memory/", "export/"):
            assert api.get(f"{ROOT}{path}/{rest}").status_code == 404
        assert api.post(f"{ROOT}{path}/messages/", {"messages": []}, format="json").status_code == 404
