"""Behaviour on every site: the memory, the turn, the API and the admin, for the owner and for another user."""

import datetime
import json

import pytest
from django.apps import apps
from django.core.exceptions import PermissionDenied
from django.db import connections, router
from django.test import AsyncClient, Client
from django.urls import reverse
from rest_framework.authtoken.models import Token

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.costs.calls import record_call
from chatmemory_django.chat.model import TokenUsage
from chatmemory_django.chat.models import ModelCall, Run
from chatmemory_django.messages import (
    AiMessage,
    CustomMessage,
    NewMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, MemoryStatus, Message
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.asgi import run
from tests.faces.chat.scripted import ScriptedModel

pytestmark = pytest.mark.django_db(databases="__all__")

S1, U1, A1, U2 = SystemMessage("Brief"), UserMessage("Tea?"), AiMessage("Please"), UserMessage("Milk?")
CALL = ToolExecutionRequest("1", "brew", '{"cups": 2}')
MESSAGES = [
    AiMessage("so", "a thought", [CALL], {"mood": "fine"}),
    ToolExecutionResultMessage.from_request(CALL, "a pot"),
    UserMessage("Grüße 京都", name="Ann"),
    CustomMessage({"any": ["thing", 1.5, None]}),
]
ROOT = "/api/conversations/"
MINUTE = datetime.timedelta(minutes=1)
IS_ENCRYPTED = apps.is_installed("chatmemory_django.contrib.encryption")


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def wide(owner):
    return get_chat_memory("c", owner, max_tokens=10_000)


class TestMemory:
    def test_belongs_to_its_owner_and_the_history_keeps_evicted_messages(self, ann, bob):
        memory = get_chat_memory("c", ann)

        assert memory.add(S1, U1, A1) == [1, 2, 3]
        assert memory.add(U2) == [4]

        conversation = Conversation.objects.get()
        assert conversation.owner == ann
        assert Conversation.objects.owned_by(ann).get() == conversation
        assert not Conversation.objects.owned_by(bob).exists()
        assert memory.messages() == [S1, A1, U2]
        assert [row.chat_message for row in conversation.memory()] == [S1, A1, U2]
        assert [(row.chat_message, row.status) for row in conversation.history().with_status()] == [
            (S1, MemoryStatus.PINNED),
            (U1, MemoryStatus.EVICTED),
            (A1, MemoryStatus.IN_MEMORY),
            (U2, MemoryStatus.IN_MEMORY),
        ]

    def test_of_another_user_is_refused(self, ann, bob):
        get_chat_memory("c", ann).add(U1)
        theirs = get_chat_memory("c", bob)

        for write in (lambda: theirs.add(U2), lambda: theirs.set([U2]), theirs.clear):
            with pytest.raises(PermissionDenied):
                write()
        assert theirs.messages() == []
        assert get_chat_memory("c", ann).messages() == [U1]

    def test_stores_every_kind_of_message(self, ann):
        wide(ann).add(*(NewMessage(message, {"model": "m"}) for message in MESSAGES))

        assert wide(ann).messages() == MESSAGES
        assert [row.chat_message for row in Message.objects.history()] == MESSAGES
        assert {row.metadata["model"] for row in Message.objects.all()} == {"m"}

    def test_is_stored_as_it_is_or_encrypted(self, ann):
        wide(ann).add(*MESSAGES)
        wide(ann).set([SystemMessage("They want tea"), *MESSAGES[2:]])
        with wide(ann).turn(persist="early") as turn:
            turn.add(U2)

        connection = connections[router.db_for_read(Message)]
        with connection.cursor() as cursor:
            cursor.execute("SELECT text, payload FROM chatmemory_message ORDER BY sequence")
            stored = list(cursor.fetchall())
        if IS_ENCRYPTED:
            assert all(not value or value.startswith("enc2:") for row in stored for value in row)
        else:
            assert stored == [(row.text, row.payload) for row in Message.objects.all()]
        assert wide(ann).messages() == [SystemMessage("They want tea"), *MESSAGES[2:], U2]

    def test_can_be_set_and_cleared(self, ann):
        memory = get_chat_memory("c", ann)
        memory.add(U1, A1)

        memory.set([SystemMessage("Tea"), A1])
        assert memory.messages() == [SystemMessage("Tea"), A1]
        memory.clear()

        assert memory.messages() == []
        assert [row.chat_message for row in Conversation.objects.get().evicted()] == [U1, A1]

    @pytest.mark.parametrize("persist", ["late", "early"])
    def test_has_turns(self, ann, bob, persist):
        get_chat_memory("c", ann).add(S1)

        with get_chat_memory("c", ann).turn(persist=persist) as turn:
            turn.add(U1)
            assert turn.messages == [S1, U1]
            assert Message.objects.incomplete().count() == (persist == "early")
            turn.add(NewMessage(A1, {"model": "m"}))

        assert get_chat_memory("c", ann).messages() == [S1, U1, A1]
        assert not Message.objects.incomplete().exists()
        with pytest.raises(PermissionDenied), get_chat_memory("c", bob).turn(persist=persist) as turn:
            turn.add(U2)
        assert Message.objects.count() == 3

    def test_stores_repeated_messages_once(self, ann):
        messages = NewMessage(U1, client_message_id="msg_1"), A1, NewMessage(U2, client_message_id="Ä")

        first, second = (get_chat_memory("c", ann).add(*messages) for _ in range(2))

        assert first == [1, 2, 3]
        assert second[::2] == first[::2]
        assert Message.objects.filter(client_message_id__in=["msg_1", "Ä"]).count() == 2

    def test_can_be_recounted(self, ann):
        memory = get_chat_memory("c", ann)
        memory.add(S1, U1)
        Message.objects.update(token_count=1)

        assert DjangoChatMemoryStore().recount("c", memory.window()) == 4 + 4

    def test_is_erased_with_its_conversation(self, ann, bob):
        get_chat_memory("c", ann).add(U1)
        get_chat_memory("d", bob).add(U2)

        Conversation.objects.owned_by(ann).delete()

        assert [row.chat_message for row in Message.objects.all()] == [U2]

    def test_is_erased_with_its_owner(self, ann, bob):
        get_chat_memory("c", ann).add(U1)
        get_chat_memory("d", bob).add(U2)

        ann.delete()

        assert [each.owner for each in Conversation.objects.all()] == [bob]
        assert [row.chat_message for row in Message.objects.all()] == [U2]

    def test_is_idle_or_active_since_a_time(self, ann):
        get_chat_memory("c", ann).add(U1)

        assert Conversation.objects.active_since(now() - MINUTE).exists()
        assert not Conversation.objects.active_since(now() + MINUTE).exists()
        assert not Conversation.objects.idle_since(now() - MINUTE).exists()
        assert Conversation.objects.idle_since(now() + MINUTE).exists()


class TestApi:
    def test_lists_the_users_own_conversations_page_by_page(self, ann, bob, api_of):
        for name in "abcde":
            get_chat_memory(name, ann).add(U1)
        get_chat_memory("theirs", bob).add(U1)
        seen, where = [], f"{ROOT}?page_size=2"

        while where:
            page = api_of(ann).get(where).json()
            seen += [each["memory_id"] for each in page["results"]]
            where = page["next"]

        assert seen == list("edcba")

    def test_returns_times_with_their_time_zone(self, ann, api_of):
        get_chat_memory("c", ann).add(U1)
        api = api_of(ann)

        (found,) = api.get(ROOT, {"active_since": (now() - MINUTE).isoformat()}).json()["results"]
        (message,) = api.get(f"{ROOT}c/messages/").json()["results"]
        usage = api.get("/api/usage/").json()

        assert found["owner"] == str(ann.pk)
        for moment in (found["created_at"], found["updated_at"], message["created_at"], usage["until"]):
            assert abs(datetime.datetime.fromisoformat(moment) - now()) < MINUTE
        assert api.get(ROOT, {"idle_since": (now() - MINUTE).isoformat()}).json()["results"] == []

    def test_accepts_every_valid_time(self, ann, api_of):
        get_chat_memory("c", ann).add(U1)

        for query in ({"idle_since": "0001-01-01T00:00:00Z"}, {"active_since": "9999-12-31T23:59:59Z"}):
            assert api_of(ann).get(ROOT, query).json()["results"] == []

    def test_sums_up_the_calls_of_models(self, ann, bob, api_of):
        for owner, memory_id in ((ann, "c"), (bob, "theirs")):
            get_chat_memory(memory_id, owner).add(U1)
            with record_call("answer", "m", owner=owner, memory_id=memory_id) as call:
                call.used(TokenUsage(input=5, output=3))

        for by, key in (("conversation", "c"), ("model", "m"), ("user", str(ann.pk)), ("day", None)):
            query = {"by": by, "since": (now() - MINUTE).isoformat(), "until": (now() + MINUTE).isoformat()}
            (row,) = api_of(ann).get("/api/usage/", query).json()["results"]
            assert (row["calls"], row["input"], row["output"]) == (1, 5, 3)
            assert key in {None, row["key"]}

    def test_an_erased_user_is_named_by_no_call(self, ann, bob):
        for owner, memory_id in ((ann, "c"), (bob, "theirs")):
            Assistant(ScriptedModel("Yes")).chat(memory_id, "Tea?", owner=owner)
        ann.delete()

        columns = ("owner_id", "conversation__memory_id", "input_tokens")
        assert set(ModelCall.objects.values_list(*columns)) == {(None, None, 5), (bob.pk, "theirs", 5)}

    def test_adds_reads_sets_and_clears(self, ann, api_of, trusted):
        api = api_of(trusted(ann))
        memory_id = api.post(ROOT, {"title": "Tea"}, format="json").json()["memory_id"]
        here = f"{ROOT}{memory_id}/"
        question = {"type": "USER", "contents": [{"type": "TEXT", "text": "Tea?"}]}
        messages = [{"message": question}, {"message": {"type": "AI", "text": "Please"}}]

        for _ in "ab":
            body, headers = {"messages": messages}, {"Idempotency-Key": "k"}
            stored = api.post(f"{here}messages/", body, format="json", headers=headers).json()["messages"]
            assert [each["sequence"] for each in stored] == [1, 2]

        listed = api.get(f"{here}messages/").json()["results"][::-1]
        assert listed == stored
        assert [(each["message"]["type"], each["in_memory"], each["is_complete"]) for each in listed] == [
            ("USER", True, True),
            ("AI", True, True),
        ]
        assert api.get(f"{here}memory/").json()["messages"] == listed
        answer = api.put(f"{here}memory/", {"messages": messages[:1]}, format="json")
        assert [each["message"] for each in answer.json()["messages"]] == [question]
        assert api.delete(f"{here}memory/").status_code == 204
        assert api.get(f"{here}memory/").json()["messages"] == []
        assert [each["in_memory"] for each in api.get(f"{here}messages/").json()["results"]] == [False, False]
        assert api.patch(here, {"title": "Coffee"}, format="json").json()["title"] == "Coffee"
        assert api.delete(here).status_code == 204
        assert not Message.objects.exists()

    def test_refuses_other_users(self, ann, bob, api_of):
        get_chat_memory("c", ann).add(U1)
        api = api_of(bob)

        for where in ("", "messages/", "messages/1/", "memory/", "export/"):
            assert api.get(f"{ROOT}c/{where}").status_code == 404
        assert api.post(f"{ROOT}c/messages/", {"messages": []}, format="json").status_code == 404
        assert api.delete(f"{ROOT}c/memory/").status_code == 404
        assert api.delete(f"{ROOT}c/").status_code == 404
        assert get_chat_memory("c", ann).messages() == [U1]

    def test_searches_exports_and_imports(self, ann, bob, api_of, trusted):
        wide(ann).add(*MESSAGES)
        trusted(ann)
        trusted(bob)
        found = api_of(ann).get(ROOT, {"search": "京都"})
        if IS_ENCRYPTED:
            assert (found.status_code, found.json()["type"]) == (400, "urn:chatmemory:encrypted")
        else:
            assert [each["memory_id"] for each in found.json()["results"]] == ["c"]
        found = api_of(ann).get(f"{ROOT}c/messages/", {"search": "京都"})
        assert [each["snippet"] for each in found.json()["results"]] == [
            [{"text": "Grüße ", "is_hit": False}, {"text": "京都", "is_hit": True}]
        ]

        lines = b"".join(api_of(ann).get(f"{ROOT}c/export/").streaming_content)
        Conversation.objects.all().delete()
        answer = api_of(bob).post("/api/import/", lines, content_type="application/jsonl")

        assert answer.status_code == 201, answer.content
        assert wide(bob).messages() == MESSAGES
        assert abs(Message.objects.first().created_at - Conversation.objects.get().created_at) < MINUTE


class TestAdmin:
    def test_lists_filters_and_searches(self, admin, ann, bob):
        get_chat_memory("hers", ann).add(U1)
        get_chat_memory("his", bob).add(U2)
        get_chat_memory("nobodys").add(U2)

        def found(**query) -> list[str]:
            response = admin.get(reverse("admin:chatmemory_conversation_changelist"), query)
            assert response.status_code == 200
            return sorted(each.memory_id for each in response.context["cl"].result_list)

        assert found() == ["hers", "his", "nobodys"]
        assert found(owner="ann") == found(q="ann") == found(q="hers") == ["hers"]
        assert found(q="tea") == ([] if IS_ENCRYPTED else ["hers"])
        assert found(owner="/") == ["nobodys"]
        assert found(owner="unknown") == []
        assert found(active="1") == ["hers", "his", "nobodys"]
        assert found(until=datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=1)) == [
            "hers",
            "his",
            "nobodys",
        ]

    def test_lists_what_last_messages_begin_with_and_exports_them_to_read(self, admin, ann):
        get_chat_memory("hers", ann).add(U1, AiMessage("A pot " + "of tea " * 100))
        get_chat_memory("large", ann).add(U1, AiMessage("x" * 100_000))
        list_page = reverse("admin:chatmemory_conversation_changelist")

        listed = {each.memory_id: each.listed for each in admin.get(list_page).context["cl"].result_list}

        assert listed["hers"].preview == ("A pot " + "of tea " * 100)[:200]
        assert listed["large"].preview == ("" if IS_ENCRYPTED else "x" * 200)
        html = admin.get(list_page, {"q": "pot"}).content.decode()
        assert ("<mark>pot</mark> of tea" in html) is not IS_ENCRYPTED
        where = reverse("admin:chatmemory_conversation_export", args=[Conversation.objects.get(memory_id="hers").pk])
        for form in ("html", "text"):
            response = admin.post(where, {"confirmed": "export", "form": form})
            document = "".join(chunk.decode() for chunk in response)
            assert "A pot of tea" in document
            assert str(ann) in document

    def test_shows_messages(self, admin, ann):
        wide(ann).add(*MESSAGES, AiMessage("long " * 2000), AiMessage("long " * 2000, "a thought"))
        pk = Conversation.objects.get().pk

        page = admin.get(reverse("admin:chatmemory_conversation_change", args=[pk])).content.decode()
        for words in ("ann", "a thought", "brew", "a pot", "Grüße 京都", "thing", "long long"):
            assert words in page
        assert page.count("Truncated; the full text has 10,000 characters.") == 2
        page = admin.get(reverse("admin:chatmemory_conversation_message", args=[pk, 3])).content.decode()
        assert "Grüße 京都" in page
        assert "in the memory" in page

    def test_clears_recounts_and_erases(self, admin, ann):
        get_chat_memory("c", ann).add(U1)
        conversation = Conversation.objects.get()

        for name, left in (("recount", 4), ("clear", 0)):
            where = reverse(f"admin:chatmemory_conversation_{name}", args=[conversation.pk])
            assert admin.post(where, {"confirmed": name}).status_code == 302
            conversation.refresh_from_db()
            assert conversation.memory_tokens == left
        where = reverse("admin:chatmemory_conversation_delete", args=[conversation.pk])
        assert admin.post(where, {"confirmed": "delete"}).status_code == 302
        assert not Message.objects.exists()


class TestChat:
    @pytest.mark.django_db(databases="__all__", transaction=True)
    @pytest.mark.parametrize("under", ["WSGI", "ASGI"])
    def test_belongs_to_its_owner_streamed_and_as_json(self, ann, bob, settings, under):
        settings.CHATMEMORY["CHAT"] = {"ASSISTANT": Assistant(ScriptedModel("Please", "Two"), system_message="Brief")}

        def ask(user, text: str, accept: str) -> str:
            request = {
                "data": json.dumps({"id": "c", "message": {"role": "user", "parts": [{"type": "text", "text": text}]}}),
                "content_type": "application/json",
                "headers": {"Accept": accept},
            }
            if under == "WSGI":
                client = Client()
                client.force_login(user)
                return client.post("/api/chat", **request).content.decode()

            async def over_asgi() -> str:
                client = AsyncClient()
                await client.aforce_login(user)
                response = await client.post("/api/chat", **request)
                pieces = [piece async for piece in response] if response.streaming else [response.content]
                return b"".join(pieces).decode()

            return run(over_asgi())

        assert ask(ann, "Tea?", "*/*").endswith("data: [DONE]\n\n")
        assert json.loads(ask(ann, "Milk?", "application/json"))["message"]["parts"][-1]["text"] == "Two"
        ask(bob, "Mine?", "*/*")

        texts = {each.owner.username: [row.text for row in each.history()] for each in Conversation.objects.all()}
        assert texts == {"ann": ["Brief", "Tea?", "Please", "Milk?", "Two"], "bob": ["Brief", "Mine?", "Two"]}
        assert not Run.objects.filter(active__isnull=False).exists()


class TestOpenAI:
    ITEMS = (
        {"role": "system", "content": "Brief"},
        {"role": "user", "content": "Tea?", "n": 1.0},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "assistant", "content": "Please"},
    )

    def test_conversations_belong_to_their_owner(self, ann, bob, trusted):
        def ask(user, verb: str, path: str = "", body: object = None):
            key = Token.objects.get_or_create(user=user)[0].key
            client = Client(headers={"Authorization": f"Bearer {key}"})
            arguments = {} if body is None else {"data": body, "content_type": "application/json"}
            return getattr(client, verb)(f"/openai/v1/conversations{path}", **arguments)

        trusted(ann)
        made = ask(ann, "post", "", {"items": list(self.ITEMS), "metadata": {"a": "b"}}).json()
        here = f"/{made['id']}"

        assert abs(made["created_at"] - now().timestamp()) < MINUTE.total_seconds()
        listed = ask(ann, "get", f"{here}/items?order=asc&limit=3").json()
        assert [item["type"] for item in listed["data"]] == ["message", "message", "reasoning"]
        assert listed["data"][1]["n"] == 1.0
        assert listed["has_more"] is True
        [last] = ask(ann, "get", f"{here}/items?order=asc&after={listed['last_id']}").json()["data"]
        assert ask(ann, "get", f"{here}/items/{last['id']}").json() == last
        assert ask(ann, "delete", f"{here}/items/rs_1").json() == made
        for path in ("", "/items", f"/items/{last['id']}"):
            assert ask(bob, "get", here + path).status_code == 404
        assert ask(ann, "post", here, {"metadata": None}).json()["metadata"] == {}
        assert [row.text for row in Conversation.objects.get().history()] == ["Brief", "Tea?", "Please"]
        assert ask(ann, "delete", here).json()["deleted"] is True
        assert not Message.objects.exists()

    @pytest.mark.django_db(databases="__all__", transaction=True)
    def test_sessions_of_agents_work(self, ann, bob):
        sessions = pytest.importorskip("chatmemory_django.contrib.adapters.openai_agents")
        session = sessions.DjangoSession("c", owner=ann)

        run(session.add_items(list(self.ITEMS)))

        assert run(session.get_items()) == list(self.ITEMS)
        assert run(session.get_items(2)) == list(self.ITEMS[2:])
        assert run(session.pop_item()) == self.ITEMS[-1]
        assert run(sessions.DjangoSession("c", owner=bob).get_items()) == []
        run(session.clear_session())
        assert run(session.get_items()) == []
