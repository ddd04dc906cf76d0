"""Each framework's calls of models are recorded by its own hooks: once each, failed and cancelled ones too."""

import asyncio
import sys
from contextlib import closing, suppress

import pytest
from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured

from chatmemory_django.chat.costs.recording import RecordedChatModel
from chatmemory_django.chat.models import ModelCall
from chatmemory_django.models import Conversation
from tests.faces.chat.scripted import ScriptedModel
from tests.faces.chat.server import DONE, chunk, serving
from tests.faces.contrib.adapters.running import run

pytest.importorskip("agents", reason="The Agents SDK is needed: pip install openai-agents")
pytest.importorskip("langchain_core", reason="LangChain is needed: pip install langchain-core")
pytest.importorskip("llama_index", reason="LlamaIndex is needed: pip install llama-index-core")
pytest.importorskip("pydantic_ai", reason="pydantic-ai is needed: pip install pydantic-ai-slim")

from agents import Agent as SdkAgent
from agents import ModelProvider, RunConfig, Runner, Usage, function_tool
from agents.testing import ScriptedModel as SdkModel
from agents.testing import assistant_message, function_call
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms import ChatMessage, CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from openai.types.responses.response_usage import InputTokensDetails
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RequestUsage

from chatmemory_django.contrib.adapters.langchain import LangChainCalls
from chatmemory_django.contrib.adapters.llama_index import LlamaIndexCalls
from chatmemory_django.contrib.adapters.openai_agents import AgentsCalls
from chatmemory_django.contrib.adapters.pydantic_ai import PydanticAiCalls

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "Zwiebelkuchen"
TITLE = ("title", "scripted", 5, 7, None, None, "completed", "")
WRITTEN = ("cache_write_tokens", "cache_write_1h_tokens")


class BrokenError(Exception):
    pass


@pytest.fixture
def ann():
    user = get_user_model().objects.create_user("ann")
    Conversation.objects.create(memory_id="c", owner=user)
    return user


@pytest.fixture
def who(ann):
    yield {"owner": ann, "memory_id": "c"}
    assert set(ModelCall.objects.exclude(purpose="title").values_list("owner", "conversation__memory_id")) <= {
        (ann.pk, "c")
    }
    assert SECRET not in str(list(ModelCall.objects.values()))


def recorded() -> list[tuple]:
    """Return purpose, model, input, output, cached, reasoning, outcome and error of all calls, in their order."""
    columns = ("purpose", "model", "input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens")
    return list(ModelCall.objects.order_by("pk").values_list(*columns, "outcome", "error"))


async def entitle() -> str:
    """Call a model of the site, in a tool."""
    return await RecordedChatModel(ScriptedModel("Tea"), "title").achat("Entitle.")


async def cancelled(awaitable, began: asyncio.Event) -> None:
    task = asyncio.ensure_future(awaitable)
    await asyncio.wait_for(began.wait(), 60)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("calls", [AgentsCalls, LangChainCalls, LlamaIndexCalls, PydanticAiCalls])
class TestConstruction:
    def test_an_unknown_purpose_is_an_error_at_once(self, calls):
        with pytest.raises(ValueError, match="not 'fun'"):
            calls("fun")

    def test_without_the_app_of_their_table_the_error_names_it(self, calls, settings, monkeypatch):
        settings.INSTALLED_APPS = [each for each in settings.INSTALLED_APPS if each != "chatmemory_django.chat"]
        for name in ("calls", "tables"):
            monkeypatch.delitem(sys.modules, f"chatmemory_django.chat.costs.{name}")

        with pytest.raises(ImproperlyConfigured, match=r"add 'chatmemory_django\.chat' to INSTALLED_APPS"):
            calls()


class TestPydanticAi:
    USAGE = RequestUsage(input_tokens=10, output_tokens=4, cache_read_tokens=3, details={"reasoning_tokens": 2},
                         cache_write_tokens=6, cache_write_1h_tokens=1)  # fmt: skip
    CALL = ("answer", "f", 10, 4, 3, 2, "completed", "")

    def test_each_request_of_a_run_is_a_call_and_that_of_a_tool_another(self, who):
        def answer(messages, info):
            part = ToolCallPart("entitle") if len(messages) == 1 else TextPart(SECRET)
            return ModelResponse([part], usage=self.USAGE)

        agent = Agent(FunctionModel(answer, model_name="f"), tools=[entitle])
        run(agent.run("Tea?", capabilities=[PydanticAiCalls(**who)]))

        assert recorded() == [self.CALL, TITLE, self.CALL]
        assert list(ModelCall.objects.filter(model="f").values_list(*WRITTEN)) == [(6, 1)] * 2

    def test_streams_failures_and_cancellations(self, who):
        began = asyncio.Event()

        async def stream(messages, info):
            yield SECRET

        def fail(messages, info):
            raise BrokenError(SECRET)

        async def wait(messages, info):
            began.set()
            await asyncio.Event().wait()

        async def ask() -> None:
            calls = PydanticAiCalls(**who)
            async with Agent(FunctionModel(stream_function=stream, model_name="s"), capabilities=[calls]).run_stream(
                "Tea?"
            ) as result:
                await result.get_output()
            with pytest.raises(BrokenError):
                await Agent(FunctionModel(fail, model_name="f"), capabilities=[calls]).run("Tea?")
            await cancelled(Agent(FunctionModel(wait, model_name="w"), capabilities=[calls]).run("Tea?"), began)

        run(ask())

        assert [(each[1], *each[6:]) for each in recorded()] == [
            ("s", "completed", ""),
            ("f", "failed", "BrokenError"),
            ("w", "cancelled", ""),
        ]
        assert {each[2:6] for each in recorded()[1:]} == {(5, 0, None, None)}

    def test_a_refused_request_costs_nothing(self, who):
        def refuse(messages, info):
            raise ModelHTTPError(429, "m")

        with pytest.raises(ModelHTTPError):
            run(Agent(FunctionModel(refuse), capabilities=[PydanticAiCalls(**who)]).run("Tea?"))

        assert [each[2:4] for each in recorded()] == [(None, None)]

    def test_a_stream_that_is_left_or_cancelled_counts_by_what_was_sent_and_has_arrived(self, who):
        async def stream(messages, info):
            for _ in range(9):
                yield "word "

        def book(hotel: str) -> None:
            """Book."""

        async def ask() -> None:
            agent = Agent(FunctionModel(stream_function=stream), capabilities=[PydanticAiCalls(**who)], tools=[book])
            for leave in (False, True):
                async with agent.run_stream("Tea?", instructions="Be brief.") as result:
                    async for _ in result.stream_text(delta=True, debounce_by=None):
                        break
                    if not leave:
                        await result.cancel()

        run(ask())

        assert [each[6:] for each in recorded()] == [("cancelled", "")] * 2
        for _, _, sent, written, *_ in recorded():
            assert 30 < sent < 60
            assert 1 <= written <= 3

    def test_of_the_running_totals_of_a_stream_the_last_one_counts(self, who):
        totals = [
            {"prompt_tokens": 1_000, "completion_tokens": each, "total_tokens": 1_000 + each} for each in (1, 2, 3)
        ]

        async def ask(url: str) -> None:
            model = OpenAIChatModel("m", provider=OpenAIProvider(api_key="key", base_url=url))
            async with model, Agent(model, capabilities=[PydanticAiCalls(**who)]).run_stream("Tea?") as result:
                await result.get_output()

        with serving() as server:
            server.reply(*[chunk({"content": "a"}, usage=each) for each in totals], chunk(finish_reason="stop"), DONE)
            run(ask(server.url))

        assert ModelCall.objects.values_list("input_tokens", "output_tokens").get() == (1_000, 3)


class Chat(GenericFakeChatModel):
    """A model of LangChain that fails at the word "fail"."""

    def _generate(self, messages, *args, **kwargs):
        if messages[-1].content == "fail":
            raise BrokenError(SECRET)
        return super()._generate(messages, *args, **kwargs)


class Waiting(Chat):
    began: asyncio.Event

    async def _agenerate(self, *args, **kwargs):
        self.began.set()
        await asyncio.Event().wait()


class TestLangChain:
    CALL = ("answer", "m", 10, 4, 3, 2, "completed", "")

    def model(self):
        details = {"input_token_details": {"cache_read": 3}, "output_token_details": {"reasoning": 2}}
        usage = {"input_tokens": 10, "output_tokens": 4, "total_tokens": 14, **details}
        answer = AIMessage(SECRET, usage_metadata=usage, response_metadata={"model_name": "m"})
        return Chat(messages=iter([answer] * 9))

    def test_each_call_in_a_chain_is_recorded(self, who):
        calls = {"callbacks": [LangChainCalls(**who)]}
        (self.model() | RunnableLambda(lambda message: run(entitle()))).invoke("Tea?", calls)
        run(self.model().ainvoke("Tea?", calls))
        with pytest.raises(BrokenError):
            self.model().invoke("fail", calls)

        assert recorded() == [
            self.CALL,
            TITLE,
            self.CALL,
            ("answer", "", 5, 0, None, None, "failed", "BrokenError"),
        ]

    @pytest.mark.parametrize(
        ("details", "written"),
        [
            ({"cache_creation": 6}, (6, None)),
            ({"cache_creation": 0, "ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 1}, (6, 1)),
            ({"cache_creation": 6, "ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}, (6, 0)),
        ],
    )
    def test_what_is_written_to_the_cache_is_recorded(self, who, details, written):
        usage = {"input_tokens": 10, "output_tokens": 4, "total_tokens": 14, "input_token_details": details}
        model = Chat(messages=iter([AIMessage(SECRET, usage_metadata=usage)]))
        model.invoke("Tea?", {"callbacks": [LangChainCalls(**who)]})

        assert ModelCall.objects.values_list(*WRITTEN).get() == written

    def test_a_closed_stream_and_a_cancelled_chain_are_cancelled(self, who):
        calls = {"callbacks": [LangChainCalls(**who)]}
        with closing(Chat(messages=iter([AIMessage("one two three")])).stream("Tea?", calls)) as chunks:
            next(chunks)

        async def ask() -> None:
            began = asyncio.Event()
            chain = Waiting(messages=iter([]), began=began) | RunnableLambda(lambda message: message)
            await cancelled(chain.ainvoke("Tea?", calls), began)

        run(ask())

        assert [each[2:] for each in recorded()] == [
            (5, 1, None, None, "cancelled", ""),
            (5, 0, None, None, "cancelled", ""),
        ]


class Completing(CustomLLM):
    """A model of LlamaIndex whose chat is a completion."""

    error: type | None = None

    @property
    def metadata(self):
        return LLMMetadata(model_name="m")

    def to_payload(self):
        return {"model": "m"}

    @llm_completion_callback()
    def complete(self, prompt, formatted=False, **kwargs):
        if self.error is not None:
            raise self.error(SECRET)
        return CompletionResponse(text=SECRET, raw={"usage": {"prompt_tokens": 10, "completion_tokens": 4}})

    @llm_completion_callback()
    def stream_complete(self, prompt, formatted=False, **kwargs):
        for text in ("one", "one two"):
            yield CompletionResponse(text=text, raw={"usage": {"prompt_tokens": 10, "completion_tokens": 4}})


class TestLlamaIndex:
    CALL = ("answer", "m", 10, 4, None, None, "completed", "")

    def test_calls_are_recorded_once_failed_and_closed_ones_too(self, who):
        def model(**options):
            return Completing(callback_manager=CallbackManager([LlamaIndexCalls(**who)]), **options)

        question = [ChatMessage("Tea?")]
        model().complete("Tea?")
        model().chat(question)
        run(model().achat(question))
        list(model().stream_chat(question))
        with closing(model().stream_complete("Tea?")) as chunks:
            next(chunks)
        with pytest.raises(BrokenError):
            model(error=BrokenError).chat(question)

        assert recorded() == [
            *[self.CALL] * 4,
            ("answer", "m", 1, 0, None, None, "cancelled", ""),
            ("answer", "m", 5, 0, None, None, "failed", "BrokenError"),
        ]


class TestAgents:
    CALL = ("answer", "", 10, 4, None, None, "completed", "")
    DETAILS = InputTokensDetails(cached_tokens=0, cache_write_tokens=6)
    USAGE = Usage(requests=1, input_tokens=10, output_tokens=4, total_tokens=14, input_tokens_details=DETAILS)

    def test_each_call_of_a_run_is_recorded_failed_and_cancelled_ones_too(self, who):
        good = [[function_call("entitle", {}, call_id="1")], [assistant_message(SECRET)]]
        models = {"good": SdkModel(good, default_usage=self.USAGE), "bad": SdkModel([BrokenError(SECRET)])}

        class Provider(ModelProvider):
            def get_model(self, model_name):
                return models[model_name]

        config = RunConfig(model_provider=AgentsCalls(provider=Provider(), **who), tracing_disabled=True)
        tools = [function_tool(entitle)]

        async def ask() -> None:
            model = SdkModel([[assistant_message(SECRET)]], default_usage=self.USAGE)
            agent = SdkAgent("a", model=AgentsCalls(**who).recorded(model))
            await Runner.run(agent, "Tea?", run_config=RunConfig(tracing_disabled=True))
            result = Runner.run_streamed(SdkAgent("a", model="good", tools=tools), "Tea?", run_config=config)
            async for _ in result.stream_events():
                pass
            with pytest.raises(BrokenError):
                await Runner.run(SdkAgent("a", model="bad"), "Tea?", run_config=config)

        run(ask())

        failed = ("answer", "", 5, 0, None, None, "failed", "BrokenError")
        assert recorded() == [self.CALL, self.CALL, TITLE, self.CALL, failed]
        assert set(ModelCall.objects.filter(input_tokens=10).values_list(*WRITTEN)) == {(6, None)}
