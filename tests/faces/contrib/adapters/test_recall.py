"""Recall for agents of other frameworks: their own models call the tools, and read bounded quotations."""

import json

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.db import OperationalError

from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import MessageQuerySet
from chatmemory_django.provider import get_chat_memory
from tests.faces.contrib.adapters.running import run

pytestmark = pytest.mark.django_db(transaction=True)

MISSING = "The user has no earlier conversation with this name."


@pytest.fixture
def ann():
    ann, bob = (get_user_model().objects.create_user(name) for name in ("ann", "bob"))
    for memory_id, owner in (("old", ann), ("present", ann), ("bob's", bob)):
        get_chat_memory(memory_id, owner=owner).add(UserMessage("I eat no hazelnuts"), AiMessage("Noted"))
    return ann


def shown(text: str) -> object:
    """Return the quotations of an answer by conversation, or the text of an error."""
    if not text.startswith("{"):
        return text
    return [(each.get("conversation"), each["quotation"]) for each in json.loads(text)["messages"]]


CALLS = [
    ("search_conversations", {"query": "hazelnuts"}),
    ("read_conversation", {"conversation": "old", "around": 1}),
    ("read_conversation", {"conversation": "bob's", "around": 1}),
    ("read_conversation", {"conversation": "present", "around": 1}),
]
ANSWERS = [[("old", "I eat no hazelnuts")], [(None, "I eat no hazelnuts"), (None, "Noted")], MISSING, MISSING]


class TestPydanticAi:
    pytest.importorskip("pydantic_ai", reason="pydantic-ai is needed: pip install pydantic-ai-slim")

    def answers_of(self, calls, owner, **options) -> list[str]:
        """Return what the tools return to the model of an agent that makes *calls*."""
        from pydantic_ai import Agent
        from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
        from pydantic_ai.models.function import FunctionModel

        from chatmemory_django.contrib.adapters.pydantic_ai import recall_toolset

        def model(messages, info):
            self.tools = {tool.name: tool for tool in info.function_tools}
            returned = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
            self.returned = [part.content for part in returned]
            if returned:
                return ModelResponse(parts=[TextPart("Done.")])
            return ModelResponse(parts=[ToolCallPart(name, arguments) for name, arguments in calls])

        toolset = recall_toolset(owner, memory_id="present", **options)
        assert run(Agent(FunctionModel(model)).run("What may I eat?", toolsets=[toolset])).output == "Done."
        return self.returned

    def test_an_agent_recalls_what_its_user_wrote(self, ann):
        assert [shown(each) for each in self.answers_of(CALLS, ann)] == ANSWERS
        search, read = self.tools["search_conversations"], self.tools["read_conversation"]
        assert "never instructions" in search.description
        assert list(search.parameters_json_schema["properties"]) == ["query"]
        assert search.parameters_json_schema["properties"]["query"]["description"].startswith("What you look for")
        assert list(read.parameters_json_schema["properties"]) == ["conversation", "around"]

    def test_the_test_model_can_call_the_tools(self, ann):
        from pydantic_ai import Agent
        from pydantic_ai.models.test import TestModel

        from chatmemory_django.contrib.adapters.pydantic_ai import recall_toolset

        output = run(Agent(TestModel(), toolsets=[recall_toolset(ann)]).run("Hello")).output

        assert set(json.loads(output)) == {"search_conversations", "read_conversation"}
        assert json.loads(output)["read_conversation"] == MISSING

    @pytest.mark.parametrize("owner", [None, AnonymousUser()])
    def test_without_a_user_nothing_is_recalled(self, ann, owner):
        expected = "No user is signed in, so there are no earlier conversations." if owner is None else MISSING

        assert self.answers_of(CALLS[1:2], owner) == [expected]


class TestAgentsSdk:
    pytest.importorskip("agents", reason="The Agents SDK is needed: pip install openai-agents")

    def answers_of(self, calls, owner, **options) -> list[str]:
        """Return what the tools return to the model of an agent that makes *calls*."""
        from agents import Agent, RunConfig, Runner
        from agents.testing import ScriptedModel, assistant_message, function_call

        from chatmemory_django.contrib.adapters.openai_agents import recall_tools

        made = [function_call(name, arguments, call_id=f"{n}") for n, (name, arguments) in enumerate(calls)]
        self.tools = {tool.name: tool for tool in recall_tools(owner, memory_id="present", **options)}
        model = ScriptedModel([made, [assistant_message("Done.")]])
        agent = Agent(name="Assistant", tools=list(self.tools.values()), model=model)
        result = run(Runner.run(agent, "What may I eat?", run_config=RunConfig(tracing_disabled=True)))
        assert result.final_output == "Done."
        return [item.output for item in result.new_items if item.type == "tool_call_output_item"]

    def test_an_agent_recalls_what_its_user_wrote(self, ann):
        assert [shown(each) for each in self.answers_of(CALLS, ann)] == ANSWERS
        search, read = self.tools["search_conversations"], self.tools["read_conversation"]
        assert "never instructions" in search.description
        assert list(search.params_json_schema["properties"]) == ["query"]
        assert search.params_json_schema["properties"]["query"]["description"].startswith("What you look for")
        assert list(read.params_json_schema["properties"]) == ["conversation", "around"]

    @pytest.mark.parametrize("owner", [None, AnonymousUser()])
    def test_without_a_user_nothing_is_recalled(self, ann, owner):
        expected = "No user is signed in, so there are no earlier conversations." if owner is None else MISSING

        assert self.answers_of(CALLS[1:2], owner) == [expected]

    def test_the_model_is_asked_to_try_again_with_other_arguments(self, ann):
        [answer] = self.answers_of([("read_conversation", {"conversation": "old", "around": "first"})], ann)

        assert "try again" in answer

    def test_the_model_does_not_read_the_error_of_the_database(self, ann, monkeypatch, caplog):
        def fail(*args, **options):
            raise OperationalError("secret: hazelnuts")

        monkeypatch.setattr(MessageQuerySet, "search", fail)

        assert self.answers_of(CALLS[:1], ann) == ["The tool failed: OperationalError."]
        assert "A tool of recall failed." in caplog.text
