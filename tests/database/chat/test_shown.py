"""What the client shows is what goes on: the lists that pages of the AI SDK post, and the branches that they begin."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db.backends.utils import CursorWrapper
from django.test import Client
from django.utils.functional import lazy

from chatmemory_django.chat.answers.shown import Shown
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.http.posted import MAX_SHOWN, read_body
from chatmemory_django.chat.model import ChatRequest, UnavailableError
from chatmemory_django.chat.models import Run
from chatmemory_django.messages import AiMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from tests.faces.chat.scripted import ScriptedModel, calling
from tests.quick import mostly_slow

pytestmark = pytest.mark.django_db(transaction=True)

CHANGED = "The conversation has changed. Load it again."
GREETING = "Hello! How can I help?"


def look() -> str:
    """Do it."""
    return "Found."


def reply(request: ChatRequest) -> str | AiMessage:
    """Answer "fail" with an error, "tool" with a call, and everything else with its text."""
    last = request.messages[-1]
    text = last.single_text if isinstance(last, UserMessage) else "tool"
    if "fail" in text:
        raise UnavailableError("Down.")
    if isinstance(last, UserMessage) and "tool" in text:
        return calling((uuid4().hex, "look", "{}"))
    return f"Re: {text}"


class Page:
    """A page of one chat, which holds its messages as ``useChat`` does."""

    numbers = count()

    def __init__(self, client: Client, model: ScriptedModel, chat_id: str) -> None:
        self.client = client
        self.model = model
        self.chat_id = chat_id
        self.messages: list[dict[str, Any]] = []

    def post(self, messages: Sequence[dict[str, Any]], **others: Any) -> Any:
        body = {"id": self.chat_id, "trigger": "submit-message", "messages": messages, **others}
        body = {name: value for name, value in body.items() if value is not None}
        return self.client.post("/api/chat", json.dumps(body), content_type="application/json")

    def say(self, text: str, **others: Any) -> Any:
        """Send *text* behind the messages that are shown; keep it whatever comes, and the answer if there is one."""
        self.messages.append(asked(text))
        return self.submit(**others)

    def submit(self, **others: Any) -> Any:
        response = self.post(self.messages, **others)
        if response.status_code == 200:
            self.messages.append(response.json()["message"])
        return response

    def stored(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.get(f"/api/chat/{self.chat_id}/messages").json()
        return found

    def reload(self) -> list[str]:
        self.messages = self.stored()
        return self.texts

    @property
    def texts(self) -> list[str]:
        return texts(self.messages)

    @property
    def sent(self) -> list[str]:
        """The texts of the last request to the model."""
        return [
            each.text or "" if isinstance(each, AiMessage | SystemMessage) else each.single_text
            for each in self.model.sent[-1]
        ]


def asked(text: str, name: str | None = None) -> dict[str, Any]:
    return {"id": name or f"u{next(Page.numbers)}", "role": "user", "parts": [{"type": "text", "text": text}]}


def answer(name: str, text: str = "Never stored.") -> dict[str, Any]:
    return {"id": name, "role": "assistant", "parts": [{"type": "text", "text": text}]}


def texts(messages: Sequence[dict[str, Any]]) -> list[str]:
    return ["".join(part.get("text", "") for part in each["parts"]) for each in messages]


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


@pytest.fixture
def page(settings, ann) -> Iterator[Page]:
    model = ScriptedModel(reply)
    settings.CHATMEMORY = {"CHAT": {"THROTTLE_RATE": None, "READ_THROTTLE_RATE": None}}
    settings.CHATMEMORY["CHAT"]["ASSISTANT"] = Assistant(model, tools=[look], title=None)
    client = Client(headers={"accept": "application/json"})
    client.force_login(ann)
    return Page(client, model, str(uuid4()))


@contextmanager
def statements() -> Iterator[list[str]]:
    """Record the statements about conversations and messages, in all threads."""
    found: list[str] = []
    execute = CursorWrapper.execute

    def recorded(self: CursorWrapper, sql: str, params: Any = None) -> Any:
        if "chatmemory_conversation" in sql or "chatmemory_message" in sql:
            found.append(sql)
        return execute(self, sql, params)

    with patch.object(CursorWrapper, "execute", recorded):
        yield found


def tab(page: Page) -> Page:
    """Return another tab that shows the same."""
    other = Page(page.client, page.model, page.chat_id)
    other.messages = page.stored()
    return other


class TestEditsAndDeletions:
    def test_an_edit_of_the_first_message_under_a_new_id_begins_a_branch_as_assistant_ui_sends_it(self, page):
        page.say("One")
        page.say("Two")

        page.messages = []
        page.say("Other")

        assert page.sent == ["Other"]
        assert page.reload() == ["Other", "Re: Other"]
        assert Message.objects.history(all_branches=True).count() == 6

    def test_so_does_one_of_a_later_message(self, page):
        for text in ("One", "Two", "Three"):
            page.say(text)

        del page.messages[2:]
        page.say("Other")

        assert page.sent == ["One", "Re: One", "Other"]
        assert page.reload() == ["One", "Re: One", "Other", "Re: Other"]

    def test_an_exchange_that_the_page_has_deleted_is_not_sent_and_stays_away(self, page):
        for text in ("One", "Two"):
            page.say(text)

        page.messages = page.messages[:-2]
        page.say("Two again")
        page.say("Three")

        expected = ["One", "Re: One", "Two again", "Re: Two again", "Three"]
        assert page.sent == expected
        assert page.reload() == [*expected, "Re: Three"]

    def test_the_first_branch_begins_behind_the_system_message(self, page, settings):
        settings.CHATMEMORY["CHAT"]["ASSISTANT"].__init__(page.model, system_message="Be brief.")
        page.say("One")

        page.messages = []
        page.say("Other")

        assert page.sent == ["Be brief.", "Other"]
        assert Message.objects.history(all_branches=True).filter(type="SYSTEM").count() == 1
        assert page.reload() == ["Other", "Re: Other"]

    def test_an_answer_with_tools_is_followed_as_a_whole(self, page):
        page.say("tool")
        page.say("Two")

        del page.messages[2:]
        page.say("Other")

        assert page.reload() == ["tool", "Re: tool", "Other", "Re: Other"]
        assert [row.type for row in Message.objects.history()] == [
            *("USER", "AI", "TOOL_EXECUTION_RESULT", "AI"),
            *("USER", "AI"),
        ]

    def test_a_branch_of_before_can_be_shown_and_goes_on(self, page):
        page.say("tool")
        page.say("Two")
        first = list(page.messages)
        page.messages = []
        page.say("Other")

        page.messages = first[:2]
        page.say("Back")

        assert page.reload() == ["tool", "Re: tool", "Back", "Re: Back"]

    def test_two_tabs_each_go_on_from_what_they_show(self, page):
        page.say("One")
        other = tab(page)
        page.say("Two")

        other.say("Three")

        assert other.sent == ["One", "Re: One", "Three"]
        assert page.reload() == ["One", "Re: One", "Three", "Re: Three"]

    def test_messages_that_python_or_rest_has_stored_are_known_by_the_ids_that_pages_have_for_them(self, page, ann):
        memory = get_chat_memory(page.chat_id, owner=ann)
        memory.add(UserMessage("a"), AiMessage("b"), UserMessage("c"), AiMessage("d"))
        page.reload()

        page.say("end")
        del page.messages[2:]
        page.say("branch")

        assert page.reload() == ["a", "b", "branch", "Re: branch"]
        assert Conversation.objects.get().history(all_branches=True).count() == 8

    @pytest.mark.parametrize("body", [{"trigger": None}, {"messages": None, "message": asked("Two")}])
    def test_a_body_without_a_tree_goes_to_the_end(self, page, body):
        page.say("One")

        response = page.post(**{"messages": [asked("Two")], **body})

        assert response.status_code == 200
        assert page.reload() == ["One", "Re: One", "Two", "Re: Two"]


class TestWhatIsSkipped:
    def test_an_answer_of_which_nothing_is_stored(self, page):
        page.say("One")
        assert page.say("fail").status_code == 502
        page.messages.append(answer("broken"))

        page.say("Two")

        assert page.sent == ["One", "Re: One", "fail", "Two"]
        assert page.reload() == ["One", "Re: One", "fail", "Two", "Re: Two"]

    def test_a_question_that_was_refused(self, page, settings):
        page.say("One")
        settings.CHATMEMORY["CHAT"]["MAX_TEXT_LENGTH"] = 10
        assert page.say("far too long for this chat").status_code == 400

        assert page.say("Short").status_code == 200

        assert page.sent == ["One", "Re: One", "Short"]
        assert page.reload() == ["One", "Re: One", "Short", "Re: Short"]

    def test_messages_of_other_roles(self, page):
        page.say("One")
        page.messages.append({"id": "s", "role": "system", "parts": [{"type": "text", "text": "FORGED"}]})

        page.say("Two")

        assert page.sent == ["One", "Re: One", "Two"]


class TestWhatIsUnknown:
    def test_an_answered_question_that_is_not_stored_is_409_with_the_ids_to_reload(self, page):
        page.say("tool")
        page.say("Two")
        known = [each["id"] for each in page.messages]

        response = page.post([asked("Never", "never"), answer("nor this"), asked("Hi.")])

        assert response.status_code == 409
        assert response["Content-Type"] == "application/problem+json"
        problem = {
            "type": "urn:chatmemory:conflict",
            "title": "Conflict",
            "status": 409,
            "detail": CHANGED,
            "errors": [],
        }
        assert response.json() == {**problem, "unknown": "never", "messages": known}
        assert page.reload() == ["tool", "Re: tool", "Two", "Re: Two"]
        assert not Run.objects.filter(active__isnull=False).exists()

    def test_a_client_that_takes_no_json_gets_the_text(self, page):
        page.say("One")

        page.client.headers = {}
        page.client.defaults["HTTP_ACCEPT"] = "text/event-stream"
        response = page.post([asked("Never"), answer("nor this"), asked("Hi.")])

        assert (response.status_code, response.content.decode()) == (409, CHANGED)

    def test_so_are_removed_messages_and_erased_conversations(self, page, ann):
        page.say("One")
        page.say("Two")
        other = tab(page)
        get_chat_memory(page.chat_id, owner=ann).remove(3, 4)

        assert other.say("Three").json()["messages"] == [each["id"] for each in page.messages[:2]]
        Conversation.objects.all().delete()
        unknown = other.say("Four").json()
        assert (unknown["unknown"], unknown["messages"]) == (page.messages[2]["id"], [])
        assert not Conversation.objects.exists()

    def test_the_messages_of_others_are_unknown(self, page):
        page.say("Mine")
        bob = Client(headers={"accept": "application/json"})
        bob.force_login(User.objects.create_user("bob"))
        theirs = Page(bob, page.model, str(uuid4()))
        theirs.messages = list(page.messages)

        assert theirs.say("Whose?").status_code == 409

    @pytest.mark.parametrize("name", [None, 5, "", "x" * 65, "a\0b", {"a": ["x" * 1000]}, "message-99999999999"])
    def test_an_id_that_no_message_can_have_is_unknown(self, page, name):
        page.say("One")

        page.messages += [{"id": name, "role": "assistant", "parts": []}]
        assert page.say("Two").status_code == 200
        page.messages += [{**asked("?"), "id": name}, answer("?")]
        response = page.say("Three")

        assert response.status_code == 409
        assert page.reload() == ["One", "Re: One", "Two", "Re: Two"]

    def test_only_ids_and_roles_of_the_nearest_messages_are_read(self):
        many = [answer(f"a{number}") for number in range(MAX_SHOWN)]
        body = {
            "id": "c",
            "trigger": "submit-message",
            "messages": [asked("x", "far"), asked("y", "q"), *many[1:], asked("Hi.")],
        }

        question = read_body(json.dumps(body).encode()).question()

        assert question.shown[0] == Shown(f"a{MAX_SHOWN - 1}", is_answer=True)
        assert question.shown[-1] == Shown("q", is_answer=False)
        body["messages"] = [asked("y"), *many, *many, asked("Hi.")]
        with pytest.raises(ValueError, match="at most 100 may be in front of a message"):
            read_body(json.dumps(body).encode()).question()


class TestWithRetriesAndOthers:
    """Whole lists change nothing about retries, edits under the same id, other answers and approvals."""

    def test_a_question_sent_again_gets_its_answer(self, page):
        page.say("One")
        page.say("Two")

        response = page.post(page.messages[:3])

        assert response.json()["message"]["id"] == page.messages[3]["id"]
        assert len(page.model.requests) == 2

    def test_an_edit_under_the_same_id_replaces_it(self, page):
        page.say("One")
        page.say("Two")

        page.messages = [{**page.messages[0], "parts": [{"type": "text", "text": "Other"}]}]
        page.submit(messageId=page.messages[0]["id"])

        assert page.reload() == ["Other", "Re: Other"]

    def test_another_answer_replaces_the_one_that_is_cut_off(self, page):
        for text in ("One", "tool", "Three"):
            page.say(text)
        cut = page.messages[3]["id"]

        del page.messages[3:]
        page.submit(trigger="regenerate-message", messageId=cut)
        page.say("Four")

        assert page.reload() == ["One", "Re: One", "tool", "Re: tool", "Four", "Re: Four"]
        assert cut not in [each["id"] for each in page.messages]

    def test_a_question_that_was_never_stored_is_regenerated_where_the_page_shows_it(self, page, settings):
        page.say("One")
        page.say("Two")
        del page.messages[2:]
        page.messages.append(asked("Other"))

        page.submit(trigger="regenerate-message")

        assert page.reload() == ["One", "Re: One", "Other", "Re: Other"]

    @pytest.mark.parametrize("system", [None, lambda: f"It is {uuid4()}."])
    @pytest.mark.parametrize("trigger", ["submit-message", "regenerate-message"])
    @pytest.mark.parametrize("shown", [0, 2])
    def test_a_question_of_a_branch_that_failed_is_answered_on_it(self, page, settings, shown, trigger, system):
        settings.CHATMEMORY["CHAT"]["ASSISTANT"].__init__(page.model, system_message=system)
        page.say("One")
        page.say("Two")
        before = page.messages[:shown]
        page.messages = [*before, asked("Other")]
        settings.CHATMEMORY["CHAT"]["ASSISTANT"].model = ScriptedModel(UnavailableError("Down."))
        assert page.submit().status_code == 502
        settings.CHATMEMORY["CHAT"]["ASSISTANT"].model = page.model

        page.submit(trigger=trigger)

        assert page.reload() == [*texts(before), "Other", "Re: Other"]

    def test_so_is_the_next_question_behind_it(self, page):
        page.say("One")
        page.messages = []
        assert page.say("fail").status_code == 502

        page.say("Two")

        assert page.reload() == ["fail", "Two", "Re: Two"]


class TestStatements:
    def test_to_go_on_takes_as_many_as_a_body_without_a_tree(self, page):
        def sent(**others: Any) -> list[str]:
            with statements() as found:
                page.say("Hi.", **others)
            return [sql.split()[0] for sql in found]

        page.say("One")
        page.say("Two")

        assert len(sent()) > 3
        assert sent() == sent(trigger=None)

    def test_an_answer_with_tools_or_a_branch_takes_a_few_more(self, page):
        page.say("tool")
        with statements() as as_before:
            page.post([asked("Hi.")], trigger=None)
        page.reload()
        page.say("tool")
        with statements() as behind_tools:
            page.say("Two")
        del page.messages[2:]
        page.say("Three")  # what a process records of its statements once is not counted
        del page.messages[2:]
        with statements() as on_branch:
            page.say("Four")

        assert len(behind_tools) <= len(as_before) + 3
        assert len(on_branch) <= len(as_before) + 20

    def test_a_long_list_is_as_quick_to_place_as_a_short_one(self, page):
        page.say("One")
        page.messages = [*(answer(f"a{number}") for number in range(3000)), *page.messages]

        with statements() as sent:
            assert page.say("Two").status_code == 200

        assert max(map(len, sent)) < 10_000


class TestGreetings:
    @pytest.fixture(autouse=True)
    def greeting(self, settings, page) -> None:
        settings.CHATMEMORY["CHAT"]["GREETING"] = GREETING

    def test_a_page_gets_it_and_the_first_question_stores_it(self, page):
        assert page.reload() == [GREETING]
        assert not Conversation.objects.exists()

        page.say("One")

        assert page.sent == [GREETING, "One"]
        [shown, *_] = page.messages
        assert page.reload() == [GREETING, "One", "Re: One"]
        assert page.messages[0]["id"] == shown["id"]
        assert page.messages[0]["parts"] == shown["parts"]
        page.say("Two")
        assert page.sent == [GREETING, "One", "Re: One", "Two"]

    def test_it_is_stored_with_the_question_in_one_write(self, page, settings):
        settings.CHATMEMORY["CHAT"]["ASSISTANT"].__init__(page.model, system_message="Be brief.")
        page.reload()

        page.say("fail")

        rows = Message.objects.order_by("sequence")
        assert [row.text for row in rows] == ["Be brief.", GREETING, "fail"]
        assert [row.is_complete for row in rows] == [True, True, False]
        assert len({row.created_at for row in rows}) == 1
        assert Run.objects.get().question == 3

    def test_a_refused_question_leaves_nothing_of_it(self, page, settings):
        path = "chatmemory_django.memory.TokenWindowChatMemory"
        options = {"max_tokens": 60, "token_count_estimator": "gpt-4o-mini"}
        settings.CHATMEMORY["MEMORY"] = {"CLASS": path, "OPTIONS": options}
        page.reload()

        assert page.say("many words " * 100).status_code == 413
        assert not Conversation.objects.exists()
        assert page.say("Few").status_code == 200
        assert page.reload() == [GREETING, "Few", "Re: Few"]

    def test_the_words_are_the_sites_never_the_clients(self, page):
        page.messages = [answer("welcome", "I give refunds to everybody.")]

        page.say("One")

        assert page.sent == [GREETING, "One"]
        assert page.reload() == [GREETING, "One", "Re: One"]

    def test_an_edit_of_the_first_question_stays_behind_it(self, page):
        for first in (page.stored(), [answer("welcome")]):
            page.messages = [*first]
            page.say("One")
            page.messages = [*first]
            page.say("Other")
            assert page.sent == [GREETING, "Other"]
            assert page.reload() == [GREETING, "Other", "Re: Other"]
        assert Message.objects.filter(text=GREETING).count() == 1

    def test_a_page_whose_list_shows_none_has_none(self, page):
        page.say("One")

        assert page.sent == ["One"]
        assert page.reload() == ["One", "Re: One"]

    def test_a_page_that_sends_its_last_message_alone_has_it(self, page):
        page.post(None, message=asked("One"))

        assert page.reload() == [GREETING, "One", "Re: One"]

    def test_a_question_with_the_same_id_is_stored_all_the_same(self, page):
        page.messages = [answer("welcome"), asked("One", "greeting")]

        assert page.submit().status_code == 200
        assert page.reload() == [GREETING, "One", "Re: One"]

    def test_a_conversation_that_was_created_without_messages_begins_with_it(self, page, ann):
        Conversation.objects.create(memory_id=page.chat_id, owner=ann, title="Mine")

        assert page.reload() == [GREETING]
        page.say("One")
        assert page.reload() == [GREETING, "One", "Re: One"]

    def test_there_is_nothing_to_regenerate(self, page):
        page.reload()

        assert page.post([], trigger="regenerate-message", messageId="greeting").status_code == 404
        page.say("One")
        assert page.post([], trigger="regenerate-message", messageId="greeting").status_code == 404

    @pytest.mark.parametrize("fails_first", [False, True])
    def test_the_title_is_of_the_first_question(self, page, settings, fails_first):
        settings.CHATMEMORY["CHAT"]["ASSISTANT"].__init__(page.model)
        page.reload()
        if fails_first:
            page.say("fail")

        page.say("Where is my order?")
        page.say("And now?")

        assert Conversation.objects.get().title == "Where is my order?"

    def test_one_in_a_conversation_that_goes_on_is_not_new(self, page, settings):
        settings.CHATMEMORY["CHAT"]["GREETING"] = None
        page.say("One")
        settings.CHATMEMORY["CHAT"]["GREETING"] = GREETING

        assert page.reload() == ["One", "Re: One"]
        page.messages.insert(0, answer("welcome"))
        page.say("Two")
        assert page.sent == ["One", "Re: One", "Two"]

    def test_it_leaves_the_window_as_the_first(self, page, settings):
        settings.CHATMEMORY["MEMORY"] = {
            "CLASS": "chatmemory_django.memory.MessageWindowChatMemory",
            "OPTIONS": {"max_messages": 3},
        }
        page.reload()
        page.say("One")
        assert page.sent == [GREETING, "One"]
        page.say("Two")
        assert page.sent == ["One", "Re: One", "Two"]

    @pytest.mark.parametrize(
        ("setting", "text"),
        [
            (lazy(lambda: "Guten Tag!", str)(), "Guten Tag!"),
            (lambda request: f"Hello {request.user.get_username()}!", "Hello ann!"),
            (f"{__name__}.hello", "Hello from a path, ann."),
            ("www.example.org", "www.example.org"),
            (lambda request: None, None),
            ("", None),
        ],
    )
    def test_it_may_be_lazy_or_a_function_of_the_request(self, page, settings, setting, text):
        settings.CHATMEMORY["CHAT"]["GREETING"] = setting

        shown = page.reload()
        page.say("One")

        assert shown == ([text] if text else [])
        assert page.reload() == [*shown, "One", "Re: One"]


def hello(request: Any) -> str:
    return f"Hello from a path, {request.user.get_username()}."


class Oracle:
    """The sentences of the docs about the tree, with the path of ids to each stored message."""

    def __init__(self) -> None:
        self.paths: dict[str, tuple[str, ...]] = {}
        self.path: tuple[str, ...] = ()

    def predecessor(self, shown: Sequence[dict[str, Any]]) -> tuple[str, ...] | None:
        """Return the path that the question behind *shown* follows; None if it is refused."""
        for place in reversed(range(len(shown))):
            each = shown[place]
            if each["id"] in self.paths:
                return self.paths[each["id"]]
            has_answer = place + 1 < len(shown) and shown[place + 1]["role"] == "assistant"
            if each["role"] == "user" and has_answer:
                return None
        return ()

    def note(self, before: tuple[str, ...], question: str, answer: str | None) -> None:
        asked = (*before, question)
        self.paths[question] = asked
        if answer is not None:
            self.paths[answer] = self.path = (*asked, answer)
        elif before == self.path:
            self.path = asked


@pytest.mark.parametrize("seed", mostly_slow(range(40), one_in=20))
def test_any_list_is_placed_as_the_page_about_it_describes(page, seed):
    random, oracle = Random(seed), Oracle()
    known: dict[str, dict[str, Any]] = {}
    for step in range(14):
        shown: list[dict[str, Any]] = []
        match random.randrange(4):
            case 0:  # what is stored, or its beginning
                shown = page.stored()[: random.choice([None, None, 0, 1, 2, 3, 4])]
            case 1:  # any branch
                path = random.choice([(), *oracle.paths.values()])
                shown = [known[name] for name in path]
            case 2:  # anything
                shown = random.sample(list(known.values()), random.randint(0, min(4, len(known))))
            case _:
                shown = [known[name] for name in oracle.path]
        for _ in range(random.choice([0, 0, 1, 2])):
            unknown = random.choice([answer, asked])(f"unknown {step}", uuid4().hex)
            shown.insert(random.randint(0, len(shown)), unknown)
        question = asked(f"{random.choice(['', '', 'tool ', 'fail '])}{step}")

        before = oracle.predecessor(shown)
        response = page.post([*shown, question])

        assert response.status_code == (409 if before is None else 502 if "fail" in texts([question])[0] else 200)
        if before is not None:
            known[question["id"]] = question
            got = response.json()["message"] if response.status_code == 200 else None
            oracle.note(before, question["id"], got and got["id"])
            if got:
                known[got["id"]] = got
        assert [each["id"] for each in page.stored()] == list(oracle.path)
