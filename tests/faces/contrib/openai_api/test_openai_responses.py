"""Responses: OpenAI's published client asks the site's assistants, and reads what is stored."""

import asyncio
from typing import Any

import httpx2
import openai
import pytest
from django.contrib.auth.models import Permission, User
from django.core.asgi import get_asgi_application
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter
from rest_framework.authtoken.models import Token

from chatmemory_django.chat.model import BrokenStreamError
from chatmemory_django.chat.models import AnswerChunk, ModelCall, Run
from chatmemory_django.chat.tools import Tool
from chatmemory_django.messages import AiMessage, SystemMessage, TextContent, ToolExecutionResultMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from tests.asgi import run
from tests.faces.chat.scripted import ScriptedModel, calling
from tests.faces.contrib.openai_api.conftest import ExactModel
from tests.faces.rest.conftest import WRITE

pytestmark = pytest.mark.django_db(transaction=True)

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Return the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
ASKS = ("c1", "weather", '{"city": "Ulm"}')


class Person(BaseModel):
    name: str
    age: int


def respond(client: openai.OpenAI, input: Any = "Hi", **options: Any) -> Any:
    return client.responses.create(model="assistant", input=input, **options)


def stored() -> list[tuple[str, str]]:
    return [(row.type, row.text.strip()) for row in Conversation.objects.get().history().order_by("sequence")]


def texts() -> list[str]:
    return [text for _, text in stored()]


def output_of(call: Any, text: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call.call_id, "output": text}


class Thoughtful(ExactModel):
    """Thinks, and then answers."""

    def _next(self, request):
        return AiMessage(super()._next(request).text, thinking="Hm, let me think")


class TestResponses:
    def test_are_answers_in_a_conversation_of_the_caller(self, client, site):
        site("Hello", system_message="Be kind.")

        response = respond(client, metadata={"topic": "x"})

        assert response.output_text.strip() == "Hello"
        assert response.status == "completed"
        assert response.usage.total_tokens == 12
        assert response.metadata == {"topic": "x"}
        assert stored() == [("SYSTEM", "Be kind."), ("USER", "Hi"), ("AI", "Hello")]
        assert response.conversation.id == Conversation.objects.get().memory_id
        assert Conversation.objects.get().owner.username == "ann"
        assert Conversation.objects.get().title == "Hi"

    def test_have_no_key_that_the_clients_model_lacks(self, client, site):
        site("Hello")

        response = respond(client, tools=[WEATHER])

        assert response.model_extra.keys() <= {"store"}
        assert all(item.model_extra == {} for item in response.output)
        Response.model_validate(response.model_dump(), strict=True)

    def test_continue_the_response_before(self, client, site):
        model = site("One", "Two")

        first = respond(client, "First")
        second = respond(client, "Second", previous_response_id=first.id)

        assert texts() == ["First", "One", "Second", "Two"]
        assert second.previous_response_id == first.id
        assert model.sent[1] == [UserMessage("First"), AiMessage("One"), UserMessage("Second")]

    def test_branch_behind_an_earlier_response(self, client, site):
        site("One", "Two", "Three")

        first = respond(client, "First")
        respond(client, "Second", previous_response_id=first.id)
        respond(client, "Other", previous_response_id=first.id)

        assert texts() == ["First", "One", "Other", "Three"]
        assert Message.objects.filter(on_path=False).count() == 2

    def test_are_made_in_a_named_conversation(self, client, site):
        site("Hello")
        conversation = client.conversations.create()

        response = respond(client, conversation=conversation.id)
        respond(client, "And?", conversation={"id": conversation.id})

        assert response.conversation.id == conversation.id
        items = client.conversations.items.list(conversation.id, order="asc").data
        assert [item.content[0].text.strip() for item in items] == ["Hi", "Hello", "And?", "Hello"]

    @pytest.mark.parametrize("instructions", [{"instructions": "Be rude."}, {}], ids=["instructions", "system"])
    def test_leave_out_instructions_and_say_so(self, client, site, instructions):
        model = site("Hello", system_message="Be kind.")
        given = "Hi" if instructions else [{"role": "system", "content": "Be rude."}, {"role": "user", "content": "Hi"}]

        response = client.responses.with_raw_response.create(model="assistant", input=given, **instructions)

        assert response.headers["x-instructions"] == "left-out"
        assert model.sent == [[SystemMessage("Be kind."), UserMessage("Hi")]]

    def test_have_instructions_as_context_with_a_permission(self, client, site, ann):
        ann.user_permissions.set(Permission.objects.filter(codename=WRITE))
        model = site("Hello")

        response = respond(client, instructions="Be brief.")

        assert response.instructions == "Be brief."
        assert model.sent[0][-1].contents == (TextContent("Be brief."), TextContent("Hi"))
        assert texts() == ["Hi", "Hello"]

    def test_are_not_stored_if_the_client_does_not_want_that(self, client, site):
        model = site("Hello")

        first = respond(client, store=False)
        history = [{"role": "user", "content": "Hi"}, *[item.to_dict() for item in first.output]]
        second = respond(client, [*history, {"role": "user", "content": "And?"}], store=False)

        assert second.output_text.strip() == "Hello"
        assert [len(sent) for sent in model.sent] == [1, 3]
        assert not Message.objects.exists()
        assert not Run.objects.exists()
        assert ModelCall.objects.count() == 2
        assert second.conversation is None
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(first.id)

    def test_of_what_a_program_asks_for_itself_are_in_no_conversation(self, client, site):
        site("Hello", "A title")
        first = respond(client)
        task = {"extra_headers": {"X-Task": "title"}}

        for place in ({"previous_response_id": first.id}, {"conversation": first.conversation.id}):
            with pytest.raises(openai.BadRequestError):
                respond(client, "Name this chat", **place, **task)
        history = [{"role": "user", "content": "Hi"}, first.output[0].to_dict()]
        title = respond(client, [*history, {"role": "user", "content": "Name this chat"}], **task)

        assert (title.output_text, title.conversation, title.store) == ("A title", None, False)
        assert texts() == ["Hi", "Hello"]

    def test_go_on_where_the_items_of_a_stored_response_were(self, client, site):
        site("One", "Two", "Three")
        first = respond(client, "First")
        history = [{"role": "user", "content": "First"}, first.output[0].to_dict()]

        respond(client, [*history, {"role": "user", "content": "Second"}])
        referred = {"type": "item_reference", "id": first.output[0].id}
        respond(client, [{"role": "user", "content": "First"}, referred, {"role": "user", "content": "Third"}])

        assert Conversation.objects.count() == 1
        assert texts() == ["First", "One", "Third", "Three"]

    def test_that_are_not_to_be_stored_do_not_go_on_where_those_items_were(self, client, site):
        model = site("One", "Two")
        first = respond(client, "First")
        history = [{"role": "user", "content": "First"}, first.output[0].to_dict()]

        second = respond(client, [*history, {"role": "user", "content": "Off the record"}], store=False)

        assert second.output_text == "Two"
        assert second.conversation is None
        assert len(model.sent[1]) == 3
        assert texts() == ["First", "One"]

    def test_need_something_behind_the_last_item_of_an_answer(self, client, site):
        model = site("One")
        first = respond(client, "First")
        thought = {"type": "reasoning", "id": f"rs_{first.id.removeprefix('resp_')}_0", "summary": []}
        asked = [{"role": "user", "content": "Hi"}, thought]

        for place in ({"conversation": first.conversation.id}, {"previous_response_id": first.id}, {}):
            with pytest.raises(openai.BadRequestError) as caught:
                respond(client, asked, **place)
            assert caught.value.param == "input"
        assert len(model.requests) == 1

    def test_of_a_history_that_is_stored_nowhere_are_not_stored(self, client, site):
        model = site("Hello")
        history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]

        respond(client, [*history, {"role": "user", "content": "c"}])

        assert len(model.sent[0]) == 3
        assert not Message.objects.exists()

    def test_have_the_form_that_the_client_wants(self, client, site):
        model = site('{"name": "Ann", "age": 7}')

        parsed = client.responses.parse(model="assistant", input="Hi", text_format=Person).output_parsed

        assert parsed == Person(name="Ann", age=7)
        assert model.requests[0].response_format.schema["required"] == ["name", "age"]


class TestTools:
    def test_of_the_client_make_the_answer_wait(self, client, site):
        model = site(calling(ASKS, text="Let me see."), "Rain.")

        first = respond(client, tools=[WEATHER])
        [_, call] = first.output
        second = respond(client, [output_of(call, "rain")], previous_response_id=first.id, tools=[WEATHER])

        assert (call.type, call.name, call.arguments) == ("function_call", "weather", '{"city":"Ulm"}')
        assert second.output_text.strip() == "Rain."
        assert model.sent[1][-1] == ToolExecutionResultMessage("c1", "weather", "rain")
        assert client.responses.retrieve(first.id).output[1].name == "weather"
        assert client.responses.retrieve(second.id).output_text.strip() == "Rain."
        assert [item.type for item in client.responses.input_items.list(second.id)] == ["function_call_output"]

    def test_of_the_client_leave_each_response_its_own_usage(self, client, site):
        site(calling(ASKS), calling(ASKS), "Rain.")

        first = respond(client, tools=[WEATHER])
        second = respond(client, [output_of(first.output[0], "rain")], previous_response_id=first.id, tools=[WEATHER])
        third = respond(client, [output_of(second.output[0], "sun")], previous_response_id=second.id, stream=True)
        *_, last = third

        assert [each.usage.total_tokens for each in (first, second, last.response)] == [12, 12, 12]
        assert client.responses.retrieve(last.response.id).usage == last.response.usage

    @pytest.mark.parametrize("store", [True, False])
    def test_of_the_client_are_answered_with_the_whole_history(self, client, site, store):
        site(calling(ASKS), "Rain.")
        asked = {"role": "user", "content": "Hi"}

        first = respond(client, [asked], tools=[WEATHER], store=store)
        given = [asked, first.output[0].to_dict(), output_of(first.output[0], "rain")]
        second = respond(client, given, tools=[WEATHER], store=store)

        assert second.output_text.strip() == "Rain."
        assert Conversation.objects.count() == store

    def test_of_the_client_are_called_in_a_conversation(self, client, site):
        site(calling(ASKS), "Rain.")
        conversation = client.conversations.create().id

        first = respond(client, conversation=conversation, tools=[WEATHER])
        second = respond(client, [output_of(first.output[0], "rain")], conversation=conversation, tools=[WEATHER])

        assert second.output_text.strip() == "Rain."

    @pytest.mark.parametrize("comes_first", ["output", "question"])
    def test_of_the_client_are_not_answered_beside_a_question(self, client, site, comes_first):
        site(calling(ASKS), "Rain.")
        first = respond(client, "Weather?", tools=[WEATHER])
        both = [output_of(first.output[0], "rain"), {"role": "user", "content": "And tomorrow?"}]

        for place in ({"previous_response_id": first.id}, {"conversation": first.conversation.id}):
            with pytest.raises(openai.BadRequestError) as caught:
                respond(client, both if comes_first == "output" else both[::-1], **place)
            assert caught.value.param == "input"
        assert respond(client, both[:1], previous_response_id=first.id).output_text == "Rain."
        assert texts() == ["Weather?", "", "rain", "Rain."], "neither is lost"

    def test_of_the_site_run_there_and_are_not_shown(self, client, site):
        def add(one: int, two: int) -> int:
            """Add two numbers."""
            return one + two

        model = site(calling(("c1", "add", '{"one": 1, "two": 2}')), "It is 3.", tools=[add])

        response = respond(client, tools=[WEATHER])

        assert [item.type for item in response.output] == ["message"]
        assert model.sent[1][-1].text == "3"
        assert client.responses.retrieve(response.id).output[0].content == response.output[0].content

    def test_of_the_site_come_before_those_of_the_client_with_the_same_name(self, client, site):
        def weather(city: str) -> str:
            """Return the site's weather."""
            return f"Sun in {city}"

        model = site(calling(ASKS), "Sun.", tools=[weather])

        respond(client, tools=[WEATHER])

        assert model.sent[1][-1].text == "Sun in Ulm"

    def test_with_invalid_arguments_are_not_the_clients_to_run(self, client, site):
        model = site(calling(("c1", "weather", '{"city"')), "Sorry.")

        response = respond(client, tools=[WEATHER])

        assert [item.type for item in response.output] == ["message"]
        assert model.sent[1][-1].is_error


class TestApprovals:
    @pytest.fixture
    def asked(self, client, site):
        """Return a function that asks for something that waits for an approval, and what was paid by then."""
        paid: list[int] = []

        def pay(amount: int) -> str:
            """Pay an amount."""
            paid.append(amount)
            return "Paid."

        def ask(**options: Any) -> Any:
            site(calling(("c1", "pay", '{"amount": 5}')), "Done.", tools=[Tool(pay, needs_approval=True, **options)])
            return respond(client), paid

        return ask

    @pytest.mark.parametrize("approve", [True, False])
    def test_are_items_that_the_client_answers(self, client, asked, approve):
        response, paid = asked()
        [request] = response.output

        answer = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}
        second = respond(client, [answer], previous_response_id=response.id)

        assert (request.type, request.name, request.arguments) == ("mcp_approval_request", "pay", '{"amount":5}')
        assert second.output_text.strip() == "Done."
        assert paid == ([5] if approve else [])
        assert client.responses.retrieve(response.id).output[0].id == request.id

    def test_are_not_answered_beside_a_question(self, client, asked):
        response, paid = asked()
        answer = {"type": "mcp_approval_response", "approval_request_id": response.output[0].id, "approve": True}
        question = {"role": "user", "content": "And the rest?"}

        for both in ([answer, question], [question, answer]):
            with pytest.raises(openai.BadRequestError):
                respond(client, both, previous_response_id=response.id)
        assert (paid, texts()) == ([], ["Hi", ""])
        whole = [{"role": "user", "content": "Hi"}, response.output[0].to_dict(), answer]
        assert respond(client, whole, previous_response_id=response.id).output_text.strip() == "Done."

    def test_of_others_are_not_asked_of_the_caller(self, client, asked):
        response, _ = asked(approve_by="shop.pay")

        assert response.output == []

    def test_of_another_user_cannot_be_given(self, client, asked):
        response, paid = asked()
        theirs = client.with_options(api_key=Token.objects.create(user=User.objects.create_user("bob")).key)
        answer = {
            "type": "mcp_approval_response",
            "approval_request_id": response.output[0].id,
            "approve": True,
        }

        for options in ({"previous_response_id": response.id}, {"conversation": response.conversation.id}, {}):
            with pytest.raises((openai.NotFoundError, openai.BadRequestError)):
                respond(theirs, [answer], **options)
        with pytest.raises(openai.ConflictError):
            respond(theirs, [answer], conversation=theirs.conversations.create().id)
        before = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Shall I?"}]
        with pytest.raises(openai.ConflictError):
            respond(theirs, [*before, answer])
        assert paid == []


class TestStreams:
    def read(self, stream: Any) -> list[Any]:
        events = list(stream)
        for number, event in enumerate(events):
            EVENT.validate_python(event.model_dump())
            assert event.sequence_number == number
            assert event.model_extra == {}, event.type
        return events

    def test_have_all_events(self, client, site):
        site(model=Thoughtful("Hello you"))

        events = self.read(respond(client, stream=True))

        kinds = list(dict.fromkeys(event.type.removeprefix("response.") for event in events))
        assert kinds == [
            "created",
            "in_progress",
            "output_item.added",
            "reasoning_summary_part.added",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.done",
            "reasoning_summary_part.done",
            "output_item.done",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "completed",
        ]
        final = events[-1].response
        assert [item.type for item in final.output] == ["reasoning", "message"]
        again = client.responses.retrieve(final.id)
        assert [item.id for item in again.output] == [item.id for item in final.output]
        assert again.output_text == final.output_text
        assert again.usage == final.usage

    def test_have_the_calls_of_the_clients_tools(self, client, site):
        site(calling(ASKS))

        with client.responses.stream(model="assistant", input="Hi", tools=[WEATHER]) as stream:
            final = [*stream] and stream.get_final_response()
        events = self.read(client.responses.retrieve(final.id, stream=True))

        assert final.output[0].name == "weather"
        assert [event.type for event in events if "function" in event.type] == [
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
        ]

    @pytest.mark.parametrize("after", [0, 5, 9])
    def test_go_on_behind_the_last_event_that_the_client_has(self, client, site, after):
        site("Hello you all")
        whole = self.read(respond(client, stream=True))

        rest = list(client.responses.retrieve(whole[-1].response.id, stream=True, starting_after=after))

        assert [(event.sequence_number, event.type, getattr(event, "delta", "")) for event in rest] == [
            (event.sequence_number, event.type, getattr(event, "delta", "")) for event in whole[after + 1 :]
        ]

    def test_end_with_the_whole_response_once_their_pieces_are_gone(self, client, site):
        site("Hello you all")
        whole = self.read(respond(client, stream=True))
        AnswerChunk.objects.all().delete()

        rest = list(client.responses.retrieve(whole[-1].response.id, stream=True, starting_after=11))

        assert rest[-1].response.output_text == whole[-1].response.output_text

    @pytest.mark.parametrize("given", ["x", "-2", "9" * 99, "٣"])
    def test_refuse_what_is_no_number_of_an_event(self, client, site, given):
        site("Hello")
        response = respond(client)

        with pytest.raises(openai.BadRequestError) as caught:
            client.get(f"/responses/{response.id}?stream=true&starting_after={given}", cast_to=object)

        assert caught.value.param == "starting_after"

    @pytest.mark.parametrize("are_gone", [False, True])
    def test_of_a_failed_response_end_with_the_failure_again(self, client, site, are_gone):
        site(model=ScriptedModel(BrokenStreamError("secret"), words_before_error=1))
        events = self.read(respond(client, stream=True))
        if are_gone:
            AnswerChunk.objects.all().delete()

        again = self.read(client.responses.retrieve(events[-1].response.id, stream=True))

        assert again[-1].type == "response.failed"

    @pytest.mark.parametrize("store", [True, False])
    def test_end_with_the_failure(self, client, site, store):
        site(model=ScriptedModel(BrokenStreamError("secret"), words_before_error=1))

        events = self.read(respond(client, stream=True, store=store))

        assert events[-1].type == "response.failed"
        assert "secret" not in events[-1].response.error.message


class TestStored:
    def test_are_retrieved_and_dropped(self, client, site):
        site("Hello")
        response = respond(client)

        again = client.responses.retrieve(response.id)
        client.responses.delete(response.id)

        assert again.output == response.output
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(response.id)
        assert texts() == ["Hi", "Hello"]

    def test_list_their_input(self, client, site):
        site("Hello")
        response = respond(client)

        [item] = client.responses.input_items.list(response.id)

        assert item.content[0].text == "Hi"

    def test_go_on_in_the_background_and_are_cancelled(self, site, ann):
        key = Token.objects.create(user=ann).key

        async def ask() -> None:
            gate = asyncio.Event()
            site(model=ScriptedModel("Hello you", gate=gate))
            http_client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=get_asgi_application()))
            async with openai.AsyncOpenAI(
                base_url="http://testserver/openai/v1", api_key=key, http_client=http_client, max_retries=0
            ) as client:
                create = client.responses.create
                first = await create(model="assistant", input="Hi", background=True)
                assert (first.status, first.background, first.output) == ("in_progress", True, [])
                assert (await client.responses.retrieve(first.id)).status == "in_progress"
                with pytest.raises(openai.ConflictError):
                    await client.responses.delete(first.id)
                assert (await client.responses.cancel(first.id)).status == "cancelled"
                second = await create(model="assistant", input="Hi", background=True)
                gate.set()
                while (done := await client.responses.retrieve(second.id)).status == "in_progress":
                    await asyncio.sleep(0.01)
                assert done.output_text.strip() == "Hello you"
                assert (await client.responses.cancel(second.id)).status == "completed"

        run(ask())


class TestAttacks:
    def test_do_not_reach_the_responses_of_others(self, client, site):
        model = site("Secret")
        response = respond(client, "Mine")
        theirs = client.with_options(api_key=Token.objects.create(user=User.objects.create_user("bob")).key)

        for attempt in (
            lambda: theirs.responses.retrieve(response.id),
            lambda: theirs.responses.retrieve(response.id, stream=True),
            lambda: theirs.responses.delete(response.id),
            lambda: theirs.responses.cancel(response.id),
            lambda: theirs.responses.input_items.list(response.id),
            lambda: respond(theirs, previous_response_id=response.id),
            lambda: respond(theirs, conversation=response.conversation.id),
            lambda: respond(
                theirs,
                [{"type": "item_reference", "id": response.output[0].id}, {"role": "user", "content": "And?"}],
            ),
        ):
            with pytest.raises(openai.NotFoundError):
                attempt()
        respond(theirs, [{**response.output[0].to_dict()}, {"role": "user", "content": "And?"}])
        assert len(model.requests) == 2
        assert Conversation.objects.get().owner.username == "ann"

    @pytest.mark.parametrize("name", ["resp_x", f"resp_{'a' * 32}", "x" * 300, "resp_%00"], ids=range(4))
    def test_do_not_find_what_is_not_there(self, client, site, name):
        site("Hello")

        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(name)
        with pytest.raises(openai.NotFoundError):
            respond(client, previous_response_id=name)
        with pytest.raises((openai.NotFoundError, openai.BadRequestError)):
            respond(client, conversation=name)
        assert not Conversation.objects.exists()

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"input": []}, "input"),
            ({"input": [{"role": "assistant", "content": "Hi"}]}, "input"),
            ({"input": [{"type": "wizardry"}]}, "input[0].type"),
            ({"input": [{"role": "user", "content": "x" * 100_001}]}, "input[0].content"),
            ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
            ({"input": [{"type": "function_call_output", "call_id": 5, "output": ""}]}, "input[0].call_id"),
            ({"input": [{"role": "user", "content": "a"}] * 2_001}, "input"),
            ({"input": "Hi", "instructions": "x" * 100_001}, "instructions"),
            ({"input": "Hi", "conversation": 5}, "conversation"),
            ({"input": "Hi", "conversation": "a", "previous_response_id": "b"}, "previous_response_id"),
            ({"input": "Hi", "background": True, "store": False}, "background"),
            ({"input": "Hi", "conversation": "a", "store": False}, "store"),
            ({"input": "Hi", "previous_response_id": f"resp_{'a' * 32}", "store": False}, "store"),
            (
                {
                    "input": [{"role": "user", "content": "Hi"}, {"type": "item_reference", "id": f"msg_{'a' * 32}_0"}],
                    "store": False,
                },
                "store",
            ),
            ({"input": "Hi", "tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
            ({"input": "Hi", "text": {"format": {"type": "x"}}}, "text.format"),
        ],
    )
    def test_are_refused_by_name(self, client, site, body, param):
        model = site("Hello")

        with pytest.raises(openai.BadRequestError) as caught:
            client.post("/responses", body={"model": "assistant", **body}, cast_to=object)

        assert caught.value.param == param
        assert model.requests == []
        assert not Conversation.objects.exists()

    def test_of_too_many_answers_are_refused(self, client, site, settings):
        site("Hello")
        settings.CHATMEMORY["CHAT"]["THROTTLE_RATE"] = "1/min"
        respond(client)

        with pytest.raises(openai.RateLimitError):
            respond(client)
