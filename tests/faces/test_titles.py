"""Titles may quote messages, so staff without ``view_message_text`` read and find none of others, by any face."""

from types import SimpleNamespace

import pytest
from django.contrib.auth.models import Permission, User
from django.core.cache import cache
from django.test import Client
from django.urls import reverse
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory
from tests.faces.admin.admin_site import EVERYTHING

pytestmark = pytest.mark.django_db

TITLE = "My Wassermann test was positive"
ROOT = "/api/conversations/"
WITHOUT = tuple({*EVERYTHING, "set_conversation", "add_message"} - {"view_message_text"})


@pytest.fixture(autouse=True)
def without_rates(settings) -> None:
    settings.CHATMEMORY = {"REST": {"THROTTLE_RATES": {}}}
    cache.clear()


@pytest.fixture
def talk() -> Conversation:
    ann = User.objects.create_user("ann")
    talk = Conversation.objects.create(memory_id="c", owner=ann, title=TITLE, metadata={"topic": TITLE, "n": 1})
    get_chat_memory("c").add(UserMessage("hello"))
    return talk


def staff(name: str, *codenames: str) -> SimpleNamespace:
    user = User.objects.create_user(name, is_staff=True)
    permissions = Permission.objects.filter(content_type__app_label__startswith="chatmemory", codename__in=codenames)
    user.user_permissions.set([*permissions, *Permission.objects.filter(content_type__app_label="auth")])
    rest, site = APIClient(), Client()
    rest.force_authenticate(User.objects.get(pk=user.pk))
    site.force_login(user)
    key = Token.objects.create(user=user).key
    return SimpleNamespace(
        user=user, rest=rest, site=site, openai=APIClient(headers={"Authorization": f"Bearer {key}"})
    )


@pytest.fixture
def clerk(talk) -> SimpleNamespace:
    """Return staff with every permission but that to read texts."""
    return staff("clerk", *WITHOUT)


@pytest.fixture
def reader(talk) -> SimpleNamespace:
    return staff("reader", *WITHOUT, "view_message_text")


def admin_pages(talk: Conversation) -> list[str]:
    one = ("change", "history", "clear", "recount", "delete")
    return [
        reverse("admin:chatmemory_conversation_changelist"),
        *(reverse(f"admin:chatmemory_conversation_{name}", args=[talk.pk]) for name in one),
        *(reverse(f"admin:chatmemory_conversation_{name}", args=[talk.pk, 1]) for name in ("rewind", "fork", "remove")),
        reverse("admin:auth_user_delete", args=[talk.owner_id]),
        reverse("admin:index"),
    ]


class TestTheAdmin:
    def test_no_page_shows_it(self, talk, clerk):
        for address in admin_pages(talk):
            response = clerk.site.get(address)

            assert response.status_code == 200, address
            assert "Wassermann" not in response.content.decode(), address

    def test_the_pages_show_it_to_who_may_read_texts(self, talk, reader):
        for address in admin_pages(talk)[:6]:
            assert "Wassermann" in reader.site.get(address).content.decode(), address

    @pytest.mark.parametrize("name", ["clear_memory", "recount_tokens", "delete_selected"])
    def test_no_confirmation_and_no_message_shows_it(self, talk, clerk, name):
        chosen = {"action": name, "_selected_action": [talk.pk]}
        there = reverse("admin:chatmemory_conversation_changelist")
        confirmed = {"clear_memory": "clear", "recount_tokens": "recount", "delete_selected": "delete"}[name]

        for data in (chosen, {**chosen, "confirmed": confirmed}):
            assert "Wassermann" not in clerk.site.post(there, data, follow=True).content.decode()
        assert "Wassermann" not in clerk.site.get(reverse("admin:index")).content.decode()  # with the recent actions

    def test_it_is_neither_found_nor_ordered_by(self, talk, clerk, reader):
        there = reverse("admin:chatmemory_conversation_changelist")
        found = {
            name: who.site.get(there, {"q": "Wassermann"}) for name, who in {"clerk": clerk, "reader": reader}.items()
        }

        assert found["clerk"].context["cl"].result_count == 0
        assert found["reader"].context["cl"].result_count == 1
        assert clerk.site.get(there, {"q": "c"}).context["cl"].result_count == 1
        assert clerk.site.get(there, {"title__startswith": "My"}).status_code in {302, 400}
        Conversation.objects.create(memory_id="b", title="A")
        ordered = [
            [row.memory_id for row in clerk.site.get(there, {"o": f"{sign}2"}).context["cl"].result_list]
            for sign in ("", "-")
        ]
        assert clerk.site.get(there).context["cl"].list_display[2].__name__ == "owner"
        assert "title" not in str(clerk.site.get(there, {"o": "2"}).context["cl"].queryset.query.order_by)
        assert sorted(ordered[0]) == sorted(ordered[1]) == ["b", "c"]

    def test_no_entry_in_the_log_names_it(self, talk, clerk):
        clerk.site.post(reverse("admin:chatmemory_conversation_delete", args=[talk.pk]), {"confirmed": "delete"})
        clerk.site.post(reverse("admin:auth_user_delete", args=[talk.owner_id]), {"post": "yes"})

        assert "Wassermann" not in clerk.site.get(reverse("admin:index")).content.decode()


class TestRest:
    def test_it_is_null(self, clerk, reader):
        for path in (f"{ROOT}?owner=*", f"{ROOT}c/"):
            assert 'title":null' in clerk.rest.get(path).content.decode()
            assert TITLE in reader.rest.get(path).content.decode()

    def test_it_is_null_in_the_responses_to_changes(self, clerk):
        changed = clerk.rest.patch(f"{ROOT}c/", {"is_pinned": True}, format="json")
        forked = clerk.rest.post(f"{ROOT}c/fork/", {}, format="json")

        assert (changed.status_code, changed.json()["title"]) == (200, None)
        assert (forked.status_code, forked.json()["title"]) == (201, None)

    @pytest.mark.parametrize("query", [{"search": "Wassermann"}, {"title": "Wassermann"}])
    def test_it_is_not_found(self, clerk, reader, query):
        assert clerk.rest.get(ROOT, {"owner": "*", **query}).json()["results"] == []
        assert clerk.rest.delete(f"{ROOT}?owner=*&{next(iter(query))}=Wassermann").json()["erased"] == 0
        assert len(reader.rest.get(ROOT, {"owner": "*", **query}).json()["results"]) == 1

    def test_a_memory_id_is_found_all_the_same(self, clerk):
        assert len(clerk.rest.get(ROOT, {"owner": "*", "search": "c"}).json()["results"]) == 1

    def test_it_is_not_ordered_by(self, clerk):
        assert clerk.rest.get(ROOT, {"owner": "*", "ordering": "title"}).status_code == 400

    def test_a_guess_is_not_confirmed(self, clerk):
        tags = [clerk.rest.get(f"{ROOT}c/")["ETag"]]
        tags += [clerk.rest.patch(f"{ROOT}c/", {"title": title}, format="json")["ETag"] for title in (TITLE, "b", "b")]
        statuses = [
            clerk.rest.post(ROOT, {"memory_id": "c", "title": title}, format="json").status_code for title in ("b", "x")
        ]

        assert len(set(tags)) == 4
        assert statuses == [409, 409]

    def test_owners_read_and_find_their_own(self, clerk, talk):
        Conversation.objects.update(owner=clerk.user)

        for query in ({}, {"search": "Wassermann"}, {"title": "Wassermann"}):
            assert [each["title"] for each in clerk.rest.get(ROOT, query).json()["results"]] == [TITLE]


class TestOpenAIsApi:
    def test_metadata_which_may_have_it_is_not_shown(self, clerk, reader):
        path = "/openai/v1/conversations/c"

        assert clerk.openai.get(path).json()["metadata"] == {}
        assert clerk.openai.post(path, {"metadata": {"a": "b"}}, format="json").json()["metadata"] == {}
        assert reader.openai.get(path).json()["metadata"] == {"a": "b"}
        assert Conversation.objects.get().metadata == {"n": 1, "a": "b"}
