"""An assistant whose every part notes at which tenant it works."""

import json
import os
import threading
from collections import defaultdict
from collections.abc import Generator

from asgiref.sync import sync_to_async
from django.db import connection

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import ChatEvent, ChatModel, ChatRequest, ChatResponse, PartialText
from chatmemory_django.chat.tools import Tool
from chatmemory_django.memory import SummarizingChatMemory
from chatmemory_django.messages import AiMessage, ToolExecutionRequest, ToolExecutionResultMessage, UserMessage
from tests.estimators import ADDITIVE_WORDS

STATEMENT = (
    "SELECT current_setting('app.tenant', true)" if os.environ.get("KIND") == "rows" else "SELECT current_schema()"
)

worked: list[tuple[str, str]] = []
"""What was called, and at which tenant."""

gates: defaultdict[str, threading.Event] = defaultdict(threading.Event)
"""What answers wait for whose question is "wait" and a name."""


def place() -> str:
    with connection.cursor() as cursor:
        cursor.execute(STATEMENT)
        return cursor.fetchone()[0]


def note(what: str) -> str:
    found = place()
    worked.append((what, found))
    return found


class Model(ChatModel):
    """Answers with all that it is sent, or calls tools, or waits."""

    def do_chat(self, request: ChatRequest) -> ChatResponse:
        note("chat")
        return ChatResponse(AiMessage("Yes."))

    def do_stream(self, request: ChatRequest) -> Generator[ChatEvent, None, None]:
        note("stream")
        last = request.messages[-1]
        if isinstance(last, ToolExecutionResultMessage):
            results = [each.text for each in request.messages if isinstance(each, ToolExecutionResultMessage)]
            yield ChatResponse(AiMessage(" ".join(results)))
            return
        asked = [each.contents[-1].text for each in request.messages if isinstance(each, UserMessage)]
        if asked[-1].startswith("tool"):
            names = asked[-1].split()[1:]
            calls = [ToolExecutionRequest(str(at), name, "{}") for at, name in enumerate(names)]
            yield ChatResponse(AiMessage(None, tool_execution_requests=calls))
            return
        if asked[-1].startswith("wait"):
            yield PartialText("one ")
            assert gates[asked[-1]].wait(30)
        yield PartialText(text := json.dumps(asked))
        yield ChatResponse(AiMessage(text))


def where() -> str:
    """Return the tenant."""
    return note("tool")


async def awhere() -> str:
    """Return the tenant."""
    return str(await sync_to_async(note)("async tool"))


def approved() -> str:
    """Return the tenant."""
    return note("approved tool")


def context() -> str:
    return f"At {note('context')}."


async def title(question: str, answer: str) -> str:
    return await sync_to_async(note)("title")


def summarize(previous: object, messages: object) -> str:
    return f"Until then {note('summary')}"


assistant = Assistant(
    Model(),
    memory=SummarizingChatMemory,
    memory_options={
        "max_tokens": 60,
        "token_count_estimator": ADDITIVE_WORDS,
        "summary_tokens": 10,
        "after_tokens": 4,
        "summarize": summarize,
    },
    context=context,
    tools=[where, awhere, Tool(approved, needs_approval=True)],
    title=title,
)
