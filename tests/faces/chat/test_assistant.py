"""Assistants: a model, a memory for each conversation, a system message and tools. An answer is a turn."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import aclosing, closing
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from uuid import UUID

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import PermissionDenied
from django.template import Template
from django.utils.functional import lazystr
from pydantic import BaseModel, ConfigDict

from chatmemory_django.chat.answers.exchange import TooManyRoundsError
from chatmemory_django.chat.answers.returns import InvalidAnswerError
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import (
    ChatModel,
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    ModelTimeoutError,
    PartialText,
    ToolChoice,
    UnavailableError,
)
from chatmemory_django.core.tool_calls import repair_tools
from chatmemory_django.db.threads import in_background
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    Image,
    ImageContent,
    SystemMessage,
    TextContent,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.stores.base import MessageNotFoundError
from chatmemory_django.stores.django import DjangoChatMemoryStore
from chatmemory_django.stores.in_process import InMemoryChatMemoryStore
from tests.asgi import run
from tests.faces.chat.scripted import ScriptedModel, calling

pytestmark = pytest.mark.django_db(transaction=True)

DOWN = UnavailableError("The model's server cannot be reached.")

PATIENCE = 20
"""Seconds after which a test gives up waiting."""


async def _adrain(events) -> None:
    async for _ in events:
        pass


def _drain(events) -> None:
    for _ in events:
        pass


WAYS: dict[str, Callable] = {
    "chat": lambda assistant, *args, **options: assistant.chat(*args, **options),
    "achat": lambda assistant, *args, **options: run(assistant.achat(*args, **options)),
    "stream": lambda assistant, *args, **options: _drain(assistant.stream(*args, **options)),
    "astream": lambda assistant, *args, **options: run(_adrain(assistant.astream(*args, **options))),
}


@pytest.fixture(params=WAYS)
def ask(request) -> Callable:
    """Return one of the four ways to ask a question."""
    return WAYS[request.param]


@pytest.fixture(params=["chat", "achat"])
def answer(request) -> Callable:
    """Return one of the two ways that return the answer."""
    return WAYS[request.param]


@pytest.fixture(params=["stream", "astream"])
def broken_off(request) -> Callable:
    """Start a stream, and close it after some events."""

    def sync(assistant, *args, after: int, **options) -> None:
        with closing(assistant.stream(*args, **options)) as events:
            for _ in range(after):
                next(events)

    async def asynchronous(assistant, *args, after: int, **options) -> None:
        async with aclosing(assistant.astream(*args, **options)) as events:
            for _ in range(after):
                await anext(events)

    if request.param == "stream":
        return sync
    return lambda *args, **options: run(asynchronous(*args, **options))


def rows(memory_id: str = "c", **only) -> list[Message]:
    return list(Message.objects.history().filter(conversation__memory_id=memory_id, **only).order_by("sequence"))


def history(memory_id: str = "c") -> list:
    return [row.chat_message for row in rows(memory_id)]


def unanswered_calls(memory_id: str = "c") -> list:
    """Return the messages a model would not be sent: calls without results and results without calls."""
    messages = history(memory_id)
    return [message for message in messages if message not in repair_tools(messages)]


def weather(city: str, days: int = 1) -> str:
    """Return the weather in a city.

    Args:
        city: The name of the city.
        days: For how many days.
    """
    return f"{days} days of sun in {city}"


class TestMemory:
    def test_each_conversation_has_its_own_memory(self, ask):
        model = ScriptedModel("Hello.", "Hi.", "Ada.")
        assistant = Assistant(model)

        ask(assistant, "ada", "I am Ada.")
        ask(assistant, "bob", "I am Bob.")
        ask(assistant, "ada", "Who am I?")

        assert model.sent[2] == [UserMessage("I am Ada."), AiMessage("Hello."), UserMessage("Who am I?")]
        assert history("bob") == [UserMessage("I am Bob."), AiMessage("Hi.")]

    def test_the_settings_name_the_memory(self, ask, settings):
        settings.CHATMEMORY = {
            "MEMORY": {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 2}}
        }
        model = ScriptedModel("Yes.")
        assistant = Assistant(model)

        for number in range(3):
            ask(assistant, "c", str(number))

        assert model.sent[2] == [AiMessage("Yes."), UserMessage("2")]

    def test_memory_options_override_the_settings(self, ask):
        model = ScriptedModel("Yes.")
        assistant = Assistant(model, memory_options={"max_messages": 1})

        ask(assistant, "c", "1")
        ask(assistant, "c", "2")

        assert model.sent[1] == [UserMessage("2")]

    def test_the_memory_class_can_be_given(self, ask):
        model = ScriptedModel("Yes.")
        store = InMemoryChatMemoryStore()
        options = {"max_messages": 3, "store": store}
        assistant = Assistant(model, memory=MessageWindowChatMemory, memory_options=options)

        ask(assistant, "c", "1")
        ask(assistant, "c", "2")

        assert store.get_messages("c") == [AiMessage("Yes."), UserMessage("2"), AiMessage("Yes.")]
        assert not Conversation.objects.exists()

    @pytest.mark.parametrize("persist", ["late", "early"])
    def test_in_a_store_without_history_no_result_takes_the_place_of_the_question(self, ask, persist):
        def look() -> str:
            """Look."""
            stored.append(memory.store.get_messages("c"))
            return "Nothing."

        memory, stored = MessageWindowChatMemory(max_messages=3, id="c", store=InMemoryChatMemoryStore()), []
        memory.add(UserMessage("Hi."), AiMessage("Hi."))
        calls = [calling((each, "look", "{}"), (f"{each}b", "look", "{}")) for each in ("1", "2")]
        model = ScriptedModel(*calls, "Nothing is there.")

        ask(Assistant(model, tools=[look], memory=lambda **options: memory, persist=persist), "c", "Look!")

        assert [messages[:3] for messages in stored] == [
            [UserMessage("Hi."), AiMessage("Hi."), UserMessage("Look!")]
        ] * 4
        assert [messages.count(UserMessage("Look!")) for messages in model.sent] == [1, 1, 1]
        assert memory.store.get_messages("c") == [AiMessage("Nothing is there.")]  # a call leaves with all its results

    def test_pinned_messages_are_sent_with_every_request_of_an_answer_and_calls_with_their_results(self, ask):
        def look() -> str:
            """Look."""
            return "found " * 30

        options = {"max_messages": 6}
        memory = MessageWindowChatMemory(id="c", store=DjangoChatMemoryStore(), **options)
        first, result = calling(("1", "look", "{}")), ToolExecutionResultMessage("1", "look", "An old result.")
        memory.add(UserMessage("My name is Ada."), first, result, UserMessage("Hi."), AiMessage("Hi."))
        memory.pin(1)
        memory.pin(3)
        rounds = [calling((each, "look", "{}"), (f"{each}b", "look", "{}")) for each in ("2", "3")]
        model = ScriptedModel(*rounds, "Your name is Ada.", "Yes.")
        assistant = Assistant(model, tools=[look], memory=MessageWindowChatMemory, memory_options=options)

        ask(assistant, "c", "What is my name?")
        ask(assistant, "c", "Really?")

        assert [sent[:3] for sent in model.sent] == [[UserMessage("My name is Ada."), first, result]] * 4
        assert [sent == repair_tools(sent) for sent in model.sent] == [True] * 4
        assert [UserMessage("What is my name?") in sent for sent in model.sent] == [True, True, True, False]

    def test_in_a_store_without_history_nothing_is_edited(self, ask):
        store = InMemoryChatMemoryStore()
        options = {"max_messages": 3, "store": store}
        model = ScriptedModel("Yes.")
        assistant = Assistant(model, memory=MessageWindowChatMemory, memory_options=options)
        ask(assistant, "c", "1")

        with pytest.raises(NotImplementedError, match="InMemoryChatMemoryStore keeps no history; use DjangoChat"):
            ask(assistant, "c", "2", after=0)

        assert store.get_messages("c") == [UserMessage("1"), AiMessage("Yes.")]
        assert len(model.requests) == 1

    @pytest.mark.parametrize(
        "options", [{}, {"persist": "early"}, {"after": 1}, {"after": 0, "persist": "early"}], ids=str
    )
    def test_another_users_conversation_is_refused_before_anything_is_called(self, ask, options):
        ann, bob = (User.objects.create_user(name) for name in ("ann", "bob"))
        ask(Assistant(ScriptedModel("Yes.")), "c", "Secret.", owner=ann)
        get_chat_memory("c").clear()  # an empty memory has an owner, too
        model, asked = ScriptedModel("Yes."), []

        with pytest.raises(PermissionDenied, match="'c' belongs to another user"):
            ask(
                Assistant(model, system_message=lambda memory_id: asked.append(memory_id)),
                "c",
                "What was that?",
                owner=bob,
                **options,
            )

        assert (model.requests, asked) == ([], [])
        assert history() == [UserMessage("Secret."), AiMessage("Yes.")]

    @pytest.mark.parametrize("owner", [AnonymousUser(), User(username="unsaved")], ids=str)
    def test_an_owner_who_is_not_saved_is_refused_before_anything_is_called(self, ask, owner):
        model, asked = ScriptedModel("Yes."), []

        with pytest.raises(ValueError, match="owner must be a saved user, or None for no owner"):
            ask(Assistant(model, system_message=lambda memory_id: asked.append(memory_id)), "c", "Hi.", owner=owner)

        assert (model.requests, asked, Conversation.objects.count()) == ([], [], 0)


class TestAnswers:
    def test_the_answer_is_a_text(self, answer):
        assert answer(Assistant(ScriptedModel("It is noon.")), "c", "What time is it?") == "It is noon."

    def test_a_refusal_is_an_answer(self, answer):
        refusing = ScriptedModel(AiMessage(attributes={"refusal": "I may not."}))

        assert answer(Assistant(refusing), "c", "Do it.") == "I may not."

    def test_a_message_can_have_images(self, ask):
        message = UserMessage([TextContent("What is this?"), ImageContent(Image(url="https://example.org/cat.png"))])
        model = ScriptedModel("A cat.")

        ask(Assistant(model), "c", message)

        assert model.sent == [[message]]
        assert history() == [message, AiMessage("A cat.")]

    def test_the_models_metadata_is_stored_with_its_message(self, ask):
        ask(Assistant(ScriptedModel("Hello.")), "c", "Hi.")

        _, row = rows()
        assert row.metadata.pop("latency_ms") >= 0
        assert row.metadata == {
            "id": "chatcmpl-1",
            "model": "scripted",
            "finish_reason": "stop",
            "usage": {"input": 5, "output": 7, "total": 12},
        }

    def test_a_stream_yields_pieces_and_then_the_response(self):
        events = list(Assistant(ScriptedModel("It is noon.")).stream("c", "What time is it?"))

        assert events[:-1] == [PartialText("It "), PartialText("is "), PartialText("noon. ")]
        assert isinstance(events[-1], ChatResponse)

    def test_a_message_or_after_is_required(self, ask):
        with pytest.raises(ValueError, match="message and after are both None"):
            ask(Assistant(ScriptedModel("Yes.")), "c", None)


class TestSystemMessages:
    def test_a_text_is_sent_first_and_once(self, ask):
        model = ScriptedModel("Yes.")
        assistant = Assistant(model, system_message="Be brief.")

        ask(assistant, "c", "1")
        ask(assistant, "c", "2")

        assert model.sent[1] == [SystemMessage("Be brief."), UserMessage("1"), AiMessage("Yes."), UserMessage("2")]
        assert [row.type for row in rows()] == ["SYSTEM", "USER", "AI", "USER", "AI"]

    def test_a_function_is_called_with_the_memory_id(self, ask):
        model = ScriptedModel("Yes.")
        assistant = Assistant(model, system_message=lambda memory_id: f"This is {memory_id}." if memory_id else None)

        ask(assistant, "c", "1")

        assert model.sent[0][0] == SystemMessage("This is c.")

    def test_a_template_gets_the_owner_and_is_not_escaped(self, ask):
        model = ScriptedModel("Yes.")
        template = Template("You help {{ owner.username }} in {{ memory_id }}.{% if request %} By HTTP.{% endif %}")
        assistant = Assistant(model, system_message=template)

        ask(assistant, "c", "1", owner=User.objects.create_user("O'Hara"))

        assert model.sent[0][0] == SystemMessage("You help O'Hara in c.")

    def test_a_changed_system_message_replaces_the_previous_one(self, ask):
        model = ScriptedModel("Yes.")

        ask(Assistant(model, system_message="Be brief."), "c", "1")
        ask(Assistant(model, system_message="Be long."), "c", "2")

        assert [each for each in model.sent[1] if each.type == "SYSTEM"] == [SystemMessage("Be long.")]

    def test_a_function_can_return_none(self, ask):
        model = ScriptedModel("Yes.")

        ask(Assistant(model, system_message=lambda memory_id: None), "c", "1")

        assert model.sent == [[UserMessage("1")]]

    @pytest.mark.parametrize("given", [lazystr("Be brief."), lambda memory_id: lazystr("Be brief.")])
    def test_a_lazy_translation_is_a_text(self, ask, given):
        model = ScriptedModel("Yes.")

        ask(Assistant(model, system_message=given), "c", "1")

        assert model.sent[0][0] == SystemMessage("Be brief.")

    @pytest.mark.parametrize("error", [StopIteration, GeneratorExit, SystemExit, asyncio.CancelledError])
    def test_an_exception_that_a_coroutine_cannot_raise_is_a_runtime_error(self, error):
        def fail(memory_id: object) -> str:
            raise error

        async def ask() -> None:
            for _ in range(2):
                async with asyncio.timeout(PATIENCE):
                    with pytest.raises(RuntimeError, match=error.__name__):
                        await Assistant(ScriptedModel("Yes."), system_message=fail).achat("c", "Hi.")

        async def ask_in_background() -> None:
            with in_background():
                await ask()

        run(ask())
        run(ask_in_background())
        assert history() == []

    def test_the_timeout_ends_one_that_hangs(self):
        may_return = threading.Event()

        def hang(memory_id: object) -> str:
            assert may_return.wait(PATIENCE)
            return "Be brief."

        async def ask() -> None:
            with in_background(), pytest.raises(ModelTimeoutError):
                await Assistant(ScriptedModel("Yes."), system_message=hang, timeout=0.05).achat("c", "Hi.")
            assert not may_return.is_set()
            may_return.set()

        run(ask())
        assert history() == []


class TestTools:
    def test_results_are_sent_to_the_model(self, ask):
        model = ScriptedModel(calling(("1", "weather", '{"city": "Kyoto"}')), "It is sunny.")

        ask(Assistant(model, tools=[weather]), "c", "How is Kyoto?")

        result = ToolExecutionResultMessage("1", "weather", "1 days of sun in Kyoto")
        assert history() == [UserMessage("How is Kyoto?"), model.answers[0], result, AiMessage("It is sunny.")]
        assert model.sent[1] == history()[:-1]

    def test_several_calls_are_answered_in_order(self, ask):
        calls = [(str(number), "weather", f'{{"city": "City {number}"}}') for number in range(5)]
        model = ScriptedModel(calling(*calls), "Sunny everywhere.")

        ask(Assistant(model, tools=[weather]), "c", "How is everything?")

        results = [each.text for each in history() if isinstance(each, ToolExecutionResultMessage)]
        assert results == [f"1 days of sun in City {number}" for number in range(5)]

    def test_asynchronous_tools_run_concurrently(self):
        everybody = asyncio.Barrier(3)

        async def meet() -> str:
            """Wait until all calls have started."""
            await everybody.wait()
            return "met"

        model = ScriptedModel(calling(*((str(number), "meet", "{}") for number in range(3))), "All met.")

        assert run(Assistant(model, tools=[meet], timeout=20).achat("c", "Meet.")) == "All met."

    def test_asynchronous_tools_work_in_a_synchronous_chat(self, ask):
        async def noon() -> str:
            """Do it."""
            await asyncio.sleep(0)
            return "noon"

        model = ScriptedModel(calling(("1", "noon", "")), "Noon.")

        ask(Assistant(model, tools=[noon]), "c", "Now?")

        assert history()[2] == ToolExecutionResultMessage("1", "noon", "noon")

    def test_specifications_are_sent_to_the_model(self, ask):
        model = ScriptedModel("Hello.")

        ask(Assistant(model, tools=[weather]), "c", "Hi.")

        [tool] = model.requests[0].tools
        assert (tool.name, tool.description) == ("weather", "Return the weather in a city.")
        assert model.requests[0].tool_choice is None

    def test_an_unknown_tool_is_an_error_that_the_model_reads(self, ask):
        model = ScriptedModel(calling(("1", "horoscope", "{}")), "Sorry.")

        ask(Assistant(model, tools=[weather]), "c", "My stars?")

        result = history()[2]
        assert (result.is_error, result.text) == (True, "There is no such tool; the tools are: weather.")

    def test_tools_can_take_the_owner_the_memory_id_and_the_request(self, ask):
        seen = []

        def who(owner, memory_id, request) -> str:
            """Do it."""
            seen.append((owner, memory_id, request))
            return "you"

        model = ScriptedModel(calling(("1", "who", "{}")), "You.")
        ann = User.objects.create_user("ann")

        ask(Assistant(model, tools=[who]), "c", "Who am I?", owner=ann, request="the request")

        assert seen == [(ann, "c", "the request")]
        assert model.requests[0].tools[0].parameters["properties"] == {}

    def test_the_last_round_allows_no_calls(self, ask):
        model = ScriptedModel(calling(("1", "weather", '{"city": "Kyoto"}')), "Enough.")

        ask(Assistant(model, tools=[weather], max_rounds=2), "c", "Weather?")

        assert [request.tool_choice for request in model.requests] == [None, ToolChoice.NONE]

    def test_endless_calls_are_stopped(self, ask):
        model = ScriptedModel(calling(("1", "weather", '{"city": "Kyoto"}')))

        with pytest.raises(TooManyRoundsError):
            ask(Assistant(model, tools=[weather], max_rounds=3), "c", "Weather?")

        assert len(model.requests) == 3
        assert [message.type for message in history()] == ["USER", *["AI", "TOOL_EXECUTION_RESULT"] * 2]
        assert unanswered_calls() == []

    def test_two_tools_with_one_name_are_refused(self):
        with pytest.raises(ValueError, match="Two tools are named 'weather'"):
            Assistant(ScriptedModel("Yes."), tools=[weather, weather])

    @pytest.mark.parametrize("rounds", [0, -1, True, 1.5, "3"])
    def test_max_rounds_is_a_positive_whole_number(self, rounds):
        with pytest.raises(ValueError, match="max_rounds must be a whole number above 0, not"):
            Assistant(ScriptedModel("Yes."), max_rounds=rounds)


@dataclass
class City:
    name: str
    population: int


class Visit(BaseModel):
    model_config = ConfigDict(strict=True)

    day: date


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


class TestTypedAnswers:
    def test_an_object_is_returned(self, answer):
        model = ScriptedModel('{"name": "Kyoto", "population": 1450000}')

        assert answer(Assistant(model), "c", "Describe it.", returns=City) == City("Kyoto", 1_450_000)
        assert model.requests[0].response_format.schema["required"] == ["name", "population"]

    @pytest.mark.parametrize(
        ("returns", "text", "value"),
        [
            (list[int], '{"value": [1, 2]}', [1, 2]),
            (bool, '{"value": true}', True),
            (Mood, '{"value": "bad"}', Mood.BAD),
        ],
        ids=["list", "bool", "enum"],
    )
    def test_another_type_is_wrapped_in_an_object(self, answer, returns, text, value):
        model = ScriptedModel(text)

        assert answer(Assistant(model), "c", "How?", returns=returns) == value
        assert model.requests[0].response_format.schema["type"] == "object"

    @pytest.mark.parametrize(
        ("returns", "text", "value"),
        [
            (int | None, '{"value": null}', None),
            (list[Visit], '{"value": [{"day": "2026-11-23"}]}', [Visit(day=date(2026, 11, 23))]),
            (date | str, '{"value": "2026-11-23"}', date(2026, 11, 23)),
            (UUID | str, '{"value": "00000000-0000-0000-0000-000000000001"}', UUID(int=1)),
            (Decimal, '{"value": 0.1}', Decimal("0.1")),
        ],
        ids=repr,
    )
    def test_a_wrapped_value_is_read_by_the_rules_of_json(self, answer, returns, text, value):
        found = answer(Assistant(ScriptedModel(text)), "c", "How?", returns=returns)

        assert (found, type(found)) == (value, type(value))

    @pytest.mark.parametrize("text", ['{"wrong": 5}', "{}", "null", '"5"', "5", '{"value": "five"}'])
    def test_a_value_that_is_not_wrapped_is_invalid(self, answer, text):
        with pytest.raises(InvalidAnswerError):
            answer(Assistant(ScriptedModel(text)), "c", "How?", returns=int | None)

    def test_the_schema_of_a_wrapped_value_requires_it(self, answer):
        model = ScriptedModel('{"value": [{"day": "2026-11-23"}]}')

        answer(Assistant(model), "c", "How?", returns=list[Visit])

        schema = model.requests[0].response_format.schema
        assert schema["required"] == ["value"]
        assert schema["properties"]["value"]["items"] == {"$ref": "#/$defs/Visit"}
        assert list(schema["$defs"]) == ["Visit"]

    @pytest.mark.parametrize("text", ["Kyoto, of course", '{"name": "Kyoto"}', "", "[1", "null", '{"name": 1e999}'])
    def test_an_answer_of_the_wrong_type_raises_and_stores_nothing(self, answer, text):
        with pytest.raises(InvalidAnswerError) as raised:
            answer(Assistant(ScriptedModel(text)), "c", "Describe it.", returns=City)

        assert "Kyoto" not in str(raised.value)
        assert history() == []


class TestFailures:
    """A turn is a unit: a failed one stores nothing, or only a question that waits for its answer."""

    def test_a_failed_model_call_stores_nothing(self, ask):
        with pytest.raises(UnavailableError):
            ask(Assistant(ScriptedModel(DOWN, words_before_error=3)), "c", "Hi.")

        assert history() == []

    def test_a_failure_after_a_call_of_a_tool_stores_what_has_happened(self, ask):
        model = ScriptedModel(calling(("1", "weather", '{"city": "Kyoto"}')), DOWN)

        with pytest.raises(UnavailableError):
            ask(Assistant(model, tools=[weather]), "c", "Weather?")

        question, call, result = rows()
        assert [question.is_complete, call.is_complete, result.is_complete] == [False, True, True]
        assert result.text == "1 days of sun in Kyoto"

    def test_a_question_stored_early_is_answered_by_the_next_try(self, ask):
        model = ScriptedModel(DOWN, "Hello.")
        assistant = Assistant(model, persist="early", system_message="Be brief.")

        with pytest.raises(UnavailableError):
            ask(assistant, "c", "Hi.")
        waiting = rows(is_complete=False)
        ask(assistant, "c", "Hi.")

        assert [row.chat_message for row in waiting] == [UserMessage("Hi.")]
        assert history() == [SystemMessage("Be brief."), UserMessage("Hi."), AiMessage("Hello.")]
        assert not rows(is_complete=False)
        assert model.sent[1] == [SystemMessage("Be brief."), UserMessage("Hi.")]

    def test_another_question_does_not_answer_the_waiting_one(self, ask):
        assistant = Assistant(ScriptedModel(DOWN, "Hello."), persist="early")

        with pytest.raises(UnavailableError):
            ask(assistant, "c", "Hi.")
        ask(assistant, "c", "Ho.")

        assert history() == [UserMessage("Hi."), UserMessage("Ho."), AiMessage("Hello.")]
        assert [row.text for row in rows(is_complete=False)] == ["Hi."]

    def test_an_abandoned_stream_stores_nothing_and_closes_the_models_stream(self, broken_off):
        model = ScriptedModel("It is noon already.")

        broken_off(Assistant(model), "c", "What time is it?", after=2)

        assert history() == []
        assert model.open_streams == 0

    def test_keep_partial_stores_the_received_part_marked_as_partial(self, broken_off):
        broken_off(Assistant(ScriptedModel("It is noon already."), keep_partial=True), "c", "What time is it?", after=2)

        _, row = rows()
        assert row.chat_message == AiMessage("It is ")
        assert row.metadata["partial"] is True
        assert row.is_complete

    def test_keep_partial_stores_nothing_where_nothing_was_received(self, ask):
        with pytest.raises(UnavailableError):
            ask(Assistant(ScriptedModel(DOWN), keep_partial=True), "c", "Hi.")

        assert history() == []

    def test_a_partial_answer_has_no_call_without_its_result(self, broken_off):
        model = ScriptedModel(
            calling(("1", "weather", '{"city": "Kyoto"}'), text="One moment."),
            calling(("2", "weather", "{}"), text="And"),
        )
        assistant = Assistant(model, tools=[weather], keep_partial=True)

        broken_off(assistant, "c", "Weather?", after=5)  # two words, a response, a result; a word

        assert [message.type for message in history()] == ["USER", "AI", "TOOL_EXECUTION_RESULT", "AI"]
        assert history()[-1] == AiMessage("And ")
        assert unanswered_calls() == []

    def test_keep_partial_stores_nothing_of_an_answer_of_the_wrong_type(self, answer):
        with pytest.raises(InvalidAnswerError):
            answer(Assistant(ScriptedModel("five"), keep_partial=True), "c", "How many?", returns=int)

        assert history() == []

    def test_keep_partial_stores_an_answer_with_too_many_rounds_once(self, ask):
        again = calling(("1", "weather", '{"city": "Kyoto"}'), text="One moment.")

        with pytest.raises(TooManyRoundsError):
            ask(Assistant(ScriptedModel(again), tools=[weather], max_rounds=2, keep_partial=True), "c", "Weather?")

        assert [message.type for message in history()] == ["USER", "AI", "TOOL_EXECUTION_RESULT", "AI"]
        assert history()[-1] == AiMessage("One moment.")
        assert rows()[-1].metadata["partial"] is True
        assert unanswered_calls() == []

    @pytest.mark.parametrize("ask", [WAYS["achat"], WAYS["astream"]], ids=["achat", "astream"])
    def test_a_cancellation_within_the_model_is_an_error(self, ask):
        class Cancelled(ChatModel):
            def do_chat(self, request):
                raise AssertionError

            async def do_achat(self, request):
                raise asyncio.CancelledError

        with pytest.raises(RuntimeError, match="CancelledError escaped from a model"):
            ask(Assistant(Cancelled()), "c", "Hi.")

    def test_a_model_that_raises_stop_iteration_in_a_thread_fails(self):
        class Empty(ChatModel):
            def do_chat(self, request):
                return next(iter(()))

        with pytest.raises(RuntimeError, match="StopIteration"):
            run(asyncio.wait_for(Empty().achat("Hi."), PATIENCE))

    def test_an_answer_that_exceeds_the_timeout_is_cancelled(self):
        slow = ScriptedModel("It is noon.", pause=30)

        with pytest.raises(ModelTimeoutError, match=r"took more than 0\.05 seconds"):
            run(Assistant(slow, timeout=0.05).achat("c", "Hi."))
        with pytest.raises(ModelTimeoutError):
            run(_adrain(Assistant(slow, timeout=0.05).astream("c", "Hi.")))

        assert history() == []
        assert slow.open_streams == 0

    def test_a_cancelled_task_stores_nothing(self):
        model = ScriptedModel("It is noon.", pause=30)

        async def cancelled() -> None:
            task = asyncio.create_task(_adrain(Assistant(model).astream("c", "Hi.")))
            while not model.requests:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        run(cancelled())

        assert history() == []
        assert model.open_streams == 0


class TestRepeatedMessages:
    """Questions sent again, edited, or answered again."""

    def test_an_answered_message_sent_again_gets_the_stored_answer_without_a_call_of_the_model(self, answer):
        model = ScriptedModel("One.", "Two.")
        assistant = Assistant(model)

        first = answer(assistant, "c", "Hi.", client_message_id="u1")
        again = answer(assistant, "c", "Hi.", client_message_id="u1")

        assert first == again == "One."
        assert len(model.requests) == 1
        assert [row.text for row in Message.objects.history(all_branches=True)] == ["Hi.", "One."]

    def test_an_edited_message_replaces_the_previous_one(self, ask):
        model = ScriptedModel("One.", "Two.", "Three.", "Four.")
        assistant = Assistant(model)
        ask(assistant, "c", "First.", client_message_id="u1")
        ask(assistant, "c", "Second.", client_message_id="u2")

        ask(assistant, "c", "Second, edited.", client_message_id="u2")
        ask(assistant, "c", "Second, edited again.", client_message_id="u2")

        assert [row.text for row in rows()] == ["First.", "One.", "Second, edited again.", "Four."]
        assert model.sent[3] == [UserMessage("First."), AiMessage("One."), UserMessage("Second, edited again.")]

    def test_an_edit_can_be_reverted_to_the_answer_that_it_had(self, ask):
        assistant = Assistant(ScriptedModel("One.", "Two.", "Three."))
        ask(assistant, "c", "a", client_message_id="u1")
        ask(assistant, "c", "b", client_message_id="u1")

        ask(assistant, "c", "a", client_message_id="u1")

        assert [row.text for row in rows()] == ["a", "One."]
        assert [row.text for row in Message.objects.history(all_branches=True)] == ["a", "One.", "b", "Two."]

    def test_an_answer_is_regenerated_without_a_message(self, ask):
        assistant = Assistant(ScriptedModel("One.", "Two."))
        ask(assistant, "c", "Hi.")

        ask(assistant, "c", None, after=1)

        assert history() == [UserMessage("Hi."), AiMessage("Two.")]

    def test_a_failed_regeneration_keeps_the_previous_answer(self, ask):
        assistant = Assistant(ScriptedModel("One.", DOWN))
        ask(assistant, "c", "Hi.")

        with pytest.raises(UnavailableError):
            ask(assistant, "c", None, after=1)

        assert history() == [UserMessage("Hi."), AiMessage("One.")]

    def test_the_message_to_answer_must_exist(self, ask):
        with pytest.raises(MessageNotFoundError):
            ask(Assistant(ScriptedModel("One.")), "c", None, after=7)

    def test_answer_id_is_stored_with_the_answer(self, ask):
        model = ScriptedModel(calling(("1", "weather", '{"city": "Kyoto"}')), "Sunny.")

        ask(Assistant(model, tools=[weather]), "c", "Weather?", answer_id="a1", client_message_id="u1")

        ids = [row.client_message_id for row in rows()]
        assert ids[:2] == ["u1", "a1"]
        assert "a1" not in ids[2:]

    @pytest.mark.parametrize("persist", ["late", "early"])
    def test_an_answer_id_that_is_taken_is_not_used(self, ask, persist):
        assistant = Assistant(ScriptedModel("One.", "Two.", "Three.", "Four."), persist=persist)
        ask(assistant, "c", "First.", answer_id="x")

        ask(assistant, "c", "Second.", answer_id="x")
        ask(assistant, "c", None, after=3, answer_id="x")
        ask(assistant, "c", "Third.", answer_id="y", client_message_id="y")

        assert [row.text for row in rows()] == ["First.", "One.", "Second.", "Three.", "Third.", "Four."]
        assert [row.text for row in rows(client_message_id__in=["x", "y"])] == ["One.", "Third."]

    def test_a_question_sent_again_with_the_id_of_its_answer_gets_that_answer(self, ask):
        assistant = Assistant(ScriptedModel("One.", "Two."))

        for _ in range(2):
            ask(assistant, "c", "Hi.", client_message_id="u1", answer_id="a1")

        assert history() == [UserMessage("Hi."), AiMessage("One.")]


class TestWhatIsWrong:
    """What an assistant is given is checked when it is made, or before the model is called."""

    @pytest.mark.parametrize("memory", ["chatmemory_django.memory.MessageWindowChatMemory", 5])
    def test_a_memory_that_is_no_class_is_refused_when_the_assistant_is_made(self, memory):
        with pytest.raises(TypeError, match=r"^memory must be a class of memory, or a function that returns one, not "):
            Assistant(ScriptedModel("Yes."), memory=memory)

    @pytest.mark.parametrize("owner", ["ann", 7])
    def test_an_owner_that_is_no_user_is_refused_before_the_model_is_called(self, owner):
        model = ScriptedModel("Yes.")

        with pytest.raises(
            TypeError, match=rf"^owner must be a user, or None for no owner, not {type(owner).__name__}"
        ):
            Assistant(model).chat("c", "Hi.", owner=owner)
        assert model.requests == []

    def test_a_typed_answer_that_was_cut_names_the_limit(self):
        class Cut(ScriptedModel):
            def do_chat(self, request):
                return ChatResponse(AiMessage('{"value": 1'), ChatResponseMetadata(finish_reason=FinishReason.LENGTH))

        with pytest.raises(InvalidAnswerError, match="cut by its token limit; increase max_output_tokens"):
            Assistant(Cut("")).chat("c", "How many?", returns=int)
        assert get_chat_memory("c").messages() == []
