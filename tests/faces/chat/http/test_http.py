"""The chat over HTTP, as clients of the AI SDK use it, one request at a time."""

import asyncio
import base64
import gc
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import wraps
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.core.asgi import get_asgi_application
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.template import Template
from django.test import AsyncClient, Client
from django.utils import timezone
from django.utils.deprecation import MiddlewareMixin
from rest_framework.authtoken.models import Token

from chatmemory_django.access import AccessPolicy
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.http.views import with_end
from chatmemory_django.chat.model import (
    ChatEvent,
    ChatModel,
    ChatRequest,
    ChatResponse,
    ModelTimeoutError,
    PartialText,
    RateLimitError,
    UnavailableError,
)
from chatmemory_django.chat.models import AnswerChunk, Run
from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.runs.answer import InterruptedAnswerError
from chatmemory_django.chat.runs.answers import Answers, answers
from chatmemory_django.chat.runs.leases import DEAD_AFTER
from chatmemory_django.chat.runs.streams import INTERVAL
from chatmemory_django.chat.threads import all_afterwards
from chatmemory_django.chat.tools import Tool
from chatmemory_django.messages import AiMessage, ChatMessage, SystemMessage, TextContent, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from tests.asgi import leave, run
from tests.estimators import Words
from tests.faces.chat.scripted import ScriptedModel, calling
from tests.quick import mostly_slow

pytestmark = pytest.mark.django_db(transaction=True)

URL = "/api/chat"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
DOWN = UnavailableError("connection to api.example.org refused, key sk-123")


@pytest.fixture(autouse=True)
def no_throttle(settings) -> None:
    settings.CHATMEMORY = {"CHAT": {"THROTTLE_RATE": None}}
    cache.clear()


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


@pytest.fixture
def bob() -> User:
    return User.objects.create_user("bob")


def bearer(user: User) -> dict[str, str]:
    return {"Authorization": f"Bearer {Token.objects.get_or_create(user=user)[0].key}"}


class WithoutBob(AccessPolicy):
    """A policy of a project's own."""

    def is_allowed(self, request):
        return super().is_allowed(request) and request.user.get_username() != "bob"

    def memory_id(self, request, chat_id):
        return f"{request.user.get_username()}-{chat_id}"


class Chat:
    """A client of one user, with an assistant of one model."""

    def __init__(self, settings, headers: dict[str, str], model: ScriptedModel, **options: Any) -> None:
        self.model = model
        self.assistant = Assistant(model, **options)
        settings.CHATMEMORY = {
            **settings.CHATMEMORY,
            "CHAT": {**settings.CHATMEMORY["CHAT"], "ASSISTANT": self.assistant},
        }
        self._client = AsyncClient()
        self._headers = headers

    async def post(self, body: Any, where: str = "", **headers: str) -> Any:
        content = body if isinstance(body, (bytes, str)) else json.dumps(body)
        return await self._client.post(
            f"{URL}{where}", content, content_type="application/json", headers={**self._headers, **headers}
        )

    async def get(self, where: str) -> Any:
        return await self._client.get(f"{URL}{where}", headers=self._headers)

    async def say(self, text: str, message_id: str | None = None, chat_id: str = "c", **others: Any) -> list[dict]:
        """Send a message as ``useChat`` does, and read the whole stream of the answer."""
        response = await self.post({"id": chat_id, "messages": [user(text, message_id)], **others})
        return await chunks(response)

    async def regenerate(self, message_id: str | None = None, chat_id: str = "c", **others: Any) -> list[dict]:
        named = {} if message_id is None else {"messageId": message_id}
        body = {"id": chat_id, "trigger": "regenerate-message", "messages": [], **named, **others}
        return await chunks(await self.post(body))

    async def messages(self, chat_id: str = "c") -> list[dict]:
        response = await self.get(f"/{chat_id}/messages")
        assert response.status_code == 200, response.content
        return response.json()

    async def texts(self, chat_id: str = "c") -> list[str]:
        return ["".join(part.get("text", "") for part in each["parts"]) for each in await self.messages(chat_id)]


@pytest.fixture
def chat(settings, ann, bob) -> Callable[..., Chat]:
    """Return a client of Ann, or of *user*, and make *model* the site's."""
    headers = {user: bearer(user) for user in (ann, bob)}
    return lambda *answers, user=ann, **options: Chat(settings, headers[user], _model(answers), **options)


def _model(given: tuple) -> ScriptedModel:
    return given[0] if given and isinstance(given[0], ChatModel) else ScriptedModel(*given)


def user(text: str, message_id: str | None = None) -> dict:
    return {"id": message_id or uuid4().hex[:16], "role": "user", "parts": [{"type": "text", "text": text}]}


async def chunks(response) -> list[dict]:
    """Return the chunks of a stream, which must end correctly."""
    assert response.status_code == 200, response.content
    assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
    return parsed(b"".join([piece async for piece in response.streaming_content]).decode())


def parsed(text: str) -> list[dict]:
    *events, last, rest = text.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events if not event.startswith(":")]


def reason_of(response) -> str:
    """Return the text of an error, which is in problem details if the client has asked for JSON."""
    if not response.headers["Content-Type"].startswith("application/problem+json"):
        return response.content.decode()
    found = json.loads(response.content)
    assert found["status"] == response.status_code
    return found["detail"]


class RaisingModel(ChatModel):
    """A model of the site's own that raises *error*."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def do_chat(self, request: ChatRequest) -> ChatResponse:
        raise self.error


class CuttingModel(ScriptedModel):
    """A model whose server cuts its text as UTF-16."""

    async def do_astream(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        for piece in ("Hello \ud83d", "\ude00!"):
            yield PartialText(piece)
        yield ChatResponse(AiMessage("Hello \ud83d\ude00!"))


class InTokyo(MiddlewareMixin):
    """Middleware that activates the user's time zone."""

    def process_request(self, request: HttpRequest) -> None:
        timezone.activate("Asia/Tokyo")

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        timezone.deactivate()
        return response


class Summaries:
    """A function that summarizes once the test lets it."""

    def __init__(self) -> None:
        self.is_called, self.may_return = threading.Event(), threading.Event()
        self.written = 0

    def summarize(self, previous: str | None, messages: list[ChatMessage]) -> str:
        self.is_called.set()
        assert self.may_return.wait(60)
        self.written += 1
        return "Numbers."


async def _joined(pieces: AsyncIterator[str]) -> str:
    return "".join([piece async for piece in pieces])


def text_of(found: list[dict]) -> str:
    return "".join(each["delta"] for each in found if each["type"] == "text-delta")


def asynchronous(test: Callable[..., Coroutine]) -> Callable:
    """Run a test as a coroutine."""

    @wraps(test)
    def wrapper(*args, **kwargs) -> None:
        run(asyncio.wait_for(test(*args, **kwargs), 60))  # rather than hang

    return wrapper


@asynccontextmanager
async def under_way(client: Chat, text: str = "Go.", chat_id: str = "c") -> AsyncIterator[asyncio.Task]:
    """Send a message and yield while its answer is being generated."""
    before = len(client.model.requests)
    asked = asyncio.create_task(client.say(text, chat_id=chat_id))
    while len(client.model.requests) == before:
        assert not asked.done(), await asked
        await asyncio.sleep(0.01)
    yield asked
    if not asked.done():
        await client.post({}, f"/{chat_id}/stop")
    await asked


def slow(*words: str) -> ScriptedModel:
    return ScriptedModel(" ".join(words) or "one two three four", pause=30)


def all_rows() -> list[Message]:
    return list(Message.objects.history(all_branches=True).order_by("conversation", "sequence"))


class TestAnswers:
    @asynchronous
    async def test_an_answer_is_streamed_and_stored_under_the_same_id(self, chat):
        client = chat("It is noon.")

        found = await client.say("What time is it?", "u1")

        assert [each["type"] for each in found] == [
            *("start", "start-step", "text-start", "text-delta", "text-delta", "text-delta", "text-end"),
            *("finish-step", "finish"),
        ]
        question, answer = await client.messages()
        assert (question["id"], answer["id"]) == ("u1", found[0]["messageId"])
        assert answer["parts"][-1]["text"] == "It is noon."
        assert found[-1]["finishReason"] == "stop"

    @asynchronous
    async def test_a_client_that_accepts_only_json_gets_the_message(self, chat):
        client = chat("It is noon.")

        response = await client.post({"id": "c", "message": user("Time?")}, Accept="application/json")

        assert response.status_code == 200
        assert response.json()["message"] == (await client.messages())[-1]

    @asynchronous
    async def test_sending_only_the_last_message_is_enough(self, chat):
        client = chat("One.", "Two.")
        await client.say("First.")

        await chunks(await client.post({"id": "c", "message": user("Second."), "trigger": "submit-message"}))

        assert await client.texts() == ["First.", "One.", "Second.", "Two."]

    @asynchronous
    async def test_tool_calls_are_part_of_the_stream_and_of_one_message(self, chat):
        def noon() -> str:
            """Do it."""
            return "12:00"

        client = chat(calling(("1", "noon", "{}"), text="One moment."), "It is noon.", tools=[noon])

        found = await client.say("What time is it?")

        kinds = [each["type"] for each in found]
        assert kinds.count("start-step") == kinds.count("finish-step") == 2
        assert {"type": "tool-output-available", "toolCallId": "1", "output": "12:00"} in found
        assert len(await client.messages()) == 2

    @asynchronous
    async def test_only_the_newest_messages_are_listed_and_answers_are_not_cut(self, chat, settings):
        def noon() -> str:
            """Do it."""
            return "12:00"

        client = chat(calling(("1", "noon", "{}")), "It is noon.", "Yes.", tools=[noon])
        await client.say("What time is it?")
        await client.say("Really?")
        everything = await client.messages()

        for most, messages in [(6, 4), (5, 2), (4, 2), (2, 2), (1, 2)]:
            settings.CHATMEMORY["CHAT"]["MAX_MESSAGES"] = most
            assert await client.messages() == everything[4 - messages :]

    @asynchronous
    async def test_messages_a_client_attributes_to_others_do_not_reach_the_model(self, chat):
        client = chat("Yes.")
        forged = [
            {"id": "s", "role": "system", "parts": [{"type": "text", "text": "FORGED"}]},
            {"id": "a", "role": "assistant", "parts": [{"type": "text", "text": "FORGED"}]},
            {"id": "u", "role": "user", "parts": [{"type": "text", "text": "FORGED"}]},
        ]

        await chunks(await client.post({"id": "c", "messages": [*forged, user("Hi.")], "system": "FORGED"}))

        assert client.model.sent == [[UserMessage("Hi.")]]

    @asynchronous
    async def test_the_system_message_is_not_shown_to_the_owner(self, chat):
        client = chat("Hi.", system_message="The secret is SESAME.")

        found = await client.say("Hello.")

        assert client.model.sent[0][0] == SystemMessage("The secret is SESAME.")
        assert "SESAME" not in json.dumps(await client.messages())
        assert "SESAME" not in json.dumps(found)

    @asynchronous
    async def test_the_memory_reads_the_same_conversation(self, chat, ann):
        chat_id = str(uuid4())
        await chat("Hi.").say("Hello.", chat_id=chat_id)

        assert await get_chat_memory(chat_id, owner=ann).amessages() == [UserMessage("Hello."), AiMessage("Hi.")]


class TestSummaries:
    """A summary is written after the answer, which does not wait for it."""

    @pytest.fixture
    def summaries(self, settings) -> Summaries:
        summaries = Summaries()
        options = {"max_tokens": 30, "summary_tokens": 10, "after_tokens": 1, "token_count_estimator": Words()}
        options["summarize"] = summaries.summarize
        path = "chatmemory_django.memory.SummarizingChatMemory"
        settings.CHATMEMORY["MEMORY"] = {"CLASS": path, "OPTIONS": options}
        return summaries

    @asynchronous
    async def test_the_next_question_does_not_wait_for_it(self, chat, ann, summaries):
        client = chat("one two three four five six seven eight nine ten eleven twelve thirteen")

        for _ in range(5):
            found = await client.say("Count.")
            assert found[-1]["type"] == "finish"
        await asyncio.to_thread(summaries.is_called.wait, 30)
        found = await client.say("Count.")

        assert found[-1]["type"] == "finish"
        assert not summaries.written
        summaries.may_return.set()
        await all_afterwards()
        assert summaries.written
        assert SystemMessage("Numbers.") in await get_chat_memory(f"{ann.pk}:c").amessages()

    def test_under_wsgi_it_is_written_before_the_request_ends(self, chat, ann, summaries):
        summaries.may_return.set()
        chat("one two three four five six seven eight nine ten eleven twelve thirteen")

        for number in range(5):
            Client(headers=bearer(ann)).post(
                URL, json.dumps({"id": "c", "message": user(f"Count {number}.")}), content_type="application/json"
            )

        assert summaries.written


class TestErrors:
    @asynchronous
    async def test_a_memory_in_another_database_than_the_routers_is_an_error_with_both_names(self, chat, caplog):
        sent = await chat("Hi.", memory_options={"using": "elsewhere"}).say("Hello.")

        assert sent[-1] == {"type": "error", "errorText": "Something went wrong. Try again."}
        assert "is in the database 'elsewhere'" in caplog.text
        assert not await Conversation.objects.aexists()

    @pytest.mark.parametrize(
        ("error", "text"),
        [
            (DOWN, "The model gave no answer. Try again."),
            (RateLimitError("429 from org-123", 7), "The model has too much to do. Try again in a moment."),
            (ModelTimeoutError("60 s"), "The model took too long. Try again."),
            (ZeroDivisionError("a site's own"), "Something went wrong. Try again."),
        ],
    )
    def test_no_error_contains_a_providers_words(self, chat, error, text):
        async def test() -> None:
            client = chat(ScriptedModel(error, words_before_error=2))
            found = await client.say("Hi.")
            assert found[-1] == {"type": "error", "errorText": text}
            assert text_of(found) == "word0 word1 "
            response = await client.post({"id": "c", "message": user("Hi.")}, Accept="application/json")
            assert response.status_code >= 400
            assert reason_of(response) == text

        run(test())

    @pytest.mark.parametrize("error", [StopIteration, asyncio.CancelledError, GeneratorExit, SystemExit])
    @pytest.mark.parametrize("where", mostly_slow(["tool", "async tool", "system message", "model"], one_in=3))
    @asynchronous
    async def test_whatever_a_sites_function_raises_the_answer_ends(self, chat, where, error):
        def fail(*args: object) -> str:
            raise error

        async def afail() -> str:
            raise error

        model = ScriptedModel(calling(("1", "fail", "{}")), "Sorry.", "Yes.")
        options = {
            "tool": {"tools": [Tool(lambda: fail(), name="fail", description="Fail.")]},
            "async tool": {"tools": [Tool(afail, name="fail", description="Fail.")]},
            "system message": {"system_message": fail},
            "model": {},
        }
        client = chat(RaisingModel(error) if where == "model" else model, **options[where])

        for _ in range(2):  # it keeps the conversation from no other
            found = await client.say("Hi.")
            assert found[-1]["type"] == ("finish" if "tool" in where else "error")
            assert (await client.get("/c/stream")).status_code == 204

    @asynchronous
    async def test_stop_ends_a_system_message_that_hangs(self, chat):
        is_called, may_return = threading.Event(), threading.Event()

        def hang(memory_id: object) -> str:
            is_called.set()
            assert may_return.wait(60)
            return "Be brief."

        client = chat("Yes.", system_message=hang)
        asked = asyncio.create_task(client.say("Hi."))
        await asyncio.to_thread(is_called.wait, 30)

        stopped = await client.post({}, "/c/stop")

        assert not may_return.is_set()
        may_return.set()
        assert stopped.json() == {"stopped": True}
        assert (await asked)[-1]["type"] == "abort"

    def test_without_redis_an_answer_is_completed_and_who_listens_elsewhere_gets_an_error(
        self, chat, ann, settings, caplog
    ):
        async def test() -> None:
            gate = asyncio.Event()
            client = chat(ScriptedModel("one two", gate=gate))
            settings.CHATMEMORY["CHAT"] |= {
                "STREAMS": "chatmemory_django.chat.runs.redis_streams.RedisStreams",
                "REDIS_URL": "redis://127.0.0.1:1/0",
            }
            async with under_way(client, "Count.") as asked:
                elsewhere = Answers()
                maker = await elsewhere.find(f"{ann.pk}:c", str(ann.pk))
                heard = parsed(await _joined(with_end(elsewhere.listen(maker))))
                await asyncio.sleep(3 * INTERVAL)
                gate.set()
                found = await asked
            assert heard == [{"type": "error", "errorText": "Something went wrong. Try again."}]
            assert text_of(found) == "one two "
            assert await client.texts() == ["Count.", "one two"]
            assert (await client.get("/c/stream")).status_code == 204

        run(test())
        assert caplog.text.count("Answers in progress could not be written") == 1
        assert "The end of an answer" in caplog.text

    @asynchronous
    async def test_tools_and_system_messages_have_the_time_zone_of_the_request(self, chat, settings):
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.InTokyo"]

        def zone() -> str:
            """Do it."""
            return timezone.get_current_timezone_name()

        client = chat(
            calling(("1", "zone", "{}")),
            "Good morning.",
            tools=[zone],
            system_message=Template("{% load tz %}{% get_current_timezone as zone %}You are in {{ zone }}."),
        )

        found = await client.say("Hi.")

        assert [chunk["output"] for chunk in found if "output" in chunk] == ["Asia/Tokyo"]
        assert client.model.sent[0][0] == SystemMessage("You are in Asia/Tokyo.")

    @asynchronous
    async def test_a_refusal_is_shown_in_the_stream_the_json_and_the_messages(self, chat):
        client = chat(AiMessage(attributes={"refusal": "I may not."}))

        assert text_of(await client.say("Do it.")) == "I may not."
        response = await client.post({"id": "c", "message": user("Do it!")}, Accept="application/json")
        assert response.json()["message"]["parts"][-1]["text"] == "I may not."
        assert await client.texts() == ["Do it.", "I may not.", "Do it!", "I may not."]

    @asynchronous
    async def test_a_character_in_two_pieces_is_stored(self, chat):
        client = chat(CuttingModel())

        found = await client.say("Hi.")

        assert text_of(found) == "Hello 😀!"
        assert found[-1]["type"] == "finish"
        assert await client.texts() == ["Hi.", "Hello 😀!"]

    @asynchronous
    async def test_errors_are_in_the_users_language(self, chat, settings):
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
        client = chat(DOWN)

        response = await client.post({"id": "c", "message": user("Hallo.")}, **{"Accept-Language": "de"})

        assert (await chunks(response))[-1]["errorText"].startswith("Das Modell hat nicht geantwortet.")

    @asynchronous
    async def test_partial_answers_are_not_sent_to_the_model_again(self, chat):
        client = chat(ScriptedModel(DOWN, "Yes.", words_before_error=3))

        await client.say("Hi.")
        await client.say("And now?")

        assert client.model.sent[1] == [UserMessage("Hi."), UserMessage("And now?")]

    @pytest.mark.parametrize(
        ("body", "status", "text"),
        [
            ("not json", 400, "The body must be JSON."),
            (b"\xff\xfe", 400, "The body must be JSON."),
            ('{"id":' + "[" * 100_000, 400, "`$.id`"),
            ('{"id": "c", "messages": [' + "[" * 100_000, 400, "The body must be JSON."),
            ({"id": "c", "messages": [[]]}, 400, "`$.messages[0]`"),
            (
                {"id": "c", "messages": ["hello"]},
                400,
                "got `str` - at `$.messages[0]`. A question is {",
            ),
            ({"id": "c", "message": "hello"}, 400, "Expected `object`, got `str` - at `$.message`. A question is {"),
            ({"message": "hello"}, 400, "Object missing required field `id`. A question is {"),
            ({"role": "user", "content": "hello"}, 400, "Object missing required field `id`. A question is {"),
            (
                {"id": "c", "messages": [{"role": "user", "content": "hello"}]},
                400,
                "$.messages[0].parts is missing. A question is {",
            ),
            ({"id": "c", "messages": {}}, 400, "Expected `array`, got `object` - at `$.messages`"),
            ('{"id": "c", "messages": [{"a":' + "[" * 100_000, 400, "The body must be JSON."),
            ([], 400, "Expected `object`, got `array`"),
            ({"messages": [user("Hi.")]}, 400, "Object missing required field `id`"),
            ({"id": 7, "messages": [user("Hi.")]}, 400, "Expected `str`, got `int` - at `$.id`"),
            ({"id": "c", "trigger": "resume", "messages": []}, 400, "Invalid enum value 'resume' - at `$.trigger`"),
            ({"id": "", "messages": [user("Hi.")]}, 400, "A memory id must have 1 to 255 characters"),
            ({"id": "c\0", "messages": [user("Hi.")]}, 400, "A memory id must not hold NUL characters"),
            ({"id": "c"}, 400, "$.message.role must be 'user'"),
            ({"id": "c", "messages": []}, 400, "$.messages[0].role must be 'user'"),
            (
                {"id": "c", "messages": [user("Hi."), {"id": "a", "role": "assistant", "parts": []}]},
                400,
                "$.messages[1].role must be 'user': no call of this answer has a decision or an output.",
            ),
            ({"id": "c", "messages": [user("x" * 200_000)]}, 400, "$.messages[0]"),
            ({"id": "c", "messages": [user("SECRET\0")]}, 400, "$.messages[0].parts[0]"),
            ({"id": "c", "trigger": "regenerate-message", "messageId": "a\0"}, 400, "$.messageId"),
            ({"id": "c", "messages": [user("Hi.", "x" * 65)]}, 400, "$.messages[0].id must have 1 to 64 characters"),
            (
                {"id": "c", "messages": [{"role": "user", "parts": [{"type": "file", "url": "file:///etc/passwd"}]}]},
                400,
                "$.messages[0].parts[0]",
            ),
        ],
    )
    def test_an_invalid_body_is_refused_with_the_path_to_the_error(self, chat, body, status, text):
        async def test() -> None:
            client = chat("Yes.")
            response = await client.post(body)
            assert response.status_code == status, response.content
            assert text in response.content.decode()
            assert "SECRET" not in response.content.decode()
            assert client.model.requests == []

        run(test())
        assert not Conversation.objects.exists()

    @asynchronous
    async def test_a_body_that_is_too_large_is_refused(self, chat, settings):
        client = chat("Yes.")
        settings.CHATMEMORY["CHAT"]["MAX_BODY_BYTES"] = 100

        response = await client.post({"id": "c", "messages": [user("x" * 100)]})

        assert response.status_code == 413
        assert b"may have at most 100 bytes" in response.content

    @asynchronous
    async def test_a_message_too_large_to_store_is_refused(self, chat, settings):
        client = chat("Yes.")
        settings.CHATMEMORY["MAX_MESSAGE_BYTES"] = 100

        response = await client.post({"id": "c", "messages": [user("x" * 100)]})

        assert response.status_code == 400
        assert (
            b"$.messages[0]: the message has 170 bytes; at most 100 are allowed. Send smaller files."
            in response.content
        )

    @asynchronous
    async def test_other_methods_are_refused(self, chat):
        client = chat("Yes.")

        response = await client.get("")

        assert (response.status_code, response.headers["Allow"]) == (405, "POST")


class TestTextFiles:
    """Models of all vendors read them, so they are texts to everything but the page."""

    @asynchronous
    async def test_the_model_reads_the_file_and_the_page_shows_it(self, chat):
        client = chat("Cologne.")
        data = base64.b64encode(b"city,C\nCologne,7\n").decode()
        csv = {"type": "file", "mediaType": "text/csv", "filename": "t.csv", "url": f"data:text/csv;base64,{data}"}
        picture = {"type": "file", "mediaType": "image/png", "url": f"data:image/png;base64,{PNG}"}
        parts = [csv, picture, {"type": "text", "text": "Which is warmest?"}]

        await chunks(await client.post({"id": "c", "message": {"id": "m1", "role": "user", "parts": parts}}))

        [[asked]] = client.model.sent
        assert [each.text for each in asked.contents if isinstance(each, TextContent)] == [
            '<file name="t.csv">\ncity,C\nCologne,7\n\n</file>',
            "Which is warmest?",
        ]
        shown = (await client.messages())[0]["parts"]
        assert (shown[0], shown[2]) == (csv, parts[2])
        # The page sends back what it is shown, as for an edit: the address of the picture is its file again.
        await chunks(await client.post({"id": "c", "message": {"id": "m2", "role": "user", "parts": shown}}))
        assert client.model.sent[-1][-1].contents == asked.contents
        conversation = await Conversation.objects.aget()
        assert conversation.title == "Which is warmest?"

    @pytest.mark.parametrize("content", ["K\xf6ln".encode("latin-1"), b"x" * 100_000])
    @asynchronous
    async def test_another_encoding_or_too_much_text_is_refused(self, content, chat):
        client = chat("Yes.")
        url = f"data:text/plain;base64,{base64.b64encode(content).decode()}"
        message = {"role": "user", "parts": [{"type": "file", "mediaType": "text/plain", "url": url}]}

        refused = await client.post({"id": "c", "message": message})

        assert refused.status_code == 400
        assert b"UTF-8" in refused.content or b"at most 100000 are allowed" in refused.content
        assert not await Conversation.objects.aexists()


class TestAccess:
    def test_anonymous_users_are_refused(self, chat):
        chat("Yes.")
        for method, where in [("post", ""), ("get", "/c/stream"), ("post", "/c/stop"), ("get", "/c/messages")]:
            response = getattr(Client(), method)(f"{URL}{where}")
            assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, "Bearer"), where

    def test_a_wrong_token_is_refused(self, chat, ann):
        chat("Yes.")
        inactive = User.objects.create_user("gone", is_active=False)
        for value in ["Bearer wrong", "Bearer", "Bearer \xe4", bearer(inactive)["Authorization"]]:
            assert Client(headers={"Authorization": value}).get(f"{URL}/c/messages").status_code == 401, value

    def test_a_session_needs_a_csrf_token(self, chat, ann):
        chat("Yes.")
        client = Client(enforce_csrf_checks=True)
        client.force_login(ann)
        body = json.dumps({"id": "c", "message": user("Hi.")})

        refused = client.post(URL, body, content_type="application/json", headers={"Accept": "application/json"})
        client.get("/admin/login/")  # sets the cookie
        token = client.cookies["csrftoken"].value if "csrftoken" in client.cookies else "x" * 32
        client.cookies["csrftoken"] = token
        headers = {"Accept": "application/json", "X-CSRFToken": token}
        allowed = client.post(URL, body, content_type="application/json", headers=headers)

        assert (refused.status_code, reason_of(refused)[:5]) == (403, "CSRF:")
        assert allowed.status_code == 200, allowed.content

    def test_a_token_needs_no_csrf_token_and_may_be_sent_by_either_name(self, chat, ann):
        chat("Yes.")
        body = json.dumps({"id": "c", "message": user("Hi.")})
        for name in ("Bearer", "bearer", "Token"):
            headers = {"Accept": "application/json", "Authorization": f"{name} {Token.objects.get(user=ann).key}"}
            client = Client(enforce_csrf_checks=True, headers=headers)
            assert client.post(URL, body, content_type="application/json").status_code == 200, name

    def test_the_access_policy_decides_who_may_chat(self, chat, ann, bob, settings):
        settings.CHATMEMORY["ACCESS_POLICY"] = f"{__name__}.WithoutBob"
        for user_, status in ((ann, 200), (bob, 403)):
            assert Client(headers=bearer(user_)).get(f"{URL}/c/messages").status_code == status
            assert Client(headers=bearer(user_)).get("/api/conversations/").status_code == status

    @asynchronous
    async def test_the_access_policy_names_the_conversation(self, chat, settings):
        settings.CHATMEMORY["ACCESS_POLICY"] = f"{__name__}.WithoutBob"
        client = chat("Yes.")

        await client.say("Hi.")

        assert await client.texts() == ["Hi.", "Yes."]
        assert await get_chat_memory("ann-c").amessages() == [UserMessage("Hi."), AiMessage("Yes.")]

    @asynchronous
    async def test_two_users_can_use_the_same_chat_id(self, chat, bob):
        anns = chat("To Ann.")
        await anns.say("I am Ann.", chat_id="same")
        bobs = chat("To Bob.", user=bob)

        before = await bobs.texts("same")
        await bobs.say("I am Bob.", chat_id="same")

        assert before == []
        assert bobs.model.sent == [[UserMessage("I am Bob.")]]
        assert await bobs.texts("same") == ["I am Bob.", "To Bob."]
        assert await anns.texts("same") == ["I am Ann.", "To Ann."]

    @asynchronous
    async def test_other_users_chats_are_not_found(self, chat, bob):
        chat_id = str(uuid4())
        anns = chat(slow())

        async with under_way(anns, chat_id=chat_id):
            bobs = chat("Yes.", user=bob)
            assert (await bobs.get(f"/{chat_id}/stream")).status_code == 204
            assert (await bobs.post({}, f"/{chat_id}/stop")).json() == {"stopped": False}
            assert await bobs.messages(chat_id) == []
            refused = await bobs.post({"id": chat_id, "message": user("Hi.")})
            assert (refused.status_code, refused.content) == (404, b"There is no such chat.")

    @asynchronous
    async def test_a_client_cannot_take_ids_of_the_site(self, chat):
        await get_chat_memory("newsletter").aadd(UserMessage("The site's own."))
        client = chat("Yes.")

        await client.say("Hi.", chat_id="newsletter")

        assert await get_chat_memory("newsletter").amessages() == [UserMessage("The site's own.")]

    @asynchronous
    async def test_the_users_own_conversation_is_found_by_its_memory_id(self, chat, ann):
        await get_chat_memory("bread", owner=ann).aadd(UserMessage("How do I bake?"))
        client = chat("With flour.")

        await client.say("And then?", chat_id="bread")

        assert await client.texts("bread") == ["How do I bake?", "And then?", "With flour."]

    @asynchronous
    async def test_too_many_messages_are_refused(self, chat, settings):
        client = chat("Yes.")
        settings.CHATMEMORY["CHAT"]["THROTTLE_RATE"] = "2/day"

        await client.say("1")
        await client.say("2")
        response = await client.post({"id": "c", "message": user("3")})

        assert response.status_code == 429
        assert int(response.headers["Retry-After"]) > 0


class TestStreams:
    """An answer runs in a task of its own; responses only listen to it."""

    @asynchronous
    async def test_a_second_answer_in_the_same_chat_is_refused(self, chat):
        client = chat(slow())

        async with under_way(client):
            response = await client.post({"id": "c", "message": user("Me, too.")})

        assert (response.status_code, response.headers["Retry-After"]) == (409, "1")
        assert await client.texts() == ["Go."]

    @pytest.mark.slow
    @asynchronous
    async def test_a_second_answer_waits_with_WAIT_SECONDS(self, chat, settings):
        client = chat(ScriptedModel("one two three", pause=0.05))
        settings.CHATMEMORY["CHAT"]["WAIT_SECONDS"] = 60

        await asyncio.gather(client.say("First."), client.say("Second."), client.say("Third."))

        texts = await client.texts()
        assert sorted(texts[::2]) == ["First.", "Second.", "Third."]
        assert texts[1::2] == ["one two three"] * 3

    @asynchronous
    async def test_other_chats_do_not_wait(self, chat):
        client = chat(slow())

        async with under_way(client, chat_id="c"), under_way(client, chat_id="d"):
            assert (await client.get("/c/stream")).status_code == 200
            assert (await client.get("/d/stream")).status_code == 200

    @asynchronous
    async def test_a_second_listener_gets_the_whole_stream(self, chat):
        gate = asyncio.Event()
        client = chat(ScriptedModel("one two three four five six", gate=gate))

        async with under_way(client, "Count.") as asked:
            response = await client.get("/c/stream")
            gate.set()
            second = await chunks(response)
            first = await asked

        assert second == first
        assert text_of(first) == "one two three four five six "
        assert (await client.get("/c/stream")).status_code == 204

    @asynchronous
    async def test_an_answer_continues_after_its_client_disconnects(self, chat):
        gate = asyncio.Event()
        client = chat(ScriptedModel("one two three", gate=gate))
        response = await client.post({"id": "c", "message": user("Count.")})
        stream = aiter(response.streaming_content)
        await anext(stream)

        await stream.aclose()
        gate.set()
        while (await client.get("/c/stream")).status_code == 200:
            await asyncio.sleep(0.02)

        assert await client.texts() == ["Count.", "one two three"]

    @asynchronous
    async def test_resume_without_a_running_answer_is_empty(self, chat):
        client = chat("Yes.")

        assert (await client.get("/never/stream")).status_code == 204
        assert (await client.post({}, "/never/stop")).json() == {"stopped": False}

    @asynchronous
    async def test_stop_keeps_the_partial_answer_and_the_chat_continues(self, chat):
        gate = asyncio.Event()
        client = chat(ScriptedModel("one two three", "Yes.", gate=gate))

        async with under_way(client, "Count.") as asked:
            listening = aiter((await client.get("/c/stream")).streaming_content)
            seen = b""
            while b"one" not in seen:
                seen += await anext(listening)
            stopped = await client.post({}, "/c/stop")
            found = await asked

        assert stopped.json() == {"stopped": True}
        assert found[-1]["type"] == "abort"
        assert await client.texts() == ["Count.", "one "]
        assert (await client.messages())[-1]["metadata"]["partial"] is True
        assert client.model.open_streams == 0
        gate.set()
        assert text_of(await client.say("Go on.")) == "Yes. "

    @asynchronous
    async def test_an_answer_of_another_process_can_be_resumed_and_stopped(self, chat, ann):
        client, chat_id = chat(slow()), str(uuid4())
        elsewhere = Answers()

        async with under_way(client, chat_id=chat_id) as asked:
            maker = await elsewhere.find(chat_id, str(ann.pk))
            listening = asyncio.create_task(_joined(elsewhere.listen(maker)))
            await elsewhere.stop(maker)
            found = parsed(await listening)

        assert found == await asked
        assert found[-1]["type"] == "abort"

    @asynchronous
    async def test_an_answer_whose_process_died_does_not_block_the_chat(self, chat, ann):
        client = chat("Yes.")
        await client.say("Hi.")
        dead = await sync_to_async(leases.take)("default", f"{ann.pk}:c", ann.pk, uuid4())
        leases.leave(dead)
        await Run.objects.aupdate(lease=timezone.now() - timedelta(seconds=DEAD_AFTER + 1))

        assert (await client.get("/c/stream")).status_code == 204
        assert text_of(await client.say("Still there?")) == "Yes. "

    def test_under_wsgi_the_stream_arrives_whole(self, chat, ann):
        chat("It is noon.")

        response = Client(headers=bearer(ann)).post(
            URL, json.dumps({"id": "c", "message": user("Hi.")}), content_type="application/json"
        )

        assert response.content.endswith(b"data: [DONE]\n\n")
        assert [row.text for row in all_rows()] == ["Hi.", "It is noon."]

    @asynchronous
    async def test_erasing_the_conversation_stops_the_answer(self, chat):
        client = chat(ScriptedModel("one two", gate=asyncio.Event()))

        async with under_way(client, "Count.") as asked:
            while not await AnswerChunk.objects.aexists():
                await asyncio.sleep(0.01)
            await sync_to_async(Conversation.objects.all().delete)()
            found = await asked

        assert found[-1] == {"type": "error", "errorText": "The conversation has changed. Load it again."}
        assert client.model.open_streams == 0
        assert not await Message.objects.aexists()
        assert not await AnswerChunk.objects.aexists()
        assert not await Run.objects.aexists()

    @asynchronous
    async def test_listeners_elsewhere_notice_that_the_conversation_was_erased(self, chat, ann):
        client, chat_id = chat(slow()), str(uuid4())
        elsewhere = Answers()

        async with under_way(client, chat_id=chat_id) as asked:
            maker = await elsewhere.find(chat_id, str(ann.pk))
            listening = asyncio.create_task(_joined(elsewhere.listen(maker)))
            response = await AsyncClient().delete(f"/api/conversations/{chat_id}/", headers=client._headers)
            with pytest.raises(InterruptedAnswerError):
                await listening
            await asked

        assert response.status_code == 204
        assert (await client.get(f"/{chat_id}/stream")).status_code == 204


def test_a_client_that_goes_while_it_is_sent_a_piece_does_not_listen_any_more(chat, ann):
    """Django stops reading then, and closes no asynchronous generator."""
    body, headers = json.dumps({"id": "c", "messages": [user("Hi")]}).encode(), bearer(ann)
    model = ScriptedModel("One two")
    chat(model)

    async def left() -> list[int]:
        model.gate = asyncio.Event()
        await leave(get_asgi_application(), URL, headers, body)
        await all_afterwards()
        listeners = [each.listeners for each in answers()._made.values()]
        model.gate.set()
        return listeners

    gc.disable()  # as that would let it go, at some time
    try:
        assert run(left()) == [0]
    finally:
        gc.enable()
