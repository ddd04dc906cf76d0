"""What waits for people, by REST and in the admin: who sees it, who has it, and what they do about it."""

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from rest_framework.test import APIClient

from chatmemory_django.access import AccessPolicy
from chatmemory_django.chat.approvals import ApprovalRequiredError
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.models import ToolApproval
from chatmemory_django.chat.tools import Tool
from chatmemory_django.messages import AiMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.operations import fork, hand_over
from chatmemory_django.provider import get_chat_memory
from tests.faces.chat.approvals.test_approvals import NoReplica
from tests.faces.chat.scripted import ScriptedModel, calling
from tests.faces.test_permissions import granted

pytestmark = pytest.mark.django_db

VIEW, ANSWER, APPROVE, READ = "view_conversation", "answer_conversation", "approve_conversation", "view_message_text"


@pytest.fixture(autouse=True)
def without_rates(settings) -> None:
    settings.CHATMEMORY = {"REST": {"THROTTLE_RATES": {}}}


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


@pytest.fixture
def talk(ann) -> Conversation:
    """Ann's conversation, which waits for a person."""
    get_chat_memory("c", owner=ann).add(UserMessage("Hi"), AiMessage("Hello"))
    return hand_over(Conversation.objects.get(memory_id="c"))


@pytest.fixture
def asked(ann) -> ToolApproval:
    """Return the approval of a call in another conversation of Ann's, for whom who may approve decides."""

    def refund(order: int) -> str:
        """Refund an order."""
        return f"Refunded {order}."

    model = ScriptedModel(calling(("c1", "refund", '{"order": 4711}')), "Done.")
    tool = Tool(refund, needs_approval=True, approve_by="chatmemory.approve_conversation", asks="return {order}")
    with pytest.raises(ApprovalRequiredError):
        Assistant(model, tools=[tool]).chat("d", "Refund it", owner=ann)
    return ToolApproval.objects.get()


def staff(*codenames: str, name: str = "klaus") -> APIClient:
    client = APIClient()
    user = User.objects.filter(username=name).first() or User.objects.create_user(name, is_staff=True)
    client.force_authenticate(granted(user, *codenames))
    return client


def listed(client: APIClient, query: str = "") -> list[dict]:
    response = client.get(f"/api/queue/{query}")
    assert response.status_code == 200, response.content
    return response.json()["results"]


class TestTheQueue:
    def test_has_what_waits_the_longest_first(self, talk, asked, ann):
        client = staff(VIEW, ANSWER, APPROVE, READ)

        first, second = listed(client)

        assert (first["kind"], first["memory_id"], first["person"], first["until"]) == ("handover", "c", None, None)
        assert first["owner"] == str(ann.pk)
        assert (second["kind"], second["memory_id"]) == ("approval", "d")
        assert second["until"] > second["since"]
        assert (second["approval"]["tool"], second["approval"]["arguments"]) == ("refund", '{"order": 4711}')
        assert second["approval"]["asks"] == "return 4711"

    def test_has_what_the_user_may_decide_on(self, talk, asked):
        assert [each["kind"] for each in listed(staff(VIEW, ANSWER))] == ["handover"]
        assert [each["kind"] for each in listed(staff(VIEW, APPROVE))] == ["approval"]
        assert listed(staff(VIEW)) == []

    def test_has_no_text_for_those_who_may_not_read_it(self, talk, asked):
        [call] = listed(staff(VIEW, APPROVE))

        assert [call["approval"][name] for name in ("tool", "arguments", "asks")] == [None, None, None]

    @pytest.mark.parametrize("codenames", [(), (ANSWER,)])
    def test_is_for_staff_who_may_view_conversations(self, talk, codenames):
        assert staff(*codenames).get("/api/queue/").status_code == 403

    def test_is_not_for_owners(self, talk, ann):
        client = APIClient()
        client.force_authenticate(ann)

        assert client.get("/api/queue/").status_code == 403

    def test_is_filtered_by_kind_person_and_tool(self, talk, asked):
        client = staff(VIEW, ANSWER, APPROVE, READ)

        client.put("/api/conversations/c/person/", {}, format="json")

        assert [each["memory_id"] for each in listed(client, "?person=me")] == ["c"]
        assert [each["memory_id"] for each in listed(client, "?person=nobody")] == ["d"]
        assert [each["memory_id"] for each in listed(client, "?kind=approval")] == ["d"]
        assert [each["memory_id"] for each in listed(client, "?kind=handover")] == ["c"]
        assert [each["memory_id"] for each in listed(client, "?tool=refund")] == ["d"]
        assert listed(client, "?tool=other") == []
        assert client.get("/api/queue/?kind=else").status_code == 400

    def test_comes_in_pages(self, talk, asked):
        client = staff(VIEW, ANSWER, APPROVE)

        first = client.get("/api/queue/?page_size=1").json()
        second = client.get(first["next"]).json()

        assert [each["kind"] for each in first["results"] + second["results"]] == ["handover", "approval"]
        assert second["next"] is None

    def test_costs_no_more_the_more_waits_behind_a_page(self, asked, ann):
        client, costs = staff(VIEW, APPROVE, READ), list[int]()
        listed(client)  # what is cached is so from now on

        for number in range(2, 10):
            copy = fork(asked.conversation, f"copy {number}")
            ToolApproval.objects.create(conversation=copy, sequence=2, position=0, approve_by=asked.approve_by)
            with CaptureQueriesContext(connection) as queries:
                assert len(listed(client, "?page_size=1")) == 1
            costs.append(len(queries))

        assert len(listed(client)) == 9
        assert len(set(costs)) == 1

    def test_does_not_have_what_was_decided(self, talk, asked):
        client = staff(VIEW, APPROVE)

        decision = {"id": str(asked.pk), "approved": False, "reason": "Too late."}
        assert client.post("/api/conversations/d/approvals/", decision, format="json").status_code == 204

        assert listed(client) == []


class Everything(AccessPolicy):
    """A policy that has one rule for each verb: users have what is theirs, as that of docs/recipes/tenants."""

    def conversations(self, request, verb):
        if not self.sees_everybody(request, verb):
            return Conversation.objects.filter(owner=request.user.pk)
        return Conversation.objects.filter(owner__groups__user=request.user)


class TestPoliciesOfSites:
    """A site's policy narrows who answers, and grants it to nobody by accident."""

    @pytest.fixture(autouse=True)
    def policy(self, settings) -> None:
        settings.CHATMEMORY["ACCESS_POLICY"] = f"{__name__}.Everything"

    @pytest.mark.parametrize(
        ("verb", "path", "body"),
        [("put", "person/", {}), ("delete", "person/", None), ("post", "answers/", {"text": "Your money is here."})],
    )
    def test_owners_do_not_answer_as_people_of_the_site(self, talk, ann, verb, path, body):
        owner = APIClient()
        owner.force_authenticate(ann)

        assert getattr(owner, verb)(f"/api/conversations/c/{path}", body, format="json").status_code == 403
        assert (talk.messages.count(), Conversation.objects.get().state) == (2, "waiting")

    @pytest.mark.parametrize("groups", [0, 1, 2])
    def test_staff_see_what_they_may_see_once(self, talk, asked, ann, groups):
        client = staff(VIEW, ANSWER, APPROVE)
        signed_in = Client()
        signed_in.force_login(User.objects.get(username="klaus"))
        for number in range(groups):
            Group.objects.create(name=str(number)).user_set.add(ann, User.objects.get(username="klaus"))

        html = signed_in.get(reverse("admin:chatmemory_chat_queue_changelist")).content.decode()
        desk = signed_in.get(reverse("admin:chatmemory_chat_queue_desk", args=[talk.pk]))

        assert [each["memory_id"] for each in listed(client)] == ["c", "d"] * bool(groups)
        assert html.count('<th scope="row">') == 2 * bool(groups)
        assert desk.status_code == (200 if groups else 404)
        assert client.put("/api/conversations/c/person/", {}, format="json").status_code == (200 if groups else 404)


class TestWhoHasIt:
    def test_one_takes_it_answers_and_gives_it_back(self, talk):
        client = staff(VIEW, ANSWER)

        taken = client.put("/api/conversations/c/person/", {}, format="json").json()
        answered = client.post("/api/conversations/c/answers/", {"text": "I am here."}, format="json")
        back = client.delete("/api/conversations/c/person/").json()

        assert (taken["state"], back["state"], back["person"]) == ("person", "assistant", None)
        assert answered.json() == {"sequence": 3}
        assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == [
            "Took over the conversation.",
            "Answered with message #3.",
            "Gave the conversation back to the assistant.",
        ]

    def test_what_changes_nothing_is_logged_once(self, talk):
        client = staff(VIEW, ANSWER)
        body = {"text": "I am here.", "client_message_id": "a1"}

        for _ in range(2):
            client.put("/api/conversations/c/person/", {}, format="json")
            client.post("/api/conversations/c/answers/", body, format="json")

        assert LogEntry.objects.count() == 2
        assert talk.messages.count() == 3

    def test_another_is_refused_until_they_take_it_over(self, talk):
        staff(VIEW, ANSWER).put("/api/conversations/c/person/", {}, format="json")
        other = staff(VIEW, ANSWER, name="lea")

        refused = other.post("/api/conversations/c/answers/", {"text": "Me too."}, format="json")
        taken = other.post("/api/conversations/c/answers/", {"text": "Mine.", "takes_over": True}, format="json")

        assert (refused.status_code, refused.json()["type"]) == (409, "urn:chatmemory:other_person")
        assert taken.status_code == 201
        assert talk.messages.count() == 3

    @pytest.mark.parametrize(
        ("verb", "path", "body"),
        [("put", "person/", {}), ("delete", "person/", None), ("post", "answers/", {"text": "Hi"})],
    )
    def test_it_takes_a_permission(self, talk, verb, path, body, ann):
        owner = APIClient()
        owner.force_authenticate(ann)

        statuses = [
            getattr(client, verb)(f"/api/conversations/c/{path}", body, format="json").status_code
            for client in (staff(VIEW, APPROVE, READ), staff(ANSWER, name="lea"), owner)
        ]

        assert statuses == [403, 404, 403]
        assert talk.messages.count() == 2

    def test_a_blank_answer_is_refused(self, talk):
        response = staff(VIEW, ANSWER).post("/api/conversations/c/answers/", {"text": " "}, format="json")

        assert response.status_code == 400

    def test_a_call_is_looked_at_by_one(self, asked):
        mine, others = staff(VIEW, APPROVE), staff(VIEW, APPROVE, name="lea")
        path = f"/api/conversations/d/approvals/{asked.pk}/person/"

        assert mine.put(path, {}, format="json").status_code == 204
        assert others.put(path, {}, format="json").status_code == 409
        assert others.put(path, {"takes_over": True}, format="json").status_code == 204
        assert [each["person"] for each in listed(others, "?person=me")] == [str(User.objects.get(username="lea").pk)]
        assert mine.delete(path).status_code == 204
        assert len(listed(mine, "?person=nobody")) == 1


class TestTheAdmin:
    """The queue of the admin, and the desk of a conversation."""

    @pytest.fixture
    def desk(self, talk):
        def signed_in(*codenames: str, name: str = "klaus") -> Client:
            user = User.objects.filter(username=name).first() or User.objects.create_user(name, is_staff=True)
            client = Client()
            client.force_login(granted(user, *codenames))
            return client

        return signed_in

    @staticmethod
    def page(client: Client, talk: Conversation, **posted: str) -> str:
        url = reverse("admin:chatmemory_chat_queue_desk", args=[talk.pk])
        response = client.post(url, posted, follow=True) if posted else client.get(url)
        assert response.status_code == 200, response.status_code
        return response.content.decode()

    def test_the_queue_has_what_waits_and_leads_to_the_desk(self, desk, talk, asked):
        client = desk(VIEW, ANSWER, APPROVE, READ)

        html = client.get(reverse("admin:chatmemory_chat_queue_changelist")).content.decode()

        assert reverse("admin:chatmemory_chat_queue_desk", args=[talk.pk]) in html
        assert reverse("admin:chatmemory_chat_queue_desk", args=[asked.conversation_id]) in html
        assert "refund" in html
        assert "The assistant wants to return 4711." in html
        assert "The assistant wants to return 4711." in self.page(client, asked.conversation)

    def test_its_breadcrumbs_are_those_of_the_admin(self, desk, talk):
        client = desk(VIEW, ANSWER)
        pages = ("chatmemory_chat_queue_changelist", "chatmemory_conversation_changelist")

        found = [client.get(reverse(f"admin:{each}")).content.decode() for each in pages] + [self.page(client, talk)]

        assert len({re.search(r'<\w+ class="breadcrumbs"', html)[0] for html in found}) == 1

    def test_without_the_permission_to_read_there_are_no_texts(self, desk, talk, asked):
        client = desk(VIEW, ANSWER, APPROVE)

        html = client.get(reverse("admin:chatmemory_chat_queue_changelist")).content.decode()
        html += self.page(client, asked.conversation) + self.page(client, talk)

        assert "refund" not in html
        assert "4711" not in html
        assert "Hello" not in html

    def test_what_the_site_shows_the_model_is_not_shown_in_ones_own_conversation(self, desk, talk):
        get_chat_memory("c").add(SystemMessage("The password is 4711."))
        client = desk(VIEW, ANSWER)
        Conversation.objects.update(owner=User.objects.get(username="klaus"))

        assert "4711" not in self.page(client, talk)

    def test_what_is_over_does_not_wait(self, desk, talk):
        Conversation.objects.update(expires_at=timezone.now())
        client = desk(VIEW, ANSWER)

        html = client.get(reverse("admin:chatmemory_chat_queue_changelist")).content.decode()

        assert '<th scope="row">' not in html
        assert client.get(reverse("admin:chatmemory_chat_queue_desk", args=[talk.pk])).status_code == 404

    @pytest.mark.parametrize("codenames", [(), (VIEW,), (ANSWER,), (READ,)])
    def test_it_takes_a_permission(self, desk, talk, codenames):
        client = desk(*codenames)

        for name, args in (("changelist", ()), ("desk", (talk.pk,))):
            assert client.get(reverse(f"admin:chatmemory_chat_queue_{name}", args=args)).status_code == 403

    def test_who_may_only_approve_answers_nothing(self, desk, talk):
        client = desk(VIEW, APPROVE)
        url = reverse("admin:chatmemory_chat_queue_desk", args=[talk.pk])

        for do in ("take", "give_back", "answer"):
            assert client.post(url, {"do": do, "text": "Hi"}).status_code == 403

        assert talk.messages.count() == 2

    def test_one_takes_it_answers_and_gives_it_back(self, desk, talk):
        client = desk(VIEW, ANSWER, READ)

        self.page(client, talk, do="take")
        html = self.page(client, talk, do="answer", text="I am here.", id="desk-1")
        self.page(client, talk, do="answer", text="I am here.", id="desk-1")
        back = self.page(client, talk, do="give_back")

        assert "I am here." in html
        assert '<dd id="cm-state"><bdi>klaus</bdi>' in html
        assert '<dd id="cm-state">the assistant' in back
        assert talk.messages.count() == 3
        assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == [
            "Took over the conversation.",
            "Answered with message #3.",
            "Gave the conversation back to the assistant.",
        ]

    def test_what_is_done_needs_no_replica(self, desk, talk, asked, settings):
        client, other = desk(VIEW, ANSWER, APPROVE), asked.conversation
        settings.DATABASE_ROUTERS = [NoReplica()]

        for where, posted in (
            (talk, {"do": "take"}),
            (talk, {"do": "answer", "text": "I am here."}),
            (talk, {"do": "give_back"}),
            (other, {"do": "deny", "approval": asked.pk}),
        ):
            url = reverse("admin:chatmemory_chat_queue_desk", args=[where.pk])
            assert client.post(url, posted).status_code == 302

        settings.DATABASE_ROUTERS = []
        asked.refresh_from_db()
        assert (talk.messages.count(), asked.approved) == (3, False)

    def test_what_another_has_is_seen_and_taken_over(self, desk, talk):
        self.page(desk(VIEW, ANSWER), talk, do="take")
        other = desk(VIEW, ANSWER, name="lea")

        refused = self.page(other, talk, do="answer", text="Me too.")
        taken = self.page(other, talk, do="take", takes_over="1")

        assert "Klaus has this." in refused
        assert talk.messages.count() == 2
        assert '<dd id="cm-state"><bdi>lea</bdi>' in taken

    def test_an_answer_that_another_was_faster_than_stays_to_be_sent(self, desk, talk):
        self.page(desk(VIEW, ANSWER), talk, do="take")
        other = desk(VIEW, ANSWER, READ, name="lea")

        refused = self.page(other, talk, do="answer", text="A <b>long</b> text.")

        assert "\nA &lt;b&gt;long&lt;/b&gt; text.</textarea>" in refused
        assert 'name="takes_over" value="1">Take over and send the answer' in refused
        self.page(other, talk, do="answer", text="A <b>long</b> text.", takes_over="1")
        assert talk.messages.last().text == "A <b>long</b> text."

    def test_a_call_that_another_looks_at_is_taken_over(self, desk, asked):
        self.page(desk(VIEW, APPROVE), asked.conversation, do="assign", approval=str(asked.pk))
        other = desk(VIEW, APPROVE, name="lea")

        [form] = re.findall(
            '<form method="post" class="cm-call">.*?</form>', self.page(other, asked.conversation), re.DOTALL
        )
        fields = dict(re.findall('name="(approval|takes_over)" value="(.*?)"', form))
        self.page(other, asked.conversation, do="assign", **fields)

        asked.refresh_from_db()
        assert asked.person == str(User.objects.get(username="lea").pk)

    @pytest.mark.parametrize("text", ["", " ", "x" * 100_001])
    def test_a_text_that_cannot_be_stored_is_refused(self, desk, talk, text):
        html = self.page(desk(VIEW, ANSWER), talk, do="answer", text=text)

        assert "This text cannot be stored" in html
        assert Conversation.objects.get(pk=talk.pk).state == Conversation.State.WAITING

    def test_a_call_is_denied_with_a_reason(self, desk, asked):
        client = desk(VIEW, APPROVE, READ)

        self.page(client, asked.conversation, do="assign", approval=str(asked.pk))
        self.page(client, asked.conversation, do="deny", approval=str(asked.pk), reason="Too late.")
        again = self.page(client, asked.conversation, do="approve", approval=str(asked.pk))

        asked.refresh_from_db()
        assert (asked.approved, asked.reason, asked.person) == (False, "Too late.", asked.decided_by)
        assert "This call does not wait any more." in again
        assert LogEntry.objects.get().change_message == "Denied a tool call of message #2."

    def test_a_page_that_is_posted_without_a_token_is_refused(self, talk, desk):
        client = Client(enforce_csrf_checks=True)
        client.force_login(granted(User.objects.create_user("mia", is_staff=True), VIEW, ANSWER))

        url = reverse("admin:chatmemory_chat_queue_desk", args=[talk.pk])
        assert client.post(url, {"do": "take"}).status_code == 403
