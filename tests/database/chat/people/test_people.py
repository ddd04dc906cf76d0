"""A conversation that a person has: who answers in it, and that nothing is answered twice, or lost."""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.db import connections
from django.test import Client
from django.utils import timezone

from chatmemory_django import signals
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.models import ModelCall, Run
from chatmemory_django.chat.people import answer_as, ask_a_person
from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.runs.leases import HandedOverError
from chatmemory_django.core.shown import author_of
from chatmemory_django.messages import AiMessage, MessageType, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.operations import OtherPersonError, export_lines, give_back, hand_over, import_lines
from chatmemory_django.provider import get_chat_memory
from tests.faces.chat.approvals.test_approvals import NoReplica
from tests.faces.chat.scripted import ScriptedModel, calling

pytestmark = pytest.mark.django_db(transaction=True)

State = Conversation.State
CHAT = "8a4f1d52-6b0e-4b43-a1c4-6b8f0f3f7b11"


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


@pytest.fixture
def klaus() -> User:
    return User.objects.create_user("klaus", first_name="Klaus", last_name="Meier", is_staff=True)


@pytest.fixture
def lea() -> User:
    return User.objects.create_user("lea", is_staff=True)


@pytest.fixture
def begin(ann) -> Callable[[], Conversation]:
    """Return Ann's conversation, in which she and a model have written."""

    def begun() -> Conversation:
        get_chat_memory(CHAT, owner=ann).add(UserMessage("Hi"), AiMessage("Hello"))
        return Conversation.objects.get()

    return begun


@pytest.fixture
def assisted(settings) -> Callable[..., ScriptedModel]:
    """Make an assistant with these answers the site's, and return its model."""

    def made(*answers: Any, **options: Any) -> ScriptedModel:
        model = ScriptedModel(*answers)
        made.assistant = Assistant(model, **options)
        settings.CHATMEMORY = {"CHAT": {"THROTTLE_RATE": None, "ASSISTANT": made.assistant}}
        return model

    return made


def post(user: User, text: str, message_id: str | None = None, accept: str = "text/event-stream", **body: Any) -> Any:
    client = Client()
    client.force_login(user)
    message = {"id": message_id or uuid4().hex, "role": "user", "parts": [{"type": "text", "text": text}]}
    content = json.dumps({"id": CHAT, "messages": [message], **body})
    return client.post("/api/chat", content, content_type="application/json", headers={"Accept": accept})


def chunks(response: Any) -> list[dict[str, Any]]:
    content = b"".join(response.streaming_content) if response.streaming else response.content
    events = [line.removeprefix("data: ") for line in content.decode().split("\n\n") if line.startswith("data: {")]
    return [json.loads(event) for event in events]


def texts() -> list[tuple[str, str]]:
    return list(Conversation.objects.get().history().values_list("type", "text"))


class TestWhoAnswers:
    """The state of a conversation."""

    def test_a_new_conversation_is_the_assistants(self, begin):
        conversation = begin()

        assert (conversation.state, conversation.person, conversation.state_since) == (State.ASSISTANT, "", None)

    def test_it_waits_until_somebody_takes_it_and_is_given_back(self, begin, klaus):
        conversation = begin()

        waiting = hand_over(conversation)
        had = hand_over(conversation, klaus)
        back = give_back(conversation)

        assert (waiting.state, waiting.person) == (State.WAITING, "")
        assert (had.state, had.person) == (State.PERSON, str(klaus.pk))
        assert had.state_since >= waiting.state_since
        assert (back.state, back.person) == (State.ASSISTANT, "")
        assert Conversation.objects.get().version == conversation.version + 3

    def test_one_that_was_read_from_a_replica_is_written_where_writes_go(self, begin, klaus, settings):
        talk = Conversation.objects.select_related("owner").get(pk=begin().pk)
        talk._state.db = "replica"
        settings.DATABASE_ROUTERS = [NoReplica()]

        assert hand_over(talk, klaus).state == State.PERSON
        assert answer_as(talk, klaus, "I am here.") == 3
        assert give_back(talk).state == State.ASSISTANT

    def test_the_same_once_more_writes_nothing(self, begin, klaus):
        conversation = begin()
        hand_over(conversation, klaus)
        version = Conversation.objects.get().version

        hand_over(conversation, klaus)
        hand_over(conversation)

        assert Conversation.objects.get().version == version
        assert Conversation.objects.get().person == str(klaus.pk)

    def test_what_one_has_another_gets_only_by_taking_it_over(self, begin, klaus, lea):
        conversation = begin()
        hand_over(conversation, klaus)

        with pytest.raises(OtherPersonError) as refused:
            hand_over(conversation, lea)
        taken = hand_over(conversation, lea, takes_over=True)

        assert refused.value.person == str(klaus.pk)
        assert taken.person == str(lea.pk)

    def test_each_change_is_a_signal_after_the_commit(self, begin, klaus):
        conversation, heard = begin(), []

        def hear(sender, **about):
            heard.append((about["conversation"].pk, about["state"], about["person"], about["using"]))

        signals.handed_over.connect(hear)
        try:
            hand_over(conversation)
            hand_over(conversation, klaus)
            hand_over(conversation, klaus)
            give_back(conversation)
        finally:
            signals.handed_over.disconnect(hear)

        using = conversation._state.db
        assert heard == [
            (conversation.pk, State.WAITING, "", using),
            (conversation.pk, State.PERSON, str(klaus.pk), using),
            (conversation.pk, State.ASSISTANT, "", using),
        ]

    def test_an_export_has_whom_it_waits_for_but_not_who_had_it(self, begin, klaus):
        conversation = begin()
        hand_over(conversation, klaus)

        import_lines(export_lines(Conversation.objects.all()), rename=True)

        [imported] = Conversation.objects.exclude(pk=conversation.pk)
        assert (imported.state, imported.person) == (State.WAITING, "")
        assert imported.state_since == Conversation.objects.get(pk=conversation.pk).state_since

    def test_lines_that_are_not_trusted_come_last_in_the_queue(self, begin):
        conversation = hand_over(begin())
        Conversation.objects.filter(pk=conversation.pk).update(state_since=conversation.created_at)
        lines = list(export_lines(Conversation.objects.all()))
        before = timezone.now()

        import_lines(lines, rename=True, trusted=False)

        assert Conversation.objects.latest("pk").state_since >= before


class TestQuestions:
    """What a user asks while a person answers."""

    def test_is_stored_and_begins_no_answer(self, begin, ann, assisted):
        model = assisted("No.")
        hand_over(begin())

        shown = chunks(post(ann, "Are you there?"))

        assert [each["type"] for each in shown] == ["start", "data-handover", "finish"]
        assert shown[1]["data"]["state"] == "waiting"
        assert texts()[-1] == (MessageType.USER, "Are you there?")
        assert (model.requests, Run.objects.count(), ModelCall.objects.count()) == ([], 0, 0)

    def test_is_stored_once_by_its_id(self, begin, ann, assisted):
        assisted("No.")
        hand_over(begin())

        for _ in range(2):
            post(ann, "Are you there?", "q1")
        post(ann, "And now?", "q2")

        assert [text for _, text in texts()] == ["Hi", "Hello", "Are you there?", "And now?"]

    def test_has_the_state_as_json(self, begin, ann, klaus, assisted):
        assisted("No.")
        hand_over(begin(), klaus)

        response = post(ann, "Are you there?", accept="application/json")

        assert response.status_code == 202
        assert response.json()["message"] is None
        shown = response.json()["handover"]
        assert (shown["state"], shown["name"]) == ("person", "Klaus Meier")
        assert shown.keys() == {"state", "since", "name"}

    def test_an_answer_is_not_made_again(self, begin, ann, assisted):
        assisted("No.")
        hand_over(begin())

        response = post(ann, "Hi", trigger="regenerate-message", messageId="message-2", messages=[])

        assert response.status_code == 409
        assert len(texts()) == 2

    @pytest.mark.parametrize("options", [{}, {"persist": "early"}, {"client_message_id": "q1"}])
    @pytest.mark.parametrize("tools", [(), (ask_a_person,)], ids=["without tools", "with tools"])
    def test_of_python_is_stored_too(self, begin, ann, tools, options):
        model = ScriptedModel("No.")
        hand_over(begin())

        with pytest.raises(HandedOverError):
            Assistant(model, tools=tools).chat(CHAT, "Are you there?", owner=ann, **options)

        assert texts()[-1] == (MessageType.USER, "Are you there?")
        assert (model.requests, Run.objects.count()) == ([], 0)

    def test_after_it_is_given_back_is_answered_with_all_that_was_written(self, begin, ann, klaus, assisted):
        model = assisted("Yes.")
        conversation = begin()
        hand_over(conversation)
        post(ann, "Are you there?")
        answer_as(conversation, klaus, "Yes, I am.")
        give_back(conversation)

        post(ann, "Thanks")

        sent = [getattr(each, "text", None) or each.single_text for each in model.sent[0]]
        assert sent == [
            "Hi",
            "Hello",
            "Are you there?",
            "[Written by Klaus Meier, a person, and not by you:]\nYes, I am.",
            "Thanks",
        ]
        assert texts()[-1] == (MessageType.AI, "Yes.")


class TestAnswers:
    """What people write."""

    def test_have_their_author_and_take_the_conversation(self, begin, klaus):
        conversation = begin()
        hand_over(conversation)

        sequence = answer_as(conversation, klaus, "I am here.")

        row = conversation.messages.get(sequence=sequence)
        assert row.chat_message.attributes["author"] == {"id": str(klaus.pk), "name": "Klaus Meier"}
        assert author_of(row.chat_message) == "Klaus Meier"
        assert Conversation.objects.get().person == str(klaus.pk)

    def test_are_shown_as_messages_of_their_own(self, begin, ann, klaus, assisted):
        assisted("No.")
        conversation = begin()
        answer_as(conversation, klaus, "I am here.")
        client = Client()
        client.force_login(ann)

        shown = client.get(f"/api/chat/{CHAT}/messages").json()

        assert [each["role"] for each in shown] == ["user", "assistant", "assistant"]
        assert shown[2]["metadata"]["author"] == "Klaus Meier"
        assert "author" not in shown[1]["metadata"]
        assert shown[2]["metadata"].keys() == {"createdAt", "author"}

    def test_the_same_id_once_more_stores_nothing(self, begin, klaus):
        conversation = begin()

        first = answer_as(conversation, klaus, "I am here.", client_message_id="a1")
        second = answer_as(conversation, klaus, "I am here.", client_message_id="a1")

        assert first == second
        assert len(texts()) == 3

    def test_of_another_are_refused_unless_they_take_it_over(self, begin, klaus, lea):
        conversation = begin()
        answer_as(conversation, klaus, "I am here.")

        with pytest.raises(OtherPersonError):
            answer_as(conversation, lea, "Me too.")
        assert len(texts()) == 3
        answer_as(conversation, lea, "I take this.", takes_over=True)

        assert Conversation.objects.get().person == str(lea.pk)

    @pytest.mark.parametrize(
        ("text", "why"), [("", "blank"), (" \n", "blank"), ("x" * 100_001, "100001 characters"), ("\0", "NUL")]
    )
    def test_that_cannot_be_stored_are_refused(self, begin, klaus, text, why):
        conversation = begin()

        with pytest.raises(ValueError, match=why):
            answer_as(conversation, klaus, text)

        assert (len(texts()), Conversation.objects.get().state) == (2, State.ASSISTANT)

    def test_stop_the_answer_of_the_assistant_that_is_in_progress(self, begin, klaus, ann):
        conversation, run = begin(), uuid4()
        taken = leases.take(conversation._state.db, CHAT, ann.pk, run, assistant="")

        answer_as(conversation, klaus, "I am here.")

        assert Run.objects.get().is_stopping
        leases.end(taken, leases.State.STOPPED)


class TestTheTool:
    """The model asks for a person."""

    def test_lets_the_conversation_wait_and_the_answer_goes_on_to_its_end(self, ann, assisted):
        model = assisted(
            calling(("1", "ask_a_person", '{"reason": "Wants a refund."}')), "Somebody will come.", tools=[ask_a_person]
        )

        post(ann, "Give me a person")
        shown = chunks(post(ann, "Hello?"))

        assert texts()[-2:] == [(MessageType.AI, "Somebody will come."), (MessageType.USER, "Hello?")]
        assert Conversation.objects.get().state == State.WAITING
        assert len(model.requests) == 2
        assert shown[1]["data"]["state"] == "waiting"

    def test_takes_nothing_from_a_person(self, begin, klaus, ann):
        hand_over(begin(), klaus)

        ask_a_person("again", memory_id=CHAT, owner=ann)

        assert Conversation.objects.get().person == str(klaus.pk)


def at_once(*calls: Callable[[], object]) -> list[object]:
    """Call all of *calls* at the same moment, each in a thread; return their results, or the exceptions."""
    barrier, results = threading.Barrier(len(calls)), [None] * len(calls)

    def run(index: int, call: Callable[[], object]) -> None:
        barrier.wait()
        try:
            results[index] = call()
        except Exception as exc:  # noqa: BLE001
            results[index] = exc
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=each) for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class TestRaces:
    """What happens at the same moment: there is one answer, and nothing is lost."""

    @pytest.mark.parametrize("turn", range(5))
    def test_of_two_who_answer_one_does(self, begin, klaus, lea, turn):
        conversation = begin()
        hand_over(conversation)

        results = at_once(
            lambda: answer_as(conversation, klaus, "I do."), lambda: answer_as(conversation, lea, "I do.")
        )

        assert sorted(type(each) for each in results if isinstance(each, Exception)) == [OtherPersonError]
        assert len(texts()) == 3
        author = Conversation.objects.get().history().last().chat_message.attributes["author"]["id"]
        assert Conversation.objects.get().person == author

    @pytest.mark.parametrize("turn", range(5))
    def test_a_question_at_the_moment_of_the_handover_is_answered_once(self, begin, ann, klaus, assisted, turn):
        model = assisted("Yes.")
        conversation = begin()

        results = at_once(lambda: post(ann, "Are you there?", "q1"), lambda: hand_over(conversation, klaus))

        assert not [each for each in results if isinstance(each, Exception)]
        asked = [text for kind, text in texts() if kind == MessageType.USER]
        assert asked == ["Hi", "Are you there?"]
        answered = [text for kind, text in texts() if kind == MessageType.AI][1:]
        assert answered == ["Yes."] * len(model.requests)
        assert len(model.requests) == Run.objects.count() <= 1

    @pytest.mark.parametrize("turn", range(5))
    def test_a_question_at_the_moment_it_is_given_back_is_stored_once(self, begin, ann, klaus, assisted, turn):
        model = assisted("Yes.")
        conversation = begin()
        hand_over(conversation, klaus)

        at_once(lambda: post(ann, "Are you there?", "q1"), lambda: give_back(conversation))
        if not model.requests:  # it was stored for the person
            post(ann, "Are you there?", "q1")

        assert [text for _, text in texts()] == ["Hi", "Hello", "Are you there?", "Yes."]

    def test_a_process_that_dies_between_the_question_and_its_answer_leaves_one_answer(
        self, begin, ann, klaus, assisted
    ):
        model = assisted("No.")
        conversation, using = begin(), Conversation.objects.db
        taken = leases.take(using, CHAT, ann.pk, uuid4(), assistant="")
        get_chat_memory(CHAT, owner=ann).add(UserMessage("Are you there?"))
        leases.leave(taken)
        Run.objects.update(lease=leases.before(leases.DEAD_AFTER + 1))

        answer_as(conversation, klaus, "Yes, I am.")
        post(ann, "Good")

        assert [text for _, text in texts()] == ["Hi", "Hello", "Are you there?", "Yes, I am.", "Good"]
        assert model.requests == []

    def test_one_that_dies_in_the_middle_of_an_answer_of_a_person_stores_nothing_of_it(self, begin, klaus, monkeypatch):
        conversation = begin()

        def die(found: Conversation) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(leases, "stop_in", die)
        with suppress(KeyboardInterrupt):
            answer_as(conversation, klaus, "I am here.")

        assert (len(texts()), Conversation.objects.get().state) == (2, State.ASSISTANT)


@pytest.mark.parametrize("nobody", [User(username="new"), AnonymousUser()], ids=["not saved", "not signed in"])
def test_who_has_no_key_gets_no_conversation(begin, nobody):
    conversation = begin()

    with pytest.raises(ValueError, match="a saved user"):
        hand_over(conversation, nobody)
    with pytest.raises(ValueError, match="a saved user"):
        answer_as(conversation, nobody, "I look into it.")

    conversation.refresh_from_db()
    assert (conversation.state, conversation.person, conversation.next_sequence) == ("assistant", "", 3)
