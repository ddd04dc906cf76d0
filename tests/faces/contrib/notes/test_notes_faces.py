"""A user's notes by REST and on their page, and in the admin: their own alone, and texts for those who may read."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.dispatch import Signal
from django.test import Client
from django.urls import reverse
from django.utils import translation
from rest_framework.test import APIClient

from chatmemory_django.contrib.holds.models import LegalHold
from chatmemory_django.contrib.notes.keeping import is_on, keep, switch
from chatmemory_django.contrib.notes.models import Note
from chatmemory_django.contrib.notes.signals import notes_read
from example_project.policy import POLICY
from tests.faces.admin.admin_site import staff

pytestmark = pytest.mark.django_db

ROOT, PAGE = "/api/notes/", "/notes/"
TEXT, EVES = "Is allergic to nuts", "a secret of eve"
HOSTILE = '"><script>alert(1)</script>{{ 7|add:7 }}'


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


@pytest.fixture
def eve() -> User:
    return User.objects.create_user("eve")


@pytest.fixture
def api(ann) -> APIClient:
    client = APIClient()
    client.force_authenticate(ann)
    return client


@pytest.fixture
def client(ann) -> Client:
    client = Client()
    client.force_login(ann)
    return client


@pytest.fixture
def eves(eve) -> int:
    """The number of a note of eve: ann has none with it."""
    for text in ("one", "two", EVES):
        note = keep(eve, text)
    return note.number


def texts_of(owner: Any) -> list[str]:
    return [note.text for note in Note.objects.owned_by(owner)]


def hold(owner: User) -> LegalHold:
    return LegalHold.objects.create(owner=owner, reason="Case 7", placed_by="eva")


@contextmanager
def connected(signal: Signal, receive: Callable[..., object]) -> Iterator[None]:
    def receiver(sender: object, **sent: Any) -> None:
        receive(**sent)

    signal.connect(receiver)
    yield
    signal.disconnect(receiver)


class TestRest:
    def test_a_note_is_added_listed_changed_and_deleted(self, api, ann):
        added = api.post(ROOT, {"text": f"  {TEXT}\n"}, format="json")
        listed = api.get(ROOT).json()["results"]
        changed = api.patch(f"{ROOT}1/", {"text": "Is not allergic"}, format="json")

        assert (added.status_code, changed.status_code) == (201, 200)
        assert added.json() == listed[0]
        assert set(added.json()) == {"number", "text", "created_at", "updated_at"}
        assert (added.json()["number"], added.json()["text"]) == (1, TEXT)
        assert texts_of(ann) == ["Is not allergic"]
        assert api.delete(f"{ROOT}1/").status_code == 204
        assert api.delete(f"{ROOT}1/").status_code == 404

    def test_another_users_note_is_not_found(self, api, eve, eves):
        keep(User.objects.get(username="ann"), TEXT)

        assert [each["text"] for each in api.get(ROOT).json()["results"]] == [TEXT]
        assert api.patch(f"{ROOT}{eves}/", {"text": "changed"}, format="json").status_code == 404
        assert api.delete(f"{ROOT}{eves}/").status_code == 404
        assert api.delete(ROOT).status_code == 204
        assert texts_of(eve)[-1] == EVES

    def test_staff_have_no_others_by_rest_either(self, eve, eves):
        client = APIClient()
        client.force_authenticate(staff("view_note", "delete_note", "view_message_text"))

        assert client.get(ROOT).json()["results"] == []
        assert client.delete(f"{ROOT}{eves}/").status_code == 404

    def test_nobody_has_none(self):
        for method in ("get", "post", "delete"):
            assert getattr(APIClient(), method)(ROOT).status_code == 401
        assert APIClient().get("/api/notebook/").status_code == 401

    @pytest.mark.parametrize("text", ["", " ", "x" * 301, "a\0b", "a\u202eb", None, 7, ["a"]])
    def test_what_is_no_note_is_refused_where_it_is(self, api, ann, text):
        keep(ann, TEXT)

        for refused in (
            api.post(ROOT, {"text": text}, format="json"),
            api.patch(f"{ROOT}1/", {"text": text}, format="json"),
        ):
            assert refused.status_code == 400
            assert refused.json()["errors"][0]["path"] == "$.text"
        assert texts_of(ann) == [TEXT]

    @pytest.mark.parametrize("body", [{}, {"text": "a", "number": 1}, {"text": "a", "owner": 2}, []])
    def test_a_body_has_a_text_and_nothing_else(self, api, ann, body):
        keep(ann, TEXT)

        assert api.post(ROOT, body, format="json").status_code == 400
        assert api.patch(f"{ROOT}1/", body, format="json").status_code == 400

    @pytest.mark.parametrize("number", ["0", "2", "2147483648", "9" * 18, "9" * 19, "-1", "x"])
    def test_a_number_that_no_note_has_is_not_found(self, api, ann, number):
        keep(ann, TEXT)

        assert api.delete(f"{ROOT}{number}/").status_code == 404

    def test_one_more_than_allowed_is_a_conflict(self, api, ann, settings):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "NOTES": {"MAX_NOTES": 1}}
        keep(ann, TEXT)

        refused = api.post(ROOT, {"text": "another"}, format="json")

        assert (refused.status_code, refused.json()["type"]) == (409, "urn:chatmemory:full")

    def test_the_quota_of_the_site_counts_notes(self, api, ann, settings):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "STORAGE_QUOTA": 10}

        assert api.post(ROOT, {"text": "123456"}, format="json").status_code == 201
        assert api.post(ROOT, {"text": "123456"}, format="json").status_code == 400
        assert texts_of(ann) == ["123456"]

    def test_they_are_switched_off_and_on(self, api, ann):
        assert api.get("/api/notebook/").json() == {"is_on": True, "max_notes": 30, "max_length": 300}

        assert api.patch("/api/notebook/", {"is_on": False}, format="json").json()["is_on"] is False
        refused = api.post(ROOT, {"text": TEXT}, format="json")
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:chatmemory:off")
        assert api.patch("/api/notebook/", {"is_on": "yes"}, format="json").status_code == 400
        assert api.patch("/api/notebook/", {"is_on": True}, format="json").json()["is_on"] is True

    def test_a_held_note_stays(self, api, ann):
        keep(ann, TEXT)
        hold(ann)

        refused = api.delete(f"{ROOT}1/")
        assert refused.status_code == 409
        assert "conversation" not in refused.json()["detail"]
        assert api.delete(ROOT).status_code == 409
        assert api.patch(f"{ROOT}1/", {"text": "gone"}, format="json").status_code == 409
        assert texts_of(ann) == [TEXT]


def post(client: Client, action: str, number: object = "", text: str = "") -> Any:
    return client.post(
        PAGE, {"action": action, "number": number, "text": text} if number else {"action": action, "text": text}
    )


class TestPage:
    def test_a_user_adds_changes_and_deletes_notes(self, client, ann):
        assert post(client, "keep", text=TEXT).status_code == 302
        assert TEXT in client.get(PAGE).content.decode()
        post(client, "change", 1, "Is not allergic")
        assert texts_of(ann) == ["Is not allergic"]
        post(client, "keep", text="another"), post(client, "keep", text="a third")
        post(client, "drop", 1)
        assert texts_of(ann) == ["another", "a third"]
        post(client, "drop_all")
        assert texts_of(ann) == []
        assert "There are no notes yet." in client.get(PAGE).content.decode()

    def test_another_users_note_is_neither_shown_nor_touched(self, client, eve, eves):
        assert EVES not in client.get(PAGE).content.decode()
        for action in ("change", "drop", "drop_all"):
            assert EVES not in post(client, action, eves, "changed").content.decode()
        assert texts_of(eve)[-1] == EVES

    def test_who_is_not_signed_in_signs_in_first(self):
        answer = Client().get(PAGE)

        assert answer.status_code == 302
        assert answer.url.startswith("/sign-in/")

    def test_it_needs_a_csrf_token(self, ann):
        client = Client(enforce_csrf_checks=True)
        client.force_login(ann)

        assert post(client, "keep", text=TEXT).status_code == 403
        assert texts_of(ann) == []

    def test_a_text_is_escaped(self, client, ann):
        keep(ann, HOSTILE)

        shown = client.get(PAGE).content.decode()

        assert "<script" not in shown
        assert "&quot;&gt;&lt;script&gt;" in shown
        assert "{{ 7|add:7 }}" in shown

    def test_it_keeps_the_policy_of_the_site_and_is_not_cached(self, client, ann):
        keep(ann, TEXT)

        answer = client.get(PAGE)

        assert answer["Content-Security-Policy"] == POLICY
        assert "no-store" in answer["Cache-Control"]
        assert not re.search(r"<style|<script|\sstyle=|\son\w+=", answer.content.decode())

    @pytest.mark.parametrize(
        ("text", "words"), [(" ", "A note has 1 to 300 characters"), ("x" * 301, "A note has 1 to")]
    )
    def test_what_is_no_note_is_shown_again_with_what_is_wrong(self, client, ann, text, words):
        answer = post(client, "keep", text=text)

        assert answer.status_code == 400
        assert words in answer.content.decode()
        assert f'value="{text}"' in answer.content.decode()

    def test_a_full_notebook_offers_no_more(self, client, ann, settings):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "NOTES": {"MAX_NOTES": 1}}
        keep(ann, TEXT)

        assert 'value="keep"' not in client.get(PAGE).content.decode()
        assert post(client, "keep", text="another").status_code == 400

    def test_notes_are_switched_off_and_on(self, client, ann):
        post(client, "switch_off")

        assert not is_on(ann)
        assert "Notes are switched off" in client.get(PAGE).content.decode()
        assert post(client, "keep", text=TEXT).status_code == 400

        post(client, "switch_on")

        assert is_on(ann)

    @pytest.mark.parametrize(
        "posted", [{}, {"action": "erase"}, {"action": "drop", "number": "x"}, {"action": "drop", "number": "²"}]
    )
    def test_what_no_button_sends_is_refused(self, client, posted):
        assert client.post(PAGE, posted).status_code == 403

    def test_a_number_beyond_all_deletes_nothing(self, client, ann):
        keep(ann, TEXT)

        assert client.post(PAGE, {"action": "drop", "number": "1" + "0" * 5000}).status_code == 403
        assert texts_of(ann) == [TEXT]

    def test_a_held_note_stays(self, client, ann):
        keep(ann, TEXT)
        hold(ann)

        for action in ("change", "drop", "drop_all"):
            answer = post(client, action, 1, "gone")
            assert "legal hold" in answer.content.decode()
        assert texts_of(ann) == [TEXT]

    def test_whom_the_policy_does_not_allow_has_no_page(self, client, settings):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "ACCESS_POLICY": f"{__name__}.NobodyPolicy"}

        assert client.get(PAGE).status_code == 403

    def test_it_is_translated(self, client, ann):
        keep(ann, TEXT)
        with translation.override("de"):
            assert "Notizen über Sie" in client.get(PAGE, headers={"Accept-Language": "de"}).content.decode()

    def test_each_field_and_button_has_a_name_of_its_own(self, client, ann):
        keep(ann, TEXT), keep(ann, "another")

        shown = client.get(PAGE).content.decode()

        labelled = set(re.findall(r'<label for="([^"]+)"', shown))
        assert labelled == set(re.findall(r'<input id="([^"]+)"', shown)) == {"note-1", "note-2", "new-note"}
        names = re.findall(r'aria-label="([^"]+)"', shown)
        assert len(names) == len(set(names)) == 4

    def test_the_chat_leads_there(self, client):
        assert f'href="{PAGE}"' in client.get("/").content.decode()


class TestAdmin:
    LIST = "admin:chatmemory_notes_note_changelist"

    @pytest.fixture(autouse=True)
    def notes(self, ann, eve):
        keep(ann, TEXT), keep(eve, EVES)

    def client_with(self, *permissions: str) -> Client:
        client = Client()
        client.force_login(staff(*permissions))
        return client

    def test_texts_are_for_those_who_may_read_them(self):
        note = Note.objects.get(owner__username="ann")
        one = reverse("admin:chatmemory_notes_note_change", args=[note.pk])
        reader = Client()
        reader.force_login(staff("view_note", "view_message_text", name="reader"))
        other = self.client_with("view_note")

        assert all(TEXT in reader.get(where).content.decode() for where in (reverse(self.LIST), one))
        for where in (reverse(self.LIST), one):
            shown = other.get(where)
            assert shown.status_code == 200
            assert "ann" in shown.content.decode()
            assert TEXT not in shown.content.decode()

    @pytest.mark.parametrize("way", ["read", "listed", "searched"])
    def test_what_is_read_of_others_is_a_signal_and_one_entry_in_the_log(self, ann, settings, way):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "LOG_READS": True}
        reader = staff("view_note", "view_message_text")
        keep(reader, "of the reader")
        client, found = Client(), []
        client.force_login(reader)
        note = Note.objects.get(owner=ann)
        where = {
            "read": reverse("admin:chatmemory_notes_note_change", args=[note.pk]),
            "listed": reverse(self.LIST),
            "searched": f"{reverse(self.LIST)}?q=ann",
        }

        with connected(notes_read, lambda **sent: found.append((sent["reader"], sent["way"], len(sent["notes"])))):
            assert client.get(where[way]).status_code == 200

        assert found == [(reader, way, 2 if way == "listed" else 1)]
        entry = LogEntry.objects.get()
        assert (entry.user, entry.object_id) == (reader, None if way == "listed" else str(note.pk))
        assert entry.object_repr == ("2 notes" if way == "listed" else f"{ann.pk}/1")
        assert TEXT not in entry.get_change_message()

    @pytest.mark.parametrize("is_on", [True, False])
    def test_ones_own_are_no_reads_of_others_and_nothing_is_logged_where_it_is_off(self, eve, settings, is_on):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "LOG_READS": is_on}
        reader = staff("view_note", "view_message_text")
        if is_on:
            Note.objects.all().delete()
            keep(reader, TEXT)
        client = Client()
        client.force_login(reader)

        assert client.get(reverse(self.LIST)).status_code == 200
        assert not LogEntry.objects.exists()

    def test_who_may_not_view_notes_has_no_list(self):
        assert self.client_with("view_message_text").get(reverse(self.LIST)).status_code == 403

    def test_nobody_writes_notes_there(self):
        client = self.client_with("view_note", "delete_note", "view_message_text")
        note = Note.objects.get(owner__username="ann")

        assert client.get(reverse("admin:chatmemory_notes_note_add")).status_code == 403
        changed = client.post(reverse("admin:chatmemory_notes_note_change", args=[note.pk]), {"text": "changed"})
        assert changed.status_code == 403
        assert Note.objects.get(pk=note.pk).text == TEXT

    def test_they_are_found_by_their_owner(self):
        shown = self.client_with("view_note", "view_message_text").get(reverse(self.LIST), {"q": "AN"}).content.decode()

        assert TEXT in shown
        assert EVES not in shown

    @pytest.mark.parametrize("lookup", ["text__startswith", "text", "owner__password__startswith", "number"])
    def test_no_lookup_in_its_address_reveals_anything(self, lookup):
        client = self.client_with("view_note")

        answers = [client.get(reverse(self.LIST), {lookup: value}) for value in ("Is allergic", "x")]

        assert {answer.status_code for answer in answers} <= {302, 400}

    @pytest.mark.parametrize("permissions", [("view_note",), ("view_note", "delete_note")])
    def test_who_may_delete_them_does(self, permissions):
        client = self.client_with(*permissions)
        keys = [str(each.pk) for each in Note.objects.all()]

        client.post(reverse(self.LIST), {"action": "delete_selected", "_selected_action": keys, "post": "yes"})

        assert Note.objects.exists() is ("delete_note" not in permissions)

    def test_held_ones_are_not_deleted(self, ann):
        hold(ann)
        client = self.client_with("view_note", "delete_note")
        note = Note.objects.get(owner=ann)
        where = reverse("admin:chatmemory_notes_note_delete", args=[note.pk])
        chosen = {"action": "delete_selected", "_selected_action": [str(note.pk)], "post": "yes"}

        assert "Case 7" in client.get(where).content.decode()
        for answer in (client.post(where, {"post": "yes"}), client.post(reverse(self.LIST), chosen)):
            assert answer.status_code in {200, 403}
        assert Note.objects.filter(pk=note.pk).exists()

    def test_hostile_texts_are_escaped(self, ann):
        keep(ann, HOSTILE)

        shown = self.client_with("view_note", "view_message_text").get(reverse(self.LIST)).content.decode()

        assert "<script>alert" not in shown


class NobodyPolicy:
    """A policy that allows nothing."""

    def is_allowed(self, request: Any) -> bool:
        return False


def test_switched_off_notes_are_still_listed(api, ann):
    keep(ann, TEXT)
    switch(ann, on=False)

    assert [each["text"] for each in api.get(ROOT).json()["results"]] == [TEXT]
