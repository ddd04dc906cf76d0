"""A model's server on loopback that sends exactly the bytes a test scripts, and records its requests."""

import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

PATIENCE = 120
"""Seconds after which a test gives up waiting."""


class Step(Enum):
    """What a server does besides sending."""

    BREAK = auto()
    """Close the connection, during the answer or before it."""

    AWAIT_CLIENT = auto()
    """Send nothing more, or nothing at all, until the client closes the connection."""


Part: TypeAlias = dict[str, Any] | bytes | Step | threading.Event
"""A chunk of a stream, raw bytes, a step, or an event to wait for before the next part."""


@dataclass
class Request:
    """A request that the server received."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Reply:
    """A scripted response."""

    parts: tuple[Part, ...] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class ModelServer(ThreadingHTTPServer):
    """Answers each request with the next reply, and repeats the last one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[Request] = []
        self.replies: deque[Callable[[Request], Reply]] = deque()
        self.connections: list[socket.socket] = []
        self.client_has_left = threading.Event()
        self.closed_connections = threading.Semaphore(0)
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def reply(self, *parts: Part, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """Send *parts* to every client, as a stream."""
        self.replies.append(lambda _: Reply(parts, status, {"content-type": "text/event-stream", **(headers or {})}))

    def reply_json(self, body: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """Send *body* to every client."""
        content = json.dumps(body).encode()
        self.replies.append(
            lambda _: Reply((content,), status, {"content-type": "application/json", **(headers or {})})
        )

    def answer(self, message: dict[str, Any], finish_reason: str | None = "stop", **others: Any) -> None:
        """Answer as OpenAI does: whole, or streamed in small pieces, as the request asks for."""
        self.replies.append(lambda request: answer_to(request, message, finish_reason, **others))

    def next_reply(self, request: Request) -> Reply:
        with self.lock:
            self.requests.append(request)
            make = self.replies.popleft() if len(self.replies) > 1 else self.replies[0]
        return make(request)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.append(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.closed_connections.release()

    def a_connection_is_closed(self) -> bool:
        """Return whether another connection gets closed before a timeout."""
        return self.closed_connections.acquire(timeout=PATIENCE)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect: tests do that."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ModelServer

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self.server.next_reply(Request(self.path, headers, json.loads(content)))
        has_begun = False
        for part in (*reply.parts, b""):
            if isinstance(part, bytes | dict) and not has_begun:
                self.begin(reply)
                has_begun = True
            self.send(part)

    def begin(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def send(self, part: Part) -> None:
        match part:
            case Step.BREAK:
                raise ConnectionAbortedError
            case Step.AWAIT_CLIENT:
                self.connection.settimeout(PATIENCE)
                with suppress(ConnectionResetError):
                    if self.rfile.read(1):
                        return
                self.server.client_has_left.set()
                raise ConnectionAbortedError
            case threading.Event():
                assert part.wait(PATIENCE)
                return
            case bytes():
                content = part
            case _:
                content = sse(part)
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))  # an empty chunk would end the answer

    def log_message(self, format: str, *args: Any) -> None:
        pass


def sse(chunk: object) -> bytes:
    return f"data: {json.dumps(chunk)}\n\n".encode()


def refusal(**error: Any) -> dict[str, Any]:
    """Return the body of a refusal, with words that no user must see."""
    return {"error": {"message": "secret words of the server", "type": None, "param": None, "code": None, **error}}


DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}


def chunk(delta: dict[str, Any] | None = None, finish_reason: str | None = None, **others: Any) -> dict[str, Any]:
    """Return a chunk of a stream as OpenAI sends it; without *delta* and *finish_reason*, one without choices."""
    choices = [{"index": 0, "delta": delta or {}, "logprobs": None, "finish_reason": finish_reason}]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1784210000,
        "model": "gpt-test-2026",
        "choices": [] if delta is None and finish_reason is None else choices,
        **others,
    }


def answer_to(
    request: Request,
    message: dict[str, Any],
    finish_reason: str | None,
    usage: dict[str, Any] | None = USAGE,
    **others: Any,
) -> Reply:
    if request.body.get("stream"):
        deltas = [{"role": "assistant", "content": ""}, *pieces_of(message)]
        parts = [*(chunk(delta, **others) for delta in deltas), chunk(finish_reason=finish_reason, **others)]
        last = [] if usage is None else [chunk(usage=usage, **others)]
        return Reply((*parts, *last, DONE), headers={"content-type": "text/event-stream; charset=utf-8"})
    whole = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1784210000,
        "model": "gpt-test-2026",
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}],
        **({} if usage is None else {"usage": usage}),
        **others,
    }
    return Reply((json.dumps(whole).encode(),), headers={"content-type": "application/json"})


def pieces_of(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield texts three characters at a time and calls two characters at a time, alternating between calls."""
    for name, value in message.items():
        if name == "tool_calls":
            for index, call in enumerate(value):
                yield {"tool_calls": [{**call, "index": index, "function": {**call["function"], "arguments": ""}}]}
            arguments = [call["function"]["arguments"] for call in value]
            for start in range(0, max(map(len, arguments)), 2):
                for index, text in enumerate(arguments):
                    if piece := text[start : start + 2]:
                        yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
        elif isinstance(value, str):
            yield from ({name: value[start : start + 3]} for start in range(0, len(value), 3))
        else:
            yield {name: value}


@contextmanager
def serving() -> Iterator[ModelServer]:
    """Run a server while the block lasts."""
    with ModelServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
            for connection in server.connections:
                with suppress(OSError):  # connections that are already closed
                    connection.shutdown(socket.SHUT_RDWR)
