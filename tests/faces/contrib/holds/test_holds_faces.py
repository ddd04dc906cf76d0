"""Legal holds in the admin and by REST: who places and ends them, and what they refuse there."""

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.urls import include, path, reverse
from rest_framework.test import APIClient

from chatmemory_django.contrib.holds.models import LegalHold
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from example_project.urls import urlpatterns as of_site
from tests.faces.admin.admin_site import EVERYTHING, page, staff

pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]

urlpatterns = [path("api/", include("chatmemory_django.contrib.holds.urls")), *of_site]

HOLDS = ("view_legalhold", "add_legalhold", "change_legalhold")
ROOT = "/api/holds/"


@pytest.fixture
def ann():
    return User.objects.create_user("ann")


@pytest.fixture
def talk(ann):
    get_chat_memory("c", owner=ann).add(UserMessage("hi"), AiMessage("hello"))
    return Conversation.objects.get()


@pytest.fixture
def eva():
    return staff(*EVERYTHING, *HOLDS, name="eva")


def client_of(user: User) -> APIClient:
    client = APIClient()
    client.force_authenticate(user)
    return client


@pytest.fixture
def held(talk):
    return LegalHold.objects.create(conversation=talk, reason="Case 7", placed_by="eva")


class TestRest:
    def test_a_hold_is_placed_listed_and_ended(self, talk, eva):
        api = client_of(eva)

        placed = api.post(ROOT, {"memory_id": "c", "reason": "Case 7", "until": "2999-01-01T00:00:00Z"}, format="json")
        listed = api.get(ROOT).json()["results"]
        ended = api.post(f"{ROOT}{placed.json()['id']}/end/").json()

        assert placed.status_code == 201
        assert [placed.json()] == listed
        known = {name: placed.json()[name] for name in ("memory_id", "owner", "reason", "placed_by", "is_active")}
        assert known == {"memory_id": "c", "owner": None, "reason": "Case 7", "placed_by": "eva", "is_active": True}
        assert (ended["is_active"], ended["ended_by"]) == (False, "eva")
        assert client_of(eva).delete("/api/conversations/c/").status_code == 204

    def test_an_owner_is_held_by_their_key(self, talk, ann, eva):
        placed = client_of(eva).post(ROOT, {"owner": str(ann.pk), "reason": "Case 7"}, format="json")

        assert (placed.status_code, placed.json()["owner"]) == (201, str(ann.pk))

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            ({"reason": "Case 7"}, 400),
            ({"memory_id": "c", "owner": "1", "reason": "Case 7"}, 400),
            ({"memory_id": "c"}, 400),
            ({"memory_id": "c", "reason": "x" * 201}, 400),
            ({"memory_id": "c", "reason": "Case 7", "until": "tomorrow"}, 400),
            ({"memory_id": "missing", "reason": "Case 7"}, 404),
            ({"owner": "987654", "reason": "Case 7"}, 400),
            ({"owner": "x", "reason": "Case 7"}, 400),
        ],
    )
    def test_what_cannot_be_held_is_an_error(self, talk, eva, body, status):
        assert client_of(eva).post(ROOT, body, format="json").status_code == status
        assert not LegalHold.objects.exists()

    def test_only_staff_with_each_permission_see_place_and_end(self, held, ann):
        ann.user_permissions.set(Permission.objects.filter(codename__in=HOLDS))
        nobody = staff(*EVERYTHING, name="nobody")
        for user in (ann, nobody):
            api = client_of(User.objects.get(pk=user.pk))
            asked = [
                api.get(ROOT),
                api.post(ROOT, {"memory_id": "c", "reason": "x"}, format="json"),
                api.post(f"{ROOT}{held.pk}/end/"),
            ]
            assert [each.status_code for each in asked] == [403, 403, 403]
        held.refresh_from_db()
        assert held.is_active
        assert APIClient().get(ROOT).status_code == 401

    @pytest.mark.parametrize(
        "erase",
        [
            lambda api: api.delete("/api/conversations/c/"),
            lambda api: api.delete("/api/conversations/c/memory/"),
            lambda api: api.delete("/api/conversations/c/messages/1/"),
        ],
        ids=["erase", "clear", "remove"],
    )
    def test_who_erases_what_is_held_gets_a_conflict_that_does_not_say_why(self, held, eva, erase):
        response = erase(client_of(eva))

        assert (response.status_code, response.json()["type"]) == (409, "urn:chatmemory:protected")
        assert "hold" not in response.content.decode().lower()
        assert Message.objects.exclude(text="").count() == 2


class TestAdmin:
    def test_a_hold_is_placed_and_ended_by_name_and_in_the_log(self, client, talk, eva):
        client.force_login(eva)
        client.post(reverse("admin:chatmemory_holds_legalhold_add"), {"conversation": talk.pk, "reason": "Case 7"})
        hold = LegalHold.objects.get()
        assert (hold.placed_by, hold.is_active) == ("eva", True)

        chosen = {"action": "end_holds", "_selected_action": [hold.pk]}
        client.post(reverse("admin:chatmemory_holds_legalhold_changelist"), chosen)

        hold.refresh_from_db()
        assert (hold.ended_by, hold.is_active) == ("eva", False)
        assert LogEntry.objects.filter(object_id=str(hold.pk), user=eva).count() == 2

    def test_a_placed_hold_cannot_be_changed(self, client, held, eva):
        client.force_login(eva)
        change = reverse("admin:chatmemory_holds_legalhold_change", args=[held.pk])

        assert "Case 7" in client.get(change).content.decode()
        client.post(change, {"reason": "other", "until_0": "2000-01-01", "until_1": "00:00"})

        held.refresh_from_db()
        assert (held.reason, held.until) == ("Case 7", None)

    def test_a_hold_on_two_things_is_an_error_of_the_form(self, client, talk, ann, eva):
        client.force_login(eva)
        both = {"conversation": talk.pk, "owner": ann.pk, "reason": "Case 7"}

        response = client.post(reverse("admin:chatmemory_holds_legalhold_add"), both)

        assert "A hold is on a conversation or on an owner" in response.content.decode()

    @pytest.mark.parametrize(("name", "confirmed"), [("delete", "delete"), ("clear", "clear")])
    def test_what_is_held_is_refused_with_the_name_of_what_protects_it(self, client, talk, held, eva, name, confirmed):
        client.force_login(eva)

        html = client.post(page(name, talk.pk), {"confirmed": confirmed}, follow=True).content.decode()

        assert "protected objects refer to it: legal hold" in html
        assert Message.objects.count() == 2

    def test_the_page_that_deletes_its_user_lists_it(self, client, held, ann):
        client.force_login(User.objects.create_superuser("root"))

        html = client.get(reverse("admin:auth_user_delete", args=[ann.pk])).content.decode()

        assert "Case 7" in html
        assert "protected related objects" in html


def test_a_hold_is_not_deleted_in_the_admin_but_goes_with_whom_it_was_on(ann, client):
    hold = LegalHold.objects.create(owner=ann, reason="Case 7", placed_by="eva")
    client.force_login(staff("view_legalhold", "delete_legalhold", name="eva"))
    assert (
        client.post(reverse("admin:chatmemory_holds_legalhold_delete", args=[hold.pk]), {"post": "yes"}).status_code
        == 403
    )
    hold.end(ann)

    tom = staff(name="tom")
    tom.user_permissions.set(Permission.objects.filter(codename="delete_user"))
    client.force_login(tom)
    client.post(reverse("admin:auth_user_delete", args=[ann.pk]), {"post": "yes"})

    assert not User.objects.filter(pk=ann.pk).exists()


@pytest.mark.parametrize("name", ["owner", "conversation", "conversation__id__exact"])
def test_a_key_in_the_address_that_no_database_has_is_no_error_of_the_list(eva, client, held, name):
    client.force_login(eva)

    listed = client.get(reverse("admin:chatmemory_holds_legalhold_changelist"), {name: "9" * 20}, follow=True)

    assert listed.status_code == 200
