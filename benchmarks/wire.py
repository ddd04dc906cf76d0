"""What the clients of Anthropic and Bedrock send, without a server, and its blocks in the order of a prompt cache."""

from __future__ import annotations

import json
import struct
from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import boto3
import httpx2
from botocore.awsrequest import AWSResponse
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.bedrock import BedrockConverseModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.bedrock import BedrockProvider

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore.awsrequest import AWSPreparedRequest
    from pydantic_ai.models import Model

KEY = "no-key"
CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"


class Block(NamedTuple):
    """A piece of a request, and whether a breakpoint is behind it."""

    place: str
    text: str
    is_marked: bool


class Anthropic:
    """Anthropic's Messages API, which answers everything with a word."""

    def __init__(self, name: str = "claude-sonnet-5-5") -> None:
        self.body: dict[str, Any] = {}
        client = httpx2.AsyncClient(transport=httpx2.MockTransport(self._answer))
        self.model: Model = AnthropicModel(name, provider=AnthropicProvider(api_key=KEY, http_client=client))

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.body = json.loads(request.content)
        content = {"type": "text", "text": "Yes."}
        answer = {"id": "m", "type": "message", "role": "assistant", "model": self.body["model"], "content": []}
        usage = {"input_tokens": 1, "output_tokens": 1}
        if not self.body.get("stream"):
            end = {"content": [content], "stop_reason": "end_turn", "usage": usage}
            return httpx2.Response(200, json={**answer, **end})
        events: dict[str, dict[str, Any]] = {
            "message_start": {"message": {**answer, "usage": usage}},
            "content_block_start": {"index": 0, "content_block": content},
            "content_block_stop": {"index": 0},
            "message_delta": {"delta": {"stop_reason": "end_turn"}, "usage": usage},
            "message_stop": {},
        }
        lines = [f"event: {kind}\ndata: {json.dumps({'type': kind, **rest})}\n\n" for kind, rest in events.items()]
        return httpx2.Response(200, text="".join(lines), headers={"content-type": "text/event-stream"})

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of the last request."""
        system = self.body.get("system", [])
        blocks = [("tools", each) for each in self.body.get("tools", [])]
        texts = [{"type": "text", "text": system}] if isinstance(system, str) else system
        blocks += [("system", each) for each in texts]
        blocks += [(message["role"], each) for message in self.body["messages"] for each in message["content"]]
        for index, (place, each) in enumerate(blocks):
            rest = {name: value for name, value in each.items() if name != "cache_control"}
            at_end = "cache_control" in self.body and index == len(blocks) - 1
            yield Block(place, json.dumps(rest, sort_keys=True), "cache_control" in each or at_end)


class Bedrock:
    """Bedrock's Converse API."""

    def __init__(self, name: str = CLAUDE) -> None:
        self.body: dict[str, Any] = {}
        client = boto3.client(
            "bedrock-runtime", region_name="us-east-1", aws_access_key_id=KEY, aws_secret_access_key=KEY
        )
        client.meta.events.register("before-send.bedrock-runtime", self._answer)
        self.model: Model = BedrockConverseModel(name, provider=BedrockProvider(bedrock_client=client))

    def _answer(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        self.body = json.loads(request.body)
        usage = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
        message = {"role": "assistant", "content": [{"text": "Yes."}]}
        end = {"stopReason": "end_turn"}
        if request.url.endswith("/converse"):
            content = json.dumps({"output": {"message": message}, **end, "usage": usage, "metrics": {}}).encode()
            return AWSResponse(request.url, 200, {"content-type": "application/json"}, _Raw(content))
        events: dict[str, dict[str, Any]] = {
            "messageStart": {"role": "assistant"},
            "contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "Yes."}},
            "contentBlockStop": {"contentBlockIndex": 0},
            "messageStop": end,
            "metadata": {"usage": usage, "metrics": {"latencyMs": 1}},
        }
        content = b"".join(_event(kind, fields) for kind, fields in events.items())
        return AWSResponse(request.url, 200, {"content-type": "application/vnd.amazon.eventstream"}, _Raw(content))

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of the last request."""
        blocks = [("tools", each) for each in self.body.get("toolConfig", {}).get("tools", [])]
        blocks += [("system", each) for each in self.body.get("system", [])]
        blocks += [(message["role"], each) for message in self.body["messages"] for each in message["content"]]
        for (place, each), (_, behind) in pairwise([*blocks, ("", {})]):
            if "cachePoint" not in each:
                yield Block(place, json.dumps(each, sort_keys=True), "cachePoint" in behind)


class _Raw(BytesIO):
    """An answer as botocore reads it."""

    def stream(self) -> Iterator[bytes]:
        yield self.read()


def _event(kind: str, fields: dict[str, Any]) -> bytes:
    """Return an event of AWS's streams."""
    headers = b""
    for name, value in ((":event-type", kind), (":content-type", "application/json"), (":message-type", "event")):
        headers += struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", 7, len(value)) + value.encode()
    payload = json.dumps(fields).encode()
    begin = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    event = begin + struct.pack("!I", crc32(begin)) + headers + payload
    return event + struct.pack("!I", crc32(event))
