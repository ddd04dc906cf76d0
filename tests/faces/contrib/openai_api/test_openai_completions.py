"""Chat completions and models: OpenAI's published client asks the site's assistants."""

import asyncio
import json
from typing import Any

import httpx2
import openai
import pytest
from django.contrib.auth.models import Permission, User
from django.core.asgi import get_asgi_application
from pydantic import BaseModel
from rest_framework.authtoken.models import Token

from chatmemory_django.access import AccessPolicy
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.guards import Refuse, Rewrite
from chatmemory_django.chat.model import UnavailableError
from chatmemory_django.chat.models import ModelCall, Run
from chatmemory_django.chat.tools import Tool
from chatmemory_django.memory import SummarizingChatMemory
from chatmemory_django.messages import AiMessage, SystemMessage, TextContent, ToolExecutionResultMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from tests.estimators import Words
from tests.faces.chat.scripted import ScriptedModel, calling
from tests.faces.rest.conftest import WRITE
from tests.logs import logged_by

pytestmark = pytest.mark.django_db(transaction=True)

HI = {"role": "user", "content": "Hi"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Return the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASKS = ("c1", "weather", '{"city": "Ulm"}')


class Person(BaseModel):
    name: str
    age: int


def complete(client: openai.OpenAI, *messages: dict, **options: Any) -> Any:
    return client.chat.completions.create(model="assistant", messages=messages or [HI], **options)


def text_of(chunks: list[Any]) -> str:
    return "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)


class TestModels:
    def test_are_the_assistants_that_the_user_may_ask(self, client, settings):
        settings.CHATMEMORY = {
            "CHAT": {
                "ASSISTANT": Assistant(ScriptedModel("")),
                "ASSISTANTS": {"support": Assistant(ScriptedModel(""))},
            },
            "ACCESS_POLICY": f"{__name__}.WithoutSupport",
        }

        assert [model.id for model in client.models.list()] == ["assistant"]
        assert client.models.retrieve("assistant").object == "model"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("support")
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="support", messages=[HI])
        assert caught.value.code == "model_not_found"
        assert caught.value.param == "model"

    def test_are_for_who_has_a_key(self, client):
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()


class WithoutSupport(AccessPolicy):
    def may_ask(self, request, assistant):
        return assistant != "support"


class TestCompletions:
    def test_answer_the_history_that_the_client_sends_and_store_nothing(self, client, site):
        model = site("Hello")

        answer = complete(client, HI, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Again"})

        assert answer.choices[0].message.content.strip() == "Hello"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.total_tokens == 12
        assert model.sent == [[UserMessage("Hi"), AiMessage("Yes?"), UserMessage("Again")]]
        assert not Conversation.objects.exists()
        assert not Message.objects.exists()
        assert not Run.objects.exists()
        assert ModelCall.objects.get().owner.username == "ann"

    def test_come_in_pieces(self, client, site):
        site("Hello you there")

        chunks = list(complete(client, stream=True, stream_options={"include_usage": True}))

        assert text_of(chunks).strip() == "Hello you there"
        assert len([each for each in chunks if each.choices and each.choices[0].delta.content]) == 3
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].usage.completion_tokens == 7
        assert len({each.id for each in chunks}) == 1

    def test_are_an_answer_of_the_sites_assistant_with_its_tools(self, client, site):
        def add(one: int, two: int) -> int:
            """Add two numbers."""
            return one + two

        model = site(calling(("c1", "add", '{"one": 1, "two": 2}'), text="Let me see."), "It is 3.", tools=[add])

        answer = complete(client)

        assert answer.choices[0].message.content.split() == ["Let", "me", "see.", "It", "is", "3."]
        assert answer.choices[0].message.tool_calls is None
        assert model.sent[1][-1] == ToolExecutionResultMessage("c1", "add", "3")

    def test_call_the_clients_tools(self, client, site):
        model = site(calling(ASKS), "Rain.")

        asked = complete(client, HI, tools=[WEATHER]).choices[0]
        called = asked.message.model_dump(exclude_none=True)
        result = {"role": "tool", "tool_call_id": "c1", "content": "rain"}
        answer = complete(client, HI, called, result, tools=[WEATHER])

        assert asked.finish_reason == "tool_calls"
        assert json.loads(asked.message.tool_calls[0].function.arguments) == {"city": "Ulm"}
        assert answer.choices[0].message.content.strip() == "Rain."
        assert [tool.name for tool in model.requests[0].tools] == ["weather"]
        assert model.sent[1] == [
            UserMessage("Hi"),
            calling((*ASKS[:2], '{"city":"Ulm"}')),
            ToolExecutionResultMessage("c1", None, "rain"),
        ]

    def test_call_the_clients_tools_in_pieces(self, client, site):
        site(calling(ASKS))

        with client.chat.completions.stream(model="assistant", messages=[HI], tools=[WEATHER]) as stream:
            final = stream.get_final_completion()

        assert final.choices[0].message.tool_calls[0].function.name == "weather"
        assert final.choices[0].finish_reason == "tool_calls"

    @pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
    def test_let_the_client_choose_the_tool(self, client, site, choice):
        model = site(calling(ASKS))

        complete(client, tools=[WEATHER], tool_choice=choice)

        assert model.requests[0].tool_choice == ("required" if choice == "required" else "weather")

    def test_have_the_form_that_the_client_wants(self, client, site):
        model = site('{"name": "Ann", "age": 7}')

        answer = client.chat.completions.parse(model="assistant", messages=[HI], response_format=Person)

        assert answer.choices[0].message.parsed == Person(name="Ann", age=7)
        assert model.requests[0].response_format.schema["required"] == ["name", "age"]

    def test_leave_out_instructions_and_say_so(self, client, site):
        model = site("Hello", system_message="Be kind.")

        response = client.chat.completions.with_raw_response.create(
            model="assistant", messages=[{"role": "system", "content": "Be rude."}, HI]
        )

        assert response.headers["x-instructions"] == "left-out"
        assert model.sent == [[SystemMessage("Be kind."), UserMessage("Hi")]]

    def test_have_instructions_as_context_with_a_permission(self, client, site, ann):
        ann.user_permissions.set(Permission.objects.filter(codename=WRITE))
        model = site("Hello", system_message="Be kind.")

        response = client.chat.completions.with_raw_response.create(
            model="assistant", messages=[{"role": "developer", "content": "Be brief."}, HI]
        )

        assert response.headers["x-instructions"] == "context"
        [[system, question]] = model.sent
        assert system == SystemMessage("Be kind.")
        assert question.contents == (TextContent("Be brief."), TextContent("Hi"))

    def test_leave_out_tools_that_wait_for_somebody(self, client, site):
        def pay() -> None:
            """Pay."""

        model = site("Hello", tools=[Tool(pay, needs_approval=True)])

        complete(client)

        assert model.requests[0].tools == ()

    def test_are_refused_once_a_budget_is_used_up(self, client, site, settings):
        site("Hello")
        settings.CHATMEMORY = {**settings.CHATMEMORY, "BUDGET": {"TOKENS": 10, "PER": "day"}}
        complete(client)

        for stream in (False, True):
            with pytest.raises(openai.RateLimitError) as caught:
                complete(client, stream=stream)
            assert caught.value.code == "rate_limit_exceeded"

    def test_fail_with_a_status_before_the_first_piece_and_in_the_stream_after_it(self, client, site):
        site(ValueError("secret"))

        with pytest.raises(openai.InternalServerError) as caught:
            complete(client)
        assert "secret" not in str(caught.value)
        with pytest.raises(openai.APIError):
            list(complete(client, stream=True))

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"messages": []}, "messages"),
            ({"messages": [{"role": "assistant", "content": "Hi"}]}, "messages"),
            ({"messages": [{"role": "wizard", "content": "Hi"}]}, "messages[0].role"),
            ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
            ({"messages": [{"role": "user", "content": "x" * 100_001}]}, "messages[0].content"),
            ({"messages": [{"role": "user", "content": "a\0b"}]}, "messages[0].content[0].text"),
            ({"messages": [HI] * 2_001}, "messages"),
            ({"messages": [{"role": "tool", "tool_call_id": "c1", "content": "x"}]}, "messages"),
            ({"messages": [{"role": "tool", "tool_call_id": "c1", "content": "x"}], "store": True}, "messages"),
            ({"messages": [HI], "n": 2}, "n"),
            (
                {"messages": [HI], "tools": [{"type": "function", "function": {"name": "a b"}}]},
                "tools[0].function.name",
            ),
            ({"messages": [HI], "tools": [WEATHER] * 129}, "tools"),
            ({"messages": [HI], "tools": [WEATHER] * 2}, "tools"),
            ({"messages": [HI], "response_format": {"type": "json_schema"}}, "response_format"),
            ({"messages": [HI], "response_format": {"type": "x"}}, "response_format"),
            (
                {"messages": [HI], "tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "z"}}},
                "tool_choice",
            ),
            ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, None),
        ],
    )
    def test_name_what_is_invalid(self, client, site, body, param):
        model = site("Hello")

        with pytest.raises(openai.BadRequestError) as caught:
            client.post("/chat/completions", body={"model": "assistant", **body}, cast_to=object)

        assert caught.value.type == "invalid_request_error"
        if param is not None:
            assert caught.value.param == param
        assert model.requests == []

    def test_refuse_what_is_too_deep_or_too_large(self, client, site, settings):
        model = site("Hello")
        settings.CHATMEMORY["CHAT"]["MAX_BODY_BYTES"] = 1_000_000
        deep: Any = {"a": 1}
        for _ in range(40):
            deep = {"a": deep}
        bodies: list[Any] = [
            ({"tools": [{"type": "function", "function": {"name": "f", "parameters": deep}}]}, 400),
            ({"response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": deep}}}, 400),
            ({"tools": [{"type": "function", "function": {"name": "f", "description": "x" * 70_000}}]}, 400),
            ({"metadata": {"x": "y" * 1_000_000}}, 413),
        ]
        for body, status in bodies:
            with pytest.raises(openai.APIStatusError) as caught:
                client.post("/chat/completions", body={"model": "assistant", "messages": [HI], **body}, cast_to=object)
            assert caught.value.status_code == status, body.keys()
        response = client._client.post(
            f"{client.base_url}chat/completions", content=b'{"model":' + b"[" * 100_000, headers=client.auth_headers
        )
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"
        assert model.requests == []


class TestAsync:
    def test_an_async_client_reads_a_stream_under_asgi(self, site, ann):
        site("Hello you")
        key = Token.objects.create(user=ann).key

        async def read() -> str:
            transport = httpx2.ASGITransport(app=get_asgi_application())
            http_client = httpx2.AsyncClient(transport=transport)
            base = "http://testserver/openai/v1"
            async with openai.AsyncOpenAI(base_url=base, api_key=key, http_client=http_client) as client:
                stream = await client.chat.completions.create(model="assistant", messages=[HI], stream=True)
                return text_of([chunk async for chunk in stream])

        assert asyncio.run(read()).strip() == "Hello you"
        assert not Message.objects.exists()


def test_events_are_json_lines_that_end_with_done(client, site):
    site("Hello")

    with client.chat.completions.with_streaming_response.create(
        model="assistant", messages=[HI], stream=True
    ) as response:
        lines = [line for line in response.iter_lines() if line]

    assert lines[-1] == "data: [DONE]"
    assert all(json.loads(line.removeprefix("data: ")) for line in lines[:-1])


NAMED = {"extra_headers": {"X-Conversation-ID": "trip"}}


class Talk:
    """A client that keeps the history itself, as chat completions want it, and names a conversation."""

    def __init__(self, client: openai.OpenAI, **options: Any) -> None:
        self.client = client
        self.options = {**NAMED, **options}
        self.messages: list[dict[str, Any]] = []
        self.tokens: list[int] = []

    def say(self, text: str, **options: Any) -> Any:
        self.messages.append({"role": "user", "content": text})
        return self.go_on(**options)

    def go_on(self, **options: Any) -> Any:
        answer = complete(self.client, *self.messages, **self.options, **options)
        self.tokens.append(answer.usage.total_tokens)
        choice = answer.choices[0]
        self.messages.append(choice.message.model_dump(exclude_none=True))
        return choice


def stored() -> list[tuple[str, str]]:
    return [(row.type, row.text.strip()) for row in Conversation.objects.get().history().order_by("sequence")]


class TestConversations:
    def test_take_only_what_is_new(self, client, site):
        model = site("One", "Two", system_message="Be kind.")
        talk = Talk(client)

        talk.say("First")
        talk.say("Second")

        assert stored() == [
            ("SYSTEM", "Be kind."),
            ("USER", "First"),
            ("AI", "One"),
            ("USER", "Second"),
            ("AI", "Two"),
        ]
        assert model.sent[1][1:] == [UserMessage("First"), AiMessage("One"), UserMessage("Second")]
        assert Conversation.objects.get().owner.username == "ann"
        assert Conversation.objects.get().title == "First"
        assert Run.objects.count() == 2

    def test_are_named_in_the_metadata_too_and_the_response_names_them(self, client, site):
        site("One")

        response = client.chat.completions.with_raw_response.create(
            model="assistant", messages=[HI], metadata={"conversation_id": "trip"}
        )

        assert response.headers["x-conversation-id"] == Conversation.objects.get().memory_id

    def test_begin_with_store(self, client, site):
        site("One")

        response = client.chat.completions.with_raw_response.create(model="assistant", messages=[HI], store=True)

        assert stored() == [("USER", "Hi"), ("AI", "One")]
        assert response.headers["x-conversation-id"] == Conversation.objects.get().memory_id

    def test_take_a_question_without_a_history_at_the_end(self, client, site):
        site("One", "Two")
        complete(client, **NAMED)
        complete(client, {"role": "user", "content": "And?"}, **NAMED)

        assert [text for _, text in stored()] == ["Hi", "One", "And?", "Two"]

    @pytest.mark.parametrize(
        "change",
        [
            lambda sent: sent[0].update(content="Other"),
            lambda sent: sent[1].update(content="Other"),
            lambda sent: sent.insert(0, {"role": "assistant", "content": "a"}) or sent.insert(0, HI),
        ],
        ids=["question", "answer", "turn"],
    )
    def test_refuse_another_history(self, client, site, change):
        model = site("One", "Two")
        talk = Talk(client)
        talk.say("First")
        change(talk.messages)

        with pytest.raises(openai.ConflictError) as caught:
            talk.say("Second")

        assert caught.value.response.headers["x-should-retry"] == "false"
        assert stored() == [("USER", "First"), ("AI", "One")]
        assert len(model.requests) == 1

    @pytest.mark.parametrize("is_dropped", [True, False])
    def test_go_on_after_a_question_that_failed(self, client, site, is_dropped):
        site(UnavailableError("The model is away."), "Two", "Three", "Again")
        talk = Talk(client)

        with pytest.raises(openai.APIStatusError):
            talk.say("First")
        if is_dropped:
            talk.messages.clear()
        talk.say("Second")
        talk.say("Third")
        talk.messages.pop()
        talk.go_on()

        last = [("AI", "Two"), ("USER", "Third"), ("AI", "Again")]
        assert stored() == [("USER", "First"), ("USER", "Second" if is_dropped else "First\nSecond"), *last]

    def test_refuse_a_history_in_a_new_conversation(self, client, site):
        site("One")

        with pytest.raises(openai.ConflictError):
            complete(client, HI, {"role": "assistant", "content": "Yes?"}, HI, store=True)

        assert not Conversation.objects.exists()

    def test_know_a_question_that_a_guard_has_rewritten(self, client, site):
        model = site("One", "Two", "Three", input_guards=[without_cards])
        talk = Talk(client)
        talk.say("My card: 4111")

        talk.say("Second: 4111")
        del talk.messages[-1:]
        assert talk.go_on().message.content == "Three"

        assert [text for _, text in stored()] == ["My card: *", "One", "Second: *", "Three"]
        assert model.sent[1] == [UserMessage("My card: *"), AiMessage("One"), UserMessage("Second: *")]

    def test_do_not_take_a_question_for_one_that_a_guard_would_refuse(self, client, site):
        model = site("One", "Two", input_guards=[without_cards])
        talk = Talk(client)
        talk.say("First")
        talk.messages[0]["content"] = "Secret"

        with pytest.raises(openai.ConflictError):
            talk.say("Second")

        assert len(model.requests) == 1

    def test_answer_an_edited_question_on_a_branch(self, client, site):
        site("One", "Two", "Three")
        talk = Talk(client)
        talk.say("First")
        talk.say("Second")
        del talk.messages[2:]

        talk.say("Other")

        assert [text for _, text in stored()] == ["First", "One", "Other", "Three"]
        assert Message.objects.filter(on_path=False).count() == 2

    def test_answer_a_question_once_more_that_has_an_answer(self, client, site):
        site("One", "Two", "Three")
        talk = Talk(client)
        talk.say("First")
        talk.say("Second")
        del talk.messages[3:]

        talk.go_on()

        assert [text for _, text in stored()] == ["First", "One", "Second", "Three"]

    def test_answer_the_only_question_once_more(self, client, site):
        model = site("One", "Two", "Three")
        talk = Talk(client)
        talk.say("First")
        talk.messages.pop()

        talk.go_on()
        talk.say("Second")

        assert [text for _, text in stored()] == ["First", "Two", "Second", "Three"]
        assert model.sent[1] == [UserMessage("First")]

    def test_take_the_only_question_with_a_key_for_another_one(self, client, site):
        site("One", "Two")
        complete(client, **NAMED)

        complete(client, extra_headers={**NAMED["extra_headers"], "Idempotency-Key": "5f0c"})

        assert [text for _, text in stored()] == ["Hi", "One", "Hi", "Two"]

    def test_wait_for_the_outputs_of_the_clients_tools(self, client, site):
        model = site(calling(ASKS), "Rain.", "Bye")
        talk = Talk(client, tools=[WEATHER])

        asked = talk.say("First")
        talk.messages.append({"role": "tool", "tool_call_id": asked.message.tool_calls[0].id, "content": "rain"})
        answer = talk.go_on()
        talk.say("Thanks")

        assert asked.finish_reason == "tool_calls"
        assert answer.message.content.strip() == "Rain."
        assert model.sent[1][-1].text == "rain"
        assert talk.tokens == [12, 12, 12]
        assert [kind for kind, _ in stored()] == ["USER", "AI", "TOOL_EXECUTION_RESULT", "AI", "USER", "AI"]

    def test_refuse_outputs_for_which_nothing_waits(self, client, site):
        site("One")
        complete(client, **NAMED)

        with pytest.raises(openai.ConflictError):
            complete(client, HI, calling_sent(), {"role": "tool", "tool_call_id": "c1", "content": "x"}, **NAMED)

    def test_stream_as_others_do(self, client, site):
        site("Hello you")

        assert text_of(list(complete(client, stream=True, **NAMED))).strip() == "Hello you"
        assert [text for _, text in stored()] == ["Hi", "Hello you"]

    def test_are_the_callers_own(self, client, site, ann):
        model = site("One", "Two")
        bob = User.objects.create_user("bob")
        theirs = client.with_options(api_key=Token.objects.create(user=bob).key)
        complete(client, **NAMED)

        complete(theirs, {"role": "user", "content": "Mine"}, **NAMED)
        for memory_id in Conversation.objects.filter(owner=ann).values_list("memory_id", flat=True):
            complete(theirs, {"role": "user", "content": "Mine"}, extra_headers={"X-Conversation-ID": memory_id})

        assert Conversation.objects.get(owner=ann).messages.count() == 2
        assert not any(UserMessage("Hi") in sent for sent in model.sent[1:])

    def test_belong_to_one_assistant(self, client, site, settings):
        site("One")
        chat = settings.CHATMEMORY["CHAT"]
        chat["ASSISTANTS"] = {"support": Assistant(ScriptedModel("Support"))}
        complete(client, **NAMED)

        with pytest.raises(openai.ConflictError):
            client.chat.completions.create(model="support", messages=[HI], **NAMED)
        client.chat.completions.create(model="support", messages=[HI], extra_headers={"X-Conversation-ID": "other"})
        with pytest.raises(openai.ConflictError):
            complete(client, extra_headers={"X-Conversation-ID": "other"})


def without_cards(question: UserMessage) -> Rewrite | Refuse:
    if "Secret" in question.single_text:
        return Refuse("No.")
    return Rewrite(question.single_text.replace("4111", "*"))


def calling_sent() -> dict[str, Any]:
    function = {"name": "weather", "arguments": "{}"}
    return {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}


def test_a_memory_that_summarizes_is_a_window_for_a_history_of_the_client(client, site, caplog):
    def summarize(previous: Any, messages: Any) -> str:
        raise AssertionError

    options = {
        "max_tokens": 100,
        "token_count_estimator": Words(),
        "summarize": summarize,
        "summary_tokens": 10,
        "after_tokens": 1,
    }
    model = site("Hello", memory=SummarizingChatMemory, memory_options=options)
    history = [{"role": role, "content": f"{n} {'word ' * 20}"} for n in range(9) for role in ("user", "assistant")]

    complete(client, *history, HI)

    assert model.sent[0][-1] == UserMessage("Hi")
    assert 2 < len(model.sent[0]) < 19
    assert not logged_by(caplog, "chatmemory_django.memory")


def test_of_a_history_of_the_client_no_days_are_known(client, site):
    model = site("Hello", dates=True)

    complete(client, {"role": "user", "content": "Tomorrow!"}, {"role": "assistant", "content": "Yes."}, HI)
    complete(client, HI, **NAMED)

    assert [len(message.contents) for message in model.sent[0] if message.type == "USER"] == [1, 1]
    assert [len(message.contents) for message in model.sent[1] if message.type == "USER"] == [2]
