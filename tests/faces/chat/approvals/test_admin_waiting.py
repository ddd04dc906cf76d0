"""The admin's pages of conversations whose calls of tools wait, and what it shows of the calls of models there."""

import datetime
import re

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from chatmemory_django.chat.approvals.tables import ToolApproval
from chatmemory_django.chat.models import ModelCall
from chatmemory_django.messages import AiMessage, ToolExecutionRequest, UserMessage
from chatmemory_django.models import Conversation
from tests.faces.admin.admin_site import EVERYTHING, conversation, page, staff

pytestmark = pytest.mark.django_db

CALL = ToolExecutionRequest("c1", "refund", '{"order": 7}')
MISSING = "No result is stored for this call."


@pytest.fixture
def talk():
    ann = User.objects.create_user("ann")
    return conversation(UserMessage("Refund it."), AiMessage(tool_execution_requests=[CALL]), memory_id="c", owner=ann)


@pytest.fixture
def support(client):
    client.force_login(staff(*EVERYTHING))
    return client


def waiting(talk: Conversation, **columns: object) -> ToolApproval:
    return ToolApproval.objects.create(conversation=talk, sequence=2, position=0, **columns)


def text(client, talk: Conversation) -> str:
    """Return the text of the page of *talk*, without tags."""
    html = client.get(page("change", talk.pk)).content.decode()
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def ids(client, **query: str) -> list[str]:
    return [each.memory_id for each in client.get(page("changelist"), query).context["cl"].result_list]


class TestPage:
    def test_a_call_that_waits_is_called_that_with_since_when_until_when_and_for_whom(self, support, talk):
        assert MISSING in text(support, talk)
        asked = waiting(talk)

        shown = text(support, talk)

        assert "This call waits for approval since " in shown
        assert f"until {asked.expires_at:%b. %-d, %Y}" in shown
        assert ", for ann." in shown
        assert MISSING not in shown
        assert "unpaired tool call" not in shown

    def test_a_call_that_waits_is_in_words_of_its_tool_for_those_who_may_read(self, support, client, talk):
        waiting(talk, asks="refund <b>order 7")

        assert "The assistant wants to refund &lt;b&gt;order 7. This call waits for" in text(support, talk)
        client.force_login(staff("view_conversation", name="eva"))
        assert "order 7" not in client.get(page("change", talk.pk)).content.decode()

    @pytest.mark.parametrize(
        ("columns", "words"),
        [
            ({"approve_by": "shop.refund"}, "for users with the permission shop.refund."),
            ({"approve_by": "client"}, "waits for its output since"),
            ({"approved": True}, "This call was approved, and is run when the answer goes on."),
            ({"approved": False}, "This call was denied; the model learns that when the answer goes on."),
            ({"approved": True, "state": "running"}, "The process that ran this call has ended"),
            ({"requested_at": timezone.now() - datetime.timedelta(days=400)}, "and was not run by"),
        ],
    )
    def test_each_state_has_its_sentence(self, support, talk, columns, words):
        if "approved" in columns:
            columns = {**columns, "decided_at": timezone.now()}
        Conversation.objects.update(fence=1)
        waiting(talk, **columns)

        shown = text(support, talk)

        assert words in shown
        assert MISSING not in shown

    def test_a_call_with_a_result_is_as_before(self, support, talk):
        waiting(talk, approved=True, decided_at=timezone.now(), state="ended")
        talk.refresh_from_db()

        assert "waits for" not in text(support, talk)

    def test_who_may_not_read_texts_sees_that_it_waits(self, client, talk):
        waiting(talk)
        client.force_login(staff("view_conversation", name="eva"))

        html = client.get(page("change", talk.pk)).content.decode()

        assert "waits for approval" in html
        assert "refund" not in html

    def test_so_it_is_on_the_page_of_the_message(self, support, talk):
        waiting(talk)

        assert "This call waits for approval since" in support.get(page("message", talk.pk, 2)).content.decode()

    def test_names_are_escaped(self, support, talk):
        User.objects.filter(username="ann").update(username="<b>ann")
        waiting(talk, approve_by="owner")

        assert "<b>ann" not in support.get(page("change", talk.pk)).content.decode()


class TestCalls:
    def test_the_page_has_their_number_and_their_cost_with_a_link_to_them(self, client, talk, settings):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "CURRENCY": "USD"}
        client.force_login(staff(*EVERYTHING, "view_modelcall", name="eva"))
        assert "Model calls" not in text(client, talk).partition("Messages in memory")[2]
        for outcome in ("completed", "failed"):
            ModelCall.objects.create(conversation=talk, purpose="answer", outcome=outcome, cost="0.25")
        ModelCall.objects.create(purpose="answer", outcome="completed", cost="9")

        shown = text(client, talk)

        assert "2 calls, 1 failed" in shown
        assert "Cost 0.5000 USD" in shown
        link = f"/admin/chatmemory_chat/modelcall/?conversation={talk.pk}"
        assert link in client.get(page("change", talk.pk)).content.decode()
        assert client.get(link).context["cl"].result_count == 2

    def test_they_need_their_permission(self, support, talk):
        ModelCall.objects.create(conversation=talk, purpose="answer", outcome="completed", cost="0.25")

        assert "1 call" not in text(support, talk)


class TestFilter:
    def test_it_finds_what_waits_for_approval(self, support, talk):
        other = conversation(UserMessage("Hi."), memory_id="other")
        assert set(ids(support)) == {"c", "other"}
        assert ids(support, approval="waiting") == []
        asked = waiting(talk)

        assert ids(support, approval="waiting") == ["c"]

        ToolApproval.objects.update(requested_at=timezone.now() - datetime.timedelta(days=400))
        assert ids(support, approval="waiting") == []
        ToolApproval.objects.update(requested_at=timezone.now(), approved=False, decided_at=timezone.now())
        assert ids(support, approval="waiting") == []
        assert (asked.conversation_id, other.memory_id) == (talk.pk, "other")

    def test_it_finds_what_has_failed_lately(self, support, talk):
        conversation(UserMessage("Hi."), memory_id="other")
        failed = {"conversation": talk, "purpose": "answer", "outcome": "failed"}
        long_ago = ModelCall.objects.create(**failed, created_at=timezone.now() - datetime.timedelta(days=31))
        assert ids(support, answer="failed") == []
        assert long_ago.outcome == "failed"

        ModelCall.objects.create(**failed)

        assert ids(support, answer="failed") == ["c"]
        assert set(ids(support, answer="anything")) == {"c", "other"}
