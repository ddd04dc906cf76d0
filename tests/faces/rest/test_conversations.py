"""Conversations: listing, creating, renaming, erasing."""

import datetime
import json
import uuid
from urllib.parse import quote

import pytest

from chatmemory_django.messages import SystemMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from tests.database.test_operations import holding
from tests.faces.rest.conftest import HI, ROOT, adding, memory_ids, pages, paths

pytestmark = pytest.mark.django_db

MEMORY_ID = "0192f5a0-7c1e-7b39-9d3c-2f6d1c0b7a11"


def listed(api, **query) -> list[str]:
    return memory_ids(api.get(ROOT, query))


def state() -> list:
    return list(Conversation.objects.order_by("pk").values("version", "updated_at", "title", "metadata"))


class TestList:
    def test_has_the_fields_of_a_sidebar(self, api, begin, person):
        begin("a", SystemMessage("secret"), *[UserMessage(str(number)) for number in range(5)], SystemMessage("more"))
        Conversation.objects.update(title="京都 😀", metadata={"n": [1, None]}, is_pinned=True)

        (found,) = api.get(ROOT).json()["results"]

        moments = {name: datetime.datetime.fromisoformat(found.pop(name)) for name in ("created_at", "updated_at")}
        assert moments["updated_at"] == Conversation.objects.get().updated_at
        assert found == {
            "memory_id": "a",
            "owner": str(person("owner").pk),
            "title": "京都 😀",
            "metadata": {"n": [1, None]},
            "assistant": "",
            "is_pinned": True,
            "is_archived": False,
            "preview": "4",
            "total_messages": 7,
            "memory_messages": 3,
            "memory_tokens": 0,
            "temporary": False,
            "kept_until": None,
        }
        assert api.get(f"{ROOT}a/").json() == {**found, **{name: api.get(f"{ROOT}a/").json()[name] for name in moments}}

    def test_ignores_empty_filters(self, api, begin):
        begin("a")

        assert listed(api, title="", search="", is_pinned="", owner="") == ["a"]

    def test_finds_one_by_its_memory_id_and_none_of_others(self, api, begin, client_of):
        begin("a")
        begin("ab")

        assert listed(api, memory_id="a") == ["a"]
        assert listed(api, memory_id="b") == []
        assert listed(client_of("other"), memory_id="a") == []

    @pytest.mark.parametrize(
        ("query", "path"),
        [
            ({"page_size": "0"}, "?page_size"),
            ({"page_size": "201"}, "?page_size"),
            ({"page_size": "-1"}, "?page_size"),
            ({"page_size": "x"}, "?page_size"),
            ({"page_size": "٣"}, "?page_size"),
            ({"page_size": ""}, "?page_size"),
            ({"page_size": "9" * 400}, "?page_size"),
            ({"page_size": "null"}, "?page_size"),
            ({"metadata": "a"}, "?metadata"),
            ({"metadata": ":b"}, "?metadata"),
            ({"metadata": "k" * 65 + ":b"}, "?metadata"),
            ({"metadata": "a__contains:b\0"}, "?metadata"),
            ({"title": "\0"}, "?title"),
            ({"title": "x" * 256}, "?title"),
            ({"search": "x" * 256}, "?search"),
            ({"active_since": "yesterday"}, "?active_since"),
            ({"active_since": "2026-01-01T00:00:00"}, "?active_since"),
            ({"active_since": "2026-01-01"}, "?active_since"),
            ({"active_since": "9999-12-31T23:59:59-12:00"}, "?active_since"),
            ({"active_since": "null"}, "?active_since"),
            ({"active_since": "0.5"}, "?active_since"),
            ({"is_pinned": "maybe"}, "?is_pinned"),
            ({"ordering": "title"}, "?ordering"),
            ({"ordering": "-updated_at,owner__password"}, "?ordering"),
            ({"ordering": "?"}, "?ordering"),
            ({"colour": "red"}, "?colour"),
            ({"title__regex": "x"}, "?title__regex"),
        ],
    )
    def test_names_an_invalid_parameter(self, api, begin, query, path):
        begin("c")

        response = api.get(ROOT, query)

        assert response.status_code == 400
        assert paths(response) == [path]

    def test_reports_all_errors_at_once(self, api):
        response = api.get(ROOT, {"is_pinned": "maybe", "active_since": "yesterday", "metadata": "a"})

        assert sorted(paths(response)) == ["?active_since", "?is_pinned", "?metadata"]


class TestCreate:
    def test_generates_an_id(self, api, person):
        response = api.post(ROOT)

        memory_id = response.json()["memory_id"]
        assert response.status_code == 201
        assert uuid.UUID(memory_id)
        assert response["Location"] == f"http://testserver{ROOT}{memory_id}/"
        assert api.get(response["Location"]).json() == response.json()
        assert api.get(response["Location"])["ETag"] == response["ETag"]
        assert Conversation.objects.get().owner == person("owner")

    def test_twice_with_the_same_id_creates_one(self, api):
        body = {"memory_id": MEMORY_ID, "title": "t", "metadata": {"a": 1}}

        first, second = (api.post(ROOT, body, format="json") for _ in range(2))

        assert first.status_code == second.status_code == 201
        assert first.json() == second.json()
        assert Conversation.objects.count() == 1

    @pytest.mark.parametrize("change", [{"title": "u"}, {"metadata": {"a": 2}}, {"metadata": {"a": True}}])
    def test_with_an_id_that_is_taken_is_refused(self, api, change):
        api.post(ROOT, {"memory_id": MEMORY_ID, "title": "t", "metadata": {"a": 1}}, format="json")

        response = api.post(ROOT, {"memory_id": MEMORY_ID, "title": "t", **change}, format="json")

        assert response.status_code == 409
        assert Conversation.objects.get().title == "t"

    def test_with_another_users_id_is_refused(self, api, client_of):
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
            ({"metadata": {"a": "x" * 20_000}}, "$.metadata"),
            ({"metadata": {"a": {"b": "\0"}}}, "$.metadata"),
            ({"metadata": {"a": float("1e400")}}, "$"),
            ({"is_pinned": "yes"}, "$.is_pinned"),
            ({"is_pinned": None}, "$.is_pinned"),
            ({"colour": "red"}, "$.colour"),
            ({"owner": "1"}, "$.owner"),
            ({"version": 1}, "$.version"),
            ([], "$"),
            (None, "$"),
            ("x", "$"),
        ],
    )
    def test_names_errors(self, api, body, path):
        response = api.post(ROOT, json.dumps(body), content_type="application/json")

        assert response.status_code == 400
        assert paths(response) == [path]
        assert not Conversation.objects.exists()

    def test_of_a_temporary_one_returns_until_when_it_is_kept(self, api, settings):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "RETENTION": {"TEMPORARY": 2}}
        body = {"memory_id": str(uuid.uuid4()), "temporary": True}
        first, again = (api.post(ROOT, body, format="json") for _ in range(2))

        kept = datetime.datetime.fromisoformat(first.json()["kept_until"]) - Conversation.objects.get().created_at
        assert round(kept.total_seconds() / 3600) == 48
        assert (first.json()["temporary"], first.status_code, again.status_code) == (True, 201, 201)
        assert again.json() == first.json()
        where = f"{ROOT}{body['memory_id']}/"
        assert api.post(ROOT, {**body, "temporary": False}, format="json").status_code == 409
        assert api.patch(where, {"temporary": False}, format="json").status_code == 400  # a promise is not taken back
        assert api.patch(where, {"kept_until": None}, format="json").status_code == 400

    @pytest.mark.parametrize("retention", [{}, {"RETENTION": {"TEMPORARY": None}}], ids=["unset", "none"])
    def test_of_a_temporary_one_is_refused_where_nothing_would_erase_it(self, api, settings, retention):
        settings.CHATMEMORY = {"REST": {"THROTTLE_RATES": {}}, **retention}

        response = api.post(ROOT, {"temporary": True}, format="json")

        assert (response.status_code, response.json()["errors"][0]["path"]) == (400, "$.temporary")
        assert not Conversation.objects.exists()


class TestUpdate:
    def test_of_the_title_keeps_the_metadata(self, api, begin):
        begin("a", UserMessage("hi"))
        api.patch(f"{ROOT}a/", {"metadata": {"a": 1}}, format="json")

        response = api.patch(f"{ROOT}a/", {"title": "new"}, format="json")

        assert response.status_code == 200
        assert (response.json()["title"], response.json()["metadata"]) == ("new", {"a": 1})
        assert api.get(f"{ROOT}a/").json() == response.json()
        assert Message.objects.count() == 1

    def test_requires_the_current_etag(self, api, begin):
        begin("a")
        seen = api.get(f"{ROOT}a/")["ETag"]

        first = api.patch(f"{ROOT}a/", {"title": "one"}, format="json", headers={"If-Match": seen})
        second = api.patch(f"{ROOT}a/", {"title": "two"}, format="json", headers={"If-Match": seen})
        third = api.patch(f"{ROOT}a/", {"title": "3"}, format="json", headers={"If-Match": f'"x", {first["ETag"]}'})

        assert [each.status_code for each in (first, second, third)] == [200, 412, 200]
        assert paths(second) == ["If-Match"]
        assert Conversation.objects.get().title == "3"

    def test_requires_an_existing_conversation(self, api, begin):
        begin("a")

        assert api.patch(f"{ROOT}a/", {}, format="json", headers={"If-Match": "*"}).status_code == 200
        assert api.patch(f"{ROOT}b/", {}, format="json", headers={"If-Match": "*"}).status_code == 404

    @pytest.mark.parametrize("changes", [{"title": 1}, {"memory_id": "b"}, {"owner": 1}, {"metadata": None},
                                         {"updated_at": "2026-01-01T00:00:00Z"}, {"total_messages": 0}])  # fmt: skip
    def test_of_other_fields_is_refused(self, api, begin, changes):
        begin("a")
        before = state()

        response = api.patch(f"{ROOT}a/", {"is_pinned": True, **changes}, format="json")

        assert response.status_code == 400
        assert paths(response) == [f"$.{next(iter(changes))}"]
        assert state() == before

    @pytest.mark.parametrize("changes", [{}, {"title": "t"}, {"metadata": {"a": 1}, "is_pinned": False}])
    def test_with_equal_values_changes_nothing(self, api, begin, changes):
        begin("a")
        Conversation.objects.update(title="t", metadata={"a": 1})
        before, seen = state(), api.get(f"{ROOT}a/")

        response = api.patch(f"{ROOT}a/", changes, format="json")

        assert (response.status_code, response["ETag"], response.json()) == (200, seen["ETag"], seen.json())
        assert state() == before

    @pytest.mark.parametrize(("before", "after"), [({"a": 1}, {"a": True}), ({"a": False}, {"a": 0})])
    def test_distinguishes_values_that_only_python_finds_equal(self, api, begin, before, after):
        begin("a")
        Conversation.objects.update(metadata=before)

        response = api.patch(f"{ROOT}a/", {"metadata": after}, format="json")

        assert json.dumps(response.json()["metadata"]) == json.dumps(after)
        assert json.dumps(Conversation.objects.get().metadata) == json.dumps(after)

    @pytest.mark.parametrize("changes", [{"title": "new"}, {"is_pinned": True}, {"metadata": {"a": 1}}])
    def test_of_a_title_does_not_reorder_a_sidebar(self, api, begin, changes):
        for name in "ab":
            begin(name)

        response = api.patch(f"{ROOT}a/", changes, format="json")

        assert response.status_code == 200
        assert listed(api) == ["b", "a"]

    def test_archives_and_pins(self, api, begin):
        begin("a")

        response = api.patch(f"{ROOT}a/", {"is_archived": True, "is_pinned": True}, format="json")

        assert (response.json()["is_archived"], response.json()["is_pinned"]) == (True, True)
        assert listed(api, is_archived="true") == ["a"]

    def test_keeps_messages_added_concurrently(self, api, begin, monkeypatch):
        begin("a")
        save = Conversation.save

        def say_and_save(conversation, **options):
            get_chat_memory("a").add(UserMessage("meanwhile"))
            save(conversation, **options)

        monkeypatch.setattr(Conversation, "save", say_and_save)

        assert api.patch(f"{ROOT}a/", {"title": "new"}, format="json").status_code == 200
        assert Conversation.objects.values_list("total_messages", "title").get() == (1, "new")


class TestErase:
    def test_deletes_everything(self, api, begin):
        begin("a", UserMessage("hi"))
        begin("b", UserMessage("hi"))

        assert api.delete(f"{ROOT}a/").status_code == 204
        assert api.delete(f"{ROOT}a/").status_code == 404
        assert listed(api) == ["b"]
        assert Message.objects.count() == 1

    def test_requires_the_current_etag(self, api, begin):
        begin("a")
        seen = api.get(f"{ROOT}a/")["ETag"]
        api.post(f"{ROOT}a/messages/", adding(HI), format="json")

        assert api.delete(f"{ROOT}a/", headers={"If-Match": seen}).status_code == 412
        assert Conversation.objects.count() == 1

    def test_of_a_protected_conversation_is_a_conflict(self, api, begin):
        begin("a", UserMessage("hi"))

        with holding("a"):
            response = api.delete(f"{ROOT}a/")

        assert (response.status_code, response.json()["type"]) == (409, "urn:chatmemory:protected")
        assert Conversation.objects.count() == Message.objects.count() == 1


class TestEraseInBulk:
    def test_erases_what_the_filters_select(self, api, begin):
        for name in "abc":
            begin(name, UserMessage("hi"))
        Conversation.objects.filter(memory_id__in="ab").update(is_archived=True)

        response = api.delete(f"{ROOT}?is_archived=true")

        assert (response.status_code, response.json()) == (200, {"erased": 2, "protected": [], "files_to_delete": 0})
        assert listed(api) == ["c"]
        assert Message.objects.count() == 1

    @pytest.mark.parametrize("query", ["", "?", "?title=", "?title=&search=", "?owner=*", "?owner=*&metadata="])
    def test_requires_an_effective_filter(self, api, client_of, begin, query):
        begin("a")

        for client in (api, client_of("staff with every permission")):
            response = client.delete(f"{ROOT}{query}")

            assert response.status_code == 400
            assert Conversation.objects.count() == 1

    @pytest.mark.parametrize("query", ["?is_pinned=maybe", "?colour=red", "?page_size=1", "?cursor=x", "?ordering=x"])
    def test_with_an_invalid_filter_erases_nothing(self, api, begin, query):
        begin("a")

        assert api.delete(f"{ROOT}{query}&title=").status_code == 400
        assert Conversation.objects.count() == 1

    def test_erases_other_users_conversations_only_on_request(self, begin, client_of, person):
        begin("a")
        owner = person("owner").pk
        for name in ("other", "staff who see", "staff who delete unseen"):
            for query in ("?is_pinned=false", "?is_pinned=false&owner=*", f"?owner={owner}"):
                assert client_of(name).delete(f"{ROOT}{query}").json() == {
                    "erased": 0,
                    "protected": [],
                    "files_to_delete": 0,
                }
        staff = client_of("staff who delete")

        assert staff.delete(f"{ROOT}?is_pinned=false").json()["erased"] == 0
        assert staff.delete(f"{ROOT}?owner={owner}").json()["erased"] == 1

    def test_keeps_protected_conversations_and_names_them(self, api, begin):
        for name in "abc":
            begin(name, UserMessage("hi"))

        with holding("b"):
            response = api.delete(f"{ROOT}?is_pinned=false")

        assert response.json() == {"erased": 2, "protected": ["b"], "files_to_delete": 0}
        assert listed(api) == ["b"]
        assert Message.objects.count() == 1

    def test_does_not_search_texts_that_the_user_may_not_read(self, begin, client_of, api):
        begin("a", SystemMessage("secret"), UserMessage("hi"))

        assert api.delete(f"{ROOT}?search=secret").json()["erased"] == 0
        assert client_of("staff who delete").delete(f"{ROOT}?owner=*&search=hi").json()["erased"] == 0


class TestMemoryIds:
    @pytest.mark.parametrize("memory_id", ["a b", "京都", "a?b", "x" * 255, "..."])
    def test_can_have_any_characters_except_a_slash(self, api, begin, memory_id):
        begin(memory_id, UserMessage("hi"))
        path = f"{ROOT}{quote(memory_id, safe='')}/messages"

        assert api.get(path).status_code == 200
        assert [page["results"][0]["sequence"] for page in pages(api, f"{path}/?page_size=1")] == [1]

    @pytest.mark.parametrize("path", ["%00", "a%00", "x" * 256, "%ff%fe", "%ed%a0%80", " "])
    def test_that_are_invalid_are_not_found(self, api, path):
        for rest in ("", "messages/", "messages/1/", "memory/", "export/"):
            assert api.get(f"{ROOT}{path}/{rest}").status_code == 404
        assert api.post(f"{ROOT}{path}/messages/", adding(HI), format="json").status_code == 404
