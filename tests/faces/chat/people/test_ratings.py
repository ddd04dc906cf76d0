"""Ratings of answers, with a reason: how users give them, and what an evaluation is given."""

import json
from io import StringIO

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from chatmemory_django.chat.people import answer_as
from chatmemory_django.messages import (
    AiMessage,
    NewMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message, stored_size
from chatmemory_django.operations import (
    JsonLinesError,
    annotate,
    export_lines,
    export_ratings,
    fork,
    import_lines,
    rate,
)
from chatmemory_django.provider import get_chat_memory
from tests.faces.chat.approvals.test_approvals import NoReplica

pytestmark = pytest.mark.django_db(transaction=True)

CHAT = "8a4f1d52-6b0e-4b43-a1c4-6b8f0f3f7b11"


@pytest.fixture
def ann() -> User:
    cache.clear()
    return User.objects.create_user("ann")


@pytest.fixture
def talk(ann) -> Conversation:
    """A conversation with two answers, of which the second one has called a tool."""
    call = ToolExecutionRequest("c1", "count", '{"of": "apples"}')
    get_chat_memory(CHAT, owner=ann).add(
        UserMessage("Hi"),
        AiMessage("Hello"),
        UserMessage("How many?"),
        NewMessage(AiMessage(tool_execution_requests=[call]), client_message_id="a2"),
        ToolExecutionResultMessage.from_request(call, "3"),
        AiMessage("Three."),
    )
    return Conversation.objects.get()


def post(user: User, **body: object) -> int:
    client = Client()
    client.force_login(user)
    response = client.post(f"/api/chat/{CHAT}/rating", json.dumps(body), content_type="application/json")
    return response.status_code


def feedback(sequence: int) -> object:
    return (Conversation.objects.get().messages.get(sequence=sequence).metadata or {}).get("feedback")


def why(sequence: int) -> str | None:
    return Conversation.objects.get().messages.get(sequence=sequence).rating_reason


class TestTheChat:
    def test_rates_the_text_with_which_an_answer_ends(self, talk, ann):
        assert post(ann, messageId="a2", rating=1, reason="There are four.") == 204

        assert (feedback(6), why(6)) == ({"rating": 1}, "There are four.")
        assert (feedback(4), why(4)) == (None, None)

    def test_an_answer_is_rated_that_a_replica_does_not_have_yet(self, talk, ann, settings):
        settings.DATABASE_ROUTERS = [NoReplica()]

        assert post(ann, messageId="a2", rating=5) == 204

    def test_a_rating_is_replaced_and_withdrawn(self, talk, ann):
        post(ann, messageId="message-2", rating=1, reason="Rude.")
        post(ann, messageId="message-2", rating=5)
        assert (feedback(2), why(2)) == ({"rating": 5}, None)

        post(ann, messageId="message-2", rating=5, reason="Nice.")
        assert (feedback(2), why(2)) == ({"rating": 5}, "Nice.")

        post(ann, messageId="message-2", rating=None)
        assert (feedback(2), why(2)) == (None, None)

    def test_what_a_person_wrote_is_rated_by_itself(self, talk, ann):
        sequence = answer_as(talk, User.objects.create_user("klaus"), "Four.")

        assert post(ann, messageId=f"message-{sequence}", rating=5) == 204

        assert feedback(sequence) == {"rating": 5}
        assert feedback(6) is None

    @pytest.mark.parametrize(
        "body",
        [
            {"messageId": "a2", "rating": 0},
            {"messageId": "a2", "rating": 6},
            {"messageId": "a2", "rating": "bad"},
            {"messageId": "a2", "rating": True},
            {"messageId": "a2", "rating": 1, "reason": "x" * 2_001},
            {"messageId": "a2", "rating": 1, "reason": "\0"},
            {"rating": 1},
        ],
    )
    def test_what_is_no_rating_is_refused(self, talk, ann, body):
        assert post(ann, **body) == 400
        assert feedback(6) is None

    @pytest.mark.parametrize("name", ["message-1", "message-99", "unknown", "\0", "message-99999999999999999999"])
    def test_what_is_no_answer_is_unknown(self, talk, ann, name):
        assert post(ann, messageId=name, rating=1) == 404

    def test_an_id_of_the_client_is_that_even_if_it_looks_like_a_number_of_the_site(self, talk, ann):
        talk.messages.filter(sequence=6).update(client_message_id="message-2")

        assert post(ann, messageId="message-2", rating=1) == 204
        assert (feedback(2), feedback(6)) == (None, {"rating": 1})

    def test_the_answers_of_others_are_unknown(self, talk):
        assert post(User.objects.create_user("bob"), messageId="a2", rating=1) == 404


class TestTheReason:
    """A text of people: it is kept like the text of a message."""

    REASON = "My neighbour counted them."

    def test_is_no_metadata_however_it_is_given(self, talk):
        changes = {"feedback": {"rating": 1, "reason": self.REASON, "more": 1}}

        annotate(Conversation.objects.all(), CHAT, 6, changes)
        annotate(Conversation.objects.all(), CHAT, 6, {"other": 1})

        assert (feedback(6), why(6)) == ({"rating": 1, "more": 1}, self.REASON)
        assert talk.messages.get(sequence=6).metadata["other"] == 1

    @pytest.mark.parametrize("reason", [1, None, ["a"]])
    def test_is_a_text_or_left_as_it_is(self, talk, reason):
        annotate(Conversation.objects.all(), CHAT, 6, {"feedback": {"reason": reason}})

        assert (feedback(6), why(6)) == ({"reason": reason}, None)

    def test_that_is_too_long_changes_nothing(self, talk):
        rate(talk, 6, 1, self.REASON)

        with pytest.raises(ValueError, match="2001 characters; at most 2000"):
            annotate(Conversation.objects.all(), CHAT, 6, {"feedback": {"rating": 2, "reason": "x" * 2_001}})

        assert (feedback(6), why(6)) == ({"rating": 1}, self.REASON)

    def test_goes_with_its_message(self, talk, ann):
        rate(talk, 6, 1, self.REASON)

        get_chat_memory(CHAT, owner=ann).remove(6)

        assert why(6) is None

    def test_is_exported_imported_and_forked(self, talk):
        rate(talk, 6, 1, self.REASON)

        import_lines(export_lines(Conversation.objects.all()), rename=True)
        fork(talk)

        assert list(Message.objects.filter(sequence=6).values_list("rating_reason", flat=True)) == [self.REASON] * 3

    @pytest.mark.parametrize("reason", ["x" * 2_001, "\0", 1])
    def test_that_a_database_could_not_store_is_not_imported(self, talk, reason):
        rate(talk, 6, 1, self.REASON)
        lines = [*export_lines(Conversation.objects.all())]
        lines[-1] = json.dumps({**json.loads(lines[-1]), "rating_reason": reason})

        with pytest.raises(JsonLinesError) as refused:
            import_lines(lines, rename=True)

        assert refused.value.line == 7
        assert Conversation.objects.count() == 1

    def test_counts_as_stored(self, talk, ann):
        before = stored_size(ann.pk)
        rate(talk, 6, 1)
        rated = stored_size(ann.pk)

        rate(talk, 6, 1, self.REASON)

        assert before < rated == stored_size(ann.pk) - len(self.REASON)


class TestTheExport:
    def test_has_question_answer_and_context(self, talk):
        rate(talk, 6, 1, "There are four.")

        [line] = map(json.loads, export_ratings(Conversation.objects.all()))

        assert line["memory_id"] == CHAT
        assert (line["rating"], line["reason"], line["sequence"]) == (1, "There are four.", 6)
        assert (line["question"], line["answer"]) == ("How many?", "Three.")
        assert line["context"] == [{"type": "USER", "text": "Hi"}, {"type": "AI", "text": "Hello"}]

    def test_has_the_context_of_the_branch_of_the_answer(self, talk, ann):
        rate(talk, 6, 1)
        get_chat_memory(CHAT, owner=ann).add(UserMessage("Another one."), AiMessage("Yes."), after=2)
        rate(talk, 8, 5)

        first, second = map(json.loads, export_ratings(Conversation.objects.all()))

        assert (first["question"], second["question"]) == ("How many?", "Another one.")
        assert first["context"] == second["context"]

    def test_leaves_out_what_nobody_has_rated(self, talk):
        assert list(export_ratings(Conversation.objects.all())) == []

    def test_is_a_form_of_the_command(self, talk):
        rate(talk, 2, 5)
        out = StringIO()

        call_command("export_chatmemory", form="ratings", stdout=out)

        assert json.loads(out.getvalue())["answer"] == "Hello"


class TestTheAdmin:
    def test_filters_by_ratings_and_by_who_answers(self, talk, ann):
        rate(talk, 2, 1)
        client = Client()
        client.force_login(User.objects.create_superuser("root"))
        url = reverse("admin:chatmemory_conversation_changelist")

        found = {
            query: CHAT in client.get(f"{url}?{query}").content.decode()
            for query in ("rating=bad", "rating=good", "state=assistant", "state=waiting")
        }

        assert found == {"rating=bad": True, "rating=good": False, "state=assistant": True, "state=waiting": False}
