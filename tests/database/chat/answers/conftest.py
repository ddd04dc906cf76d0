"""
The ways to ask an assistant: its four methods, late or early, and the chat over HTTP, which is always early.

What they ask for calls a tool that pays; what it has done is not in the database.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import AsyncClient
from rest_framework.authtoken.models import Token

from chatmemory_django.chat.answers.too_long import AnswerTooLongError, QuestionTooLongError
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.http.views import explained
from chatmemory_django.chat.model import ChatResponse, RateLimitError
from chatmemory_django.chat.runs.leases import BusyError
from chatmemory_django.chat.threads import all_afterwards
from chatmemory_django.chat.tools import Tool
from chatmemory_django.chat.ui_messages.files import to_part
from chatmemory_django.db.threads import in_background, in_thread
from chatmemory_django.memory import MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import MessageType, TextContent, ToolExecutionResultMessage, UserMessage
from chatmemory_django.models import Message
from tests.asgi import run
from tests.estimators import ADDITIVE_WORDS
from tests.faces.chat.scripted import calling

QUICK = ["chat-late", "achat-early", "stream-early", "astream-late", "post-early"]
OTHERS = ["chat-early", "achat-late", "stream-late", "astream-early"]

NUMBER = re.compile(r"\d[\d,.]*\b")

PATIENCE = 30
"""Seconds after which a test gives up waiting."""


class PostError(Exception):
    """The chat over HTTP has answered with an error."""


class Ask:
    """One way to ask, for Ann and in one conversation."""

    def __init__(self, way: str, settings: Any, ann: User) -> None:
        self.way, self.persist = way.split("-")
        self.is_post = self.way == "post"
        self.owner = ann
        self.memory_id = f"{ann.pk}:c"
        self._chat = settings.CHATMEMORY["CHAT"]
        self._headers = {"Authorization": f"Bearer {Token.objects.get_or_create(user=ann)[0].key}"}

    def __call__(
        self, bot: Assistant, message: str | UserMessage = "Go.", *, name: str | None = None, **options
    ) -> Any:
        """Return the text of the answer, or what it returns if the *options* have a type for that."""
        if self.is_post:
            return run(_to_its_end(self._post(bot, {"messages": [as_posted(message, name)]})))
        return self._asked(bot, message, client_message_id=name, **options)

    def regenerate(self, bot: Assistant, message: str, name: str) -> str:
        """Ask for another answer to a stored question."""
        if self.is_post:
            body = {"trigger": "regenerate-message", "messageId": name, "messages": [as_posted(message, name)]}
            return run(_to_its_end(self._post(bot, body)))
        return self._asked(bot, None, after=Message.objects.get(client_message_id=name).sequence)

    @contextmanager
    def fails(self, kind: type[BaseException]) -> Iterator[pytest.ExceptionInfo]:
        """Expect that the answer fails with an error of that *kind* or, over HTTP, with its text for users."""
        with pytest.raises(PostError if self.is_post else kind) as caught:
            yield caught
        if self.is_post and kind is BusyError:
            assert caught.value.args == (str(BusyError()), 409)
        elif self.is_post:
            error = kind(1, 1) if kind in {QuestionTooLongError, AnswerTooLongError} else kind.__new__(kind)
            row = Message.objects.filter(metadata__has_key="rejected", type=MessageType.USER).last()
            rejected = None if row is None else row.metadata["rejected"]
            text, shown = explained(error, rejected)[1], caught.value.args[0]
            assert NUMBER.sub("0", shown) == NUMBER.sub("0", text)

    def until(
        self,
        is_enough: Callable[[], bool],
        bot: Assistant,
        message: str,
        *,
        name: str | None = None,
        then: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Ask until *is_enough*: then close the stream, cancel the task or, over HTTP, stop the answer.

        *then* is called in a thread until it is true.
        """
        if self.way == "stream":
            with closing(self._stream(bot, message, client_message_id=name)) as events:
                next(event for event in events if is_enough())
            assert then()
        else:
            post = {"messages": [as_posted(message, name)]}
            asking = self._post(bot, post) if self.is_post else self._aasked(bot, message, client_message_id=name)
            run(asyncio.wait_for(self._left(asking, is_enough, then), PATIENCE))

    async def _left(self, asking: Coroutine[Any, Any, Any], is_enough: Callable, then: Callable) -> None:
        with in_background():  # where no thread is shared with the tools
            task = asyncio.create_task(asking)
        while not await in_thread(is_enough):
            assert not task.done(), task.exception()
            await asyncio.sleep(0.002)
        if self.is_post:
            await AsyncClient().post("/api/chat/c/stop", {}, content_type="application/json", headers=self._headers)
        else:
            task.cancel()
        await asyncio.wait([task])
        while not await in_thread(then):
            await asyncio.sleep(0.002)

    def _asked(self, bot: Assistant, message: Any, **options: Any) -> Any:
        if self.way == "chat":
            return bot.chat(self.memory_id, message, **self._options(options))
        if self.way == "stream":
            return text_of(list(self._stream(bot, message, **options)))
        return run(self._aasked(bot, message, **options))

    async def _aasked(self, bot: Assistant, message: Any, **options: Any) -> Any:
        if self.way == "achat":
            return await bot.achat(self.memory_id, message, **self._options(options))
        return text_of([event async for event in bot.astream(self.memory_id, message, **self._options(options))])

    def _stream(self, bot: Assistant, message: Any, **options: Any) -> Any:
        return bot.stream(self.memory_id, message, **self._options(options))

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"owner": self.owner, "persist": self.persist, **options}

    async def _post(self, bot: Assistant, body: dict[str, Any]) -> str:
        self._chat["ASSISTANT"] = bot
        content = json.dumps({"id": "c", **body})
        response = await AsyncClient().post(
            "/api/chat", content, content_type="application/json", headers=self._headers
        )
        if response.status_code != 200:
            raise PostError(response.content.decode(), response.status_code)
        chunks = [chunk async for chunk in _chunks(response.streaming_content)]
        if errors := [chunk["errorText"] for chunk in chunks if chunk["type"] == "error"]:
            raise PostError(*errors)
        return "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta").strip()


async def _to_its_end(asking: Coroutine[Any, Any, str]) -> str:
    """Return what *asking* returns, and wait for what follows the answer."""
    try:
        return await asking
    finally:
        await all_afterwards()


async def _chunks(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[dict[str, Any], None]:
    async for piece in pieces:
        for line in piece.decode().split("\n\n"):
            if line.startswith("data: {"):
                yield json.loads(line[6:])


def text_of(events: list[Any]) -> str:
    return [event for event in events if isinstance(event, ChatResponse)][-1].ai_message.text


def as_posted(message: str | UserMessage, name: str | None) -> dict[str, Any]:
    """Return *message* as the AI SDK's clients send it."""
    contents = [TextContent(message)] if isinstance(message, str) else message.contents
    return {"id": name or uuid4().hex[:16], "role": "user", "parts": [to_part(content) for content in contents]}


PAY = calling(("c1", "pay", '{"amount": 5}'))
PAID = ToolExecutionResultMessage("c1", "pay", "paid 5")
QUESTION = UserMessage("Pay.")
DOWN = RateLimitError("There are too many requests.")


class Till:
    """A tool that pays: what it has done is not in the database."""

    def __init__(self) -> None:
        self.paid: list[int] = []

    def pay(self, amount: int) -> str:
        self.paid.append(amount)
        return f"paid {amount}"


@pytest.fixture
def till() -> Till:
    return Till()


def tools(*functions: Callable[..., Any]) -> list[Tool]:
    return [Tool(each, description="It does what its name states.") for each in functions]


def tokens(limit: int) -> dict[str, Any]:
    """Return the options of an assistant with a window of words."""
    options = {"max_tokens": limit, "token_count_estimator": ADDITIVE_WORDS}
    return {"memory": TokenWindowChatMemory, "memory_options": options}


def messages(limit: int) -> dict[str, Any]:
    return {"memory": MessageWindowChatMemory, "memory_options": {"max_messages": limit}}


def history() -> list:
    return [row.chat_message for row in Message.objects.history().order_by("sequence")]


def remembered(ask, bot: Assistant) -> list:
    return bot.chat_memory(ask.memory_id, ask.owner).messages()


@pytest.fixture(params=[*QUICK, *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)])
def ask(request: pytest.FixtureRequest, settings) -> Ask:
    settings.CHATMEMORY = {**settings.CHATMEMORY, "CHAT": {"THROTTLE_RATE": None, "READ_THROTTLE_RATE": None}}
    cache.clear()
    return Ask(request.param, settings, User.objects.create_user("ann"))


two_ways = pytest.mark.parametrize("ask", ["chat-late", "post-early"], indirect=True)
"""A sync and an async way, of which one is late: enough where no way has code of its own."""

interruptible = pytest.mark.parametrize(
    "ask", ["stream-late", "achat-early", "astream-late", "post-early"], indirect=True
)
"""The ways that can be left before the answer has ended."""

in_event_loops = pytest.mark.parametrize("ask", ["achat-late", "astream-early", "post-early"], indirect=True)
"""The ways in which tools run concurrently, and can be left while they run."""
