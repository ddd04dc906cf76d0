"""The base class of models: a subclass implements one method, and the others follow from it."""

import asyncio
import threading
from collections.abc import Generator, Iterable
from contextlib import aclosing

import pytest

from chatmemory_django.chat.model import (
    ChatEvent,
    ChatModel,
    ChatRequest,
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    PartialText,
    PartialThinking,
    PartialToolCall,
    TokenUsage,
    ToolChoice,
    ToolSpecification,
    UnavailableError,
)
from chatmemory_django.messages import AiMessage, ChatMessage, SystemMessage, ToolExecutionRequest, UserMessage
from tests.faces.chat.conftest import Way

PATIENCE = 20
"""How many seconds something may take that takes milliseconds on an idle machine."""

ANSWER = ChatResponse(
    AiMessage("Sunny.", "Which tool?", [ToolExecutionRequest("1", "clock", "{}"), ToolExecutionRequest("2", "sun")]),
    ChatResponseMetadata(id="a", finish_reason=FinishReason.TOOL_EXECUTION, token_usage=TokenUsage(1, 2, 3)),
)


class Parrot(ChatModel):
    """Answers with *answer* or with the last text that it received, and records its thread."""

    def __init__(self, answer: ChatResponse | None = None) -> None:
        self.answer = answer
        self.requests: list[ChatRequest] = []
        self.threads: list[threading.Thread] = []

    def do_chat(self, request: ChatRequest) -> ChatResponse:
        self.requests.append(request)
        self.threads.append(threading.current_thread())
        last = request.messages[-1]
        assert isinstance(last, UserMessage)
        return self.answer or ChatResponse(AiMessage(last.single_text))


class Dead(ChatModel):
    def do_chat(self, request: ChatRequest) -> ChatResponse:
        raise UnavailableError("The server is down.")


class TestAModelWithOneMethod:
    def test_can_be_called_in_all_ways(self, way: Way):
        assert way.ask(Parrot(ANSWER), [UserMessage("Weather?")]) is ANSWER

    def test_streams_each_part_of_its_answer_in_one_piece(self, stream: Way):
        assert stream.events(Parrot(ANSWER), [UserMessage("Weather?")]) == [
            PartialThinking("Which tool?"),
            PartialText("Sunny."),
            PartialToolCall(0, "1", "clock", "{}"),
            PartialToolCall(1, "2", "sun", ""),
            ANSWER,
        ]

    def test_streams_no_empty_pieces(self, stream: Way):
        empty = ChatResponse(AiMessage())

        assert stream.events(Parrot(empty), [UserMessage("Weather?")]) == [empty]

    def test_raises_its_errors_in_all_ways(self, way: Way):
        with pytest.raises(UnavailableError, match=r"^The server is down\.$"):
            way.ask(Dead(), [UserMessage("hi")])

    def test_does_not_block_the_event_loop(self):
        model = Parrot()

        asyncio.run(model.achat("hi"))

        assert model.threads != [threading.current_thread()]


class Slow(ChatModel):
    """Streams in threads alone: a second word, once the first one was read, and then an error."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.may_go_on = threading.Event()
        self.is_closed = threading.Event()

    def do_chat(self, request: ChatRequest) -> ChatResponse:
        raise AssertionError("Nobody asked for a whole answer.")

    def do_stream(self, request: ChatRequest) -> Generator[ChatEvent, None, None]:
        try:
            yield PartialText("One ")
            assert self.may_go_on.wait(PATIENCE)
            yield PartialText("two ")
            raise self.error
        finally:
            self.is_closed.set()


class TestAModelThatStreamsInThreadsAlone:
    def test_streams_to_coroutines_as_it_generates(self):
        model = Slow(UnavailableError("The server is down."))

        async def read() -> list[ChatEvent]:
            found = []
            with pytest.raises(UnavailableError, match=r"^The server is down\.$"):
                async for event in model.astream("hi"):
                    found.append(event)
                    model.may_go_on.set()
            return found

        assert asyncio.run(read()) == [PartialText("One "), PartialText("two ")]
        assert model.is_closed.is_set()

    def test_is_closed_after_its_next_word_when_the_reader_has_left_for_whom_that_is_no_delay(self):
        model = Slow(UnavailableError("The server is down."))

        async def read() -> None:
            async with aclosing(model.astream("hi")) as events:
                assert await anext(events) == PartialText("One ")

        asyncio.run(read())

        assert not model.is_closed.is_set()
        model.may_go_on.set()
        assert model.is_closed.wait(PATIENCE)

    def test_cannot_end_the_event_loop(self):
        model = Slow(SystemExit(3))
        model.may_go_on.set()

        async def read() -> None:
            async for _ in model.astream("hi"):
                pass

        with pytest.raises(RuntimeError, match="SystemExit"):
            asyncio.run(read())


class TestArguments:
    @pytest.mark.parametrize(
        "asked",
        [
            ChatRequest(messages=(SystemMessage("Be brief."), UserMessage("hi"))),
            [SystemMessage("Be brief."), UserMessage("hi")],
            iter([SystemMessage("Be brief."), UserMessage("hi")]),
        ],
        ids=["request", "list", "iterator"],
    )
    def test_messages_in_any_form(self, asked: ChatRequest | Iterable[ChatMessage]):
        model = Parrot()

        model.chat(asked)

        assert model.requests == [ChatRequest(messages=(SystemMessage("Be brief."), UserMessage("hi")))]

    def test_messages_as_separate_arguments(self, way: Way):
        model = Parrot()

        model.chat(SystemMessage("Be brief."), UserMessage("hi"))
        asyncio.run(model.achat(SystemMessage("Be brief."), UserMessage("hi")))
        list(model.stream(SystemMessage("Be brief."), UserMessage("hi")))

        assert model.requests == [ChatRequest(messages=(SystemMessage("Be brief."), UserMessage("hi")))] * 3

    def test_a_text_is_answered_with_a_text(self):
        assert Parrot().chat("hi") == "hi"
        assert asyncio.run(Parrot().achat("hi")) == "hi"

    def test_a_text_is_streamed(self):
        assert list(Parrot().stream("hi")) == [PartialText("hi"), ChatResponse(AiMessage("hi"))]

    def test_an_empty_answer_to_a_text_is_an_empty_text(self):
        assert Parrot(ChatResponse(AiMessage())).chat("hi") == ""

    @pytest.mark.parametrize(
        ("message", "what"),
        [
            (AiMessage(None, None, [ToolExecutionRequest("1", "clock", "{}")]), "calls tools"),
            (AiMessage(attributes={"refusal": "I will not."}), "is a refusal"),
        ],
    )
    def test_an_answer_that_is_not_a_text_raises(self, message: AiMessage, what: str):
        with pytest.raises(ValueError, match=f"^The answer has no text but {what}; pass messages instead of a str"):
            Parrot(ChatResponse(message)).chat("hi")

    @pytest.mark.parametrize("asked", ["hi", ChatRequest(messages=(UserMessage("hi"),))])
    def test_a_text_or_a_request_takes_no_further_arguments(self, asked: str | ChatRequest):
        with pytest.raises(TypeError, match="must be the only argument"):
            Parrot().chat(asked, UserMessage("and this"))  # type: ignore[call-overload]

    def test_at_least_one_message_is_required(self):
        with pytest.raises(ValueError, match=r"^messages is empty; give at least one message\.$"):
            Parrot().stream([])


class TestARequest:
    def test_is_immutable(self):
        request = ChatRequest(
            messages=[UserMessage("hi")],  # type: ignore[arg-type]
            stop_sequences=["END"],  # type: ignore[arg-type]
            tools=[ToolSpecification("clock")],  # type: ignore[arg-type]
        )

        assert request.messages == (UserMessage("hi"),)
        assert request.stop_sequences == ("END",)
        assert request.tools == (ToolSpecification("clock"),)

    @pytest.mark.parametrize("choice", [None, ToolChoice.REQUIRED, "clock"])
    def test_can_require_one_of_its_tools(self, choice: ToolChoice | str | None):
        request = ChatRequest(messages=(UserMessage("hi"),), tools=(ToolSpecification("clock"),), tool_choice=choice)

        assert request.tool_choice == choice

    def test_cannot_require_an_unknown_tool(self):
        with pytest.raises(ValueError, match=r"^tool_choice is 'required'; give a ToolChoice, or one of the tools"):
            ChatRequest(messages=(UserMessage("hi"),), tools=(ToolSpecification("clock"),), tool_choice="required")

    def test_shares_no_schema_with_another_request(self):
        assert ToolSpecification("a").parameters is not ToolSpecification("b").parameters


class TestTokenUsage:
    def test_adds_up(self):
        assert TokenUsage(1, 2, 3, 1, 1, 1, 1) + TokenUsage(10, 20, 30, 4, 5, 6, 7) == TokenUsage(
            11, 22, 33, 5, 6, 7, 8
        )

    def test_adds_up_known_numbers_only(self):
        assert TokenUsage(1, None, 3) + TokenUsage(None, None, 30, 4) == TokenUsage(1, None, 33, 4, None)
