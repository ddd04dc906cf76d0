"""What others add to a conversation, or take away, between a question and the worker that answers it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.models import Run
from chatmemory_django.chat.started import AnswerFailedError, StartedRun
from chatmemory_django.chat.worker import Worker
from chatmemory_django.db.threads import leaving_no_connection
from chatmemory_django.memory import ChatMemory
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory
from tests.asgi import run
from tests.faces.chat.http.test_http import ann, bob, chat, chunks, no_throttle, user
from tests.faces.chat.runs.test_workers import for_workers, history, text_of, with_worker, work_off
from tests.faces.chat.scripted import ScriptedModel, calling

__all__ = ["ann", "bob", "chat", "for_workers", "no_throttle"]  # fixtures

pytestmark = pytest.mark.django_db(transaction=True)

CHANGED = "The conversation has changed. Load it again."

OTHERS = Assistant(ScriptedModel("Of others."))
"""An assistant without tools, whose answers have no run: it can answer while a question waits."""


def memory() -> ChatMemory:
    conversation = Conversation.objects.get()
    return get_chat_memory(conversation.memory_id, owner=conversation.owner)


def ask_others(how: str) -> None:
    asked = memory().id, "Something else."
    match how:
        case "chat":
            OTHERS.chat(*asked)
        case "achat":
            run(OTHERS.achat(*asked))
        case _:
            list(OTHERS.stream(*asked))


async def elsewhere(do: Callable[[], object]) -> None:
    """Do something in a thread of its own, without an event loop."""

    def done() -> None:
        with leaving_no_connection():
            do()

    await asyncio.to_thread(done)


ADDED = {
    "a message of the model": (lambda: memory().add(AiMessage("By the way.")), ["By the way."]),
    "a message of the user": (lambda: memory().add(UserMessage("Something else.")), ["Something else."]),
    "chat": (lambda: ask_others("chat"), ["Something else.", "Of others."]),
    "achat": (lambda: ask_others("achat"), ["Something else.", "Of others."]),
    "stream": (lambda: ask_others("stream"), ["Something else.", "Of others."]),
    "a memory that was set": (
        lambda: memory().set([*memory().messages(), AiMessage("By the way.")]),
        ["By the way."],
    ),
}

TAKEN = {
    "clear": lambda: memory().clear(),
    "clear and another question": lambda: (memory().clear(), memory().add(UserMessage("Something else."))),
    "set": lambda: memory().set([AiMessage("By the way.")]),
    "remove": lambda: memory().remove(3),
}


@pytest.mark.parametrize(("add", "added"), ADDED.values(), ids=ADDED)
@pytest.mark.parametrize("asked", ["endpoint", "astart"])
def test_what_others_add_stays_and_the_question_is_answered_behind_it(chat, ann, asked, add, added):
    client = chat("Tea.", "Hello.")
    run(with_worker(client.say("Tea?", "q0")))

    answer = ask(client, ann, asked, add)

    assert answer == "Hello."
    assert history() == ["Tea?", "Tea.", "Hi.", *added, "Hello."]
    assert [getattr(each, "text", None) or each.single_text for each in client.model.sent[1]] == ["Tea?", "Tea.", "Hi."]
    newest = Run.objects.order_by("created_at").last()
    assert (newest.state, newest.question) == ("done", 3)
    assert len(client.model.requests) == 2


@pytest.mark.parametrize("take", TAKEN.values(), ids=TAKEN)
@pytest.mark.parametrize("asked", ["endpoint", "astart"])
def test_a_question_that_others_have_cleared_ends_with_the_reason(chat, ann, asked, take):
    client = chat("Tea.", "Hello.")
    run(with_worker(client.say("Tea?", "q0")))

    assert ask(client, ann, asked, take) == CHANGED

    assert Run.objects.order_by("created_at").last().state == "failed"
    assert len(client.model.requests) == 1
    assert text_of(run(with_worker(client.say("And now?")))) == "Hello."


def ask(client, owner, how: str, meanwhile: Callable[[], object]) -> str:
    """Return the answer, or why there is none, to a question before whose worker others do something *meanwhile*."""
    if how == "endpoint":

        async def post() -> list[dict]:
            response = await client.post({"id": "c", "messages": [user("Hi.", "q")]})
            await elsewhere(meanwhile)
            return await with_worker(chunks(response))

        events = run(post())
        return text_of(events) or events[-1]["errorText"]
    one = run(client.assistant.astart(memory().id, "Hi.", owner=owner))
    meanwhile()
    work_off()
    try:
        return StartedRun(one.id).result(timeout=60)
    except AnswerFailedError as exc:
        return str(exc)


@asynccontextmanager
async def worker_that_ends(client) -> AsyncIterator[None]:
    """Let a worker begin, and end it once the model was asked for the second time and is to write its second word."""
    client.model.gate = asyncio.Event()
    worker = Worker(["default"])
    working = asyncio.create_task(worker.work())
    while len(client.model.requests) < 2:
        await asyncio.sleep(0.01)
    worker.end()
    await working
    client.model.gate = None
    yield


@pytest.mark.parametrize(("add", "added"), ADDED.values(), ids=ADDED)
def test_after_a_round_of_tools_the_next_worker_goes_on_behind_it(chat, add, added):
    ran = []

    def look() -> str:
        """Look."""
        ran.append(1)
        return "Seen."

    client = chat(calling(("1", "look", "{}")), "cut off", "Hello.", tools=[look])

    async def ask() -> list[dict]:
        listening = asyncio.create_task(client.say("Hi.", "q"))
        async with worker_that_ends(client):
            await elsewhere(add)
        return await with_worker(listening)

    events = run(ask())

    assert events[-1]["type"] == "finish"
    assert history() == ["Hi.", "", "Seen.", *added, "Hello."]
    assert [each.type for each in client.model.sent[-1]] == ["USER", "AI", "TOOL_EXECUTION_RESULT"]
    assert ran == [1]
