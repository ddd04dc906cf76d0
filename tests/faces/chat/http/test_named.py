"""Assistants by name, and functions of what is asked, over HTTP."""

import asyncio
import json
import re
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Permission, User
from django.core.cache import cache
from django.test import AsyncClient
from rest_framework.test import APIClient

from chatmemory_django.access import NotAllowedError
from chatmemory_django.chat import named
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.http.posted import read_rest
from chatmemory_django.chat.models import ModelCall, Run, ToolApproval
from chatmemory_django.chat.named import Asked
from chatmemory_django.chat.tools import Tool
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from tests.acceptance.docs.pages import block_of, execute
from tests.asgi import run
from tests.faces.chat.approvals.test_approvals import wait_for_threads
from tests.faces.chat.http.test_http import URL, bearer, chunks, user
from tests.faces.chat.scripted import ScriptedModel, calling

pytestmark = pytest.mark.django_db(transaction=True)

CHAT = "0b6cf6a4-6d2c-4f0e-9d0b-0a4a3f5f6f10"


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


class Site:
    """A site with two assistants by name, and one without."""

    def __init__(self, settings, who: User) -> None:
        self.support, self.sales, self.default = (ScriptedModel(*[name] * 9) for name in ("Help.", "Buy.", "Yes."))
        self.chat: dict[str, Any] = {
            "THROTTLE_RATE": None,
            "ASSISTANT": Assistant(self.default),
            "ASSISTANTS": {"support": Assistant(self.support), "sales": Assistant(self.sales)},
        }
        settings.CHATMEMORY = {"CHAT": self.chat}
        self.headers = bearer(who)

    def post(self, *texts: str, chat: str = CHAT, **others: Any) -> tuple[int, str]:
        """Send a question; return the status, and the answer's text or that of the refusal."""
        body = {"id": chat, "messages": [user(text) for text in texts], **others}
        return run(self._post(body))

    async def _post(self, body: Any) -> tuple[int, str]:
        client = AsyncClient(raise_request_exception=False)
        response = await client.post(URL, json.dumps(body), content_type="application/json", headers=self.headers)
        if response.status_code != 200:
            return response.status_code, response.content.decode()
        text = "".join(each.get("delta", "") for each in await chunks(response)).strip()
        return 200, text


@pytest.fixture
def site(settings, ann) -> Site:
    cache.clear()
    return Site(settings, ann)


class TestByName:
    def test_the_first_question_names_the_assistant_and_the_conversation_belongs_to_it(self, site):
        assert site.post("Hi", assistant="support") == (200, "Help.")
        assert site.post("And", assistant="support") == (200, "Help.")
        assert site.post("And") == (200, "Help.")

        assert Conversation.objects.get().assistant == "support"
        assert set(Run.objects.values_list("assistant", flat=True)) == {"support"}

    def test_its_calls_have_its_name_as_a_label(self, site):
        site.post("Hi", assistant="support")
        site.post("Hi", chat="other")

        assert list(ModelCall.objects.order_by("pk").values_list("labels", flat=True)) == [{"assistant": "support"}, {}]

    def test_each_has_a_budget_of_its_own(self, site, settings):
        settings.CHATMEMORY["BUDGET"] = {"TOKENS": 12, "PER": "day", "OF": "label:assistant"}

        assert site.post("Hi", assistant="support") == (200, "Help.")
        assert site.post("Hi", assistant="sales", chat="other") == (200, "Buy.")
        assert "budget for this chat is used up" in site.post("And", assistant="support")[1]
        assert site.post("Hi", chat="a third one") == (200, "Yes.")

    def test_without_a_name_it_is_the_one_without_a_name(self, site):
        assert site.post("Hi") == (200, "Yes.")
        assert site.post("Hi", assistant=None, chat="other") == (200, "Yes.")

        assert set(Conversation.objects.values_list("assistant", flat=True)) == {""}

    @pytest.mark.parametrize("first", [{"assistant": "support"}, {}], ids=["named", "default"])
    def test_another_one_is_refused_and_nothing_is_stored(self, site, first):
        site.post("Hi", **first)
        count, called = Message.objects.count(), []
        site.chat["ASSISTANTS"]["sales"] = called.append

        status, text = site.post("And", assistant="sales")

        assert (status, text) == (409, "This conversation belongs to another assistant. Begin a new one.")
        assert (Message.objects.count(), called) == (count, [])

    def test_the_one_without_a_name_is_another_one_too(self, site):
        site.post("Hi", assistant="support")

        assert site.post("And", assistant="")[0] == 409

    @pytest.mark.parametrize("name", ["none", "Support", "support ", "mysite.assistants.support", "__class__"])
    def test_an_unknown_name_is_404_and_shows_no_other(self, site, name):
        assert site.post("Hi", assistant=name) == (404, "There is no such assistant.")
        assert not Conversation.objects.exists()

    @pytest.mark.parametrize("name", [7, ["support"], {"name": "support"}, True])
    def test_a_name_that_is_no_text_is_400(self, site, name):
        status, text = site.post("Hi", assistant=name)

        assert (status, "$.assistant" in text, "support" in text) == (400, True, False)

    def test_without_any_other_one_the_name_has_to_be_given(self, site):
        del site.chat["ASSISTANT"]

        status, text = site.post("Hi")

        assert (status, text) == (400, "$.assistant is missing: the assistants of this chat are asked by name.")
        assert site.post("Hi", assistant="sales") == (200, "Buy.")

    def test_a_site_without_names_does_not_read_it(self, site):
        del site.chat["ASSISTANTS"]

        assert site.post("Hi", assistant={"of": "the client"}) == (200, "Yes.")

    def test_one_that_is_gone_is_refused_and_the_conversation_stays_readable(self, site):
        site.post("Hi", assistant="support")
        del site.chat["ASSISTANTS"]["support"]

        assert site.post("And") == (409, "The assistant of this conversation is no longer there. Begin a new one.")

        async def read() -> list[str]:
            response = await AsyncClient().get(f"{URL}/{CHAT}/messages", headers=site.headers)
            return [each["role"] for each in response.json()]

        assert run(read()) == ["user", "assistant"]

    def test_regenerating_asks_the_same_one(self, site):
        site.post("Hi", assistant="support")

        assert site.post(trigger="regenerate-message") == (200, "Help.")
        assert site.post(trigger="regenerate-message", assistant="sales")[0] == 409

    def test_two_first_questions_at_once_get_answers_of_one(self, site):
        async def both() -> list[tuple[int, str]]:
            bodies = [{"id": CHAT, "messages": [user("Hi")], "assistant": name} for name in ("support", "sales")]
            return await asyncio.gather(*map(site._post, bodies))

        answers = run(both())

        assert sorted(status for status, _ in answers) == [200, 409]
        assert min(answers)[1] == {"support": "Help.", "sales": "Buy."}[Conversation.objects.get().assistant]


class TestWhatWasThereBefore:
    def test_an_empty_conversation_belongs_to_the_one_that_is_asked_first(self, site, ann):
        Conversation.objects.create(memory_id=CHAT, owner=ann)

        assert site.post("Hi", assistant="sales") == (200, "Buy.")
        assert site.post("Hi", assistant="support")[0] == 409
        assert Conversation.objects.get().assistant == "sales"

    @pytest.mark.parametrize(("has_default", "answer"), [(True, 409), (False, 200)])
    def test_one_with_messages_belongs_to_the_one_without_a_name_if_there_is_one(self, site, ann, has_default, answer):
        get_chat_memory(CHAT, owner=ann).add(UserMessage("Before"))
        if not has_default:
            del site.chat["ASSISTANT"]

        assert site.post("Hi", assistant="sales")[0] == answer

    @pytest.mark.parametrize("first", [{"assistant": "support"}, {}], ids=["named", "default"])
    def test_a_first_question_while_another_one_is_bound_is_refused(self, site, ann, monkeypatch, first):
        Conversation.objects.create(memory_id=CHAT, owner=ann)
        belongs = named.belongs

        def bound_meanwhile(conversation: Conversation) -> bool:
            found = belongs(conversation)
            Conversation.objects.update(assistant="sales")  # by another process
            return found

        monkeypatch.setattr(named, "belongs", bound_meanwhile)
        assert site.post("Hi", **first)[0] == 409
        assert Conversation.objects.get().assistant == "sales"


class TestApprovals:
    @pytest.fixture
    def paid(self, site) -> list[int]:
        paid: list[int] = []

        def pay(amount: int) -> str:
            """Pay an amount."""
            paid.append(amount)
            return "Paid."

        model = ScriptedModel(calling(("c1", "pay", '{"amount": 5}')), "Done.")
        site.chat["ASSISTANTS"]["cashier"] = Assistant(model, tools=[Tool(pay, needs_approval=True)])
        site.post("Pay 5", assistant="cashier")
        return paid

    def decided(self, site, **others: Any) -> tuple[int, str]:
        approval = {"id": str(ToolApproval.objects.get().pk), "approved": True}
        part = {"type": "tool-pay", "state": "approval-responded", "toolCallId": "c1", "approval": approval}
        message = {"id": "answer", "role": "assistant", "parts": [part]}
        return run(site._post({"id": CHAT, "messages": [message], **others}))

    def test_the_one_that_asked_goes_on(self, site, paid):
        assert self.decided(site, assistant="sales")[0] == 409
        assert (paid, ToolApproval.objects.get().approved) == ([], None)

        status, text = self.decided(site)

        assert (status, "Done." in text, paid) == (200, True, [5])

    @pytest.mark.parametrize("is_owner", [True, False])
    def test_what_fails_in_a_function_of_the_site_is_not_shown(self, site, paid, is_owner):
        def of(request, asked):
            raise ValueError("secret")

        site.chat["ASSISTANTS"]["cashier"] = of
        if not is_owner:
            site.headers = bearer(User.objects.create_superuser("staff"))

        status, text = self.decided(site)

        assert (status, "secret" in text) == (500, False)
        assert ToolApproval.objects.get().approved is None

    def test_who_may_not_decide_binds_no_conversation(self, site, ann):
        del site.chat["ASSISTANT"]
        get_chat_memory(CHAT, owner=ann).add(UserMessage("Before"))
        viewer = User.objects.create_user("bob", is_staff=True)
        viewer.user_permissions.add(Permission.objects.get(codename="view_conversation"))
        site.headers = bearer(viewer)
        part = {"type": "tool-pay", "state": "approval-responded", "approval": {"id": str(uuid4()), "approved": True}}
        message = {"id": "answer", "role": "assistant", "parts": [part]}

        status, _ = run(site._post({"id": CHAT, "messages": [message], "assistant": "sales"}))

        assert (status, Conversation.objects.get().assistant) == (409, "")

    def test_the_one_that_asked_goes_on_after_a_decision_by_rest(self, site, paid, ann):
        client = APIClient()
        client.force_authenticate(ann)
        body = {"id": str(ToolApproval.objects.get().pk), "approved": True}

        assert client.post(f"/api/conversations/{CHAT}/approvals/", body, format="json").status_code == 204

        wait_for_threads()
        assert paid == [5]
        assert Message.objects.order_by("sequence").last().text == "Done."


class TestWhatIsAsked:
    @pytest.fixture
    def asked(self, site) -> list[Asked]:
        """What a function of the settings was given."""
        given: list[Asked] = []

        def of(request, asked):
            given.append(asked)
            return Assistant(site.default)

        site.chat["ASSISTANT"] = site.chat["ASSISTANTS"]["any"] = of
        return given

    def test_a_function_is_given_the_message_the_user_and_the_rest_of_the_body(self, site, asked, ann):
        assert site.post("Hi", chat="orders", model="small", options={"n": [1, None]}) == (200, "Yes.")

        [given] = asked
        assert (given.id, given.memory_id, given.assistant) == ("orders", f"{ann.pk}:orders", "")
        assert (given.message, given.user) == (UserMessage("Hi"), ann)
        assert given.body == {"model": "small", "options": {"n": [1, None]}}

    def test_it_is_given_the_name(self, site, asked):
        site.post("Hi", assistant="any")

        assert (asked[0].assistant, asked[0].id, asked[0].body) == ("any", CHAT, {})

    def test_to_regenerate_it_is_given_no_message_unless_the_client_sends_one(self, site, asked):
        site.post("Hi")

        site.post(trigger="regenerate-message", messageId=None)
        site.post("Hi", trigger="regenerate-message")

        assert [each.message and each.message.single_text for each in asked] == ["Hi", None, "Hi"]

    def test_a_function_of_the_request_alone_still_works(self, site):
        def of(request, model=None):
            return Assistant(site.sales)

        site.chat["ASSISTANT"] = of

        assert site.post("Hi", model="x") == (200, "Buy.")

    def test_it_is_called_in_a_thread_where_it_can_use_the_database(self, site, ann):
        def of(request, asked):
            return Assistant(site.sales) if User.objects.count() == 1 else None

        site.chat["ASSISTANT"] = of

        assert site.post("Hi") == (200, "Buy.")

    def test_what_it_refuses_is_refused_and_nothing_is_stored(self, site):
        def of(request, asked):
            raise NotAllowedError(403, "Not this model.")

        site.chat["ASSISTANT"] = of

        assert site.post("Hi") == (403, "Not this model.")
        assert not Conversation.objects.exists()

    def test_what_fails_in_it_is_not_the_clients_fault(self, site):
        def of(request, asked):
            raise ValueError("secret")

        site.chat["ASSISTANT"] = of

        status, text = site.post("Hi")
        assert (status, "secret" in text) == (500, False)

    @pytest.mark.parametrize("rest", [{"system": "x" * 65_536}, {"x" * 65_536: 1}, {"tools": [[]] * 30_000}])
    def test_the_rest_of_a_body_is_bounded(self, site, asked, rest):
        status, text = site.post("Hi", **rest)

        assert (status, asked) == (400, [])
        assert text.startswith("$: the fields beside the messages have ")

    def test_the_rest_of_a_body_may_be_nested_as_deep_as_the_body(self):
        with pytest.raises(ValueError, match="The body must be JSON"):
            read_rest(b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")

    def test_who_takes_no_rest_is_not_bothered_by_its_size(self, site):
        assert site.post("Hi", system="x" * 100_000) == (200, "Yes.")

    def test_the_page_lets_users_pick_a_model_and_a_larger_window_is_filled_again(self, site, settings, ann):
        shown = execute(block_of("assistants-by-name.md", "def assistant_of"))
        site.chat["ASSISTANT"] = shown["assistant_of"]
        get_chat_memory(CHAT, owner=ann, max_messages=100).add(*[UserMessage("A story. " * 40)] * 20)

        picked = [site.post("And?", model=model) for model in ("large", "small", "large")]

        counts = [int(re.search(r"sent (\d+) messages", text)[1]) for _status, text in picked]
        assert (counts[0], counts[2]) == (21, 25)
        assert counts[1] < 15
        for model in ("huge", "", ["large"], {"large": 1}, 7):
            assert site.post("And?", model=model) == (400, "There is no such model.")

    def test_questions_in_foreign_conversations_reach_no_function(self, site, asked):
        Conversation.objects.create(memory_id=CHAT, owner=User.objects.create_user("bob"), assistant="support")

        assert site.post("Hi", assistant="any")[0] == 404
        assert asked == []
