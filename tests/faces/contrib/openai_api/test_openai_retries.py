"""OpenAI's client asks once more when its connection is cut: what that does in the world is done once."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx2
import openai
import pytest
from django.contrib.auth.models import User
from django.core.asgi import get_asgi_application
from django.db.models import F
from rest_framework.authtoken.models import Token

from chatmemory_django.chat.guards import Rewrite
from chatmemory_django.chat.model import BrokenStreamError
from chatmemory_django.chat.models import Run
from chatmemory_django.chat.runs.answers import answers
from chatmemory_django.chat.tools import Tool
from chatmemory_django.contrib.openai_api.retries import RETRY_SECONDS
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, Message
from tests.asgi import run
from tests.faces.chat.scripted import calling
from tests.faces.contrib.openai_api.conftest import ExactModel

pytestmark = pytest.mark.django_db(transaction=True)

HI = {"role": "user", "content": "Hi"}
PAY = {"role": "user", "content": "Pay"}
EARLIER = [HI, {"role": "assistant", "content": "Hello"}]
NAMED = {"extra_headers": {"X-Conversation-ID": "trip"}}
KEYED = {"extra_headers": {"Idempotency-Key": "5f0c"}}
NAMED_AND_KEYED = {"extra_headers": {**NAMED["extra_headers"], **KEYED["extra_headers"]}}


class Cut(httpx2.AsyncBaseTransport):
    """
    The way to the site, which is cut for one request at a *stage*: "before" it arrives, in the "middle" of its answer,
    or "after" that is stored.
    """

    def __init__(self, model: ExactModel, gate: asyncio.Event) -> None:
        self.site = get_asgi_application()
        self.model, self.gate = model, gate
        self.stage = ""
        self.calls = 0
        """How many calls of the model there are before the cut in the middle."""
        self.retries: list[str] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        stage, self.stage = self.stage, ""
        if (retry := request.headers.get("x-stainless-retry-count", "0")) != "0":
            self.retries.append(retry)
        if stage == "before":
            raise httpx2.ConnectError("cut", request=request)
        gone = asyncio.Event()
        responding = asyncio.ensure_future(self._respond(request, gone))
        if stage == "middle":
            self.gate.clear()
            while len(self.model.requests) < self.calls:
                await asyncio.sleep(0.001)
            gone.set()
        elif not self.gate.is_set():  # this is the retry: the answer goes on once somebody listens
            while not (responding.done() or any(each.has_listeners() for each in answers()._made.values())):
                await asyncio.sleep(0.001)
            self.gate.set()
        if stage:
            await asyncio.gather(responding, return_exceptions=True)
            raise httpx2.ReadError("cut", request=request)
        return await responding

    async def _respond(self, request: httpx2.Request, gone: asyncio.Event) -> httpx2.Response:
        """Return the site's response; once its client is *gone*, the site learns that, as from a server."""

        async def site(scope: Any, receive: Any, send: Any) -> None:
            unread = True

            async def received() -> Any:
                nonlocal unread
                if not unread:
                    await gone.wait()
                    return {"type": "http.disconnect"}
                message = await receive()
                unread = bool(message.get("more_body"))
                return message

            await self.site(scope, received, send)

        return await httpx2.ASGITransport(app=site).handle_async_request(request)


class Seen:
    """What a test has done in the world, as far as this counts it."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.retries: list[str] = []
        self.calls = 0


Talk = Callable[[openai.AsyncOpenAI, Callable[[str], None]], Awaitable[Any]]


@pytest.fixture
def talked(site, ann, monkeypatch):
    """Return a function that runs a talk, which arms the cut, and returns what was returned and seen."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.001)
    key = Token.objects.create(user=ann).key

    def talked(talk: Talk, *texts: Any) -> tuple[Any, Seen]:
        seen = Seen()

        def pay() -> str:
            """Pay."""
            seen.paid.append("1 EUR")
            return "paid"

        async def ask() -> Any:
            gate = asyncio.Event()
            gate.set()
            model = ExactModel(*(texts or ("Hello", calling(("p1", "pay", "{}")), "Paid", "More")), gate=gate)
            site(model=model, tools=[pay])
            cut = Cut(model, gate)

            def arm(stage: str) -> None:
                cut.stage, cut.calls = stage, len(model.requests) + 2

            client = openai.AsyncOpenAI(
                base_url="http://testserver/openai/v1", api_key=key, http_client=httpx2.AsyncClient(transport=cut)
            )
            async with client:
                try:
                    return await talk(client, arm)
                finally:
                    seen.retries, seen.calls = cut.retries, len(model.requests)

        return run(ask()), seen

    return talked


async def in_a_conversation(client: openai.AsyncOpenAI, arm: Callable[[], None], **options: Any) -> Any:
    conversation = (await client.conversations.create()).id
    await client.responses.create(model="assistant", input="Hi", conversation=conversation)
    arm()
    return await client.responses.create(model="assistant", input="Pay", conversation=conversation, **options)


async def behind_a_response(client: openai.AsyncOpenAI, arm: Callable[[], None], **options: Any) -> Any:
    first = await client.responses.create(model="assistant", input="Hi")
    arm()
    return await client.responses.create(model="assistant", input="Pay", previous_response_id=first.id, **options)


async def completing(client: openai.AsyncOpenAI, arm: Callable[[], None], **options: Any) -> Any:
    create = client.chat.completions.create
    await create(model="assistant", messages=EARLIER[:1], **NAMED)
    arm()
    return await create(model="assistant", messages=[PAY], **{**NAMED, **options})


async def completing_a_history(client: openai.AsyncOpenAI, arm: Callable[[], None], **options: Any) -> Any:
    create = client.chat.completions.create
    await create(model="assistant", messages=EARLIER[:1], **NAMED)
    arm()
    return await create(model="assistant", messages=[*EARLIER, PAY], **{**NAMED, **options})


WAYS = [in_a_conversation, behind_a_response, completing, completing_a_history]
STAGES = ["before", "middle", "after"]


async def text_of(answer: Any) -> str:
    """Return the text of *answer*, which may be a stream."""
    if isinstance(answer, openai.AsyncStream):
        found = [piece async for piece in answer]
        if hasattr(found[-1], "response"):
            return found[-1].response.output_text.strip()
        return "".join(piece.choices[0].delta.content or "" for piece in found).strip()
    return (answer.output_text if hasattr(answer, "output_text") else answer.choices[0].message.content).strip()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("way", WAYS)
def test_a_question_is_asked_once(talked, way, stage, stream):
    async def talk(client: openai.AsyncOpenAI, arm: Callable[[str], None]) -> str:
        return await text_of(await way(client, lambda: arm(stage), stream=stream))

    text, seen = talked(talk)

    assert text == "Paid"
    assert seen.retries == ["1"]
    assert questions() == ["Hi", "Pay"]
    assert seen.paid == ["1 EUR"]
    assert seen.calls == 3


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("way", ["responses", "completions"])
def test_a_new_conversation_with_a_key_begins_once(talked, way, stage):
    async def talk(client: openai.AsyncOpenAI, arm: Callable[[str], None]) -> str:
        arm(stage)
        if way == "responses":
            return await text_of(await client.responses.create(model="assistant", input="Pay", **KEYED))
        create = client.chat.completions.create
        return await text_of(await create(model="assistant", messages=[PAY], store=True, **KEYED))

    text, seen = talked(talk, calling(("p1", "pay", "{}")), "Paid", "More")

    assert text == "Paid"
    assert seen.paid == ["1 EUR"]
    assert questions() == ["Pay"]
    assert Conversation.objects.count() == 1


@pytest.mark.parametrize("stage", STAGES)
def test_outputs_of_a_client_are_taken_once(talked, stage):
    tools = [{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}]

    async def talk(client: openai.AsyncOpenAI, arm: Callable[[str], None]) -> str:
        create = client.responses.create
        first = await create(model="assistant", input="Hi", tools=tools)
        output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "rain"}
        arm(stage)
        return await text_of(await create(model="assistant", input=[output], previous_response_id=first.id))

    text, seen = talked(talk, calling(("c1", "weather", "{}")), calling(("p1", "pay", "{}")), "Paid", "More")

    assert text == "Paid"
    assert seen.retries == ["1"]
    assert seen.paid == ["1 EUR"]
    assert seen.calls == 3


RETRY = {"X-Stainless-Retry-Count": "1"}


class TestKeys:
    @pytest.mark.parametrize("headers", [{}, RETRY], ids=["another client", "a retry"])
    def test_make_the_same_request_of_two(self, client, site, headers):
        model = site("One", "Two")

        first = respond(client, "Hi", **KEYED)
        again = respond(client, "Hi", extra_headers={**KEYED["extra_headers"], **headers})

        assert (again.id, again.output_text, again.conversation) == (first.id, first.output_text, first.conversation)
        assert client.responses.retrieve(again.id).output_text == first.output_text
        assert len(model.requests) == 1

    def test_are_of_one_question(self, client, site):
        model = site("One", "Two")
        conversation = respond(client, "Hi").conversation.id
        respond(client, "First", conversation=conversation, **KEYED)

        with pytest.raises(openai.UnprocessableEntityError) as caught:
            respond(client, "Second", conversation=conversation, **KEYED)

        assert caught.value.code == "idempotency_key_reused"
        assert len(model.requests) == 2
        assert questions() == ["Hi", "First"]

    def test_are_the_users_own(self, client, site):
        model = site("One", "Two")
        theirs = client.with_options(api_key=Token.objects.create(user=User.objects.create_user("bob")).key)

        first, other = respond(client, "Hi", **KEYED), respond(theirs, "Hi", **KEYED)

        assert first.conversation != other.conversation
        assert len(model.requests) == 2

    def test_tell_a_retry_from_an_answer_that_is_wanted_once_more(self, client, site):
        model = site("One", "Two", "Three")
        complete(client, HI, **NAMED)
        history = [HI, {"role": "assistant", "content": "One"}, PAY]

        first = complete(client, *history, **NAMED_AND_KEYED)
        again = complete(client, *history, **NAMED_AND_KEYED)
        another = complete(client, *history, **NAMED)

        assert (again.id, again.choices[0].message.content) == (first.id, "Two")
        assert another.choices[0].message.content == "Three"
        assert len(model.requests) == 3
        assert questions() == ["Hi", "Pay"]


class TestWithoutKeys:
    def test_the_same_words_are_another_question_where_they_are_no_retry(self, client, site):
        site("One", "Two", "Three")
        conversation = respond(client, "Go on").conversation.id

        assert respond(client, "Go on", conversation=conversation).output_text == "Two"
        assert questions() == ["Go on", "Go on"]

    def test_a_retry_of_another_place_is_another_question(self, client, site):
        site("One", "Two", "Three")
        first = respond(client, "Hi")
        second = respond(client, "Go on", previous_response_id=first.id)

        third = respond(client, "Go on", previous_response_id=second.id, extra_headers=RETRY)

        assert third.output_text == "Three"
        assert questions() == ["Hi", "Go on", "Go on"]

    def test_a_question_of_long_ago_is_not_the_one_that_is_sent_again(self, client, site):
        site("One", "Two")
        conversation = respond(client, "Hi").conversation.id
        Run.objects.update(created_at=F("created_at") - timedelta(seconds=RETRY_SECONDS))

        assert respond(client, "Hi", conversation=conversation, extra_headers=RETRY).output_text == "Two"

    @pytest.mark.parametrize("headers", [RETRY, KEYED["extra_headers"]], ids=["counted", "with a key"])
    def test_a_question_for_a_person_is_asked_once(self, client, site, headers):
        site("One")
        conversation = respond(client, "Hi").conversation.id
        Conversation.objects.update(state=Conversation.State.PERSON)

        for each in ({} if headers is RETRY else headers, headers, headers):
            with pytest.raises(openai.ConflictError):
                respond(client, "Help", conversation=conversation, extra_headers=each)

        assert questions() == ["Hi", "Help"]

    def test_the_same_words_for_a_person_are_asked_again_after_long(self, client, site):
        site("One")
        conversation = respond(client, "Hi").conversation.id
        Conversation.objects.update(state=Conversation.State.PERSON)
        with pytest.raises(openai.ConflictError):
            respond(client, "Help", conversation=conversation)
        Message.objects.update(created_at=F("created_at") - timedelta(seconds=RETRY_SECONDS))

        with pytest.raises(openai.ConflictError):
            respond(client, "Help", conversation=conversation, extra_headers=RETRY)

        assert questions() == ["Hi", "Help", "Help"]

    def test_a_question_is_known_as_a_guard_has_left_it(self, client, site):
        model = site("One", "Two", input_guards=[lambda question: Rewrite(question.single_text.replace("4111", "*"))])
        conversation = client.conversations.create().id
        first = respond(client, "My card: 4111", conversation=conversation)

        again = respond(client, "My card: 4111", conversation=conversation, extra_headers=RETRY)

        assert again.id == first.id
        assert len(model.requests) == 1

    def test_an_approval_is_taken_once(self, client, site):
        paid = list[int]()

        def pay(amount: int) -> str:
            """Pay."""
            paid.append(amount)
            return "paid"

        site(calling(("c1", "pay", '{"amount": 5}')), "Done.", "More", tools=[Tool(pay, needs_approval=True)])
        first = respond(client, "Pay")
        request = first.output[0].id
        answer = {"type": "mcp_approval_response", "approval_request_id": request, "approve": True}

        second = respond(client, [answer], previous_response_id=first.id)
        again = respond(client, [answer], previous_response_id=first.id, extra_headers=RETRY)

        assert (again.id, again.output_text.strip()) == (second.id, "Done.")
        assert paid == [5]
        with pytest.raises(openai.ConflictError):
            respond(client, [answer], previous_response_id=first.id)

    def test_a_completion_that_is_made_once_more_is_made_once(self, client, site):
        model = site("One", "Two", "Three")
        complete(client, HI, **NAMED)
        complete(client, HI, {"role": "assistant", "content": "One"}, PAY, **NAMED)

        headers = {**NAMED["extra_headers"], **RETRY}
        again = complete(client, HI, {"role": "assistant", "content": "One"}, PAY, extra_headers=headers)

        assert again.choices[0].message.content == "Two"
        assert len(model.requests) == 2

    def test_what_failed_goes_on_behind_what_its_tools_have_done(self, client, site, monkeypatch):
        monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.001)
        paid = list[str]()

        def pay() -> str:
            """Pay."""
            paid.append("1 EUR")
            return "paid"

        site(calling(("p1", "pay", "{}")), BrokenStreamError("cut"), "Paid", tools=[pay])

        assert respond(client.with_options(max_retries=1), "Pay", conversation=client.conversations.create().id)
        assert paid == ["1 EUR"]
        assert questions() == ["Pay"]

    def test_a_response_in_the_background_is_the_same_one(self, client, site):
        model = site("One", "Two")
        first = respond(client, "Hi", background=True, **KEYED)

        again = respond(client, "Hi", background=True, **KEYED)

        assert (again.id, again.status) == (first.id, "completed")
        assert len(model.requests) == 1


def respond(client: openai.OpenAI, input: Any, **options: Any) -> Any:
    return client.responses.create(model="assistant", input=input, **options)


def complete(client: openai.OpenAI, *messages: Any, **options: Any) -> Any:
    return client.chat.completions.create(model="assistant", messages=messages, **options)


def questions() -> list[str]:
    return [row.text for row in Message.objects.filter(type=MessageType.USER).order_by("sequence")]
