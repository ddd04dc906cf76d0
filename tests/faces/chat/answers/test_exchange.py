"""The requests that an assistant sends to its model."""

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import ChatModel, ChatResponse, ContextLengthError, PartialToolCall
from chatmemory_django.memory import TokenWindowChatMemory
from chatmemory_django.messages import AiMessage
from chatmemory_django.models import Message
from tests.estimators import Words
from tests.faces.chat.outgoing.vendors import calls_of
from tests.faces.chat.scripted import ScriptedModel, calling

pytestmark = pytest.mark.django_db


class Parrot(ChatModel):
    def do_chat(self, request):
        return ChatResponse(AiMessage(request.messages[-1].single_text))


class TestMessagesThatDoNotFit:
    def test_a_question_larger_than_the_memory_raises(self):
        options = {"max_tokens": 50, "token_count_estimator": Words()}
        assistant = Assistant(
            Parrot(), memory=TokenWindowChatMemory, memory_options=options, system_message="Repeat it."
        )
        owner = User.objects.create_user("ann")
        assert assistant.chat("c", "one two", owner=owner) == "one two"

        with pytest.raises(ContextLengthError, match="larger window"):
            assistant.chat("c", "three " * 50, owner=owner)

        assert Message.objects.filter(text__startswith="three").count() == 0
        assert assistant.chat("c", "four", owner=owner) == "four"


def add(a: int, b: int) -> int:
    """Add numbers."""
    return a + b


class Counting(ScriptedModel):
    """A server that begins to count its calls again with each response, or names none."""

    def __init__(self, *ids: str | None) -> None:
        calls = calling(*((each, "add", '{"a": 1, "b": 1}') for each in ids))
        super().__init__(calls, calls, "2.", calls, "2.")

    def _events(self, answer):
        for index, call in enumerate(getattr(answer, "tool_execution_requests", ())):
            yield PartialToolCall(index, call.id, call.name)
            yield PartialToolCall(index, arguments=call.arguments)
        yield from super()._events(answer)


class TestIdsOfCalls:
    @pytest.mark.parametrize("ids", [("call_0",), ("call_0", "call_0"), ("call_0", "call_1"), (None,), (None, "")])
    @pytest.mark.parametrize("persist", ["early", "late"])
    def test_a_call_has_an_id_that_no_earlier_one_has(self, ids, persist):
        model = Counting(*ids)
        assistant = Assistant(model, tools=[add], persist=persist)

        events = [event for text in ("1 + 1?", "Again?") for event in assistant.stream("c", text)]

        responses = [event.ai_message for event in events if isinstance(event, ChatResponse)]
        named = [call.id for call in calls_of(responses)]
        assert len({*named}) == 3 * len(ids)
        assert named[0] == (ids[0] or "call-1-0")
        assert [event.id for event in events if isinstance(event, PartialToolCall) and event.name] == named
        assert [call.id for call in calls_of(assistant.chat_memory("c").messages())] == named
        for before, sent in zip(model.sent, model.sent[1:], strict=False):
            assert sent[: len(before)] == before

    def test_no_statement_more_is_needed(self, django_assert_num_queries):
        assistant = Assistant(Counting("call_0"), tools=[add])
        with CaptureQueriesContext(connection) as first:
            assistant.chat("first", "1 + 1?")
        others = Assistant(
            ScriptedModel(*[calling((str(n), "add", '{"a": 1, "b": 1}')) for n in "12"], "2."), tools=[add]
        )

        with django_assert_num_queries(len(first)):
            others.chat("second", "1 + 1?")
