"""PydanticAiChatModel and the servers of Anthropic and Google, called through their own clients."""

import asyncio
import base64
import gc
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from textwrap import dedent
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import DeltaThinkingPart, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from chatmemory_django.chat.model import (
    AuthenticationError,
    BrokenStreamError,
    ChatModelError,
    ChatRequest,
    ChatResponse,
    ContextLengthError,
    FinishReason,
    InvalidRequestError,
    ModelTimeoutError,
    PartialText,
    PartialThinking,
    PartialToolCall,
    RateLimitError,
    ResponseFormat,
    TokenUsage,
    ToolChoice,
    ToolSpecification,
    UnavailableError,
)
from chatmemory_django.chat.pydantic_ai import PydanticAiChatModel
from chatmemory_django.messages import (
    AiMessage,
    Image,
    ImageContent,
    PdfFile,
    PdfFileContent,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from tests.faces.chat.conftest import Way, by_turns, whole_and_streamed
from tests.faces.chat.openai.test_openai_clients import python
from tests.faces.chat.server import DONE, PATIENCE, ModelServer, Reply, Request, Step, chunk
from tests.faces.chat.vendors import KEY, SSE, VENDORS, Anthropic, Google, Vendor, chat_model, data, event

QUESTION = UserMessage("What is 1 + 2?")
ADD = ToolSpecification("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TOTALS = [{"prompt_tokens": 1_000, "completion_tokens": each, "total_tokens": 1_000 + each} for each in range(1, 51)]
SIGNATURE = base64.b64encode(b"signed by the vendor").decode()


@pytest.fixture(params=list(VENDORS))
def vendor(request: pytest.FixtureRequest) -> Vendor:
    return VENDORS[request.param]


def test_an_answer_is_the_same_whole_and_streamed(vendor: Vendor, server: ModelServer, way: Way) -> None:
    vendor.answer(server, vendor.text("It is three, as always."), cached=5)
    response = way.ask(chat_model(vendor, server), [QUESTION])
    assert response.ai_message == AiMessage("It is three, as always.")
    assert response.metadata.finish_reason == FinishReason.STOP
    input_tokens = {"anthropic": 17, "google": 12}[vendor.name]  # Anthropic counts cached tokens apart
    assert response.metadata.token_usage == TokenUsage(input_tokens, 3, input_tokens + 3, cached_input=5)
    assert response.metadata.model_name is not None
    assert response.metadata.id in {"msg_1", "resp-1"}


@pytest.mark.parametrize(("written", "for_an_hour"), [(2_000, 0), (0, 2_000), (500, 1_500)])
def test_what_anthropic_writes_to_its_cache_is_part_of_the_input(
    server: ModelServer, way: Way, written: int, for_an_hour: int
) -> None:
    vendor = Anthropic()
    vendor.answer(server, vendor.text("It is three."), cached=10_000, written=written, for_an_hour=for_an_hour)
    usage = way.ask(chat_model(vendor, server), [QUESTION]).metadata.token_usage
    assert usage == TokenUsage(
        12_012, 3, 12_015, cached_input=10_000, cache_write=2_000, cache_write_1h=for_an_hour or None
    )


def test_the_pieces_of_a_stream_add_up_to_its_response(vendor: Vendor, server: ModelServer, stream: Way) -> None:
    vendor.answer(
        server,
        vendor.thinking("One and two, hm.", SIGNATURE),
        vendor.text("I shall add them."),
        vendor.call("c1", "add", a=1, b=2),
        vendor.call("c2", "add", a=3),
    )
    *pieces, response = stream.events(chat_model(vendor, server), [QUESTION])
    assert isinstance(response, ChatResponse)
    assert len(pieces) > 6
    message = response.ai_message
    assert "".join(each.text for each in pieces if isinstance(each, PartialText)) == message.text
    assert "".join(each.text for each in pieces if isinstance(each, PartialThinking)) == message.thinking
    calls: dict[int, dict[str, str]] = {}
    for each in pieces:
        if isinstance(each, PartialToolCall):
            call = calls.setdefault(each.index, {"id": each.id or "", "name": each.name or "", "arguments": ""})
            call["arguments"] += each.arguments
    assert list(calls.values()) == [
        {"id": each.id, "name": each.name, "arguments": each.arguments} for each in message.tool_execution_requests
    ]
    assert [json.loads(each.arguments or "") for each in message.tool_execution_requests] == [
        {"a": 1, "b": 2},
        {"a": 3},
    ]
    assert response.metadata.finish_reason == FinishReason.TOOL_EXECUTION or vendor.name == "google"


@by_turns(
    "vendor_name, sent, expected",
    [
        ("anthropic", "max_tokens", FinishReason.LENGTH),
        ("anthropic", "stop_sequence", FinishReason.STOP),
        ("anthropic", "refusal", FinishReason.CONTENT_FILTER),
        ("google", "MAX_TOKENS", FinishReason.LENGTH),
        ("google", "SAFETY", FinishReason.CONTENT_FILTER),
        ("google", "MALFORMED_FUNCTION_CALL", FinishReason.OTHER),
    ],
)
def test_the_reason_of_the_end_is_reported(
    vendor_name: str, sent: str, expected: FinishReason, server: ModelServer, way: Way
) -> None:
    vendor = VENDORS[vendor_name]
    vendor.answer(server, vendor.text("It is"), reason=sent)
    assert way.ask(chat_model(vendor, server), [QUESTION]).metadata.finish_reason == expected


@whole_and_streamed
def test_settings_of_the_request_replace_those_of_the_model(vendor: Vendor, server: ModelServer, way: Way) -> None:
    vendor.answer(server, vendor.text("Three."))
    model = PydanticAiChatModel(_old(vendor, server), temperature=0.1, max_tokens=5, max_retries=0)
    way.ask(model, ChatRequest(messages=(QUESTION,), temperature=0.5, top_p=None, stop_sequences=("END", "\n\n")))
    body = server.requests[0].body
    if vendor.name == "anthropic":
        assert (body["temperature"], body["max_tokens"], body["stop_sequences"]) == (0.5, 5, ["END", "\n\n"])
    else:
        config = body["generationConfig"]
        assert (config["temperature"], config["maxOutputTokens"], config["stopSequences"]) == (0.5, 5, ["END", "\n\n"])


@whole_and_streamed
def test_system_tools_calls_and_results_are_sent_in_the_vendors_form(
    vendor: Vendor, server: ModelServer, way: Way
) -> None:
    vendor.answer(server, vendor.text("Three."))
    calls = [ToolExecutionRequest("c1", "add", '{"a": 1}'), ToolExecutionRequest("c2", "add", '{"a": 2}')]
    history = [
        SystemMessage("Be brief."),
        QUESTION,
        AiMessage(tool_execution_requests=calls),
        ToolExecutionResultMessage.from_request(calls[0], "1"),
        ToolExecutionResultMessage("c2", "add", "No.", True),
        AiMessage(None),
        UserMessage("Well?"),
    ]
    way.ask(chat_model(vendor, server), ChatRequest(messages=tuple(history), tools=(ADD,)))
    body = server.requests[0].body
    if vendor.name == "anthropic":
        assert "Be brief." in json.dumps(body["system"])
        assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
        results = body["messages"][2]["content"]
        assert [(each["type"], each.get("tool_use_id"), each.get("is_error")) for each in results] == [
            ("tool_result", "c1", False),
            ("tool_result", "c2", True),
            ("text", None, None),
        ]
        assert body["tools"][0]["name"] == "add"
        assert body["tools"][0]["input_schema"]["required"] == ["a"]
    else:
        assert "Be brief." in json.dumps(body["systemInstruction"])
        assert body["contents"][1]["role"] == "model"
        after = [part for content in body["contents"][2:] for part in content["parts"]]
        assert [set(part) for part in after] == [{"functionResponse"}, {"functionResponse"}, {"text"}]
        assert body["tools"][0]["functionDeclarations"][0]["name"] == "add"


@pytest.mark.parametrize(
    ("choice", "anthropic", "google"),
    [
        (ToolChoice.AUTO, {"type": "auto"}, "AUTO"),
        (ToolChoice.REQUIRED, {"type": "any"}, "ANY"),
        (ToolChoice.NONE, {"type": "none"}, "NONE"),
        ("add", {"type": "tool", "name": "add"}, "ANY"),
    ],
)
def test_the_choice_of_a_tool_is_sent(
    choice: ToolChoice | str, anthropic: dict[str, Any], google: str, vendor: Vendor, server: ModelServer
) -> None:
    vendor.answer(server, vendor.text("Three."))
    tools = (ADD, ToolSpecification("multiply"))
    model = PydanticAiChatModel(_old(vendor, server), max_retries=0)
    model.chat(ChatRequest(messages=(QUESTION,), tools=tools, tool_choice=choice))
    body = server.requests[0].body
    if vendor.name == "anthropic":
        assert body["tool_choice"] == anthropic
    elif choice is not ToolChoice.NONE:
        sent = body["toolConfig"]["functionCallingConfig"]
        assert sent["mode"] in {google, "VALIDATED" if google == "AUTO" else google}
        assert sent.get("allowedFunctionNames") in (["add"] if choice == "add" else ["add", "multiply"], None)
    else:
        config = body.get("toolConfig", {}).get("functionCallingConfig", {})
        assert config.get("mode") == "NONE" or not body.get("tools")


@whole_and_streamed
def test_a_typed_answer_is_asked_for_by_its_schema(vendor: Vendor, server: ModelServer, way: Way) -> None:
    vendor.answer(server, vendor.text('{"city": "Paris"}'))
    request = ChatRequest(messages=(QUESTION,), response_format=ResponseFormat(SCHEMA, "place"))
    assert way.ask(chat_model(vendor, server), request).ai_message.text == '{"city": "Paris"}'
    body = server.requests[0].body
    if vendor.name == "anthropic":
        sent = body.get("output_config", {}).get("format") or body.get("output_format")
        assert sent["type"] == "json_schema"
        assert sent["schema"]["properties"]["city"] == {"type": "string"}
    else:
        assert body["generationConfig"]["responseMimeType"] == "application/json"
        assert "city" in json.dumps(body["generationConfig"])


def test_json_without_a_schema_is_asked_for_in_the_prompt(vendor: Vendor, server: ModelServer) -> None:
    vendor.answer(server, vendor.text("{}"))
    chat_model(vendor, server).chat(ChatRequest(messages=(QUESTION,), response_format=ResponseFormat()))
    assert "JSON" in json.dumps(server.requests[0].body)


@whole_and_streamed
def test_images_and_documents_are_sent(vendor: Vendor, server: ModelServer, way: Way) -> None:
    vendor.answer(server, vendor.text("A dot."))
    pdf = base64.b64encode(b"%PDF-1.4 a page").decode()
    contents = [
        TextContent("Look:"),
        ImageContent(Image(base64_data=PIXEL, mime_type="image/png")),
        PdfFileContent(PdfFile(base64_data=pdf)),
    ]
    way.ask(chat_model(vendor, server), [UserMessage(contents)])
    body = server.requests[0].body
    if vendor.name == "anthropic":
        _, image, document = body["messages"][0]["content"]
        assert image["source"] == {"type": "base64", "media_type": "image/png", "data": PIXEL}
        assert document["source"] == {"type": "base64", "media_type": "application/pdf", "data": pdf}
    else:
        parts = body["contents"][0]["parts"]
        data = [part["inlineData"] for part in parts if "inlineData" in part]
        assert [each["mime_type"] for each in data] == ["image/png", "application/pdf"]
        assert base64.urlsafe_b64decode(data[1]["data"]) == b"%PDF-1.4 a page"


def test_urls_of_images_and_documents_are_sent_to_anthropic(server: ModelServer) -> None:
    vendor = VENDORS["anthropic"]
    vendor.answer(server, vendor.text("A dot."))
    contents = [
        TextContent("Look:"),
        ImageContent(Image(url="https://example.com/a.png")),
        PdfFileContent(PdfFile(url="https://example.com/a.pdf")),
    ]
    chat_model(vendor, server).chat([UserMessage(contents)])
    _, image, document = server.requests[0].body["messages"][0]["content"]
    assert image["source"] == {"type": "url", "url": "https://example.com/a.png"}
    assert document["source"] == {"type": "url", "url": "https://example.com/a.pdf"}


def test_a_file_without_content_is_refused_before_anything_is_sent(vendor: Vendor, server: ModelServer) -> None:
    message = UserMessage([TextContent("Look, a secret:"), PdfFileContent(PdfFile())])
    with pytest.raises(InvalidRequestError, match=r"messages\[1\] has a file without its content") as caught:
        chat_model(vendor, server).chat([QUESTION, message])
    assert "secret" not in str(caught.value)
    assert not server.requests


REFUSALS: list[tuple[str, int, str, str, type[ChatModelError]]] = [
    ("anthropic", 401, "authentication_error", "", AuthenticationError),
    ("anthropic", 403, "permission_error", "", AuthenticationError),
    ("anthropic", 404, "not_found_error", "", InvalidRequestError),
    ("anthropic", 400, "invalid_request_error", "", InvalidRequestError),
    (
        "anthropic",
        400,
        "invalid_request_error",
        "prompt is too long: 250000 tokens > 200000 maximum",
        ContextLengthError,
    ),
    ("anthropic", 413, "request_too_large", "", InvalidRequestError),
    ("anthropic", 429, "rate_limit_error", "", RateLimitError),
    ("anthropic", 500, "api_error", "", UnavailableError),
    ("anthropic", 529, "overloaded_error", "", UnavailableError),
    ("google", 401, "UNAUTHENTICATED", "", AuthenticationError),
    ("google", 403, "PERMISSION_DENIED", "", AuthenticationError),
    ("google", 404, "NOT_FOUND", "", InvalidRequestError),
    ("google", 400, "INVALID_ARGUMENT", "", InvalidRequestError),
    (
        "google",
        400,
        "INVALID_ARGUMENT",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        ContextLengthError,
    ),
    ("google", 429, "RESOURCE_EXHAUSTED", "", RateLimitError),
    ("google", 500, "INTERNAL", "", UnavailableError),
    ("google", 503, "UNAVAILABLE", "", UnavailableError),
]


@by_turns("vendor_name, status, kind, words, expected", REFUSALS)
def test_a_refusal_is_an_error_by_its_status(
    vendor_name: str,
    status: int,
    kind: str,
    words: str,
    expected: type[ChatModelError],
    server: ModelServer,
    way: Way,
) -> None:
    vendor = VENDORS[vendor_name]
    vendor.refuse(server, status, kind, words)
    with pytest.raises(ChatModelError) as caught:
        way.ask(chat_model(vendor, server), [UserMessage("The user's secret words")])
    assert type(caught.value) is expected
    assert "secret" not in str(caught.value)
    assert KEY not in str(caught.value)
    assert len(server.requests) == 1


@whole_and_streamed
def test_the_wait_that_a_server_asks_for_is_reported(server: ModelServer, way: Way) -> None:
    Anthropic().refuse(server, 429, "rate_limit_error", retry_after="7")
    with pytest.raises(RateLimitError) as caught:
        way.ask(chat_model(VENDORS["anthropic"], server), [QUESTION])
    assert caught.value.retry_after == 7


def test_the_wait_that_google_asks_for_is_reported(server: ModelServer) -> None:
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "9s"}
    VENDORS["google"].refuse(server, 429, "RESOURCE_EXHAUSTED", "", info)  # type: ignore[call-arg, arg-type]
    with pytest.raises(RateLimitError) as caught:
        chat_model(VENDORS["google"], server).chat([QUESTION])
    assert caught.value.retry_after == 9


@whole_and_streamed
@pytest.mark.parametrize("limit", ["timeout", "request_timeout"])
def test_a_server_that_is_silent_is_a_timeout(vendor: Vendor, server: ModelServer, way: Way, limit: str) -> None:
    server.reply(Step.AWAIT_CLIENT)
    model = chat_model(vendor, server, **{limit: 0.2})
    for _ in range(PATIENCE):  # on a busy machine, that may end before the connection begins
        with pytest.raises(ModelTimeoutError):
            way.ask(model, [QUESTION])
        if server.client_has_left.wait(1):
            return
    pytest.fail("The client has not left.")


@whole_and_streamed
def test_a_server_that_is_not_there_is_unavailable(vendor: Vendor, server: ModelServer, way: Way) -> None:
    model = chat_model(vendor, server)
    server.shutdown()
    server.server_close()
    with pytest.raises(UnavailableError):
        way.ask(model, [QUESTION])


@whole_and_streamed
def test_a_server_that_sends_a_web_page_is_unavailable(vendor: Vendor, server: ModelServer, way: Way) -> None:
    server.reply(b"<html>secret</html>", headers={"content-type": "text/html"})
    with pytest.raises((UnavailableError, BrokenStreamError)) as caught:
        way.ask(chat_model(vendor, server), [QUESTION])
    assert "secret" not in str(caught.value)


def _begun(vendor: Vendor, server: ModelServer) -> list[bytes]:
    """Return the beginning of a stream, which has some text."""
    vendor.answer(server, vendor.text("It is three, as always."))
    make = server.replies.pop()
    path = "/v1beta/models/x:streamGenerateContent?alt=sse"
    parts = [part for part in make(Request(path, {}, {"stream": True})).parts if isinstance(part, bytes)]
    return parts[:4] if vendor.name == "anthropic" else parts[:2]


@pytest.mark.parametrize("then", ["break", "end"])
def test_a_stream_that_ends_too_early_is_broken(vendor: Vendor, server: ModelServer, stream: Way, then: str) -> None:
    server.reply(*_begun(vendor, server), *([Step.BREAK] if then == "break" else []))
    with pytest.raises(BrokenStreamError):
        stream.ask(chat_model(vendor, server), [QUESTION])


def test_an_error_in_the_middle_of_a_stream_is_reported(server: ModelServer, stream: Way) -> None:
    error = event("error", error={"type": "overloaded_error", "message": "secret words of the server"})
    server.reply(*_begun(VENDORS["anthropic"], server), error)
    with pytest.raises(BrokenStreamError) as caught:
        stream.ask(chat_model(VENDORS["anthropic"], server), [QUESTION])
    assert "secret" not in str(caught.value)


def test_closing_a_stream_closes_its_call(vendor: Vendor, server: ModelServer) -> None:
    server.reply(*_begun(vendor, server), Step.AWAIT_CLIENT)
    events = chat_model(vendor, server).stream([QUESTION])
    assert isinstance(next(events), PartialText)
    assert not server.client_has_left.is_set()
    events.close()
    assert server.client_has_left.wait(PATIENCE)


def test_a_stream_that_nobody_reads_any_more_closes_its_call(vendor: Vendor, server: ModelServer) -> None:
    server.reply(*_begun(vendor, server), Step.AWAIT_CLIENT)
    events = chat_model(vendor, server).stream([QUESTION])
    next(events)
    del events
    gc.collect()
    assert server.client_has_left.wait(PATIENCE)


def test_closing_an_asynchronous_stream_closes_its_call(vendor: Vendor, server: ModelServer) -> None:
    server.reply(*_begun(vendor, server), Step.AWAIT_CLIENT)

    async def read() -> None:
        async with aclosing(chat_model(vendor, server).astream([QUESTION])) as events:
            assert isinstance(await anext(events), PartialText)

    asyncio.run(read())
    assert server.client_has_left.wait(PATIENCE)


@pytest.mark.parametrize("name", ["achat", "astream"])
def test_cancelling_the_task_closes_the_call(vendor: Vendor, server: ModelServer, name: str) -> None:
    server.reply(Step.AWAIT_CLIENT)

    async def cancelled() -> None:
        way, model = Way(name), chat_model(vendor, server)
        task = asyncio.create_task(way._collected(model, [QUESTION]) if name == "astream" else model.achat([QUESTION]))
        while not server.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert server.client_has_left.wait(PATIENCE)


def test_calls_of_all_threads_and_loops_share_a_connection(vendor: Vendor, server: ModelServer) -> None:
    vendor.answer(server, vendor.text("Three."))
    model = chat_model(vendor, server)
    assert model.chat([QUESTION]).ai_message.text == "Three."
    assert model.chat([QUESTION]).ai_message.text == "Three."
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(model.chat, [QUESTION]).result().ai_message.text == "Three."
    for name in ("achat", "astream", "stream", "achat"):
        assert Way(name).ask(model, [QUESTION]).ai_message.text == "Three."
    assert len(server.requests) == 7
    assert len(server.connections) == 1


def test_a_sync_call_works_inside_a_running_loop_and_in_a_thread_beside_it(vendor: Vendor, server: ModelServer) -> None:
    vendor.answer(server, vendor.text("Three."))
    model = chat_model(vendor, server)

    async def ask() -> list[str | None]:
        here = model.chat([QUESTION]).ai_message.text
        events = list(model.stream([QUESTION]))
        streamed = "".join(each.text for each in events if isinstance(each, PartialText))
        beside = await asyncio.to_thread(model.chat, [QUESTION])
        return [here, streamed, beside.ai_message.text, (await model.achat([QUESTION])).ai_message.text]

    assert asyncio.run(ask()) == ["Three."] * 4
    assert asyncio.run(ask()) == ["Three."] * 4


def test_many_threads_can_ask_at_once(vendor: Vendor, server: ModelServer) -> None:
    vendor.answer(server, vendor.text("Three."))
    model = chat_model(vendor, server)
    begin = threading.Barrier(8)

    def ask(_: int) -> str | None:
        begin.wait(PATIENCE)
        return Way("stream").ask(model, [QUESTION]).ai_message.text

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == ["Three."] * 8


def test_a_model_that_is_gone_closes_its_connections(vendor: Vendor, server: ModelServer) -> None:
    vendor.answer(server, vendor.text("Three."))
    model = chat_model(vendor, server)
    model.chat([QUESTION])
    del model
    gc.collect()
    assert server.a_connection_is_closed()


def test_a_stream_without_any_event_is_an_error(vendor: Vendor, server: ModelServer, stream: Way) -> None:
    server.replies.append(lambda _: Reply((b"",), headers=SSE))
    with pytest.raises(ChatModelError):
        stream.ask(chat_model(vendor, server), [QUESTION])


def test_a_request_can_name_another_model_of_the_vendor(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url.removesuffix("/v1"))
    VENDORS["anthropic"].answer(server, VENDORS["anthropic"].text("Three."))
    model = PydanticAiChatModel("anthropic:claude-sonnet-5-5", max_retries=0)
    assert not model.lacks_key
    model.chat([QUESTION])
    model.chat(ChatRequest(messages=(QUESTION,), model_name="claude-haiku-5-5"))
    assert [request.body["model"] for request in server.requests] == ["claude-sonnet-5-5", "claude-haiku-5-5"]
    assert KEY in json.dumps(server.requests[0].headers)


def test_a_model_that_was_given_cannot_be_another_one(vendor: Vendor, server: ModelServer) -> None:
    with pytest.raises(InvalidRequestError, match="model_name is 'other', but this model can only be"):
        chat_model(vendor, server).chat(ChatRequest(messages=(QUESTION,), model_name="other"))


@whole_and_streamed
def test_a_missing_key_is_reported_when_the_model_is_called(monkeypatch: pytest.MonkeyPatch, way: Way) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    model = PydanticAiChatModel("anthropic:claude-sonnet-5-5")
    assert model.lacks_key
    with pytest.raises(AuthenticationError, match="ANTHROPIC_API_KEY"):
        way.ask(model, [QUESTION])


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("claude-sonnet-5-5", ValueError, "put the vendor before it"),
        ("nobody:nothing", ValueError, "nobody"),
    ],
)
def test_a_name_that_is_no_model_is_refused(name: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        PydanticAiChatModel(name)


def test_a_vendor_whose_package_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [each for each in sys.modules if each.partition(".")[0] == "mistralai"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mistralai", None)
    monkeypatch.delitem(sys.modules, "pydantic_ai.providers.mistral", raising=False)
    with pytest.raises(ImportError, match=r"pydantic-ai-slim\[mistral\]"):
        PydanticAiChatModel("mistral:mistral-large-latest")


@whole_and_streamed
def test_an_error_of_a_function_is_an_error_of_the_model(way: Way) -> None:
    def fail(*_: object) -> Any:
        raise KeyError("secret")

    async def fail_later(*_: object) -> Any:
        raise KeyError("secret")
        yield ""

    with pytest.raises(ChatModelError, match="KeyError") as caught:
        way.ask(PydanticAiChatModel(FunctionModel(fail, stream_function=fail_later)), [QUESTION])
    assert "secret" not in str(caught.value)


class ParamValidationError(Exception):
    """What botocore calls its error for a request that Bedrock would refuse."""


@whole_and_streamed
@pytest.mark.parametrize("error", [NotImplementedError, ParamValidationError])
def test_what_the_vendor_does_not_support_is_an_invalid_request(way: Way, error: type[Exception]) -> None:
    def refuse(*_: object) -> Any:
        raise error("secret")

    async def refuse_in_stream(*_: object) -> Any:
        raise error("secret")
        yield ""

    with pytest.raises(InvalidRequestError) as caught:
        way.ask(PydanticAiChatModel(FunctionModel(refuse, stream_function=refuse_in_stream)), [QUESTION])
    assert "secret" not in str(caught.value)


def _old(vendor: Vendor, server: ModelServer) -> Any:
    """Return a model that still takes a temperature."""
    return vendor.model(server, {"anthropic": "claude-sonnet-4-6", "google": "gemini-3.8-flash"}[vendor.name])


class TestAProcess:
    @pytest.mark.slow
    def test_has_its_own_connections_after_a_fork(self, server: ModelServer) -> None:
        VENDORS["anthropic"].answer(server, VENDORS["anthropic"].text("Three."))

        output = run(
            server,
            """
            assert model.chat("hi") == "Three."
            child = os.fork()
            assert [model.chat("still there?") for _ in range(3)] == ["Three."] * 3
            if not child:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            """,
        )

        assert output == ""
        assert len(server.connections) == 2

    @pytest.mark.slow
    def test_ends_by_itself_also_during_a_stream(self, server: ModelServer) -> None:
        server.reply(*_begun(VENDORS["anthropic"], server), Step.AWAIT_CLIENT)

        assert run(server, 'events = model.stream("hi")\nnext(events)') == ""
        assert server.client_has_left.wait(PATIENCE)

    def test_without_pydantic_ai_names_what_to_install(self) -> None:
        output = python("import sys; sys.modules['pydantic_ai'] = None; import chatmemory_django.chat.pydantic_ai")

        assert output.splitlines()[-1].startswith("ImportError: PydanticAiChatModel requires pydantic-ai")
        assert "pip install 'chatmemory_django[pydantic-ai]' 'pydantic-ai-slim[anthropic]'" in output


def run(server: ModelServer, script: str) -> str:
    """Return the output of a process that creates a model and runs *script*."""
    beginning = (
        "import asyncio, os\n"
        f"os.environ.update(ANTHROPIC_API_KEY='k', ANTHROPIC_BASE_URL={server.url.removesuffix('/v1')!r})\n"
        "from chatmemory_django.chat.pydantic_ai import PydanticAiChatModel\n"
        "model = PydanticAiChatModel('anthropic:claude-sonnet-5-5')\n"
    )
    return python(beginning + dedent(script))


@whole_and_streamed
def test_the_last_error_of_several_models_is_reported(way: Way) -> None:
    def fail(*_: object) -> Any:
        raise ModelHTTPError(503, "one")

    def refuse(*_: object) -> Any:
        raise ModelHTTPError(401, "two", headers={"secret": "secret"})

    async def fail_in_stream(*_: object) -> Any:
        raise ModelHTTPError(503, "one")
        yield ""

    async def refuse_in_stream(*_: object) -> Any:
        raise ModelHTTPError(401, "two")
        yield ""

    several = FallbackModel(
        FunctionModel(fail, stream_function=fail_in_stream), FunctionModel(refuse, stream_function=refuse_in_stream)
    )
    with pytest.raises((AuthenticationError, UnavailableError)) as caught:
        way.ask(PydanticAiChatModel(several), [QUESTION])
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value, AuthenticationError) or way.is_stream


def test_texts_with_something_between_them_are_paragraphs_in_a_stream_too() -> None:
    async def answer(*_: object) -> Any:
        yield "One."
        yield {1: DeltaThinkingPart(content="Hm.")}
        yield "Two."

    *pieces, response = PydanticAiChatModel(FunctionModel(stream_function=answer)).stream([QUESTION])
    assert isinstance(response, ChatResponse)
    assert "".join(each.text for each in pieces if isinstance(each, PartialText)) == response.ai_message.text


class TestUsageOfOpenAiCompatibleServers:
    def model(self, server: ModelServer, name: str) -> Model:
        model = OpenAIChatModel("m", provider=OpenAIProvider(api_key=KEY, base_url=server.url))
        return FallbackModel(model, model) if name == "a FallbackModel" else model

    @pytest.mark.parametrize("name", ["an OpenAIChatModel", "a FallbackModel"])
    def test_of_running_totals_the_last_one_counts(self, server: ModelServer, stream: Way, name: str) -> None:
        pieces = [chunk({"content": "a "}, usage=usage) for usage in TOTALS]
        server.reply(*pieces, chunk(finish_reason="stop", usage=TOTALS[-1]), chunk(usage=TOTALS[-1]), DONE)

        response = stream.ask(PydanticAiChatModel(self.model(server, name), max_retries=0), [QUESTION])

        assert response.metadata.token_usage == TokenUsage(1_000, 50, 1_050)

    def test_a_usage_at_the_end_alone_counts_and_so_does_one_before_the_end(
        self, server: ModelServer, stream: Way
    ) -> None:
        model = PydanticAiChatModel(self.model(server, ""), max_retries=0)
        server.reply(chunk({"content": "a"}), chunk(finish_reason="stop"), chunk(usage=TOTALS[-1]), DONE)
        server.reply(chunk({"content": "a"}, usage=TOTALS[0]), chunk(finish_reason="stop"), DONE)

        assert stream.ask(model, [QUESTION]).metadata.token_usage == TokenUsage(1_000, 50, 1_050)
        assert stream.ask(model, [QUESTION]).metadata.token_usage == TokenUsage(1_000, 1, 1_001)

    def test_the_server_is_asked_for_a_usage_at_the_end(self, server: ModelServer, stream: Way) -> None:
        server.reply(chunk({"content": "a"}), chunk(finish_reason="stop"), DONE)
        stream.ask(PydanticAiChatModel(self.model(server, ""), max_retries=0), [QUESTION])

        assert server.requests[0].body["stream_options"] == {"include_usage": True}


def test_of_the_running_totals_of_google_the_last_one_counts(server: ModelServer, stream: Way) -> None:
    vendor = Google()
    totals = [
        {"promptTokenCount": 1_000, "candidatesTokenCount": each, "totalTokenCount": 1_000 + each} for each in (1, 9)
    ]
    first, last = (vendor.chunk({"text": "a "}, usage=usage) for usage in totals)
    last["candidates"][0]["finishReason"] = "STOP"
    server.reply(data(first), data(last))
    assert stream.ask(chat_model(vendor, server), [QUESTION]).metadata.token_usage == TokenUsage(1_000, 9, 1_009)
