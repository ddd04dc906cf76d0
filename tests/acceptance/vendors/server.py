"""A server that speaks as each vendor does, refuses what the vendor would refuse, and otherwise answers as scripted."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from unittest import mock

import httpx2
import pydantic_ai.models

from tests.acceptance.vendors.rules import VENDORS, Vendor, Violation, violations
from tests.acceptance.vendors.templates import RefusedError, has_templates, render
from tests.acceptance.vendors.turns import READERS, Asked, Json
from tests.acceptance.vendors.wire import Answer, refusal, reply
from tests.faces.chat.server import Reply, Request, serving

Script: TypeAlias = Callable[[str, Asked], Answer]
"""What a vendor's model answers to a request."""


def judge(name: str, body: Json) -> list[Violation]:
    """Return what the vendor *name* would refuse *body* for."""
    vendor = VENDORS[name]
    try:
        found = violations(vendor, READERS[vendor.api](body))
    except (AttributeError, KeyError, TypeError) as exc:
        return [Violation("shape", f"{type(exc).__name__}: {exc}")]
    return found or list(_by_template(vendor, body))


def _by_template(vendor: Vendor, body: Json) -> Iterator[Violation]:
    if vendor.template is not None and has_templates():
        try:
            render(vendor.template, body, takes_files=bool(vendor.files))
        except RefusedError as exc:
            yield Violation("template", str(exc))


@dataclass
class Vendors:
    """The vendors behind one address: a path begins with the name of one of them."""

    root: str
    script: Script = lambda name, asked: Answer("Well.")
    refused: list[tuple[str, Violation, Json]] = field(default_factory=list)
    """The vendor, the rule and the body of each request that was refused since this was last emptied."""
    counts: Counter[str] = field(default_factory=Counter)
    """The requests of each vendor."""
    last: Json = field(default_factory=dict)
    """The body of the last request."""
    digest: Any = field(default_factory=hashlib.sha256)
    """Of the bodies of all requests."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def url(self, name: str, version: str = "") -> str:
        return f"{self.root}/{name}{version}"

    def reply(self, request: Request) -> Reply:
        name = request.path.split("/")[1]
        vendor = VENDORS[name]
        with self._lock:
            self.counts[name] += 1
            self.last = request.body
            self.digest.update(json.dumps(request.body).encode())
            found = judge(name, request.body)
            if found:
                self.refused.append((name, found[0], request.body))
                return refusal(vendor.api, found[0])
            answer = self.script(name, READERS[vendor.api](request.body))
            return reply(vendor.api, name, self.counts[name], request, answer)


async def _linked(url: str, *, allow_local: bool) -> httpx2.Response:
    """Return the file at *url*, which pydantic-ai fetches for vendors that take none."""
    return httpx2.Response(200, content=b"the content of a file", request=httpx2.Request("GET", url))


@contextmanager
def vendors() -> Iterator[Vendors]:
    """Run the server while the block lasts."""
    with serving() as server, mock.patch.object(pydantic_ai.models, "_download_within_request_budget", _linked):
        behind = Vendors(server.url.removesuffix("/v1"))

        def answer(request: Request) -> Reply:
            server.requests.clear()  # a long run would keep them all
            return behind.reply(request)

        server.replies.append(answer)
        yield behind
