"""The errors that OpenAiChatModel raises, and the requests that it retries."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import openai
import pytest

from chatmemory_django.chat.model import (
    AuthenticationError,
    ChatModelError,
    ContextLengthError,
    InvalidRequestError,
    ModelTimeoutError,
    PartialText,
    RateLimitError,
    UnavailableError,
)
from chatmemory_django.chat.openai import OpenAiChatModel
from chatmemory_django.messages import AiMessage
from tests.faces.chat.conftest import Way, by_turns
from tests.faces.chat.openai.test_openai_requests import HI, model_at
from tests.faces.chat.server import ModelServer, Step, chunk, refusal

AT_ONCE = {"retry-after-ms": "1"}


class TestAnErrorStatus:
    @by_turns(
        "status, error, expected",
        [
            (400, {}, InvalidRequestError),
            (400, {"code": "context_length_exceeded"}, ContextLengthError),
            (400, {"type": "exceed_context_size_error"}, ContextLengthError),
            (400, {"message": "This model's maximum context length is 8 secret tokens."}, ContextLengthError),
            (401, {"code": "invalid_api_key"}, AuthenticationError),
            (402, {}, RateLimitError),
            (403, {}, AuthenticationError),
            (404, {"code": "model_not_found"}, InvalidRequestError),
            (408, {}, ModelTimeoutError),
            (409, {}, UnavailableError),
            (413, {}, InvalidRequestError),
            (422, {}, InvalidRequestError),
            (429, {}, RateLimitError),
            (500, {}, UnavailableError),
            (503, {}, UnavailableError),
            (529, {"type": "overloaded_error"}, UnavailableError),
        ],
    )
    def test_raises_without_repeating_the_servers_words(
        self, server: ModelServer, way: Way, status: int, error: dict[str, Any], expected: type[ChatModelError]
    ):
        server.reply_json(refusal(**error), status)

        with pytest.raises(expected) as caught:
            way.ask(model_at(server, max_retries=0), HI)

        assert type(caught.value) is expected
        assert isinstance(caught.value.__cause__, openai.APIStatusError)
        for private in ("secret", "127.0.0.1", str(server.server_port), "gpt-test"):
            assert private not in str(caught.value)

    @pytest.mark.parametrize("body", [b"", b"<html>Bad gateway", b'{"error": "x"}', b"[]", b'{"detail": []}'])
    def test_raises_for_any_body(self, server: ModelServer, body: bytes):
        server.reply(body or b"\n", status=400)

        with pytest.raises(InvalidRequestError, match="status 400"):
            model_at(server).chat("hi")

    @pytest.mark.parametrize(
        ("header", "seconds"),
        [("20", 20.0), ("0.5", 0.5), ("-3", 0.0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0)]
        + [(header, None) for header in ("", "soon", "nan", "inf", "Thu, 99 Jan 1970 00:00:00 GMT")],
    )
    def test_429_has_the_seconds_to_wait(self, server: ModelServer, header: str, seconds: float | None):
        server.reply_json(refusal(), 429, {"retry-after": header})

        with pytest.raises(RateLimitError) as caught:
            model_at(server, max_retries=0).chat("hi")

        assert caught.value.retry_after == seconds

    def test_429_can_have_a_date_to_wait_for(self, server: ModelServer):
        date = datetime.now(UTC) + timedelta(hours=1)
        server.reply_json(refusal(), 429, {"retry-after": format_datetime(date, usegmt=True)})

        with pytest.raises(RateLimitError) as caught:
            model_at(server, max_retries=0).chat("hi")

        assert caught.value.retry_after is not None
        assert 1800 < caught.value.retry_after <= 3600


class TestRetrying:
    @by_turns("status", [(408,), (409,), (429,), (500,), (503,)])
    def test_succeeds_after_a_temporary_error(self, server: ModelServer, way: Way, status: int):
        server.reply_json(refusal(), status, AT_ONCE)
        server.answer({"content": "Hello"})

        assert way.ask(model_at(server), HI).ai_message == AiMessage("Hello")
        assert len(server.requests) == 2

    def test_stops_after_max_retries(self, server: ModelServer, way: Way):
        server.reply_json(refusal(), 500, AT_ONCE)

        with pytest.raises(UnavailableError):
            way.ask(model_at(server, max_retries=3), HI)

        assert len(server.requests) == 4

    @by_turns("status", [(400,), (401,), (402,), (403,), (404,), (422,)])
    def test_skips_permanent_errors(self, server: ModelServer, way: Way, status: int):
        server.reply_json(refusal(), status, AT_ONCE)

        with pytest.raises(ChatModelError):
            way.ask(model_at(server), HI)

        assert len(server.requests) == 1

    def test_skips_an_exhausted_quota(self, server: ModelServer, way: Way):
        server.reply_json(refusal(code="insufficient_quota"), 429, AT_ONCE)

        with pytest.raises(
            RateLimitError, match=r"^The model's server rejected the request: the quota is exhausted\.$"
        ):
            way.ask(model_at(server), HI)

        assert len(server.requests) == 1


class TestNoAnswer:
    def test_in_time_raises_and_ends_the_request(self, server: ModelServer, way: Way):
        server.reply(Step.AWAIT_CLIENT)

        with pytest.raises(ModelTimeoutError, match=r"^The model's server did not answer in time\.$"):
            way.ask(model_at(server, timeout=0.1, max_retries=0), HI)

        assert server.client_has_left.wait(30)

    @pytest.mark.slow
    def test_in_time_during_a_stream_raises(self, server: ModelServer):
        server.reply(chunk({"content": "Hel"}), Step.AWAIT_CLIENT)
        events = model_at(server, timeout=5, max_retries=5).stream("hi")

        assert next(events) == PartialText("Hel")
        with pytest.raises(ModelTimeoutError):
            next(events)

        assert server.client_has_left.wait(30)
        assert len(server.requests) == 1

    def test_from_a_server_that_hangs_up_raises(self, server: ModelServer, way: Way):
        server.reply(Step.BREAK)

        with pytest.raises(UnavailableError, match=r"^The connection to the model's server failed or was lost\.$"):
            way.ask(model_at(server, max_retries=0), HI)

    def test_from_a_missing_server_raises(self, way: Way):
        with socket.create_server(("127.0.0.1", 0)) as closed_soon:
            port = closed_soon.getsockname()[1]
        model = OpenAiChatModel("gpt-test", base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0)

        with pytest.raises(UnavailableError):
            way.ask(model, HI)

    def test_from_a_server_that_accepts_no_connections_raises(self, way: Way, full_port: int):
        model = OpenAiChatModel(
            "gpt-test", base_url=f"http://127.0.0.1:{full_port}/v1", api_key="k", connect_timeout=0.1, max_retries=0
        )

        with pytest.raises(ModelTimeoutError):
            way.ask(model, HI)

    def test_without_a_key_raises_and_names_the_setting(
        self, server: ModelServer, way: Way, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)

        with pytest.raises(AuthenticationError, match=r"^There is no API key; set OPENAI_API_KEY or pass api_key\."):
            way.ask(OpenAiChatModel("gpt-test", base_url=server.url), HI)

        assert server.requests == []

    def test_with_an_invalid_key_raises(self, server: ModelServer, way: Way):
        with pytest.raises(AuthenticationError, match=r"^The API key contains a character that is not ASCII"):
            way.ask(OpenAiChatModel("gpt-test", base_url=server.url, api_key="“secret”"), HI)

        assert server.requests == []


@pytest.fixture
def full_port() -> Iterator[int]:
    """Yield a port on which something listens with a full queue."""
    with ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
