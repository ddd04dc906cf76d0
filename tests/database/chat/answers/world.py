"""
The world around answers: a model that does what the question asks for, tools that act outside of the database, and all
the ways to ask. What the model is sent and what the tools do goes to a log, a file that a killed process leaves behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Generator, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import random
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.backends.signals import connection_created
from django.test import AsyncClient, Client
from rest_framework.authtoken.models import Token

from chatmemory_django.chat import model as models
from chatmemory_django.chat.answers.stored import StoredAnswer
from chatmemory_django.chat.answers.too_long import QuestionTooLongError
from chatmemory_django.chat.approvals import (
    ApprovalRequested,
    ApprovalRequiredError,
    Decision,
    NotPendingError,
    Output,
    Resume,
)
from chatmemory_django.chat.approvals.continuing import THREAD
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import CLIENT, ChatEvent, ChatModel, ChatRequest, ChatResponse, PartialText
from chatmemory_django.chat.models import ToolApproval
from chatmemory_django.chat.runs.answers import BusyError
from chatmemory_django.chat.tools import Tool, ToolError
from chatmemory_django.memory import MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import AiMessage, ToolExecutionRequest, ToolExecutionResultMessage, UserMessage
from tests.asgi import run
from tests.estimators import ADDITIVE_WORDS

# What is assumed of the package besides the imports above, all in one place.
MAX_ROUNDS = 5
TOO_LONG = "Your message is too long for this chat"
"""How the text for users begins if a question was refused."""
ANOTHER = "Another answer"
"""How the text of 409 begins if another answer is in progress; any other 409 is about the conversation itself."""
NOTHING = "Nothing waits"
"""How it begins if there is no call that a decision is about, or that was decided."""
WAITS = "This call waits for approval"
"""How the result begins that the model is sent of a call that waits for staff while others are asked."""
UNKNOWN = "This call was interrupted"
"""How it begins of a call that has no result, and waits for nothing."""
NOTE = "A call that waited for approval has been decided"
"""How what the model is sent in the place of a question begins, if others follow the call that was decided."""
LEASED_FOR = 6.0
"""Seconds after which nobody takes the answer of a killed process for one in progress any more."""
CHAT = {
    "ASSISTANT": f"{__name__}.assistant_of",
    "THROTTLE_RATE": None,
    "READ_THROTTLE_RATE": None,
    "MAX_ANSWERS": 1_000,
    "MAX_STREAMS": 1_000,
}
"""The settings of the chat endpoint."""

PERMISSION = "auth.change_user"
"""Staff have it, the owner has not."""
OUT_OF_TURN = "decided"
"""The name in what the model writes and calls if it is asked about a decision, and not a question."""

WAYS = ("chat", "achat", "stream", "astream", "post")
REJECTIONS = ("InvalidRequestError", "ContextLengthError")
ERRORS = ("RateLimitError", "UnavailableError", "ModelTimeoutError", "BrokenStreamError", *REJECTIONS)
MARKED = re.compile(r"\[(q\d+)\] (\S*) ids=(\w+)(?: rejected=(\w+))?")


@dataclass
class Question:
    """
    A question with what the model is to do in its text: rounds of calls, each a letter for a tool, and then a text.

    *rejected* is the error of a model that refuses each request which has this question anywhere.
    """

    name: str
    client_id: str
    rounds: tuple[str, ...] = ()
    ids: str = "own"
    rejected: str | None = None
    is_too_long: bool = False
    generation: int = 0
    """How many times it was asked once more: each time, every call may run once more."""
    was_killed: bool = False
    is_nameless: bool = False
    """Whether it is asked once, without its id."""

    @property
    def text(self) -> str:
        text = f"[{self.name}] {'|'.join(self.rounds)} ids={self.ids}"
        text += f" rejected={self.rejected}" if self.rejected else ""
        return text + " word" * 400 if self.is_too_long else text

    @property
    def answer(self) -> str:
        return f"[{self.name}] This is the whole answer."


class Kill(NamedTuple):
    """SIGKILL before or after the *number*-th statement, effect or request to the model of this process."""

    where: str
    number: int
    is_before: bool


@dataclass
class Act:
    """One thing that somebody does in a conversation."""

    number: int
    kind: str
    memory_id: str
    options: dict[str, int]
    """Those of the memory."""
    question: Question
    way: str = "chat"
    persist: Any = "early"
    system: str = "Be brief."
    errors: dict[int, str] = field(default_factory=dict)
    """What the model raises instead of its n-th answer in this act."""
    words_before_error: int = 0
    cut: int | None = None
    """After how many events the reader closes the stream, leaves, or stops the answer."""
    stops: bool = False
    """Whether it is stopped then, by this act or the same one at the same time."""
    kill: Kill | None = None
    after: int | None = None
    """The sequence of the question to regenerate."""
    decisions: Sequence[tuple[str, bool]] = ()
    by_staff: bool = False
    """Whether staff decide by REST, and the owner asks again then."""
    generations: dict[str, int] = field(default_factory=dict)
    """Those of the questions, by name, except for 0."""
    delay: float = 0.0
    """Up to how many seconds each moment is late: then another act gets between any two of them."""
    calls_later: bool = False
    """Whether the model calls a tool if it is asked about a decision."""

    @property
    def generation(self) -> int:
        return self.generations.get(self.question.name, 0)

    @property
    def pause(self) -> float:
        """How slow the model and the tools are: a reader must have the time to do something meanwhile."""
        return 0.0 if self.cut is None or self.way != "post" else 0.01

    def __str__(self) -> str:
        """Return what differs from the defaults."""
        known = Act(0, "", "", {}, self.question)
        others = (f"{name}={value!r}" for name, value in vars(self).items() if value != getattr(known, name))
        return f"{', '.join(others)}: {self.question.text[:80]}"


class Outcome(NamedTuple):
    """
    What came of an act: answered, waits, refused, busy, error, left (by its reader), stopped, killed or hangs; of
    decisions also decided, nothing (there is none to make, or to go on with) or forbidden.
    """

    kind: str
    text: str = ""
    asked: tuple[str, ...] = ()
    """The ids of the approvals for which the answer waits."""
    seen: tuple[str, ...] = ()
    """The results that its reader was shown."""
    decided: tuple[str, ...] = ()
    """The ids of the approvals on which staff have decided."""


class World:
    """The log, and what goes on in this process."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.log.touch()
        self.act: Act | None = None
        self.counts: Counter[str] = Counter()
        self._read = 0

    def note(self, kind: str, **others: Any) -> None:
        """Append a line, which stays whatever happens to this process."""
        line = json.dumps({"kind": kind, "act": self.act and self.act.number, **others})
        file = os.open(self.log, os.O_WRONLY | os.O_APPEND)
        os.write(file, f"{line}\n".encode())
        os.close(file)

    def news(self) -> list[dict[str, Any]]:
        """Return the lines since this was last called."""
        with self.log.open("rb") as file:
            file.seek(self._read)
            lines = file.read()
        self._read += len(lines)
        return [json.loads(line) for line in lines.splitlines()]

    @contextmanager
    def moment(self, where: str) -> Iterator[None]:
        """Do the block, unless this process is to die before it; die after it if that is due."""
        self.counts[where] += 1
        time.sleep(random() * self.act.delay if self.act else 0)
        kill = self.act and self.act.kill
        is_due = kill is not None and kill[:2] == (where, self.counts[where])
        if is_due and kill.is_before:
            os.kill(os.getpid(), signal.SIGKILL)
        yield
        if is_due:
            os.kill(os.getpid(), signal.SIGKILL)


def _execute(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
    with world.moment("statement"):
        return execute(sql, params, many, context)


def _watch(connection: Any, **_: Any) -> None:
    """Let each statement of *connection* be a moment at which this process may die."""
    if _execute not in connection.execute_wrappers:
        connection.execute_wrappers.append(_execute)


world: World


def begin(folder: Path) -> World:
    """Make a new world, that of this process and its children."""
    global world  # the site's assistant has to find it
    world = World(folder)
    connection_created.connect(_watch, dispatch_uid=_watch.__qualname__)
    User.objects.get_or_create(username="ann")
    User.objects.get_or_create(username="staff", is_superuser=True, is_staff=True)
    return world


def act_on(token: str) -> str:
    pause = world.act.pause if world.act else 0  # what a stop has cut off may run on after the act
    with world.moment("effect"):
        world.note("effect", token=token)
    time.sleep(pause)
    return f"paid {token}"


def pay(token: str) -> str:
    """Pay."""
    return act_on(token)


async def apay(token: str) -> str:
    """Pay, and let others go on meanwhile."""
    await asyncio.sleep(0.002)
    return act_on(token)


def trip(token: str) -> str:
    """Pay, and fail."""
    act_on(token)
    raise ToolError(f"tripped {token}")


def read(token: str) -> str:
    """Pay for a long text."""
    return f"{act_on(token)} {'word ' * 400}"


def refund(token: str) -> str:
    """Pay what somebody has to approve."""
    return act_on(token)


def credit(token: str) -> str:
    """Pay what staff have to approve."""
    return act_on(token)


def grant(token: str) -> str:
    """Pay what staff have to approve if the call's position is odd, else the owner."""
    return act_on(token)


def browse(token: str) -> str:
    """Pay, in the browser of who asks."""
    raise AssertionError(token)


TOOLS = {
    "p": pay,
    "a": apay,
    "t": trip,
    "r": read,
    "f": Tool(refund, needs_approval=True),
    "b": Tool(browse, runs_in="client"),
    "s": Tool(credit, needs_approval=True, approve_by=PERMISSION),
    "g": Tool(grant, needs_approval=True, approve_by=lambda token: PERMISSION if _position(token) % 2 else "owner"),
}
NAMES = {letter: getattr(tool, "name", None) or tool.__name__ for letter, tool in TOOLS.items()}


def _position(token: str) -> int:
    return int(token.split(".")[3])


class Model(ChatModel):
    """A model that reads in the request what it is asked for, and what of it was done."""

    def do_chat(self, request: ChatRequest) -> ChatResponse:
        return list(self._events(request))[-1]

    def do_stream(self, request: ChatRequest) -> Generator[ChatEvent, None, None]:
        yield from self._events(request)

    async def do_astream(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        for event in self._events(request):
            await asyncio.sleep(world.act.pause)
            yield event

    def _events(self, request: ChatRequest) -> Iterator[ChatEvent]:
        """Yield the answer; what is sent is noted at once, and what is raised before it is raised."""
        act, number = world.act, world.counts["request"]
        users = [index for index, each in enumerate(request.messages) if isinstance(each, UserMessage)]
        asked = MARKED.search(request.messages[users[-1]].single_text if users else "")
        error = act.errors.get(number)
        rejected = (MARKED.search(request.messages[index].single_text) for index in users)
        error = next((each[4] for each in rejected if each and each[4]), error)
        answer = AiMessage(f"[{act.question.name}] I was asked nothing.")
        if error is None and users:
            done = [each for each in request.messages[users[-1] :] if isinstance(each, AiMessage)]
            rounds = sum(bool(each.tool_execution_requests) for each in done)
            if asked is not None:
                answer = self._answer(asked, rounds, number)
            elif request.messages[users[-1]].single_text.startswith(NOTE):
                answer = self._answer_out_of_turn(rounds, number)
        with world.moment("request"):
            world.note(
                "request",
                sent=[_noted(message) for message in request.messages],
                raised=error,
                calls=[call.arguments for call in answer.tool_execution_requests],
            )
            words = (answer.text or "").split()
            name = OUT_OF_TURN if asked is None else asked[1]
            for word in words if error is None else [f"[{name}]"] * act.words_before_error:
                yield PartialText(f"{word} ")
            if error is not None:
                raise getattr(models, error)("The model failed, as it was to.")
        yield ChatResponse(answer)

    def _answer_out_of_turn(self, done: int, number: int) -> AiMessage:
        """Return the answer about a decision."""
        if world.act.calls_later and not done:
            token = f"{OUT_OF_TURN}.{world.act.number}.{number}.0.{world.act.number}.{number}"
            return AiMessage(None, tool_execution_requests=[_call(token, "p", token)])
        return AiMessage(f"[{OUT_OF_TURN}] This is decided: {world.act.number}.{number}.")

    def _answer(self, asked: re.Match[str], done: int, number: int) -> AiMessage:
        name, rounds, ids, act = asked[1], asked[2].split("|") if asked[2] else [], asked[3], world.act
        if done >= len(rounds):
            return AiMessage(f"[{name}] This is the whole answer.")
        calls = []
        for position, letter in enumerate(rounds[done]):
            token = f"{name}.{act.generations.get(name, 0)}.{done}.{position}.{act.number}.{number}"
            call_id = {"own": token, "same": "call", "round": f"call-{position}", "none": None}[ids]
            calls.append(_call(call_id, letter, token))
        return AiMessage(f"[{name}] I look." if done % 2 else None, tool_execution_requests=calls)


def _call(call_id: str | None, letter: str, token: str) -> ToolExecutionRequest:
    return ToolExecutionRequest(call_id, NAMES.get(letter, "unknown"), json.dumps({"token": token}))


def _noted(message: Any) -> list[Any]:
    """Return what the judge needs of a message: type, text, and its calls or the id of the call that it answers."""
    if isinstance(message, AiMessage):
        calls = [[call.id, call.name, call.arguments] for call in message.tool_execution_requests]
        return [message.type.value, message.text, calls]
    if isinstance(message, ToolExecutionResultMessage):
        return [message.type.value, message.text[:200], [message.id, message.tool_name]]
    text = message.single_text if isinstance(message, UserMessage) else message.text
    return [message.type.value, text, None]


def assistant_of(request: object) -> Assistant:
    """Return the site's assistant: the system message and the memory are those of the act."""
    act = world.act
    kind = MessageWindowChatMemory if "max_messages" in act.options else TokenWindowChatMemory
    counted = {} if kind is MessageWindowChatMemory else {"token_count_estimator": ADDITIVE_WORDS}
    return Assistant(
        Model(),
        memory=kind,
        memory_options={**act.options, **counted},
        system_message=act.system,
        tools=list(TOOLS.values()),
        max_rounds=MAX_ROUNDS,
        persist=act.persist,
    )


def perform(act: Act) -> Outcome:
    """Do *act* in this process."""
    world.act = act
    world.counts.clear()
    try:
        if act.way == "rest":
            return _decided_by_rest(act, "staff" if act.kind == "staff" else "ann")
        # By staff, the answer goes on by itself; then its question is sent again.
        decided = _decided_by_rest(act, "staff").decided if act.by_staff else ()
        outcome = run(asyncio.wait_for(_Page(act).outcome(), 60)) if act.way == "post" else _asked_of_assistant(act)
        return outcome._replace(decided=(*decided, *outcome.decided))
    finally:
        world.act = None


def _decided_by_rest(act: Act, username: str) -> Outcome:
    """Decide one by one, and wait until nothing runs."""
    token, _ = Token.objects.get_or_create(user=User.objects.get(username=username))
    client = Client(headers={"Authorization": f"Bearer {token.key}"})
    codes, url = {}, f"/api/conversations/{act.memory_id}/approvals/"
    for name, approved in act.decisions:
        body = {"id": name, "approved": approved}
        codes[name] = client.post(url, body, content_type="application/json").status_code
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join()
    decided = tuple(name for name, code in codes.items() if code == 204)
    kind = {204: "decided", 403: "forbidden", 409: "nothing"}.get(max(codes.values()), "error")
    return Outcome(kind, f"{[*codes.values()]} by REST", decided=decided)


def _asked_of_assistant(act: Act) -> Outcome:
    assistant, question = assistant_of(None), act.question
    message: Any = None if act.after is not None else question.text
    options: dict[str, Any] = {"owner": User.objects.get(username="ann"), "persist": act.persist}
    if act.kind in {"decide", "trespass", "resume"} and not act.by_staff:
        message = Resume(*_given(act))
    elif act.after is not None:
        options["after"] = act.after
    else:
        options["client_message_id"] = None if question.is_nameless else question.client_id
    try:
        match act.way:
            case "chat":
                return Outcome("answered", assistant.chat(act.memory_id, message, **options))
            case "achat":
                return Outcome("answered", run(assistant.achat(act.memory_id, message, **options)))
            case "stream":
                events = []
                with closing(assistant.stream(act.memory_id, message, **options)) as stream:
                    for event in stream:
                        events.append(event)
                        if len(events) == act.cut:
                            break
                return _of_events(events, act)
            case _:
                return run(_read(assistant.astream(act.memory_id, message, **options), act))
    except ApprovalRequiredError as exc:
        return Outcome("waits", asked=tuple(str(each.id) for each in exc.requests))
    except BusyError:
        return Outcome("busy")
    except QuestionTooLongError:
        return Outcome("refused")
    except NotPendingError:
        return Outcome("nothing")
    except PermissionDenied:
        return Outcome("forbidden")
    except Exception as exc:  # noqa: BLE001  # the judge knows which were to come
        return Outcome("error", f"{type(exc).__name__}: {exc}")


def _given(act: Act) -> list[Decision | Output]:
    """Return the decisions of *act*, and what the browser has for its own calls: each time something else."""
    calls = _calls_of_client(pk__in=[name for name, _ in act.decisions])
    given: list[Decision | Output] = []
    for name, approved in act.decisions:
        if name in calls:
            given.append(Output(name, _put_out(calls[name][1]), not approved))
        else:
            given.append(Decision(name, approved))
    return given


def _put_out(call: ToolExecutionRequest) -> str:
    """Run a call in the browser, and return its output."""
    token = json.loads(call.arguments or "{}")["token"]
    text = f"put {token} by {world.act.number if world.act else 0}"
    world.note("output", token=token, text=text)
    return text


def _calls_of_client(**which: Any) -> dict[str, tuple[str | None, ToolExecutionRequest]]:
    """Return the calls that the browser runs, by the ids of *which* approvals, each with the id of its answer."""
    calls = {}
    for each in ToolApproval.objects.filter(approve_by=CLIENT, **which).select_related("conversation"):
        row = each.conversation.messages.get(sequence=each.sequence)
        stored = StoredAnswer.before(each.conversation, each.sequence) if row.on_path else None
        calls[str(each.pk)] = (stored and stored.id, row.chat_message.tool_execution_requests[each.position])
    return calls


async def _read(stream: AsyncGenerator[Any, None], act: Act) -> Outcome:
    events = []
    async with aclosing(stream):
        async for event in stream:
            events.append(event)
            if len(events) == act.cut:
                break
    return _of_events(events, act)


def _of_events(events: list[Any], act: Act) -> Outcome:
    asked = tuple(str(each.id) for each in events if isinstance(each, ApprovalRequested))
    seen = tuple(each.text for each in events if isinstance(each, ToolExecutionResultMessage))
    responses = [each.ai_message.text for each in events if isinstance(each, ChatResponse)]
    pieces = [each.text for each in events if isinstance(each, PartialText)]
    if len(events) == act.cut:
        return Outcome("left", seen=seen)
    if asked:
        return Outcome("waits", asked=asked, seen=seen)
    return Outcome("answered", (responses[-1] if responses else "".join(pieces)) or "", seen=seen)


class _Page:
    """A page with the chat, which posts what an act is, and reads the stream of the answer."""

    def __init__(self, act: Act) -> None:
        self.act = act
        self.url = "/api/chat"

    def body(self) -> dict[str, Any]:
        question, chat = self.act.question, {"id": self.act.memory_id}
        message = {"id": question.client_id, "role": "user", "parts": [{"type": "text", "text": question.text}]}
        if self.act.kind in {"decide", "trespass", "resume", "staff"} and not self.act.by_staff:
            part = {"type": "tool-refund", "state": "approval-responded"}
            calls, answer = _calls_of_client(pk__in=[name for name, _ in self.act.decisions]), "answer"
            parts: list[dict[str, Any]] = []
            for name, approved in self.act.decisions:
                if name not in calls:
                    parts.append({**part, "approval": {"id": name, "approved": approved}})
                    continue
                of, call = calls[name]
                answer = of or answer
                state = {True: "output-available", False: "output-error"}[approved]
                key = {True: "output", False: "errorText"}[approved]
                parts.append({"type": "tool-x", "toolCallId": call.id, "state": state, key: _put_out(call)})
            parts = parts or [{**part, "state": "approval-requested", "approval": {"id": "any"}}]
            return {**chat, "message": {"id": answer, "role": "assistant", "parts": parts}}
        if self.act.kind == "regenerate":
            return {**chat, "trigger": "regenerate-message", "messageId": question.client_id, "message": message}
        return {**chat, "message": message}  # a list would be all that the page shows

    async def outcome(self) -> Outcome:
        user = await User.objects.aget(username="staff" if self.act.kind == "staff" else "ann")
        token, _ = await Token.objects.aget_or_create(user=user)
        self.headers = {"Authorization": f"Bearer {token.key}"}
        response = await self._post("", await sync_to_async(self.body)())
        if response.status_code != 200:
            text = response.content.decode()
            others = {409: _kind_of_conflict(text), 413: "refused", 403: "forbidden"}
            kind = others.get(response.status_code, "error")
            # It was stored before the answer could go on, or before another one went on with it.
            decided = self._decided() if kind in {"busy", "nothing"} else ()
            if kind == "nothing":
                decided = tuple([each for each in decided if await self._has_decided(each, user)])
            return Outcome(kind, f"{response.status_code} {text}", decided=decided)
        outcome = await self._followed(response)
        if outcome.kind == "left":  # the answer goes on without its reader: who comes back reads it to its end
            where = f"{self.url}/{self.act.memory_id}/stream"
            while (again := await AsyncClient().get(where, headers=self.headers)).status_code == 200:
                found = await self._followed(again, stays=True)
                outcome = found if found.kind != "error" else outcome
        return outcome._replace(decided=self._decided())

    def _decided(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.act.decisions) if self.act.kind == "staff" else ()

    async def _has_decided(self, name: str, user: User) -> bool:
        decided = ToolApproval.objects.filter(pk=name, approved=dict(self.act.decisions)[name], decided_by=str(user.pk))
        return await decided.aexists()

    async def _post(self, where: str, body: dict[str, Any]) -> Any:
        content = json.dumps(body)
        return await AsyncClient().post(
            f"{self.url}{where}", content, content_type="application/json", headers=self.headers
        )

    async def _followed(self, response: Any, *, stays: bool = False) -> Outcome:
        chunks: list[dict[str, Any]] = []
        stopping: Awaitable[Any] | None = None
        async with aclosing(response.streaming_content) as pieces:
            async for piece in pieces:
                lines = piece.decode().split("\n\n")
                chunks += [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
                if stays or self.act.cut is None or len(chunks) < self.act.cut or stopping is not None:
                    continue
                if not self.act.stops:
                    return (await self._of_chunks(chunks))._replace(kind="left")
                stopping = asyncio.ensure_future(self._post(f"/{self.act.memory_id}/stop", {}))
        if stopping is not None:
            await stopping
        return await self._of_chunks(chunks)

    @sync_to_async
    def _of_chunks(self, chunks: list[dict[str, Any]]) -> Outcome:
        texts: dict[str, str] = {}
        for chunk in chunks:
            if chunk["type"] == "text-delta":
                texts[chunk["id"]] = texts.get(chunk["id"], "") + chunk["delta"]
        kinds = {chunk["type"] for chunk in chunks}
        text = list(texts.values())[-1].rstrip() if texts else ""
        seen = tuple(str(chunk["output"]) for chunk in chunks if chunk["type"] == "tool-output-available")
        if "error" in kinds:
            error = next(chunk["errorText"] for chunk in chunks if chunk["type"] == "error")
            return Outcome("refused" if error.startswith(TOO_LONG) else "error", error, seen=seen)
        if "abort" in kinds:
            return Outcome("stopped", text, seen=seen)
        if "finish" not in kinds:
            return Outcome("error", "The stream ended without a word.", seen=seen)
        asked = tuple(self._asked(chunks))
        return Outcome("waits", asked=asked, seen=seen) if asked else Outcome("answered", text, seen=seen)

    def _asked(self, chunks: list[dict[str, Any]]) -> Iterator[str]:
        """Yield the ids of what the answer waits for; in place of that of a call that does not wait, the call's own."""
        yield from (chunk["approvalId"] for chunk in chunks if "approvalId" in chunk)
        calls = _calls_of_client(conversation__memory_id=self.act.memory_id, state=ToolApproval.State.WAITING).items()
        shown = {chunk.get("messageId", "") for chunk in chunks}
        waiting = {call.id: name for name, (answer, call) in calls if answer in shown}
        last = {chunk["toolCallId"]: chunk["type"] for chunk in chunks if "toolCallId" in chunk}
        states = dict.fromkeys(waiting, "tool-input-available") | last  # the page may have had the call before
        yield from (waiting.get(call, call) for call, state in states.items() if state == "tool-input-available")


def _kind_of_conflict(text: str) -> str:
    return "busy" if text.startswith(ANOTHER) else "nothing" if text.startswith(NOTHING) else "error"
