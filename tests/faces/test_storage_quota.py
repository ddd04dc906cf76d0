"""What a user may store: texts and files together, by every face, and shown to the user."""

import asyncio
import json
import uuid

import pytest
from django.contrib.auth.models import Permission, User
from django.core.cache import cache
from django.test import AsyncClient
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

from chatmemory_django.access import AccessPolicy
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.messages import NewMessage, UserMessage
from chatmemory_django.models import Conversation, Message, stored_size
from chatmemory_django.operations import export_lines
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.signals import security_event
from tests.faces.chat.scripted import ScriptedModel

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = "/api/conversations/"
OPENAI = "/openai/v1/conversations"
NAMED = "0192f5a0-7c1e-7b39-9d3c-2f6d1c0b7a11"
LIMIT = 10_000
LONG = "x" * 6_000


@pytest.fixture(autouse=True)
def site(settings) -> None:
    settings.CHATMEMORY = {
        "REST": {"THROTTLE_RATES": {}},
        "CHAT": {"ASSISTANT": Assistant(ScriptedModel(*["Yes."] * 3)), "THROTTLE_RATE": None},
        "STORAGE_QUOTA": LIMIT,
    }
    cache.clear()


@pytest.fixture
def ann() -> User:
    ann = User.objects.create_user("ann")
    ann.user_permissions.set(Permission.objects.filter(codename__in=["import_conversation", "set_conversation"]))
    return ann


@pytest.fixture
def api(ann) -> APIClient:
    return APIClient(headers={"Authorization": f"Bearer {Token.objects.create(user=ann).key}"})


def asking(text: str) -> dict:
    return {"messages": [{"message": {"role": "user", "content": text}}]}


def exported() -> str:
    get_chat_memory(NAMED).add(UserMessage(LONG))
    lines = "".join(export_lines(Conversation.objects.filter(memory_id=NAMED)))
    Conversation.objects.filter(memory_id=NAMED).delete()
    return lines


WAYS = {
    "messages": lambda api: api.post(f"{ROOT}c/messages/", asking(LONG), format="json"),
    "memory": lambda api: api.put(f"{ROOT}c/memory/", asking(LONG), format="json"),
    "metadata of a message": lambda api: api.patch(
        f"{ROOT}c/messages/1/", {"metadata": {"feedback": LONG}}, format="json"
    ),
    "metadata": lambda api: api.patch(f"{ROOT}c/", {"metadata": {"a": LONG}}, format="json"),
    "conversation": lambda api: api.post(ROOT, {"metadata": {"a": LONG}}, format="json"),
    "fork": lambda api: api.post(f"{ROOT}c/fork/", {}, format="json"),
    "import": lambda api: api.post("/api/import/?rename=1", exported(), content_type="application/jsonl"),
    "items": lambda api: api.post(f"{OPENAI}/c/items", {"items": [{"role": "user", "content": LONG}]}, format="json"),
    "conversation of items": lambda api: api.post(
        OPENAI, {"items": [{"role": "user", "content": LONG}]}, format="json"
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_by_each_way_only_as_much_is_stored_as_is_allowed(way, api, ann, settings):
    get_chat_memory("c", owner=ann).add(UserMessage(LONG))
    before = Message.objects.count(), stored_size(ann.pk)

    response = WAYS[way](api)

    assert response.status_code == 400
    assert f"and may have {LIMIT} at most; erase some of them" in response.content.decode()
    assert (Message.objects.count(), stored_size(ann.pk)) == before
    settings.CHATMEMORY = {**settings.CHATMEMORY, "STORAGE_QUOTA": None}
    assert WAYS[way](api).status_code < 300


def test_a_question_is_refused_before_the_model_is_asked(api, ann):
    get_chat_memory("c", owner=ann).add(UserMessage(LONG))
    key = Token.objects.get(user=ann).key
    body = {"id": NAMED, "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": LONG}]}]}

    async def post():
        headers = {"Authorization": f"Bearer {key}"}
        return await AsyncClient().post("/api/chat", body, content_type="application/json", headers=headers)

    response = asyncio.run(post())

    assert response.status_code == 400
    assert f"and may have {LIMIT} at most" in response.content.decode()
    assert Message.objects.count() == 1


def test_a_question_that_is_stored_already_is_answered_when_it_is_sent_again(api, ann):
    body = {"id": NAMED, "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": LONG}]}]}

    def post() -> int:
        return api.post("/api/chat", body, format="json").status_code

    get_chat_memory(NAMED, owner=ann).add(NewMessage(UserMessage(LONG), client_message_id="m"))

    assert post() == 200
    body["messages"][0]["id"] = "another"
    assert post() == 400


def test_the_user_is_shown_how_much_there_is_and_what_others_store_does_not_count(api, ann, settings):
    get_chat_memory("others", owner=User.objects.create_user("bob")).add(UserMessage(LONG))
    get_chat_memory("nobodys").add(UserMessage(LONG))
    get_chat_memory("c", owner=ann).add(UserMessage("x" * 1_000))
    Conversation.objects.filter(memory_id="c").update(metadata={"a": "y" * 1_000})

    found = api.get("/api/storage/").json()
    settings.CHATMEMORY = {**settings.CHATMEMORY, "STORAGE_QUOTA": None}

    assert found["limit"] == LIMIT
    assert 2_000 < found["stored"] < 2_100
    assert api.get("/api/storage/").json() == {**found, "limit": None}
    assert APIClient().get("/api/storage/").status_code == 401


def test_erasing_makes_room(api, ann):
    get_chat_memory("c", owner=ann).add(UserMessage(LONG))
    new = str(uuid.uuid4())
    assert api.post(ROOT, {"memory_id": new}, format="json").status_code == 201
    assert api.post(f"{ROOT}{new}/messages/", asking(LONG), format="json").status_code == 400

    api.delete(f"{ROOT}c/")

    assert api.post(f"{ROOT}{new}/messages/", asking(LONG), format="json").status_code == 201


class TestOfConversationsOfOthers:
    """Staff, and users who share a conversation, write into the storage of its owner."""

    @pytest.fixture
    def staff(self) -> APIClient:
        staff = User.objects.create_user("staff", is_staff=True)
        names = ["view_conversation", "view_message_text", "add_message", "change_conversation", "add_conversation"]
        staff.user_permissions.set(Permission.objects.filter(codename__in=[*names, "set_conversation"]))
        return APIClient(headers={"Authorization": f"Bearer {Token.objects.create(user=staff).key}"})

    @pytest.mark.parametrize("way", sorted(WAYS.keys() - {"conversation", "import", "conversation of items"}))
    def test_what_its_owner_may_store_counts(self, way, staff, ann):
        get_chat_memory("c", owner=ann).add(UserMessage(LONG))

        response = WAYS[way](staff)

        assert response.status_code == 400
        assert f"the conversations of this owner may have {LIMIT} bytes at most" in response.content.decode().lower()

    def test_what_the_writer_stores_does_not(self, staff, ann):
        get_chat_memory("own", owner=User.objects.get(username="staff")).add(UserMessage(LONG), UserMessage(LONG))
        get_chat_memory("c", owner=ann).add(UserMessage("hi"))

        assert WAYS["messages"](staff).status_code == 201

    def test_one_of_nobody_has_no_limit(self, staff):
        get_chat_memory("c").add(UserMessage(LONG))

        assert WAYS["messages"](staff).status_code == 201
        assert WAYS["fork"](staff).status_code == 201

    def test_one_that_may_not_be_written_to_is_refused_before_its_owner_is_asked_for(self, staff, api, ann):
        get_chat_memory("d", owner=User.objects.get(username="staff")).add(UserMessage(LONG), UserMessage(LONG))

        assert api.post(f"{ROOT}d/messages/", asking(LONG), format="json").status_code == 404


@pytest.mark.parametrize("full", [LIMIT, LIMIT * 10])
class TestWhatIsStoredAlready:
    """A request that adds nothing is answered as it was, also where nothing more may be stored."""

    @pytest.fixture(autouse=True)
    def stored(self, api, ann) -> None:
        assert api.post(ROOT, self.body, format="json").status_code == 201
        assert self.post(api).status_code == 201

    body = {"memory_id": NAMED, "title": "Trees", "metadata": {"a": "b"}}  # noqa: RUF012

    def post(self, api, key: str = "one", text: str = "hi"):
        headers = {"Idempotency-Key": key}
        return api.post(f"{ROOT}{NAMED}/messages/", asking(text), format="json", headers=headers)

    def fill(self, ann, full: int) -> None:
        get_chat_memory("full", owner=ann).add(UserMessage("x" * full))

    def test_a_message(self, full, api, ann):
        before = self.post(api).json()
        self.fill(ann, full)

        assert self.post(api).json() == before
        assert self.post(api, "two").status_code == 400
        assert self.post(api, "one", "another").status_code == 422

    def test_a_conversation(self, full, api, ann):
        self.fill(ann, full)

        assert api.post(ROOT, self.body, format="json").status_code == 201
        assert api.post(ROOT, {**self.body, "memory_id": str(uuid.uuid4())}, format="json").status_code == 400

    def test_items_that_openais_client_sends_again(self, full, api, ann):
        def post(count: int):
            headers = {"X-Stainless-Retry-Count": str(count)}
            body = {"items": [{"role": "user", "content": "hi"}]}
            return api.post(f"{OPENAI}/{NAMED}/items", body, format="json", headers=headers)

        first = post(0).json()
        self.fill(ann, full)

        assert post(1).json() == first
        assert post(0).status_code == 400

    def test_a_title_and_metadata_that_get_no_longer(self, full, api, ann):
        self.fill(ann, full)
        change = f"{ROOT}{NAMED}/"

        assert api.patch(change, {"title": "Bushe", "metadata": {"a": "c"}}, format="json").status_code == 200
        assert api.patch(change, {"metadata": {}}, format="json").status_code == 200
        assert api.patch(change, {"title": "Bushes"}, format="json").status_code == 400
        assert api.patch(change, {"metadata": {"a": "c"}}, format="json").status_code == 400

    def test_no_attack_is_reported(self, full, api, ann):
        self.fill(ann, full)
        seen = []

        def receive(event, **kwargs) -> None:
            seen.append(event)

        security_event.connect(receive)
        try:
            self.post(api)
            api.post(ROOT, self.body, format="json")
        finally:
            security_event.disconnect(receive)

        assert seen == []


def test_titles_and_metadata_of_messages_count(api, ann):
    Conversation.objects.create(memory_id="c", owner=ann, title="T" * 200)
    assert 200 < stored_size(ann.pk) < 210

    body = {"messages": [{"message": {"role": "user", "content": "hi"}, "metadata": {"a": LONG}} for _ in range(2)]}

    assert api.post(f"{ROOT}c/messages/", body, format="json").status_code == 400
    assert not Message.objects.exists()


@pytest.mark.parametrize("extra", [{}, {"extra": LONG}], ids=["contents", "an original"])
def test_all_that_is_stored_of_a_message_counts(extra, api, ann):
    get_chat_memory("c", owner=ann).add(UserMessage("hi"))
    half = {"type": "input_text", "text": "x" * 3_000}
    item = {"role": "user", "content": [half, {**half, **extra}]}  # stored as text, to search in, and as JSON

    response = api.post(f"{OPENAI}/c/items", {"items": [item]}, format="json")

    assert response.status_code == 400
    assert stored_size(ann.pk) < 100


class Paying(AccessPolicy):
    def max_stored(self, request, owner) -> int | None:
        return None if owner.username == "ann" else 10


def test_the_policy_decides_for_each_user(api, ann, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ACCESS_POLICY": f"{__name__}.Paying"}
    get_chat_memory("c", owner=ann).add(UserMessage(LONG))
    bob = APIClient(headers={"Authorization": f"Bearer {Token.objects.create(user=User.objects.create_user('b')).key}"})

    assert api.post(f"{ROOT}c/messages/", asking(LONG), format="json").status_code == 201
    assert bob.post(OPENAI, {"items": [{"role": "user", "content": LONG}]}, format="json").status_code == 400
    assert json.loads(bob.get("/api/storage/").content)["limit"] == 10
